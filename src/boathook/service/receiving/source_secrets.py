"""Lists, adds, ends and removes secrets of sources while boathook runs, and shows handshake secrets.

Secrets in boathook.toml are never changed: a program that edits this file would conflict with version control. Secrets
that are added here are valid in addition, at every gateway, without a restart.
"""

import base64
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.config import Settings, SourceSettings
from boathook.db import source_secrets
from boathook.db.audit import record
from boathook.db.source_secrets import SourceSecret, encryption_context
from boathook.domain import ids
from boathook.domain.errors import ConfigError, InvalidState, InvalidValue, LimitReached, NotFound, SecretUnreadable
from boathook.domain.signing import KeyFormat
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import captures_secret, source_spec
from boathook.providers.recipe import Recipe
from boathook.providers.schemes import FieldMac, Hmac
from boathook.service.limits import MAX_SOURCE_SECRET_GRACE, check_note
from boathook.service.unit_of_work import UnitOfWork, new_id
from boathook.verification.source import check_secret_forms, find_source_recipe
from boathook.verification.verifier import Verifier


async def show_secret(work: UnitOfWork, name: str) -> str:
    """Return the handshake secret of a source; from now on it verifies requests.

    Raises:
        NotFound: there is no such source, or its sender has not sent a secret yet.
        InvalidState: this source has no handshake secret.
    """
    await _check_handshake(work, name)
    await record(work.connection, work.actor, "source.secret.show", name)
    secret = _handshake_secrets(work).confirm(name)
    if secret is None:
        raise NotFound(f"the sender of {name} has not sent a secret yet; set up its webhook, then try again")
    return secret


async def forget_secret(work: UnitOfWork, name: str) -> None:
    """Delete the handshake secret of a source, so that the sender can send another.

    Raises:
        NotFound: there is no such source, or no secret.
        InvalidState: this source has no handshake secret.
    """
    await _check_handshake(work, name)
    await record(work.connection, work.actor, "source.secret.forget", name)
    if not _handshake_secrets(work).forget(name):
        raise NotFound(f"the sender of {name} has not sent a secret")


async def _check_handshake(work: UnitOfWork, name: str) -> None:
    settings = await work.app_context.refresh_settings(work.connection)
    if not captures_secret(settings.source(name)):
        text = f"sources.{name}: its secrets are configured or added, not sent by its sender"
        raise InvalidState(text, "no_handshake_secret")


def _handshake_secrets(work: UnitOfWork) -> HandshakeSecrets:
    return HandshakeSecrets(work.app_context.settings.server.data_dir)


MAX_SECRET_LENGTH: Final = 8_192
"""Maximum characters of a secret; a public key in PEM is the longest."""
MAX_SECRETS: Final = 10
"""Maximum valid added secrets of a source; each is tried on every forged request."""


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """One secret of a source for display, without its text."""

    where: str
    """``boathook.toml``, ``from the sender's handshake``, or ``added``."""
    name: str
    """The reference in the settings, such as ``env:NAME``, or the id."""
    note: str = ""
    added_by: str | None = None
    added_at: datetime | None = None
    expires_at: datetime | None = None
    is_over: bool = False
    """Whether it has ended."""
    is_readable: bool = True
    """Whether it can be decrypted with the configured keys."""


@dataclass(frozen=True, slots=True)
class CreatedSecret:
    """A secret that was just added."""

    secret: SourceSecret
    text: str = field(repr=False)
    """The secret for the sender; it is not shown again."""
    ended: int = 0
    """How many other secrets were set to end."""


async def list_secrets(work: UnitOfWork, source: str) -> list[SecretView]:
    """Return the secrets of a source: those of the settings first, then the added ones, newest first.

    Raises:
        NotFound: there is no such source.
    """
    configured = await _configured(work, source)
    views = [] if configured is None else [_configured_secret_view(reference) for reference in configured.secrets]
    if configured is not None and captures_secret(configured):
        views.append(SecretView(where="from the sender's handshake", name=f"boathook sources secret {source}"))
    added, now = await source_secrets.list_by_source(work.connection, source), datetime.now(UTC)
    return [*views, *(_added_secret_view(work, added_secret, now) for added_secret in added)]


