"""Follows messages and attempts through one process: `boathook.observability.tracer.Tracer`."""

from collections.abc import Mapping
from uuid import UUID

from boathook.domain import ids
from boathook.handlers.runner import Runs
from boathook.observability.tracer import Tracer
from boathook_otel.attempts import SendTraces, TracedRunner
from boathook_otel.spans import HEADER, Kind, Span, Spans, otel_attributes


class OtelTracer(Tracer):
    """Records spans of published messages and of attempts."""

    def __init__(self, spans: Spans) -> None:
        self.spans = spans

    def add_headers(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers with the publisher's trace if there is one."""
        if HEADER in headers:
            return headers
        present = self.spans.present()
        return headers if present is None else {**headers, HEADER: present.header()}

    def note_publish(self, event_id: UUID, headers: Mapping[str, str], began_ns: int, ended_ns: int, type: str) -> None:
        """Record the span of a published message."""
        entry = self.spans.entry(event_id, headers.get(HEADER), is_ours=True)
        self.spans.record(
            Span(
                name="publish",
                kind=Kind.PRODUCER,
                context=entry.context,
                parent=entry.parent,
                began_ns=began_ns,
                ended_ns=ended_ns,
                attributes=otel_attributes(
                    messaging__system="boathook",
                    messaging__operation__type="send",
                    messaging__message__id=ids.show(ids.MESSAGE, event_id),
                    boathook__event__type=type,
                ),
            )
        )

    def wrap_runner(self, runner: Runs) -> Runs:
        """Return a runner that records each attempt as a span."""
        return TracedRunner(runner, self.spans)

    def open_sender(self) -> SendTraces:
        """Return what records the attempts of one sender."""
        return SendTraces(self.spans)
