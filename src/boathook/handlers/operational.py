"""Publishes operational webhooks: events that inform an organization about its own deliveries."""

from collections.abc import Mapping
from typing import Any

from boathook.db.database import Connection
from boathook.db.due_notifier import notify_due
from boathook.db.route_registry import find_operational
from boathook.domain import ids
from boathook.domain.endpoints import OPERATIONAL_TYPES
from boathook.domain.messages import Message
from boathook.domain.model import Published
from boathook.handlers.collector import collecting_due
from boathook.handlers.outbox import Outbox


async def publish_operational_event(
    outbox: Outbox,
    connection: Connection,
    *,
    organization: str,
    type: str,
    data: Mapping[str, Any],
    id: str | None = None,
) -> Published | None:
    """Publish an operational event in the transaction of *connection*; None if the organization has no endpoint for it.

    Args:
        outbox: the outbox of the process.
        connection: inside the transaction that causes the event.
        organization: the organization whose operational application receives it.
        type: one of `OPERATIONAL_TYPES`.
        data: the event's fields, named as in section "Operational Webhooks" of Svix's API.
        id: an id under which it is published once; None for an event that is never repeated.

    Raises:
        ValueError: there are no operational events of this type.
    """
    if type not in OPERATIONAL_TYPES:
        raise ValueError(f"{type!r} is not a type of operational event")
    application = await find_operational(connection, organization)
    if application is None:
        return None
    with collecting_due() as collector:
        published = await outbox.publish(
            connection,
            Message(
                organization=organization,
                application=ids.show(ids.APPLICATION, application),
                type=type,
                payload={"type": type, "data": data},
                id=id,
            ),
        )
    if due := collector.take():
        await notify_due(connection, due)
    return published
