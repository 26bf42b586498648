"""The direct way into the ingest pipeline: small whole requests, from the parser to the group commit without a task.

What needs I/O before it can be answered, such as a public key that has to be fetched, continues in a task of its own.
The 2xx is written by the committer itself, once the append has returned.
"""

import asyncio

from boathook.http.exchange import Exchange
from boathook.ingest.pipeline import IngestPipeline, PendingRequest, Rest
from boathook.ingest.responses import Response, response_headers
from boathook.ingest.sources import CompiledSource


class _DirectRequest(PendingRequest):
    """A request that is answered on its connection at once."""

    __slots__ = ("exchange",)

    def __init__(self, pipeline: IngestPipeline, compiled: CompiledSource, exchange: Exchange) -> None:
        super().__init__(pipeline, compiled, exchange.scope)
        self.exchange = exchange

    def respond(self, answer: Response) -> None:
        """Write the answer, count it and log it."""
        self.exchange.respond(answer.status, response_headers(answer, self.request_id), answer.body)
        self.record(answer)

    def done(self) -> bool:
        """Return whether the request is answered."""
        return self.exchange.response_complete


class DirectIngest:
    """Answers requests for sources without ASGI; a `boathook.http.exchange.DirectHandler`.

    Large or chunked requests, and those that wait for a handler's reply, are left to `boathook.ingest.app.IngestApp`.
    """

    def __init__(self, pipeline: IngestPipeline) -> None:
        self._pipeline = pipeline
        self._tasks: set[asyncio.Task[None]] = set()

    def max_body(self, path: str) -> int:
        """Return the maximum body of the source at *path*; -1 if there is none, or senders wait for replies."""
        compiled = self._pipeline.find_source(path)
        return -1 if compiled is None or compiled.inline is not None else compiled.max_body

    def handle(self, exchange: Exchange) -> None:
        """Verify a request, and put its event into the intake or reject it."""
        pipeline, path = self._pipeline, exchange.scope["path"]
        compiled = pipeline.find_source(path)
        if compiled is None:  # removed, or unavailable, since the head of the request was read
            answer, request_id = pipeline.reject_unavailable(path)
            exchange.respond(answer.status, response_headers(answer, request_id), answer.body)
            return
        request = _DirectRequest(pipeline, compiled, exchange)
        try:
            rest = pipeline.run(request, bytes(exchange.body))
        except Exception as error:  # noqa: BLE001 - an internal error must never be reported as the sender's
            request.set_exception(error)
        else:
            if rest is not None:
                self._continue(request, rest)

    def _continue(self, request: _DirectRequest, rest: Rest) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(request, rest))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, request: _DirectRequest, rest: Rest) -> None:
        with self._pipeline.unverified.reserve() as reservation:
            reservation.take(len(request.exchange.body))  # it was counted until now
            request.reservation = reservation
            try:
                await rest
            except Exception as error:  # noqa: BLE001 - as above
                request.set_exception(error)
