"""Pages of background work: bulk jobs and consistency checks."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.domain.errors import InvalidState
from boathook.service import bulk_jobs
from boathook.service import integrity as actions
from boathook.service.authorization import Permission

routes = Routes()
_LIST: Final = f"{BASE}/verify"
BALANCE_ROWS: Final = (
    ("events", "Events", 0),
    ("received", "received", 1),
    ("published", "published", 1),
    ("deliveries", "Deliveries created on accept", 0),
    ("replayed", "Deliveries added by replays", 0),
    ("succeeded", "succeeded", 1),
    ("ignored", "ignored", 1),
    ("dead", "dead", 1),
    ("pending", "pending", 1),
    ("leased", "leased", 1),
    ("purged", "purged by operators", 1),
    ("missing", "missing", 1),
    ("attempts", "Attempts", 0),
    ("remembered", "Dedup keys stored", 0),
    ("conflicts", "Conflicts", 0),
    ("conflicting_requests", "requests in them", 1),
    ("rejections", "Rejections stored", 0),
)
"""Rows of the totals in display order: field, label and indentation level."""


@routes.get("/verify", Permission.VERIFY_VIEW)
async def list_runs(context: ConsoleContext) -> Response:
    """Show the latest consistency checks and their results."""
    async with context.work() as work:
        runs = await actions.list_recent(work.connection)
    return context.page("integrity/list.html", runs=runs, is_busy=any(run.state == "running" for run in runs))


@routes.post("/verify", Permission.VERIFY_RUN)
async def start_run(context: ConsoleContext) -> Response:
    """Start a consistency check, which the keeper runs."""
    try:
        async with context.work() as work:
            run = await actions.start(
                work, is_deep=bool(context.form.get("deep")), is_gentle=bool(context.form.get("gently"))
            )
    except InvalidState as error:
        return context.to(_LIST, str(error), "bad")
    return context.to(f"{_LIST}/{run.shown_id}")


@routes.get("/verify/{id}", Permission.VERIFY_VIEW)
async def show_run(context: ConsoleContext) -> Response:
    """Show one check; a live page requests only the inner part."""
    async with context.work() as work:
        run = await actions.get(work, context.path["id"])
    template = "integrity/part.html" if context.is_fragment else "integrity/show.html"
    return context.page(template, run=run, lines=BALANCE_ROWS, **_progress(run.data if run.state == "running" else {}))


def _progress(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the progress of a running check; each of its steps has equal weight."""
    if not data.get("of"):
        return {"share": 0.0, "title": ""}
    return {"share": (data["number"] - 1 + data["share"]) / data["of"], "title": data["title"]}


@routes.post("/verify/{id}/stop", Permission.VERIFY_RUN)
async def stop(context: ConsoleContext) -> Response:
    """Stop a running check."""
    async with context.work() as work:
        await actions.stop(work, context.path["id"])
    return context.to(f"{_LIST}/{context.path['id']}", "Stopped.")


JOBS_PATH: Final = f"{BASE}/jobs"
_MAX_SHOWN: Final = 50


@routes.get("/jobs", Permission.JOB_VIEW)
async def list_jobs(context: ConsoleContext) -> Response:
    """Show the latest bulk jobs."""
    async with context.work() as work:
        jobs = await bulk_jobs.list_latest(work, limit=_MAX_SHOWN)
    return context.page("dead/jobs.html", jobs=jobs)


@routes.get("/jobs/{id}", Permission.JOB_VIEW)
async def show_job(context: ConsoleContext) -> Response:
    """Show the progress of a bulk job; a live page requests only the inner part."""
    async with context.work() as work:
        job = await bulk_jobs.get_progress(work, context.path["id"])
    return context.page("dead/job_part.html" if context.is_fragment else "dead/job.html", job=job)


@routes.post("/jobs/{id}/stop", Permission.JOB_STOP)
async def stop_job(context: ConsoleContext) -> Response:
    """Stop a bulk job; completed work is kept."""
    async with context.work() as work:
        await bulk_jobs.stop(work, context.path["id"])
    return context.to(f"{JOBS_PATH}/{context.path['id']}", "Stopped. Completed work is kept.")
