"""Pages on which an endpoint is tried out, and sent again what it missed, with their progress."""

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.responses import Response

from boathook.admin import endpoints, messages, tasks
from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.application_visits import Pages, Side
from boathook.admin.console.endpoints import known_types
from boathook.admin.tasks import Span
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.windows import after_message
from boathook.journal import attempts as attempt_journal
from boathook.journal.attempts import AttemptRow, Listing
from boathook.journal.tasks import Kind, Task, TaskState

pages = Pages()

PING: Final = "svix.ping"
_KINDS: Final = {
    Kind.RECOVER: "What failed is tried again",
    Kind.REPLAY_MISSING: "What was missed is sent",
    Kind.BULK_REPLAY: "Messages are sent once more",
}
_MOST_SHOWN: Final = 4_096


@pages.post("/endpoints/{endpoint}/test", Permission.ENDPOINT_TEST)
async def send_test(side: Side) -> Response:
    """Send an endpoint the example of an event type, and lead to what comes of it."""
    type = side.field("type") or PING
    async with side.work() as (work, application):
        if type != PING and type not in await known_types(side, work):
            raise NotFound(f"there is no event type {type}")
        endpoint = await endpoints.get(work, application, side.visit.path["endpoint"])
        sent = await messages.send_example(work, application, endpoint.shown_id, type)
    side.visit.desk.rouse()
    return side.to(f"/endpoints/{endpoint.shown_id}/tests/{sent.shown_id}")


@pages.get("/endpoints/{endpoint}/tests/{message}", Permission.MESSAGE_VIEW)
async def watch_test(side: Side) -> Response:
    """Show what came of a test, as soon as it has come."""
    async with side.work() as (work, application):
        endpoint = await endpoints.get(work, application, side.visit.path["endpoint"])
        message = await messages.get(work, application, side.visit.path["message"])
        found = await attempt_journal.list_some(
            work.connection,
            application.shown_id,
            Listing(window=after_message(message.id, datetime.now(UTC)), limit=1),
            message_id=message.id,
            endpoint_id=endpoint.id,
        )
    row = found.rows[0] if found.rows else None
    template = "endpoints/test_result.html" if side.visit.is_fragment else "endpoints/test.html"
    return side.page(
        template,
        application=application,
        endpoint=endpoint,
        message=message,
        row=row,
        attempt_id=None if row is None else ids.show(ids.ATTEMPT, row.id),
        answer=_snippet(row),
        at=ids.made_at(message.id),
    )


def _snippet(row: AttemptRow | None) -> str:
    return "" if row is None or not row.response else row.response[:_MOST_SHOWN].decode("utf-8", "replace")


@pages.post("/endpoints/{endpoint}/recover", Permission.MESSAGE_RESEND)
async def recover(side: Side) -> Response:
    """Try an endpoint's failed messages again, from a moment on."""
    async with side.work() as (work, application):
        task = await tasks.recover(work, application, side.visit.path["endpoint"], Span(_since(side)))
    return _to_task(side, task)


@pages.post("/endpoints/{endpoint}/replay-missing", Permission.MESSAGE_RESEND)
async def replay_missing(side: Side) -> Response:
    """Send an endpoint the messages that it was never owed, from a moment on."""
    async with side.work() as (work, application):
        task = await tasks.replay_missing(work, application, side.visit.path["endpoint"], Span(_since(side)))
    return _to_task(side, task)


def _since(side: Side) -> datetime:
    since = asking.moment(side.visit.form, "since")
    if since is None:
        raise InvalidValue("write a moment in UTC such as 2026-01-31T12:00", "since")
    return since.astimezone(UTC)


def _to_task(side: Side, task: Task) -> Response:
    return side.to(f"/endpoints/{side.visit.path['endpoint']}/tasks/{task.shown_id}")


@pages.get("/endpoints/{endpoint}/tasks/{task}", Permission.ENDPOINT_VIEW)
async def watch_task(side: Side) -> Response:
    """Show how far a task has come."""
    async with side.work() as (work, application):
        endpoint = await endpoints.get(work, application, side.visit.path["endpoint"])
        task = await tasks.get(work, side.visit.path["task"])
    if task.endpoint_id != endpoint.id:
        raise NotFound(f"there is no task {side.visit.path['task']}")
    template = "endpoints/task_progress.html" if side.visit.is_fragment else "endpoints/task.html"
    return side.page(
        template,
        application=application,
        endpoint=endpoint,
        task=task,
        title=_KINDS.get(task.kind, task.kind.value),
        is_running=task.state is TaskState.RUNNING,
        percent=percent_of(task),
    )


def percent_of(task: Task) -> int:
    """Return how much of a task's span of time has been gone through."""
    if task.state is TaskState.FINISHED:
        return 100
    if "after" not in task.place:
        return 0
    since, until = (datetime.fromisoformat(task.request[name]) for name in ("since", "until"))
    place = ids.made_at(ids.read(ids.MESSAGE, task.place["after"]))
    return round(100 * min(1.0, max(0.0, (place - since) / max(until - since, timedelta(milliseconds=1)))))
