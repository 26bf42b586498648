"""Routes of applications, and of portal tokens: each is valid for one visitor of one application."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from boathook.api.pages import ApplicationPage, ListOf
from boathook.api.route import AnyCall, ApplicationCall, ApplicationRef, Call, router
from boathook.service.access import keys, portal_sessions
from boathook.service.access.authorization import Capability, Permission, Principal, requires
from boathook.service.catalogue import applications as operations
from boathook.service.common_fields import SessionName
from boathook.service.limits import MAX_PORTAL_LIFETIME, ExpiryDelay, PortalLifetime
from boathook.service.schemas.derived import check_of, form_of
from boathook.service.schemas.fields import DEPRECATED, Input, Output, StrictBool, StrictInt, Text, Timestamp, null_as
from boathook.service.schemas.messages import ApplicationIn, ApplicationPatch
from boathook.service.sending import applications
from boathook.service.sending.applications import Application

routes = router("Application")
tokens = router("Authentication")
Session = Annotated[str, check_of(SessionName), form_of(SessionName)]


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


def _show_application(application: operations.Application) -> ApplicationOut:
    """Return an application as the API shows it."""
    return ApplicationOut.of(application, rate_limit=application.throttle_rate)


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
    return page.answer(rows, lambda row: row.shown_id, lambda row: _show_application(operations.view(row)))


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
        return _show_application(await operations.create(call.work, body.value()))
    application, is_made = await applications.get_or_create(call.work, body.value())
    response.status_code = 201 if is_made else 200
    return _show_application(operations.view(application))


@routes.get("/app/{app_id}", operation_id="v1.application.get", summary="Get an application")
@requires(Permission.APPLICATION_VIEW)
async def get_application(call: ApplicationCall) -> ApplicationOut:
    """Return an application by its id or uid."""
    return _show_application(operations.view(call.application))


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
    put = await operations.put(call.work, operations.ApplicationReplacement(id=app_id, **dict(body)))
    response.status_code = 201 if put.is_created else 200
    return _show_application(put.application)


@routes.patch("/app/{app_id}", operation_id="v1.application.patch", summary="Change an application")
@requires(Permission.APPLICATION_MANAGE)
async def patch_application(call: AnyCall, app_id: ApplicationRef, body: ApplicationPatch) -> ApplicationOut:
    """Change the given fields."""
    change = operations.ApplicationUpdate(id=app_id, **body.given())
    return _show_application(await operations.update(call.work, change))


@routes.delete("/app/{app_id}", status_code=204, operation_id="v1.application.delete", summary="Delete an application")
@requires(Permission.APPLICATION_MANAGE)
async def delete_application(call: AnyCall, app_id: ApplicationRef) -> None:
    """Delete an application with its endpoints; its uid can be used again."""
    await operations.delete(call.work, operations.ApplicationNamed(id=app_id))


class AppPortalAccessIn(Input):
    """The permissions of a portal visitor."""

    feature_flags: Annotated[list[Text], null_as([], list[Text] | None)] = Field(
        default_factory=list, description="Feature flags of the portal user; they show event types with these flags."
    )
    application: ApplicationIn | None = Field(default=None, description="Created if it does not exist.")
    capabilities: list[Capability] | None = Field(default=None, description="Capabilities; null allows everything.")
    expiry: Annotated[StrictInt, check_of(PortalLifetime), form_of(PortalLifetime)] | None = Field(
        default=None, description="Seconds until the token expires; by default 604800."
    )
    read_only: StrictBool | None = Field(default=None, json_schema_extra=DEPRECATED)
    session_id: Session | None = Field(default=None, description="A name by which the token can be revoked.")

    def granted(self) -> Sequence[str] | None:
        """Return the visitor's capabilities; None grants all."""
        return [Capability.VIEW_BASE] if self.read_only else self.capabilities


class AppPortalAccessOut(Output):
    """A portal link."""

    url: str = Field(examples=["https://hooks.example.com/portal#key=bhk_..."])
    token: str = Field(examples=["bhk_..."])


class ExpireAllIn(Input):
    """The tokens to revoke, and the time of revocation."""

    expiry: Annotated[StrictInt, check_of(ExpiryDelay), form_of(ExpiryDelay)] | None = Field(
        default=None, description="Seconds until they expire; by default immediately."
    )
    session_ids: Annotated[list[Session], Field(max_length=1_000)] | None = Field(
        default=None, description="Only those created with one of these names; by default all."
    )


@tokens.post(
    "/auth/app-portal-access/{app_id}",
    operation_id="v1.authentication.app-portal-access",
    summary="Create a portal link",
)
@requires(Permission.PORTAL_GRANT)
async def give_access(
    call: AnyCall, app_id: ApplicationRef, request: Request, body: AppPortalAccessIn | None = None
) -> AppPortalAccessOut:
    """Return a portal URL and token that grant access to one application."""
    body = body or AppPortalAccessIn()
    new = None if body.application is None else body.application.value()
    return await _give(call, request, await applications.ensure(call.work, app_id, new), body)


@tokens.post(
    "/auth/dashboard-access/{app_id}",
    operation_id="v1.authentication.dashboard-access",
    summary="Create a portal link",
    deprecated=True,
)
@requires(Permission.PORTAL_GRANT)
async def give_dashboard_access(call: ApplicationCall, request: Request) -> AppPortalAccessOut:
    """Return a portal URL and token, as app-portal-access does, for older clients."""
    return await _give(call, request, call.application, AppPortalAccessIn())


async def _give(call: Call, request: Request, application: Application, body: AppPortalAccessIn) -> AppPortalAccessOut:
    access_key = await keys.create_for_portal(
        call.work,
        application,
        lifetime=MAX_PORTAL_LIFETIME if body.expiry is None else timedelta(seconds=body.expiry),
        session_id=body.session_id,
        capabilities=body.granted(),
        feature_flags=body.feature_flags,
    )
    base = call.work.app_context.settings.server.public_url or str(request.base_url).rstrip("/")
    return AppPortalAccessOut(url=portal_sessions.portal_link(base, access_key.token), token=access_key.token)


@tokens.post("/auth/logout", status_code=204, operation_id="v1.authentication.logout", summary="End the token in use")
@requires(Permission.TOKEN_END)
async def log_out(call: AnyCall) -> None:
    """Revoke the token of this request; organization tokens are rejected, as `boathook keys revoke` ends those."""
    assert isinstance(call.principal, Principal), "no operator's token has this permission"
    await keys.revoke(call.work, call.principal.key_id, call.work.organization)


@tokens.post(
    "/auth/app/{app_id}/expire-all",
    status_code=204,
    operation_id="v1.authentication.expire-all",
    summary="End an application's tokens",
)
@requires(Permission.PORTAL_GRANT)
async def expire_all(call: ApplicationCall, body: ExpireAllIn | None = None) -> None:
    """Revoke all tokens of an application, or those of some portal sessions."""
    body = body or ExpireAllIn()
    await keys.expire_all(call.work, call.application, body.session_ids or None, timedelta(seconds=body.expiry or 0))
