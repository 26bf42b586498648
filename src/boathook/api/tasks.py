"""Routes of background tasks and bulk jobs: start tasks, read the progress of both, and stop bulk jobs."""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path, Query
from pydantic import AfterValidator, Field
from starlette.responses import Response

from boathook.api.endpoints import EndpointRef
from boathook.api.errors import answer_json
from boathook.api.pages import IdPage, ListOf, id_page
from boathook.api.route import AnyCall, ApplicationCall, router
from boathook.api.time_ranges import answer_page, check_status_class
from boathook.domain import ids
from boathook.domain.endpoints import check_channels, check_tags
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.windows import MAX_WINDOW, Window
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import jobs, messages, recovery
from boathook.service.catalogue.jobs import Job, JobNamed
from boathook.service.catalogue.messages import Expunge
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.recovery import StartedTask
from boathook.service.catalogue.values import name_object
from boathook.service.operating import tasks
from boathook.service.operating.tasks import API_OPERATIONS, Task, TaskOperation, TaskState, TimeRange
from boathook.service.schemas.fields import (
    Input,
    Output,
    StrictBoolOrNull,
    StrictInt,
    Timestamp,
    TypeName,
    format_timestamp,
)

routes = router("Endpoint")
background = router("Background Tasks")
statistics = router("Statistics")
expunging = router("Message")
bulk = router("Bulk Job")

_LAST: Final = UUID(int=(1 << 128) - 1)

TaskPage = Annotated[IdPage, id_page(ids.TASK)]
JobRef = Annotated[str, Path(description="The bulk job's id.", examples=["qtask_01h455vb4pex5vsknk084sn02q4"])]


class SpanIn(Input):
    """A time range."""

    since: Timestamp
    until: Timestamp | None = Field(default=None, description="Now, if left out.")

    def value(self) -> TimeRange:
        """Return the range as service functions take it."""
        return TimeRange(self.since, self.until)


class ResendSpanIn(SpanIn):
    """When messages were published."""

    dry_run: StrictBoolOrNull = Field(default=False, description="Only count the messages; answered with 200.")


class RecoverIn(ResendSpanIn):
    """When the failed messages were published; at most 14 days."""


class ReplayIn(ResendSpanIn):
    """When the messages were published."""


class BulkReplayIn(ResendSpanIn):
    """The messages to resend."""

    event_types: list[TypeName] | None = None
    channel: Annotated[str, AfterValidator(lambda name: check_channels([name])[0])] | None = None
    tag: Annotated[str, AfterValidator(lambda name: check_tags([name])[0])] | None = None
    status: Annotated[StrictInt, Field(ge=0, le=4)] | None = Field(
        default=None, description="0 success, 2 failed, 4 canceled."
    )
    status_code_class: Annotated[StrictInt, AfterValidator(check_status_class)] | None = Field(
        default=None, description="Only messages whose last attempt had such a status; 0: no response."
    )

    def filters(self) -> Mapping[str, Any]:
        """Return the filters besides the time range, as service functions take them."""
        return {
            "types": self.event_types or None,
            "channel": self.channel,
            "tag": self.tag,
            "status": self.status,
            "status_class": self.status_code_class,
        }


class TaskKind(StrEnum):
    """The operation of a task that this API can start."""

    RECOVER = TaskOperation.RECOVER
    REPLAY_MISSING = TaskOperation.REPLAY_MISSING
    BULK_REPLAY = TaskOperation.BULK_REPLAY
    PURGE_CONTENT = TaskOperation.PURGE_CONTENT
    AGGREGATE_TYPES = TaskOperation.AGGREGATE_TYPES
    COUNT_USAGE = TaskOperation.COUNT_USAGE


class TaskOut(Output):
    """A background task."""

    id: str = Field(examples=["qtask_01h455vb4pex5vsknk084sn02q4"])
    status: TaskState
    task: TaskKind
    updated_at: Timestamp


class ResendCountOut(Output):
    """How many messages a task would send."""

    task: TaskKind
    dry_run: bool
    matching: int
    has_more: bool = Field(description="Whether there may be more: counting ends after 2 s.")


_COUNTED: Final[Mapping[int | str, Any]] = {200: {"model": ResendCountOut, "description": "The messages were counted"}}


class BackgroundTaskOut(TaskOut):
    """A background task and its result."""

    data: dict[str, Any]


class UsageIn(SpanIn):
    """The applications and the time range for which deliveries are counted."""

    until: Timestamp
    app_ids: list[str] | None = Field(default=None, max_length=10_000, description="Ids or uids; by default all.")


