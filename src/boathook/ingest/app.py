"""The ingest path as a raw ASGI application.

Each request passes these checks in order: source, method, rate limits, announced encoding and size, actual size, and
signature. Only then is anything stored. A failed request gets a short error and its id; the details are logged, and
shown only to senders that were verified.
"""

import asyncio
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar, assert_never
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.config import Network
from boathook.domain import ids
from boathook.domain.errors import (
    BoathookError,
    BrokerUnavailable,
    CellUnavailable,
    DatabaseError,
    DatabaseUnavailable,
    IngestError,
    NotPassedOn,
    Overloaded,
    RoutesChanged,
    SpoolUnavailable,
    TooManyDeliveries,
)
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.http.asgi import IS_AUTHENTICATED, Asgi, Receive, Send, has_needless_escapes, read_body
from boathook.http.exchange import ERROR_TEXTS
from boathook.http.limits import (
    BudgetExceeded,
    ByteBudget,
    FairScheduler,
    RateLimiter,
    Reservation,
    client_address,
    client_key,
)
from boathook.ingest.content_encoding import ENCODINGS, Decoder, content_coding
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventAcceptor
from boathook.ingest.quarantine import Quarantine
from boathook.ingest.reply_waiter import InlinePolicy, PendingReply, ReplyOutcome, ReplyWaiter
from boathook.ingest.source_paths import API_PREFIX, OWN_PATHS, SOURCE_PREFIX, SourcePaths, mask_path, mask_query
from boathook.ingest.sources import CompiledSource, show_bytes
from boathook.ingest.verification_io import RETRY_S, VerificationIO, VerificationIOFailure
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import RequestLog, get_logger, is_on
from boathook.verification.verifier import (
    Challenge,
    KeyRequired,
    Reason,
    Rejected,
    Reply,
    Request,
    Verdict,
    Verified,
    Verifier,
)

Headers = dict[str, str]
P = ParamSpec("P")
T = TypeVar("T")

_JSON: Final = (b"content-type", b"application/json")
# A challenge's response may contain text of an unauthenticated client: browsers must not render it as a page.
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_MAX_SHOWN_KEY: Final = 100
_MAX_DIGITS: Final = 18
_RECENT_S: Final = 1.0
_CREDENTIAL_TTL_S: Final = 60.0
_MAX_CREDENTIALS: Final = 10_000
_LOG = get_logger("ingest")
MAX_BODY_IN_LOOP: Final = 262_144
"""Larger bodies are verified and hashed in a thread: the event loop answers other requests meanwhile."""
_COMPUTE_THREADS: Final = 2
_SENDING_METHODS: Final = frozenset({"POST", "PUT"})
_UNKNOWN_PATH_STATUSES: Final = frozenset({400, 404, 405, 413, 415})
_CONNECTION_DETAILS: Final = {
    Reason.SLOW_REQUEST: "the request came more slowly than limits allows",
    Reason.HEAD_TOO_LARGE: "the request head is larger than limits.max_head",
    Reason.REQUEST_MALFORMED: "the request is not valid HTTP",
    Reason.UNVERIFIED_BYTES: "unverified bodies took limits.max_unverified_bytes already",
}
_CONNECTION_REASONS: Final = {
    400: Reason.REQUEST_MALFORMED,
    405: Reason.REQUEST_MALFORMED,
    408: Reason.SLOW_REQUEST,
    411: Reason.REQUEST_MALFORMED,
    417: Reason.REQUEST_MALFORMED,
    431: Reason.HEAD_TOO_LARGE,
    501: Reason.REQUEST_MALFORMED,
    505: Reason.REQUEST_MALFORMED,
}
"""Reasons by the status that a connection refuses a request with, before an application sees it."""
_RATE_DETAILS: Final = {
    Reason.CLIENT_RATE: "the client sent more than limits.client_rate allows",
    Reason.SOURCE_RATE: "the source's senders sent more than its rate allows",
}


class Response(msgspec.Struct):
    """The response to a request, with the fields of its log line."""

    status: int
    body: bytes
    outcome: str
    """One word for the log, such as ``accepted`` or ``rejected``."""
    event_id: str | None = None
    key: str | None = None
    reason: str | None = None
    detail: str | None = None
    """What operators need to know about a request that was rejected by its head; never sent."""
    content_type: tuple[bytes, bytes] = _JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    pending_reply: PendingReply | None = None
    """The reply of a handler that the sender waits for, if any."""
    waited: ReplyOutcome | None = None
    waited_s: float = 0.0


