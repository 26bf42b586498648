"""Routes of endpoints."""

from dataclasses import fields, replace
from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import Field

from boathook.admin import endpoints
from boathook.admin.api.calls import ApplicationCall, router
from boathook.admin.api.fields import (
    OLD,
    Description,
    EndpointUid,
    Flag,
    Input,
    Metadata,
    Moment,
    Name,
    OffFlag,
    Output,
    Part,
    Rate,
    Text,
    Whole,
    either,
    or_null,
    unset,
)
from boathook.admin.api.pages import EndpointPage, ListOf
from boathook.admin.authorization import Permission, needs
from boathook.admin.desk import Work
from boathook.admin.endpoints import Backlog, NewEndpoint
from boathook.journal.endpoints import Endpoint

routes = router("Endpoint")

EndpointRef = Annotated[
    str, Path(description="The endpoint's id or uid.", examples=["ep_01h455vb4pex5vsknk084sn02q4", "crm"])
]
Seconds = Annotated[float, Field(ge=1, le=60)]
Version = Annotated[Whole, Field(ge=1, le=2_147_483_647)]
Places = Annotated[int, Field(strict=True, ge=1, le=1_000)]
Schedule = Annotated[
    Text | list[float],
    Field(
        description="A preset (standard-webhooks, svix, cashdesk, none) or the waits between attempts in seconds.",
        examples=["standard-webhooks", [5, 60, 3600]],
    ),
]
_TYPES = Field(
    default=None,
    validation_alias=either("eventTypes", "filterTypes"),
    description="Names of event types, or patterns with *; null or none is all.",
    examples=[["invoice.paid", "user.*"]],
)
_FILTER = Field(
    default=None,
    description="Conditions on the payload and its headers.",
    examples=[{"body": {"amount": {"gte": 100}}}],
)


class BasicIn(Part):
    """A user name and password."""

    username: Text = Field(pattern=r"^[^:]*$", max_length=1_024)
    password: Text = Field(max_length=4_096)


class OAuth2In(Part):
    """Where a token is had for a client's name and secret (RFC 6749, section 4.4)."""

    token_url: Text
    client_id: Name
    client_secret: Name
    scope: Text | None = None


class MtlsIn(Part):
    """A client certificate with its key, as PEM texts."""

    certificate: Text
    key: Text


class AuthIn(Part):
    """How the endpoint is shown who sends; it is kept sealed and never given back."""

    basic: BasicIn | None = None
    oauth2: OAuth2In | None = None
    mtls: MtlsIn | None = None

    def value(self) -> dict[str, Any]:
        """Return what actions take."""
        return self.model_dump(by_alias=True, exclude_none=True)


class EndpointBasics(Input):
    """What every kind of endpoint has."""

    url: Text = Field(min_length=1, examples=["https://example.com/hook"])
    description: Description = ""
    uid: EndpointUid | None = Field(default=None, examples=["crm"])
    throttle_rate: Rate | None = Field(
        default=None,
        validation_alias=either("throttleRate", "rateLimit"),
        description="Most messages a second; null is the application's.",
    )
    is_disabled: OffFlag = Field(default=False, validation_alias="disabled")
    event_types: list[str] | None = _TYPES
    metadata: Metadata = Field(default_factory=dict)

    def value(self) -> NewEndpoint:
        """Return what actions take."""
        names = {field.name for field in fields(NewEndpoint)} & type(self).model_fields.keys() - {"auth"}
        return NewEndpoint(**{name: getattr(self, name) for name in names})


