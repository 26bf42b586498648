"""Pages of API keys; a token is shown only once, in the response that creates it."""

from datetime import timedelta
from typing import Final

from starlette.responses import Response

from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.domain import ids
from boathook.domain.errors import AdminError, BoathookError, InvalidValue, NotFound
from boathook.domain.model import MountRole
from boathook.service.access import keys as actions
from boathook.service.access.authorization import Permission
from boathook.service.access.keys import ApiKey
from boathook.service.sending import applications
from boathook.service.sending.applications import Application
from boathook.service.unit_of_work import UnitOfWork

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
_SCOPES: Final = (
    ("organization", "the whole organization"),
    ("application", "one application"),
    ("mount", "one mounted path of an app"),
)
_ROLES: Final = (("reader", "reader: may read"), ("operator", "operator: may also change"))
_MAX_PORTAL_KEYS: Final = 100
"""Maximum number of portal keys on the page."""


@routes.get("/keys", Permission.KEY_VIEW)
async def list_keys(context: ConsoleContext, status: int = 200, error: BoathookError | None = None) -> Response:
    """Show the API keys, or the keys of portal visitors."""
    is_portal = context.query.get("portal") == "yes"
    async with context.work() as work:
        if is_portal:
            rows = await actions.list_portal(work, limit=_MAX_PORTAL_KEYS + 1)
        else:
            rows = await actions.list_all(work, work.organization)
        names = {key.application_id: await _name(work, key) for key in rows if key.application_id}
    where = str(error.where[0]) if isinstance(error, InvalidValue) and error.where else ""
    return context.page(
        "keys/list.html",
        status,
        rows=rows[:_MAX_PORTAL_KEYS] if is_portal else rows,
        has_more=is_portal and len(rows) > _MAX_PORTAL_KEYS,
        names=names,
        is_portal=is_portal,
        scopes=_SCOPES,
        roles=_ROLES,
        lifetimes=_LIFETIMES,
        form=context.form,
        error=error,
        where=where,
    )


async def _name(work: UnitOfWork, key: ApiKey) -> str:
    assert key.application_id is not None
    shown = ids.show(ids.APPLICATION, key.application_id)
    try:
        return (await applications.get(work, shown)).name
    except NotFound:
        return f"{shown}, deleted"


@routes.post("/keys", Permission.KEY_MANAGE)
async def create(context: ConsoleContext) -> Response:
    """Create a key, and show its token only in this response."""
    try:
        lifetime = _lifetime(context.field("lifetime"))
        name = context.field("name").strip()
        mount, role = _mounted_path(context)
        async with context.work() as work:
            application = await _application(work, context.field("scope"), context.field("application").strip())
            made = await actions.create(
                work, application=application, mount=mount, role=role, name=name, lifetime=lifetime
            )
    except AdminError as error:
        return await list_keys(context, 400, error)
    # The response to a form is never cached, so no URL, cookie or cache contains the token.
    return context.page("keys/created.html", made=made, application=application)


async def _application(work: UnitOfWork, scope: str, reference: str) -> Application | None:
    if scope != "application":
        return None
    if not reference:
        raise InvalidValue("enter the application's id or uid", "application")
    try:
        return await applications.get(work, reference)
    except NotFound as error:
        raise InvalidValue(str(error), "application") from None


def _mounted_path(context: ConsoleContext) -> tuple[str, MountRole] | tuple[None, None]:
    """Return the path and the role of a key for a mounted path; None and None for another key."""
    if context.field("scope") != "mount":
        return None, None
    path, role = context.field("mount").strip(), context.field("role")
    if not path:
        raise InvalidValue("enter the path, such as /api/rentprog", "mount")
    if role not in {name for name, _ in _ROLES}:
        raise InvalidValue("choose one of these", "role")
    return path, MountRole(role)


def _lifetime(days: str) -> timedelta | None:
    if days not in {known for known, _ in _LIFETIMES}:
        raise InvalidValue("choose one of these", "lifetime")
    return timedelta(days=int(days)) if days else None


@routes.post("/keys/{id}/revoke", Permission.KEY_MANAGE)
async def revoke(context: ConsoleContext) -> Response:
    """Revoke a key immediately."""
    try:
        id = ids.read(ids.API_KEY, context.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None
    async with context.work() as work:
        await actions.revoke(work, id)
    return context.to(_LIST, f"The key {context.path['id']} is revoked. Requests with it are rejected from now on.")
