"""The overview: what is wrong, live figures, and charts of the last hour, day or week."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from weakref import WeakKeyDictionary

import msgspec
from starlette.responses import HTMLResponse, Response

from boathook.domain.errors import DatabaseError
from boathook.domain.health import HealthState
from boathook.observability.metric_snapshot import MetricSnapshot
from boathook.service.access.authorization import Permission
from boathook.service.operating.activity_health import ActivityHealth, read_activity_health
from boathook.service.operating.alerts import alert_view
from boathook.service.operating.live_stats import (
    LatestActivity,
    LiveStats,
    LiveStatsReader,
    RecipientActivity,
    Sample,
    SourceActivity,
    format_duration,
    format_rate,
    format_size,
    read_latest_activity,
    read_since,
    recipient_title,
)
from boathook.service.operating.recipient_stats import (
    DEFAULT_RANGE,
    HANDLER,
    HANDLER_RANGE,
    STATS_RANGES,
    RangeName,
)
from boathook_console.live import REFRESH_INTERVAL_S, LiveState, stream_updates
from boathook_console.routes import ConsoleContext, Routes, show_capped
from boathook_console.shared.rendering import PageRenderer, spark_points

Number = float | None


class ChartRange(msgspec.Struct, frozen=True):
    """The time range and resolution of charts."""

    name: str
    duration: timedelta
    step_s: int
    cache_s: float
    """Seconds for which the charts are cached."""


CHART_RANGES: Final = {
    RangeName.HOUR: ChartRange("hour", timedelta(hours=1), 30, 10.0),
    RangeName.DAY: ChartRange("day", timedelta(days=1), 600, 60.0),
    RangeName.WEEK: ChartRange("week", timedelta(days=7), 3600, 300.0),
}


class ChartSeries(msgspec.Struct, frozen=True):
    """One line or stacked area of a chart."""

    title: str
    value_of: Callable[[MetricSnapshot], Number]
    colour: str = ""
    """The CSS variable of its colour; by default, the chart colours in their order."""
    is_stacked: bool = False
    """Whether it is an area on top of the next stacked one."""


class ChartSpec(msgspec.Struct, frozen=True):
    """The definition of a chart."""

    key: str
    title: str
    unit: str
    lines: tuple[ChartSeries, ...]


class Chart(msgspec.Struct, frozen=True):
    """A chart with its data."""

    drawing: ChartSpec
    rows: tuple[tuple[datetime, tuple[Number, ...]], ...]
    """The start of each step, and the value of each line; None if there is no data."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no data."""
        return all(number is None for _, numbers in self.rows for number in numbers)


def _each_second(count: Callable[[MetricSnapshot], float]) -> Callable[[MetricSnapshot], Number]:
    return lambda snapshot: round(count(snapshot) / snapshot.span_s, 3) if snapshot.span_s else None


def _each_minute(count: Callable[[MetricSnapshot], float]) -> Callable[[MetricSnapshot], Number]:
    return lambda snapshot: round(60 * count(snapshot) / snapshot.span_s, 2) if snapshot.span_s else None


def _ack_quantile_ms(share: float) -> Callable[[MetricSnapshot], Number]:
    def value_of(snapshot: MetricSnapshot) -> Number:
        seconds = snapshot.quantile("boathook_ack_seconds", share)
        return None if seconds is None else round(seconds * 1000, 2)

    return value_of


CHART_SPECS: Final = (
    ChartSpec("throughput", "Throughput", "per second", (
        ChartSeries("succeeded", _each_second(lambda sample: sample.worked.succeeded), "success", is_stacked=True),
        ChartSeries("ignored", _each_second(lambda sample: sample.worked.ignored), "faint", is_stacked=True),
        ChartSeries("failed", _each_second(lambda sample: sample.worked.failed), "danger", is_stacked=True),
        ChartSeries("accepted", _each_second(lambda sample: sample.arrived.accepted), "accent"),
    )),
    ChartSpec("ack", "Acknowledgement", "milliseconds", (
        ChartSeries("p50", _ack_quantile_ms(0.5), "chart-2"),
        ChartSeries("p95", _ack_quantile_ms(0.95), "chart-1"),
        ChartSeries("p99", _ack_quantile_ms(0.99), "chart-4"),
    )),
    ChartSpec("backlog", "Pending", "deliveries, maximum per step", (
        ChartSeries("due", lambda snapshot: snapshot.backlog.due),
        ChartSeries("scheduled", lambda snapshot: snapshot.backlog.later),
        ChartSeries("in the spool", lambda snapshot: snapshot.gauge("boathook_spool_events")),
        ChartSeries("failed", lambda snapshot: snapshot.backlog.dead, "danger"),
    )),
    ChartSpec("trouble", "Failures", "per minute", (
        ChartSeries("attempts failed", _each_minute(lambda snapshot: snapshot.worked.failed)),
        ChartSeries("requests rejected", _each_minute(lambda snapshot: snapshot.arrived.rejected)),
        ChartSeries("responded 5xx", _each_minute(lambda snapshot: snapshot.arrived.faults), "danger"),
    )),
)  # fmt: skip


