"""Stores rejected requests, a batch in one statement."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from boathook.db.database import Database
from boathook.db.statements import load

SQL = load(__file__)


class NewRejection(msgspec.Struct, frozen=True):
    """A rejected request without credentials. The fields have the order of the statement's columns."""

    id: UUID
    """Generated at the rejection; contains its time to the millisecond."""
    source: str
    """Empty if no source is at the path of the request."""
    status: int
    reason: str
    detail: str
    """For the operator, never for the sender."""
    client_address: str
    method: str
    url: str
    headers: str
    """A JSON object: only what a new verification of the request needs."""
    content_type: str
    body: bytes
    """As sent, cut to the stored size limit."""
    body_size: int
    """Bytes that were sent or announced; more than `body` has if it was cut, or not read."""


async def insert(database: Database, batch: Sequence[NewRejection]) -> None:
    """Store *batch*; existing rows are not changed. Raises DatabaseUnavailable and DatabaseError."""
    columns = zip(*map(astuple, batch), strict=True)
    await database.execute(SQL["insert_rejections"], *map(list, columns))