class EndpointUpdate(EndpointBasics):
    """What an endpoint shall be like; what is left out returns to its default. Secret, headers and auth stay."""

    channels: list[str] | None = Field(default=None, examples=[["eu", "us"]])
    api_version: Annotated[Version, or_null(1, Version | None)] = Field(
        default=1, validation_alias="version", json_schema_extra=OLD
    )
    filter: dict[str, Any] | None = _FILTER
    order_by: Text | None = Field(
        default=None,
        description="A path into the payload: messages alike there are sent one after another; * for all of them.",
        examples=["customer.id", "*"],
    )
    concurrency: Places | None = Field(default=None, description="Most requests at once.")
    retry: Schedule | None = Field(default=None, validation_alias="retrySchedule")
    timeout_s: Seconds | None = Field(default=None, validation_alias="timeoutSeconds")
    auth: AuthIn | None = None
    backlog: Annotated[Backlog, or_null(Backlog.SEND, Backlog | None)] = Field(
        default=Backlog.SEND, description="What becomes of what waited, when this enables it."
    )

    def value(self) -> NewEndpoint:
        """Return what actions take."""
        return replace(super().value(), auth=None if self.auth is None else self.auth.value())


class EndpointIn(EndpointUpdate):
    """An endpoint."""

    secret: Text | None = Field(
        default=None,
        description="whsec_ and base64 of 24 to 75 bytes, or whsk_ and base64 of an Ed25519 private key.",
        examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
    )
    headers: dict[str, str] | None = Field(default=None, description="Sent with each message.")


class EndpointPatch(Input):
    """What of an endpoint shall change; null clears what may be empty."""

    url: Text = unset(min_length=1)
    description: Text = unset()
    uid: EndpointUid | None = unset()
    throttle_rate: Rate | None = unset(validation_alias=either("throttleRate", "rateLimit"))
    is_disabled: Flag = unset(bool, validation_alias="disabled")
    event_types: list[str] | None = unset(list, validation_alias=either("eventTypes", "filterTypes"))
    channels: list[str] | None = unset(list)
    metadata: Metadata = unset(dict)
    api_version: Version = unset(int, validation_alias="version", json_schema_extra=OLD)
    filter: dict[str, Any] | None = unset(dict)
    order_by: Text | None = unset()
    concurrency: Places | None = unset(int)
    retry: Schedule | None = unset(validation_alias="retrySchedule")
    timeout_s: Seconds | None = unset(float, validation_alias="timeoutSeconds")
    auth: AuthIn | None = unset(lambda: None)
    backlog: Backlog = Field(default=Backlog.SEND, description="What becomes of what waited, when this enables it.")

    def value(self) -> dict[str, Any]:
        """Return what actions take."""
        values = self.given()
        values.pop("backlog", None)
        if self.auth is not None:
            values["auth"] = self.auth.value()
        return values


class EndpointBasicsOut(Output):
    """What is shown of every kind of endpoint."""

    id: str = Field(examples=["ep_01h455vb4pex5vsknk084sn02q4"])
    uid: str | None = Field(examples=["crm"])
    url: str = Field(examples=["https://example.com/hook"])
    description: str
    disabled: bool
    throttle_rate: int | None
    rate_limit: int | None = Field(json_schema_extra=OLD)
    event_types: list[str] | None
    filter_types: list[str] | None = Field(json_schema_extra=OLD)
    created_at: Moment
    updated_at: Moment


class EndpointOut(EndpointBasicsOut):
    """An endpoint."""

    version: int = Field(json_schema_extra=OLD)
    channels: list[str] | None
    metadata: dict[str, str]
    filter: dict[str, Any] | None
    order_by: str | None
    concurrency: int | None
    retry_schedule: str | list[float] | None
    timeout_seconds: float | None
    auth: list[str] = Field(description="How the endpoint is shown who sends.", examples=[["mtls"]])


