"""Routes of operational webhooks: endpoints of the organization's own, told how its sending goes.

They are endpoints of one application that no other route shows; it is made when the first of them is.
"""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, Response
from pydantic import Field

from boathook.admin import endpoint_keys, endpoints
from boathook.admin.api.calls import Call, OrganizationCall, router
from boathook.admin.api.endpoint_keys import (
    EndpointHeadersIn,
    EndpointHeadersOut,
    EndpointSecretOut,
    EndpointSecretRotateIn,
)
from boathook.admin.api.endpoints import EndpointRef
from boathook.admin.api.errors import not_found
from boathook.admin.api.fields import OLD, EndpointUid, Flag, Input, Metadata, Moment, Output, Rate, Text, either
from boathook.admin.api.pages import EndpointPage, ListOf
from boathook.admin.desk import new_id
from boathook.admin.endpoints import NewEndpoint
from boathook.journal import applications
from boathook.journal.endpoints import Endpoint

routes = router("Operational Webhook Endpoint")
_BASE = "/operational-webhook/endpoint"


class OperationalEndpointUpdate(Input):
    """What an operational webhook endpoint shall be like; what is left out returns to its default."""

    url: Text = Field(min_length=1, examples=["https://example.com/hook"])
    description: Text = ""
    uid: EndpointUid | None = None
    throttle_rate: Rate | None = Field(default=None, validation_alias=either("throttleRate", "rateLimit"))
    is_disabled: Flag = Field(default=False, validation_alias="disabled")
    event_types: list[str] | None = Field(
        default=None,
        validation_alias=either("eventTypes", "filterTypes"),
        description="Types of operational events; null or none is all.",
        examples=[["message.attempt.exhausted"]],
    )
    metadata: Metadata = Field(default_factory=dict)

    def value(self) -> NewEndpoint:
        """Return what actions take."""
        return NewEndpoint(
            url=self.url,
            description=self.description,
            uid=self.uid,
            throttle_rate=self.throttle_rate,
            is_disabled=self.is_disabled,
            event_types=self.event_types,
            metadata=self.metadata,
        )


class OperationalEndpointIn(OperationalEndpointUpdate):
    """An operational webhook endpoint."""

    secret: Text | None = None
    headers: dict[str, str] | None = Field(default=None, description="Sent with each event.")


class OperationalEndpointOut(Output):
    """An operational webhook endpoint."""

    id: str = Field(examples=["ep_01h455vb4pex5vsknk084sn02q4"])
    uid: str | None
    url: str
    description: str
    disabled: bool
    throttle_rate: int | None
    rate_limit: int | None = Field(json_schema_extra=OLD)
    event_types: list[str] | None
    filter_types: list[str] | None = Field(json_schema_extra=OLD)
    metadata: dict[str, str]
    created_at: Moment
    updated_at: Moment


def _show(endpoint: Endpoint) -> OperationalEndpointOut:
    types = None if endpoint.event_types is None else list(endpoint.event_types)
    assert endpoint.created_at is not None
    assert endpoint.updated_at is not None
    return OperationalEndpointOut(
        id=endpoint.shown_id,
        uid=endpoint.uid,
        url=endpoint.url,
        description=endpoint.description,
        disabled=endpoint.is_disabled,
        throttle_rate=endpoint.throttle_rate,
        rate_limit=endpoint.throttle_rate,
        event_types=types,
        filter_types=types,
        metadata=dict(endpoint.metadata),
        created_at=endpoint.created_at,
        updated_at=endpoint.updated_at,
    )


async def _existing(call: OrganizationCall) -> Call:
    call.found = await applications.find_operational(call.connection, call.principal.organization)
    if call.found is None:
        raise not_found()
    return call


async def _made(call: OrganizationCall) -> Call:
    call.found = await applications.ensure_operational(call.connection, new_id(), call.principal.organization)
    return call


ExistingCall = Annotated[Call, Depends(_existing)]
MakingCall = Annotated[Call, Depends(_made)]


@routes.get(_BASE, operation_id="v1.operational-webhook.endpoint.list", summary="List operational webhook endpoints")
async def list_endpoints(call: OrganizationCall, page: EndpointPage) -> ListOf[OperationalEndpointOut]:
    """List the organization's own endpoints, the youngest first."""
    application = await applications.find_operational(call.connection, call.principal.organization)
    rows = [] if application is None else await endpoints.list_some(call.work, application, page.window())
    return page.answer(rows, lambda row: row.shown_id, _show)


