"""Pages of endpoints: where an application's messages go; listed, made, changed, switched, and their secrets."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from boathook.admin import endpoint_secrets, endpoints, event_types
from boathook.admin.api.endpoints import EndpointIn, EndpointPatch
from boathook.admin.authorization import Permission
from boathook.admin.console.application_visits import HOME, Pages, Side
from boathook.admin.console.endpoint_forms import (
    EMPTY,
    PRESETS,
    Misfilled,
    Reader,
    auth_of,
    document_of,
    filled_from,
    problems_of,
    refilled,
)
from boathook.admin.console.endpoint_secrets import GRACES
from boathook.admin.console.endpoint_words import HEIGHT, WIDTH, bars_of, name_disabler, standing_of
from boathook.admin.console.pages import Routes, Visit
from boathook.admin.desk import Work
from boathook.admin.endpoints import Backlog
from boathook.domain import ids
from boathook.domain.errors import InvalidMessage, InvalidValue, LimitReached, NotFound, SecretUnreadable, Taken
from boathook.journal import endpoint_sights as sights
from boathook.journal.applications import Application, Window
from boathook.journal.endpoints import Endpoint

pages = Pages()
routes = Routes()

_MOST: Final = 100
_MOST_TYPES: Final = 500
_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
_REFUSALS: Final = (InvalidValue, InvalidMessage, Taken, LimitReached)


@routes.get("/applications/in-trouble", Permission.APPLICATION_LIST)
async def list_troubled(visit: Visit) -> Response:
    """Show the endpoints of all applications that are disabled or failing."""
    async with visit.work() as work:
        rows = await sights.list_troubled(work.connection, work.organization, limit=_MOST)
    shown = [
        (ids.show(ids.ENDPOINT, row.id), f"{HOME}/{ids.show(ids.APPLICATION, row.application_id)}", row) for row in rows
    ]
    return visit.page("endpoints/troubled.html", rows=shown, most=_MOST)


@routes.get("/endpoints/{endpoint}", Permission.ENDPOINT_VIEW)
async def find_endpoint(visit: Visit) -> Response:
    """Lead to the page of an endpoint whose application the reader does not know."""
    reference = visit.path["endpoint"]
    async with visit.work() as work:
        try:
            owner = await sights.find_owner(work.connection, work.organization, ids.read(ids.ENDPOINT, reference))
        except ValueError:
            owner = None
    if owner is None:
        raise NotFound(f"there is no endpoint {reference}")
    return visit.to(f"{HOME}/{ids.show(ids.APPLICATION, owner)}/endpoints/{reference}")


@pages.get("/endpoints", Permission.ENDPOINT_VIEW)
async def list_endpoints(side: Side) -> Response:
    """Show an application's endpoints, the youngest first."""
    async with side.work() as (work, application):
        rows, more = await rows_of(side, work, application)
    return side.page("endpoints/list.html", application=application, rows=rows, more=more)


async def rows_of(side: Side, work: Work, application: Application) -> tuple[list[Mapping[str, Any]], str]:
    """Return a page of an application's endpoints with how each stands, and where the next page begins."""
    text = side.visit.query.get("before", "")
    try:
        place = ids.read(ids.ENDPOINT, text) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "before") from None
    found = await endpoints.list_some(work, application, Window(place, False, _MOST))
    health = await sights.list_health(work.connection, [one.id for one in found])
    now, settings = datetime.now(UTC), side.visit.desk.settings
    rows: list[Mapping[str, Any]] = [
        {"endpoint": one, "standing": standing_of(one, health.get(one.id, sights.Health()), now, settings=settings)}
        for one in found
    ]
    return rows, found[-1].shown_id if len(found) == _MOST else ""


@pages.get("/endpoints/new", Permission.ENDPOINT_MANAGE)
async def show_form_for_new(side: Side) -> Response:
    """Show the form for an endpoint about to be made."""
    async with side.work() as (work, application):
        known = await known_types(side, work)
    return _form(side, application, None, known, EMPTY)


