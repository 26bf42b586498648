"""Pages of API keys; a token is shown only once, in the response that creates it."""

from typing import Final

from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import AdminError, BoathookError, InvalidValue, NotFound
from boathook.service.access import keys
from boathook.service.access.authorization import Permission
from boathook.service.access.keys import ApiKey
from boathook.service.catalogue import keys as actions
from boathook.service.sending import applications
from boathook.service.unit_of_work import UnitOfWork
from boathook_console.derived import problem_of, read_form
from boathook_console.routes import BASE, ConsoleContext, Routes

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
_FIELDS_OF: Final = {"application": ("application",), "mount": ("mount", "role")}
"""The fields of the form that only a key of this scope has; others are sent with their first value."""
_DAY_S: Final = 86_400
_MAX_PORTAL_KEYS: Final = 100
"""Maximum number of portal keys on the page."""


@routes.get("/keys", Permission.KEY_VIEW)
async def list_keys(context: ConsoleContext, status: int = 200, error: BoathookError | None = None) -> Response:
    """Show the API keys, or the keys of portal visitors."""
    is_portal = context.query.get("portal") == "yes"
    async with context.work() as work:
        if is_portal:
            rows = await keys.list_portal(work, limit=_MAX_PORTAL_KEYS + 1)
        else:
            rows = await keys.list_all(work, work.organization)
        names = {key.application_id: await _name(work, key) for key in rows if key.application_id}
    field, text = problem_of(error)
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
        error=text,
        where=field,
    )


async def _name(work: UnitOfWork, key: ApiKey) -> str:
    assert key.application_id is not None
    application_id = ids.show(ids.APPLICATION, key.application_id)
    try:
        return (await applications.get(work, application_id)).name
    except NotFound:
        return f"{application_id}, deleted"


@routes.post("/keys", Permission.KEY_MANAGE)
async def create(context: ConsoleContext) -> Response:
    """Create a key, and show its token only in this response."""
    try:
        scope = context.field("scope")
        own = _FIELDS_OF.get(scope, ())
        new = read_form(
            context, actions.create, "scope", *own,
            name=context.field("name").strip(), lifetime_seconds=_lifetime(context.field("lifetime")),
        )  # fmt: skip
        async with context.work() as work:
            created_key = await actions.create(work, new)
            application = (
                None if created_key.application is None else await applications.get(work, created_key.application)
            )
    except AdminError as error:
        return await list_keys(context, 400, error)
    except NotFound as error:
        return await list_keys(context, 400, InvalidValue(str(error), "application"))
    # The response to a form is never cached, so no URL, cookie or cache contains the token.
    return context.page("keys/created.html", made=created_key, application=application)


def _lifetime(days: str) -> int | None:
    if days not in {allowed_days for allowed_days, _ in _LIFETIMES}:
        raise InvalidValue("choose one of these", "lifetime")
    return int(days) * _DAY_S if days else None


@routes.post("/keys/{id}/revoke", Permission.KEY_MANAGE)
async def revoke(context: ConsoleContext) -> Response:
    """Revoke a key immediately."""
    async with context.work() as work:
        revoked = await actions.revoke(work, actions.KeyNamed(id=context.path["id"]))
    return context.to(_LIST, f"The key {revoked.id} is revoked. Requests with it are rejected from now on.")
