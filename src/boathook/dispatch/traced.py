"""Attempts over HTTP with traces: the span of each, and the header by which its endpoint can go on with it."""

import time
from typing import Final, assert_never

from boathook.domain import ids
from boathook.domain.policy import Bury, Settle, TryAgain
from boathook.journal.sending import Ended, Send
from boathook.telemetry.tracing import Context, Entry, Kind, Span, Tracer, span_id_of, words

_NS: Final = 1_000_000_000


class SendTraces:
    """The spans of one sender's attempts."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def header(self, send: Send) -> str | None:
        """Return what an attempt's request says of its trace; None where endpoints are not to know."""
        return self._context(send, self._entry(send)).header() if self._tracer.rules.propagates else None

    def record(self, ended: Ended, took_s: float) -> None:
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
                attributes=words(
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

    def _entry(self, send: Send) -> Entry:
        return self._tracer.entry(send.event_id, send.traceparent, is_ours=True)

    @staticmethod
    def _context(send: Send, entry: Entry) -> Context:
        return entry.context.with_span(span_id_of(send.event_id, send.ordinal, send.fence))


def _told(ended: Ended) -> tuple[str, str | None, str | None]:
    """Return what became of an attempt in one word, with the code and the line of its error."""
    match ended.move:
        case Settle():
            return "succeeded", None, None
        case TryAgain(code=code, error=error):
            return "retry", code, error
        case Bury(code=code, error=error):
            return "dead", code, error
        case _ as never:
            assert_never(never)
