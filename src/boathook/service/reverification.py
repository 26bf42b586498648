"""Verifies rejected requests again, with current secrets as of their arrival, and accepts those that pass."""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.db import delivery_commands, source_secrets
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.due_notifier import notify_due
from boathook.db.events import EventStore
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter, RejectionRow, StoredRequest
from boathook.db.route_registry import read_router
from boathook.domain import ids
from boathook.domain.errors import TooManyDeliveries, ValueRejected
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Receipt
from boathook.http_client.fetch import Fetcher
from boathook.ingest.cells import refuse_others
from boathook.ingest.content_encoding import Decoder
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import compile_verifier, dedup_days_by_source
from boathook.ingest.spool_records import UNROUTED
from boathook.ingest.verification_io import VerificationIO
from boathook.service.database import with_stored_sources
from boathook.verification.verifier import Challenge, KeyRequired, Rejected, Request, Verdict, Verified, Verifier

_PAGE: Final = 500


class ReverifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying a rejected request again."""

    rejection_id: str
    outcome: str
    """``accepted``, ``duplicate``, ``conflict``, ``refused`` or ``impossible``."""
    detail: str
    event_id: str | None = None
    grade: str | None = None
    """The event's proof strength; None if no event was created."""


async def reverify(
    database: Database, settings: Settings, chosen: ListFilter | Sequence[UUID], action: AuditContext
) -> AsyncGenerator[ReverifyResult, None]:
    """Verify rejected requests again with current secrets, as of their arrival; accept those that pass.

    Args:
        database: the database.
        settings: contain the sources.
        chosen: a filter of rejections, or their ids.
        action: the actor and note for the audit.

    Raises:
        NotFound: one of the given ids does not exist.
        ConfigError: the settings of a source are wrong.
    """
    settings = await with_stored_sources(settings, database)
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
    """Return why a request cannot be verified again; None if it can."""
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
            detail = "its sender's public key is not available now; try again later"
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
            except (TooManyDeliveries, ValueRejected) as error:
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
    """A reverifier for each requested source, with the current secrets."""

    def __init__(self, database: Database, settings: Settings, verification_io: VerificationIO) -> None:
        self._database = database
        self._settings = settings
        self._verification_io = verification_io
        self._reverifiers: dict[str, SourceReverifier] = {}
        self._added: SecretsCache | None = None

    async def get(self, source: str) -> "SourceReverifier":
        """Return the reverifier of a configured source. Raises ConfigError if its settings are wrong."""
        if source not in self._reverifiers:
            if self._added is None:
                self._added = SecretsCache(self._settings, await source_secrets.list_all(self._database))
            self._reverifiers[source] = SourceReverifier(
                self._database, self._settings, source, self._verification_io, self._added
            )
        return self._reverifiers[source]


class SourceReverifier:
    """Verifies and accepts requests of one source like the gateway."""

    def __init__(
        self, database: Database, settings: Settings, source: str, verification_io: VerificationIO, added: SecretsCache
    ) -> None:
        self._source = source
        self.verifier = compile_verifier(settings, source, added=added)
        self._verification_io = verification_io
        self._limits = settings.limits
        own = settings.sources[source].content_encodings
        self._encodings = settings.limits.content_encodings if own is None else own
        events = EventStore(
            database, dedup_days=settings.retention.dedup_days, dedup_days_of=dedup_days_by_source(settings)
        )
        builder = self._event_builder = EventBuilder(Router((), UNROUTED), partial(read_router, database))
        self._writer = EventWriter(events, builder.reroute, elsewhere=refuse_others(settings, lambda: builder.router))
        self._database = database

    def can_read(self, request: Request) -> bool:
        """Return whether the gateway accepts the request's Content-Encoding."""
        return request.headers.get("content-encoding", "").lower() in {"", "identity", *self._encodings}

    def decoder(self, request: Request) -> Decoder | None:
        """Return the decoder for the request's Content-Encoding, if its source accepts one."""
        encoding = request.headers.get("content-encoding", "").lower()
        if encoding not in self._encodings:
            return None
        return Decoder(encoding, max_decoded=self._limits.max_decoded, max_ratio=self._limits.max_ratio)

    async def verify(self, request: Request, now: float, decoder: Decoder | None) -> Verdict:
        """Verify a request as of *now*; return `KeyRequired` only if its sender's key is not available."""
        verdict = self.verifier.verify(request, now, decoder)
        if not isinstance(verdict, KeyRequired):
            return verdict
        return await self._verification_io.verify_with_key(self._source, self.verifier, verdict, request, now, decoder)

    def explain(self, request: Request, refused: Rejected, now: float) -> str:
        """Return why a request is rejected, and the common mistake that explains it, if any."""
        hint = self.hint(request, refused, now)
        return f"{refused.reason}: {refused.detail}" + (f"; {hint}" if hint else "")

    def hint(self, request: Request, refused: Rejected, now: float, others: Sequence[Verifier] = ()) -> str | None:
        """Return the common mistake that explains a rejection; *others* are sources the request may be meant for."""
        return self.verifier.explain(request, refused, now, others=others, decode=self.decoder(request))

    async def accept(self, source: str, verified: Verified, body: bytes, content_type: str) -> Receipt:
        """Store the event with its deliveries under the current routes."""
        event = self._event_builder.event(source, verified, body, content_type, time.time())
        (receipt,) = await self._writer.append([event])
        await notify_due(self._database)
        return receipt


def request_of(row: RejectionRow, stored: StoredRequest) -> Request:
    """Return a rejected request as the gateway received it, as far as it was stored."""
    # Split manually: the sender controls the host, and an invalid one must not end the run.
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
