"""Routes of operational webhooks: endpoints of the organization itself that receive events about its deliveries.

They belong to one application that no other route shows. It is created with the first endpoint.
"""

from typing import Annotated

from fastapi import Depends, Response
from pydantic import Field

from boathook.api.endpoints import (
    EndpointHeadersIn,
    EndpointHeadersOut,
    EndpointRef,
    EndpointSecretOut,
    EndpointSecretRotateIn,
    show_as,
    show_headers,
)
from boathook.api.errors import not_found
from boathook.api.pages import EndpointPage, ListOf
from boathook.api.route import AnyCall, Call, router
from boathook.service.access.authorization import Permission, requires
from boathook.service.schemas.endpoints import EndpointBasics, EndpointBasicsOut
from boathook.service.schemas.fields import Text, renamed_alias
from boathook.service.sending import applications, endpoint_secrets, endpoints
from boathook.service.sending.endpoints import Endpoint

routes = router("Operational Webhook Endpoint")
_BASE = "/operational-webhook/endpoint"


class OperationalEndpointUpdate(EndpointBasics):
    """The new values of an operational webhook endpoint; omitted fields return to their defaults."""

    event_types: list[str] | None = Field(
        default=None,
        validation_alias=renamed_alias("eventTypes", "filterTypes"),
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
    return show_as(OperationalEndpointOut, endpoint)


async def _existing(call: AnyCall) -> Call:
    call.found = await applications.find_operational(call.work)
    if call.found is None:
        raise not_found()
    return call


async def _ensured(call: AnyCall) -> Call:
    call.found = await applications.ensure_operational(call.work)
    return call


OperationalCall = Annotated[Call, Depends(_existing)]
CreateOperationalCall = Annotated[Call, Depends(_ensured)]


@routes.get(_BASE, operation_id="v1.operational-webhook.endpoint.list", summary="List operational webhook endpoints")
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def list_endpoints(call: AnyCall, page: EndpointPage) -> ListOf[OperationalEndpointOut]:
    """List the organization's operational endpoints, newest first."""
    application = await applications.find_operational(call.work)
    rows = [] if application is None else await endpoints.list_page(call.work, application, page.window())
    return page.answer(rows, lambda row: row.shown_id, _show)


@routes.post(
    _BASE,
    status_code=201,
    operation_id="v1.operational-webhook.endpoint.create",
    summary="Create an operational webhook endpoint",
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def create_endpoint(call: CreateOperationalCall, body: OperationalEndpointIn) -> OperationalEndpointOut:
    """Create an operational endpoint."""
    endpoint = await endpoints.create(
        call.work, call.application, body.value(), secret=body.secret, headers=body.headers
    )
    return _show(endpoint)


@routes.get(
    _BASE + "/{endpoint_id}",
    operation_id="v1.operational-webhook.endpoint.get",
    summary="Get an operational webhook endpoint",
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def get_endpoint(call: OperationalCall, endpoint_id: EndpointRef) -> OperationalEndpointOut:
    """Return an operational endpoint."""
    return _show(await endpoints.get(call.work, call.application, endpoint_id))


@routes.put(
    _BASE + "/{endpoint_id}",
    operation_id="v1.operational-webhook.endpoint.update",
    summary="Replace or create an operational webhook endpoint",
    responses={201: {"model": OperationalEndpointOut, "description": "There was none; it was created"}},
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def put_endpoint(
    call: CreateOperationalCall, endpoint_id: EndpointRef, body: OperationalEndpointUpdate, response: Response
) -> OperationalEndpointOut:
    """Replace an operational endpoint's fields, or create it with the uid from the path."""
    endpoint, is_made = await endpoints.put(call.work, call.application, endpoint_id, body.value())
    response.status_code = 201 if is_made else 200
    return _show(endpoint)


@routes.delete(
    _BASE + "/{endpoint_id}",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.delete",
    summary="Delete an operational webhook endpoint",
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def delete_endpoint(call: OperationalCall, endpoint_id: EndpointRef) -> None:
    """Delete an operational endpoint."""
    await endpoints.delete(call.work, call.application, endpoint_id)


@routes.get(
    _BASE + "/{endpoint_id}/secret",
    operation_id="v1.operational-webhook.endpoint.get-secret",
    summary="Get an operational webhook endpoint's secret",
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def get_secret(call: OperationalCall, endpoint_id: EndpointRef) -> EndpointSecretOut:
    """Return the key that receivers use to verify signatures."""
    return EndpointSecretOut(key=await endpoint_secrets.get_secret(call.work, call.application, endpoint_id))


@routes.post(
    _BASE + "/{endpoint_id}/secret/rotate",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.rotate-secret",
    summary="Rotate an operational webhook endpoint's secret",
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def rotate_secret(
    call: OperationalCall, endpoint_id: EndpointRef, body: EndpointSecretRotateIn | None = None
) -> None:
    """Rotate the secret of an endpoint; messages are also signed with the old one during the grace period."""
    rotation = body or EndpointSecretRotateIn()
    await endpoint_secrets.rotate_secret(
        call.work, call.application, endpoint_id, secret=rotation.key, grace=rotation.grace
    )


@routes.get(
    _BASE + "/{endpoint_id}/headers",
    operation_id="v1.operational-webhook.endpoint.get-headers",
    summary="Get an operational webhook endpoint's headers",
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def get_headers(call: OperationalCall, endpoint_id: EndpointRef) -> EndpointHeadersOut:
    """Return an endpoint's headers; only the names of sensitive ones."""
    return show_headers(await endpoint_secrets.get_headers(call.work, call.application, endpoint_id))


@routes.put(
    _BASE + "/{endpoint_id}/headers",
    status_code=204,
    operation_id="v1.operational-webhook.endpoint.update-headers",
    summary="Replace an operational webhook endpoint's headers",
)
@requires(Permission.OPERATIONAL_WEBHOOK_MANAGE)
async def put_headers(call: OperationalCall, endpoint_id: EndpointRef, body: EndpointHeadersIn) -> None:
    """Replace all headers of an endpoint."""
    await endpoint_secrets.set_headers(call.work, call.application, endpoint_id, body.headers)
