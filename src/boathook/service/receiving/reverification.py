"""Verifies rejected requests again, with current secrets as of their arrival: to diagnose or to accept them."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db import delivery_commands, source_secrets
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.events import store_in
from boathook.db.queries import listings
from boathook.db.queries.listings import RejectionRow, StoredRequest
from boathook.db.route_registry import read_router_in
from boathook.db.source_secrets import SourceSecret
from boathook.domain import ids
from boathook.domain.errors import ConfigError, TooManyDeliveries, ValueRejected
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, NewEvent
from boathook.domain.verification import HEAD_REASONS, Reason
from boathook.http_client.fetch import Fetcher
from boathook.ingest.content_encoding import Decoder, content_coding
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import compile_verifier, follow_sources, largest_body
from boathook.ingest.spool_records import UNROUTED
from boathook.ingest.verification_io import VerificationIO
from boathook.service.database import with_stored_sources
from boathook.service.elsewhere import reject_elsewhere
from boathook.verification.verifier import Challenge, KeyRequired, Rejected, Request, Verdict, Verified, Verifier

_MAX_OTHER_SOURCES: Final = 32


class ReverifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying a rejected request again."""

    rejection_id: str
    outcome: str
    """``accepted``, ``duplicate``, ``conflict``, ``refused`` or ``impossible``."""
    detail: str
    event_id: str | None = None
    grade: str | None = None
    """The event's proof strength; None if no event was created."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying a rejected request again."""

    outcome: str
    """``holds``, ``refused`` or ``impossible``."""
    seen: str
    """The result of verification now, in one sentence."""
    hint: str = ""
    """The change that would make verification succeed, if a common mistake explains the rejection."""
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DiagnosedRejection:
    """A rejected request as stored, with its diagnosis."""

    row: RejectionRow
    stored: StoredRequest = field(repr=False)
    diagnosis: Diagnosis


class _SourceReverifier:
    """Verifies requests of one source like the gateway."""

    def __init__(self, settings: Settings, source: str, verification_io: VerificationIO, added: SecretsCache) -> None:
        self._source = source
        self.verifier = compile_verifier(settings, source, added=added)
        self._verification_io = verification_io
        self._limits = settings.limits
        recipe = self.verifier.recipe
        max_body, _ = largest_body(settings.limits, source, settings.sources[source].max_body, recipe.max_body)
        self._max_decoded = max(settings.limits.max_decoded, max_body)
        own = settings.sources[source].content_encodings
        self._encodings = settings.limits.content_encodings if own is None else own

    def can_read(self, request: Request) -> bool:
        """Return whether the gateway accepts the request's Content-Encoding."""
        return content_coding(request.headers) in {"", *self._encodings}

    def decoder(self, request: Request) -> Decoder | None:
        """Return the decoder for the request's Content-Encoding, if its source accepts one."""
        encoding = content_coding(request.headers)
        if encoding not in self._encodings:
            return None
        return Decoder(encoding, max_decoded=self._max_decoded, max_ratio=self._limits.max_ratio)

    async def verify(self, request: Request, now: float, decoder: Decoder | None) -> Verdict:
        """Verify a request as of *now*; return `KeyRequired` only if its sender's key is not available."""
        # In a thread: a large body, or a source's schema, may take long.
        verdict = await asyncio.to_thread(self.verifier.verify, request, now, decoder)
        if not isinstance(verdict, KeyRequired):
            return verdict
        await self._verification_io.fetch_key(self._source, self.verifier, verdict.url, now)
        return await asyncio.to_thread(self.verifier.verify, request, now, decoder)

    def explain(self, request: Request, refused: Rejected, now: float) -> str:
        """Return why a request is rejected, and the common mistake that explains it, if any."""
        hint = self.hint(request, refused, now)
        return f"{refused.reason}: {refused.detail}" + (f"; {hint}" if hint else "")

    def hint(self, request: Request, refused: Rejected, now: float, others: Sequence[Verifier] = ()) -> str | None:
        """Return the common mistake that explains a rejection; *others* are sources the request may be meant for."""
        return self.verifier.explain(request, refused, now, others=others, decode=self.decoder(request))


