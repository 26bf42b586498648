"""The metrics of cells."""

from typing import Final

from boathook.observability.metrics import Merge, Metric, MetricKind, register

METRICS: Final = (
    Metric("boathook_cell_unavailable", MetricKind.GAUGE,
           "1 while a gateway writes events to a spool because the cell of their sources does not accept them.",
           ("cell",), merge=Merge.MAX),
    Metric("boathook_cell_events_waiting", MetricKind.GAUGE,
           "Events in a spool that wait for the cell of their sources.", ("cell",)),
    Metric("boathook_cell_events_received_total", MetricKind.COUNTER,
           "Events that gateways of other cells have posted here."),
)  # fmt: skip

for _metric in METRICS:
    register(_metric)