class UsageOut(TaskOut):
    """A background task that counts deliveries."""

    unresolved_app_ids: list[str] = Field(description="Entries of appIds that match no application.")


def _show_task(task: Task) -> dict[str, Any]:
    """Return a task as the API shows it."""
    return {
        "id": task.shown_id,
        "status": task.state.value,
        "task": task.kind.value,
        "updatedAt": format_timestamp(task.updated_at),
    }


def _show_whole(task: Task) -> dict[str, Any]:
    return _show_task(task) | {"data": task.data}


@routes.post(
    "/app/{app_id}/endpoint/{endpoint_id}/recover",
    status_code=202,
    operation_id="v1.endpoint.recover",
    summary="Recover failed messages",
    response_model=TaskOut,
    responses=dict(_COUNTED),
)
@requires(Permission.MESSAGE_RESEND)
async def recover(call: ApplicationCall, endpoint_id: EndpointRef, body: RecoverIn) -> Response:
    """Attempt each failed message of an endpoint in a time range once, in the background."""
    return await _start(call, recovery.recover, recovery.Span, endpoint_id, body)


@routes.post(
    "/app/{app_id}/endpoint/{endpoint_id}/replay-missing",
    status_code=202,
    operation_id="v1.endpoint.replay-missing",
    summary="Replay missing messages",
    response_model=TaskOut,
    responses=dict(_COUNTED),
)
@requires(Permission.MESSAGE_RESEND)
async def replay_missing(call: ApplicationCall, endpoint_id: EndpointRef, body: ReplayIn) -> Response:
    """Send an endpoint, with its retry schedule, matching messages of a time range that it was never sent."""
    return await _start(call, recovery.replay_missing, recovery.Span, endpoint_id, body)


@routes.post(
    "/app/{app_id}/endpoint/{endpoint_id}/bulk-replay",
    status_code=202,
    operation_id="v1.endpoint.bulk-replay",
    summary="Resend messages",
    response_model=TaskOut,
    responses=dict(_COUNTED),
)
@requires(Permission.MESSAGE_RESEND)
async def bulk_replay(call: ApplicationCall, endpoint_id: EndpointRef, body: BulkReplayIn) -> Response:
    """Attempt each message of an endpoint in a time range once, in the background, whether it succeeded or failed."""
    return await _start(call, recovery.resend, recovery.Resend, endpoint_id, body, **body.filters())


async def _start(
    call: ApplicationCall,
    operation: Operation[Any, StartedTask],
    table: type[recovery.Span],
    endpoint: str,
    body: ResendSpanIn,
    **filters: Any,
) -> Response:
    """Start a task for an endpoint. Raises NotFound if there is no such endpoint, and as the operation does."""
    span = table(
        application=call.application.shown_id,
        endpoint=endpoint,
        since=body.since,
        until=body.until,
        dry_run=body.dry_run,
        **filters,
    )
    try:
        started = await operation(call.work, span)
    except InvalidValue as error:
        if error.where == ("endpoint",):
            raise NotFound(str(error)) from None
        raise
    if started.updated_at is None:
        counted = {"matching": started.matching, "hasMore": started.has_more}
        return answer_json(200, {"task": started.task, "dryRun": True, **counted})
    summary = {"id": started.id, "status": started.status, "task": started.task}
    return answer_json(202, summary | {"updatedAt": format_timestamp(started.updated_at)})


@background.get(
    "/background-task",
    operation_id="v1.background-task.list",
    summary="List background tasks",
    response_model=ListOf[BackgroundTaskOut],
)
@requires(Permission.TASK_VIEW)
async def list_tasks(
    call: AnyCall,
    page: TaskPage,
    status: Annotated[TaskState | None, Query(description="Only tasks in this state.")] = None,
    task: Annotated[TaskKind | None, Query(description="Only tasks of this kind.")] = None,
) -> Response:
    """List the organization's tasks of the last 90 days, newest first."""
    result = await tasks.list_page(
        call.work,
        _window_of(page),
        state=status,
        kinds=API_OPERATIONS if task is None else [TaskOperation(task)],
        limit=page.limit,
        is_ascending=page.is_ascending,
    )
    return answer_page(result, lambda row: row.shown_id, _show_whole)


def _window_of(page: IdPage) -> Window:
    """Return the ids of tasks on a page; those of the last 90 days are listed."""
    low, high = ids.first_of(datetime.now(UTC) - MAX_WINDOW), _LAST
    if page.place_id is None:
        return Window(low, high, page.is_upward)
    if page.is_upward:
        return Window(max(low, UUID(int=min(page.place_id.int + 1, _LAST.int))), high, is_upward=True)
    return Window(low, page.place_id)


