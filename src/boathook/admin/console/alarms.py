"""Alarms: what fires, what has, what is silenced, whom it is told, and what the rules see."""

from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from boathook.admin import alarms as actions
from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.domain.errors import InvalidValue
from boathook.domain.telling import show_number
from boathook.outbound.notifier import NotSent, Sent

routes = Routes()
_LIST: Final = f"{BASE}/alarms"
_HISTORY: Final = 50
_LENGTHS: Final = (
    ("1", "for an hour"),
    ("4", "for four hours"),
    ("24", "for a day"),
    ("168", "for a week"),
    ("720", "for 30 days"),
)


@routes.get("/alarms", Permission.ALARM_VIEW)
async def show(visit: Visit) -> Response:
    """Show all that fires, with channels, silences and rules."""
    return await _show(visit)


async def _show(visit: Visit, status: int = 200, error: InvalidValue | None = None) -> Response:
    async with visit.work() as work:
        found = await actions.read(work.connection, visit.desk.settings)
        ended = await actions.read_history(work.connection, limit=5)
    given = visit.form if error is not None else visit.query
    return visit.page(
        "alarms/list.html",
        status,
        found=found,
        ended=ended,
        view=_viewer(visit),
        number=show_number,
        lengths=_LENGTHS,
        wanted={name: str(given.get(name, usual)) for name, usual in _SILENCE.items()},
        error=error,
        where=str(error.where[0]) if error is not None and error.where else "",
    )


_SILENCE: Final = {"rule": "*", "subject": "*", "note": "", "length": "4"}


@routes.get("/alarms/history", Permission.ALARM_VIEW)
async def show_history(visit: Visit) -> Response:
    """Show alarms that have recovered, a page at a time."""
    before = asking.moment(visit.query, "before")
    async with visit.work() as work:
        ended = await actions.read_history(work.connection, before=before, limit=_HISTORY + 1)
    last = ended[_HISTORY - 1].recovered_at if len(ended) > _HISTORY else None
    more = asking.link(f"{_LIST}/history", {}, before=last.isoformat()) if last is not None else ""
    return visit.page("alarms/history.html", ended=ended[:_HISTORY], more=more, view=_viewer(visit), number=show_number)


@routes.post("/alarms/silences", Permission.ALARM_MANAGE)
async def silence(visit: Visit) -> Response:
    """Silence some alarms for a time."""
    form = visit.form
    try:
        async with visit.work() as work:
            made = await actions.silence(
                work,
                rule=str(form.get("rule", "")).strip(),
                subject=str(form.get("subject", "")).strip(),
                text=str(form.get("note", "")),
                length=_length(str(form.get("length", ""))),
            )
    except InvalidValue as error:
        return await _show(visit, 400, error)
    return visit.to(_LIST, f"Nobody is told of {made.rule} about {made.subject} until {made.until:%Y-%m-%d %H:%M} UTC.")


@routes.post("/alarms/silences/{id}/end", Permission.ALARM_MANAGE)
async def end_silence(visit: Visit) -> Response:
    """End a silence before its time."""
    async with visit.work() as work:
        await actions.end_silence(work, visit.path["id"])
    return visit.to(_LIST, "The silence has ended: what still fires is told.")


@routes.post("/alarms/channels/{name}/test", Permission.ALARM_MANAGE)
async def test_channel(visit: Visit) -> Response:
    """Send a channel a message that says it is a test."""
    name = visit.path["name"]
    async with visit.work() as work:
        await actions.note_test(work, name)
    match await actions.test_channel(visit.desk.settings, name, visit.actor):
        case Sent():
            return visit.to(_LIST, f"{name} has taken a test message.")
        case NotSent(error):
            return visit.to(_LIST, f"{name} could not be told: {error}", "bad")


def _viewer(visit: Visit) -> Any:
    rules = visit.desk.settings.notifications.rules
    return lambda alarm: actions.alarm_view(alarm, rules)


def _length(hours: str) -> timedelta:
    if hours not in {known for known, _ in _LENGTHS}:
        raise InvalidValue("choose one of these", "length")
    return timedelta(hours=int(hours))