class _ReverifierCache:
    """A reverifier for each requested source, with the current secrets."""

    def __init__(self, settings: Settings, read_secrets: Callable[[], Awaitable[Sequence[SourceSecret]]]) -> None:
        self._settings = settings
        self._read_secrets = read_secrets
        self._fetcher = Fetcher(settings.outbound.allow)
        self._verification_io = VerificationIO(self._fetcher.fetch, HandshakeSecrets(settings.server.data_dir))
        self._reverifiers: dict[str, _SourceReverifier] = {}
        self._added: SecretsCache | None = None

    async def get(self, source: str) -> _SourceReverifier:
        """Return the reverifier of a configured source. Raises ConfigError if its settings are wrong."""
        if source not in self._reverifiers:
            if self._added is None:
                self._added = SecretsCache(self._settings, await self._read_secrets())
            self._reverifiers[source] = _SourceReverifier(self._settings, source, self._verification_io, self._added)
        return self._reverifiers[source]

    def close(self) -> None:
        """Close the connections to the senders' keys."""
        self._fetcher.close()


class _Valid(msgspec.Struct, frozen=True):
    """A rejected request that is valid now, with its event."""

    rejection_id: UUID
    event: NewEvent
    verified: Verified


async def reverify(
    connection: Connection,
    settings: Settings,
    rejection_ids: Sequence[UUID],
    action: AuditContext,
    organization: str | None = None,
) -> list[ReverifyResult]:
    """Verify rejected requests again with current secrets, as of their arrival; accept those that pass.

    All are verified before the first is stored: while a sender's key is fetched, no key of an event is locked.

    Args:
        connection: its transaction stores the events.
        settings: contain the sources.
        rejection_ids: their ids.
        action: the actor and note for the audit.
        organization: the only organization whose rejections may be reached.

    Raises:
        NotFound: one of the ids does not exist, or the organization may not reach it.
        ConfigError: the settings of a source are wrong.
    """
    settings = await with_stored_sources(settings, connection)
    acceptor = _Acceptor(connection, settings, action)
    results: dict[UUID, ReverifyResult] = {}
    valid: list[_Valid] = []
    with contextlib.closing(_ReverifierCache(settings, partial(source_secrets.list_active, connection))) as reverifiers:
        for rejection_id in dict.fromkeys(rejection_ids):
            row, stored_request = await listings.get_rejection(connection, rejection_id, organization)
            verified = await _verify(settings, row, stored_request, reverifiers)
            if isinstance(verified, ReverifyResult):
                results[rejection_id] = verified
            else:
                valid.append(acceptor.draft(rejection_id, row, *verified))
    if valid:
        await acceptor.read_routes()
    # In the order in which gateways store a batch, so that the two never wait for each other.
    for request in sorted(valid, key=lambda request: request.event.key_hash):
        results[request.rejection_id] = await acceptor.accept(request)
    return [results[rejection_id] for rejection_id in rejection_ids]


class _Acceptor:
    """Stores the events of valid requests in one transaction, with their deliveries under the current routes."""

    def __init__(self, connection: Connection, settings: Settings, action: AuditContext) -> None:
        self._connection = connection
        self._action = action
        events = store_in(connection, dedup_days=settings.retention.dedup_days)
        follow_sources(events, settings)
        builder = self._builder = EventBuilder(Router((), UNROUTED), partial(read_router_in, connection))
        self._writer = EventWriter(
            events, builder.reroute, elsewhere=reject_elsewhere(settings, lambda: builder.router)
        )

    def draft(self, rejection_id: UUID, row: RejectionRow, verified: Verified, body: bytes) -> _Valid:
        """Return a valid request with its event, which is routed when it is stored."""
        event = self._builder.event(str(row.source), verified, body, row.content_type, time.time())
        return _Valid(rejection_id, event, verified)

    async def read_routes(self) -> None:
        """Read the current routes."""
        await self._builder.refresh()

    async def accept(self, request: _Valid) -> ReverifyResult:
        """Store the event of a request, and record which one the request became."""
        name = ids.show(ids.REJECTION, request.rejection_id)
        try:
            async with self._connection.transaction():
                (receipt,) = await self._writer.append(await self._builder.reroute([request.event]))
        except (TooManyDeliveries, ValueRejected) as error:
            return ReverifyResult(rejection_id=name, outcome="impossible", detail=str(error))
        await delivery_commands.mark_rejection_accepted(
            self._connection, request.rejection_id, receipt.event_id, self._action
        )
        outcome = "accepted" if isinstance(receipt, Accepted) else "conflict" if receipt.conflict else "duplicate"
        return ReverifyResult(
            rejection_id=name,
            outcome=outcome,
            detail=request.verified.type,
            event_id=ids.show(ids.EVENT, receipt.event_id),
            grade=request.verified.grade.value,
        )


