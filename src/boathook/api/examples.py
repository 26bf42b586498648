"""The route by which an endpoint is tried out."""

from typing import Annotated, Any

import msgspec
from fastapi import Request, Response
from pydantic import Field

from boathook.api.endpoints import EndpointRef
from boathook.api.errors import answer_json
from boathook.api.messages import MessageOut, show_message
from boathook.api.route import ApplicationCall, body_of, router
from boathook.service import messages
from boathook.service.authorization import Permission, requires
from boathook.service.schemas.fields import Input, StrictInt, TypeName, null_as

routes = router("Endpoint")


class EventExampleIn(Input):
    """What an endpoint is tried out with."""

    event_type: TypeName = Field(examples=["svix.ping"])
    example_index: Annotated[StrictInt, Field(ge=0), null_as(0, Annotated[int, Field(ge=0)] | None)] = Field(
        default=0, description="Which of the examples in the event type's schema."
    )
    payload: dict[str, Any] | None = Field(default=None, description="Sent in place of an example.")


class _Payload(msgspec.Struct):
    """The bytes of a payload within a request."""

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
    """Send an endpoint one message, whatever it listens to."""
    payload = None
    if body.payload is not None:
        payload = messages.object_of(bytes(msgspec.json.decode(await body_of(request), type=_Payload).payload))
    row = await messages.send_example(
        call.work, call.application, endpoint_id, body.event_type, payload=payload, index=body.example_index
    )
    return answer_json(200, show_message(row, has_content=False))
