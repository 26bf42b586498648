"""Statistics of handlers, endpoints and sources in a range.

Those of handlers and sources are from the stored samples of all hosts, those of endpoints from the stored attempts.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db.database import Connection, Database
from boathook.db.endpoints import Endpoint
from boathook.db.metric_samples import Sample, read_series_since
from boathook.db.queries import endpoint_stats, summaries
from boathook.db.queries.endpoint_stats import LATENCY_BOUNDS_MS as LATENCY_BOUNDS_MS  # noqa: PLC0414 - re-exported
from boathook.db.queries.endpoint_stats import AttemptStats as AttemptStats  # noqa: PLC0414 - re-exported
from boathook.db.queries.endpoint_stats import EndpointHealth as EndpointHealth  # noqa: PLC0414 - re-exported
from boathook.db.queries.endpoint_stats import SecretValidity, UnhealthyEndpoint, bucket_starts
from boathook.db.queries.endpoint_stats import TimeBucket as TimeBucket  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import MAX_BACKLOG as MAX_BACKLOG  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import FailedDelivery as FailedDelivery  # noqa: PLC0414 - re-exported
from boathook.db.queries.summaries import RecipientBacklog as RecipientBacklog  # noqa: PLC0414 - re-exported
from boathook.db.route_registry import read_routes
from boathook.domain.errors import NotFound
from boathook.domain.health import AttemptResults, Health, judge_health
from boathook.domain.health import HealthState as HealthState  # noqa: PLC0414 - re-exported
from boathook.domain.model import Route
from boathook.observability.metric_snapshot import (
    OTHERS,
    Buckets,
    MetricSnapshot,
    RecipientCounts,
    SourceCounts,
    combine_hosts,
    concatenate,
)
from boathook.observability.metrics import METRICS
from boathook.service.operating.live_stats import BacklogCounts, RecipientActivity, list_activity, read_host_samples
from boathook.service.unit_of_work import AppContext, UnitOfWork

HANDLER: Final = "handler:"
"""The beginning of the recipient of each handler."""
_MAX_FAILURES: Final = 10
_ATTEMPTS: Final = "boathook_attempts_total"
_ENDPOINT_REQUESTS: Final = "boathook_endpoint_requests_total"
_NEWEST_ATTEMPT: Final = "boathook_newest_attempt_timestamp_seconds"
_REQUESTS: Final = "boathook_requests_total"
_NEWEST_REQUEST: Final = "boathook_newest_request_timestamp_seconds"
_HANDLER_SECONDS: Final = "boathook_handler_seconds"
_ACK_SECONDS: Final = "boathook_ack_seconds"
_HANDLER_BREAKERS: Final = "boathook_handler_circuit_breaker_open"
_HANDLER_PROBES: Final = "boathook_handler_circuit_breaker_probe_timestamp_seconds"


class RangeName(StrEnum):
    """The time ranges of statistics and charts."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


class StatsRange(msgspec.Struct, frozen=True):
    """A time range of statistics."""

    span: timedelta
    width: timedelta
    """Length of its time buckets."""
    title: str


STATS_RANGES: Final[Mapping[RangeName, StatsRange]] = {
    RangeName.HOUR: StatsRange(timedelta(hours=1), timedelta(minutes=2), "1 h"),
    RangeName.DAY: StatsRange(timedelta(days=1), timedelta(hours=1), "24 h"),
    RangeName.WEEK: StatsRange(timedelta(days=7), timedelta(hours=6), "7 d"),
}


DEFAULT_RANGE: Final = RangeName.DAY
"""The range of the health of endpoints and sources where none is chosen."""
HANDLER_RANGE: Final = RangeName.HOUR
"""The same of handlers, and of all recipients on the overview."""


class HandlerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A handler in a list: its attempts in a range, and its current activity and backlog."""

    name: str
    routes: Sequence[Route]
    """Its active routes; none if no app declares it any more."""
    health: Health
    """In the range."""
    attempts: AttemptStats
    activity: RecipientActivity
    """Its latest attempts, and its backlog as the keeper last counted it."""
    breakers: Mapping[str, bool]
    """The dependencies of its circuit breaker, with whether it is open; empty without a breaker."""

    @property
    def open_breakers(self) -> Sequence[str]:
        """The dependencies whose circuit breaker is open."""
        return sorted(name for name, is_open in self.breakers.items() if is_open)


class HandlerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A handler with its exact backlog and its latest failures."""

    summary: HandlerSummary
    backlog: RecipientBacklog
    failures: Sequence[FailedDelivery]


