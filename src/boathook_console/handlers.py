"""Pages of handlers: a list, and one page for each with its figures, queue and latest failures."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response

from boathook.domain.health import HealthState
from boathook.domain.plurals import counted
from boathook.service.access.authorization import Permission
from boathook.service.operating import app_metrics, recipient_stats
from boathook.service.operating.live_stats import format_rate
from boathook.service.operating.recipient_stats import HANDLER_RANGE, STATS_RANGES, HandlerSummary
from boathook_console.overview import oldest_due
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared.attempt_charts import attempt_values, format_ms, range_values, read_range

routes = Routes()
HANDLERS_PATH: Final = f"{BASE}/handlers"
_ORDER: Final = (
    HealthState.FAILING,
    HealthState.PAUSED,
    HealthState.NOT_REGISTERED,
    HealthState.DISABLED,
    HealthState.HEALTHY,
    HealthState.IDLE,
)
"""The order of a list: handlers in trouble first."""


def health_sentence(summary: HandlerSummary, now: datetime) -> str:
    """Return what the health of a handler means."""
    match summary.health.state:
        case HealthState.NOT_REGISTERED:
            return "No app declares this handler any more. Its deliveries wait until one does."
        case HealthState.PAUSED:
            names = ", ".join(summary.open_breakers)
            pause = summary.health.pause_text(now)
            return f"The circuit breaker of {names} is open ({pause}); deliveries wait until a probe succeeds."
        case HealthState.FAILING:
            return f"The newest attempt failed, as did {100 * summary.attempts.error_share:.0f} % of the attempts."
        case HealthState.IDLE:
            return "No attempts."
        case _:
            return "Healthy."


@routes.get("/handlers", Permission.HANDLER_VIEW)
async def list_handlers(context: ConsoleContext) -> Response:
    """Show every handler with its health, those in trouble first."""
    range_name = read_range(context.query, HANDLER_RANGE)
    summaries = await recipient_stats.list_handlers(context.app_context, STATS_RANGES[range_name], datetime.now(UTC))
    rows = sorted(summaries, key=lambda summary: _ORDER.index(summary.health.state))
    return context.page(
        "handlers/list.html",
        apps=app_metrics.list_apps(),
        rows=rows,
        sentence=_summarize(rows),
        oldest_due=oldest_due,
        path=HANDLERS_PATH,
        format_rate=format_rate,
        took=format_ms,
        **range_values(range_name),
    )


def _summarize(rows: Sequence[HandlerSummary]) -> str:
    counts = Counter(row.health.state for row in rows)
    parts = [f"{counts[state]} {state}" for state in _ORDER if counts[state]]
    return f"{', '.join(parts)}, of {counted(len(rows), 'handler')}."


@routes.get("/handlers/{handler:path}", Permission.HANDLER_VIEW)
async def show_handler(context: ConsoleContext) -> Response:
    """Show one handler."""
    range_name, now = read_range(context.query, HANDLER_RANGE), datetime.now(UTC)
    stats = await recipient_stats.read_handler(
        context.app_context, context.path["handler"], STATS_RANGES[range_name], now
    )
    return context.page(
        "handlers/show.html",
        handler=stats.summary,
        recipient=f"{recipient_stats.HANDLER}{stats.summary.name}",
        health=stats.summary.health,
        sentence=health_sentence(stats.summary, datetime.now(UTC)),
        backlog=stats.backlog,
        breakers=stats.summary.breakers,
        failures=stats.failures,
        path=HANDLERS_PATH,
        **attempt_values(stats.summary.attempts, range_name),
    )
