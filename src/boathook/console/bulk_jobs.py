"""Bulk decisions under way: how far each has come, and a way to stop it."""

from typing import Final

from starlette.responses import Response

from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.service import bulk_jobs
from boathook.service.authorization import Permission

routes = Routes()
JOBS_PATH: Final = f"{BASE}/jobs"
_MAX_SHOWN: Final = 50


@routes.get("/jobs", Permission.JOB_VIEW)
async def list_jobs(context: ConsoleContext) -> Response:
    """Show the bulk decisions made last."""
    async with context.work() as work:
        jobs = await bulk_jobs.list_latest(work, limit=_MAX_SHOWN)
    return context.page("dead/jobs.html", jobs=jobs)


@routes.get("/jobs/{id}", Permission.JOB_VIEW)
async def show_job(context: ConsoleContext) -> Response:
    """Show how far one has come; a page that follows it asks for that part alone."""
    async with context.work() as work:
        job = await bulk_jobs.get_progress(work, context.path["id"])
    return context.page("dead/job_part.html" if context.is_fragment else "dead/job.html", job=job)


@routes.post("/jobs/{id}/stop", Permission.JOB_STOP)
async def stop_job(context: ConsoleContext) -> Response:
    """Let one end where it stands."""
    async with context.work() as work:
        await bulk_jobs.stop(work, context.path["id"])
    return context.to(f"{JOBS_PATH}/{context.path['id']}", "Stopped. Completed work is kept.")