class EndpointStatus(msgspec.Struct, frozen=True):
    """The health of an endpoint in a range, and its failures in a row."""

    health: Health
    failures: EndpointHealth


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one endpoint at one time."""

    status: EndpointStatus
    """Its health in the range."""
    disabled_by: str | None
    """The actor who disabled it, from the audit; None if it is enabled."""
    secrets: Sequence[SecretValidity]
    """The current secret first, then former ones that still sign."""
    backlog: RecipientBacklog
    attempts: AttemptStats
    """Its attempts in the range."""
    failures: Sequence[FailedDelivery]


class SourceStats(msgspec.Struct, frozen=True, kw_only=True):
    """The requests at a source in a range."""

    counts: SourceCounts
    health: Health
    p50_s: float | None
    """From a request's head to its reply, for accepted events; None without any."""
    p95_s: float | None
    p99_s: float | None


async def list_handlers(
    app_context: AppContext, stats_range: StatsRange, now: datetime, only: str | None = None
) -> Sequence[HandlerSummary]:
    """Return the registered handlers and those with unfinished deliveries, ordered by name; or *only* one recipient.

    Raises DatabaseError.
    """
    database = app_context.database
    routes: dict[str, list[Route]] = {}
    for route in (await read_routes(database)).routes:
        routes.setdefault(route.recipient, []).append(route)
    hosts = await read_host_samples(database)
    latest = combine_hosts(host.snapshot for host in hosts)
    activity = {activity.recipient: activity for activity in list_activity(hosts)}
    unfinished = (
        name
        for name, recipient_activity in activity.items()
        if recipient_activity.backlog.pending or recipient_activity.backlog.dead
    )
    recipients = {name for name in {*routes, *unfinished} if name.startswith(HANDLER)} if only is None else {only}
    samples = await read_series_since(
        database,
        now - stats_range.span,
        int(stats_range.width.total_seconds()),
        (_ATTEMPTS, _NEWEST_ATTEMPT, _HANDLER_SECONDS),
        only and {only},
    )
    counts = [(sample.at, sample.snapshot.recipients) for sample in samples]
    breakers = read_breakers(latest)
    threshold = app_context.settings.notifications.error_share
    return [
        HandlerSummary(
            name=_name(recipient),
            routes=routes.get(recipient, ()),
            health=_judge_recipient(recipient, samples, latest, threshold, is_registered=recipient in routes),
            attempts=_measure(recipient, samples, counts, stats_range, now),
            activity=activity.get(recipient, RecipientActivity(recipient, 0, 0, BacklogCounts())),
            breakers=breakers.get(recipient, {}),
        )
        for recipient in sorted(recipients)
    ]


async def read_recipient_health(
    database: Database, settings: Settings, stats_range: StatsRange, now: datetime
) -> Mapping[str, Health]:
    """Return the health of each recipient with attempts in the range, and of the registered handlers.

    All endpoints are one recipient. Raises DatabaseError.
    """
    registered = {route.recipient for route in (await read_routes(database)).routes}
    latest = combine_hosts(sample.snapshot for sample in await read_host_samples(database))
    metrics = (_ATTEMPTS, _ENDPOINT_REQUESTS, _NEWEST_ATTEMPT)
    samples = await read_series_since(database, now - stats_range.span, int(stats_range.width.total_seconds()), metrics)
    recipients = {*registered, *latest.backlogs}.union(*(sample.snapshot.recipients for sample in samples))
    return {
        recipient: _judge_recipient(
            recipient,
            samples,
            latest,
            settings.notifications.error_share,
            is_registered=recipient in registered or not recipient.startswith(HANDLER),
        )
        for recipient in recipients
    }


def _judge_recipient(
    recipient: str, samples: Sequence[Sample], latest: MetricSnapshot, threshold: float, *, is_registered: bool
) -> Health:
    counts = [sample.snapshot.recipients.get(recipient, RecipientCounts()) for sample in samples]
    results = _read_results(
        [(count.succeeded + count.ignored, count.failed) for count in counts], samples, _NEWEST_ATTEMPT, recipient
    )
    return judge_health(
        results,
        threshold,
        is_registered=is_registered,
        is_paused=any(read_breakers(latest).get(recipient, {}).values()),
        paused_until=read_pause(latest, recipient),
    )


