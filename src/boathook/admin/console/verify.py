"""Verify: the books checked from the console, with what was found."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from boathook.admin import verify_runs as actions
from boathook.admin.authorization import Permission
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.domain.errors import NotPossible

routes = Routes()
_LIST: Final = f"{BASE}/verify"
LINES: Final = (
    ("events", "Events", 0),
    ("received", "received", 1),
    ("published", "published", 1),
    ("owed", "Deliveries owed when accepted", 0),
    ("replayed", "Deliveries added by replays", 0),
    ("succeeded", "succeeded", 1),
    ("ignored", "ignored", 1),
    ("dead", "dead", 1),
    ("pending", "pending", 1),
    ("leased", "leased", 1),
    ("purged", "purged by operators", 1),
    ("missing", "missing", 1),
    ("attempts", "Attempts", 0),
    ("remembered", "Dedup keys remembered", 0),
    ("conflicts", "Conflicts", 0),
    ("conflicting_requests", "requests in them", 1),
    ("rejections", "Rejections kept", 0),
)
"""Figures of the balance in the order in which they are shown, each with how far it is indented."""


@routes.get("/verify", Permission.VERIFY_VIEW)
async def list_runs(visit: Visit) -> Response:
    """Show the checks made last, and what they found."""
    async with visit.work() as work:
        runs = await actions.list_last(work)
    return visit.page("verify/list.html", runs=runs, is_busy=any(run.state == "running" for run in runs))


@routes.post("/verify", Permission.VERIFY_RUN)
async def begin(visit: Visit) -> Response:
    """Let a keeper check the books."""
    try:
        async with visit.work() as work:
            run = await actions.begin(
                work, is_deep=bool(visit.form.get("deep")), is_gentle=bool(visit.form.get("gently"))
            )
    except NotPossible as error:
        return visit.to(_LIST, str(error), "bad")
    return visit.to(f"{_LIST}/{run.shown_id}")


@routes.get("/verify/{id}", Permission.VERIFY_VIEW)
async def show_run(visit: Visit) -> Response:
    """Show one check; a page that follows it asks for its inner part alone."""
    async with visit.work() as work:
        run = await actions.get(work, visit.path["id"])
    template = "verify/part.html" if visit.is_fragment else "verify/show.html"
    return visit.page(template, run=run, lines=LINES, **_progress(run.data if run.state == "running" else {}))


def _progress(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much of a running check is done: each of its walks counts alike."""
    if not data.get("of"):
        return {"share": 0.0, "title": ""}
    return {"share": (data["number"] - 1 + data["share"]) / data["of"], "title": data["title"]}


@routes.post("/verify/{id}/stop", Permission.VERIFY_RUN)
async def stop(visit: Visit) -> Response:
    """End a check that is under way."""
    async with visit.work() as work:
        await actions.stop(work, visit.path["id"])
    return visit.to(f"{_LIST}/{visit.path['id']}", "Stopped.")
