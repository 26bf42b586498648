"""Issues API keys, finds the holder of a token, and revokes keys; operators do so by `catalogue.keys`."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from boathook.db import api_keys
from boathook.db.api_keys import ApiKey as ApiKey  # noqa: PLC0414 - re-exported
from boathook.db.applications import Application
from boathook.db.audit import record
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.service import limits
from boathook.service.access.authorization import Principal, principal_of
from boathook.service.common_fields import Flag, SessionName
from boathook.service.fields import check_value
from boathook.service.unit_of_work import Connection, UnitOfWork, new_id, require_here

PREFIX: Final = "bhk_"
ENTROPY: Final = 32
"""Random bytes of a token."""


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
    if session_id:
        check_value(SessionName, session_id, "sessionId")
    for flag in feature_flags:
        check_value(Flag, flag, "featureFlags")
    key = ApiKey(
        id=new_id(),
        organization=work.organization,
        application_id=application.id,
        is_portal=True,
        session_id=session_id,
        capabilities=None if capabilities is None else tuple(capabilities),
        feature_flags=tuple(feature_flags),
    )
    created = await issue(work, key, application, lifetime)
    await record(work.connection, work.actor, "key.create_for_portal", created.key.shown_id, application.shown_id)
    return created


async def issue(
    work: UnitOfWork, key: ApiKey, application: Application | None, lifetime: timedelta | None
) -> CreatedKey:
    """Store a key, and return it with its new token; *application* is the one that it is for, if any."""
    if application is not None:
        await require_here(work, application)
    # No dot: official clients parse the text after a dot as a region.
    token = PREFIX + secrets.token_urlsafe(ENTROPY)
    return CreatedKey(await api_keys.insert(work.connection, key, hash_token(token), lifetime), token)


async def list_all(work: UnitOfWork, organization: str | None = None) -> list[ApiKey]:
    """Return the keys of the deployment or of one organization, newest first, without those of portals."""
    return await api_keys.list_all(work.connection, organization, with_portal=False)


async def list_portal(work: UnitOfWork, *, limit: int) -> list[ApiKey]:
    """Return the latest valid keys of the organization's portal users."""
    return await api_keys.list_portal(work.connection, work.organization, limit=limit)


async def revoke(work: UnitOfWork, id: UUID, organization: str | None) -> None:
    """Revoke a key of an organization, or of any if that is None. Raises NotFound if there is no such valid key."""
    if await api_keys.revoke(work.connection, id, organization) is None:
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
