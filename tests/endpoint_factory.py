"""Stores applications and endpoints directly in the database, and publishes messages to them."""

import hashlib
from typing import Any
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.messages import Message
from boathook.handlers.outbox import Outbox
from boathook.service.unit_of_work import new_id


async def add_application(
    db: Database | Connection, uid: str | None = None, organization: str = "default", *, is_operational: bool = False
) -> str:
    """Store an application and return its public id."""
    identifier = new_id()
    await db.execute(
        "insert into boathook.application (id, organization, uid, name, is_operational) values ($1, $2, $3, 'A', $4)",
        identifier, organization, uid, is_operational,
    )  # fmt: skip
    return ids.show(ids.APPLICATION, identifier)


async def add_endpoint(db: Database, application: str, **columns: Any) -> str:
    """Store an endpoint and increase the version of the application's routes; return the recipient."""
    async with db.transaction() as connection:
        return await add_endpoint_in(connection, application, **columns)


async def add_endpoint_in(connection: Connection, application: str, **columns: Any) -> str:
    """Do the same inside the transaction of *connection*."""
    identifier, owner = new_id(), ids.read(ids.APPLICATION, application)
    if "filter" in columns:
        columns["filter"] = msgspec.json.encode(columns["filter"]).decode()
    columns = {"id": identifier, "application_id": owner, "url": "https://example.com/", **columns}
    marks = ", ".join(f"${position}" for position in range(1, len(columns) + 1))
    await connection.execute(
        f"insert into boathook.endpoint ({', '.join(columns)}) values ({marks})",
        *columns.values(),
    )
    await bump_routes_version(connection, application)
    return recipient_of(ids.show(ids.ENDPOINT, identifier))


async def bump_routes_version(connection: Connection | Database, application: str) -> None:
    """Increase the version of an application's routes."""
    await connection.execute(
        "update boathook.application set routes_version = routes_version + 1 where id = $1",
        ids.read(ids.APPLICATION, application),
    )


async def publish(db: Database, outbox: Outbox, application: str, **fields: Any) -> Any:
    """Publish a message in its own transaction."""
    wanted = {"type": "invoice.paid", "payload": {"n": 1}} | fields
    async with db.transaction() as connection:
        return await outbox.publish(connection, Message(application=application, **wanted))


async def recipients_of(db: Database, event_id: UUID) -> list[str]:
    """Return the recipients of an event's pending deliveries, in order."""
    rows = await db.fetch("select recipient from boathook.delivery where event_id = $1 order by ordinal", event_id)
    return [row["recipient"] for row in rows]


def digest_of(text: str) -> bytes:
    """Return the SHA-256 digest of *text*."""
    return hashlib.sha256(text.encode()).digest()
