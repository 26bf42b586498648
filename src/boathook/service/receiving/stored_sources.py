"""Adds, changes and removes sources that are stored in PostgreSQL; every gateway follows within seconds.

Sources in boathook.toml and of apps are never changed here, and take precedence over stored ones.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from boathook.config import Settings, SourceSettings
from boathook.config.stored_sources import check_source_name, read_stored_source, write_stored_source
from boathook.db import source_secrets as secret_store
from boathook.db import stored_sources
from boathook.db.audit import describe_change, record
from boathook.db.live_settings import find_clash
from boathook.db.source_secrets import encryption_context
from boathook.db.stored_sources import StoredSource
from boathook.domain.errors import (
    AlreadyExists,
    ConfigError,
    InvalidState,
    InvalidValue,
    LimitReached,
    NotFound,
    SecretUnreadable,
)
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.reply_waiter import inline_policy
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import captures_secret, source_spec
from boathook.providers import find_recipe
from boathook.service.receiving.source_secrets import decrypt, generate_secret, read_secret
from boathook.service.shown_settings import HIDDEN, hide_secrets
from boathook.service.unit_of_work import UnitOfWork, new_id
from boathook.verification.source import check_secret_forms, find_source_recipe
from boathook.verification.verifier import Verifier

MAX_STORED_SOURCES: Final = 1_000


@dataclass(frozen=True, slots=True)
class AddedSource:
    """A source that was just added."""

    name: str
    secret: str | None = field(default=None, repr=False)
    """The generated secret for the sender, which is not shown again; None if none was generated."""


async def add(
    work: UnitOfWork,
    name: str,
    values: Mapping[str, Any],
    *,
    secret: str | None = None,
    is_secret_generated: bool = False,
) -> AddedSource:
    """Store a new source.

    Args:
        work: the unit of work.
        name: the source's name, unique among all sources.
        values: its keys, as in boathook.toml but without secrets and references.
        secret: the secret that the sender signs with, or its public key.
        is_secret_generated: whether to generate the secret instead.

    Raises:
        InvalidValue: the name, a key or the secret is wrong; its place is ``name``, ``secret``, or ``settings`` and the
            key.
        AlreadyExists: there is a source of this name.
        LimitReached: there are `MAX_STORED_SOURCES` stored sources.
    """
    try:
        check_source_name(name)
    except ConfigError as error:
        raise InvalidValue(_message(error), "name") from None
    configured = await _lock(work)
    rows = work.app_context.live_settings.rows
    if name in configured.sources:
        raise AlreadyExists(f"boathook.toml or an app defines a source {name} already", "source_exists")
    if any(row.name == name for row in rows):
        raise AlreadyExists(f"source {name} already exists", "source_exists")
    if len(rows) >= MAX_STORED_SOURCES:
        raise LimitReached(f"there are {MAX_STORED_SOURCES:,} stored sources; remove those that are not used")
    source = _read(work, name, values)
    text = _read_secret(source, secret, is_generated=is_secret_generated)
    await asyncio.to_thread(_check, configured, name, source, () if text is None else (text,))
    id = new_id()
    inserted = await stored_sources.insert(
        work.connection,
        name=name,
        id=id,
        paths=source.paths,
        encrypted=_encrypt(work, name, id, source),
        by=work.actor,
    )
    if inserted is None:
        raise AlreadyExists(f"source {name} already exists", "source_exists")
    if text is not None:
        await _insert_secret(work, name, text)
    await _forget_handshake_secret(configured, name)
    await record(work.connection, work.actor, "source.add", name, f"provider {source.provider}")
    return AddedSource(name, text if is_secret_generated else None)


async def change(work: UnitOfWork, name: str, changes: Mapping[str, Any], *, is_replaced: bool = False) -> None:
    """Change keys of a stored source; its secrets stay.

    Args:
        work: the unit of work.
        name: the source's name.
        changes: the new values by key; None removes a key, and `HIDDEN` keeps its value.
        is_replaced: whether keys that are not given are removed too. Secret ones then have to be given again.

    Raises:
        NotFound: there is no source of this name.
        InvalidState: it is defined in boathook.toml or by an app, or its settings cannot be decrypted.
        InvalidValue: a key is wrong, or does not fit the source's secrets.
    """
    configured = await _lock(work)
    row = _find(work, configured, name)
    former = _decrypt_leniently(work, row) if is_replaced and HIDDEN not in changes.values() else _decrypt(work, row)
    completed = {key: former.get(key) if value == HIDDEN else value for key, value in changes.items()}
    merged = completed if is_replaced else {**former, **completed}
    source = _read(work, name, {key: value for key, value in merged.items() if value is not None})
    readable = [values for values in (former, merged) if values.get("provider")]
    hidden = {key for values in readable for key, value in hide_secrets(values).items() if value == HIDDEN}
    # Secrets that were accepted before stay valid, even if they would not be accepted today.
    has_new_secrets = any(merged.get(key) != former.get(key) for key in {"provider", "scheme", *hidden})
    secrets = await _secrets_of(work, configured, name)
    await asyncio.to_thread(_check, configured, name, source, secrets, has_new_secrets=has_new_secrets)
    updated = await stored_sources.update(
        work.connection,
        name,
        paths=source.paths,
        encrypted=_encrypt(work, name, row.id, source),
        by=work.actor,
    )
    if updated is None:
        raise NotFound(f"there is no source {name}")
    await record(work.connection, work.actor, "source.change", name, describe_change(former, merged, hidden))


async def remove(work: UnitOfWork, name: str) -> None:
    """Remove a stored source with its secrets; its events, deliveries and rejections stay.

    Raises:
        NotFound: there is no source of this name.
        InvalidState: it is defined in boathook.toml or by an app.
    """
    configured = await _lock(work)
    row = _find(work, configured, name)
    # A configured source of this name uses the secrets that were added under it.
    is_alone = name not in configured.sources
    if not await stored_sources.delete(work.connection, row.name, with_secrets=is_alone):
        raise NotFound(f"there is no source {name}")
    if is_alone:
        await _forget_handshake_secret(configured, name)
    await record(work.connection, work.actor, "source.remove", name)


async def _lock(work: UnitOfWork) -> Settings:
    """Lock and reread the stored sources; return the settings without them."""
    await stored_sources.lock(work.connection)
    settings = await work.app_context.refresh_settings(work.connection)
    return settings.with_stored_sources({})


def _find(work: UnitOfWork, configured: Settings, name: str) -> StoredSource:
    row = next((row for row in work.app_context.live_settings.rows if row.name == name), None)
    if row is not None:
        return row
    if name in configured.sources:
        raise InvalidState(
            f"the source {name} is defined in boathook.toml or by an app; change it there", "configured_source"
        )
    raise NotFound(f"there is no source {name}")


def _read(work: UnitOfWork, name: str, values: Mapping[str, Any]) -> SourceSettings:
    """Return the settings of a source beside all others. Raises InvalidValue."""
    live = work.app_context.live_settings
    configured = live.current.with_stored_sources({})
    owners = {path: row.name for row in live.rows if row.name != name for path in row.paths}
    owners |= {path: owner for owner, source in configured.sources.items() for path in source.paths}
    try:
        source = read_stored_source(name, values)
    except ConfigError as error:
        raise _invalid(name, error) from None
    if (clash := find_clash(configured, owners, name, source)) is not None:
        raise _invalid(name, ConfigError(clash))
    return source


def _read_secret(source: SourceSettings, secret: str | None, *, is_generated: bool) -> str | None:
    if not is_generated:
        return None if secret is None else read_secret(secret)
    try:
        return generate_secret(find_recipe(source.provider))
    except ConfigError as error:
        raise InvalidValue(str(error), "settings", "provider") from None


def _check(
    configured: Settings, name: str, source: SourceSettings, secrets: tuple[str, ...], *, has_new_secrets: bool = True
) -> None:
    """Compile a source as a gateway does; new secrets must also have the right form. Raises InvalidValue."""
    # The clash with other sources is checked before, so they are left out.
    alone = configured.with_sources({name: source})
    try:
        recipe = find_source_recipe(name, source.provider)
        spec = source_spec(alone, name, SecretsCache(alone, ()))
        has_other_proof = source.unsigned or source.password is not None or captures_secret(source)
        if recipe.takes_secrets and not (secrets or has_other_proof):
            raise InvalidValue(
                "this sender signs its requests: paste its secret, or generate one if the sender lets you choose it",
                "secret",
            )
        spec = replace(spec, secrets=(*secrets, *spec.secrets))
        if has_new_secrets:
            check_secret_forms(spec)
        Verifier(spec)
        inline_policy(alone, name)
    except ConfigError as error:
        raise _invalid(name, error) from None


async def _secrets_of(work: UnitOfWork, configured: Settings, name: str) -> tuple[str, ...]:
    """Return the readable secrets of a source that have not ended."""
    added_secrets, now = await secret_store.list_by_source(work.connection, name), datetime.now(UTC)
    texts = [decrypt(work, added_secret) for added_secret in added_secrets if added_secret.is_valid_at(now)]
    secrets = tuple(text for text in texts if text is not None)
    if secrets:
        return secrets
    handshake = await asyncio.to_thread(HandshakeSecrets(configured.server.data_dir).confirmed, name)
    return () if handshake is None else (handshake,)


async def _forget_handshake_secret(configured: Settings, name: str) -> None:
    """Delete the secret that another source's sender sent; gateways of other hosts do so when they see the removal."""
    await asyncio.to_thread(HandshakeSecrets(configured.server.data_dir).forget, name)


