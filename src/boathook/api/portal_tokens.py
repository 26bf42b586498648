"""Routes of portal tokens: each is valid for one visitor of one application, for at most seven days."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final

from fastapi import Request
from pydantic import Field

from boathook.api.route import AnyCall, ApplicationCall, ApplicationRef, Call, router
from boathook.service import applications, keys, portal_sessions
from boathook.service.applications import Application
from boathook.service.authorization import Capability, Permission, requires
from boathook.service.schemas.fields import DEPRECATED, Input, Output, StrictBool, Text, null_as
from boathook.service.schemas.messages import ApplicationIn

routes = router("Authentication")

Session = Annotated[str, Field(pattern=r"^[a-zA-Z0-9@_\-.]{1,64}$")]
_DEFAULT_EXPIRY_S: Final = 604_800


class AppPortalAccessIn(Input):
    """The permissions of a portal visitor."""

    feature_flags: Annotated[list[Text], null_as([], list[Text] | None)] = Field(
        default_factory=list, description="Feature flags of the portal user; they show event types with these flags."
    )
    application: ApplicationIn | None = Field(default=None, description="Created if it does not exist.")
    capabilities: list[Capability] | None = Field(default=None, description="Capabilities; null allows everything.")
    expiry: Annotated[int, Field(strict=True, ge=3_600, le=604_800)] | None = Field(
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

    expiry: Annotated[int, Field(strict=True, ge=0, le=259_200)] | None = Field(
        default=None, description="Seconds until they expire; by default immediately."
    )
    session_ids: Annotated[list[Session], Field(max_length=1_000)] | None = Field(
        default=None, description="Only those created with one of these names; by default all."
    )


@routes.post(
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


@routes.post(
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
    made = await keys.create_for_portal(
        call.work,
        application,
        lifetime=timedelta(seconds=body.expiry or _DEFAULT_EXPIRY_S),
        session_id=body.session_id,
        capabilities=body.granted(),
        feature_flags=body.feature_flags,
    )
    base = call.work.app_context.settings.server.public_url or str(request.base_url).rstrip("/")
    return AppPortalAccessOut(url=portal_sessions.portal_link(base, made.token), token=made.token)


@routes.post("/auth/logout", status_code=204, operation_id="v1.authentication.logout", summary="End the token in use")
@requires(Permission.TOKEN_END)
async def log_out(call: AnyCall) -> None:
    """Revoke the token of this request; organization tokens are rejected, as `boathook keys revoke` ends those."""
    await keys.revoke(call.work, call.principal.key_id)


@routes.post(
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
