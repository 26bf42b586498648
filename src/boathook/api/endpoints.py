"""Routes of endpoints: their settings, secrets and headers, and test messages."""

import re
from datetime import timedelta
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Path, Request, Response
from msgspec.structs import asdict
from pydantic import Field

from boathook.api.errors import answer_json
from boathook.api.messages import MessageOut, show_message
from boathook.api.pages import EndpointPage, ListOf
from boathook.api.route import ApplicationCall, body_of, router
from boathook.domain.health import HealthState
from boathook.domain.messages import read_object
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import endpoints as operations
from boathook.service.limits import SecretGrace
from boathook.service.operating import recipient_stats
from boathook.service.schemas.derived import check_of, form_of
from boathook.service.schemas.endpoints import (
    EndpointBasicsOut,
    EndpointIn,
    EndpointOut,
    EndpointPatch,
    EndpointUpdate,
)
from boathook.service.schemas.fields import Input, Output, StrictInt, Text, Timestamp, TypeName, null_as
from boathook.service.sending import destinations, endpoint_secrets, endpoints, messages
from boathook.service.sending.endpoints import Endpoint
from boathook.service.unit_of_work import UnitOfWork

routes = router("Endpoint")

Shown = TypeVar("Shown", bound=EndpointBasicsOut)

EndpointRef = Annotated[
    str, Path(description="The endpoint's id or uid.", examples=["ep_01h455vb4pex5vsknk084sn02q4", "crm"])
]


def show_as(model: type[Shown], endpoint: Endpoint, **more: Any) -> Shown:
    """Return an endpoint as a response of this kind shows it, with the values in *more*."""
    return model.of(
        endpoint,
        id=endpoint.shown_id,
        disabled=endpoint.is_disabled,
        rate_limit=endpoint.throttle_rate,
        filter_types=endpoint.event_types,
        **more,
    )


def show_endpoint(work: UnitOfWork, endpoint: Endpoint) -> EndpointOut:
    """Return an endpoint as the API shows it."""
    return show_as(
        EndpointOut,
        endpoint,
        version=endpoint.api_version,
        retry_schedule=operations.shown_retry(endpoint),
        timeout_seconds=endpoint.timeout_s,
        destination=destinations.show(endpoint),
        auth=sorted(endpoints.decrypt_auth(work, endpoint)),
    )


@routes.get("/app/{app_id}/endpoint", operation_id="v1.endpoint.list", summary="List endpoints")
@requires(Permission.ENDPOINT_VIEW)
async def list_endpoints(call: ApplicationCall, page: EndpointPage) -> ListOf[EndpointOut]:
    """List an application's endpoints, newest first."""
    rows = await endpoints.list_page(call.work, call.application, page.window())
    return page.answer(rows, lambda row: row.shown_id, lambda row: show_endpoint(call.work, row))


@routes.post("/app/{app_id}/endpoint", status_code=201, operation_id="v1.endpoint.create", summary="Create an endpoint")
@requires(Permission.ENDPOINT_MANAGE)
async def create_endpoint(call: ApplicationCall, body: EndpointIn) -> EndpointOut:
    """Create an endpoint; messages published from now on are sent to it."""
    new = operations.EndpointCreate(application=call.application.shown_id, **asdict(body.value()))
    return await _read(call, (await operations.create(call.work, new)).id)


async def _read(call: ApplicationCall, reference: str) -> EndpointOut:
    return show_endpoint(call.work, await endpoints.get(call.work, call.application, reference))


