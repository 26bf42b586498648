"""Refused requests judged again, by their sources' present secrets and as of when they came; what holds is accepted."""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

from boathook.config import Settings
from boathook.db import delivery_commands, source_secrets
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.events import EventStore
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter, RejectionRow, StoredRequest
from boathook.db.route_registry import read_router
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, RoutesChanged, TooManyDeliveries
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Receipt
from boathook.http_client.fetch import Fetcher
from boathook.ingest.content_encoding import Decoder
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import compile_verifier, dedup_days_by_source
from boathook.ingest.spool_records import UNROUTED
from boathook.ingest.verification_io import VerificationIO
from boathook.verification.verifier import Challenge, KeyRequired, Rejected, Request, Verdict, Verified, Verifier

_PAGE: Final = 500
_MAX_REROUTES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverifyResult:
    """What judging a refused request again led to."""

    rejection_id: str
    outcome: str
    """``accepted``, ``duplicate``, ``conflict``, ``refused`` or ``impossible``."""
    detail: str
    event_id: str | None = None
    grade: str | None = None
    """What the event's proof covers; None where it became none."""


async def reverify(
    database: Database, settings: Settings, chosen: ListFilter | Sequence[UUID], action: AuditContext
) -> AsyncGenerator[ReverifyResult, None]:
    """Judge refused requests again by their sources' present secrets, as of when they came; accept those that hold.

    Raises:
        NotFound: one of the given ids does not exist.
        ConfigError: a source cannot be set up.
    """
    with contextlib.closing(Fetcher(settings.outbound.allow)) as fetcher:
        reverifiers = ReverifierCache(
            database, settings, VerificationIO(fetcher.fetch, HandshakeSecrets(settings.server.data_dir))
        )
        async for rejection_id in _rejections(database, chosen):
            yield await _reverify(database, settings, rejection_id, action, reverifiers)


async def _reverify(
    database: Database, settings: Settings, rejection_id: UUID, action: AuditContext, reverifiers: "ReverifierCache"
) -> ReverifyResult:
    row, stored = await listings.get_rejection(database, rejection_id)
    if row.event_id is not None:
        return ReverifyResult(rejection_id=row.id, outcome="duplicate", detail="accepted before", event_id=row.event_id)
    if why := why_not_verifiable(settings, row, stored):
        return ReverifyResult(rejection_id=row.id, outcome="impossible", detail=why)
    return await _reverify_request(database, await reverifiers.get(row.source), rejection_id, row, stored, action)


def why_not_verifiable(settings: Settings, row: RejectionRow, stored: StoredRequest) -> str | None:
    """Return why a request cannot be judged again at all; None where it can."""
    if row.source not in settings.sources:
        return f"there is no source {row.source!r} in the settings"
    if len(stored.body) < row.body_size:
        return f"only {len(stored.body)} of its {row.body_size} bytes were kept"
    return None


async def _rejections(database: Database, chosen: ListFilter | Sequence[UUID]) -> AsyncIterator[UUID]:
    if not isinstance(chosen, ListFilter):
        for rejection_id in chosen:
            yield rejection_id
        return
    page = replace(chosen, state="open", limit=_PAGE)
    while rows := await listings.list_rejections(database, page):
        for row in rows:
            yield ids.read(ids.REJECTION, row.id)
        page = replace(page, after=rows[-1].id)


async def _reverify_request(
    database: Database,
    reverifier: "SourceReverifier",
    rejection_id: UUID,
    row: RejectionRow,
    stored: StoredRequest,
    action: AuditContext,
) -> ReverifyResult:
    request = request_of(row, stored)
    if not reverifier.can_read(request):
        detail = f"the source does not accept Content-Encoding {request.headers['content-encoding']!r}"
        return ReverifyResult(rejection_id=row.id, outcome="impossible", detail=detail)
    decoder = reverifier.decoder(request)
    match await reverifier.verify(request, row.refused_at.timestamp(), decoder):
        case KeyRequired():
            detail = "its sender's public key cannot be had at the moment; try again later"
            return ReverifyResult(rejection_id=row.id, outcome="impossible", detail=detail)
        case Rejected() as refused:
            detail = reverifier.explain(request, refused, row.refused_at.timestamp())
            return ReverifyResult(rejection_id=row.id, outcome="refused", detail=detail)
        case Challenge():
            return ReverifyResult(rejection_id=row.id, outcome="impossible", detail="it is a handshake, not an event")
        case Verified() as verified:
            body = stored.body if decoder is None or decoder.decoded is None else decoder.decoded
            try:
                receipt = await reverifier.accept(row.source, verified, body, row.content_type)
            except TooManyDeliveries as error:
                return ReverifyResult(rejection_id=row.id, outcome="impossible", detail=str(error))
            await delivery_commands.mark_rejection_accepted(database, rejection_id, receipt.event_id, action)
            outcome = "accepted" if isinstance(receipt, Accepted) else "conflict" if receipt.conflict else "duplicate"
            event_id = ids.show(ids.EVENT, receipt.event_id)
            return ReverifyResult(
                rejection_id=row.id,
                outcome=outcome,
                detail=verified.type,
                event_id=event_id,
                grade=verified.grade.value,
            )


