"""Routes of applications."""

from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from boathook.api.pages import ApplicationPage, ListOf
from boathook.api.route import AnyCall, ApplicationCall, ApplicationRef, router
from boathook.service import applications
from boathook.service.applications import Application
from boathook.service.authorization import Permission, requires
from boathook.service.schemas.fields import DEPRECATED, Output, Timestamp
from boathook.service.schemas.messages import ApplicationIn, ApplicationPatch

routes = router("Application")


class ApplicationOut(Output):
    """An application."""

    id: str = Field(examples=["app_01h455vb4pex5vsknk084sn02q4"])
    uid: str | None = Field(examples=["acme"])
    name: str = Field(examples=["Acme"])
    throttle_rate: int | None
    rate_limit: int | None = Field(json_schema_extra=DEPRECATED)
    metadata: dict[str, str]
    created_at: Timestamp
    updated_at: Timestamp


def _show_application(application: Application) -> ApplicationOut:
    """Return an application as the API shows it."""
    return ApplicationOut.of(application, id=application.shown_id, rate_limit=application.throttle_rate)


@routes.get("/app", operation_id="v1.application.list", summary="List applications")
@requires(Permission.APPLICATION_LIST)
async def list_applications(
    call: AnyCall,
    page: ApplicationPage,
    exclude_apps_with_no_endpoints: bool = False,
    exclude_apps_with_disabled_endpoints: bool = False,
) -> ListOf[ApplicationOut]:
    """List the organization's applications, oldest first."""
    rows = await applications.list_page(
        call.work,
        page.window(),
        only_with_endpoints=exclude_apps_with_no_endpoints,
        only_all_enabled=exclude_apps_with_disabled_endpoints,
    )
    return page.answer(rows, lambda row: row.shown_id, _show_application)


@routes.post(
    "/app",
    status_code=201,
    operation_id="v1.application.create",
    summary="Create an application",
    responses={200: {"model": ApplicationOut, "description": "get_if_exists found one with this uid"}},
)
@requires(Permission.APPLICATION_MANAGE)
async def create_application(
    call: AnyCall,
    body: ApplicationIn,
    response: Response,
    get_if_exists: Annotated[bool, Query(description="Return the application that has the uid, as it is.")] = False,
) -> ApplicationOut:
    """Create an application, or return the existing one with the uid if get_if_exists is set."""
    if not get_if_exists:
        return _show_application(await applications.create(call.work, body.value()))
    application, is_made = await applications.get_or_create(call.work, body.value())
    response.status_code = 201 if is_made else 200
    return _show_application(application)


@routes.get("/app/{app_id}", operation_id="v1.application.get", summary="Get an application")
@requires(Permission.APPLICATION_VIEW)
async def get_application(call: ApplicationCall) -> ApplicationOut:
    """Return an application by its id or uid."""
    return _show_application(call.application)


@routes.put(
    "/app/{app_id}",
    operation_id="v1.application.update",
    summary="Replace or create an application",
    responses={201: {"model": ApplicationOut, "description": "There was none; it was created"}},
)
@requires(Permission.APPLICATION_MANAGE)
async def put_application(
    call: AnyCall, app_id: ApplicationRef, body: ApplicationIn, response: Response
) -> ApplicationOut:
    """Replace an application's fields, or create it with the uid from the path."""
    application, is_made = await applications.put(call.work, app_id, body.value())
    response.status_code = 201 if is_made else 200
    return _show_application(application)


@routes.patch("/app/{app_id}", operation_id="v1.application.patch", summary="Change an application")
@requires(Permission.APPLICATION_MANAGE)
async def patch_application(call: AnyCall, app_id: ApplicationRef, body: ApplicationPatch) -> ApplicationOut:
    """Change the given fields."""
    return _show_application(await applications.update(call.work, app_id, body.given()))


@routes.delete("/app/{app_id}", status_code=204, operation_id="v1.application.delete", summary="Delete an application")
@requires(Permission.APPLICATION_MANAGE)
async def delete_application(call: AnyCall, app_id: ApplicationRef) -> None:
    """Delete an application with its endpoints; its uid can be used again."""
    await applications.delete(call.work, app_id)
