"""Pages that act on an endpoint: reveal and rotate its secret, test it, recover and replay messages."""

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.windows import after_message
from boathook.pages import query_params
from boathook.pages.application_pages import ApplicationScope, Pages
from boathook.pages.endpoints import GRACE_PERIODS, list_type_names
from boathook.service import attempts, endpoint_secrets, endpoints, messages, tasks
from boathook.service.applications import Application
from boathook.service.attempts import AttemptRow
from boathook.service.authorization import Permission
from boathook.service.endpoints import Endpoint
from boathook.service.tasks import Task, TaskOperation, TaskState, TimeRange
from boathook.service.unit_of_work import UnitOfWork

pages = Pages()


@pages.post("/endpoints/{endpoint}/secret", Permission.ENDPOINT_SECRET_VIEW)
async def reveal_secret(scope: ApplicationScope) -> Response:
    """Show the verification secret; the access is recorded in the audit log."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        secret = await endpoint_secrets.reveal_secret(work, application, endpoint.shown_id)
    return scope.page("endpoints/secret.html", application=application, endpoint=endpoint, secret=secret)


@pages.post("/endpoints/{endpoint}/headers", Permission.ENDPOINT_HEADERS_VIEW)
async def reveal_headers(scope: ApplicationScope) -> Response:
    """Show the headers sent with each message, without credentials; the access is recorded in the audit log."""
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        headers = await endpoint_secrets.reveal_headers(work, application, endpoint.shown_id)
    return scope.page("endpoints/headers.html", application=application, endpoint=endpoint, headers=headers)


@pages.post("/endpoints/{endpoint}/rotate", Permission.ENDPOINT_SECRET_ROTATE)
async def rotate_secret(scope: ApplicationScope) -> Response:
    """Rotate the secret of an endpoint; messages are also signed with the old one during the grace period."""
    grace = scope.field("grace")
    if grace not in dict(GRACE_PERIODS):
        raise InvalidValue(f"choose one of {', '.join(dict(GRACE_PERIODS))} seconds", "grace")
    async with scope.work() as (work, application):
        endpoint = await _get(scope, work, application)
        await endpoint_secrets.rotate_secret(work, application, endpoint.shown_id, grace=timedelta(seconds=int(grace)))
    along = "" if grace == "0" else f" The old secret stays valid for {dict(GRACE_PERIODS)[grace]}."
    return scope.to(f"/endpoints/{endpoint.shown_id}", f"Secret rotated.{along}")


async def _get(scope: ApplicationScope, work: UnitOfWork, application: Application) -> Endpoint:
    return await endpoints.get(work, application, scope.context.path["endpoint"])


_TASK_TITLES: Final = {
    TaskOperation.RECOVER: "Recover failed messages",
    TaskOperation.REPLAY_MISSING: "Replay missing messages",
    TaskOperation.BULK_REPLAY: "Resend messages",
}
_MAX_SHOWN_BYTES: Final = 4_096


@pages.post("/endpoints/{endpoint}/test", Permission.ENDPOINT_TEST)
async def send_test(scope: ApplicationScope) -> Response:
    """Send the example of an event type to an endpoint, and redirect to the result."""
    type = scope.field("type") or messages.PING
    async with scope.work() as (work, application):
        if type != messages.PING and type not in await list_type_names(scope, work):
            raise NotFound(f"unknown event type {type}")
        endpoint = await endpoints.get(work, application, scope.context.path["endpoint"])
        sent = await messages.send_example(work, application, endpoint.shown_id, type)
    scope.context.app_context.notify_due()
    return scope.to(f"/endpoints/{endpoint.shown_id}/tests/{sent.shown_id}")


@pages.get("/endpoints/{endpoint}/tests/{message}", Permission.MESSAGE_VIEW)
async def show_test(scope: ApplicationScope) -> Response:
    """Show the result of a test, once it is available."""
    async with scope.work() as (work, application):
        endpoint = await endpoints.get(work, application, scope.context.path["endpoint"])
        message = await messages.get(work, application, scope.context.path["message"])
        window = after_message(message.id, datetime.now(UTC))
        found = await attempts.list_page(
            work, application, window, message=message.shown_id, endpoint=endpoint.shown_id, limit=1
        )
    row = found.rows[0] if found.rows else None
    template = "endpoints/test_result.html" if scope.context.is_fragment else "endpoints/test.html"
    return scope.page(
        template,
        application=application,
        endpoint=endpoint,
        message=message,
        row=row,
        attempt_id=None if row is None else ids.show(ids.ATTEMPT, row.id),
        answer=_snippet(row),
        at=ids.created_at(message.id),
    )


def _snippet(row: AttemptRow | None) -> str:
    return "" if row is None or not row.response else row.response[:_MAX_SHOWN_BYTES].decode("utf-8", "replace")


@pages.post("/endpoints/{endpoint}/recover", Permission.MESSAGE_RESEND)
async def recover(scope: ApplicationScope) -> Response:
    """Retry an endpoint's failed messages since a given time."""
    async with scope.work() as (work, application):
        task = await tasks.recover(work, application, scope.context.path["endpoint"], TimeRange(_since(scope)))
    return _to_task(scope, task)


@pages.post("/endpoints/{endpoint}/replay-missing", Permission.MESSAGE_RESEND)
async def replay_missing(scope: ApplicationScope) -> Response:
    """Send an endpoint the matching messages since a given time that it was never sent."""
    async with scope.work() as (work, application):
        task = await tasks.replay_missing(work, application, scope.context.path["endpoint"], TimeRange(_since(scope)))
    return _to_task(scope, task)


def _since(scope: ApplicationScope) -> datetime:
    since = query_params.get_time(scope.context.form, "since")
    if since is None:
        raise InvalidValue("enter a UTC time such as 2026-01-31T12:00", "since")
    return since.astimezone(UTC)


def _to_task(scope: ApplicationScope, task: Task) -> Response:
    return scope.to(f"/endpoints/{scope.context.path['endpoint']}/tasks/{task.shown_id}")


@pages.get("/endpoints/{endpoint}/tasks/{task}", Permission.ENDPOINT_VIEW)
async def show_task(scope: ApplicationScope) -> Response:
    """Show the progress of a task."""
    async with scope.work() as (work, application):
        endpoint = await endpoints.get(work, application, scope.context.path["endpoint"])
        task = await tasks.get(work, scope.context.path["task"])
    if task.endpoint_id != endpoint.id:
        raise NotFound(f"there is no task {scope.context.path['task']}")
    template = "endpoints/task_progress.html" if scope.context.is_fragment else "endpoints/task.html"
    return scope.page(
        template,
        application=application,
        endpoint=endpoint,
        task=task,
        title=_TASK_TITLES.get(task.kind, task.kind.value),
        is_running=task.state is TaskState.RUNNING,
        percent=percent_done(task),
    )


def percent_done(task: Task) -> int:
    """Return the processed percentage of a task's time range."""
    if task.state is TaskState.FINISHED:
        return 100
    if "after" not in task.place:
        return 0
    since, until = (datetime.fromisoformat(task.request[name]) for name in ("since", "until"))
    reached = ids.created_at(ids.read(ids.MESSAGE, task.place["after"]))
    return round(100 * min(1.0, max(0.0, (reached - since) / max(until - since, timedelta(milliseconds=1)))))