def build_charts(samples: Sequence[Sample], span: ChartRange, now: datetime) -> list[Chart]:
    """Return all charts of a range, with one row for each step."""
    by_step = {sample.at: sample.snapshot for sample in samples}
    ats = list(_steps(span, now))
    return [Chart(drawing, tuple((at, _numbers(drawing, by_step.get(at))) for at in ats)) for drawing in CHART_SPECS]


def _steps(span: ChartRange, now: datetime) -> Iterable[datetime]:
    """Yield the start of each step in the range, without the current one, whose values still change."""
    last = int(now.timestamp()) // span.step_s * span.step_s
    for second in range(last - int(span.duration.total_seconds()), last, span.step_s):
        yield datetime.fromtimestamp(second, UTC)


def _numbers(drawing: ChartSpec, snapshot: MetricSnapshot | None) -> tuple[Number, ...]:
    return tuple(None if snapshot is None else line.value_of(snapshot) for line in drawing.lines)


class Trend(msgspec.Struct, frozen=True):
    """A figure's values over the last hour."""

    points: str = ""
    """The points of its sparkline; empty without data."""
    change: str = ""
    """The mean against that of the hour before, such as ``+12 %``; empty without data."""


_TREND_VALUES: Final[Mapping[str, Callable[[MetricSnapshot], Number]]] = {
    "accepted": _each_second(lambda sample: sample.arrived.accepted),
    "ack": _ack_quantile_ms(0.99),
    "succeeded": _each_second(lambda sample: sample.worked.succeeded + sample.worked.ignored),
    "pending": lambda sample: sample.backlog.due,
}


def build_trends(samples: Sequence[Sample], span: ChartRange, now: datetime) -> dict[str, Trend]:
    """Return the trend of each figure over a range, for samples of this range and the one before."""
    by_step = {sample.at: sample.snapshot for sample in samples}
    before, last = ([by_step.get(at) for at in _steps(span, end)] for end in (now - span.duration, now))
    return {
        name: _trend(_values(value_of, last), _values(value_of, before)) for name, value_of in _TREND_VALUES.items()
    }


def _values(value_of: Callable[[MetricSnapshot], Number], snapshots: Iterable[MetricSnapshot | None]) -> list[Number]:
    return [None if snapshot is None else value_of(snapshot) for snapshot in snapshots]


def _trend(last: Sequence[Number], before: Sequence[Number]) -> Trend:
    points = spark_points(last)
    return Trend(points, _change(_mean(last), _mean(before))) if points else Trend()


def _mean(values: Iterable[Number]) -> float:
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else 0.0


def _change(last: float, before: float) -> str:
    if not before:
        return ""
    percent = round(100 * (last - before) / before)
    return "no change" if percent == 0 else f"{'+' if percent > 0 else MINUS}{min(abs(percent), 999)} %"


MINUS: Final = "\N{MINUS SIGN}"
_AGE_TEXTS: Final = ("under 10 s", "under 1 min", "under 10 min", "under 1 h", "over 1 h")


def oldest_due(activity: RecipientActivity) -> str:
    """Return how long a recipient's oldest due delivery has been due; empty if none is due."""
    return next((_AGE_TEXTS[age] for age in reversed(range(len(_AGE_TEXTS))) if activity.backlog.ages[age]), "")


def list_sources(present: LiveStats, configured: Iterable[str]) -> list[SourceActivity]:
    """Return the sources with requests, busiest first, and then the other configured ones."""
    active = {source.source for source in present.sources}
    return [*present.sources, *(SourceActivity(name, 0, 0, 0, 0, 0) for name in configured if name not in active)]


routes = Routes()

_LATEST: Final = 6
_MAX_ALERTS: Final = 3


