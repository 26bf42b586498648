"""Lists all encrypted secrets and settings of endpoints and sources, and stores them again after re-encryption."""

from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import msgspec

from boathook.db import source_secrets, stored_sources
from boathook.db.database import Database
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
_PAGE: Final = 500
_SETTINGS: Final = "source_settings"
_START: Final = (UUID(int=0), "", 0)


class EncryptedSecret(msgspec.Struct, frozen=True):
    """One encrypted text."""

    kind: str
    """``endpoint_secret``, ``endpoint_headers``, ``endpoint_auth``, ``endpoint_destination``, ``source_secret`` or
    ``source_settings``."""
    owner_id: UUID
    """The id of the endpoint, of the stored source, or of the source secret itself."""
    number: int
    """Number of the endpoint's secret; 0 for values that exist once."""
    encrypted: bytes
    source: str | None = None
    """The source of the secret or settings; None for those of endpoints."""

    @property
    def shown_id(self) -> str:
        """The public id of the owner; the name of a stored source."""
        if self.source is not None and self.kind == _SETTINGS:
            return f"source {self.source}"
        return ids.show(ids.ENDPOINT if self.source is None else ids.SOURCE_SECRET, self.owner_id)

    @property
    def context(self) -> str:
        """The encryption context that the text is bound to."""
        if self.source is None:
            return f"{self.kind}:{self.shown_id}"
        if self.kind == _SETTINGS:
            return stored_sources.encryption_context(self.source, self.owner_id)
        return source_secrets.encryption_context(self.source, self.owner_id)


async def list_all(database: Database) -> AsyncIterator[EncryptedSecret]:
    """Yield all encrypted texts in pages, including those of deleted endpoints."""
    cursor = _START
    while True:
        rows = await database.fetch(SQL["list_encrypted"], *cursor, _PAGE)
        for row in rows:
            yield EncryptedSecret(row["kind"], row["owner_id"], row["number"], row["encrypted"], row["source"])
        if len(rows) < _PAGE:
            return
        cursor = rows[-1]["owner_id"], rows[-1]["kind"], rows[-1]["number"]


async def update(database: Database, secret: EncryptedSecret, encrypted: bytes) -> bool:
    """Store a re-encrypted text; return whether the old one was still stored."""
    tag = await database.execute(
        SQL[f"replace_{secret.kind}"], secret.owner_id, secret.number, secret.encrypted, encrypted
    )
    return tag == "UPDATE 1"
