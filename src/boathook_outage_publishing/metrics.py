"""The metric of messages that were published while PostgreSQL was unavailable."""

from typing import Final

from boathook.observability.metrics import Metric, MetricKind, register

METRICS: Final = (
    Metric("boathook_messages_buffered_total", MetricKind.COUNTER, "Messages accepted into the spool or by brokers."),
)

for _metric in METRICS:
    register(_metric)