def error_response(
    status: int, reason: str, request_id: str, *headers: tuple[bytes, bytes], public_detail: str = ""
) -> Response:
    """Return an error response: unauthenticated clients see only the status, verified senders also *public_detail*."""
    error = ERROR_TEXTS.get(status, "refused")
    detail = f'"detail":{json.dumps(public_detail)},' if public_detail else ""
    body = f'{{"ok":false,"error":"{error}",{detail}"request_id":"{request_id}"}}'.encode()
    return Response(status, body, "refused", reason=reason, headers=headers)


async def _reject_path(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    body = b'{"ok":false,"error":"the path percent-encodes letters, digits, -, ., _ or /; write them as they are"}'
    await send({"type": "http.response.start", "status": 400, "headers": [_JSON, _NO_SNIFFING]})
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


def _retry_after(seconds: float) -> tuple[bytes, bytes]:
    return (b"retry-after", b"%d" % max(1, math.ceil(seconds)))


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
        self.set_sources(compiled_sources)
        self._intake = intake
        self._event_builder = event_builder
        self._quarantine = quarantine
        self._others = others
        self._client_rate = client_rate
        self._trusted = trusted_proxies
        self._verification_io = verification_io
        self._reply_waiter = reply_waiter
        self.unverified = ByteBudget(sys.maxsize) if unverified is None else unverified
        """The bytes of all bodies that are not verified yet."""
        self._threads = ThreadPoolExecutor(_COMPUTE_THREADS, "ingest-compute")
        self._request_log = RequestLog("ingest") if is_on("info") else None
        self._is_debugging = is_on("debug")
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
                await _send(*self.unavailable(path), send)
                return
            await self._forward(scope, receive, send)
            return
        request_id, started = self.begin()
        try:
            answer = await self._answer(compiled, scope, receive, request_id, started)
        except Exception as error:  # noqa: BLE001 - an internal error must never be reported as the sender's
            answer = fault_response(error, compiled, request_id)
        if answer is None:
            return
        await _send(answer, request_id, send)
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
        return error_response(503, "source_unavailable", request_id, _retry_after(RETRY_S)), request_id

    def begin(self) -> tuple[str, float]:
        """Return the id of a new request for a source, and the time (monotonic) at which it starts."""
        self._latest = time.monotonic()
        return f"{self._request_prefix}{next(self._numbers):08x}", self._latest

    def source_at(self, path: str) -> CompiledSource | None:
        """Return the source that listens at a path."""
        return self._paths.find(path)

    async def _forward(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        is_sent = scope["method"] in _SENDING_METHODS
        if self._paths.is_meant(scope["path"]) or (
            self._is_debugging and is_sent and not scope["path"].startswith(OWN_PATHS)
        ):
            send = partial(self._watch_unknown_path, scope, send)
        if has_needless_escapes(scope["raw_path"]):
            await _reject_path(scope, receive, send)
            return
        caller = _credential_hash(scope)
        if caller is None or caller not in self._credentials:
            headers = read_headers(scope["headers"]) if self._trusted else {}
            await self._turns.take(client_key(self.client(scope, headers)))
        await self._others(scope, receive, send)
        if caller is not None and scope.get(IS_AUTHENTICATED):
            self._credentials.add(caller)

    async def _watch_unknown_path(self, scope: Mapping[str, Any], send: Send, message: Any) -> None:
        """Send a message; if it refuses the request, record that a sender uses another path than its source's."""
        if message["type"] == "http.response.start" and message["status"] in _UNKNOWN_PATH_STATUSES:
            self._note_unknown_path(scope, message["status"])
        await send(message)

    def _note_unknown_path(self, scope: Mapping[str, Any], status: int, problem: str = "") -> None:
        """Record a request that was probably meant for a source; *problem* is why it was refused besides."""
        path, kept = scope["path"], None
        if self._paths.is_meant(path):
            detail = f"no source has this path{f', and {problem}' if problem else ''}"
            rejected = Rejected(status=status, reason=Reason.UNKNOWN_PATH, detail=detail, may_reverify=False)
            kept = self._keep_head("", scope, rejected, partial(self._paths.explain, path))
        if kept is not None:
            _LOG.warning("no_source_at_path", **_shown(scope, status), detail=kept)
        elif self._is_debugging:
            _LOG.debug("no_source_at_path", **_shown(scope, status))

    def _keep_head(
        self,
        source: str,
        scope: Mapping[str, Any],
        rejected: Rejected,
        explain: Callable[[], str | None],
        size: int | None = None,
    ) -> str | None:
        """Count a request that is rejected by its head, and keep that if there is room; return the detail if so.

        Args:
            source: the source's name; empty if the request belongs to none.
            scope: the request.
            rejected: why it is rejected.
            explain: returns the likely cause, for operators.
            size: the bytes of the body that were announced, or have arrived; None to read the Content-Length.
        """
        meters.count("boathook_rejections_total", source=source, reason=rejected.reason)
        if self._quarantine is None or not self._quarantine.admit(source, rejected.reason):
            return None
        headers = read_headers(scope["headers"])
        compiled = self._by_name.get(source)
        path = scope["raw_path"].decode("latin-1") if compiled else mask_path(scope["path"])
        query = mask_query(scope["query_string"].decode("latin-1"))
        base = compiled.public_url if compiled else ""
        url = f"{base or 'http://' + headers.get('host', '')}{path}"
        request = Request(
            method=scope["method"],
            url=f"{url}?{query}" if query else url,
            path=path,
            query=query,
            headers=headers,
            body=b"",
            client=self.client(scope, headers),
        )
        return self._quarantine.add(
            self._event_builder.new_id(time.time()),
            source,
            request,
            rejected,
            compiled.verifier.reverify_headers if compiled else frozenset(),
            explain=explain,
            size=(announced_length(headers) or 0) if size is None else size,
        )

    def note_refusal(self, scope: Mapping[str, Any], status: int, refused_as: str, size: int) -> None:
        """Record that the connection refused a request, if it was sent to a source or meant for one.

        Args:
            scope: the request, as far as its head was read.
            status: the status it was answered with.
            refused_as: why, in the connection's word.
            size: the bytes of its body that have arrived.
        """
        reason = _CONNECTION_REASONS.get(status)
        if refused_as == Reason.UNVERIFIED_BYTES:
            reason = Reason.UNVERIFIED_BYTES
        if reason is None:
            return
        detail = f"{_CONNECTION_DETAILS[reason]} ({refused_as})"
        compiled = self._paths.find(scope["path"])
        if compiled is None:
            self._note_unknown_path(scope, status, detail)
            return
        request_id, started = self.begin()
        answer = self.reject_head(compiled, scope, request_id, status, reason, detail, size=size)
        self.record(compiled, answer, request_id, started)

    def reject_head(
        self,
        compiled: CompiledSource,
        scope: Mapping[str, Any],
        request_id: str,
        status: int,
        reason: Reason,
        detail: str,
        hint: str = "",
        *headers: tuple[bytes, bytes],
        size: int | None = None,
    ) -> Response:
        """Reject a request by its head: count it, keep the head if there is room, and return the answer."""
        rejected = Rejected(status=status, reason=reason, detail=detail, may_reverify=False)
        kept = self._keep_head(compiled.source, scope, rejected, lambda: hint or None, size)
        return replace(error_response(status, reason, request_id, *headers), detail=kept)

    def client(self, scope: Mapping[str, Any], headers: Headers) -> str:
        """Return the address of a request's client; behind a trusted proxy, the one that it forwards."""
        return client_address(scope["client"][0], headers.get("x-forwarded-for"), self._trusted)

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
        client = self.client(scope, headers)
        early = self.reject_early(compiled, scope, headers, client, request_id, started)
        if early is not None:
            return early
        with self.unverified.reserve() as reservation:
            try:
                body = await read_body(receive, compiled.max_body, reservation.take)
            except BudgetExceeded as error:
                return self._refuse_for_memory(compiled, scope, request_id, error.size)
            if body is None:
                return None
            if len(body) > compiled.max_body:
                return self._too_large(compiled, scope, request_id, len(body), is_whole=False)
            request = make_request(compiled, scope, headers, body, client)
            answer = await self.process(compiled, request, request_id, reservation)
        if compiled.inline is None or answer.event_id is None:
            return answer
        return await self._wait_for_reply(compiled.source, compiled.inline, answer, receive, started)

    def _refuse_for_memory(
        self, compiled: CompiledSource, scope: Mapping[str, Any], request_id: str, size: int
    ) -> Response:
        detail = "the bodies of all requests that wait for their verification took limits.max_unverified_bytes"
        return self.reject_head(
            compiled, scope, request_id, 503, Reason.UNVERIFIED_BYTES, detail, "", _retry_after(1), size=size
        )

    def _too_large(
        self, compiled: CompiledSource, scope: Mapping[str, Any], request_id: str, size: int, *, is_whole: bool
    ) -> Response:
        number = f"{size:,}" if is_whole else f"more than {compiled.max_body:,}"
        detail = f"the body has {number} bytes; max_body is {show_bytes(compiled.max_body)} ({compiled.max_body_key})"
        provider, documented = compiled.verifier.recipe, compiled.verifier.recipe.max_body
        hint = f"{provider.name} sends up to {documented >> 20} MB" if documented else ""
        return self.reject_head(compiled, scope, request_id, 413, Reason.BODY_TOO_LARGE, detail, hint, size=size)

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
        return _with_reply(reply or policy.fallback, replace(answer, waited=outcome, waited_s=waited_s))

    def reject_early(
        self,
        compiled: CompiledSource,
        scope: Mapping[str, Any],
        headers: Headers,
        client: str,
        request_id: str,
        now: float,
    ) -> Response | None:
        """Reject a request by its head, before its body is read."""
        if scope["method"] not in compiled.methods:
            methods = ", ".join(sorted(compiled.methods))
            detail = f"method {scope['method'][:20]} is not allowed by source {compiled.source}"
            return self.reject_head(
                compiled, scope, request_id, 405, Reason.METHOD_NOT_ALLOWED, detail, f"it accepts {methods}",
                (b"allow", methods.encode()),
            )  # fmt: skip
        if self._client_rate is not None and (wait_s := self._client_rate.wait_s(client_key(client), now)) > 0:
            return self._over_rate(compiled, scope, request_id, Reason.CLIENT_RATE, wait_s)
        if compiled.rate is not None and (wait_s := compiled.rate.wait_s("", now)) > 0:
            return self._over_rate(compiled, scope, request_id, Reason.SOURCE_RATE, wait_s)
        encoding = content_coding(headers)
        if encoding and encoding not in compiled.encodings:
            detail = f"Content-Encoding {encoding[:50]!r} is not accepted by source {compiled.source}"
            is_known = encoding in ENCODINGS
            hint = "add it to content_encodings" if is_known else f"boathook decodes {' and '.join(ENCODINGS)}"
            return self.reject_head(compiled, scope, request_id, 415, Reason.CONTENT_ENCODING, detail, hint)
        length = announced_length(headers)
        if length is not None and length > compiled.max_body:
            return self._too_large(compiled, scope, request_id, length, is_whole=True)
        return None

    def _over_rate(
        self, compiled: CompiledSource, scope: Mapping[str, Any], request_id: str, reason: Reason, wait_s: float
    ) -> Response:
        return self.reject_head(
            compiled, scope, request_id, compiled.rate_limited_status, reason, _RATE_DETAILS[reason], "",
            _retry_after(wait_s),
        )  # fmt: skip

    async def process(
        self, compiled: CompiledSource, request: Request, request_id: str, reservation: Reservation
    ) -> Response:
        """Verify a request; store its event, or answer its handshake. Release *reservation* once it is verified."""
        if compiled.ensure_fresh is not None and time.monotonic() > compiled.fresh_until:
            await compiled.ensure_fresh()
            # It may have been changed or removed while this process did not run.
            current = self._by_name.get(compiled.source)
            if current is None:
                self._note_unknown_path(_scope_of(request), 404)
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
                return error_response(503, Reason.KEY_UNAVAILABLE, request_id, _retry_after(RETRY_S))
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
    ) -> NewEvent:
        """Return the event of a verified request. Raises TooManyDeliveries."""
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
                return error_response(failed.status, failed.reason, request_id, _retry_after(RETRY_S))
        content_type = (b"content-type", challenge.content_type.encode("latin-1", "replace"))
        return Response(
            challenge.status, challenge.body, "challenge", content_type=content_type, headers=(_NO_SNIFFING,)
        )

    def reject(
        self, compiled: CompiledSource, request: Request, verdict: Rejected, request_id: str, now: float
    ) -> Response:
        """Count a request that failed verification, keep it in the quarantine if there is room, and answer it."""
        meters.count("boathook_rejections_total", source=compiled.source, reason=verdict.reason)
        if self._quarantine is not None and self._quarantine.admit(compiled.source, verdict.reason, len(request.body)):
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
                request,
                verdict,
                verifier.reverify_headers,
                self._secret_queries,
                explain,
            )
        answer = error_response(verdict.status, verdict.reason, request_id, public_detail=verdict.public_detail)
        return replace(answer, body=b"") if compiled.verifier.recipe.has_empty_error_body else answer

    def not_accepted(
        self, error: BaseException, compiled: CompiledSource, request: Request | None, request_id: str
    ) -> Response:
        """Return the answer to a request whose event was not stored. Raises *error* if it is an internal one."""
        match error:
            case Overloaded():
                return error_response(503, "overloaded", request_id, _retry_after(1))
            case RoutesChanged():
                return error_response(503, "routes_keep_changing", request_id, _retry_after(1))
            case DatabaseUnavailable() | SpoolUnavailable() | BrokerUnavailable() | NotPassedOn():
                _LOG.warning("not_accepted", error=str(error), request_id=request_id)
                return error_response(503, _unavailable(error), request_id, _retry_after(5))
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
                _is_large(request, decoder), self.build_event, compiled, request, verified, now, decoder, event_id
            )
            receipt = await self._intake.accept(event)
        except BoathookError as error:
            return self.not_accepted(error, compiled, request, request_id)
        return accepted(compiled, event, receipt, verified.reply, request_id)


