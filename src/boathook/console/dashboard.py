"""The dashboard: live figures, and charts of the last hour, day or week."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from weakref import WeakKeyDictionary

from starlette.responses import HTMLResponse, Response

from boathook.console.live import REFRESH_INTERVAL_S, LiveState, stream_updates
from boathook.console.routes import ConsoleContext, Routes
from boathook.domain.errors import DatabaseError
from boathook.observability.metric_snapshot import MetricSnapshot
from boathook.pages.rendering import PageRenderer
from boathook.service.alerts import alert_view
from boathook.service.authorization import Permission
from boathook.service.live_stats import (
    LatestActivity,
    LiveStatsReader,
    Sample,
    format_duration,
    format_rate,
    format_size,
    read_latest_activity,
    read_samples,
    recipient_title,
)

Number = float | None


@dataclass(frozen=True, slots=True)
class ChartRange:
    """The time range and resolution of charts."""

    name: str
    duration: timedelta
    step_s: int
    cache_s: float
    """Seconds for which the charts are cached."""


class ChartRangeName(StrEnum):
    """The names of the ranges."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


CHART_RANGES: Final = {
    ChartRangeName.HOUR: ChartRange("hour", timedelta(hours=1), 30, 10.0),
    ChartRangeName.DAY: ChartRange("day", timedelta(days=1), 600, 60.0),
    ChartRangeName.WEEK: ChartRange("week", timedelta(days=7), 3600, 300.0),
}


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One line of a chart."""

    title: str
    value_of: Callable[[MetricSnapshot], Number]


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """The definition of a chart."""

    key: str
    title: str
    unit: str
    lines: tuple[ChartSeries, ...]


@dataclass(frozen=True, slots=True)
class Chart:
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
        ChartSeries("accepted", _each_second(lambda snapshot: snapshot.arrived.accepted)),
        ChartSeries("deliveries done", _each_second(lambda one: one.worked.succeeded + one.worked.ignored)),
        ChartSeries("requests to endpoints", _each_second(lambda snapshot: snapshot.sends.ended)),
    )),
    ChartSpec("ack", "Acknowledgement", "milliseconds", (
        ChartSeries("p50", _ack_quantile_ms(0.5)),
        ChartSeries("p99", _ack_quantile_ms(0.99)),
    )),
    ChartSpec("backlog", "Backlog", "deliveries, maximum per step", (
        ChartSeries("due", lambda snapshot: snapshot.backlog.due),
        ChartSeries("later", lambda snapshot: snapshot.backlog.later),
        ChartSeries("dead", lambda snapshot: snapshot.backlog.dead),
        ChartSeries("in the spool", lambda snapshot: snapshot.gauge("boathook_spool_events")),
    )),
    ChartSpec("trouble", "Trouble", "per minute", (
        ChartSeries("attempts failed", _each_minute(lambda snapshot: snapshot.worked.failed)),
        ChartSeries("requests rejected", _each_minute(lambda snapshot: snapshot.arrived.rejected)),
        ChartSeries("answered 5xx", _each_minute(lambda snapshot: snapshot.arrived.faults)),
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


routes = Routes()

_LATEST: Final = 6
_MAX_ALERTS: Final = 8


@dataclass(slots=True)
class _CachedCharts:
    """The cached charts of one range, with their time."""

    at: float = -math.inf
    charts: list[Chart] = field(default_factory=list)
    drawing: asyncio.Lock = field(default_factory=asyncio.Lock)


class DashboardState:
    """The state of the dashboard, rendered once for all its viewers in a process."""

    def __init__(self, renderer: PageRenderer) -> None:
        state = renderer.state
        self._renderer = renderer
        self._app_context = state.app_context
        self._watch = LiveStatsReader(
            state.live_metrics, self._app_context.settings.server.data_dir, self._app_context.database
        )
        self._latest = LatestActivity()
        self._drawn = {name: _CachedCharts() for name in ChartRangeName}
        self.live = LiveState(self._render)

    async def _render(self) -> str:
        """Return the state as HTML; parts from PostgreSQL keep their last values while it is unavailable."""
        is_away = False
        rules = self._app_context.settings.notifications.rules
        try:
            self._latest = await read_latest_activity(self._app_context, _LATEST)
        except DatabaseError:
            is_away = True
        return self._renderer.render(
            "now/state.html",
            present=await self._watch.read(),
            events=self._latest.events,
            dead=self._latest.dead_letters,
            alerts=self._latest.firing[:_MAX_ALERTS],
            more_alerts=max(0, len(self._latest.firing) - _MAX_ALERTS),
            view=lambda alert: alert_view(alert, rules),
            is_away=is_away,
            every_s=int(REFRESH_INTERVAL_S),
            **_FORMATTERS,
        )

    async def charts(self, name: ChartRangeName) -> list[Chart]:
        """Return the charts of a range, rebuilt if the cache has expired."""
        drawn = self._drawn[name]
        async with drawn.drawing:
            if time.monotonic() - drawn.at >= CHART_RANGES[name].cache_s:
                drawn.charts = await self._draw(CHART_RANGES[name])
                drawn.at = time.monotonic()
        return drawn.charts

    async def _draw(self, span: ChartRange) -> list[Chart]:
        now = datetime.now(UTC)
        samples = await read_samples(self._app_context, now - span.duration, span.step_s)
        return await asyncio.to_thread(build_charts, samples, span, now)


_dashboards: WeakKeyDictionary[PageRenderer, DashboardState] = WeakKeyDictionary()


def _dashboard_for(context: ConsoleContext) -> DashboardState:
    dashboard = _dashboards.get(context.renderer)
    if dashboard is None:
        dashboard = _dashboards[context.renderer] = DashboardState(context.renderer)
    return dashboard


@routes.get("", Permission.DASHBOARD_VIEW)
async def show_dashboard(context: ConsoleContext) -> Response:
    """Show the dashboard."""
    dashboard, span = _dashboard_for(context), _span(context)
    return context.page(
        "now/index.html",
        state=await dashboard.live.now(),
        charts=await dashboard.charts(span),
        span=span,
        spans=list(ChartRangeName),
    )


@routes.get("/now/state", Permission.DASHBOARD_VIEW)
async def show_state(context: ConsoleContext) -> Response:
    """Return the current live state, for browsers without server-sent events."""
    return HTMLResponse(await _dashboard_for(context).live.now())


@routes.get("/now/live", Permission.DASHBOARD_VIEW)
async def stream_state(context: ConsoleContext) -> Response:
    """Stream the live state on each change."""
    return stream_updates(context, _dashboard_for(context).live)


@routes.get("/now/charts", Permission.DASHBOARD_VIEW)
async def show_charts(context: ConsoleContext) -> Response:
    """Return the charts alone, to replace older ones on the page."""
    span = _span(context)
    return context.page("now/charts.html", charts=await _dashboard_for(context).charts(span), span=span)


def _span(context: ConsoleContext) -> ChartRangeName:
    name = context.query.get("span", ChartRangeName.HOUR)
    return ChartRangeName(name) if name in CHART_RANGES else ChartRangeName.HOUR


_FORMATTERS: Final = {
    "rate": format_rate,
    "span": format_duration,
    "size": format_size,
    "title": recipient_title,
}
