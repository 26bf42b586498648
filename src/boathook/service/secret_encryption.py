"""Looks through all that is sealed for endpoints and sources: can it be read, and is it sealed with the first key?"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from boathook.db import delivery_commands, encrypted_secrets
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.secret_box import SecretBox
from boathook.domain.errors import SecretUnreadable

_NAMED: Final = 5

ProgressCallback = Callable[[int], None]
"""Told how many were looked at so far."""


@dataclass(slots=True)
class EncryptionReport:
    """How the sealed texts are."""

    number: int = 0
    old: int = 0
    """Readable, but sealed with another key than the first."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """By the reason, which names the key."""
    endpoints: list[str] = field(default_factory=list)
    """Ids of some endpoints, or secrets of sources, with something unreadable."""


async def examine(database: Database, secret_box: SecretBox) -> EncryptionReport:
    """Try to open everything that is sealed; nothing is changed."""
    found = EncryptionReport()
    async for one in encrypted_secrets.list_all(database):
        _try_decrypt(secret_box, one, found)
    return found


async def reencrypt(
    database: Database, secret_box: SecretBox, action: AuditContext, report: ProgressCallback | None = None
) -> EncryptionReport:
    """Seal with the first key whatever another one sealed; what cannot be read stays as it is.

    It may be interrupted and repeated. What is changed meanwhile is sealed with the first key by whoever changes it.
    """
    found = EncryptionReport()
    async for one in encrypted_secrets.list_all(database):
        text = _try_decrypt(secret_box, one, found)
        if text is not None and not secret_box.is_current(one.sealed):
            await encrypted_secrets.update(database, one, secret_box.encrypt(text, one.context))
        if report is not None:
            report(found.number)
    if found.old:
        async with database.transaction() as connection:
            await delivery_commands.record(connection, action, "endpoint.reencrypt", f"{found.old} sealed texts")
    return found


def _try_decrypt(secret_box: SecretBox, one: encrypted_secrets.EncryptedSecret, found: EncryptionReport) -> str | None:
    found.number += 1
    try:
        text = secret_box.open(one.sealed, one.context)
    except SecretUnreadable as error:
        found.unreadable[str(error)] += 1
        if len(found.endpoints) < _NAMED:
            found.endpoints.append(one.shown_id)
        return None
    found.old += not secret_box.is_current(one.sealed)
    return text
