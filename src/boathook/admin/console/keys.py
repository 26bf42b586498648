"""Keys of the API: who may ask for what; each token is shown once, in the answer that makes it, and nowhere else."""

from datetime import timedelta
from typing import Final

from starlette.responses import Response

from boathook.admin import applications
from boathook.admin import keys as actions
from boathook.admin.authorization import Permission
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.admin.desk import Work
from boathook.domain import ids
from boathook.domain.errors import AdminError, BoathookError, InvalidValue, NotFound
from boathook.journal.api_keys import Key
from boathook.journal.applications import Application

routes = Routes()
_LIST: Final = f"{BASE}/keys"
_LIFETIMES: Final = (
    ("", "never"),
    ("1", "in a day"),
    ("7", "in a week"),
    ("30", "in 30 days"),
    ("90", "in 90 days"),
    ("365", "in a year"),
)
_SCOPES: Final = (("organization", "the whole organization"), ("application", "one application"))
_LONGEST_NAME: Final = 200
_PORTAL: Final = 100
"""Keys of the portal that are shown."""


@routes.get("/keys", Permission.KEY_VIEW)
async def list_keys(visit: Visit) -> Response:
    """Show the keys; those of the portal's visitors apart."""
    return await _list(visit)


async def _list(visit: Visit, status: int = 200, error: BoathookError | None = None) -> Response:
    is_portal = visit.query.get("portal") == "yes"
    async with visit.work() as work:
        if is_portal:
            rows = await actions.list_portal(work, limit=_PORTAL + 1)
        else:
            rows = await actions.list_all(work, work.organization)
        names = {key.application_id: await _name(work, key) for key in rows if key.application_id}
    where = str(error.where[0]) if isinstance(error, InvalidValue) and error.where else ""
    return visit.page(
        "keys/list.html",
        status,
        rows=rows[:_PORTAL] if is_portal else rows,
        has_more=is_portal and len(rows) > _PORTAL,
        names=names,
        is_portal=is_portal,
        scopes=_SCOPES,
        lifetimes=_LIFETIMES,
        form=visit.form,
        error=error,
        where=where,
    )


async def _name(work: Work, key: Key) -> str:
    assert key.application_id is not None
    shown = ids.show(ids.APPLICATION, key.application_id)
    try:
        return (await applications.get(work, shown)).name
    except NotFound:
        return f"{shown}, deleted"


@routes.post("/keys", Permission.KEY_MANAGE)
async def create(visit: Visit) -> Response:
    """Make a key, and show its token in this answer alone."""
    form = visit.form
    try:
        lifetime = _lifetime(str(form.get("lifetime", "")))
        name = str(form.get("name", "")).strip()
        if not 0 < len(name) <= _LONGEST_NAME:
            raise InvalidValue(f"write what it is for, in at most {_LONGEST_NAME} characters", "name")
        async with visit.work() as work:
            application = await _application(work, str(form.get("scope", "")), str(form.get("application", "")).strip())
            made = await actions.create(work, application=application, name=name, lifetime=lifetime)
    except AdminError as error:
        return await _list(visit, 400, error)
    # No address, no cookie and no cache ever holds it: this is the answer to a form, and is not to be stored.
    return visit.page("keys/made.html", made=made, application=application)


async def _application(work: Work, scope: str, reference: str) -> Application | None:
    if scope != "application":
        return None
    if not reference:
        raise InvalidValue("write the application's id or uid", "application")
    try:
        return await applications.get(work, reference)
    except NotFound as error:
        raise InvalidValue(str(error), "application") from None


def _lifetime(days: str) -> timedelta | None:
    if days not in {known for known, _ in _LIFETIMES}:
        raise InvalidValue("choose one of these", "lifetime")
    return timedelta(days=int(days)) if days else None


@routes.post("/keys/{id}/revoke", Permission.KEY_MANAGE)
async def revoke(visit: Visit) -> Response:
    """End a key at once."""
    try:
        id = ids.read(ids.API_KEY, visit.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None
    async with visit.work() as work:
        await actions.revoke(work, id)
    return visit.to(_LIST, f"The key {visit.path['id']} is revoked: whoever shows it is refused from now on.")
