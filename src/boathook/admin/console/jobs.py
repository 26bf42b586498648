"""Bulk decisions under way: how far each has come, and a way to stop it."""

from typing import Final
from uuid import UUID

from starlette.responses import Response

from boathook.admin import bulk
from boathook.admin.authorization import Permission
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.domain.windows import Window
from boathook.journal import tasks

routes = Routes()
JOBS: Final = f"{BASE}/jobs"
_SHOWN: Final = 50
_ALWAYS: Final = Window(UUID(int=0), UUID(int=2**128 - 1))


@routes.get("/jobs", Permission.JOB_VIEW)
async def list_jobs(visit: Visit) -> Response:
    """Show the bulk decisions made last."""
    async with visit.work() as work:
        page = await tasks.list_some(work.connection, work.organization, _ALWAYS, kinds=bulk.KINDS, limit=_SHOWN)
    return visit.page("dead/jobs.html", jobs=[bulk.progress_of(task) for task in page.rows])


@routes.get("/jobs/{id}", Permission.JOB_VIEW)
async def show_job(visit: Visit) -> Response:
    """Show how far one has come; a page that follows it asks for that part alone."""
    async with visit.work() as work:
        job = await bulk.follow(work, visit.path["id"])
    return visit.page("dead/job_part.html" if visit.is_fragment else "dead/job.html", job=job)


@routes.post("/jobs/{id}/stop", Permission.JOB_STOP)
async def stop_job(visit: Visit) -> Response:
    """Let one end where it stands."""
    async with visit.work() as work:
        await bulk.stop(work, visit.path["id"])
    return visit.to(f"{JOBS}/{visit.path['id']}", "Stopped. What was done stays done.")
