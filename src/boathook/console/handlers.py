"""Pages of handlers: a list, and one page for each with its figures, queue and latest failures."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from starlette.responses import Response

from boathook.console.overview import recipient_health
from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.pages.attempt_charts import attempt_values, format_ms, range_values, read_range
from boathook.service import recipient_stats
from boathook.service.authorization import Permission
from boathook.service.live_stats import format_rate
from boathook.service.recipient_stats import STATS_RANGES, HandlerSummary, RangeName

routes = Routes()
HANDLERS_PATH: Final = f"{BASE}/handlers"
_KINDS: Final = ("bad", "warn", "good")


class HandlerStatus(msgspec.Struct, frozen=True):
    """The status of a handler."""

    word: str
    kind: str
    """The class of its badge."""
    sentence: str
    oldest: str
    """How long its oldest due delivery has been due; empty if none is due."""


def handler_status(one: HandlerSummary) -> HandlerStatus:
    """Return the status of a handler by its circuit breaker, its latest attempts and its backlog."""
    health = recipient_health(one.activity)
    if not one.routes:
        text = "No app declares this handler any more. Its deliveries wait until one does."
        return HandlerStatus("not registered", "warn", text, health.oldest)
    if one.open_breakers:
        text = f"The circuit breaker of {', '.join(one.open_breakers)} is open; deliveries wait until a probe succeeds."
        return HandlerStatus("paused", "bad", text, health.oldest)
    text = {
        "failing": f"{100 * health.failing_share:.0f} % of the latest attempts failed.",
        "delayed": f"Deliveries wait: the oldest has been due for {health.oldest}.",
        "retrying": "Some of the latest attempts failed and are retried.",
    }.get(health.word, "Healthy.")
    return HandlerStatus(health.word, health.kind, text, health.oldest)


@routes.get("/handlers", Permission.HANDLER_VIEW)
async def list_handlers(context: ConsoleContext) -> Response:
    """Show every handler with its health, those in trouble first."""
    chosen = read_range(context.query, RangeName.HOUR)
    found = await recipient_stats.list_handlers(context.app_context, STATS_RANGES[chosen], datetime.now(UTC))
    rows = sorted(((one, handler_status(one)) for one in found), key=lambda row: _KINDS.index(row[1].kind))
    return context.page(
        "handlers/list.html",
        rows=rows,
        sentence=_summarize([status for _, status in rows]),
        path=HANDLERS_PATH,
        format_rate=format_rate,
        took=format_ms,
        **range_values(chosen),
    )


def _summarize(found: Sequence[HandlerStatus]) -> str:
    counts = {word: sum(one.word == word for one in found) for word in dict.fromkeys(one.word for one in found)}
    troubled = [f"{number} {word}" for word, number in counts.items() if word != "healthy"]
    return f"{', '.join(troubled)}, of {len(found)} handlers." if troubled else "All handlers are healthy."


@routes.get("/handlers/{handler:path}", Permission.HANDLER_VIEW)
async def show_handler(context: ConsoleContext) -> Response:
    """Show one handler."""
    chosen, now = read_range(context.query, RangeName.HOUR), datetime.now(UTC)
    found = await recipient_stats.read_handler(context.app_context, context.path["handler"], STATS_RANGES[chosen], now)
    return context.page(
        "handlers/show.html",
        handler=found.summary,
        recipient=f"{recipient_stats.HANDLER}{found.summary.name}",
        health=handler_status(found.summary),
        backlog=found.backlog,
        breakers=found.summary.breakers,
        failures=found.failures,
        path=HANDLERS_PATH,
        **attempt_values(found.summary.attempts, chosen),
    )
