"""Operational events: what an organization is told of its own sending, through the same engine as everything else."""

from collections.abc import Mapping
from typing import Any

from boathook.db.database import Connection
from boathook.db.route_registry import find_operational
from boathook.domain import ids
from boathook.domain.endpoints import OPERATIONAL_TYPES
from boathook.domain.model import Published
from boathook.handlers.outbox import Message, Outbox


async def publish_operational_event(
    outbox: Outbox, connection: Connection, *, organization: str, type: str, data: Mapping[str, Any]
) -> Published | None:
    """Publish an operational event in the transaction of *connection*; None where the organization listens to none.

    Args:
        outbox: whichever the process has.
        connection: inside the transaction that makes what is told of.
        organization: whose operational application gets it.
        type: one of `OPERATIONAL_TYPES`.
        data: what happened, as section "Operational Webhooks" of Svix's API names its fields.

    Raises:
        ValueError: there are no operational events of this type.
    """
    if type not in OPERATIONAL_TYPES:
        raise ValueError(f"{type!r} is no type of operational events")
    application = await find_operational(connection, organization)
    if application is None:
        return None
    return await outbox.publish(
        connection,
        Message(
            organization=organization,
            application=ids.show(ids.APPLICATION, application),
            type=type,
            payload={"type": type, "data": data},
        ),
    )