class ReverifierCache:
    """A judge for each source that is asked for, with the secrets of this moment."""

    def __init__(self, database: Database, settings: Settings, verification_io: VerificationIO) -> None:
        self._database = database
        self._settings = settings
        self._verification_io = verification_io
        self._made: dict[str, SourceReverifier] = {}
        self._added: SecretsCache | None = None

    async def get(self, source: str) -> "SourceReverifier":
        """Return the judge of a source that the settings have. Raises ConfigError where it cannot be set up."""
        if source not in self._made:
            if self._added is None:
                self._added = SecretsCache(self._settings, await source_secrets.list_all(self._database))
            self._made[source] = SourceReverifier(
                self._database, self._settings, source, self._verification_io, self._added
            )
        return self._made[source]


class SourceReverifier:
    """One source as the gateway has it, to judge and accept again by."""

    def __init__(
        self, database: Database, settings: Settings, source: str, verification_io: VerificationIO, added: SecretsCache
    ) -> None:
        self._source = source
        self.verifier = compile_verifier(settings, source, added=added)
        self._verification_io = verification_io
        self._limits = settings.limits
        own = settings.sources[source].content_encodings
        self._encodings = settings.limits.content_encodings if own is None else own
        self._events = EventStore(
            database, dedup_days=settings.retention.dedup_days, dedup_days_of=dedup_days_by_source(settings)
        )
        self._event_builder = EventBuilder(Router((), UNROUTED), partial(read_router, database))
        self._database = database

    def can_read(self, request: Request) -> bool:
        """Return whether the gateway would have let the request's Content-Encoding pass."""
        return request.headers.get("content-encoding", "").lower() in {"", "identity", *self._encodings}

    def decoder(self, request: Request) -> Decoder | None:
        """Return what undoes the request's Content-Encoding, where its source allows one."""
        encoding = request.headers.get("content-encoding", "").lower()
        if encoding not in self._encodings:
            return None
        return Decoder(encoding, max_decoded=self._limits.max_decoded, max_ratio=self._limits.max_ratio)

    async def verify(self, request: Request, now: float, decoder: Decoder | None) -> Verdict:
        """Judge a request as of *now*; `KeyRequired` only where its sender's key cannot be had."""
        verdict = self.verifier.verify(request, now, decoder)
        if not isinstance(verdict, KeyRequired):
            return verdict
        return await self._verification_io.verify_with_key(self._source, self.verifier, verdict, request, now, decoder)

    def explain(self, request: Request, refused: Rejected, now: float) -> str:
        """Return why a request is refused, with the usual mistake that explains it, where one does."""
        hint = self.hint(request, refused, now)
        return f"{refused.reason}: {refused.detail}" + (f"; {hint}" if hint else "")

    def hint(self, request: Request, refused: Rejected, now: float, others: Sequence[Verifier] = ()) -> str | None:
        """Return the usual mistake that explains a refusal; *others* may be whom the request was meant for."""
        return self.verifier.explain(request, refused, now, others=others, decode=self.decoder(request))

    async def accept(self, source: str, verified: Verified, body: bytes, content_type: str) -> Receipt:
        """Store the event with the deliveries it is owed by the present routes."""
        event = self._event_builder.event(source, verified, body, content_type, time.time())
        for _ in range(_MAX_REROUTES):
            (event,) = await self._event_builder.reroute([event])
            try:
                (receipt,) = await self._events.append([event])
            except RoutesChanged:
                continue
            await delivery_commands.notify_due(self._database)
            return receipt
        raise DatabaseError("the routes kept changing while the event was stored; try again")


def request_of(row: RejectionRow, stored: StoredRequest) -> Request:
    """Return a refused request as the gateway saw it, as far as it was kept."""
    # By hand, as a stranger may have written the host, and one that no reader takes must not end the run.
    address, _, query = row.url.partition("?")
    return Request(
        method=row.method,
        url=row.url,
        path="/" + address.partition("://")[2].partition("/")[2],
        query=query,
        headers=stored.headers,
        body=stored.body,
        client=row.client_address,
    )
