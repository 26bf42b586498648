"""Routes of an endpoint's secret and headers."""

import re
from datetime import timedelta
from typing import Annotated, Final

from fastapi import Request, Response
from pydantic import Field

from boathook.api.endpoints import EndpointRef
from boathook.api.errors import answer_json
from boathook.api.route import ApplicationCall, router
from boathook.service import endpoint_secrets
from boathook.service.authorization import Permission, requires
from boathook.service.schemas.fields import Input, Output, Text, null_as

routes = router("Endpoint")
_VOID_ROTATION: Final = re.compile(r"svix-libs/(\d+)\.(\d+)[^/\s]*/(?:java|kotlin|csharp)\b", re.IGNORECASE)
_ROTATION_ANSWERS_SINCE: Final = (2, 7)


class EndpointSecretOut(Output):
    """What receivers verify with."""

    key: str = Field(
        description="whsec_ and base64 of the shared secret, or whpk_ and base64 of an Ed25519 public key.",
        examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
    )


class EndpointSecretRotateIn(Input):
    """The next secret."""

    key: Text | None = Field(default=None, description="null generates one.")
    grace_period_seconds: Annotated[int, Field(strict=True, ge=0, le=604_800)] | None = Field(
        default=None, description="Seconds that the old secret stays valid; default 86400."
    )

    @property
    def grace(self) -> timedelta:
        """How long the present secret signs along."""
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
    sensitive: list[str] = Field(description="Names of those whose values are not shown.", examples=[["authorization"]])


def show_headers(headers: endpoint_secrets.Headers) -> EndpointHeadersOut:
    """Return an endpoint's headers as the API shows them."""
    return EndpointHeadersOut(headers=dict(headers.shown), sensitive=list(headers.sensitive))


@routes.get(
    "/app/{app_id}/endpoint/{endpoint_id}/secret", operation_id="v1.endpoint.get-secret", summary="Get a secret"
)
@requires(Permission.ENDPOINT_SECRET_VIEW)
async def get_secret(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointSecretOut:
    """Return what receivers verify signatures with."""
    return EndpointSecretOut(key=await endpoint_secrets.get_secret(call.work, call.application, endpoint_id))


@routes.post(
    "/app/{app_id}/endpoint/{endpoint_id}/secret/rotate",
    operation_id="v1.endpoint.rotate-secret",
    summary="Rotate a secret",
    response_model=EndpointSecretOut,
    responses={204: {"description": "Done, for clients that understand no other answer"}},
)
@requires(Permission.ENDPOINT_SECRET_ROTATE)
async def rotate_secret(
    call: ApplicationCall, endpoint_id: EndpointRef, request: Request, body: EndpointSecretRotateIn | None = None
) -> Response:
    """Give an endpoint another secret; the present one signs along for a while."""
    given = body or EndpointSecretRotateIn()
    key = await endpoint_secrets.rotate_secret(
        call.work, call.application, endpoint_id, secret=given.key, grace=given.grace
    )
    return Response(status_code=204) if _wants_nothing(request) else answer_json(200, {"key": key})


def _wants_nothing(request: Request) -> bool:
    """Return whether the client is one that takes any answer but 204 for an error."""
    found = _VOID_ROTATION.search(request.headers.get("user-agent", ""))
    return found is not None and (int(found[1]), int(found[2])) < _ROTATION_ANSWERS_SINCE


@routes.get(
    "/app/{app_id}/endpoint/{endpoint_id}/headers", operation_id="v1.endpoint.get-headers", summary="Get headers"
)
@requires(Permission.ENDPOINT_HEADERS_VIEW)
async def get_headers(call: ApplicationCall, endpoint_id: EndpointRef) -> EndpointHeadersOut:
    """Return an endpoint's headers; of sensitive ones only the names."""
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