@pages.post("/endpoints", Permission.ENDPOINT_MANAGE)
async def create_endpoint(side: Side) -> Response:
    """Make an endpoint."""
    reader = Reader(side.visit.form)
    try:
        document = document_of(reader) | {
            "auth": auth_of(reader) or None,
            "headers": reader.pairs("headers", ":"),
            "secret": reader.text("secret") or None,
            "disabled": bool(reader.text("disabled")),
        }
        body = reader.judged(EndpointIn, document)
        async with side.work() as (work, application):
            made = await endpoints.create(work, application, body.value(), secret=body.secret, headers=body.headers)
    except Misfilled as error:
        return await _again(side, None, error.problems)
    except _REFUSALS as error:
        return await _again(side, None, problems_of(error))
    return side.to(
        f"/endpoints/{made.shown_id}", "The endpoint is made; messages published from now on are sent there."
    )


@pages.get("/endpoints/{endpoint}", Permission.ENDPOINT_VIEW)
async def show_endpoint(side: Side) -> Response:
    """Show an endpoint: how it stands, its figures, and what can be done with it."""
    now = datetime.now(UTC)
    async with side.work() as (work, application):
        endpoint = await _get(side, work, application)
        health = await sights.find_health(work.connection, endpoint.id)
        disabler = await sights.find_disabler(work.connection, endpoint.shown_id) if endpoint.is_disabled else None
        values: dict[str, Any] = {
            "secrets": await sights.list_secrets(work.connection, endpoint.id),
            "waiting": await sights.count_waiting(work.connection, endpoint.id),
            "day": await sights.measure(work.connection, endpoint.id, now, _DAY, timedelta(hours=1)),
            "week": await sights.measure(work.connection, endpoint.id, now, _WEEK, timedelta(hours=6)),
            "recent": (await sights.look_at_attempts(work.connection, endpoint.id, None, limit=10)).rows,
            "types": await known_types(side, work),
            **_sealed(work, endpoint),
        }
    standing = standing_of(
        endpoint,
        health,
        now,
        settings=side.visit.desk.settings,
        disabler=name_disabler(disabler, is_portal=side.is_portal),
    )
    span = "week" if side.visit.query.get("span") == "week" else "day"
    chart: dict[str, Any] = {
        "span": span,
        "bars": bars_of(values[span].stretches, is_daily=span == "week"),
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
    }
    return side.page(
        "endpoints/show.html",
        application=application,
        endpoint=endpoint,
        standing=standing,
        graces=GRACES,
        retry=_retry_words(endpoint),
        day_ago=f"{now - _DAY:%Y-%m-%dT%H:%M}",
        **values,
        **chart,
    )


def _sealed(work: Work, endpoint: Endpoint) -> Mapping[str, Any]:
    """Return the names of what is sealed; the values are not shown."""
    try:
        kinds, names = sorted(endpoints.open_auth(work, endpoint)), sorted(endpoints.open_headers(work, endpoint))
    except SecretUnreadable as error:
        return {"auth": [], "header_names": [], "unreadable": str(error)}
    return {"auth": kinds, "header_names": names, "unreadable": ""}


def _retry_words(endpoint: Endpoint) -> str:
    if endpoint.retry is None:
        return ""
    return endpoint.retry_name or ", ".join(f"{wait:g} s" for wait in endpoint.retry.delays_s or ())


@pages.get("/endpoints/{endpoint}/edit", Permission.ENDPOINT_MANAGE)
async def show_form(side: Side) -> Response:
    """Show the form for an endpoint as it is."""
    async with side.work() as (work, application):
        endpoint = await _get(side, work, application)
        known = await known_types(side, work)
        sealed = _sealed(work, endpoint)
    return _form(side, application, endpoint, known, filled_from(endpoint, known), sealed=sealed)


