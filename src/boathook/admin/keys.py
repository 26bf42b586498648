"""Keys of the API: made, listed and revoked."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from boathook.admin.desk import Work, new_id
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.journal import api_keys
from boathook.journal.api_keys import Key
from boathook.journal.applications import Application
from boathook.journal.audit import note

PREFIX: Final = "bhk_"
_ENTROPY: Final = 32


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that was just made."""

    key: Key
    token: str = field(repr=False)
    """What its holder shows; it is not kept and cannot be shown again."""


def hash_token(token: str) -> bytes:
    """Return what the database knows of a token: it is long and random, so one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


async def create(
    work: Work, *, application: Application | None = None, name: str = "", lifetime: timedelta | None = None
) -> MadeKey:
    """Make a key for the organization, or for one of its applications."""
    made = await _make(work, application, Key(id=new_id(), organization="", application_id=None, name=name), lifetime)
    await note(work.connection, work.actor, "key.create", made.key.shown_id)
    return made


async def create_for_portal(
    work: Work,
    application: Application,
    *,
    lifetime: timedelta,
    session_id: str | None = None,
    capabilities: Sequence[str] | None = None,
    feature_flags: Sequence[str] = (),
) -> MadeKey:
    """Make a key for one visitor of an application's portal; *capabilities* None allows everything."""
    key = Key(
        id=new_id(),
        organization="",
        application_id=None,
        is_portal=True,
        session_id=session_id,
        capabilities=None if capabilities is None else tuple(capabilities),
        feature_flags=tuple(feature_flags),
    )
    made = await _make(work, application, key, lifetime)
    await note(work.connection, work.actor, "key.create_for_portal", made.key.shown_id, application.shown_id)
    return made


async def _make(work: Work, application: Application | None, key: Key, lifetime: timedelta | None) -> MadeKey:
    # No dot: official clients take what stands after one for the name of a region.
    token = PREFIX + secrets.token_urlsafe(_ENTROPY)
    application_id = application.id if application else None
    key = replace(key, organization=work.organization, application_id=application_id)
    return MadeKey(await api_keys.insert(work.connection, key, hash_token(token), lifetime), token)


async def list_all(work: Work, organization: str | None = None, *, with_portal: bool = False) -> list[Key]:
    """Return the deployment's keys or those of one organization, the youngest first."""
    return await api_keys.list_all(work.connection, organization, with_portal=with_portal)


async def list_portal(work: Work, *, limit: int) -> list[Key]:
    """Return the latest valid keys of visitors of the organization's portals."""
    return await api_keys.list_portal(work.connection, work.organization, limit=limit)


async def revoke(work: Work, id: UUID) -> None:
    """End a key at once. Raises NotFound where there is none that is valid."""
    if not await api_keys.revoke(work.connection, id):
        raise NotFound(f"there is no valid key {_shown(id)}")
    await note(work.connection, work.actor, "key.revoke", _shown(id))


async def expire_all(work: Work, application: Application, sessions: Sequence[str] | None, after: timedelta) -> None:
    """Let the keys of an application, or of some of its portal's sessions, end after a while."""
    await api_keys.expire(work.connection, application.id, sessions, after)
    await note(work.connection, work.actor, "key.expire_all", application.shown_id)


def _shown(id: UUID) -> str:
    return ids.show(ids.API_KEY, id)