def _why_not_verifiable(settings: Settings, row: RejectionRow, stored_request: StoredRequest) -> str | None:
    """Return why a request cannot be verified again; None if it can."""
    if row.reason in HEAD_REASONS:
        return "it was rejected by its head, so no body was stored; ask the sender to send it again"
    if row.source not in settings.sources:
        return f"there is no source {row.source!r} in the settings"
    if len(stored_request.body) < row.body_size:
        return f"only {len(stored_request.body)} of its {row.body_size} bytes were kept"
    return None


def _impossible(row: RejectionRow, obstacle: str) -> ReverifyResult:
    return ReverifyResult(rejection_id=row.id, outcome="impossible", detail=obstacle)


async def _verify(
    settings: Settings, row: RejectionRow, stored_request: StoredRequest, reverifiers: _ReverifierCache
) -> ReverifyResult | tuple[Verified, bytes]:
    """Return the verified request with its decoded body, or why it is not accepted."""
    if row.event_id is not None:
        return ReverifyResult(rejection_id=row.id, outcome="duplicate", detail="accepted before", event_id=row.event_id)
    if obstacle := _why_not_verifiable(settings, row, stored_request):
        return _impossible(row, obstacle)
    reverifier = await reverifiers.get(str(row.source))
    request = _request_of(row, stored_request)
    if not reverifier.can_read(request):
        detail = f"the source does not accept Content-Encoding {request.headers['content-encoding']!r}"
        return _impossible(row, detail)
    decoder = reverifier.decoder(request)
    match await reverifier.verify(request, row.refused_at.timestamp(), decoder):
        case KeyRequired():
            return _impossible(row, "its sender's public key is not available now; try again later")
        case Rejected() as refused:
            detail = reverifier.explain(request, refused, row.refused_at.timestamp())
            return ReverifyResult(rejection_id=row.id, outcome="refused", detail=detail)
        case Challenge():
            return _impossible(row, "it is a handshake, not an event")
        case Verified() as verified:
            return verified, stored_request.body if decoder is None or decoder.decoded is None else decoder.decoded


async def diagnose(database: Database, settings: Settings, rejection_id: UUID) -> DiagnosedRejection:
    """Return a rejected request with its diagnosis; nothing is stored.

    Raises:
        NotFound: the quarantine has no such request.
    """
    settings = await with_stored_sources(settings, database)
    row, stored_request = await listings.get_rejection(database, rejection_id)
    if row.event_id is not None:
        seen = "It was verified again and accepted."
        return DiagnosedRejection(row, stored_request, Diagnosis(outcome="holds", seen=seen, cause="", remedy=""))
    if obstacle := _why_not_verifiable(settings, row, stored_request):
        return DiagnosedRejection(row, stored_request, _undetermined(row, obstacle))
    with contextlib.closing(_ReverifierCache(settings, partial(source_secrets.list_all, database))) as reverifiers:
        try:
            reverifier = await reverifiers.get(str(row.source))
        except ConfigError as error:
            return DiagnosedRejection(row, stored_request, _undetermined(row, str(error)))
        others = await _others(reverifiers, settings, str(row.source))
        return DiagnosedRejection(
            row, stored_request, await _diagnose_request(reverifier, row, _request_of(row, stored_request), others)
        )


async def _others(reverifiers: _ReverifierCache, settings: Settings, source: str) -> list[Verifier]:
    """Return the verifiers of other sources, because the request may have been meant for one of them."""
    verifiers = []
    for name in sorted(settings.sources.keys() - {source})[:_MAX_OTHER_SOURCES]:
        with contextlib.suppress(ConfigError):
            verifiers.append((await reverifiers.get(name)).verifier)
    return verifiers


async def _diagnose_request(
    reverifier: _SourceReverifier, row: RejectionRow, request: Request, others: Sequence[Verifier]
) -> Diagnosis:
    if not reverifier.can_read(request):
        return _undetermined(
            row, f"the source does not accept Content-Encoding {request.headers['content-encoding']!r}"
        )
    now = row.refused_at.timestamp()
    match await reverifier.verify(request, now, reverifier.decoder(request)):
        case Verified() as verified:
            return Diagnosis(
                outcome="holds",
                seen=f"With the current secrets it is valid: it is an event {verified.type}.",
                cause="A secret or setting of the source was wrong when it arrived, and has been corrected since.",
                remedy="Verify it again to accept it, and all other rejections of its source.",
            )
        case Rejected() as refused:
            hint = reverifier.hint(request, refused, now, others) or ""
            cause, remedy = _explain(refused.reason, hint)
            return Diagnosis(outcome="refused", seen=_sentence(refused.detail), hint=hint, cause=cause, remedy=remedy)
        case KeyRequired():
            return _undetermined(row, "its sender's public key is not available now")
        case Challenge():
            return _undetermined(row, "it is a handshake, not an event")


