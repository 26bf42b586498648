"""Routes of operational webhooks: endpoints of the organization's own, told how its sending goes.

They are endpoints of one application that no other route shows; it is made when the first of them is.
"""

from typing import Annotated

from fastapi import Depends, Response
from pydantic import Field

from boathook.admin import endpoint_secrets, endpoints
from boathook.admin.api.calls import AnyCall, Call, router
from boathook.admin.api.endpoint_secrets import (
    EndpointHeadersIn,
    EndpointHeadersOut,
    EndpointSecretOut,
    EndpointSecretRotateIn,
    show_headers,
)
from boathook.admin.api.endpoints import EndpointBasics, EndpointBasicsOut, EndpointRef, basics_of
from boathook.admin.api.errors import not_found
from boathook.admin.api.fields import Text, either
from boathook.admin.api.pages import EndpointPage, ListOf
from boathook.admin.authorization import Permission, needs
from boathook.admin.desk import new_id
from boathook.journal import applications
from boathook.journal.endpoints import Endpoint

routes = router("Operational Webhook Endpoint")
_BASE = "/operational-webhook/endpoint"


class OperationalEndpointUpdate(EndpointBasics):
    """What an operational webhook endpoint shall be like; what is left out returns to its default."""

    event_types: list[str] | None = Field(
        default=None,
        validation_alias=either("eventTypes", "filterTypes"),
        description="Types of operational events; null or none is all.",
        examples=[["message.attempt.exhausted"]],
    )


class OperationalEndpointIn(OperationalEndpointUpdate):
    """An operational webhook endpoint."""

    secret: Text | None = None
    headers: dict[str, str] | None = Field(default=None, description="Sent with each event.")


class OperationalEndpointOut(EndpointBasicsOut):
    """An operational webhook endpoint."""

    metadata: dict[str, str]


def _show(endpoint: Endpoint) -> OperationalEndpointOut:
    return OperationalEndpointOut(**basics_of(endpoint), metadata=dict(endpoint.metadata))


async def _existing(call: AnyCall) -> Call:
    call.found = await applications.find_operational(call.connection, call.principal.organization)
    if call.found is None:
        raise not_found()
    return call


async def _made(call: AnyCall) -> Call:
    call.found = await applications.ensure_operational(call.connection, new_id(), call.principal.organization)
    return call


ExistingCall = Annotated[Call, Depends(_existing)]
MakingCall = Annotated[Call, Depends(_made)]


@routes.get(_BASE, operation_id="v1.operational-webhook.endpoint.list", summary="List operational webhook endpoints")
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def list_endpoints(call: AnyCall, page: EndpointPage) -> ListOf[OperationalEndpointOut]:
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
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def create_endpoint(call: MakingCall, body: OperationalEndpointIn) -> OperationalEndpointOut:
    """Create an endpoint of the organization's own."""
    made = await endpoints.create(call.work, call.application, body.value(), secret=body.secret, headers=body.headers)
    return _show(made)


@routes.get(
    _BASE + "/{endpoint_id}",
    operation_id="v1.operational-webhook.endpoint.get",
    summary="Get an operational webhook endpoint",
)
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def get_endpoint(call: ExistingCall, endpoint_id: EndpointRef) -> OperationalEndpointOut:
    """Return an endpoint of the organization's own."""
    return _show(await endpoints.get(call.work, call.application, endpoint_id))


@routes.put(
    _BASE + "/{endpoint_id}",
    operation_id="v1.operational-webhook.endpoint.update",
    summary="Replace or create an operational webhook endpoint",
    responses={201: {"model": OperationalEndpointOut, "description": "There was none; it was created"}},
)
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
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
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def delete_endpoint(call: ExistingCall, endpoint_id: EndpointRef) -> None:
    """Delete an endpoint of the organization's own."""
    await endpoints.delete(call.work, call.application, endpoint_id)


@routes.get(
    _BASE + "/{endpoint_id}/secret",
    operation_id="v1.operational-webhook.endpoint.get-secret",
    summary="Get an operational webhook endpoint's secret",
)
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def get_secret(call: ExistingCall, endpoint_id: EndpointRef) -> EndpointSecretOut:
    """Return what signatures are verified with."""
    return EndpointSecretOut(key=await endpoint_secrets.get_secret(call.work, call.application, endpoint_id))


@routes.post(
    _BASE + "/{endpoint_id}/secret/rotate",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.rotate-secret",
    summary="Rotate an operational webhook endpoint's secret",
)
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def rotate_secret(
    call: ExistingCall, endpoint_id: EndpointRef, body: EndpointSecretRotateIn | None = None
) -> None:
    """Give an endpoint another secret; the present one signs along for a while."""
    given = body or EndpointSecretRotateIn()
    await endpoint_secrets.rotate_secret(call.work, call.application, endpoint_id, secret=given.key, grace=given.grace)


@routes.get(
    _BASE + "/{endpoint_id}/headers",
    operation_id="v1.operational-webhook.endpoint.get-headers",
    summary="Get an operational webhook endpoint's headers",
)
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def get_headers(call: ExistingCall, endpoint_id: EndpointRef) -> EndpointHeadersOut:
    """Return an endpoint's headers; of sensitive ones only the names."""
    return show_headers(await endpoint_secrets.get_headers(call.work, call.application, endpoint_id))


@routes.put(
    _BASE + "/{endpoint_id}/headers",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.update-headers",
    summary="Replace an operational webhook endpoint's headers",
)
@needs(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def put_headers(call: ExistingCall, endpoint_id: EndpointRef, body: EndpointHeadersIn) -> None:
    """Replace all headers of an endpoint."""
    await endpoint_secrets.set_headers(call.work, call.application, endpoint_id, body.headers)
