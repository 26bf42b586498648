"""Payloads of messages, judged by the JSON Schemas of their event types."""

from collections.abc import Mapping
from typing import Any

from boathook.db.database import Connection
from boathook.db.route_registry import read_schemas
from boathook.domain.errors import InvalidMessage


async def check_message(connection: Connection, *, organization: str, type: str, payload: Any) -> None:
    """Refuse a payload that does not fit its event type's schema; a type without one takes any.

    Raises:
        InvalidMessage: it does not fit; the message names the path.
    """
    schemas = await read_schemas(connection, organization, type)
    fault = find_fault(payload, schemas) if schemas else None
    if fault is not None:
        raise InvalidMessage(f"payload: {fault}; the schema of event type {type} wants otherwise")


def find_fault(payload: Any, schemas: Mapping[str, Any]) -> str | None:
    """Return why a payload does not fit the latest of the schemas by version, with the path; None where it fits."""
    # What judges by schemas takes longer to import than most commands take.
    from boathook.verification.json_schema import validate

    return validate(payload, schemas)
