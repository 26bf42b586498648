"""Attempts over HTTP with traces: the span of each, and the header by which its endpoint can go on with it."""

import time
from typing import Final, assert_never

from boathook.db.endpoint_deliveries import ClaimedSend, FinishedSend
from boathook.domain import ids
from boathook.domain.policy import Complete, DeadLetter, RetryAt
from boathook.observability.tracing import Context, EntrySpan, Kind, Span, Tracer, otel_attributes, span_id_of

_NS: Final = 1_000_000_000


class SendTraces:
    """The spans of one sender's attempts."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def header(self, send: ClaimedSend) -> str | None:
        """Return what an attempt's request says of its trace; None where endpoints are not to know."""
        return self._context(send, self._entry(send)).header() if self._tracer.rules.propagates else None

    def record(self, ended: FinishedSend, took_s: float) -> None:
        """Tell of an attempt that has ended, after so many seconds."""
        send, ended_ns = ended.send, time.time_ns()
        entry = self._entry(send)
        outcome, code, error = _told(ended)
        self._tracer.record(
            Span(
                name="send",
                kind=Kind.CLIENT,
                context=self._context(send, entry),
                parent=entry.context,
                began_ns=ended_ns - int(took_s * _NS),
                ended_ns=ended_ns,
                # Not the address, which may hold a secret.
                attributes=otel_attributes(
                    messaging__system="boathook",
                    messaging__operation__type="send",
                    messaging__destination__name=ids.show(ids.ENDPOINT, send.endpoint_id),
                    messaging__message__id=ids.show(ids.MESSAGE, send.event_id),
                    http__request__method="POST",
                    http__response__status_code=ended.status or None,
                    boathook__delivery=ids.show_delivery(send.event_id, send.ordinal),
                    boathook__attempt=send.attempt,
                    boathook__outcome=outcome,
                    error__type=code,
                ),
                error=error,
            )
        )

    def _entry(self, send: ClaimedSend) -> EntrySpan:
        return self._tracer.entry(send.event_id, send.traceparent, is_ours=True)

    @staticmethod
    def _context(send: ClaimedSend, entry: EntrySpan) -> Context:
        return entry.context.with_span(span_id_of(send.event_id, send.ordinal, send.fence))


def _told(ended: FinishedSend) -> tuple[str, str | None, str | None]:
    """Return what became of an attempt in one word, with the code and the line of its error."""
    match ended.move:
        case Complete():
            return "succeeded", None, None
        case RetryAt(code=code, error=error):
            return "retry", code, error
        case DeadLetter(code=code, error=error):
            return "dead", code, error
        case _ as never:
            assert_never(never)
