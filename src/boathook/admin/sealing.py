"""Looks through all that is sealed for endpoints and sources: can it be read, and is it sealed with the first key?"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from boathook.domain.errors import SecretUnreadable
from boathook.journal import moves, sealed
from boathook.journal.database import Database
from boathook.journal.moves import Action
from boathook.journal.vault import Vault

_NAMED: Final = 5

Report = Callable[[int], None]
"""Told how many were looked at so far."""


@dataclass(slots=True)
class Findings:
    """How the sealed texts are."""

    number: int = 0
    old: int = 0
    """Readable, but sealed with another key than the first."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """By the reason, which names the key."""
    endpoints: list[str] = field(default_factory=list)
    """Ids of some endpoints, or secrets of sources, with something unreadable."""


async def examine(database: Database, vault: Vault) -> Findings:
    """Try to open everything that is sealed; nothing is changed."""
    found = Findings()
    async for one in sealed.list_all(database):
        _open(vault, one, found)
    return found


async def reencrypt(database: Database, vault: Vault, action: Action, report: Report | None = None) -> Findings:
    """Seal with the first key whatever another one sealed; what cannot be read stays as it is.

    It may be interrupted and repeated. What is changed meanwhile is sealed with the first key by whoever changes it.
    """
    found = Findings()
    async for one in sealed.list_all(database):
        text = _open(vault, one, found)
        if text is not None and not vault.is_current(one.sealed):
            await sealed.replace(database, one, vault.seal(text, one.context))
        if report is not None:
            report(found.number)
    if found.old:
        async with database.transaction() as connection:
            await moves.record(connection, action, "endpoint.reencrypt", f"{found.old} sealed texts")
    return found


def _open(vault: Vault, one: sealed.Sealed, found: Findings) -> str | None:
    found.number += 1
    try:
        text = vault.open(one.sealed, one.context)
    except SecretUnreadable as error:
        found.unreadable[str(error)] += 1
        if len(found.endpoints) < _NAMED:
            found.endpoints.append(one.shown_id)
        return None
    found.old += not vault.is_current(one.sealed)
    return text
