"""Pages of applications, for operators: listed, made, changed, deleted, published for, and let into the portal."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from boathook.admin import applications, keys, messages, portal
from boathook.admin.api.applications import ApplicationIn, ApplicationPatch
from boathook.admin.api.messages import MessageIn
from boathook.admin.authorization import Capability, Permission
from boathook.admin.console.application_visits import HOME, Side, operators_side
from boathook.admin.console.endpoint_forms import Misfilled, Reader, problems_of, refilled
from boathook.admin.console.endpoints import known_types, rows_of
from boathook.admin.console.pages import Routes, Visit
from boathook.admin.messages import NewMessage
from boathook.admin.portal import Look
from boathook.domain import ids
from boathook.domain.errors import InvalidMessage, InvalidValue, LimitReached, Taken
from boathook.journal import endpoint_sights as sights
from boathook.journal.applications import Application

routes = Routes()

_PAGE: Final = 50
_RECENT: Final = 10
_REFUSALS: Final = (InvalidValue, InvalidMessage, Taken, LimitReached)
LIFETIMES: Final = (("3600", "one hour"), ("86400", "one day"), ("604800", "one week"))
CAPABILITIES: Final = {
    Capability.MANAGE_ENDPOINT: "make and change endpoints",
    Capability.VIEW_ENDPOINT_SECRET: "see their secrets",
    Capability.MANAGE_ENDPOINT_SECRET: "rotate their secrets",
    Capability.CREATE_ATTEMPTS: "test, send again and recover",
}
"""What a visitor of the portal may be allowed besides looking."""


@routes.get("/applications", Permission.APPLICATION_LIST)
async def list_applications(visit: Visit) -> Response:
    """Show applications, the youngest first, or those with some words in their name or uid."""
    words, place = visit.query.get("q", "").strip(), visit.query.get("before", "")
    try:
        before = ids.read(ids.APPLICATION, place) if place else None
    except ValueError as error:
        raise InvalidValue(str(error), "before") from None
    if "\x00" in words:
        raise InvalidValue("it must not hold control characters", "q")
    async with visit.work() as work:
        rows = await sights.search_applications(work.connection, work.organization, words or None, before, limit=_PAGE)
        troubled = await sights.list_troubled(work.connection, work.organization, limit=_RECENT)
    return visit.page(
        "applications/list.html",
        rows=rows,
        q=words,
        more=rows[-1].application.shown_id if len(rows) == _PAGE else "",
        troubled=len(troubled),
        most_troubled=_RECENT,
    )


@routes.get("/applications/new", Permission.APPLICATION_MANAGE)
async def show_form_for_new(visit: Visit) -> Response:
    """Show the form for an application about to be made."""
    return visit.page("applications/form.html", application=None, values={}, problems={})


@routes.post("/applications", Permission.APPLICATION_MANAGE)
async def create_application(visit: Visit) -> Response:
    """Make an application."""
    reader = Reader(visit.form)
    try:
        new = reader.judged(ApplicationIn, _document_of(reader)).value()
        async with visit.work() as work:
            made = await applications.create(work, new)
    except Misfilled as error:
        return _form(visit, None, error.problems)
    except _REFUSALS as error:
        return _form(visit, None, problems_of(error))
    return visit.to(f"{HOME}/{made.shown_id}", "The application is made; give it an endpoint next.")


def _document_of(reader: Reader) -> dict[str, Any]:
    return {
        "name": reader.text("name"),
        "uid": reader.text("uid") or None,
        "throttleRate": reader.number("throttleRate"),
        "metadata": reader.pairs("metadata", "="),
    }


def _form(visit: Visit, application: Application | None, problems: Mapping[str, str]) -> Response:
    values = refilled(visit.form)
    return visit.page("applications/form.html", 400, application=application, values=values, problems=problems)


@routes.get("/applications/{application}", Permission.APPLICATION_VIEW)
async def show_application(visit: Visit) -> Response:
    """Show an application with its endpoints and its latest messages."""
    side = operators_side(visit, visit.path["application"])
    async with side.work() as (work, application):
        rows, more = await rows_of(side, work, application)
        recent = await sights.look_at_messages(work.connection, application.shown_id, None, limit=_RECENT)
    return side.page(
        "applications/show.html",
        application=application,
        rows=rows,
        more=more,
        recent=recent.rows,
        lifetimes=LIFETIMES,
        capabilities=CAPABILITIES,
    )


@routes.get("/applications/{application}/edit", Permission.APPLICATION_MANAGE)
async def show_form(visit: Visit) -> Response:
    """Show the form for an application as it is."""
    async with visit.work() as work:
        application = await applications.get(work, visit.path["application"])
    values = {
        "name": application.name,
        "uid": application.uid or "",
        "throttleRate": "" if application.throttle_rate is None else str(application.throttle_rate),
        "metadata": "\n".join(f"{name} = {value}" for name, value in application.metadata.items()),
    }
    return visit.page("applications/form.html", application=application, values=values, problems={})


@routes.post("/applications/{application}/edit", Permission.APPLICATION_MANAGE)
async def change_application(visit: Visit) -> Response:
    """Give an application the values of its form."""
    reader = Reader(visit.form)
    async with visit.work() as work:
        application = await applications.get(work, visit.path["application"])
    try:
        changes = reader.judged(ApplicationPatch, _document_of(reader)).given()
        async with visit.work() as work:
            await applications.change(work, application.shown_id, changes)
    except Misfilled as error:
        return _form(visit, application, error.problems)
    except _REFUSALS as error:
        return _form(visit, application, problems_of(error))
    return visit.to(f"{HOME}/{application.shown_id}", "The changes are saved.")


@routes.post("/applications/{application}/delete", Permission.APPLICATION_MANAGE)
async def delete_application(visit: Visit) -> Response:
    """Delete an application whose name was written out."""
    async with visit.work() as work:
        application = await applications.get(work, visit.path["application"])
        if str(visit.form.get("typed", "")).strip() != application.name.strip():
            text = f"Nothing was deleted: write {application.name} to confirm it."
            return visit.to(f"{HOME}/{application.shown_id}", text, "bad")
        await applications.delete(work, application.shown_id)
    return visit.to(HOME, f"{application.name} is deleted with all its endpoints; what was sent stays on record.")


@routes.get("/applications/{application}/publish", Permission.MESSAGE_PUBLISH)
async def show_publishing(visit: Visit) -> Response:
    """Show the form by which a message is published."""
    side = operators_side(visit, visit.path["application"])
    return await _publishing(side, {"payload": '{\n  "test": true\n}'}, {}, 200)


async def _publishing(side: Side, values: Mapping[str, Any], problems: Mapping[str, str], status: int) -> Response:
    async with side.work() as (work, application):
        known = await known_types(side, work)
    return side.page(
        "applications/publish.html", status, application=application, known=known, values=values, problems=problems
    )


@routes.post("/applications/{application}/publish", Permission.MESSAGE_PUBLISH)
async def publish(visit: Visit) -> Response:
    """Publish a message."""
    side = operators_side(visit, visit.path["application"])
    reader = Reader(visit.form)
    try:
        new = _message_of(reader)
        async with side.work() as (work, application):
            row, _ = await messages.create(work, application, new)
    except Misfilled as error:
        return await _publishing(side, refilled(visit.form), error.problems, 400)
    except _REFUSALS as error:
        return await _publishing(side, refilled(visit.form), problems_of(error), 400)
    visit.desk.rouse()
    return side.to(f"/messages/{row.shown_id}", "The message is published.")


def _message_of(reader: Reader) -> NewMessage:
    payload = reader.text("payload").encode("utf-8", "replace")
    try:
        msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reader.problems["payload"] = f"this is no JSON: {error}"
    document = {
        "eventType": reader.text("eventType"),
        "eventId": reader.text("eventId") or None,
        "channels": reader.words("channels") or None,
        "tags": reader.words("tags") or None,
    }
    read = reader.judged(MessageIn, document)
    return NewMessage(
        type=read.event_type,
        body=messages.object_of(payload),
        uid=read.event_id,
        channels=tuple(read.channels or ()),
        tags=tuple(read.tags or ()),
    )


@routes.post("/applications/{application}/portal", Permission.PORTAL_GRANT)
async def invite(visit: Visit) -> Response:
    """Make a way into the portal, and show it this once."""
    lifetime = str(visit.form.get("lifetime", ""))
    if lifetime not in dict(LIFETIMES):
        raise InvalidValue("choose how long the link shall be good", "lifetime")
    chosen = [one for one in CAPABILITIES if one in visit.form.getlist("capabilities")]
    look = Look.read(str(visit.form.get("theme", "")), str(visit.form.get("colour", "")).removeprefix("#"))
    async with visit.work() as work:
        application = await applications.get(work, visit.path["application"])
        made = await keys.create_for_portal(
            work,
            application,
            lifetime=timedelta(seconds=int(lifetime)),
            capabilities=[Capability.VIEW_BASE, *chosen],
        )
    base = visit.desk.settings.server.public_url or str(visit.request.base_url).rstrip("/")
    return visit.page(
        "applications/portal.html",
        application=application,
        link=portal.link(base, made.token, look),
        lifetime=dict(LIFETIMES)[lifetime],
        allowed=[CAPABILITIES[one] for one in chosen],
        key=made.key.shown_id,
        embedders=visit.desk.settings.console.embed_origins,
    )


@routes.post("/applications/{application}/portal/end", Permission.PORTAL_GRANT)
async def end_portal(visit: Visit) -> Response:
    """End all keys of an application's portal, and those of its API."""
    async with visit.work() as work:
        application = await applications.get(work, visit.path["application"])
        await keys.expire_all(work, application, None, timedelta(0))
    return visit.to(f"{HOME}/{application.shown_id}", "All of its tokens have ended, and with them every portal link.")