def basics_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the fields of `EndpointBasicsOut`."""
    types = None if endpoint.event_types is None else list(endpoint.event_types)
    return {
        "id": endpoint.shown_id,
        "uid": endpoint.uid,
        "url": endpoint.url,
        "description": endpoint.description,
        "disabled": endpoint.is_disabled,
        "throttle_rate": endpoint.throttle_rate,
        "rate_limit": endpoint.throttle_rate,
        "event_types": types,
        "filter_types": types,
        "created_at": endpoint.created_at,
        "updated_at": endpoint.updated_at,
    }


def show_endpoint(work: Work, endpoint: Endpoint) -> EndpointOut:
    """Return an endpoint as the API shows it."""
    return EndpointOut(
        **basics_of(endpoint),
        version=endpoint.api_version,
        channels=None if endpoint.channels is None else list(endpoint.channels),
        metadata=dict(endpoint.metadata),
        filter=None if endpoint.filter is None else dict(endpoint.filter),
        order_by=endpoint.order_by,
        concurrency=endpoint.concurrency,
        retry_schedule=_show_schedule(endpoint),
        timeout_seconds=endpoint.timeout_s,
        auth=sorted(endpoints.open_auth(work, endpoint)),
    )


def _show_schedule(endpoint: Endpoint) -> str | list[float] | None:
    if endpoint.retry is None or endpoint.retry_name is not None:
        return endpoint.retry_name
    return list(endpoint.retry.delays_s or ())


@routes.get("/app/{app_id}/endpoint", operation_id="v1.endpoint.list", summary="List endpoints")
@needs(Permission.ENDPOINT_VIEW)
async def list_endpoints(call: ApplicationCall, page: EndpointPage) -> ListOf[EndpointOut]:
    """List an application's endpoints, the youngest first."""
    rows = await endpoints.list_some(call.work, call.application, page.window())
    return page.answer(rows, lambda row: row.shown_id, lambda row: show_endpoint(call.work, row))


@routes.post("/app/{app_id}/endpoint", status_code=201, operation_id="v1.endpoint.create", summary="Create an endpoint")
@needs(Permission.ENDPOINT_MANAGE)
async def create_endpoint(call: ApplicationCall, body: EndpointIn) -> EndpointOut:
    """Create an endpoint; messages published from now on are sent there."""
    made = await endpoints.create(call.work, call.application, body.value(), secret=body.secret, headers=body.headers)
    return show_endpoint(call.work, made)


@routes.get("/app/{app_id}/endpoint/{endpoint_id}", operation_id="v1.endpoint.get", summary="Get an endpoint")
@needs(Permission.ENDPOINT_VIEW)
async def get_endpoint(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointOut:
    """Return an endpoint by its id or uid."""
    return show_endpoint(call.work, await endpoints.get(call.work, call.application, endpoint_id))


@routes.put(
    "/app/{app_id}/endpoint/{endpoint_id}",
    operation_id="v1.endpoint.update",
    summary="Replace or create an endpoint",
    responses={201: {"model": EndpointOut, "description": "There was none; it was created"}},
)
@needs(Permission.ENDPOINT_MANAGE)
async def put_endpoint(
    call: ApplicationCall, endpoint_id: EndpointRef, body: EndpointUpdate, response: Response
) -> EndpointOut:
    """Replace an endpoint's fields; where there is none, create it with the path's word as its uid."""
    endpoint, is_made = await endpoints.put(
        call.work, call.application, endpoint_id, body.value(), backlog=body.backlog
    )
    response.status_code = 201 if is_made else 200
    return show_endpoint(call.work, endpoint)


@routes.patch("/app/{app_id}/endpoint/{endpoint_id}", operation_id="v1.endpoint.patch", summary="Change an endpoint")
@needs(Permission.ENDPOINT_MANAGE)
async def patch_endpoint(call: ApplicationCall, endpoint_id: EndpointRef, body: EndpointPatch) -> EndpointOut:
    """Change the fields that are given."""
    changed = await endpoints.change(call.work, call.application, endpoint_id, body.value(), backlog=body.backlog)
    return show_endpoint(call.work, changed)


@routes.delete(
    "/app/{app_id}/endpoint/{endpoint_id}",
    status_code=204,
    operation_id="v1.endpoint.delete",
    summary="Delete an endpoint",
)
@needs(Permission.ENDPOINT_MANAGE)
async def delete_endpoint(call: ApplicationCall, endpoint_id: EndpointRef) -> None:
    """Delete an endpoint; what is still owed to it is not sent, and its uid may be used again."""
    await endpoints.delete(call.work, call.application, endpoint_id)
