"""Creates, lists and revokes API keys."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from boathook.config.types import check_mount_path
from boathook.db import api_keys
from boathook.db.api_keys import ApiKey as ApiKey  # noqa: PLC0414 - re-exported
from boathook.db.applications import Application
from boathook.db.audit import record
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.model import MountRole
from boathook.service import limits
from boathook.service.access.authorization import Principal, principal_of
from boathook.service.unit_of_work import Connection, UnitOfWork, new_id, require_here

PREFIX: Final = "bhk_"
_ENTROPY: Final = 32


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key that was just created."""

    key: ApiKey
    token: str = field(repr=False)
    """The bearer token; it is not stored and cannot be shown again."""


def hash_token(token: str) -> bytes:
    """Return the stored hash of a token; tokens are long and random, so one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


async def find_principal(connection: Connection, token: str) -> Principal | None:
    """Return the holder of a token, if it is valid."""
    key = await api_keys.find(connection, hash_token(token))
    return None if key is None else principal_of(key)


async def find_portal_key(work: UnitOfWork, token: str) -> ApiKey | None:
    """Return the key of a portal token, if it is valid."""
    key = await api_keys.find(work.connection, hash_token(token))
    return key if key is not None and key.is_portal and key.application_id is not None else None


async def create(
    work: UnitOfWork,
    *,
    application: Application | None = None,
    mount: str | None = None,
    role: MountRole | None = None,
    name: str | None = None,
    lifetime: timedelta | None = None,
) -> CreatedKey:
    """Create a key for the organization, for one of its applications, or for one mounted path; *name* None: no name.

    Raises:
        InvalidValue: the name, the path or the role is invalid.
    """
    if (mount is None) is not (role is None):
        raise InvalidValue("a role belongs to a mounted path; give both or none", "role")
    if mount is not None and application is not None:
        raise InvalidValue("a key is for an application or for a mounted path; give one of the two", "mount")
    if mount is not None:
        with limits.field("mount"):
            check_mount_path(mount)
    if name is not None:
        with limits.field("name"):
            limits.check_key_name(name)
    key = ApiKey(id=new_id(), organization="", application_id=None, name=name or "", mount=mount, mount_role=role)
    created = await _create(work, application, key, lifetime)
    note = None if mount is None else f"{role} of {mount}"
    await record(work.connection, work.actor, "key.create", created.key.shown_id, note)
    return created


async def create_for_portal(
    work: UnitOfWork,
    application: Application,
    *,
    lifetime: timedelta,
    session_id: str | None = None,
    capabilities: Sequence[str] | None = None,
    feature_flags: Sequence[str] = (),
) -> CreatedKey:
    """Create a key for one user of an application's portal; *capabilities* None allows everything.

    Raises:
        InvalidValue: the lifetime, the session's name or a feature flag is invalid.
    """
    limits.check_duration(lifetime, limits.MIN_PORTAL_LIFETIME, limits.MAX_PORTAL_LIFETIME, "expiry")
    with limits.field("sessionId"):
        session_id = session_id and limits.check_session_name(session_id)
    with limits.field("featureFlags"):
        feature_flags = [limits.check_flag(flag) for flag in feature_flags]
    key = ApiKey(
        id=new_id(),
        organization="",
        application_id=None,
        is_portal=True,
        session_id=session_id,
        capabilities=None if capabilities is None else tuple(capabilities),
        feature_flags=tuple(feature_flags),
    )
    created = await _create(work, application, key, lifetime)
    await record(work.connection, work.actor, "key.create_for_portal", created.key.shown_id, application.shown_id)
    return created


async def _create(
    work: UnitOfWork, application: Application | None, key: ApiKey, lifetime: timedelta | None
) -> CreatedKey:
    if application is not None:
        await require_here(work, application)
    # No dot: official clients parse the text after a dot as a region.
    token = PREFIX + secrets.token_urlsafe(_ENTROPY)
    application_id = application.id if application else None
    key = replace(key, organization=work.organization, application_id=application_id)
    return CreatedKey(await api_keys.insert(work.connection, key, hash_token(token), lifetime), token)


async def list_all(work: UnitOfWork, organization: str | None = None, *, with_portal: bool = False) -> list[ApiKey]:
    """Return the keys of the deployment or of one organization, newest first."""
    return await api_keys.list_all(work.connection, organization, with_portal=with_portal)


async def list_portal(work: UnitOfWork, *, limit: int) -> list[ApiKey]:
    """Return the latest valid keys of the organization's portal users."""
    return await api_keys.list_portal(work.connection, work.organization, limit=limit)


async def revoke(work: UnitOfWork, id: UUID) -> None:
    """Revoke a key immediately. Raises NotFound if there is no such valid key."""
    if not await api_keys.revoke(work.connection, id):
        raise NotFound(f"there is no valid key {_shown(id)}")
    await record(work.connection, work.actor, "key.revoke", _shown(id))


async def expire_all(
    work: UnitOfWork, application: Application, sessions: Sequence[str] | None, after: timedelta
) -> None:
    """Expire the keys of an application, or of some of its portal sessions, after a delay. Raises InvalidValue."""
    limits.check_duration(after, timedelta(0), limits.MAX_EXPIRY_DELAY, "expiry")
    await api_keys.expire(work.connection, application.id, sessions, after)
    await record(work.connection, work.actor, "key.expire_all", application.shown_id)


def _shown(id: UUID) -> str:
    return ids.show(ids.API_KEY, id)
