"""Keeps requests refused at the gate, a batch in one statement."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from uuid import UUID

from boathook.db.database import Database
from boathook.db.statements import load

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class NewRejection:
    """A refused request, stripped of credentials. The fields stand in the order of the statement's columns."""

    id: UUID
    """Made when the request was refused; carries that moment to the millisecond."""
    source: str
    status: int
    reason: str
    detail: str
    """For the operator, never for the stranger."""
    client_address: str
    method: str
    url: str
    headers: str
    """A JSON object: only what judging the request again needs."""
    content_type: str
    body: bytes
    """As sent, cut to what the quarantine keeps of one request."""
    body_size: int
    """Bytes sent; more than `body` holds where it was cut."""


async def insert(database: Database, batch: Sequence[NewRejection]) -> None:
    """Store *batch*. Raises DatabaseUnavailable and DatabaseError; what was stored before is left as it is."""
    columns = zip(*map(astuple, batch), strict=True)
    await database.execute(SQL["insert_rejections"], *map(list, columns))