def _read_results(
    counts: Sequence[tuple[float, float]], samples: Sequence[Sample], newest_metric: str, name: str
) -> AttemptResults:
    """Return the results of a recipient or source; *counts* are those that succeeded and failed in each sample."""
    gauges = [sample.snapshot.gauges.get(newest_metric, {}) for sample in samples if name != OTHERS]
    newest = {
        outcome: max((gauge.get((name, outcome), 0.0) for gauge in gauges), default=0.0)
        for outcome in ("succeeded", "failed")
    }
    if any(newest.values()):
        is_newest_failed = newest["failed"] > newest["succeeded"]
    else:  # written by a version without this metric
        is_newest_failed = next((failed > 0 for ok, failed in reversed(counts) if ok or failed), False)
    return AttemptResults(
        round(sum(ok for ok, _ in counts)), round(sum(failed for _, failed in counts)), is_newest_failed
    )


async def read_handler(app_context: AppContext, name: str, stats_range: StatsRange, now: datetime) -> HandlerStats:
    """Return one handler.

    Raises:
        NotFound: no handler with this name is registered or has deliveries.
        DatabaseError: PostgreSQL is unavailable.
    """
    handler_summaries = await list_handlers(app_context, stats_range, now, HANDLER + name)
    async with app_context.reading() as connection:
        backlog = await summaries.count_backlog(connection, HANDLER + name)
        failures = await summaries.list_failures(connection, HANDLER + name, limit=_MAX_FAILURES)
    (summary,) = handler_summaries
    if not (summary.routes or summary.attempts.total or backlog.pending or backlog.dead):
        raise NotFound(f"unknown handler {name}")
    return HandlerStats(summary=summary, backlog=backlog, failures=failures)


async def read_names(connection: Connection) -> Sequence[str]:
    """Return the names of the registered handlers, in order."""
    routes = (await read_routes(connection)).routes
    return sorted({_name(route.recipient) for route in routes if route.recipient.startswith(HANDLER)})


def _name(recipient: str) -> str:
    return recipient.removeprefix(HANDLER)


def read_breakers(latest: MetricSnapshot) -> Mapping[str, Mapping[str, bool]]:
    """Return the dependencies of each recipient with a circuit breaker, with whether it is open."""
    breakers: dict[str, dict[str, bool]] = {}
    for (recipient, dependency), is_open in latest.gauges.get(_HANDLER_BREAKERS, {}).items():
        breakers.setdefault(recipient, {})[dependency] = is_open > 0
    return breakers


def read_pause(latest: MetricSnapshot, recipient: str) -> datetime | None:
    """Return when the open circuit breakers of a handler allow the next probe, the latest of several."""
    gauges = latest.gauges.get(_HANDLER_PROBES, {})
    newest = max((at for (name, _), at in gauges.items() if name == recipient), default=0.0)
    return datetime.fromtimestamp(newest, UTC) if newest else None


def _measure(
    recipient: str,
    samples: Sequence[Sample],
    counts: Sequence[tuple[datetime, Mapping[str, RecipientCounts]]],
    stats_range: StatsRange,
    now: datetime,
) -> AttemptStats:
    """Return a handler's attempts; *counts* are those of all recipients in each of the samples."""
    none = RecipientCounts()
    by_step = {at: recipients.get(recipient, none) for at, recipients in counts}
    buckets = tuple(
        TimeBucket(start=at, succeeded=int(step_counts.succeeded + step_counts.ignored), failed=int(step_counts.failed))
        for at in bucket_starts(now, stats_range.span, stats_range.width)
        for step_counts in (by_step.get(at, none),)
    )
    histograms = (sample.snapshot.histograms.get(_HANDLER_SECONDS, {}).get((recipient,)) for sample in samples)
    observed = [histogram for histogram in histograms if histogram is not None]
    seconds = sum(observed[1:], observed[0]) if observed else None
    p50, p95, p99 = _quantiles_s(_HANDLER_SECONDS, seconds)
    return AttemptStats(
        succeeded=sum(bucket.succeeded for bucket in buckets),
        failed=sum(bucket.failed for bucket in buckets),
        p50_ms=_to_ms(p50),
        p95_ms=_to_ms(p95),
        p99_ms=_to_ms(p99),
        latencies=seconds.counts if seconds else (0,) * (len(METRICS[_HANDLER_SECONDS].bounds) + 1),
        stretches=buckets,
        span_s=sum(sample.snapshot.span_s for sample in samples),
    )


async def read_endpoint(work: UnitOfWork, endpoint: Endpoint, stats_range: StatsRange, now: datetime) -> EndpointStats:
    """Return the statistics of an endpoint in a range."""
    connection, recipient = work.connection, endpoint.recipient
    disabled_by = None
    if endpoint.is_disabled:
        disabled_by = await endpoint_stats.find_disabled_by(connection, endpoint.shown_id)
    measured = await endpoint_stats.measure_attempts(connection, endpoint.id, now, stats_range.span, stats_range.width)
    return EndpointStats(
        status=(await read_endpoint_statuses(work, [endpoint], stats_range, now))[endpoint.id],
        disabled_by=disabled_by,
        secrets=await endpoint_stats.list_secrets(connection, endpoint.id),
        backlog=await summaries.count_backlog(connection, recipient),
        attempts=measured,
        failures=await summaries.list_failures(connection, recipient, limit=_MAX_FAILURES),
    )


