"""Pages of applications for operators: list, create, edit and delete applications, publish, and create portal links."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import InvalidMessage, InvalidValue
from boathook.domain.messages import Message, read_object
from boathook.service.access import keys, portal_sessions
from boathook.service.access.authorization import Capability, Permission
from boathook.service.access.portal_sessions import PortalAppearance
from boathook.service.catalogue import applications as operations
from boathook.service.operating import recipient_stats
from boathook.service.schemas.messages import ApplicationIn, ApplicationPatch, MessageIn
from boathook.service.sending import applications, endpoints, messages
from boathook.service.sending.applications import Application, NewApplication
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.settings import console_table
from boathook_console.shared.context import ApplicationScope, Page, Pages
from boathook_console.shared.endpoint_forms import (
    FORM_ERRORS,
    FormReader,
    form_fields,
    form_problems,
    submitted_values,
    table_values,
)
from boathook_console.shared.endpoints import list_rows, list_type_names

APPLICATIONS_PATH: Final = f"{BASE}/applications"
routes = Routes()

_PAGE: Final = 50
_FIELDS: Final = form_fields(NewApplication)
_RECENT_LIMIT: Final = 10
LIFETIMES: Final = (("3600", "one hour"), ("86400", "one day"), ("604800", "one week"))
CAPABILITIES: Final = {
    Capability.MANAGE_ENDPOINT: "create and edit endpoints",
    Capability.VIEW_ENDPOINT_SECRET: "view secrets",
    Capability.MANAGE_ENDPOINT_SECRET: "rotate secrets",
    Capability.CREATE_ATTEMPTS: "test endpoints, resend and recover messages",
}
"""Capabilities of a portal link besides viewing."""
_MAX_UNHEALTHY: Final = 100


@routes.get("/applications/unhealthy", Permission.APPLICATION_LIST)
async def list_unhealthy(context: ConsoleContext) -> Response:
    """Show the disabled and failing endpoints of all applications."""
    async with context.work() as work:
        endpoints_with_status = await recipient_stats.list_unhealthy_endpoints(work, limit=_MAX_UNHEALTHY)
    rows = [
        (
            ids.show(ids.ENDPOINT, row.id),
            f"{APPLICATIONS_PATH}/{ids.show(ids.APPLICATION, row.application_id)}",
            row,
            status,
        )
        for row, status in endpoints_with_status
    ]
    return context.page("endpoints/unhealthy.html", rows=rows, limit=_MAX_UNHEALTHY)


@routes.get("/endpoints/{endpoint}", Permission.ENDPOINT_VIEW)
async def find_endpoint(context: ConsoleContext) -> Response:
    """Redirect to the page of an endpoint, whose application is looked up."""
    reference = context.path["endpoint"]
    async with context.work() as work:
        owner = await endpoints.find_owner(work, reference)
    return context.to(f"{APPLICATIONS_PATH}/{owner}/endpoints/{reference}")


@routes.get("/applications", Permission.APPLICATION_LIST)
async def list_applications(context: ConsoleContext) -> Response:
    """Show applications, newest first, or those whose name or uid contains the search words."""
    words, cursor = context.query.get("q", "").strip(), context.query.get("before", "")
    try:
        before = ids.read(ids.APPLICATION, cursor) if cursor else None
    except ValueError as error:
        raise InvalidValue(str(error), "before") from None
    if "\x00" in words:
        raise InvalidValue("it must not contain control characters", "q")
    async with context.work() as work:
        rows = await applications.search(work, words or None, after=before, limit=_PAGE)
        troubled = await recipient_stats.list_unhealthy_endpoints(work, limit=_RECENT_LIMIT)
    return context.page(
        "applications/list.html",
        rows=rows,
        q=words,
        more=rows[-1].application.shown_id if len(rows) == _PAGE else "",
        troubled=len(troubled),
        most_troubled=_RECENT_LIMIT,
    )


@routes.get("/applications/new", Permission.APPLICATION_MANAGE)
async def show_form_for_new(context: ConsoleContext) -> Response:
    """Show the form for a new application."""
    return context.page("applications/form.html", application=None, values={}, problems={}, fields=_FIELDS)


@routes.post("/applications", Permission.APPLICATION_MANAGE)
async def create_application(context: ConsoleContext) -> Response:
    """Create an application."""
    reader = FormReader(context.form)
    try:
        new = reader.validate(ApplicationIn, reader.table(NewApplication)).value()
        async with context.work() as work:
            created = await operations.create(work, new)
    except FORM_ERRORS as error:
        return _form(context, None, form_problems(error))
    return context.to(f"{APPLICATIONS_PATH}/{created.id}", "Application created. Add an endpoint next.")


def _form(context: ConsoleContext, application: Application | None, problems: Mapping[str, str]) -> Response:
    values = submitted_values(context.form)
    return context.page(
        "applications/form.html", 400, application=application, values=values, problems=problems, fields=_FIELDS
    )


@routes.get("/applications/{application}", Permission.APPLICATION_VIEW)
async def show_application(context: ConsoleContext) -> Response:
    """Show an application with its endpoints and its latest messages."""
    scope = operator_scope(context, context.path["application"])
    async with scope.work() as (work, application):
        rows, more = await list_rows(scope, work, application)
        recent = await messages.search(work, application, limit=_RECENT_LIMIT)
    elsewhere = context.app_context.elsewhere
    return scope.page(
        "applications/show.html",
        application=application,
        rows=rows,
        more=more,
        recent=recent.rows,
        home_url="" if elsewhere is None else elsewhere.url_of(application.home or ""),
        lifetimes=LIFETIMES,
        capabilities=CAPABILITIES,
    )


@routes.get("/applications/{application}/edit", Permission.APPLICATION_MANAGE)
async def show_form(context: ConsoleContext) -> Response:
    """Show the form of an application."""
    async with context.work() as work:
        application = await applications.get(work, context.path["application"])
    values = table_values(NewApplication, application)
    return context.page("applications/form.html", application=application, values=values, problems={}, fields=_FIELDS)


@routes.post("/applications/{application}/edit", Permission.APPLICATION_MANAGE)
async def change_application(context: ConsoleContext) -> Response:
    """Update an application."""
    reader = FormReader(context.form)
    async with context.work() as work:
        application = await applications.get(work, context.path["application"])
    try:
        changes = reader.validate(ApplicationPatch, reader.table(NewApplication)).given()
        async with context.work() as work:
            await operations.update(work, operations.ApplicationUpdate(id=application.shown_id, **changes))
    except FORM_ERRORS as error:
        return _form(context, application, form_problems(error))
    return context.to(f"{APPLICATIONS_PATH}/{application.shown_id}", "Changes saved.")


@routes.post("/applications/{application}/delete", Permission.APPLICATION_MANAGE)
async def delete_application(context: ConsoleContext) -> Response:
    """Delete an application after the user has typed its name."""
    async with context.work() as work:
        application = await applications.get(work, context.path["application"])
        if context.field("typed").strip() != application.name.strip():
            text = f"Nothing was deleted: type {application.name} to confirm."
            return context.to(f"{APPLICATIONS_PATH}/{application.shown_id}", text, "bad")
        await operations.delete(work, operations.ApplicationNamed(id=application.shown_id))
    return context.to(APPLICATIONS_PATH, f"{application.name} and its endpoints are deleted. Delivery history is kept.")


@routes.get("/applications/{application}/publish", Permission.MESSAGE_PUBLISH)
async def show_publish_form(context: ConsoleContext) -> Response:
    """Show the form to publish a message."""
    scope = operator_scope(context, context.path["application"])
    return await _publish_form(scope, {"payload": '{\n  "test": true\n}'}, {}, 200)


async def _publish_form(
    scope: ApplicationScope, values: Mapping[str, Any], problems: Mapping[str, str], status: int
) -> Response:
    async with scope.work() as (work, application):
        type_names = await list_type_names(scope, work)
    return scope.page(
        "applications/publish.html", status, application=application, known=type_names, values=values, problems=problems
    )


@routes.post("/applications/{application}/publish", Permission.MESSAGE_PUBLISH)
async def publish(context: ConsoleContext) -> Response:
    """Publish a message."""
    scope = operator_scope(context, context.path["application"])
    reader = FormReader(context.form)
    try:
        message = _read_message(reader, context.path["application"])
        with context.app_context.announcing():
            async with scope.work() as (work, application):
                row, _ = await messages.create(work, application, message)
    except FORM_ERRORS as error:
        return await _publish_form(scope, submitted_values(context.form), form_problems(error), 400)
    return scope.to(f"/messages/{row.shown_id}", "Message published.")


def _read_message(reader: FormReader, application: str) -> Message:
    payload = reader.text("payload").encode("utf-8", "replace")
    try:
        read_object(payload)
    except InvalidMessage as error:
        reader.problems[error.field] = error.reason
    document = {
        "eventType": reader.text("eventType"),
        "eventId": reader.text("eventId") or None,
        "channels": reader.words("channels") or None,
        "tags": reader.words("tags") or None,
    }
    return reader.validate(MessageIn, document).value(application, payload)


@routes.post("/applications/{application}/portal", Permission.PORTAL_GRANT)
async def create_portal_link(context: ConsoleContext) -> Response:
    """Create a portal link, and show it once."""
    lifetime = context.field("lifetime")
    if lifetime not in dict(LIFETIMES):
        raise InvalidValue("choose when the link expires", "lifetime")
    capabilities = [capability for capability in CAPABILITIES if capability in context.form.getlist("capabilities")]
    appearance = PortalAppearance.read(context.field("theme"), context.field("colour").removeprefix("#"))
    async with context.work() as work:
        application = await applications.get(work, context.path["application"])
        portal_key = await keys.create_for_portal(
            work,
            application,
            lifetime=timedelta(seconds=int(lifetime)),
            capabilities=[Capability.VIEW_BASE, *capabilities],
        )
    base = context.app_context.settings.server.public_url or str(context.request.base_url).rstrip("/")
    return context.page(
        "applications/portal.html",
        application=application,
        link=portal_sessions.portal_link(base, portal_key.token, appearance),
        lifetime=dict(LIFETIMES)[lifetime],
        allowed=[CAPABILITIES[capability] for capability in capabilities],
        key=portal_key.key.shown_id,
        embedders=console_table(context.app_context.settings).embed_origins,
    )


@routes.post("/applications/{application}/portal/end", Permission.PORTAL_GRANT)
async def revoke_portal_sessions(context: ConsoleContext) -> Response:
    """Revoke all portal sessions and API tokens of an application."""
    async with context.work() as work:
        application = await applications.get(work, context.path["application"])
        await keys.expire_all(work, application, None, timedelta(0))
    return context.to(
        f"{APPLICATIONS_PATH}/{application.shown_id}",
        "All portal sessions and API tokens of this application are revoked.",
    )


def operator_routes(pages: Pages) -> Routes:
    """Return the routes of application pages for operators."""
    routes = Routes()
    for page in pages.entries:
        register = routes.get if page.method == "GET" else routes.post
        register(f"/applications/{{application}}{page.path}", page.permission)(_operator_handler(page))
    return routes


def _operator_handler(page: Page) -> Callable[[ConsoleContext], Awaitable[Response]]:
    async def handler(context: ConsoleContext) -> Response:
        return await page.handler(operator_scope(context, context.path["application"]))

    return handler


def operator_scope(context: ConsoleContext, reference: str) -> ApplicationScope:
    """Return the scope of an application for an operator."""
    return ApplicationScope(
        context=context,
        reference=reference,
        base=f"{APPLICATIONS_PATH}/{reference}",
        layout="base.html",
        is_portal=False,
        may=context.may,
    )
