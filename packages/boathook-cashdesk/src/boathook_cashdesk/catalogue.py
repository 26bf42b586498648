"""The catalogue of the events that webhooks report: a JSON Schema for each, and an OpenAPI document of all.

The fields are in ``events.json``, for both formats. A change that a receiver could notice gets the next version.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from boathook_cashdesk.entities import EVENT_TYPES, Action, Entity, event_type
from boathook_cashdesk.wire import TYPES, Format

FIELDS: Final[Mapping[str, Any]] = msgspec.json.decode(Path(__file__).with_name("events.json").read_bytes())
VERSION: Final[str] = FIELDS["version"]
_TIME: Final = {"type": "string", "format": "date-time"}
_HEADERS: Final = {
    "webhook-id": "The event's id, the same for every attempt; it is also that of `GET /cabinet/api/events`.",
    "webhook-timestamp": "When this attempt was sent, in seconds since 1970.",
    "webhook-signature": "The signature by Standard Webhooks: `v1,` and a base64 HMAC-SHA256.",
}


def schema(format: Format, entity: Entity, action: Action) -> dict[str, Any]:
    """Return the JSON Schema of a webhook's body; it is valid in draft 7 and in 2020-12."""
    state = FIELDS[format][entity]
    envelope: dict[str, Any]
    if format == "dreamkas":
        envelope = {"action": {"const": action}, "type": {"const": TYPES[entity]}, "data": state}
    else:
        uid = {"type": "string", "format": "uuid"}
        kinds = {"type": {"const": entity}, "action": {"const": action}}
        envelope = {"id": uid, **kinds, "at": _TIME, "object": state}
    return {"type": "object", "required": list(envelope), "properties": envelope}


def schemas(format: Format) -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of all event types."""
    return {event_type(entity, action): schema(format, entity, action) for entity in Entity for action in Action}


@functools.cache
def openapi(format: Format) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document whose ``webhooks`` are all event types."""
    parameters = [
        {"name": name, "in": "header", "required": True, "description": text, "schema": {"type": "string"}}
        for name, text in _HEADERS.items()
    ]
    responses = {"2XX": {"description": "Received. Anything else, or nothing within 20 seconds, is retried."}}
    webhooks = {
        name: {
            "post": {
                "operationId": name,
                "summary": EVENT_TYPES[name],
                "parameters": parameters,
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": responses,
            }
        }
        for name, body in schemas(format).items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Webhooks of the cabinet", "version": VERSION},
        "webhooks": webhooks,
    }