@routes.post(
    _BASE,
    status_code=201,
    operation_id="v1.operational-webhook.endpoint.create",
    summary="Create an operational webhook endpoint",
)
async def create_endpoint(call: MakingCall, body: OperationalEndpointIn) -> OperationalEndpointOut:
    """Create an endpoint of the organization's own."""
    made = await endpoints.create(call.work, call.application, body.value(), secret=body.secret, headers=body.headers)
    return _show(made)


@routes.get(
    _BASE + "/{endpoint_id}",
    operation_id="v1.operational-webhook.endpoint.get",
    summary="Get an operational webhook endpoint",
)
async def get_endpoint(call: ExistingCall, endpoint_id: EndpointRef) -> OperationalEndpointOut:
    """Return an endpoint of the organization's own."""
    return _show(await endpoints.get(call.work, call.application, endpoint_id))


@routes.put(
    _BASE + "/{endpoint_id}",
    operation_id="v1.operational-webhook.endpoint.update",
    summary="Replace or create an operational webhook endpoint",
    responses={201: {"model": OperationalEndpointOut, "description": "There was none; it was created"}},
)
async def put_endpoint(
    call: MakingCall, endpoint_id: EndpointRef, body: OperationalEndpointUpdate, response: Response
) -> OperationalEndpointOut:
    """Replace an endpoint's fields; where there is none, create it with the path's word as its uid."""
    endpoint, is_made = await endpoints.put(call.work, call.application, endpoint_id, body.value())
    response.status_code = 201 if is_made else 200
    return _show(endpoint)


@routes.delete(
    _BASE + "/{endpoint_id}",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.delete",
    summary="Delete an operational webhook endpoint",
)
async def delete_endpoint(call: ExistingCall, endpoint_id: EndpointRef) -> None:
    """Delete an endpoint of the organization's own."""
    await endpoints.delete(call.work, call.application, endpoint_id)


@routes.get(
    _BASE + "/{endpoint_id}/secret",
    operation_id="v1.operational-webhook.endpoint.get-secret",
    summary="Get an operational webhook endpoint's secret",
)
async def get_secret(call: ExistingCall, endpoint_id: EndpointRef) -> EndpointSecretOut:
    """Return what signatures are verified with."""
    return EndpointSecretOut(key=await endpoint_keys.get_secret(call.work, call.application, endpoint_id))


@routes.post(
    _BASE + "/{endpoint_id}/secret/rotate",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.rotate-secret",
    summary="Rotate an operational webhook endpoint's secret",
)
async def rotate_secret(
    call: ExistingCall, endpoint_id: EndpointRef, body: EndpointSecretRotateIn | None = None
) -> None:
    """Give an endpoint another secret; the present one signs along for a while."""
    given: dict[str, Any] = {} if body is None else {"secret": body.key}
    if body is not None and body.grace_period_seconds is not None:
        given["grace"] = timedelta(seconds=body.grace_period_seconds)
    await endpoint_keys.rotate_secret(call.work, call.application, endpoint_id, **given)


@routes.get(
    _BASE + "/{endpoint_id}/headers",
    operation_id="v1.operational-webhook.endpoint.get-headers",
    summary="Get an operational webhook endpoint's headers",
)
async def get_headers(call: ExistingCall, endpoint_id: EndpointRef) -> EndpointHeadersOut:
    """Return an endpoint's headers; of sensitive ones only the names."""
    headers = await endpoint_keys.get_headers(call.work, call.application, endpoint_id)
    return EndpointHeadersOut(headers=dict(headers.shown), sensitive=list(headers.sensitive))


@routes.put(
    _BASE + "/{endpoint_id}/headers",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.update-headers",
    summary="Replace an operational webhook endpoint's headers",
)
async def put_headers(call: ExistingCall, endpoint_id: EndpointRef, body: EndpointHeadersIn) -> None:
    """Replace all headers of an endpoint."""
    await endpoint_keys.set_headers(call.work, call.application, endpoint_id, body.headers)
