"""The metrics of the brokers: of the buffer, its drain and the delivery lane."""

from typing import Final

from boathook.observability.metrics import SECONDS, Merge, Metric, MetricKind, register

METRICS: Final = (
    Metric("boathook_buffer_events", MetricKind.GAUGE, "Events of gateways that wait with brokers for PostgreSQL."),
    Metric("boathook_buffer_unavailable", MetricKind.GAUGE, "1 while a gateway cannot publish to brokers.",
           merge=Merge.MAX),
    Metric("boathook_buffer_appended_total", MetricKind.COUNTER, "Events that brokers have confirmed."),
    Metric("boathook_buffer_failed_total", MetricKind.COUNTER, "Events that brokers did not confirm in time."),
    Metric("boathook_buffer_rejected_total", MetricKind.COUNTER,
           "Events refused because brokers did not confirm them and the spool may not be used."),
    Metric("boathook_buffer_confirm_seconds", MetricKind.HISTOGRAM,
           "Duration of publishing a group of events until it is confirmed.", (), SECONDS),
    Metric("boathook_buffer_drained_total", MetricKind.COUNTER, "Events moved from brokers to PostgreSQL, by outcome.",
           ("outcome",)),
    Metric("boathook_buffer_lost_total", MetricKind.COUNTER,
           "Events that brokers had confirmed and that never arrived."),
    Metric("boathook_buffer_damaged_total", MetricKind.COUNTER,
           "Messages of brokers that cannot be read, or only in part."),
    Metric("boathook_due_lane_unavailable", MetricKind.GAUGE,
           "1 while PostgreSQL notifies a process of due deliveries because brokers do not.", merge=Merge.MAX),
    Metric("boathook_due_lane_messages_total", MetricKind.COUNTER,
           "Messages of the delivery lane, by outcome: published, failed, received, unreadable.", ("outcome",)),
)  # fmt: skip

for _metric in METRICS:
    register(_metric)