@pages.post("/endpoints/{endpoint}/edit", Permission.ENDPOINT_MANAGE)
async def change_endpoint(side: Side) -> Response:
    """Give an endpoint the values of its form."""
    reference = side.visit.path["endpoint"]
    reader = Reader(side.visit.form)
    try:
        async with side.work() as (work, application):
            endpoint = await endpoints.lock(work, application, reference)
            auth = auth_of(reader, partial(endpoints.open_auth, work, endpoint))
            document = document_of(reader) | ({} if auth is None else {"auth": auth or None})
            headers, removed = reader.pairs("headers", ":"), reader.texts("removeHeaders")
            changes = reader.judged(EndpointPatch, document).value()
            await endpoints.change(work, application, reference, changes)
            if headers or removed:
                await endpoint_secrets.change_headers(work, application, reference, headers, removed)
    except Misfilled as error:
        return await _again(side, reference, error.problems)
    except _REFUSALS as error:
        return await _again(side, reference, problems_of(error))
    return side.to(f"/endpoints/{endpoint.shown_id}", "The changes are saved.")


async def _again(side: Side, reference: str | None, problems: Mapping[str, str]) -> Response:
    """Show the form once more, with what is wrong at its fields."""
    async with side.work() as (work, application):
        endpoint = None if reference is None else await endpoints.get(work, application, reference)
        sealed = None if endpoint is None else _sealed(work, endpoint)
        known = await known_types(side, work)
    values = {**EMPTY, **refilled(side.visit.form)}
    return _form(side, application, endpoint, known, values, problems, status=400, sealed=sealed)


def _form(
    side: Side,
    application: Application,
    endpoint: Endpoint | None,
    known: Sequence[str],
    values: Mapping[str, Any],
    problems: Mapping[str, str] | None = None,
    *,
    status: int = 200,
    sealed: Mapping[str, Any] | None = None,
) -> Response:
    return side.page(
        "endpoints/form.html",
        status,
        application=application,
        endpoint=endpoint,
        known=known,
        presets=PRESETS,
        values=values,
        problems=problems or {},
        sealed=sealed or {"auth": [], "header_names": [], "unreadable": ""},
    )


async def known_types(side: Side, work: Work) -> list[str]:
    """Return the event types that the visitor may see and endpoints can ask for."""
    found = await event_types.list_some(work, limit=_MOST_TYPES, flags=side.flags)
    return [one.name for one in found]


@pages.post("/endpoints/{endpoint}/disable", Permission.ENDPOINT_MANAGE)
async def disable_endpoint(side: Side) -> Response:
    """Send an endpoint nothing more; what it is owed waits."""
    reference = await _switch(side, is_disabled=True)
    return side.to(f"/endpoints/{reference}", "It is disabled; what it is owed waits.")


@pages.post("/endpoints/{endpoint}/enable", Permission.ENDPOINT_MANAGE)
async def enable_endpoint(side: Side) -> Response:
    """Send to an endpoint again; its failures are forgotten."""
    reference = await _switch(side, is_disabled=False)
    return side.to(f"/endpoints/{reference}", "It is enabled, and its failures are forgotten.")


async def _switch(side: Side, *, is_disabled: bool) -> str:
    backlog = Backlog.CANCEL if side.field("backlog") == "cancel" else Backlog.SEND
    async with side.work() as (work, application):
        saved = await endpoints.change(
            work, application, side.visit.path["endpoint"], {"is_disabled": is_disabled}, backlog=backlog
        )
    side.visit.desk.rouse()
    return saved.shown_id


@pages.post("/endpoints/{endpoint}/delete", Permission.ENDPOINT_MANAGE)
async def delete_endpoint(side: Side) -> Response:
    """Delete an endpoint whose id or uid was written out."""
    async with side.work() as (work, application):
        endpoint = await _get(side, work, application)
        if side.field("typed").strip() not in {endpoint.shown_id, endpoint.uid or endpoint.shown_id}:
            name = endpoint.uid or endpoint.shown_id
            return side.to(
                f"/endpoints/{endpoint.shown_id}", f"Nothing was deleted: write {name} to confirm it.", "bad"
            )
        await endpoints.delete(work, application, endpoint.shown_id)
    return side.to("/endpoints" if side.is_portal else "", f"{endpoint.shown_id} is deleted.")


async def _get(side: Side, work: Work, application: Application) -> Endpoint:
    return await endpoints.get(work, application, side.visit.path["endpoint"])
