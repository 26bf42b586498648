"""The first page: what goes on at this moment, live, and how the last hour, day or week went."""

import asyncio
import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from weakref import WeakKeyDictionary

from starlette.responses import HTMLResponse, Response

from boathook.console.charts import CHART_RANGES, Chart, ChartRange, ChartRangeName, build_charts
from boathook.console.live import REFRESH_INTERVAL_S, LiveState, stream_updates
from boathook.console.rendering import PageRenderer
from boathook.console.routes import ConsoleContext, Routes
from boathook.domain.errors import DatabaseError
from boathook.service.alerts import alert_view
from boathook.service.authorization import Permission
from boathook.service.dashboard import LatestActivity, read_latest, read_samples
from boathook.service.live_stats import LiveStatsReader, format_duration, format_rate, format_size, recipient_title

routes = Routes()

_LATEST: Final = 6
_MAX_ALERTS: Final = 8


@dataclass(slots=True)
class _CachedCharts:
    """The charts of one span, and when they were drawn."""

    at: float = -math.inf
    charts: list[Chart] = field(default_factory=list)
    drawing: asyncio.Lock = field(default_factory=asyncio.Lock)


class DashboardState:
    """What the page shows, produced once for all who look at it in a process."""

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
        """Return the state as a part of the page; what PostgreSQL does not tell is as it was."""
        is_away = False
        rules = self._app_context.settings.notifications.rules
        try:
            self._latest = await read_latest(self._app_context, _LATEST)
        except DatabaseError:
            is_away = True
        return self._renderer.render(
            "now/state.html",
            present=await self._watch.read(),
            events=self._latest.events,
            dead=self._latest.dead_letters,
            alarms=self._latest.firing[:_MAX_ALERTS],
            more_alarms=max(0, len(self._latest.firing) - _MAX_ALERTS),
            view=lambda alarm: alert_view(alarm, rules),
            is_away=is_away,
            every_s=int(REFRESH_INTERVAL_S),
            **_FORMATTERS,
        )

    async def charts(self, name: ChartRangeName) -> list[Chart]:
        """Return the charts of a span, drawn anew where they are not good any more."""
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
    """Show the page."""
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
    """Return what is live as it is now, for browsers that cannot be told."""
    return HTMLResponse(await _dashboard_for(context).live.now())


@routes.get("/now/live", Permission.DASHBOARD_VIEW)
async def stream_state(context: ConsoleContext) -> Response:
    """Tell what is live whenever it changes."""
    return stream_updates(context, _dashboard_for(context).live)


@routes.get("/now/charts", Permission.DASHBOARD_VIEW)
async def show_charts(context: ConsoleContext) -> Response:
    """Return the charts alone, to be put in place of older ones."""
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