@background.get(
    "/background-task/{task_id}",
    operation_id="v1.background-task.get",
    summary="Get a background task",
    response_model=BackgroundTaskOut,
)
@requires(Permission.TASK_VIEW)
async def get_task(call: AnyCall, task_id: Annotated[str, Path(description="The task's id.")]) -> Response:
    """Return one task and its result."""
    task = await tasks.get(call.work, task_id)
    if task.kind not in API_OPERATIONS:
        raise NotFound(f"unknown task {task_id}")
    return answer_json(200, _show_whole(task))


@expunging.post(
    "/app/{app_id}/msg/expunge-all-contents",
    status_code=202,
    operation_id="v1.message.expunge-all-contents",
    summary="Delete all payloads",
    response_model=TaskOut,
)
@requires(Permission.MESSAGE_EXPUNGE)
async def expunge_all(call: ApplicationCall) -> Response:
    """Permanently delete the payloads of all messages of an application, in the background."""
    expunged = await messages.expunge(call.work, Expunge(application=call.application.shown_id, all=True))
    assert expunged.task is not None, "it was no dry run"
    return answer_json(202, _show_task(await tasks.get(call.work, expunged.task)))


@statistics.put(
    "/stats/usage/event-types",
    status_code=202,
    operation_id="v1.statistics.aggregate-event-types",
    summary="List the subscribed event types",
    response_model=TaskOut,
)
@requires(Permission.USAGE_COUNT)
async def aggregate_types(call: AnyCall) -> Response:
    """List, in the background, the event types that each application's endpoints subscribe to."""
    return answer_json(202, _show_task(await tasks.aggregate_types(call.work)))


@statistics.post(
    "/stats/usage/app",
    status_code=202,
    operation_id="v1.statistics.aggregate-app-stats",
    summary="Count applications' deliveries",
    response_model=UsageOut,
)
@requires(Permission.USAGE_COUNT)
async def count_usage(call: AnyCall, body: UsageIn) -> Response:
    """Count, in the background, the deliveries of each application's messages in a time range."""
    task, unknown = await tasks.count_usage(call.work, body.value(), body.app_ids)
    return answer_json(202, _show_task(task) | {"unresolvedAppIds": unknown})


class BulkJobOut(Output):
    """A bulk job and its progress."""

    id: str = Field(examples=["qtask_01h455vb4pex5vsknk084sn02q4"])
    title: str = Field(examples=["Replay events"])
    state: str = Field(description="running, finished, stopped or failed.", examples=["running"])
    done: int
    total: int = Field(description="The number counted at the start; 0 if unknown.")
    added: int | None = Field(description="Deliveries added, if the job adds any.")
    revived: int | None = Field(description="Dead letters that are pending again, if it replays events.")
    routed: int | None = Field(description="Events that got a delivery, if the job routes events.")
    skipped: int
    error: str
    group: str | None = Field(description="The group of dead letters that it is about, if any.")
    actor: str
    note: str
    rate: float | None
    started_at: Timestamp
    updated_at: Timestamp
    outcome: str = Field(description="What has become of the replayed deliveries; empty in lists.")


def show_job(job: Job) -> BulkJobOut:
    """Return a bulk job as the API shows it."""
    return BulkJobOut.of(job)


@bulk.get("/bulk-job", operation_id="v1.bulk-job.list", summary="List bulk jobs", response_model=ListOf[BulkJobOut])
@requires(Permission.JOB_VIEW)
async def list_jobs(call: AnyCall, page: TaskPage) -> Response:
    """List the organization's bulk jobs of the last 90 days, newest first; operators' jobs are the default one's."""
    result = await jobs.read_page(call.work, _window_of(page), limit=page.limit, is_ascending=page.is_ascending)
    return answer_page(result, lambda job: job.id, lambda job: show_job(job).model_dump(mode="json", by_alias=True))


@bulk.get("/bulk-job/{job_id}", operation_id="v1.bulk-job.get", summary="Get a bulk job")
@requires(Permission.JOB_VIEW)
async def get_job(call: AnyCall, job_id: JobRef) -> BulkJobOut:
    """Return a bulk job with its progress and what has become of what it replayed."""
    return show_job(await jobs.get(call.work, name_object(JobNamed, job_id)))


@bulk.post("/bulk-job/{job_id}/stop", operation_id="v1.bulk-job.stop", summary="Stop a bulk job")
@requires(Permission.JOB_STOP)
async def stop_job(call: AnyCall, job_id: JobRef) -> BulkJobOut:
    """Stop a running bulk job after its current step; what it has done stays."""
    return show_job(await jobs.stop(call.work, name_object(JobNamed, job_id)))
