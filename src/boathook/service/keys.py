"""Keys of the API: made, listed and revoked."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

from boathook.db import api_keys
from boathook.db.api_keys import ApiKey as ApiKey  # noqa: PLC0414 - what these actions return
from boathook.db.applications import Application
from boathook.db.audit import record
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.service.authorization import Principal, principal_of
from boathook.service.unit_of_work import Connection, UnitOfWork, new_id

PREFIX: Final = "bhk_"
_ENTROPY: Final = 32


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key that was just made."""

    key: ApiKey
    token: str = field(repr=False)
    """What its holder shows; it is not kept and cannot be shown again."""


def hash_token(token: str) -> bytes:
    """Return what the database knows of a token: it is long and random, so one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


async def find_principal(connection: Connection, token: str) -> Principal | None:
    """Return the holder of a token, if it is valid."""
    key = await api_keys.find(connection, hash_token(token))
    return None if key is None else principal_of(key)


async def find_portal_key(work: UnitOfWork, token: str) -> ApiKey | None:
    """Return the key of a token of a portal's visitor, if it is valid."""
    key = await api_keys.find(work.connection, hash_token(token))
    return key if key is not None and key.is_portal and key.application_id is not None else None


async def create(
    work: UnitOfWork, *, application: Application | None = None, name: str = "", lifetime: timedelta | None = None
) -> CreatedKey:
    """Make a key for the organization, or for one of its applications."""
    made = await _create(
        work, application, ApiKey(id=new_id(), organization="", application_id=None, name=name), lifetime
    )
    await record(work.connection, work.actor, "key.create", made.key.shown_id)
    return made


async def create_for_portal(
    work: UnitOfWork,
    application: Application,
    *,
    lifetime: timedelta,
    session_id: str | None = None,
    capabilities: Sequence[str] | None = None,
    feature_flags: Sequence[str] = (),
) -> CreatedKey:
    """Make a key for one visitor of an application's portal; *capabilities* None allows everything."""
    key = ApiKey(
        id=new_id(),
        organization="",
        application_id=None,
        is_portal=True,
        session_id=session_id,
        capabilities=None if capabilities is None else tuple(capabilities),
        feature_flags=tuple(feature_flags),
    )
    made = await _create(work, application, key, lifetime)
    await record(work.connection, work.actor, "key.create_for_portal", made.key.shown_id, application.shown_id)
    return made


async def _create(
    work: UnitOfWork, application: Application | None, key: ApiKey, lifetime: timedelta | None
) -> CreatedKey:
    # No dot: official clients take what stands after one for the name of a region.
    token = PREFIX + secrets.token_urlsafe(_ENTROPY)
    application_id = application.id if application else None
    key = replace(key, organization=work.organization, application_id=application_id)
    return CreatedKey(await api_keys.insert(work.connection, key, hash_token(token), lifetime), token)


async def list_all(work: UnitOfWork, organization: str | None = None, *, with_portal: bool = False) -> list[ApiKey]:
    """Return the deployment's keys or those of one organization, the youngest first."""
    return await api_keys.list_all(work.connection, organization, with_portal=with_portal)


async def list_portal(work: UnitOfWork, *, limit: int) -> list[ApiKey]:
    """Return the latest valid keys of visitors of the organization's portals."""
    return await api_keys.list_portal(work.connection, work.organization, limit=limit)


async def revoke(work: UnitOfWork, id: UUID) -> None:
    """End a key at once. Raises NotFound where there is none that is valid."""
    if not await api_keys.revoke(work.connection, id):
        raise NotFound(f"there is no valid key {_shown(id)}")
    await record(work.connection, work.actor, "key.revoke", _shown(id))


async def expire_all(
    work: UnitOfWork, application: Application, sessions: Sequence[str] | None, after: timedelta
) -> None:
    """Let the keys of an application, or of some of its portal's sessions, end after a while."""
    await api_keys.expire(work.connection, application.id, sessions, after)
    await record(work.connection, work.actor, "key.expire_all", application.shown_id)


def _shown(id: UUID) -> str:
    return ids.show(ids.API_KEY, id)
