"""Payloads of messages, judged by the JSON Schemas of their event types."""

from typing import Any

from boathook.domain.errors import InvalidMessage
from boathook.journal.database import Connection
from boathook.journal.registry import read_schemas


async def check_message(connection: Connection, *, organization: str, type: str, payload: Any) -> None:
    """Refuse a payload that does not fit its event type's schema; a type without one takes any.

    Raises:
        InvalidMessage: it does not fit; the message names the path.
    """
    schemas = await read_schemas(connection, organization, type)
    if not schemas:
        return
    # What judges by schemas takes longer to import than most commands take.
    from boathook.inbound.schemas import validate

    fault = validate(payload, schemas)
    if fault is not None:
        raise InvalidMessage(f"payload: {fault}; the schema of event type {type} wants otherwise")