def _undetermined(row: RejectionRow, obstacle: str) -> Diagnosis:
    cause, remedy = _explain(row.reason, "")
    return Diagnosis(outcome="impossible", seen=f"It cannot be verified again: {obstacle}.", cause=cause, remedy=remedy)


def _request_of(row: RejectionRow, stored_request: StoredRequest) -> Request:
    """Return a rejected request as the gateway received it, as far as it was stored."""
    # Split manually: the sender controls the host, and an invalid one must not end the run.
    address, _, query = row.url.partition("?")
    return Request(
        method=row.method,
        url=row.url,
        path="/" + address.partition("://")[2].partition("/")[2],
        query=query,
        headers=stored_request.headers,
        body=stored_request.body,
        client=row.client_address,
    )


def _explain(reason: str, hint: str) -> tuple[str, str]:
    """Return the likely cause and the remedy of a rejection, given its hint."""
    for words, explanation in _HINTED:
        if words in hint:
            return explanation
    return _CAUSES.get(reason, ("The reason is unknown.", "Look into boathook's log at that time."))


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


_BODY_CHANGED: Final = (
    "Something between the sender and boathook changed the body: a proxy, a firewall or a framework that parses JSON.",
    "Pass the body on byte for byte; change it behind boathook, if at all.",
)
_SECRET_WRITTEN: Final = (
    "The secret is right, but its encoding is not the one that the sender uses.",
    "Set the provider, or the encoding of the secret, as the hint says, then verify its requests again.",
)
_WRONG_ADDRESS: Final = (
    "It was sent to the wrong address, or the secrets of two sources were swapped.",
    "Compare the URL in the sender's settings with the source's path, and the secrets of both sources.",
)
_LATE: Final = (
    "It arrived later than the source's tolerance allows: it was delayed or replayed, or clocks differ.",
    "Synchronize this machine's clock (NTP). If the sender retries for a long time, raise the source's tolerance_s.",
)
_OTHER_SCHEME: Final = (
    "The sender signs with another scheme than this source expects.",
    "Set the source's provider, or its scheme, according to the header that was found.",
)
_HINTED: Final = (
    (": a proxy ", _BODY_CHANGED),
    ("if the secret were", _SECRET_WRITTEN),
    ("it would match as", _OTHER_SCHEME),
    ("would have accepted it", _WRONG_ADDRESS),
    ("there is a header", _OTHER_SCHEME),
    ("the clocks differ", _LATE),
)
_WRONG_SECRET: Final = (
    "Most likely the secret of this source is not the one that the sender signs with; or it is a forgery.",
    "Copy the signing secret from the sender's settings into the source, then verify its requests again.",
)
_NO_SIGNATURE: Final = (
    "The signature's header is missing: the sender does not sign yet, a proxy drops it, or this is not the sender.",
    "Enable signing in the sender's settings, and let proxies pass its headers on.",
)
_BAD_TIMESTAMP: Final = (
    "The timestamp is missing or cannot be read, so a replay cannot be distinguished from the original.",
    "Check that the source's provider is the sender's; let proxies pass headers on.",
)
_BAD_ID: Final = (
    "The request has no id in the format that its sender uses.",
    "Check that the source's provider is the sender's.",
)
_CAUSES: Final[dict[str, tuple[str, str]]] = {
    Reason.SIGNATURE_MISSING: _NO_SIGNATURE,
    Reason.SIGNATURE_MALFORMED: (
        "The signature is not in the format that this sender uses.",
        "Check that the source's provider and scheme are the sender's.",
    ),
    Reason.SIGNATURE_MISMATCH: _WRONG_SECRET,
    Reason.UNKNOWN_SCHEME: _OTHER_SCHEME,
    Reason.TIMESTAMP_MISSING: _BAD_TIMESTAMP,
    Reason.TIMESTAMP_MALFORMED: _BAD_TIMESTAMP,
    Reason.TIMESTAMP_TOO_OLD: _LATE,
    Reason.TIMESTAMP_IN_FUTURE: (
        "The sender's clock is ahead of this machine's, or this one is behind.",
        "Synchronize the clock of this machine (NTP), then verify the request again.",
    ),
    Reason.ID_MISSING: _BAD_ID,
    Reason.ID_MALFORMED: _BAD_ID,
    Reason.TOKEN_MISSING: (
        "The header or parameter with the token is missing: it is not set at the sender, or a proxy drops it.",
        "Set the token in the sender's settings, and let proxies pass it on.",
    ),
    Reason.TOKEN_MISMATCH: (
        "The token at the sender is not that of this source; or a client is guessing tokens.",
        "Copy the source's token to the sender's settings. Tokens are never stored: ask the sender to resend it.",
    ),
    Reason.KEY_UNAVAILABLE: (
        "The sender's public key could not be fetched when it arrived; the cause is on this host or its network.",
        "Let boathook reach the URL of the sender's keys, then verify the request again.",
    ),
    Reason.ADDRESS_NOT_ALLOWED: (
        "It came from an address that the source does not allow; behind a proxy, that may be the proxy's.",
        "Add the sender's addresses to the source, or add the proxy to server.trusted_proxies.",
    ),
    Reason.CHALLENGE_REFUSED: (
        "The sender's handshake did not match the source's settings.",
        "Set up the webhook at the sender again, with the source's secret or token.",
    ),
    Reason.BODY_MALFORMED: (
        "The signature is valid, but the body does not have the sender's format.",
        "Look at the bytes below. If they are right, the source has the wrong provider.",
    ),
    Reason.DECODED_TOO_LARGE: (
        "The body decodes to more than boathook accepts.",
        "Raise limits.max_decoded, or max_body of the source, then verify the request again.",
    ),
    Reason.TOO_MANY_DELIVERIES: (
        "The batch has more items, or more deliveries by the routes, than one event can have.",
        "Let fewer handlers or endpoints match, then verify the request again; or let the sender send smaller batches.",
    ),
    Reason.BODY_TOO_LARGE: (
        "The body is larger than the source accepts.",
        "Raise the setting that the result names; then let the sender send the request again.",
    ),
    Reason.CONTENT_ENCODING: (
        "The sender compresses its bodies, and the source does not accept that.",
        "Add the encoding to content_encodings of the source or of limits, or turn compression off at the sender.",
    ),
    Reason.METHOD_NOT_ALLOWED: (
        "The sender uses another method than the source accepts; or a browser or a scanner asked for its address.",
        "If it is the sender, add the method to methods of the source, then let it send the request again.",
    ),
    Reason.UNKNOWN_PATH: (
        "The URL in the sender's settings is not that of a source, or the source was renamed or removed.",
        "Correct the URL at the sender, or add the path to paths of the source; then let the sender send it again.",
    ),
    Reason.CLIENT_RATE: (
        "One client sent more requests than limits.client_rate allows; behind a proxy, all senders may be one client.",
        "Add the proxy to server.trusted_proxies, or raise the limit. Most senders send such requests again.",
    ),
    Reason.SOURCE_RATE: (
        "The senders of this source sent more requests than its rate allows.",
        "Raise rate and burst of the source if the requests are genuine. Most senders send them again.",
    ),
    Reason.UNVERIFIED_BYTES: (
        "Too many bytes of bodies waited for their verification: large bodies at once, or a flood.",
        "Raise limits.max_unverified_bytes if memory allows. Most senders send the request again after a 503.",
    ),
    Reason.SLOW_REQUEST: (
        "It came more slowly than the limits allow: a slow network or proxy, or a client that holds connections.",
        "If the sender is genuine, raise limits.body_timeout_s or lower limits.min_rate; it must send it again.",
    ),
    Reason.HEAD_TOO_LARGE: (
        "The headers are larger than boathook accepts.",
        "Raise limits.max_head; the sender must send the request again.",
    ),
    Reason.REQUEST_MALFORMED: (
        "The request is not HTTP as boathook reads it; the result names the part.",
        "Compare the sender, or a proxy between, with the HTTP standard (RFC 9112).",
    ),
    Reason.BODY_INVALID: (
        "The signature is valid, but the body does not fit the source's schema.",
        "Correct the schema of the source, or ask the sender to correct the body; then verify it again.",
    ),
}
