"""Pages of alerts: active and recovered alerts, silences, channels and rules."""

from typing import Any, Final

from starlette.responses import Response

from boathook.domain.alerts import show_number
from boathook.domain.errors import InvalidValue
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import alerts as operations
from boathook.service.catalogue import silences
from boathook.service.catalogue.values import name_object
from boathook.service.operating import alerts as actions
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params

routes = Routes()
_LIST: Final = f"{BASE}/alerts"
_HISTORY: Final = 50
_SILENCE_DURATIONS: Final = (
    ("1", "for an hour"),
    ("4", "for four hours"),
    ("24", "for a day"),
    ("168", "for a week"),
    ("720", "for 30 days"),
)


@routes.get("/alerts", Permission.ALERT_VIEW)
async def show(context: ConsoleContext, status: int = 200, error: InvalidValue | None = None) -> Response:
    """Show all active alerts, with channels, silences and rules."""
    async with context.work() as work:
        overview = await actions.read_overview(work.connection, context.app_context.settings)
        recovered = await actions.read_history(work.connection, limit=5)
    values = context.form if error is not None else context.query
    return context.page(
        "alerts/list.html",
        status,
        found=overview,
        ended=recovered,
        view=_alert_formatter(context),
        number=show_number,
        lengths=_SILENCE_DURATIONS,
        wanted={name: str(values.get(name, usual)) for name, usual in _SILENCE_DEFAULTS.items()},
        error=error,
        where=str(error.where[0]) if error is not None and error.where else "",
    )


_SILENCE_DEFAULTS: Final = {"rule": "*", "subject": "*", "note": "", "length": "4"}


@routes.get("/alerts/history", Permission.ALERT_VIEW)
async def show_history(context: ConsoleContext) -> Response:
    """Show recovered alerts, in pages."""
    before = query_params.get_time(context.query, "before")
    async with context.work() as work:
        recovered = await actions.read_history(work.connection, before=before, limit=_HISTORY + 1)
    last = recovered[_HISTORY - 1].recovered_at if len(recovered) > _HISTORY else None
    more = query_params.build_url(f"{_LIST}/history", {}, before=last.isoformat()) if last is not None else ""
    return context.page(
        "alerts/history.html", ended=recovered[:_HISTORY], more=more, view=_alert_formatter(context), number=show_number
    )


@routes.post("/alerts/silences", Permission.ALERT_MANAGE)
async def silence(context: ConsoleContext) -> Response:
    """Silence matching alerts for a limited time."""
    try:
        async with context.work() as work:
            new = silences.NewSilence(
                rule=context.field("rule").strip(),
                subject=context.field("subject").strip(),
                note=context.field("note"),
                duration_seconds=_read_duration(context.field("length")),
            )
            created = await silences.create(work, new)
    except InvalidValue as error:
        return await show(context, 400, error)
    return context.to(
        _LIST, f"Alerts of {created.rule} for {created.subject} are silenced until {created.until:%Y-%m-%d %H:%M} UTC."
    )


@routes.post("/alerts/silences/{id}/end", Permission.ALERT_MANAGE)
async def end_silence(context: ConsoleContext) -> Response:
    """End a silence early."""
    async with context.work() as work:
        await silences.end(work, name_object(silences.SilenceNamed, context.path["id"]))
    return context.to(_LIST, "The silence has ended. Alerts that still fire are sent again.")


@routes.post("/alerts/channels/{name}/test", Permission.ALERT_MANAGE)
async def test_channel(context: ConsoleContext) -> Response:
    """Send a test message to a channel."""
    name = context.path["name"]
    async with context.work() as work:
        tested = await operations.test(work, operations.ChannelNamed(channel=name))
    if tested.sent:
        return context.to(_LIST, f"{name} accepted the test message.")
    return context.to(_LIST, f"{name} rejected the test message: {tested.error}", "bad")


def _alert_formatter(context: ConsoleContext) -> Any:
    rules = context.app_context.settings.notifications.rules
    return lambda alert: actions.alert_view(alert, rules)


def _read_duration(hours: str) -> int:
    """Return the seconds of a duration. Raises InvalidValue."""
    if hours not in {duration for duration, _ in _SILENCE_DURATIONS}:
        raise InvalidValue("choose one of these", "length")
    return int(hours) * 3_600