async def _configured(work: UnitOfWork, source: str) -> SourceSettings | None:
    """Return the settings of a source; None if it is stored and cannot be used. Raises NotFound."""
    settings = await work.app_context.refresh_settings(work.connection)
    if source in work.app_context.live_settings.problems and source not in settings.sources:
        return None
    return settings.source(source)


def _configured_secret_view(reference: str) -> SecretView:
    is_named = reference.startswith(("env:", "file:"))
    return SecretView(where="boathook.toml", name=reference if is_named else "a text in the file itself")


def _added_secret_view(work: UnitOfWork, added_secret: SourceSecret, now: datetime) -> SecretView:
    return SecretView(
        where="added",
        name=added_secret.shown_id,
        note=added_secret.note,
        added_by=added_secret.added_by,
        added_at=added_secret.added_at,
        expires_at=added_secret.expires_at,
        is_over=not added_secret.is_valid_at(now),
        is_readable=decrypt(work, added_secret) is not None,
    )


def decrypt(work: UnitOfWork, added_secret: SourceSecret) -> str | None:
    """Return the text of an added secret; None if it cannot be decrypted with the configured keys."""
    try:
        return work.app_context.secret_box.open(added_secret.encrypted, added_secret.context)
    except SecretUnreadable:
        return None


async def add(
    work: UnitOfWork,
    source: str,
    text: str | None,
    *,
    note_text: str = "",
    expire_others_after: timedelta | None = None,
) -> CreatedSecret:
    """Add a secret to a source, in addition to its other secrets.

    Args:
        work: the unit of work.
        source: the source's name.
        text: the secret the sender signs with, or its public key; None generates a secret.
        note_text: a note for operators.
        expire_others_after: when the other added secrets expire; None leaves them unchanged.

    Raises:
        NotFound: there is no such source.
        InvalidValue: the secret has the wrong form or is in use already, or the time is too long.
        LimitReached: the source has the maximum number of secrets.
        InvalidState: this source's requests are not verified by a secret.
    """
    settings = await work.app_context.refresh_settings(work.connection)
    settings.source(source)  # raises NotFound
    after = None if expire_others_after is None else _checked(expire_others_after)
    note_text = check_note(note_text)
    await source_secrets.lock(work.connection, source)
    added_secrets = await source_secrets.list_by_source(work.connection, source)
    text = _make(settings, source) if text is None else read_secret(text)
    id = new_id()
    encrypted = work.app_context.secret_box.encrypt(text, encryption_context(source, id))
    _refuse(work, settings, source, text, added_secrets)
    created = await source_secrets.insert(
        work.connection, id=id, source=source, encrypted=encrypted, note=note_text, by=work.actor
    )
    expiring_count = 0 if after is None else await source_secrets.expire_others(work.connection, source, id, after)
    detail = f"{created.shown_id}{f', {expiring_count} others expire in {after}' if expiring_count else ''}"
    await record(work.connection, work.actor, "source.secret.add", source, detail)
    return CreatedSecret(created, text, expiring_count)


def read_secret(text: str) -> str:
    """Return the text of a secret, checked. Raises InvalidValue."""
    text = text.strip()
    if not text or len(text) > MAX_SECRET_LENGTH or not (text.isprintable() or text.startswith("-----BEGIN ")):
        raise InvalidValue(
            f"paste the secret itself: printable text of at most {MAX_SECRET_LENGTH:,} characters", "secret"
        )
    if text.startswith(("env:", "file:")):
        raise InvalidValue("references are for boathook.toml; enter the secret itself", "secret")
    return text


