"""Traces the requests of a gateway: wrappers for its application and its intake, used only if tracing is on."""

import time
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from boathook.domain import ids
from boathook.domain.errors import BoathookError
from boathook.domain.model import Accepted, NewEvent, Receipt
from boathook.http.asgi import Asgi, Receive, Send, read_headers
from boathook.ingest.event_writer import EventSink, ReceiptWaiter
from boathook.observability import tracer
from boathook.server.gateway_part import Gateway, GatewayPart
from boathook_otel.spans import (
    HEADER,
    EntrySpan,
    Kind,
    Span,
    Spans,
    otel_attributes,
    read_traceparent,
    span_id_of,
)
from boathook_otel.tracer import OtelTracer

_API_PREFIX: Final = "/api/"
_SYSTEM: Final = "boathook"


def open_part(_gateway: Gateway) -> "OtelPart | None":
    """Return the part; None if nothing is traced in this process."""
    installed = tracer.current()
    return OtelPart(installed.spans) if isinstance(installed, OtelTracer) else None


class OtelPart(GatewayPart):
    """Traces the requests that bring events."""

    needs_every_request = True  # a trace belongs to the task of its request

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def wrap_intake(self, intake: EventSink) -> EventSink:
        """See `GatewayPart.wrap_intake`."""
        return TracedIntake(intake)

    def wrap(self, app: Asgi) -> Asgi:
        """See `GatewayPart.wrap`."""
        return TracedApp(app, self._spans)


class _RequestTrace:
    """The trace data of one request."""

    __slots__ = ("began_ns", "committing_ns", "ended_ns", "error", "event", "receipt", "status")

    def __init__(self) -> None:
        self.began_ns = time.time_ns()
        self.committing_ns = self.ended_ns = 0
        self.event: NewEvent | None = None
        self.receipt: Receipt | None = None
        self.error: str | None = None
        self.status = 0


_current_trace: ContextVar[_RequestTrace] = ContextVar("boathook_request_trace")


class _TracedWaiter:
    """Records when an event became durable, and passes its receipt on."""

    def __init__(self, request_trace: _RequestTrace, waiter: ReceiptWaiter) -> None:
        self._trace = request_trace
        self._waiter = waiter

    def done(self) -> bool:
        return self._waiter.done()

    def set_result(self, receipt: Receipt, /) -> None:
        self._trace.receipt, self._trace.ended_ns = receipt, time.time_ns()
        self._waiter.set_result(receipt)

    def set_exception(self, error: BaseException, /) -> None:
        self._trace.error = error.name if isinstance(error, BoathookError) else None
        self._trace.ended_ns = time.time_ns()
        self._waiter.set_exception(error)


class TracedIntake:
    """An intake that records when each event became durable."""

    def __init__(self, intake: EventSink) -> None:
        self._intake = intake

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        """Accept an event for *waiter*; see `boathook.ingest.intake.Intake.put`."""
        request_trace = _current_trace.get()
        request_trace.event, request_trace.committing_ns = event, time.time_ns()
        self._intake.put(event, _TracedWaiter(request_trace, waiter))


class TracedApp:
    """The gateway's application with tracing: each received event starts or continues a trace.

    Requests without an event are not traced, because unauthenticated clients could flood a collector with them. API
    calls continue the caller's trace.
    """

    def __init__(self, app: Asgi, spans: Spans) -> None:
        self._app = app
        self._spans = spans

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["path"].startswith(_API_PREFIX):
            await self._answer_api(scope, receive, send)
            return
        request_trace = _RequestTrace()

        async def watch(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                request_trace.status = message["status"]
            await send(message)

        token = _current_trace.set(request_trace)
        try:
            await self._app(scope, receive, watch)
        finally:
            _current_trace.reset(token)
        if request_trace.event is not None:
            self._record(request_trace, request_trace.event, scope)

    async def _answer_api(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        caller = read_traceparent(read_headers(scope["headers"]).get(HEADER))
        if caller is None:
            await self._app(scope, receive, send)
            return
        with self._spans.inside(caller):
            await self._app(scope, receive, send)

    def _record(self, request_trace: _RequestTrace, event: NewEvent, scope: dict[str, Any]) -> None:
        entry = self._entry(event)
        receipt, link = request_trace.receipt, None
        if receipt is not None and receipt.event_id != event.id:
            # A duplicate has its own trace, which links to the trace of the original.
            link = self._spans.entry(receipt.event_id, None, is_ours=False).context
        self._spans.record(
            Span(
                name=f"receive {event.source}",
                kind=Kind.SERVER,
                context=entry.context,
                parent=entry.parent,
                began_ns=request_trace.began_ns,
                ended_ns=time.time_ns(),
                attributes=_attributes(request_trace, event, scope),
                error=request_trace.error,
                link=link,
            )
        )
        self._spans.record(
            Span(
                name="commit",
                kind=Kind.INTERNAL,
                context=entry.context.with_span(span_id_of(event.id, "commit")),
                parent=entry.context,
                began_ns=request_trace.committing_ns,
                ended_ns=request_trace.ended_ns,
                attributes=otel_attributes(boathook__spooled=isinstance(receipt, Accepted) and receipt.is_spooled),
                error=request_trace.error,
            )
        )

    def _entry(self, event: NewEvent) -> EntrySpan:
        traceparent = msgspec.json.decode(event.headers, type=dict[str, str]).get(HEADER)
        return self._spans.entry(event.id, traceparent, is_ours=False)


def _attributes(request_trace: _RequestTrace, event: NewEvent, scope: dict[str, Any]) -> Any:
    receipt = request_trace.receipt
    event_id = event.id if receipt is None else receipt.event_id
    return otel_attributes(
        messaging__system=_SYSTEM,
        messaging__operation__type="receive",
        messaging__destination__name=event.source,
        messaging__message__id=ids.show(ids.EVENT, event_id),
        messaging__message__body__size=len(event.body),
        http__request__method=scope["method"],
        http__response__status_code=request_trace.status or None,
        boathook__event__type=event.type,
        boathook__duplicate=receipt is not None and not isinstance(receipt, Accepted),
        boathook__conflict=(receipt is not None and receipt.conflict) or None,
    )
