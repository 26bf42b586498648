"""The ASGI way into the ingest pipeline: requests that are large, chunked, or wait for a handler's reply.

Every path that belongs to no source is forwarded, in turn for each client while requests for sources arrive.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from boathook.http.asgi import IS_AUTHENTICATED, Asgi, Receive, Send, has_needless_escapes, read_body, read_headers
from boathook.http.limits import BudgetExceeded, FairScheduler, client_key
from boathook.ingest.pipeline import IngestPipeline, PendingRequest
from boathook.ingest.reply_waiter import InlinePolicy, ReplyOutcome, ReplyWaiter
from boathook.ingest.responses import JSON, NO_SNIFFING, Response, fault_response, send_response, with_reply
from boathook.ingest.source_paths import API_PREFIX
from boathook.ingest.sources import CompiledSource
from boathook.observability import meters
from boathook.observability.log import get_logger

_RECENT_S: Final = 1.0
_CREDENTIAL_TTL_S: Final = 60.0
_MAX_CREDENTIALS: Final = 10_000
_LOG = get_logger("ingest")


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
    authorization = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    return None if authorization is None else hashlib.sha256(authorization).digest()


class _AsgiRequest(PendingRequest):
    """A request whose answer a task waits for."""

    __slots__ = ("answer",)

    def __init__(self, pipeline: IngestPipeline, compiled: CompiledSource, scope: Mapping[str, Any]) -> None:
        super().__init__(pipeline, compiled, scope)
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def respond(self, answer: Response) -> None:
        """Pass the answer to the task, which counts and logs it once it is sent."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def done(self) -> bool:
        """Return whether the request is answered, or its task was cancelled."""
        return self.answer.done()


class IngestApp:
    """Answers requests for sources by a pipeline; forwards every other path to *others*.

    Args:
        pipeline: verifies the requests, and stores their events.
        others: serves every path that belongs to no source.
        has_proxies: whether a trusted proxy names clients in X-Forwarded-For.
        reply_waiter: waits for handlers' replies to inline sources; None answers with the fallback.
    """

    def __init__(
        self,
        pipeline: IngestPipeline,
        *,
        others: Asgi,
        has_proxies: bool = False,
        reply_waiter: ReplyWaiter | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._others = others
        self._has_proxies = has_proxies
        self._reply_waiter = reply_waiter
        self._turns = FairScheduler(self._is_ingesting)
        self._credentials = _CredentialCache()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        pipeline, path = self._pipeline, scope["path"]
        compiled = pipeline.find_source(path)
        if compiled is None:
            if pipeline.is_unavailable(path):
                await send_response(*pipeline.reject_unavailable(path), send)
            else:
                await self._forward(scope, receive, send)
            return
        request = _AsgiRequest(pipeline, compiled, scope)
        try:
            answer = await self._answer(request, receive)
        except Exception as error:  # noqa: BLE001 - an internal error must never be reported as the sender's
            answer = fault_response(error, compiled, request.request_id)
        if answer is None:
            return
        await send_response(answer, request.request_id, send)
        request.record(answer)

    async def _answer(self, request: _AsgiRequest, receive: Receive) -> Response | None:
        """Return the response, or None if the client has disconnected."""
        pipeline, compiled = self._pipeline, request.compiled
        if not pipeline.admit(request):
            return await request.answer
        with pipeline.unverified.reserve() as reservation:
            request.reservation = reservation
            try:
                body = await read_body(receive, compiled.max_body, reservation.take)
            except BudgetExceeded as error:
                return pipeline.heads.reject_for_memory(compiled, request.scope, request.request_id, error.size)
            if body is None:
                return None
            if len(body) > compiled.max_body:
                return pipeline.heads.reject_size(
                    compiled, request.scope, request.request_id, len(body), is_whole=False
                )
            try:
                rest = pipeline.process(request, body)
                if rest is not None:
                    await rest
            except Exception as error:  # noqa: BLE001 - as above
                request.set_exception(error)
        answer = await request.answer
        inline = request.compiled.inline
        if inline is None or answer.event_id is None:
            return answer
        return await self._wait_for_reply(request, inline, answer, receive)

    async def _wait_for_reply(
        self, request: PendingRequest, policy: InlinePolicy, answer: Response, receive: Receive
    ) -> Response:
        """Return the handler's reply instead of *answer*, or the fallback if no reply arrives in time."""
        source, began = request.compiled.source, time.monotonic()
        reply, outcome = None, ReplyOutcome.FALLBACK
        if answer.pending_reply is not None and self._reply_waiter is not None:
            seconds = policy.within_s - (began - request.started)
            reply, outcome = await self._reply_waiter.ask(answer.pending_reply, seconds, receive)
        waited_s = time.monotonic() - began
        if reply is not None and reply.status in policy.forbidden_statuses:
            _LOG.error("reply_not_sent", source=source, status=reply.status, note="it makes the sender stop; fallback")
            reply, outcome = None, ReplyOutcome.FALLBACK
        meters.count("boathook_inline_replies_total", source=source, outcome=outcome)
        meters.observe("boathook_inline_wait_seconds", waited_s)
        return with_reply(reply or policy.fallback, replace(answer, waited=outcome, waited_s=waited_s))

    async def _forward(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if self._pipeline.heads.is_watched(scope):
            send = partial(self._send_watched, scope, send)
        if has_needless_escapes(scope["raw_path"]):
            await _reject_path(scope, receive, send)
            return
        caller = _credential_hash(scope)
        if caller is None or caller not in self._credentials:
            headers = read_headers(scope["headers"]) if self._has_proxies else {}
            await self._turns.take(client_key(self._pipeline.heads.client(scope, headers)))
        await self._others(scope, receive, send)
        if caller is not None and scope.get(IS_AUTHENTICATED):
            self._credentials.add(caller)

    async def _send_watched(self, scope: Mapping[str, Any], send: Send, message: Any) -> None:
        """Send a message of a response; record it if a sender uses another path than its source's."""
        if message["type"] == "http.response.start":
            self._pipeline.heads.note_response(scope, message["status"])
        await send(message)

    def _is_ingesting(self) -> bool:
        """Return whether a request for a source has arrived recently."""
        return time.monotonic() - self._pipeline.newest_request < _RECENT_S