async def _insert_secret(work: UnitOfWork, name: str, text: str) -> None:
    id = new_id()
    encrypted = work.app_context.secret_box.encrypt(text, encryption_context(name, id))
    await secret_store.insert(work.connection, id=id, source=name, encrypted=encrypted, note="", by=work.actor)


def _encrypt(work: UnitOfWork, name: str, id: UUID, source: SourceSettings) -> bytes:
    context = stored_sources.encryption_context(name, id)
    return work.app_context.secret_box.encrypt(write_stored_source(source), context)


def _decrypt(work: UnitOfWork, row: StoredSource) -> dict[str, Any]:
    """Return the keys of a stored source, even if this version rejects them: changing them is the fix."""
    try:
        values = json.loads(work.app_context.secret_box.open(row.encrypted, row.context))
    except (SecretUnreadable, ValueError) as error:
        raise InvalidState(
            f"the settings of {row.name} cannot be read: {error}; restore the key, or replace all settings",
            "source_unreadable",
        ) from None
    return values if isinstance(values, dict) else {}


def _decrypt_leniently(work: UnitOfWork, row: StoredSource) -> dict[str, Any]:
    """Return the keys of a stored source; none if they cannot be read, as all are replaced."""
    try:
        return _decrypt(work, row)
    except InvalidState:
        return {}


def _invalid(name: str, error: ConfigError) -> InvalidValue:
    """Return the error of a key as the error of a field."""
    key_match = re.match(rf"sources\.{re.escape(name)}\.(\w+)", str(error))
    key = key_match[1] if key_match is not None else None
    if key in {"secret", "secrets"}:
        return InvalidValue(_message(error), "secret")
    return InvalidValue(_message(error), *(("settings",) if key is None else ("settings", key)))


def _message(error: ConfigError) -> str:
    """Return the message without the key that it begins with."""
    head, colon, rest = str(error).partition(": ")
    return rest if colon and head.startswith("sources.") else str(error)
