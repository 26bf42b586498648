"""The metrics of traces."""

from typing import Final

from boathook.observability.metrics import Metric, MetricKind, register

METRICS: Final = (
    Metric("boathook_trace_spans_total", MetricKind.COUNTER, "Spans, by whether a collector accepted them.",
           ("outcome",)),
)  # fmt: skip

for _metric in METRICS:
    register(_metric)
