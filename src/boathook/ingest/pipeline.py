"""The stages that every request for a source passes, in one direction: admit, verify, build, store, respond.

A request is answered once, by the stage that ends its way. `boathook.ingest.direct` and `boathook.ingest.app` put
requests into the pipeline and write its answers. Nothing is stored, and no body is parsed, before the signature is
verified. A 2xx is written only by `PendingRequest.set_result`, which the intake calls once the event is durable.

A failed request gets a short error and its id; the details are logged, and shown only to senders that were verified.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar, assert_never
from uuid import UUID

from msgspec.structs import replace

from boathook.config import Network
from boathook.domain.errors import (
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
from boathook.domain.model import REQUEST_ID, NewEvent, Receipt
from boathook.http.asgi import Headers, read_headers
from boathook.http.limits import ByteBudget, RateLimiter, Reservation
from boathook.ingest.content_encoding import Decoder, content_coding
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventSink
from boathook.ingest.head_rejections import HeadRejections, connection_refusal
from boathook.ingest.quarantine import Quarantine
from boathook.ingest.responses import (
    Response,
    accepted,
    challenge_response,
    error_response,
    fault_response,
    retry_after,
)
from boathook.ingest.source_paths import SOURCE_PREFIX, SourcePaths
from boathook.ingest.sources import CompiledSource
from boathook.ingest.verification_io import RETRY_S, VerificationIO, VerificationIOFailure
from boathook.observability import meters
from boathook.observability.log import RequestLog, get_logger, is_on
from boathook.verification.verifier import Challenge, KeyRequired, Reason, Rejected, Reply, Request, Verdict, Verified

P = ParamSpec("P")
T = TypeVar("T")
Rest = Coroutine[Any, Any, None]
"""The stages that a request has not passed, because they need I/O or a thread first."""

_LOG = get_logger("ingest")
MAX_BODY_IN_LOOP: Final = 262_144
"""Larger bodies are verified and hashed in a thread: the event loop answers other requests meanwhile."""
_COMPUTE_THREADS: Final = 2


class PendingRequest:
    """A request for a source on its way through a pipeline, and the waiter of its event's receipt.

    Args:
        pipeline: the stages.
        compiled: its source.
        scope: its head, in the form of ASGI.
        reservation: the bytes of its body, released once it is verified; None if another object counts them.
    """

    __slots__ = (
        "_pipeline", "client", "compiled", "decoder", "event", "evidence", "headers", "is_large", "now", "reply",
        "request_id", "reservation", "scope", "started",
    )  # fmt: skip

    def __init__(
        self,
        pipeline: "IngestPipeline",
        compiled: CompiledSource,
        scope: Mapping[str, Any],
        reservation: Reservation | None = None,
    ) -> None:
        self._pipeline = pipeline
        self.compiled = compiled
        self.scope = scope
        self.reservation = reservation
        self.started = pipeline.newest_request = time.monotonic()
        self.request_id = compiled.request_id(scope["headers"], pipeline.new_request_id())
        # The stages set these; a rejected request has only some of them.
        self.headers: Headers
        self.client: str
        self.evidence: Request
        self.decoder: Decoder | None
        self.is_large: bool
        self.now: float
        self.event: NewEvent
        self.reply: Reply | None

    def respond(self, answer: Response) -> None:
        """Write the only answer of this request, or have it written."""
        raise NotImplementedError

    def done(self) -> bool:
        """Return whether the request is answered."""
        raise NotImplementedError

    def set_result(self, receipt: Receipt, /) -> None:
        """Answer 2xx: the event is durable."""
        try:
            answer = accepted(self.compiled, self.event, receipt, self.reply, self.request_id)
        except Exception as error:  # noqa: BLE001 - the other events of the commit have to be answered too
            answer = fault_response(error, self.compiled, self.request_id)
        self.respond(answer)

    def set_exception(self, error: BaseException, /) -> None:
        """Answer why the event is not stored."""
        try:
            answer = self._pipeline.explain_failure(self, error)
        except Exception as fault:  # noqa: BLE001 - as above; an internal error must never be reported as the sender's
            answer = fault_response(fault, self.compiled, self.request_id)
        self.respond(answer)

    def record(self, answer: Response) -> None:
        """Count and log this request with its answer."""
        seconds = time.monotonic() - self.started
        compiled = self.compiled
        compiled.count_response(answer.status)
        if answer.event_id is not None:
            compiled.acknowledged.observe(seconds - answer.waited_s)
        request_log = self._pipeline.request_log
        if request_log is None:
            return
        fields: dict[str, Any] = {"request_id": self.request_id, "source": compiled.source, "status": answer.status}
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
        request_log.info(answer.outcome, time.time(), fields)


class IngestPipeline:
    """Verifies requests for sources and stores their events.

    Args:
        compiled_sources: the source of each path.
        intake: makes events durable.
        event_builder: builds events from verified requests.
        quarantine: stores a sample of the rejected requests; None stores none.
        client_rate: the rate limit for each client address.
        trusted_proxies: networks whose X-Forwarded-For is trusted.
        verification_io: fetches keys, confirms subscriptions and stores handshake secrets; None answers 503 where one
            of these is needed.
        unverified: limits the bytes of all bodies that are not verified yet; None does not.
    """

    _unavailable_paths: SourcePaths[str]
    _has_all_sources: bool
    find_source: Callable[[str], CompiledSource | None]
    """Returns the source that listens at a path."""

    def __init__(
        self,
        compiled_sources: Mapping[str, CompiledSource],
        intake: EventSink,
        event_builder: EventBuilder,
        *,
        quarantine: Quarantine | None,
        client_rate: RateLimiter | None = None,
        trusted_proxies: tuple[Network, ...] = (),
        verification_io: VerificationIO | None = None,
        unverified: ByteBudget | None = None,
    ) -> None:
        self.heads = HeadRejections(
            event_builder, quarantine=quarantine, client_rate=client_rate, trusted_proxies=trusted_proxies
        )
        """Rejects requests by their head."""
        self.set_sources(compiled_sources)
        self._intake = intake
        self._event_builder = event_builder
        self.quarantine = quarantine
        self._verification_io = verification_io
        self.unverified = ByteBudget(sys.maxsize) if unverified is None else unverified
        """The bytes of all bodies that are not verified yet."""
        self._threads = ThreadPoolExecutor(_COMPUTE_THREADS, "ingest-compute")
        self.request_log = RequestLog("ingest") if is_on("info") else None
        """The log of all requests; None if it is off."""
        self.newest_request = -float("inf")
        """When (monotonic) the latest request for a source began."""
        self.new_request_id = map(f"req_{os.urandom(6).hex()}{{:08x}}".format, count()).__next__
        """Returns a new id for a request."""

    # Sources

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
        paths = SourcePaths(compiled_sources, names)
        self.find_source = paths.find
        self.heads.set_paths(paths)
        self._unavailable_paths = SourcePaths(unavailable, unavailable)
        self.by_name = {compiled.source: compiled for compiled in compiled_sources.values()}
        secrets = (compiled.verifier.secret_query for compiled in self.by_name.values())
        self._secret_queries = frozenset(name for name in secrets if name is not None)
        self._has_all_sources = has_all_sources

    def is_unavailable(self, path: str) -> bool:
        """Return whether requests to a path without a source are answered 503: it has one that cannot be served now."""
        if self._unavailable_paths.find(path) is not None:
            return True
        return not self._has_all_sources and path.startswith(SOURCE_PREFIX)

    def reject_unavailable(self, path: str) -> tuple[Response, str]:
        """Count and log a request for a source that cannot be served now; return a 503 and the request's id."""
        self.newest_request = time.monotonic()
        request_id = self.new_request_id()
        source = self._unavailable_paths.find(path)
        if source is not None:
            meters.count("boathook_requests_total", source=source, status=503)
            meters.gauge("boathook_newest_request_timestamp_seconds", time.time(), source=source, outcome="failed")
        if self.request_log is not None:
            fields = {"request_id": request_id, "source": source, "status": 503, "reason": "source_unavailable"}
            self.request_log.info("refused", time.time(), fields)
        return error_response(503, "source_unavailable", request_id, retry_after(RETRY_S)), request_id

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
        compiled = self.find_source(scope["path"])
        if compiled is None:
            self.heads.note_unknown_path(scope, status, detail)
            return
        request = PendingRequest(self, compiled, scope)
        request.record(self.heads.reject(compiled, scope, request.request_id, status, reason, detail, size=size))

    # The stages

    def admit(self, request: PendingRequest) -> bool:
        """Return whether the body of a request is to be read; its head answers it otherwise."""
        scope = request.scope
        headers = request.headers = read_headers(scope["headers"])
        client = request.client = self.heads.client(scope, headers)
        early = self.heads.check(request.compiled, scope, headers, client, request.request_id, request.started)
        if early is not None:
            request.respond(early)
        return early is None

    def run(self, request: PendingRequest, body: bytes) -> Rest | None:
        """Pass a whole request through all stages; return those that have to be awaited, if any."""
        return self.process(request, body) if self.admit(request) else None

    def process(self, request: PendingRequest, body: bytes) -> Rest | None:
        """Pass an admitted request through the other stages; return those that have to be awaited, if any."""
        compiled = request.compiled
        request.evidence = _make_evidence(request, body)
        decoder = request.decoder = _make_decoder(compiled, request.headers)
        # A body that is to be decoded may become large.
        request.is_large = decoder is not None or len(body) > MAX_BODY_IN_LOOP
        is_outdated = compiled.ensure_fresh is not None and request.started > compiled.fresh_until
        if is_outdated or compiled.verifier.has_schema or request.is_large:
            return self._process_later(request)
        compiled.reload_secret()
        request.now = time.time()
        return self._conclude(request, compiled.verifier.verify(request.evidence, request.now))

    async def _process_later(self, request: PendingRequest) -> None:
        """Verify a request for which that takes long, or after its source has been read again."""
        compiled = request.compiled
        if compiled.ensure_fresh is not None and time.monotonic() > compiled.fresh_until:
            await compiled.ensure_fresh()
            # It may have been changed or removed while this process did not run.
            current = self.by_name.get(compiled.source)
            if current is None:
                self.heads.note_unknown_path(request.scope, 404)
                request.respond(error_response(404, "source_removed", request.request_id))
                return
            request.compiled = current
            request.decoder = _make_decoder(current, request.headers)
            request.is_large |= request.decoder is not None
        rest = self._conclude(request, await self._verify_later(request))
        if rest is not None:
            await rest

    async def _verify_later(self, request: PendingRequest) -> Verdict:
        request.compiled.reload_secret()
        request.now = time.time()
        verifier = request.compiled.verifier
        is_long = verifier.has_schema or request.is_large
        return await self._compute(is_long, verifier.verify, request.evidence, request.now, request.decoder)

    async def _compute(self, is_long: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of *function*; a thread computes it if that may take long, so that other requests go on."""
        if not is_long:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))

    def _conclude(self, request: PendingRequest, verdict: Verdict) -> Rest | None:
        """Act on a verdict: store the event, or answer without one; return what has to be awaited for that, if any."""
        if isinstance(verdict, KeyRequired):
            return self._fetch_key(request, verdict)
        if request.reservation is not None:
            request.reservation.release()
        if isinstance(verdict, Verified):
            event_id = self._event_builder.new_id(request.now)
            if request.is_large:
                return self._build_later(request, verdict, event_id)
            self._store(request, self._build(request, verdict, event_id), verdict)
        elif isinstance(verdict, Rejected):
            request.respond(self._reject(request, verdict))
        elif isinstance(verdict, Challenge):
            return self._answer_challenge(request, verdict)
        else:
            assert_never(verdict)
        return None

    async def _fetch_key(self, request: PendingRequest, verdict: KeyRequired) -> None:
        """Verify a request again with the public key that it needs."""
        compiled = request.compiled
        again: Verdict = verdict
        if self._verification_io is not None:
            await self._verification_io.fetch_key(compiled.source, compiled.verifier, verdict.url, request.now)
            again = await self._verify_later(request)
        if isinstance(again, KeyRequired):
            meters.count("boathook_rejections_total", source=compiled.source, reason=Reason.KEY_UNAVAILABLE)
            answer = error_response(503, Reason.KEY_UNAVAILABLE, request.request_id, retry_after(RETRY_S))
            request.respond(answer)
        elif (rest := self._conclude(request, again)) is not None:
            await rest

    def _build(self, request: PendingRequest, verified: Verified, event_id: UUID) -> NewEvent:
        """Return the event of a verified request. Raises TooManyDeliveries."""
        compiled, now = request.compiled, request.now
        if compiled.keeps_request_id:
            verified = replace(verified, kept_headers={**verified.kept_headers, REQUEST_ID: request.request_id})
        decoder = request.decoder
        body = request.evidence.body if decoder is None or decoder.decoded is None else decoder.decoded
        content_type = request.headers.get("content-type", "")
        event = self._event_builder.event(compiled.source, verified, body, content_type, now, event_id)
        if verified.timestamp is not None:
            compiled.skew_s.value = verified.timestamp.timestamp() - now
        return event

    async def _build_later(self, request: PendingRequest, verified: Verified, event_id: UUID) -> None:
        event = await self._compute(True, self._build, request, verified, event_id)
        self._store(request, event, verified)

    def _store(self, request: PendingRequest, event: NewEvent, verified: Verified) -> None:
        request.event, request.reply = event, verified.reply
        self._intake.put(event, request)

    async def _answer_challenge(self, request: PendingRequest, challenge: Challenge) -> None:
        if challenge.visit is not None or challenge.capture is not None:
            failed = (
                VerificationIOFailure(503, "verification_io")
                if self._verification_io is None
                else await self._verification_io.run(request.compiled.source, challenge)
            )
            if failed is not None and failed.reason == Reason.CHALLENGE_REFUSED:
                rejected = Rejected(
                    status=failed.status,
                    reason=Reason.CHALLENGE_REFUSED,
                    detail="the handshake has another secret than the one received first",
                    may_reverify=False,
                )
                request.respond(self._reject(request, rejected))
                return
            if failed is not None:
                request.respond(error_response(failed.status, failed.reason, request.request_id, retry_after(RETRY_S)))
                return
        request.respond(challenge_response(challenge))

    def _reject(self, request: PendingRequest, verdict: Rejected) -> Response:
        """Count a request that failed verification, keep it in the quarantine if there is room, and answer it."""
        compiled, evidence = request.compiled, request.evidence
        size = len(evidence.body)
        meters.count("boathook_rejections_total", source=compiled.source, reason=verdict.reason)
        logged: str | None = None
        if self.quarantine is not None and self.quarantine.admit(compiled.source, verdict.reason, size):
            logged = verdict.detail or None  # as rarely as rejections are kept, so that a flood does not fill the log
            verifier, now = compiled.verifier, time.time()
            explain = partial(
                verifier.explain,
                evidence,
                verdict,
                now,
                others=(other.verifier for other in self.by_name.values()),
                decode=_make_decoder(compiled, request.headers),
            )
            self.quarantine.add(
                self._event_builder.new_id(now),
                compiled.source,
                replace(evidence, body=b"") if verifier.carries_secret(evidence) else evidence,
                verdict,
                verifier.reverify_headers,
                self._secret_queries,
                explain,
                size=size,
            )
        answer = error_response(verdict.status, verdict.reason, request.request_id, public_detail=verdict.public_detail)
        answer = replace(answer, detail=logged)
        return replace(answer, body=b"") if compiled.verifier.recipe.has_empty_error_body else answer

    def explain_failure(self, request: PendingRequest, error: BaseException) -> Response:
        """Return the answer to a request whose event was not stored. Raises *error* if it is an internal one."""
        request_id = request.request_id
        match error:
            case Overloaded():
                return error_response(503, "overloaded", request_id, retry_after(1))
            case RoutesChanged():
                return error_response(503, "routes_keep_changing", request_id, retry_after(1))
            case DatabaseUnavailable() | SpoolUnavailable() | BufferUnavailable() | NotPassedOn():
                _LOG.warning("not_accepted", error=str(error), request_id=request_id)
                return error_response(503, _unavailable(error), request_id, retry_after(5))
            case TooManyDeliveries():
                source = request.compiled.source
                _LOG.warning("batch_too_large", source=source, error=str(error), request_id=request_id)
                reason, detail = Reason.TOO_MANY_DELIVERIES, str(error)
                return self._reject(request, Rejected(status=413, reason=reason, detail=detail, may_reverify=True))
            case _:
                raise error


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


def _make_decoder(compiled: CompiledSource, headers: Headers) -> Decoder | None:
    """Return the decoder of the request's Content-Encoding; None if it has none."""
    encoding = content_coding(headers)
    if encoding not in compiled.encodings:
        return None
    return Decoder(encoding, max_decoded=compiled.max_decoded, max_ratio=compiled.max_ratio)


def _make_evidence(pending: PendingRequest, body: bytes) -> Request:
    """Return a request in the form that verification reads."""
    scope, headers = pending.scope, pending.headers
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    base = pending.compiled.public_url or f"http://{headers.get('host', '')}"
    return Request(
        method=scope["method"],
        url=f"{base}{path}?{query}" if query else f"{base}{path}",
        path=path,
        query=query,
        headers=headers,
        body=body,
        client=pending.client,
    )
