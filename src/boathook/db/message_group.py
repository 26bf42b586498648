"""Stores the messages of concurrent API requests in one transaction, with a verdict for each."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from boathook.db.connection import translate_errors
from boathook.db.database import Database
from boathook.db.ordering import unblock
from boathook.db.statements import load
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.model import NewDelivery, NewEvent, Publication

SQL = load(__file__)

LOCK_TIMEOUT: Final = "250ms"
"""How long a group of requests waits for a key that another transaction is storing."""
_ROLLED_BACK_STATES: Final = ("40", "55P03")
"""SQLSTATEs of a statement that PostgreSQL aborted because of a deadlock or a lock timeout: it stored nothing."""


class MessageTarget(msgspec.Struct, frozen=True):
    """The application of a message as it was read, and the requesting API token."""

    organization: str
    application_id: UUID
    uid: str | None
    """The uid or imported id in the request; another application may have it by now. None for an id."""
    registry: str
    """Versions of the routes, as in `route_registry.Routing`."""
    routes: str
    token_sha256: bytes | None
    """None for a message whose token was checked when it was accepted."""


class NewMessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be stored with its deliveries."""

    target: MessageTarget
    event: NewEvent
    deliveries: Sequence[NewDelivery]

    @property
    def publication(self) -> Publication:
        """What the event has as a message."""
        assert self.event.publication is not None, "only published messages are stored in groups"
        return self.event.publication


class GroupRolledBack(DatabaseError):
    """No message of a group was stored, possibly because of a single one."""


async def insert_group(
    database: Database,
    rows: Sequence[NewMessageRow],
    *,
    within_s: float | None = None,
    lock_timeout: str | None = LOCK_TIMEOUT,
) -> list[str | None]:
    """Store messages in one transaction; return a verdict for each, None if it is stored.

    The verdicts are those of the SQL function `publish_messages`.

    Args:
        database: stores the messages.
        rows: the messages; of those with the same key, any may be stored.
        within_s: time limit; None: PostgreSQL's statement timeout.
        lock_timeout: how long to wait for a key that another transaction is storing; None: as long as for anything.

    Raises:
        GroupRolledBack: nothing was stored, because one message waits for another transaction or violates a constraint.
        DatabaseUnavailable: PostgreSQL is unavailable or might lose commits. Whether they were stored is unknown.
    """
    database.require_safety()
    targets: dict[MessageTarget, int] = {}
    numbers = [targets.setdefault(row.target, len(targets) + 1) for row in rows]
    deliveries = [
        (row.event.id, ordinal, delivery.recipient, delivery.order_key, row.publication.deliver_at)
        for row in rows
        for ordinal, delivery in enumerate(row.deliveries)
    ]
    has_order = any(delivery[3] is not None for delivery in deliveries)
    arguments = (
        *_columns(map(astuple, targets), 6),
        numbers,
        *_columns(map(_row, rows), 17),
        *_columns(deliveries, 5),
        has_order,
        lock_timeout,
    )
    async with database.acquire(within_s=within_s, is_commit=True) as connection:
        try:
            with translate_errors():
                verdict_row = await connection.fetchrow(SQL["publish_messages"], *arguments)
        except DatabaseError as error:
            if _is_rolled_back(error):
                raise GroupRolledBack(str(error)) from error
            raise
        assert verdict_row is not None
        if verdict_row["has_blocked"]:
            with translate_errors():
                await unblock(connection, [(recipient, key) for _, _, recipient, key, _ in deliveries])
    verdicts: list[str | None] = verdict_row["verdicts"]
    return verdicts


def _is_rolled_back(error: DatabaseError) -> bool:
    if not isinstance(error, DatabaseUnavailable):
        return True
    return str(getattr(error.__cause__, "sqlstate", "")).startswith(_ROLLED_BACK_STATES)


def _row(row: NewMessageRow) -> tuple[Any, ...]:
    event, publication = row.event, row.publication
    return (
        event.id,
        event.application,
        event.type,
        event.dedup_key,
        event.key_hash,
        event.replay_hash,
        publication.request_sha256,
        timedelta(days=publication.memory_days),
        event.headers,
        event.content_type,
        event.body,
        event.body_sha256,
        len(row.deliveries),
        _array(publication.channels),
        _array(publication.tags),
        publication.deliver_at,
        publication.content_until,
    )


def _array(names: tuple[str, ...]) -> str | None:
    """Encode an array literal for PostgreSQL: the driver supports nested arrays only of equal lengths."""
    if not names:
        return None
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"


def _columns(rows: Iterable[Sequence[Any]], number: int) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True)) or [()] * number