async def read_endpoint_statuses(
    work: UnitOfWork,
    endpoints: Sequence[Endpoint | UnhealthyEndpoint],
    stats_range: StatsRange | None = None,
    now: datetime | None = None,
) -> Mapping[UUID, EndpointStatus]:
    """Return the health of each of these endpoints in the range before *now*, by id."""
    now, stats_range = now or datetime.now(UTC), stats_range or STATS_RANGES[DEFAULT_RANGE]
    keys = [endpoint.id for endpoint in endpoints]
    failures = await endpoint_stats.list_health(work.connection, keys)
    results = await endpoint_stats.read_results(work.connection, keys, now - stats_range.span)
    threshold = work.app_context.settings.notifications.error_share
    return {
        endpoint.id: EndpointStatus(
            _judge_endpoint(endpoint.is_disabled, endpoint_health, results[endpoint.id], threshold), endpoint_health
        )
        for endpoint in endpoints
        for endpoint_health in (failures.get(endpoint.id, EndpointHealth()),)
    }


def _judge_endpoint(
    is_disabled: bool, endpoint_health: EndpointHealth, results: AttemptResults, threshold: float
) -> Health:
    return judge_health(
        results,
        threshold,
        is_disabled=is_disabled,
        is_paused=endpoint_health.open_until is not None,
        paused_until=endpoint_health.open_until,
    )


async def list_unhealthy_endpoints(
    work: UnitOfWork, *, limit: int
) -> Sequence[tuple[UnhealthyEndpoint, EndpointStatus]]:
    """Return the organization's disabled, paused and failing endpoints, latest change first."""
    rows = await endpoint_stats.list_unhealthy(work.connection, work.organization, limit=limit)
    statuses = await read_endpoint_statuses(work, rows)
    troubled = (HealthState.DISABLED, HealthState.PAUSED, HealthState.FAILING)
    return [(row, statuses[row.id]) for row in rows if statuses[row.id].health.state in troubled]


async def read_source(app_context: AppContext, name: str, stats_range: StatsRange, now: datetime) -> SourceStats:
    """Return the requests at a source and how fast they were acknowledged. Raises DatabaseError."""
    metrics = (
        _ACK_SECONDS, "boathook_events_accepted_total", "boathook_duplicates_total", "boathook_rejections_total",
        _REQUESTS, _NEWEST_REQUEST,
    )  # fmt: skip
    step_s = int(stats_range.width.total_seconds())
    samples = await read_series_since(app_context.database, now - stats_range.span, step_s, metrics, {name})
    whole = concatenate(sample.snapshot for sample in samples)
    p50, p95, p99 = _quantiles_s(_ACK_SECONDS, whole.histogram(_ACK_SECONDS))
    return SourceStats(
        counts=whole.sources.get(name, SourceCounts()),
        health=_judge_source(name, samples, app_context.settings),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
    )


async def read_source_health(
    database: Database | Connection, settings: Settings, stats_range: StatsRange, now: datetime
) -> Mapping[str, Health]:
    """Return the health of each configured source, and of others with requests in the range. Raises DatabaseError."""
    samples = await read_series_since(
        database, now - stats_range.span, int(stats_range.width.total_seconds()), (_REQUESTS, _NEWEST_REQUEST)
    )
    names = set(settings.sources).union(*(sample.snapshot.sources for sample in samples))
    return {name: _judge_source(name, samples, settings) for name in names}


def _judge_source(name: str, samples: Sequence[Sample], settings: Settings) -> Health:
    counts = [
        (sum(n for status, n in status_counts if status < "4"), sum(n for status, n in status_counts if status >= "4"))
        for status_counts in (
            [(status, n) for (source, status), n in of.snapshot.counters.get(_REQUESTS, {}).items() if source == name]
            for of in samples
        )
    ]
    results = _read_results(counts, samples, _NEWEST_REQUEST, name)
    return judge_health(results, settings.notifications.error_share, is_registered=name in settings.sources)


def _quantiles_s(metric: str, buckets: Buckets | None) -> tuple[float | None, float | None, float | None]:
    if buckets is None:
        return None, None, None
    bounds = METRICS[metric].bounds
    return buckets.quantile(bounds, 0.5), buckets.quantile(bounds, 0.95), buckets.quantile(bounds, 0.99)


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)