def _refuse(
    work: UnitOfWork, settings: Settings, source: str, text: str, added_secrets: tuple[SourceSecret, ...]
) -> None:
    """Reject a secret that cannot verify anything, or is in use already."""
    if settings.sources[source].unsigned:
        raise InvalidState(f"sources.{source} has unsigned = true, so its requests are not verified", "unsigned_source")
    now = datetime.now(UTC)
    holding = [added_secret for added_secret in added_secrets if added_secret.is_valid_at(now)]
    if len(holding) >= MAX_SECRETS:
        raise LimitReached(f"{source} has {MAX_SECRETS} added secrets; remove unused ones")
    try:
        spec = replace(source_spec(settings, source, SecretsCache(settings, ())), secrets=(text,))
        check_secret_forms(spec)
        Verifier(spec)
    except ConfigError as error:
        raise InvalidValue(str(error).partition(": ")[2] or str(error), "secret") from None
    if text in {*settings.secrets_of(source), *(decrypt(work, added_secret) for added_secret in holding)}:
        raise InvalidValue("it is already one of this source's secrets", "secret")


def _make(settings: Settings, source: str) -> str:
    """Return a new secret in the format of this source's sender."""
    return generate_secret(find_source_recipe(source, settings.sources[source].provider))


def generate_secret(recipe: Recipe) -> str:
    """Return a secret of 192 random bits or more in the format of a sender."""
    match recipe.proof:
        case Hmac(key_form=KeyFormat.STANDARD):
            return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        case Hmac(key_form=KeyFormat.BASE64) | FieldMac(key_form=KeyFormat.BASE64):
            return base64.b64encode(secrets.token_bytes(32)).decode()
        case _:
            # Every sender's format accepts hexadecimal digits.
            prefix = "" if recipe.secret_form is None else recipe.secret_form.prefix
            return prefix + secrets.token_hex(24)


async def expire(work: UnitOfWork, source: str, id: str, after: timedelta | None) -> SourceSecret:
    """Expire an added secret after a delay, or cancel its expiry.

    Raises:
        NotFound: there is no secret with this id that has not expired.
        InvalidState: it is the source's last secret.
        InvalidValue: the delay is too long.
    """
    secret_id = await _last_checked(work, source, id, is_expiring=after is not None)
    expiring = await source_secrets.expire(
        work.connection, source, secret_id, None if after is None else _checked(after)
    )
    if expiring is None:
        raise NotFound(f"the secret {id} of {source} has expired already")
    action = "source.secret.keep" if after is None else "source.secret.expire"
    await record(work.connection, work.actor, action, source, f"{id}{'' if after is None else f' in {after}'}")
    return expiring


async def remove(work: UnitOfWork, source: str, id: str) -> None:
    """Delete an added secret immediately. Raises NotFound, and InvalidState for a source's last one."""
    secret_id = await _last_checked(work, source, id, is_expiring=True)
    if not await source_secrets.delete(work.connection, source, secret_id):
        raise NotFound(f"there is no secret {id} of {source}")
    await record(work.connection, work.actor, "source.secret.remove", source, id)


async def _last_checked(work: UnitOfWork, source: str, shown_id: str, *, is_expiring: bool) -> UUID:
    configured = await _configured(work, source)
    try:
        id = ids.read(ids.SOURCE_SECRET, shown_id)
    except ValueError:
        raise NotFound(f"there is no secret {shown_id} of {source}") from None
    await source_secrets.lock(work.connection, source)
    added_secrets = await source_secrets.list_by_source(work.connection, source)
    # Ignore secrets that cannot be decrypted: they verify nothing, so the last readable one must stay.
    others = [
        added_secret
        for added_secret in added_secrets
        if added_secret.id != id and added_secret.expires_at is None and decrypt(work, added_secret) is not None
    ]
    has_others = bool(others) or (configured is not None and bool(configured.secrets or captures_secret(configured)))
    is_last = not has_others
    if is_expiring and is_last and any(added_secret.id == id for added_secret in added_secrets):
        raise InvalidState(
            f"it is the last secret of {source} that does not expire; add another one first",
            "last_secret",
        )
    return id


def _checked(after: timedelta) -> timedelta:
    if not timedelta() <= after <= MAX_SOURCE_SECRET_GRACE:
        raise InvalidValue(f"write a time from 0 to {MAX_SOURCE_SECRET_GRACE.days} days", "after")
    return after
