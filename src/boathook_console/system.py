"""Pages of the installation itself: consistency checks, bulk jobs and settings."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from boathook.domain.errors import InvalidState
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import integrity, jobs
from boathook.service.catalogue.jobs import JobNamed
from boathook.service.catalogue.values import PageInput, name_object
from boathook.service.shown_settings import find_settings
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params

routes = Routes()
_CHECKS_PATH: Final = f"{BASE}/verify"
_BALANCE_ROWS: Final = (
    ("events", "Events", 0),
    ("received", "received", 1),
    ("published", "published", 1),
    ("accepted_conflicts", "accepted conflicts", 1),
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
JOBS_PATH: Final = f"{BASE}/jobs"
_MAX_JOBS: Final = 50


@routes.get("/verify", Permission.VERIFY_VIEW)
async def list_runs(context: ConsoleContext) -> Response:
    """Show the latest consistency checks and their results."""
    async with context.work() as work:
        runs = (await integrity.list_runs(work, integrity.AllRuns())).data
    return context.page("integrity/list.html", runs=runs, is_busy=any(run.state == "running" for run in runs))


@routes.post("/verify", Permission.VERIFY_RUN)
async def start_run(context: ConsoleContext) -> Response:
    """Start a consistency check, which the keeper runs."""
    try:
        async with context.work() as work:
            new = integrity.NewRun(deep=bool(context.form.get("deep")), gently=bool(context.form.get("gently")))
            run = await integrity.start(work, new)
    except InvalidState as error:
        return context.to(_CHECKS_PATH, str(error), "bad")
    return context.to(f"{_CHECKS_PATH}/{run.id}")


@routes.get("/verify/{id}", Permission.VERIFY_VIEW)
async def show_run(context: ConsoleContext) -> Response:
    """Show one check; a live page requests only the inner part."""
    async with context.work() as work:
        run = await integrity.get(work, name_object(integrity.RunNamed, context.path["id"]))
    template = "integrity/part.html" if context.is_fragment else "integrity/show.html"
    return context.page(template, run=run, lines=_BALANCE_ROWS, **_progress(run.data if run.state == "running" else {}))


def _progress(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the progress of a running check; each of its steps has equal weight."""
    if not data.get("of"):
        return {"share": 0.0, "title": ""}
    return {"share": (data["number"] - 1 + data["share"]) / data["of"], "title": data["title"]}


@routes.post("/verify/{id}/stop", Permission.VERIFY_RUN)
async def stop(context: ConsoleContext) -> Response:
    """Stop a running check."""
    async with context.work() as work:
        await integrity.stop(work, name_object(integrity.RunNamed, context.path["id"]))
    return context.to(f"{_CHECKS_PATH}/{context.path['id']}", "Stopped.")


@routes.get("/jobs", Permission.JOB_VIEW)
async def list_jobs(context: ConsoleContext) -> Response:
    """Show the latest bulk jobs."""
    async with context.work() as work:
        page = await jobs.list_jobs(work, PageInput(limit=_MAX_JOBS))
    return context.page("dead/jobs.html", jobs=page.data)


@routes.get("/jobs/{id}", Permission.JOB_VIEW)
async def show_job(context: ConsoleContext) -> Response:
    """Show the progress of a bulk job; a live page requests only the inner part."""
    async with context.work() as work:
        job = await jobs.get(work, name_object(JobNamed, context.path["id"]))
    return context.page("dead/job_part.html" if context.is_fragment else "dead/job.html", job=job)


@routes.post("/jobs/{id}/stop", Permission.JOB_STOP)
async def stop_job(context: ConsoleContext) -> Response:
    """Stop a bulk job; completed work is kept."""
    async with context.work() as work:
        await jobs.stop(work, name_object(JobNamed, context.path["id"]))
    return context.to(f"{JOBS_PATH}/{context.path['id']}", "Stopped. Completed work is kept.")


@routes.get("/settings", Permission.SETTINGS_VIEW)
async def show_settings(context: ConsoleContext) -> Response:
    """Show the settings that match a search, by default only the changed ones."""
    settings = context.app_context.settings
    words = query_params.get_text(context.query, "q") or ""
    is_all = context.query.get("show") == "all"
    rows = find_settings(settings, words, is_changed_only=not is_all)
    others = 0 if is_all else len(find_settings(settings, words, is_changed_only=False)) - len(rows)
    return context.page(
        "settings/show.html",
        rows=rows,
        words=words,
        is_all=is_all,
        others=others,
        all_url=query_params.build_url("/console/settings", {"q": words}, show="all"),
        changed_url=query_params.build_url("/console/settings", {"q": words}),
        file=settings.file,
        app_sections=sorted(settings.extra),
    )
