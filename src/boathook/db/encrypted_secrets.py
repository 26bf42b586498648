"""What is kept encrypted for endpoints and sources, all of it: to be looked through, and to be encrypted again."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from boathook.db.database import Database
from boathook.db.source_secrets import encryption_context
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
_PAGE: Final = 500
_START: Final = (UUID(int=0), "", 0)


@dataclass(frozen=True, slots=True)
class EncryptedSecret:
    """One encrypted text."""

    kind: str
    """``endpoint_secret``, ``endpoint_headers``, ``endpoint_auth`` or ``source_secret``."""
    owner_id: UUID
    """The endpoint, or the secret of a source itself."""
    number: int
    """Which secret of the endpoint's; 0 for what it has one of."""
    encrypted: bytes
    source: str | None = None
    """Whose secret it is; None where it is an endpoint's."""

    @property
    def shown_id(self) -> str:
        """Whose it is, as people see it."""
        return ids.show(ids.ENDPOINT if self.source is None else ids.SOURCE_SECRET, self.owner_id)

    @property
    def context(self) -> str:
        """The place it was encrypted for."""
        return f"{self.kind}:{self.shown_id}" if self.source is None else encryption_context(self.source, self.owner_id)


async def list_all(database: Database) -> AsyncIterator[EncryptedSecret]:
    """Yield everything that is encrypted, for deleted endpoints too, in pages."""
    place = _START
    while True:
        rows = await database.fetch(SQL["list_encrypted"], *place, _PAGE)
        for row in rows:
            yield EncryptedSecret(row["kind"], row["owner_id"], row["number"], row["encrypted"], row["source"])
        if len(rows) < _PAGE:
            return
        place = rows[-1]["owner_id"], rows[-1]["kind"], rows[-1]["number"]


async def update(database: Database, one: EncryptedSecret, encrypted: bytes) -> bool:
    """Store a text encrypted again; return whether it was still the one that was read."""
    tag = await database.execute(SQL[f"replace_{one.kind}"], one.owner_id, one.number, one.encrypted, encrypted)
    return tag == "UPDATE 1"