class _CachedCharts(msgspec.Struct):
    """The cached charts of one range, with their time."""

    at: float = -math.inf
    charts: list[Chart] = msgspec.field(default_factory=list)
    trends: Mapping[str, Trend] = msgspec.field(default_factory=dict)
    drawing: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class OverviewState:
    """The state of the overview, rendered once for all its viewers in a process."""

    def __init__(self, renderer: PageRenderer) -> None:
        state = renderer.state
        self._renderer = renderer
        self._app_context = state.app_context
        self._watch = LiveStatsReader(
            state.live_metrics, self._app_context.settings.server.data_dir, self._app_context.database
        )
        self._latest = LatestActivity()
        self._drawn = {name: _CachedCharts() for name in RangeName}
        self._health, self._health_at = ActivityHealth(), -math.inf
        self.live = LiveState(self.render)

    async def render(self) -> str:
        """Return the state as HTML; parts from PostgreSQL keep their last values while it is unavailable."""
        is_away = False
        settings = self._app_context.settings
        rules = settings.notifications.rules
        try:
            self._latest = await read_latest_activity(self._app_context, _LATEST)
            await self.charts(RangeName.HOUR)
            await self._read_health()
        except DatabaseError:
            is_away = True
        present = await self._watch.read()
        return self._renderer.render(
            "overview/state.html",
            present=present,
            recipients=sorted(present.recipients, key=lambda recipient: not self._is_failing(recipient.recipient)),
            failing_handlers=sum(
                health.state is HealthState.FAILING and name.startswith(HANDLER)
                for name, health in self._health.recipients.items()
            ),
            recipient_health=self._health.recipients,
            source_health=self._health.sources,
            health_title=STATS_RANGES[HANDLER_RANGE].title,
            source_health_title=STATS_RANGES[DEFAULT_RANGE].title,
            trends=self._drawn[RangeName.HOUR].trends,
            sources=list_sources(present, settings.sources),
            configured=sorted(settings.sources),
            channels=settings.notifications.channels,
            open_counts=self._latest.open_counts,
            events=self._latest.events,
            dead=self._latest.dead_letters,
            alerts=self._latest.firing[:_MAX_ALERTS],
            more_alerts=max(0, len(self._latest.firing) - _MAX_ALERTS),
            view=lambda alert: alert_view(alert, rules),
            is_away=is_away,
            every_s=int(REFRESH_INTERVAL_S),
            **_FORMATTERS,
        )

    def _is_failing(self, recipient: str) -> bool:
        health = self._health.recipients.get(recipient)
        return health is not None and health.state is HealthState.FAILING

    async def _read_health(self) -> None:
        if time.monotonic() - self._health_at >= CHART_RANGES[HANDLER_RANGE].cache_s:
            self._health = await read_activity_health(self._app_context.database, self._app_context.settings)
            self._health_at = time.monotonic()

    async def charts(self, name: RangeName) -> list[Chart]:
        """Return the charts of a range, rebuilt if the cache has expired."""
        drawn = self._drawn[name]
        async with drawn.drawing:
            if time.monotonic() - drawn.at >= CHART_RANGES[name].cache_s:
                drawn.charts, drawn.trends = await self._draw(CHART_RANGES[name])
                drawn.at = time.monotonic()
        return drawn.charts

    async def _draw(self, span: ChartRange) -> tuple[list[Chart], Mapping[str, Trend]]:
        now = datetime.now(UTC)
        # The figures show the last hour against the hour before.
        periods = 2 if span.name == RangeName.HOUR else 1
        samples = await read_since(self._app_context.database, now - periods * span.duration, span.step_s)
        charts = await asyncio.to_thread(build_charts, samples, span, now)
        return charts, await asyncio.to_thread(build_trends, samples, span, now)


_overviews: WeakKeyDictionary[PageRenderer, OverviewState] = WeakKeyDictionary()


def _overview_for(context: ConsoleContext) -> OverviewState:
    overview = _overviews.get(context.renderer)
    if overview is None:
        overview = _overviews[context.renderer] = OverviewState(context.renderer)
    return overview


@routes.get("", Permission.OVERVIEW_VIEW)
async def show_overview(context: ConsoleContext) -> Response:
    """Show the overview."""
    overview, span = _overview_for(context), _span(context)
    return context.page(
        "overview/index.html",
        state=await overview.live.now(),
        charts=await overview.charts(span),
        span=span,
        spans=list(RangeName),
    )


@routes.get("/overview/state", Permission.OVERVIEW_VIEW)
async def show_state(context: ConsoleContext) -> Response:
    """Return the current live state, for browsers without server-sent events."""
    return HTMLResponse(await _overview_for(context).live.now())


@routes.get("/overview/live", Permission.OVERVIEW_VIEW)
async def stream_state(context: ConsoleContext) -> Response:
    """Stream the live state on each change."""
    return stream_updates(context, _overview_for(context).live)


@routes.get("/overview/charts", Permission.OVERVIEW_VIEW)
async def show_charts(context: ConsoleContext) -> Response:
    """Return the charts alone, to replace older ones on the page."""
    span = _span(context)
    return context.page("overview/charts.html", charts=await _overview_for(context).charts(span), span=span)


def _span(context: ConsoleContext) -> RangeName:
    name = context.query.get("span", RangeName.HOUR)
    return RangeName(name) if name in CHART_RANGES else RangeName.HOUR


_FORMATTERS: Final = {
    "rate": format_rate,
    "span": format_duration,
    "size": format_size,
    "title": recipient_title,
    "oldest_due": oldest_due,
    "capped": show_capped,
}
