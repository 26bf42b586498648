"""The direct path of ingest: small whole requests, from the parser to the group commit without a task for each.

Everything that the ASGI application does with a request is done here by the same functions in the same order. What
needs I/O before it can be answered, such as a public key that has to be fetched, continues in a task of its own. The
2xx is written by the committer itself, once the append has returned (`_PendingResponse.set_result`).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from boathook.domain.model import NewEvent, Receipt
from boathook.http.asgi import read_headers
from boathook.http.exchange import Exchange
from boathook.http.limits import Reservation
from boathook.ingest.app import IngestApp, make_decoder, make_request
from boathook.ingest.event_writer import EventSink
from boathook.ingest.responses import Response, accepted, fault_response, response_headers
from boathook.ingest.sources import CompiledSource
from boathook.verification.verifier import Rejected, Reply, Request, Verified

Answer = Callable[[Reservation], Coroutine[Any, Any, Response]]
"""Answers a request once its result is known; the reservation holds the bytes of its body until it is verified."""


class DirectIngest:
    """Answers requests for sources without ASGI; a `boathook.http.exchange.DirectHandler`.

    Args:
        app: answers the same requests where they are large, chunked, or wait for a handler's reply.
        intake: makes events durable.
    """

    def __init__(self, app: IngestApp, intake: EventSink) -> None:
        self._app = app
        self._intake = intake
        self._tasks: set[asyncio.Task[None]] = set()

    def max_body(self, path: str) -> int:
        """Return the maximum body of the source at *path*; -1 if there is none, or senders wait for replies."""
        compiled = self._app.source_at(path)
        return -1 if compiled is None or compiled.inline is not None else compiled.max_body

    def handle(self, exchange: Exchange) -> None:
        """Verify a request, and put its event into the intake or refuse it."""
        app, scope = self._app, exchange.scope
        compiled = app.source_at(scope["path"])
        if compiled is None:  # removed, or unavailable, since the head of the request was read
            answer, request_id = app.unavailable(scope["path"])
            exchange.respond(answer.status, response_headers(answer, request_id), answer.body)
            return
        request_id, started = app.begin(compiled, scope["headers"])
        pending = _PendingResponse(app, exchange, compiled, request_id, started)
        try:
            self._handle(pending)
        except Exception as error:  # noqa: BLE001 - an internal error must never be reported as the sender's
            pending.set_exception(error)

    def _handle(self, pending: "_PendingResponse") -> None:
        app, compiled, request_id = self._app, pending.compiled, pending.request_id
        scope = pending.exchange.scope
        headers = read_headers(scope["headers"])
        client = app.heads.client(scope, headers)
        early = app.heads.check(compiled, scope, headers, client, request_id, pending.started)
        if early is not None:
            pending.send(early)
            return
        request = pending.request = make_request(compiled, scope, headers, bytes(pending.exchange.body), client)
        now, decoder = time.time(), make_decoder(compiled, request)
        is_outdated = compiled.ensure_fresh is not None and pending.started > compiled.fresh_until
        # Decoding and schemas may take long, so a thread does it.
        if is_outdated or decoder is not None or compiled.verifier.has_schema:
            self._continue(pending, partial(app.process, compiled, request, request_id))
            return
        compiled.reload_secret()
        verdict = compiled.verifier.verify(request, now)
        if isinstance(verdict, Verified):
            pending.event = app.build_event(compiled, request, verdict, now, None, app.new_event_id(now), request_id)
            pending.reply = verdict.reply
            self._intake.put(pending.event, pending)
        elif isinstance(verdict, Rejected):
            pending.send(app.reject(compiled, request, verdict, request_id, now))
        else:
            self._continue(pending, lambda _: app.conclude(compiled, request, verdict, request_id, now, None))

    def _continue(self, pending: "_PendingResponse", answer: Answer) -> None:
        task = asyncio.get_running_loop().create_task(self._send_when_known(pending, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_when_known(self, pending: "_PendingResponse", answer: Answer) -> None:
        try:
            with self._app.unverified.reserve() as reservation:
                reservation.take(len(pending.exchange.body))  # it was counted until now
                pending.send(await answer(reservation))
        except Exception as error:  # noqa: BLE001 - an internal error must never be reported as the sender's
            pending.send(fault_response(error, pending.compiled, pending.request_id))


class _PendingResponse:
    """The answer that one request waits for; the `ReceiptWaiter` of its event."""

    __slots__ = ("_app", "compiled", "event", "exchange", "reply", "request", "request_id", "started")

    def __init__(
        self, app: IngestApp, exchange: Exchange, compiled: CompiledSource, request_id: str, started: float
    ) -> None:
        self._app = app
        self.exchange = exchange
        self.compiled = compiled
        self.request_id = request_id
        self.started = started
        self.event: NewEvent | None = None
        self.reply: Reply | None = None
        self.request: Request | None = None

    def send(self, answer: Response) -> None:
        """Write the answer, count it and log it."""
        self.exchange.respond(answer.status, response_headers(answer, self.request_id), answer.body)
        self._app.record(self.compiled, answer, self.request_id, self.started)

    def done(self) -> bool:
        """Return whether the request is answered."""
        return self.exchange.response_complete

    def set_result(self, receipt: Receipt, /) -> None:
        """Answer 2xx: the event is durable."""
        assert self.event is not None
        try:
            answer = accepted(self.compiled, self.event, receipt, self.reply, self.request_id)
        except Exception as error:  # noqa: BLE001 - the other events of the commit have to be answered too
            answer = fault_response(error, self.compiled, self.request_id)
        self.send(answer)

    def set_exception(self, error: BaseException, /) -> None:
        """Answer why the event is not stored."""
        try:
            answer = self._app.not_accepted(error, self.compiled, self.request, self.request_id)
        except Exception as fault:  # noqa: BLE001 - as above
            answer = fault_response(fault, self.compiled, self.request_id)
        self.send(answer)
