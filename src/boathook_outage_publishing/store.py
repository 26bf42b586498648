"""Reads what decides about publishing, for the time without PostgreSQL: API keys, applications, idempotency keys."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database
from boathook.db.statements import load

SQL = load(__file__)


class PublishingKey(msgspec.Struct, frozen=True):
    """A valid API key that may publish to every application of its organization."""

    token_sha256: bytes
    id: UUID
    organization: str
    expires_at: datetime | None


class PublishingTarget(msgspec.Struct, frozen=True):
    """An application that messages can be published to."""

    id: UUID
    organization: str
    uid: str | None
    home: str | None = None
    """The installation that it has moved to; None if it is here."""
    imported_id: str | None = None


class ChangedTarget(msgspec.Struct, frozen=True):
    """An application that messages can be published to, and when it changed."""

    target: PublishingTarget
    changed_us: int
    """In microseconds since 1970."""
    is_deleted: bool = False


class TargetsVersion(msgspec.Struct, frozen=True):
    """What differs after any change of the newest applications: their number, and the sum of `changed_us`."""

    number: int = 0
    changes: int = 0


class KeyedMessage(msgspec.Struct, frozen=True):
    """A message that was published with an idempotency key."""

    id: UUID
    request_sha256: bytes
    """The hash of the request; see `IdempotencyKey`."""


async def list_publishing_keys(connection: Connection, *, limit: int) -> Sequence[PublishingKey]:
    """Return the newest valid keys that may publish."""
    return [PublishingKey(*row) for row in await connection.fetch(SQL["list_publishing_keys"], limit)]


async def read_targets_version(connection: Connection, *, limit: int) -> TargetsVersion:
    """Return the version of the newest applications."""
    row = await connection.fetchrow(SQL["read_targets_version"], limit)
    assert row is not None
    return TargetsVersion(row["number"], int(row["changes"]))


async def list_targets(connection: Connection, below: UUID, *, limit: int) -> Sequence[ChangedTarget]:
    """Return the newest applications below an id."""
    rows = await connection.fetch(SQL["list_targets"], below, limit)
    return [ChangedTarget(PublishingTarget(*row[:5]), row["changed_us"]) for row in rows]


async def list_changed_targets(connection: Connection, since_us: int, *, limit: int) -> Sequence[ChangedTarget]:
    """Return the applications that have changed since a time, at most *limit* of them."""
    rows = await connection.fetch(SQL["list_changed_targets"], since_us, limit)
    return [ChangedTarget(PublishingTarget(*row[:5]), row["changed_us"], row["is_deleted"]) for row in rows]


async def find_by_idempotency_key(database: Database, replay_key: UUID) -> KeyedMessage | None:
    """Return the message that was published with the idempotency key of this hash."""
    row = await database.fetchrow(SQL["find_by_idempotency_key"], replay_key)
    return None if row is None else KeyedMessage(row["id"], row["request_sha256"])
