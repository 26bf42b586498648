"""Routes of bulk jobs: their progress, and stopping them; `boathook.api.events` starts them."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field
from starlette.responses import Response

from boathook.api.pages import ListOf
from boathook.api.route import AnyCall, router
from boathook.api.tasks import TaskPage, window_of
from boathook.api.time_ranges import answer_page
from boathook.service import bulk_jobs
from boathook.service.authorization import Permission, requires
from boathook.service.bulk_jobs import JobProgress
from boathook.service.schemas.fields import Output, Timestamp

routes = router("Bulk Job")

JobRef = Annotated[str, Path(description="The bulk job's id.", examples=["qtask_01h455vb4pex5vsknk084sn02q4"])]


class BulkJobOut(Output):
    """A bulk job and its progress."""

    id: str = Field(examples=["qtask_01h455vb4pex5vsknk084sn02q4"])
    title: str = Field(examples=["Replay events"])
    state: str = Field(description="running, finished, stopped or failed.", examples=["running"])
    done: int
    total: int = Field(description="The number counted at the start; 0 if unknown.")
    added: int | None = Field(description="Deliveries added, if the job adds any.")
    skipped: int
    error: str
    group: str | None = Field(description="The group of dead letters that it is about, if any.")
    actor: str
    note: str
    rate: float | None
    started_at: Timestamp
    updated_at: Timestamp
    outcome: str = Field(description="What has become of the replayed deliveries; empty in lists.")


def show_job(progress: JobProgress) -> BulkJobOut:
    """Return a bulk job as the API shows it."""
    return BulkJobOut(
        id=progress.id,
        title=progress.title,
        state=progress.state,
        done=progress.done,
        total=progress.total,
        added=progress.added,
        skipped=progress.left,
        error=progress.error,
        group=progress.group,
        actor=progress.actor,
        note=progress.note,
        rate=progress.rate,
        started_at=progress.begun_at,
        updated_at=progress.moved_at,
        outcome=progress.outcome,
    )


def _show(progress: JobProgress) -> dict[str, Any]:
    return show_job(progress).model_dump(mode="json", by_alias=True)


@routes.get("/bulk-job", operation_id="v1.bulk-job.list", summary="List bulk jobs", response_model=ListOf[BulkJobOut])
@requires(Permission.JOB_VIEW)
async def list_jobs(call: AnyCall, page: TaskPage) -> Response:
    """List the organization's bulk jobs of the last 90 days, newest first; operators' jobs are the default one's."""
    found = await bulk_jobs.page_jobs(call.work, window_of(page), limit=page.limit, is_ascending=page.is_ascending)
    return answer_page(found, lambda job: job.id, _show)


@routes.get("/bulk-job/{job_id}", operation_id="v1.bulk-job.get", summary="Get a bulk job")
@requires(Permission.JOB_VIEW)
async def get_job(call: AnyCall, job_id: JobRef) -> BulkJobOut:
    """Return a bulk job with its progress and what has become of what it replayed."""
    return show_job(await bulk_jobs.get_progress(call.work, job_id))


@routes.post("/bulk-job/{job_id}/stop", operation_id="v1.bulk-job.stop", summary="Stop a bulk job")
@requires(Permission.JOB_STOP)
async def stop_job(call: AnyCall, job_id: JobRef) -> BulkJobOut:
    """Stop a running bulk job after its current step; what it has done stays."""
    return show_job(bulk_jobs.progress_of(await bulk_jobs.stop(call.work, job_id)))
