"""The first page: what goes on at this moment, live, and how the last hour, day or week went."""

import asyncio
import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from weakref import WeakKeyDictionary

from starlette.responses import HTMLResponse, Response

from boathook.admin.alarms import alarm_view, list_firing
from boathook.admin.authorization import Permission
from boathook.admin.console.charts import SPANS, Chart, Span, SpanName, draw
from boathook.admin.console.frame import Frame
from boathook.admin.console.live import EVERY_S, Live, stream
from boathook.admin.console.pages import Routes, Visit
from boathook.admin.present import Watch, recipient_title, show_rate, show_size, show_span
from boathook.domain.errors import JournalError
from boathook.journal.alarms import Alarm
from boathook.journal.latest import LatestDead, LatestEvent, read_latest_dead, read_latest_events
from boathook.journal.samples import read_since

routes = Routes()

_LATEST: Final = 6
_MOST_ALARMS: Final = 8


@dataclass(slots=True)
class _Drawn:
    """The charts of one span, and when they were drawn."""

    at: float = -math.inf
    charts: list[Chart] = field(default_factory=list)
    drawing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Board:
    """What the page shows, produced once for all who look at it in a process."""

    def __init__(self, frame: Frame) -> None:
        state = frame.state
        self._frame = frame
        self._database = state.desk.database
        self._watch = Watch(state.history, state.desk.settings.server.data_dir, self._database)
        self._events: list[LatestEvent] = []
        self._dead: list[LatestDead] = []
        self._alarms: list[Alarm] = []
        self._drawn = {name: _Drawn() for name in SpanName}
        self.live = Live(self._look)

    async def _look(self) -> str:
        """Return the state as a part of the page; what PostgreSQL does not tell is as it was."""
        is_away = False
        rules = self._frame.state.desk.settings.notifications.rules
        try:
            self._events = await read_latest_events(self._database, _LATEST)
            self._dead = await read_latest_dead(self._database, _LATEST)
            async with self._database.acquire() as connection:
                self._alarms = await list_firing(connection)
        except JournalError:
            is_away = True
        return self._frame.render(
            "now/state.html",
            present=await self._watch.look(),
            events=self._events,
            dead=self._dead,
            alarms=self._alarms[:_MOST_ALARMS],
            more_alarms=max(0, len(self._alarms) - _MOST_ALARMS),
            view=lambda alarm: alarm_view(alarm, rules),
            is_away=is_away,
            every_s=int(EVERY_S),
            **_SHOWN,
        )

    async def charts(self, name: SpanName) -> list[Chart]:
        """Return the charts of a span, drawn anew where they are not good any more."""
        drawn = self._drawn[name]
        async with drawn.drawing:
            if time.monotonic() - drawn.at >= SPANS[name].fresh_s:
                drawn.charts = await self._draw(SPANS[name])
                drawn.at = time.monotonic()
        return drawn.charts

    async def _draw(self, span: Span) -> list[Chart]:
        now = datetime.now(UTC)
        samples = await read_since(self._database, now - span.reach, span.step_s)
        return await asyncio.to_thread(draw, samples, span, now)


_boards: WeakKeyDictionary[Frame, Board] = WeakKeyDictionary()


def _board(visit: Visit) -> Board:
    board = _boards.get(visit.frame)
    if board is None:
        board = _boards[visit.frame] = Board(visit.frame)
    return board


@routes.get("", Permission.DASHBOARD_VIEW)
async def show_now(visit: Visit) -> Response:
    """Show the page."""
    board, span = _board(visit), _span(visit)
    return visit.page(
        "now/index.html",
        state=await board.live.now(),
        charts=await board.charts(span),
        span=span,
        spans=list(SpanName),
    )


@routes.get("/now/state", Permission.DASHBOARD_VIEW)
async def show_state(visit: Visit) -> Response:
    """Return what is live as it is now, for browsers that cannot be told."""
    return HTMLResponse(await _board(visit).live.now())


@routes.get("/now/live", Permission.DASHBOARD_VIEW)
async def tell_state(visit: Visit) -> Response:
    """Tell what is live whenever it changes."""
    return stream(visit, _board(visit).live)


@routes.get("/now/charts", Permission.DASHBOARD_VIEW)
async def show_charts(visit: Visit) -> Response:
    """Return the charts alone, to be put in place of older ones."""
    span = _span(visit)
    return visit.page("now/charts.html", charts=await _board(visit).charts(span), span=span)


def _span(visit: Visit) -> SpanName:
    name = visit.query.get("span", SpanName.HOUR)
    return SpanName(name) if name in SPANS else SpanName.HOUR


_SHOWN: Final = {
    "rate": show_rate,
    "span": show_span,
    "size": show_size,
    "title": recipient_title,
}