async def _send(answer: Response, request_id: str, send: Send) -> None:
    headers = response_headers(answer, request_id)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def response_headers(answer: Response, request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer to a request for a source."""
    return [answer.content_type, (b"x-request-id", request_id.encode()), *answer.headers]


def fault_response(error: Exception, compiled: CompiledSource, request_id: str) -> Response:
    """Log an internal error, and return the response that makes senders retry."""
    _LOG.error("ingest_fault", exc_info=error, request_id=request_id, source=compiled.source)
    return error_response(500, "fault", request_id)


def _unavailable(error: IngestError | DatabaseError) -> str:
    """Return the reason for a 503: the store or buffer that was the last to refuse the event."""
    match error:
        case SpoolUnavailable():
            return "spool_unavailable"
        case BrokerUnavailable():
            return "broker_unavailable"
        case NotPassedOn() | CellUnavailable():
            return "cell_unavailable"
        case _:
            return "database_unavailable"


def accepted(
    compiled: CompiledSource, event: NewEvent, receipt: Receipt, reply: Reply | None, request_id: str
) -> Response:
    """Return the answer to a request whose event, or the first copy of it, is durable."""
    failpoint("accept.before_reply")
    event_id = ids.show(ids.EVENT, receipt.event_id)
    outcome, extra, is_duplicate = "accepted", "", "false"
    if isinstance(receipt, Duplicate):
        outcome, is_duplicate = "conflict" if receipt.conflict else "duplicate", "true"
        compiled.duplicates.value += 1
    else:
        compiled.accepted.value += 1
    if receipt.conflict:
        extra = ',"conflict":true'
        meters.count("boathook_conflicts_total", source=compiled.source)
    key = event.dedup_key[:_MAX_SHOWN_KEY]
    pending_reply = None if compiled.inline is None else _pending_reply(receipt)
    body = f'{{"ok":true,"event_id":"{event_id}","duplicate":{is_duplicate}{extra},"request_id":"{request_id}"}}'
    return _with_reply(reply, Response(200, body.encode(), outcome, event_id, key, pending_reply=pending_reply))


def _pending_reply(receipt: Receipt) -> PendingReply | None:
    """Return the reply to wait for, or None if no handler will send one."""
    if receipt.conflict:
        return None
    if isinstance(receipt, Accepted) and (receipt.is_spooled or not receipt.has_deliveries):
        return None
    return PendingReply(receipt.event_id, is_new=isinstance(receipt, Accepted))


def _with_reply(reply: Reply | None, answer: Response) -> Response:
    """Return *answer* with the status and body of *reply*, if there is one."""
    if reply is None:
        return answer
    content_type = (b"content-type", reply.content_type.encode("latin-1", "replace"))
    return replace(answer, status=reply.status, body=reply.body, content_type=content_type)


def _is_large(request: Request, decoder: Decoder | None) -> bool:
    """Return whether a request's body is large, or may become so."""
    return decoder is not None or len(request.body) > MAX_BODY_IN_LOOP


def make_decoder(compiled: CompiledSource, request: Request) -> Decoder | None:
    """Return the decoder of the request's Content-Encoding; None if it has none."""
    encoding = content_coding(request.headers)
    if encoding not in compiled.encodings:
        return None
    return Decoder(encoding, max_decoded=compiled.max_decoded, max_ratio=compiled.max_ratio)


def announced_length(headers: Mapping[str, str]) -> int | None:
    """Return the Content-Length; None if there is none that is a number."""
    text = headers.get("content-length", "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def read_headers(raw: list[tuple[bytes, bytes]]) -> Headers:
    """Return headers by name; repeated headers are joined with commas (RFC 9110, section 5.3)."""
    headers: Headers = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _shown(scope: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Return what a log shows of a request to an unknown path."""
    return {"method": scope["method"], "path": mask_path(scope["path"]), "status": status}


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
