"""Reads who may publish messages: the API keys of organizations, and the applications."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection
from boathook.db.statements import load

SQL: Final = load(__file__)


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
    cell: str | None = None
    """The cell that it has moved to; None if it is here."""


async def list_keys(connection: Connection, *, limit: int) -> Sequence[PublishingKey]:
    """Return the newest valid keys that may publish."""
    return [PublishingKey(*row) for row in await connection.fetch(SQL["list_publishing_keys"], limit)]


async def read_targets_version(connection: Connection) -> str:
    """Return a text that differs after any change of the applications."""
    version: str = await connection.fetchval(SQL["read_targets_version"])
    return version


async def list_targets(connection: Connection, *, limit: int) -> Sequence[PublishingTarget]:
    """Return the newest applications."""
    return [PublishingTarget(*row) for row in await connection.fetch(SQL["list_targets"], limit)]
