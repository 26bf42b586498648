"""The ingest path as a raw ASGI application.

Each request passes these checks in order: source, method, rate limits, announced encoding and size, actual size, and
signature. Only then is anything stored. A failed request gets a short error and its id; the details are logged, and
shown only to senders that were verified.
"""

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar, assert_never
from uuid import UUID

from msgspec.structs import replace

from boathook.config import Network
from boathook.domain.errors import (
    BoathookError,
    BufferUnavailable,
    DatabaseError,
    DatabaseUnavailable,
    HomeUnavailable,
    IngestError,
    NotPassedOn,
    Overloaded,
    RoutesChanged,
    SpoolUnavailable,
    TooManyDeliveries,
)
from boathook.domain.model import REQUEST_ID, NewEvent
from boathook.http.asgi import (
    IS_AUTHENTICATED,
    Asgi,
    Headers,
    Receive,
    Send,
    has_needless_escapes,
    read_body,
    read_headers,
)
from boathook.http.limits import (
    BudgetExceeded,
    ByteBudget,
    FairScheduler,
    RateLimiter,
    Reservation,
    client_key,
)
from boathook.ingest.content_encoding import Decoder, content_coding
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventAcceptor
from boathook.ingest.head_rejections import HeadRejections, connection_refusal
from boathook.ingest.quarantine import Quarantine
from boathook.ingest.reply_waiter import InlinePolicy, ReplyOutcome, ReplyWaiter
from boathook.ingest.responses import (
    JSON,
    NO_SNIFFING,
    Response,
    accepted,
    challenge_response,
    error_response,
    fault_response,
    retry_after,
    send_response,
    with_reply,
)
from boathook.ingest.source_paths import API_PREFIX, SOURCE_PREFIX, SourcePaths
from boathook.ingest.sources import CompiledSource
from boathook.ingest.verification_io import RETRY_S, VerificationIO, VerificationIOFailure
from boathook.observability import meters
from boathook.observability.log import RequestLog, get_logger, is_on
from boathook.verification.verifier import (
    Challenge,
    KeyRequired,
    Reason,
    Rejected,
    Request,
    Verdict,
    Verified,
    Verifier,
)

P = ParamSpec("P")
T = TypeVar("T")

_RECENT_S: Final = 1.0
_CREDENTIAL_TTL_S: Final = 60.0
_MAX_CREDENTIALS: Final = 10_000
_LOG = get_logger("ingest")
MAX_BODY_IN_LOOP: Final = 262_144
"""Larger bodies are verified and hashed in a thread: the event loop answers other requests meanwhile."""
_COMPUTE_THREADS: Final = 2