@routes.get("/app/{app_id}/endpoint/{endpoint_id}", operation_id="v1.endpoint.get", summary="Get an endpoint")
@requires(Permission.ENDPOINT_VIEW)
async def get_endpoint(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointOut:
    """Return an endpoint by its id or uid."""
    return await _read(call, endpoint_id)


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
    """Replace an endpoint's fields, or create it with the uid from the path."""
    new = operations.EndpointReplacement(**named(call, endpoint_id), **asdict(body.value()), backlog=body.backlog)
    result = await operations.put(call.work, new)
    response.status_code = 201 if result.is_created else 200
    return await _read(call, result.endpoint.id)


@routes.patch("/app/{app_id}/endpoint/{endpoint_id}", operation_id="v1.endpoint.patch", summary="Change an endpoint")
@requires(Permission.ENDPOINT_MANAGE)
async def patch_endpoint(call: ApplicationCall, endpoint_id: EndpointRef, body: EndpointPatch) -> EndpointOut:
    """Change the given fields."""
    values = body.value()
    is_disabled = values.pop("is_disabled", None)
    target, is_switched = endpoint_id, is_disabled is not None
    if values or not is_switched:
        changed = await operations.update(call.work, operations.EndpointChange(**named(call, endpoint_id), **values))
        target, is_switched = changed.id, is_switched and changed.is_disabled is not is_disabled
    if is_switched and is_disabled:
        await operations.disable(call.work, operations.EndpointNamed(**named(call, target)))
    elif is_switched:
        await operations.enable(call.work, operations.Enabling(**named(call, target), backlog=body.backlog))
    return await _read(call, target)


class EndpointHealthOut(Output):
    """The health of an endpoint."""

    health: HealthState = Field(description="By its attempts of the last 24 hours.", examples=["healthy"])
    paused_until: Timestamp | None = Field(description="When the next probe of a paused endpoint goes; else null.")
    failures: int = Field(description="Failed attempts since the last one that succeeded.")


@routes.get(
    "/app/{app_id}/endpoint/{endpoint_id}/health",
    operation_id="v1.endpoint.get-health",
    summary="Get an endpoint's health",
)
@requires(Permission.ENDPOINT_VIEW)
async def get_health(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointHealthOut:
    """Return whether an endpoint is disabled, paused, failing, idle or healthy."""
    endpoint = await endpoints.get(call.work, call.application, endpoint_id)
    status = (await recipient_stats.read_endpoint_statuses(call.work, [endpoint]))[endpoint.id]
    return EndpointHealthOut(
        health=status.health.state, paused_until=status.health.paused_until, failures=status.failures.failures
    )


@routes.post(
    "/app/{app_id}/endpoint/{endpoint_id}/resume", operation_id="v1.endpoint.resume", summary="Resume an endpoint"
)
@requires(Permission.ENDPOINT_MANAGE)
async def resume_endpoint(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointOut:
    """End the pause of an endpoint and forget its failures: due messages are sent at once."""
    resumed = await operations.resume(call.work, operations.EndpointNamed(**named(call, endpoint_id)))
    return await _read(call, resumed.id)


def named(call: ApplicationCall, endpoint: str) -> dict[str, Any]:
    """Return the application and the endpoint in the path as the inputs of operations have them."""
    return {"application": call.application.shown_id, "id": endpoint}


@routes.delete(
    "/app/{app_id}/endpoint/{endpoint_id}",
    status_code=204,
    operation_id="v1.endpoint.delete",
    summary="Delete an endpoint",
)
@requires(Permission.ENDPOINT_MANAGE)
async def delete_endpoint(call: ApplicationCall, endpoint_id: EndpointRef) -> None:
    """Delete an endpoint; its pending messages are not sent, and its uid can be used again."""
    await operations.delete(call.work, operations.EndpointNamed(**named(call, endpoint_id)))


_VOID_ROTATION: Final = re.compile(r"svix-libs/(\d+)\.(\d+)[^/\s]*/(?:java|kotlin|csharp)\b", re.IGNORECASE)
_ROTATION_ANSWERS_SINCE: Final = (2, 7)


class EndpointSecretOut(Output):
    """The key that receivers use for verification."""

    key: str = Field(
        description="whsec_ and base64 of the shared secret, or whpk_ and base64 of an Ed25519 public key.",
        examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
    )


class EndpointSecretRotateIn(Input):
    """The new secret."""

    key: Text | None = Field(default=None, description="null generates one.")
    grace_period_seconds: Annotated[StrictInt, check_of(SecretGrace), form_of(SecretGrace)] | None = Field(
        default=None, description="Seconds that the old secret stays valid; default 86400."
    )

    @property
    def grace(self) -> timedelta:
        """How long the old secret stays valid."""
        seconds = self.grace_period_seconds
        return endpoint_secrets.DEFAULT_GRACE if seconds is None else timedelta(seconds=seconds)


class EndpointHeadersIn(Input):
    """All headers sent with each message."""

    headers: dict[str, str] = Field(examples=[{"x-shop": "north"}])


class EndpointHeadersPatchIn(Input):
    """Headers to set or remove."""

    headers: Annotated[dict[str, str | None], null_as({}, dict[str, str | None] | None)] = Field(
        default_factory=dict, description="null removes.", examples=[{"x-shop": "south", "x-old": None}]
    )
    delete_headers: Annotated[list[str], null_as([], list[str] | None)] = Field(
        default_factory=list, description="Names to remove."
    )


class EndpointHeadersOut(Output):
    """The headers sent with each message."""

    headers: dict[str, str]
    sensitive: list[str] = Field(
        description="Names of headers whose values are not shown.", examples=[["authorization"]]
    )


def show_headers(headers: endpoint_secrets.Headers) -> EndpointHeadersOut:
    """Return an endpoint's headers as the API shows them."""
    return EndpointHeadersOut(headers=dict(headers.shown), sensitive=list(headers.sensitive))


@routes.get(
    "/app/{app_id}/endpoint/{endpoint_id}/secret", operation_id="v1.endpoint.get-secret", summary="Get a secret"
)
@requires(Permission.ENDPOINT_SECRET_VIEW)
async def get_secret(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointSecretOut:
    """Return the key that receivers use to verify signatures."""
    return EndpointSecretOut(key=await endpoint_secrets.get_secret(call.work, call.application, endpoint_id))


@routes.post(
    "/app/{app_id}/endpoint/{endpoint_id}/secret/rotate",
    operation_id="v1.endpoint.rotate-secret",
    summary="Rotate a secret",
    response_model=EndpointSecretOut,
    responses={204: {"description": "Done; for clients that accept no other response"}},
)
@requires(Permission.ENDPOINT_SECRET_ROTATE)
async def rotate_secret(
    call: ApplicationCall, endpoint_id: EndpointRef, request: Request, body: EndpointSecretRotateIn | None = None
) -> Response:
    """Rotate the secret of an endpoint; messages are also signed with the old one during the grace period."""
    body = body or EndpointSecretRotateIn()
    rotation = operations.Rotation(**named(call, endpoint_id), key=body.key, grace_s=int(body.grace.total_seconds()))
    rotated = await operations.rotate_secret(call.work, rotation)
    return Response(status_code=204) if _accepts_no_content(request) else answer_json(200, {"key": rotated.key})


def _accepts_no_content(request: Request) -> bool:
    """Return whether the client treats any response but 204 as an error."""
    client_version = _VOID_ROTATION.search(request.headers.get("user-agent", ""))
    return client_version is not None and (int(client_version[1]), int(client_version[2])) < _ROTATION_ANSWERS_SINCE


@routes.get(
    "/app/{app_id}/endpoint/{endpoint_id}/headers", operation_id="v1.endpoint.get-headers", summary="Get headers"
)
@requires(Permission.ENDPOINT_HEADERS_VIEW)
async def get_headers(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointHeadersOut:
    """Return an endpoint's headers; only the names of sensitive ones."""
    return show_headers(await endpoint_secrets.get_headers(call.work, call.application, endpoint_id))


@routes.put(
    "/app/{app_id}/endpoint/{endpoint_id}/headers",
    status_code=204,
    operation_id="v1.endpoint.update-headers",
    summary="Replace headers",
)
@requires(Permission.ENDPOINT_MANAGE)
async def put_headers(call: ApplicationCall, endpoint_id: EndpointRef, body: EndpointHeadersIn) -> None:
    """Replace all headers of an endpoint."""
    await endpoint_secrets.set_headers(call.work, call.application, endpoint_id, body.headers)


@routes.patch(
    "/app/{app_id}/endpoint/{endpoint_id}/headers",
    status_code=204,
    operation_id="v1.endpoint.patch-headers",
    summary="Change headers",
)
@requires(Permission.ENDPOINT_MANAGE)
async def patch_headers(call: ApplicationCall, endpoint_id: EndpointRef, body: EndpointHeadersPatchIn) -> None:
    """Set or remove some headers of an endpoint."""
    await endpoint_secrets.change_headers(call.work, call.application, endpoint_id, body.headers, body.delete_headers)


_ExampleIndex = Annotated[int, form_of(operations.ExampleIndex)]


class EventExampleIn(Input):
    """The test message to send."""

    event_type: TypeName = Field(examples=["svix.ping"])
    example_index: Annotated[StrictInt, check_of(operations.ExampleIndex), null_as(0, _ExampleIndex | None)] = Field(
        default=0, description="Index of the example in the event type's schema."
    )
    payload: dict[str, Any] | None = Field(default=None, description="Sent instead of an example.")


class _Payload(msgspec.Struct):
    """The raw bytes of a request's payload."""

    payload: msgspec.Raw


@routes.post(
    "/app/{app_id}/endpoint/{endpoint_id}/send-example",
    operation_id="v1.endpoint.send-example",
    summary="Send a test message",
    response_model=MessageOut,
)
@requires(Permission.MESSAGE_PUBLISH)
async def send_example(
    call: ApplicationCall, request: Request, endpoint_id: EndpointRef, body: EventExampleIn
) -> Response:
    """Send one test message to an endpoint, regardless of its event types and channels."""
    payload = None
    if body.payload is not None:
        payload = bytes(msgspec.json.decode(await body_of(request), type=_Payload).payload)
        read_object(payload)
    row = await messages.send_example(
        call.work, call.application, endpoint_id, body.event_type, payload=payload, index=body.example_index
    )
    return answer_json(200, show_message(row, has_content=False))
