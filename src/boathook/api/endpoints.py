"""Routes of endpoints."""

from typing import Annotated, Any

from fastapi import Path, Response
from pydantic import Field

from boathook.api.pages import EndpointPage, ListOf
from boathook.api.route import ApplicationCall, router
from boathook.service import endpoints
from boathook.service.authorization import Permission, requires
from boathook.service.endpoints import Endpoint
from boathook.service.schemas.endpoints import EndpointIn, EndpointPatch, EndpointUpdate
from boathook.service.schemas.fields import DEPRECATED, Output, Timestamp
from boathook.service.unit_of_work import UnitOfWork

routes = router("Endpoint")

EndpointRef = Annotated[
    str, Path(description="The endpoint's id or uid.", examples=["ep_01h455vb4pex5vsknk084sn02q4", "crm"])
]


class EndpointBasicsOut(Output):
    """What is shown of every kind of endpoint."""

    id: str = Field(examples=["ep_01h455vb4pex5vsknk084sn02q4"])
    uid: str | None = Field(examples=["crm"])
    url: str = Field(examples=["https://example.com/hook"])
    description: str
    disabled: bool
    throttle_rate: int | None
    rate_limit: int | None = Field(json_schema_extra=DEPRECATED)
    event_types: list[str] | None
    filter_types: list[str] | None = Field(json_schema_extra=DEPRECATED)
    created_at: Timestamp
    updated_at: Timestamp


class EndpointOut(EndpointBasicsOut):
    """An endpoint."""

    version: int = Field(json_schema_extra=DEPRECATED)
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


def show_endpoint(work: UnitOfWork, endpoint: Endpoint) -> EndpointOut:
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
        auth=sorted(endpoints.decrypt_auth(work, endpoint)),
    )


def _show_schedule(endpoint: Endpoint) -> str | list[float] | None:
    if endpoint.retry is None or endpoint.retry_name is not None:
        return endpoint.retry_name
    return list(endpoint.retry.delays_s or ())


@routes.get("/app/{app_id}/endpoint", operation_id="v1.endpoint.list", summary="List endpoints")
@requires(Permission.ENDPOINT_VIEW)
async def list_endpoints(call: ApplicationCall, page: EndpointPage) -> ListOf[EndpointOut]:
    """List an application's endpoints, the youngest first."""
    rows = await endpoints.list_page(call.work, call.application, page.window())
    return page.answer(rows, lambda row: row.shown_id, lambda row: show_endpoint(call.work, row))


@routes.post("/app/{app_id}/endpoint", status_code=201, operation_id="v1.endpoint.create", summary="Create an endpoint")
@requires(Permission.ENDPOINT_MANAGE)
async def create_endpoint(call: ApplicationCall, body: EndpointIn) -> EndpointOut:
    """Create an endpoint; messages published from now on are sent there."""
    made = await endpoints.create(call.work, call.application, body.value(), secret=body.secret, headers=body.headers)
    return show_endpoint(call.work, made)


@routes.get("/app/{app_id}/endpoint/{endpoint_id}", operation_id="v1.endpoint.get", summary="Get an endpoint")
@requires(Permission.ENDPOINT_VIEW)
async def get_endpoint(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointOut:
    """Return an endpoint by its id or uid."""
    return show_endpoint(call.work, await endpoints.get(call.work, call.application, endpoint_id))


@routes.put(
    "/app/{app_id}/endpoint/{endpoint_id}",
    operation_id="v1.endpoint.update",
    summary="Replace or create an endpoint",
    responses={201: {"model": EndpointOut, "description": "There was none; it was created"}},
)
@requires(Permission.ENDPOINT_MANAGE)
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
@requires(Permission.ENDPOINT_MANAGE)
async def patch_endpoint(call: ApplicationCall, endpoint_id: EndpointRef, body: EndpointPatch) -> EndpointOut:
    """Change the fields that are given."""
    changed = await endpoints.update(call.work, call.application, endpoint_id, body.value(), backlog=body.backlog)
    return show_endpoint(call.work, changed)


@routes.delete(
    "/app/{app_id}/endpoint/{endpoint_id}",
    status_code=204,
    operation_id="v1.endpoint.delete",
    summary="Delete an endpoint",
)
@requires(Permission.ENDPOINT_MANAGE)
async def delete_endpoint(call: ApplicationCall, endpoint_id: EndpointRef) -> None:
    """Delete an endpoint; what is still owed to it is not sent, and its uid may be used again."""
    await endpoints.delete(call.work, call.application, endpoint_id)