async def _reject_path(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    body = b'{"ok":false,"error":"the path percent-encodes letters, digits, -, ., _ or /; write them as they are"}'
    await send({"type": "http.response.start", "status": 400, "headers": [JSON, NO_SNIFFING]})
    await send({"type": "http.response.body", "body": body})


class _CredentialCache:
    """A cache of API credentials that were valid recently, stored as hashes."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def __contains__(self, caller: bytes) -> bool:
        return self._until.get(caller, 0.0) > time.monotonic()

    def add(self, caller: bytes) -> None:
        """Add a credential; a full cache is cleared first."""
        if len(self._until) >= _MAX_CREDENTIALS and caller not in self._until:
            self._until.clear()
        self._until[caller] = time.monotonic() + _CREDENTIAL_TTL_S


def _credential_hash(scope: dict[str, Any]) -> bytes | None:
    """Return the hash that identifies an API caller; None for any other request."""
    if not scope["path"].startswith(API_PREFIX):
        return None
    found = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    return None if found is None else hashlib.sha256(found).digest()


class IngestApp:
    """Accepts requests for sources; forwards every other path to *others*.

    Args:
        compiled_sources: the source of each path.
        intake: makes events durable.
        event_builder: builds events from verified requests.
        quarantine: stores a sample of the rejected requests; None stores none.
        others: serves every path that belongs to no source.
        client_rate: the rate limit for each client address.
        trusted_proxies: networks whose X-Forwarded-For is trusted.
        verification_io: fetches keys, confirms subscriptions and stores handshake secrets; None answers 503 where one
            of these is needed.
        reply_waiter: waits for handlers' replies to inline sources; None answers with the fallback.
        unverified: limits the bytes of all bodies that are not verified yet; None does not.
    """

    _paths: SourcePaths[CompiledSource]
    _unavailable_paths: SourcePaths[str]
    _has_all_sources: bool

    def __init__(
        self,
        compiled_sources: Mapping[str, CompiledSource],
        intake: EventAcceptor,
        event_builder: EventBuilder,
        *,
        quarantine: Quarantine | None,
        others: Asgi,
        client_rate: RateLimiter | None = None,
        trusted_proxies: tuple[Network, ...] = (),
        verification_io: VerificationIO | None = None,
        reply_waiter: ReplyWaiter | None = None,
        unverified: ByteBudget | None = None,
    ) -> None:
        self.heads = HeadRejections(
            event_builder, quarantine=quarantine, client_rate=client_rate, trusted_proxies=trusted_proxies
        )
        """Rejects requests by their head."""
        self.set_sources(compiled_sources)
        self._intake = intake
        self._event_builder = event_builder
        self._quarantine = quarantine
        self._others = others
        self._has_proxies = bool(trusted_proxies)
        self._verification_io = verification_io
        self._reply_waiter = reply_waiter
        self.unverified = ByteBudget(sys.maxsize) if unverified is None else unverified
        """The bytes of all bodies that are not verified yet."""
        self._threads = ThreadPoolExecutor(_COMPUTE_THREADS, "ingest-compute")
        self._request_log = RequestLog("ingest") if is_on("info") else None
        self._request_prefix = f"req_{os.urandom(6).hex()}"
        self._numbers = count()
        self._latest = -_RECENT_S
        self._turns = FairScheduler(self._is_ingesting)
        self._credentials = _CredentialCache()

    def set_sources(
        self,
        compiled_sources: Mapping[str, CompiledSource],
        unavailable: Mapping[str, str] = MappingProxyType({}),
        *,
        has_all_sources: bool = True,
    ) -> None:
        """Replace all sources between two requests; a request that has begun continues with its old source.

        Args:
            compiled_sources: the source of each path.
            unavailable: the sources of the paths that are answered 503, because their settings cannot be used.
            has_all_sources: whether all sources are loaded; if not, other paths below ``/in/`` are answered 503, not
                404.
        """
        names = {path: compiled.source for path, compiled in compiled_sources.items()}
        self._paths = SourcePaths(compiled_sources, names)
        self._unavailable_paths = SourcePaths(unavailable, unavailable)
        self._by_name = {compiled.source: compiled for compiled in compiled_sources.values()}
        self.heads.set_paths(self._paths)
        secrets = (compiled.verifier.secret_query for compiled in self._by_name.values())
        self._secret_queries = frozenset(name for name in secrets if name is not None)
        self._has_all_sources = has_all_sources

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        path = scope["path"]
        compiled = self._paths.find(path)
        if compiled is None:
            is_unavailable = self._unavailable_paths.find(path) is not None
            if is_unavailable or (not self._has_all_sources and path.startswith(SOURCE_PREFIX)):
                await send_response(*self.unavailable(path), send)
                return
            await self._forward(scope, receive, send)
            return
        request_id, started = self.begin(compiled, scope["headers"])
        try:
            answer = await self._answer(compiled, scope, receive, request_id, started)
        except Exception as error:  # noqa: BLE001 - an internal error must never be reported as the sender's
            answer = fault_response(error, compiled, request_id)
        if answer is None:
            return
        await send_response(answer, request_id, send)
        self.record(compiled, answer, request_id, started)

    def unavailable(self, path: str) -> tuple[Response, str]:
        """Count and log a request for a source that cannot be served now; return a 503 and the request's id."""
        request_id, _ = self.begin()
        source = self._unavailable_paths.find(path)
        if source is not None:
            meters.count("boathook_requests_total", source=source, status=503)
            meters.gauge("boathook_newest_request_timestamp_seconds", time.time(), source=source, outcome="failed")
        if self._request_log is not None:
            fields = {"request_id": request_id, "source": source, "status": 503, "reason": "source_unavailable"}
            self._request_log.info("refused", time.time(), fields)
        return error_response(503, "source_unavailable", request_id, retry_after(RETRY_S)), request_id

    def begin(
        self, compiled: CompiledSource | None = None, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> tuple[str, float]:
        """Return the id of a new request, or the sender's if its source takes that, and when (monotonic) it starts."""
        self._latest = time.monotonic()
        own_id = f"{self._request_prefix}{next(self._numbers):08x}"
        return own_id if compiled is None else compiled.request_id(headers, own_id), self._latest

    def source_at(self, path: str) -> CompiledSource | None:
        """Return the source that listens at a path."""
        return self._paths.find(path)

    async def _forward(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if self.heads.is_watched(scope):
            send = partial(self._send_watched, scope, send)
        if has_needless_escapes(scope["raw_path"]):
            await _reject_path(scope, receive, send)
            return
        caller = _credential_hash(scope)
        if caller is None or caller not in self._credentials:
            headers = read_headers(scope["headers"]) if self._has_proxies else {}
            await self._turns.take(client_key(self.heads.client(scope, headers)))
        await self._others(scope, receive, send)
        if caller is not None and scope.get(IS_AUTHENTICATED):
            self._credentials.add(caller)

    async def _send_watched(self, scope: Mapping[str, Any], send: Send, message: Any) -> None:
        """Send a message of a response; record it if a sender uses another path than its source's."""
        if message["type"] == "http.response.start":
            self.heads.note_response(scope, message["status"])
        await send(message)

    def note_refusal(self, scope: Mapping[str, Any], status: int, refused_as: str, size: int) -> None:
        """Record that the connection refused a request, if it was sent to a source or meant for one.

        Args:
            scope: the request, as far as its head was read.
            status: the status it was answered with.
            refused_as: why, in the connection's word.
            size: the bytes of its body that have arrived.
        """
        refusal = connection_refusal(status, refused_as)
        if refusal is None:
            return
        reason, detail = refusal
        compiled = self._paths.find(scope["path"])
        if compiled is None:
            self.heads.note_unknown_path(scope, status, detail)
            return
        request_id, started = self.begin(compiled, scope["headers"])
        answer = self.heads.reject(compiled, scope, request_id, status, reason, detail, size=size)
        self.record(compiled, answer, request_id, started)

    def _is_ingesting(self) -> bool:
        """Return whether a request for a source has arrived recently."""
        return time.monotonic() - self._latest < _RECENT_S

    def record(self, compiled: CompiledSource, answer: Response, request_id: str, started: float) -> None:
        """Count and log one answered request."""
        seconds = time.monotonic() - started
        compiled.count_response(answer.status)
        if answer.event_id is not None:
            compiled.acknowledged.observe(seconds - answer.waited_s)
        if self._request_log is None:
            return
        fields: dict[str, Any] = {"request_id": request_id, "source": compiled.source, "status": answer.status}
        if answer.event_id is not None:
            fields["event_id"] = answer.event_id
            fields["dedup_key"] = answer.key
            if answer.waited is not None:
                fields["reply"] = answer.waited
        else:
            fields["reason"] = answer.reason
            if answer.detail is not None:
                fields["detail"] = answer.detail
        fields["ms"] = round(seconds * 1000, 2)
        self._request_log.info(answer.outcome, time.time(), fields)

    async def _answer(
        self, compiled: CompiledSource, scope: dict[str, Any], receive: Receive, request_id: str, started: float
    ) -> Response | None:
        """Return the response, or None if the client has disconnected."""
        headers = read_headers(scope["headers"])
        client = self.heads.client(scope, headers)
        early = self.heads.check(compiled, scope, headers, client, request_id, started)
        if early is not None:
            return early
        with self.unverified.reserve() as reservation:
            try:
                body = await read_body(receive, compiled.max_body, reservation.take)
            except BudgetExceeded as error:
                return self.heads.reject_for_memory(compiled, scope, request_id, error.size)
            if body is None:
                return None
            if len(body) > compiled.max_body:
                return self.heads.reject_size(compiled, scope, request_id, len(body), is_whole=False)
            request = make_request(compiled, scope, headers, body, client)
            answer = await self.process(compiled, request, request_id, reservation)
        if compiled.inline is None or answer.event_id is None:
            return answer
        return await self._wait_for_reply(compiled.source, compiled.inline, answer, receive, started)

    async def _wait_for_reply(
        self, source: str, policy: InlinePolicy, answer: Response, receive: Receive, started: float
    ) -> Response:
        """Return the handler's reply instead of *answer*, or the fallback if no reply arrives in time."""
        began = time.monotonic()
        reply, outcome = None, ReplyOutcome.FALLBACK
        if answer.pending_reply is not None and self._reply_waiter is not None:
            seconds = policy.within_s - (began - started)
            reply, outcome = await self._reply_waiter.ask(answer.pending_reply, seconds, receive)
        waited_s = time.monotonic() - began
        if reply is not None and reply.status in policy.forbidden_statuses:
            _LOG.error("reply_not_sent", source=source, status=reply.status, note="it makes the sender stop; fallback")
            reply, outcome = None, ReplyOutcome.FALLBACK
        meters.count("boathook_inline_replies_total", source=source, outcome=outcome)
        meters.observe("boathook_inline_wait_seconds", waited_s)
        return with_reply(reply or policy.fallback, replace(answer, waited=outcome, waited_s=waited_s))

    async def process(
        self, compiled: CompiledSource, request: Request, request_id: str, reservation: Reservation
    ) -> Response:
        """Verify a request; store its event, or answer its handshake. Release *reservation* once it is verified."""
        if compiled.ensure_fresh is not None and time.monotonic() > compiled.fresh_until:
            await compiled.ensure_fresh()
            # It may have been changed or removed while this process did not run.
            current = self._by_name.get(compiled.source)
            if current is None:
                self.heads.note_unknown_path(_scope_of(request), 404)
                return error_response(404, "source_removed", request_id)
            compiled = current
        now = time.time()
        decoder = make_decoder(compiled, request)
        compiled.reload_secret()
        verdict = await self._verify(compiled, request, now, decoder)
        if not isinstance(verdict, KeyRequired):
            reservation.release()
        return await self.conclude(compiled, request, verdict, request_id, now, decoder)

    async def _verify(self, compiled: CompiledSource, request: Request, now: float, decoder: Decoder | None) -> Verdict:
        verifier = compiled.verifier
        return await self._compute(
            verifier.has_schema or _is_large(request, decoder), verifier.verify, request, now, decoder
        )

    async def _compute(self, is_long: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of *function*; a thread computes it if that may take long, so that other requests go on."""
        if not is_long:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def conclude(
        self,
        compiled: CompiledSource,
        request: Request,
        verdict: Verdict,
        request_id: str,
        now: float,
        decoder: Decoder | None,
    ) -> Response:
        """Act on a verdict: fetch the public key it needs, store the event, or answer without one."""
        if isinstance(verdict, KeyRequired) and self._verification_io is not None:
            await self._verification_io.fetch_key(compiled.source, compiled.verifier, verdict.url, now)
            verdict = await self._verify(compiled, request, now, decoder)
        match verdict:
            case Verified():
                return await self._accept(compiled, request, verdict, request_id, now, decoder)
            case Challenge():
                return await self._answer_challenge(compiled, request, verdict, request_id, now)
            case Rejected():
                return self.reject(compiled, request, verdict, request_id, now)
            case KeyRequired():
                meters.count("boathook_rejections_total", source=compiled.source, reason=Reason.KEY_UNAVAILABLE)
                return error_response(503, Reason.KEY_UNAVAILABLE, request_id, retry_after(RETRY_S))
            case _:
                assert_never(verdict)

    def build_event(
        self,
        compiled: CompiledSource,
        request: Request,
        verified: Verified,
        now: float,
        decoder: Decoder | None,
        event_id: UUID,
        request_id: str,
    ) -> NewEvent:
        """Return the event of a verified request. Raises TooManyDeliveries."""
        if compiled.keeps_request_id:
            verified = replace(verified, kept_headers={**verified.kept_headers, REQUEST_ID: request_id})
        body = request.body if decoder is None or decoder.decoded is None else decoder.decoded
        content_type = request.headers.get("content-type", "")
        event = self._event_builder.event(compiled.source, verified, body, content_type, now, event_id)
        if verified.timestamp is not None:
            compiled.skew_s.value = verified.timestamp.timestamp() - now
        return event

    async def _answer_challenge(
        self, compiled: CompiledSource, request: Request, challenge: Challenge, request_id: str, now: float
    ) -> Response:
        if challenge.visit is not None or challenge.capture is not None:
            failed = (
                VerificationIOFailure(503, "verification_io")
                if self._verification_io is None
                else await self._verification_io.run(compiled.source, challenge)
            )
            if failed is not None and failed.reason == Reason.CHALLENGE_REFUSED:
                rejected = Rejected(
                    status=failed.status,
                    reason=Reason.CHALLENGE_REFUSED,
                    detail="the handshake has another secret than the one received first",
                    may_reverify=False,
                )
                return self.reject(compiled, request, rejected, request_id, now)
            if failed is not None:
                return error_response(failed.status, failed.reason, request_id, retry_after(RETRY_S))
        return challenge_response(challenge)

    def reject(
        self, compiled: CompiledSource, request: Request, verdict: Rejected, request_id: str, now: float
    ) -> Response:
        """Count a request that failed verification, keep it in the quarantine if there is room, and answer it."""
        meters.count("boathook_rejections_total", source=compiled.source, reason=verdict.reason)
        logged: str | None = None
        if self._quarantine is not None and self._quarantine.admit(compiled.source, verdict.reason, len(request.body)):
            logged = verdict.detail or None  # as rarely as rejections are kept, so that a flood does not fill the log
            verifier, rejection_id = compiled.verifier, self._event_builder.new_id(now)
            explain = partial(
                verifier.explain,
                request,
                verdict,
                now,
                others=self._verifiers(),
                decode=make_decoder(compiled, request),
            )
            self._quarantine.add(
                rejection_id,
                compiled.source,
                replace(request, body=b"") if verifier.carries_secret(request) else request,
                verdict,
                verifier.reverify_headers,
                self._secret_queries,
                explain,
                size=len(request.body),
            )
        answer = error_response(verdict.status, verdict.reason, request_id, public_detail=verdict.public_detail)
        answer = replace(answer, detail=logged)
        return replace(answer, body=b"") if compiled.verifier.recipe.has_empty_error_body else answer

    def not_accepted(
        self, error: BaseException, compiled: CompiledSource, request: Request | None, request_id: str
    ) -> Response:
        """Return the answer to a request whose event was not stored. Raises *error* if it is an internal one."""
        match error:
            case Overloaded():
                return error_response(503, "overloaded", request_id, retry_after(1))
            case RoutesChanged():
                return error_response(503, "routes_keep_changing", request_id, retry_after(1))
            case DatabaseUnavailable() | SpoolUnavailable() | BufferUnavailable() | NotPassedOn():
                _LOG.warning("not_accepted", error=str(error), request_id=request_id)
                return error_response(503, _unavailable(error), request_id, retry_after(5))
            case TooManyDeliveries() if request is not None:
                _LOG.warning("batch_too_large", source=compiled.source, error=str(error), request_id=request_id)
                reason, detail = Reason.TOO_MANY_DELIVERIES, str(error)
                rejected = Rejected(status=413, reason=reason, detail=detail, may_reverify=True)
                return self.reject(compiled, request, rejected, request_id, time.time())
            case _:
                raise error

    def new_event_id(self, now: float) -> UUID:
        """Return an id for an event received at *now*."""
        return self._event_builder.new_id(now)

    def _verifiers(self) -> Iterator[Verifier]:
        return (compiled.verifier for compiled in self._by_name.values())

    async def _accept(
        self,
        compiled: CompiledSource,
        request: Request,
        verified: Verified,
        request_id: str,
        now: float,
        decoder: Decoder | None,
    ) -> Response:
        try:
            event_id = self.new_event_id(now)
            event = await self._compute(
                _is_large(request, decoder),
                self.build_event,
                compiled,
                request,
                verified,
                now,
                decoder,
                event_id,
                request_id,
            )
            receipt = await self._intake.accept(event)
        except BoathookError as error:
            return self.not_accepted(error, compiled, request, request_id)
        return accepted(compiled, event, receipt, verified.reply, request_id)


def _unavailable(error: IngestError | DatabaseError) -> str:
    """Return the reason for a 503: the store or buffer that was the last to refuse the event."""
    match error:
        case SpoolUnavailable():
            return "spool_unavailable"
        case BufferUnavailable():
            return "buffer_unavailable"
        case NotPassedOn() | HomeUnavailable():
            return error.reason
        case _:
            return "database_unavailable"


def _is_large(request: Request, decoder: Decoder | None) -> bool:
    """Return whether a request's body is large, or may become so."""
    return decoder is not None or len(request.body) > MAX_BODY_IN_LOOP


def make_decoder(compiled: CompiledSource, request: Request) -> Decoder | None:
    """Return the decoder of the request's Content-Encoding; None if it has none."""
    encoding = content_coding(request.headers)
    if encoding not in compiled.encodings:
        return None
    return Decoder(encoding, max_decoded=compiled.max_decoded, max_ratio=compiled.max_ratio)


def _scope_of(request: Request) -> Mapping[str, Any]:
    """Return the head of a request in the form of ASGI."""
    return {
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode("latin-1"),
        "query_string": request.query.encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()],
        "client": (request.client, 0),
    }


def make_request(
    compiled: CompiledSource, scope: Mapping[str, Any], headers: Headers, body: bytes, client: str
) -> Request:
    """Return a request in the form that verification reads."""
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    base = compiled.public_url or f"http://{headers.get('host', '')}"
    return Request(
        method=scope["method"],
        url=f"{base}{path}?{query}" if query else f"{base}{path}",
        path=path,
        query=query,
        headers=headers,
        body=body,
        client=client,
    )
