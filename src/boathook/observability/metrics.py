"""The table of boathook's metrics: name, kind, help text and labels; packages and apps register further ones."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final

import msgspec


class MetricKind(StrEnum):
    """The storage type of a metric, and the way its values are merged over processes."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """The way a gauge's values from several processes are merged."""

    SUM = "sum"
    MAX = "max"


class Metric(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, increasing, without infinity."""
    merge: Merge = Merge.SUM


LabelValue = str | Callable[[], str]
"""A label's value, or a function that returns it whenever it is exposed, such as one that reads the settings."""
LabelValues = LabelValue | Sequence[str]
"""One value, or several allowed values."""


class Mirror(msgspec.Struct, frozen=True):
    """A metric that is exposed a second time, under a name that the user's dashboards already use."""

    metric: Metric
    """The metric under its second name."""
    of: str
    """The name of the original metric."""
    where: tuple[tuple[str, LabelValues], ...] = ()
    """Labels of the original metric, with the values that a series must have to be exposed."""
    labels: tuple[tuple[str, str], ...] = ()
    """Exposed labels, each with the original label that fills it; series that differ in other labels are summed."""
    constants: tuple[tuple[str, LabelValue], ...] = ()
    """Exposed labels with a constant value."""

    def translator(self) -> Callable[[tuple[str, ...]], tuple[str, ...] | None]:
        """Return a function that maps original label values to the exposed ones, or to None if not exposed."""
        old = METRICS[self.of].labels
        filters = [(old.index(label), _resolve_labels(words)) for label, words in self.where]
        constants = {label: resolve_label(word) for label, word in self.constants}
        indexes = {label: old.index(name) for label, name in self.labels}

        def translate(values: tuple[str, ...]) -> tuple[str, ...] | None:
            if any(values[index] not in allowed for index, allowed in filters):
                return None
            return tuple(
                constants[label] if label in constants else values[indexes[label]] for label in self.metric.labels
            )

        return translate


def resolve_label(word: LabelValue) -> str:
    """Return the current value of a label."""
    return word if isinstance(word, str) else str(word())


def _resolve_labels(words: LabelValues) -> frozenset[str]:
    return frozenset((resolve_label(words),) if isinstance(words, str) or callable(words) else words)


SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
LONG_SECONDS: Final = (*SECONDS[3:], 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

TABLE: Final = (
    Metric("boathook_requests_total", _COUNTER, "Requests at sources, by the status answered.", ("source", "status")),
    Metric("boathook_newest_request_timestamp_seconds", _GAUGE,
           "When the newest request at a source was answered, by whether its status was below 400 (succeeded) or not.",
           ("source", "outcome"), (), Merge.MAX),
    Metric("boathook_events_accepted_total", _COUNTER, "Events committed to PostgreSQL.", ("source",)),
    Metric("boathook_events_unhandled_total", _COUNTER, "Events accepted that no handler matched.", ("source",)),
    Metric("boathook_duplicates_total", _COUNTER, "Requests whose event had been accepted before.", ("source",)),
    Metric("boathook_dedup_cache_keys", _GAUGE, "Keys of events in the gateways' memory, in front of PostgreSQL."),
    Metric("boathook_conflicts_total", _COUNTER, "Requests, or items, whose body or key differed from the first.",
           ("source",)),
    Metric("boathook_rejections_total", _COUNTER, "Requests rejected, by reason.", ("source", "reason")),
    Metric("boathook_key_fetches_total", _COUNTER, "Fetches of senders' public keys, by outcome.",
           ("source", "outcome")),
    Metric("boathook_gateways", _GAUGE, "Gateways that share the rates of sources, as one of them has counted last.",
           merge=Merge.MAX),
    Metric("boathook_rate_leases_total", _COUNTER, "Requests for tokens of sources' rates, by outcome.", ("outcome",)),
    Metric("boathook_rate_leases_unavailable", _GAUGE,
           "1 while a gateway gets no tokens and applies only its share of the rates of sources.", merge=Merge.MAX),
    Metric("boathook_rejections_dropped_total", _COUNTER,
           "Rejections that were not stored: over the rate, or the queue was full.",
           ("source",)),
    Metric("boathook_connections_refused_total", _COUNTER, "Connections closed for exceeding a limit, by reason.",
           ("reason",)),
    Metric("boathook_connections", _GAUGE, "Open connections of the gateways."),
    Metric("boathook_requests_in_flight", _GAUGE, "Requests that the gateways are reading or answering."),
    Metric("boathook_gateways_stopping", _GAUGE, "Gateways that finish their requests and accept no more connections."),
    Metric("boathook_connections_used_ratio", _GAUGE, "Share of limits.max_connections that is open, of the fullest "
           "gateway; idle ones are closed for new clients.", merge=Merge.MAX),
    Metric("boathook_ack_seconds", _HISTOGRAM, "From a request's head to its reply, for accepted events.",
           ("source",), SECONDS),
    Metric("boathook_inline_replies_total", _COUNTER,
           "Replies of sources with mode = inline, by outcome: the handler's "
           "reply, the fallback, or the sender was gone.", ("source", "outcome")),
    Metric("boathook_inline_wait_seconds", _HISTOGRAM,
           "How long senders waited for a handler's reply after their event "
           "was stored.", (), SECONDS),
    Metric("boathook_sender_clock_skew_seconds", _GAUGE, "Sender's clock minus ours at the latest verified request.",
           ("source",), (), Merge.MAX),
    Metric("boathook_commit_seconds", _HISTOGRAM, "Duration of one group commit.", (), SECONDS),
    Metric("boathook_commit_batch_events", _HISTOGRAM, "Events in one group commit.", (), ROWS),
    Metric("boathook_ingest_queue_events", _GAUGE, "Events waiting in memory to be committed."),
    Metric("boathook_ingest_overloaded_total", _COUNTER, "Events refused because the queue was full."),
    Metric("boathook_spool_events", _GAUGE, "Events that wait in the spool for PostgreSQL."),
    Metric("boathook_spool_bytes", _GAUGE, "Bytes of the spool's segments that wait for PostgreSQL."),
    Metric("boathook_spool_used_ratio", _GAUGE, "Share of spool.max_bytes that is used, of the fullest gateway.",
           merge=Merge.MAX),
    Metric("boathook_spool_oldest_seconds", _GAUGE, "About how long the oldest event has been waiting in the spool.",
           merge=Merge.MAX),
    Metric("boathook_spool_set_aside", _GAUGE, "Refused events and damaged segments in the spool, which need an "
           "operator.", ("kind",), (), Merge.MAX),
    Metric("boathook_spool_failing", _GAUGE, "1 while the spool's disk fails to make events durable.",
           merge=Merge.MAX),
    Metric("boathook_spool_appended_total", _COUNTER, "Events made durable in the spool."),
    Metric("boathook_spool_drained_total", _COUNTER, "Events moved from the spool to PostgreSQL, by outcome.",
           ("outcome",)),
    Metric("boathook_spool_rejected_total", _COUNTER, "Events that the spool did not store: full, or its disk failed."),
    Metric("boathook_spool_damaged_segments_total", _COUNTER,
           "Segments of which durable events could not be read any more."),
    Metric("boathook_spool_sync_seconds", _HISTOGRAM, "Duration of making a group of events durable in the spool.",
           (), SECONDS),
    Metric("boathook_database_unavailable", _GAUGE,
           "1 while a gateway writes events to the spool because PostgreSQL does not accept them.",
           merge=Merge.MAX),
    Metric("boathook_database_unsafe", _GAUGE, "1 while PostgreSQL could lose what it has committed: its settings say "
           "so, or commits wait for a synchronous standby.", merge=Merge.MAX),
    Metric("boathook_dedup_window_seconds", _GAUGE, "How long the key of an event is remembered.", ("source",),
           merge=Merge.MAX),
    Metric("boathook_dedup_cache_hits_total", _COUNTER, "Duplicates found in memory, without a query."),
    Metric("boathook_attempts_total", _COUNTER, "Finished attempts of deliveries, by outcome.",
           ("recipient", "outcome")),
    Metric("boathook_newest_attempt_timestamp_seconds", _GAUGE,
           "When the newest attempt ended, by whether it succeeded or failed.",
           ("recipient", "outcome"), (), Merge.MAX),
    Metric("boathook_handler_seconds", _HISTOGRAM, "Duration of one handler attempt, commit included.",
           ("recipient",), SECONDS),
    Metric("boathook_first_attempt_delay_seconds", _HISTOGRAM, "From accepting an event to its first attempt.",
           (), LONG_SECONDS),
    Metric("boathook_leases_lost_total", _COUNTER,
           "Attempts whose lease another worker had taken over.", ("recipient",)),
    Metric("boathook_leases_expired_total", _COUNTER, "Expired leases that were taken back."),
    Metric("boathook_handlers_running", _GAUGE, "Handlers running now.", ("recipient",)),
    Metric("boathook_circuit_breaker_open", _GAUGE,
           "1 while the circuit breaker of a dependency is open.", ("dependency",),
           (), Merge.MAX),
    Metric("boathook_handler_circuit_breaker_open", _GAUGE,
           "1 while the circuit breaker of a handler's dependency is open.", ("recipient", "dependency"),
           (), Merge.MAX),
    Metric("boathook_handler_circuit_breaker_probe_timestamp_seconds", _GAUGE,
           "When the open circuit breaker of a handler's dependency allows the next probe; 0 while it is closed.",
           ("recipient", "dependency"), (), Merge.MAX),
    Metric("boathook_backlog", _GAUGE,
           "Deliveries that are not finished, by state.", ("recipient", "state"), (), Merge.MAX),
    Metric("boathook_backlog_due", _GAUGE, "Due deliveries, by how long they have been due.",
           ("recipient", "age"), (), Merge.MAX),
    Metric("boathook_unhandled_events", _GAUGE, "Events of the last day that no handler matched; 10000 at most.",
           (), (), Merge.MAX),
    Metric("boathook_repeated_bodies", _GAUGE,
           "The most events of one signed body that came within the last hour under new ids.",
           ("source",), (), Merge.MAX),
    Metric("boathook_repeating_cause", _GAUGE,
           "The most deliveries that died of one cause within the last hour.", (), (), Merge.MAX),
    Metric("boathook_oldest_due_seconds", _GAUGE, "How long the oldest due delivery has been waiting.",
           (), (), Merge.MAX),
    Metric("boathook_oldest_snapshot_age_seconds", _GAUGE, "Age of the oldest open snapshot in PostgreSQL.",
           (), (), Merge.MAX),
    Metric("boathook_retention_dropped_total", _COUNTER, "Rows dropped by retention, by kind.", ("kind",)),
    Metric("boathook_messages_published_total", _COUNTER,
           "Messages published, also where their transactions roll back later."),
    Metric("boathook_messages_late_duplicates_total", _COUNTER, "Messages that were accepted into the spool or by "
           "brokers and not stored, because an earlier one has their eventId or idempotency key.", ("reason",)),
    Metric("boathook_endpoint_requests_total", _COUNTER,
           "Requests to endpoints, by outcome of the delivery.", ("outcome",)),
    Metric("boathook_endpoint_request_seconds", _HISTOGRAM,
           "Duration of one request to an endpoint, to its response's headers.",
           (), SECONDS),
    Metric("boathook_endpoint_requests_in_flight", _GAUGE, "Requests to endpoints in flight."),
    Metric("boathook_endpoint_circuit_breakers_open", _GAUGE,
           "Endpoints with due deliveries whose circuit breaker is open.",
           (), (), Merge.MAX),
    Metric("boathook_failing_endpoints", _GAUGE, "Endpoints whose health over the last day is failing; 200 at most.",
           (), (), Merge.MAX),
    Metric("boathook_disabled_endpoints", _GAUGE, "Disabled endpoints.", (), (), Merge.MAX),
    Metric("boathook_endpoints_disabled_total", _COUNTER, "Endpoints disabled because they failed or were gone.",
           ("reason",)),
    Metric("boathook_chores_total", _COUNTER, "Runs of the apps' chores, by how they ended.",
           ("app", "chore", "outcome")),
    Metric("boathook_chore_seconds", _HISTOGRAM, "Duration of one run of an app's chore.", ("app", "chore"),
           LONG_SECONDS),
    Metric("boathook_alert_checks_failed_total", _COUNTER, "Runs of the checks of apps' alerts that failed, by rule.",
           ("rule",)),
    Metric("boathook_csp_reports_total", _COUNTER,
           "Violations of the console's content security policy, as browsers report them."),
    Metric("boathook_log_lines_dropped_total", _COUNTER, "Log lines dropped because they were not read fast enough."),
    Metric("boathook_alerts_firing", _GAUGE, "Firing alerts by severity, silenced ones included.", ("severity",), (),
           Merge.MAX),
    Metric("boathook_alert_messages_total", _COUNTER, "Alert messages by channel result.",
           ("channel", "outcome")),
    Metric("boathook_process_restarts_total", _COUNTER, "Child processes restarted after they died.", ("role",)),
)  # fmt: skip

MIRRORS: Final[list[Mirror]] = []
"""Metrics that the apps of this process expose a second time, in the order of declaration."""
METRICS: Final = {metric.name: metric for metric in TABLE}
"""All metrics of this process: boathook's own, and those that packages in use and its apps have registered."""

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_RESERVED_LABELS: Final = frozenset({"le", "quantile", "__name__"})
"""Labels that are reserved by Prometheus."""


APP_METRICS: Final[dict[str, dict[str, Metric]]] = {}
"""The metrics that apps have declared, by app and name: their history is kept minute by minute."""


def app_metric_names() -> frozenset[str]:
    """Return the names of the metrics of all apps."""
    return frozenset(name for metrics in APP_METRICS.values() for name in metrics)


def register(metric: Metric) -> None:
    """Register a metric of a package or an app.

    Raises:
        ValueError: a name or the buckets are invalid, which would make all of /metrics invalid, or the name belongs to
            another metric.
    """
    if not _NAME.fullmatch(metric.name) or not all(_NAME.fullmatch(label) for label in metric.labels):
        raise ValueError(f"{metric.name}: names of metrics and labels are letters, digits and underscores")
    if len(set(metric.labels)) < len(metric.labels) or not _RESERVED_LABELS.isdisjoint(metric.labels):
        raise ValueError(
            f"{metric.name}: duplicate or reserved label; reserved are {' or '.join(sorted(_RESERVED_LABELS))}"
        )
    if not all(map(math.isfinite, metric.bounds)) or any(a >= b for a, b in pairwise(metric.bounds)):
        raise ValueError(f"{metric.name}: its bounds must be numbers in ascending order")
    if METRICS.setdefault(metric.name, metric) != metric:
        raise ValueError(f"the metric {metric.name} already exists with a different definition")


def register_mirror(
    name: str,
    help: str,
    of: str,
    filters: Mapping[str, LabelValues],
    labels: Mapping[str, str],
    constants: Mapping[str, LabelValue],
) -> None:
    """Expose the metric *of* under another name as well; several mirrors may contribute series to one name.

    Raises:
        ValueError: there is no metric *of*, it has no such label, or the name is invalid or belongs to another metric.
    """
    source_metric = METRICS.get(of)
    if source_metric is None:
        raise ValueError(f"there is no metric {of}")
    if unknown := [label for label in (*filters, *labels.values()) if label not in source_metric.labels]:
        raise ValueError(f"{of} has the labels {', '.join(source_metric.labels) or 'none'}, not {', '.join(unknown)}")
    if twice := labels.keys() & constants.keys():
        raise ValueError(f"{name}: {', '.join(sorted(twice))} is filled from a label or has one value, not both")
    metric = Metric(name, source_metric.kind, help, (*constants, *labels), source_metric.bounds, source_metric.merge)
    conditions = tuple(
        (label, words if isinstance(words, str) or callable(words) else tuple(words))
        for label, words in filters.items()
    )
    mirror = Mirror(metric, of, conditions, tuple(labels.items()), tuple(constants.items()))
    if name not in {mirror.metric.name for mirror in MIRRORS} and name in METRICS:
        raise ValueError(f"{name} is a built-in metric; boathook updates it")
    register(metric)
    if mirror not in MIRRORS:
        MIRRORS.append(mirror)
