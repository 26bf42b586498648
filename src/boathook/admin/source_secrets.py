"""What operators do about the secrets of sources while boathook runs: see which there are, add, end and remove some.

Those of boathook.toml stay there: a program that wrote into its owner's file would be at odds with whoever keeps it
under version control. What is added here counts besides them, at every gateway, without a restart.
"""

import base64
import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.admin.desk import Work, new_id
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import ConfigError, InvalidValue, LimitReached, NotFound, NotPossible, SecretUnreadable
from boathook.domain.signing import KeyForm
from boathook.inbound.added import AddedSecrets
from boathook.inbound.gates import is_told, spec_of
from boathook.inbound.providers.proofs import FieldMac, Hmac
from boathook.inbound.settling import recipe_of
from boathook.inbound.verify import Verifier
from boathook.journal import source_secrets
from boathook.journal.audit import note
from boathook.journal.source_secrets import SourceSecret, context_of

LONGEST: Final = 8_192
"""Characters of a secret: a public key in PEM is the longest."""
LONGEST_GRACE: Final = timedelta(days=30)
MOST: Final = 10
"""Added secrets of a source that hold at once: each is tried on every forged request."""
_LONGEST_NOTE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretLine:
    """One secret of a source, as it may be shown: never its text."""

    where: str
    """``boathook.toml``, ``told by the sender``, or ``added``."""
    name: str
    """The reference of the settings, such as ``env:NAME``, or the id."""
    note: str = ""
    added_by: str | None = None
    added_at: datetime | None = None
    ends_at: datetime | None = None
    is_over: bool = False
    """Whether it has ended."""
    is_readable: bool = True
    """Whether the encryption keys at hand open it."""


@dataclass(frozen=True, slots=True)
class MadeSecret:
    """A secret that was just added."""

    secret: SourceSecret
    text: str = field(repr=False)
    """What the sender must know; it is not shown again."""
    ended: int = 0
    """How many others have got an end."""


async def list_lines(work: Work, source: str) -> list[SecretLine]:
    """Return the secrets of a source: those of the settings first, then those added, the youngest first.

    Raises:
        NotFound: there is no such source.
    """
    settings = work.desk.settings
    _check(settings, source)
    kept = [_of_settings(reference) for reference in settings.sources[source].secrets]
    if is_told(settings.sources[source]):
        kept.append(SecretLine(where="told by the sender", name=f"boathook sources secret {source}"))
    added, now = await source_secrets.list_of(work.connection, source), datetime.now(UTC)
    return [*kept, *(_line(work, one, now) for one in added)]


def _of_settings(reference: str) -> SecretLine:
    is_named = reference.startswith(("env:", "file:"))
    return SecretLine(where="boathook.toml", name=reference if is_named else "a text in the file itself")


def _line(work: Work, one: SourceSecret, now: datetime) -> SecretLine:
    return SecretLine(
        where="added",
        name=one.shown_id,
        note=one.note,
        added_by=one.added_by,
        added_at=one.added_at,
        ends_at=one.ends_at,
        is_over=not one.holds_at(now),
        is_readable=_is_readable(work, one),
    )


def _is_readable(work: Work, one: SourceSecret) -> bool:
    try:
        work.desk.vault.open(one.sealed, one.context)
    except SecretUnreadable:
        return False
    return True


async def add(
    work: Work, source: str, text: str | None, *, note_text: str = "", others_end_after: timedelta | None = None
) -> MadeSecret:
    """Let a secret prove requests of a source, besides those it has.

    Args:
        text: what the sender signs with, or the public half of that; None: one is made.
        others_end_after: when the secrets that were added before end; None: they go on.

    Raises:
        NotFound: there is no such source.
        InvalidValue: it is not in the form that the sender uses, holds already, or the time is too long.
        LimitReached: the source has as many as it may.
        NotPossible: this source's requests are proven without a secret of its own.
    """
    _check(work.desk.settings, source)
    after = None if others_end_after is None else _checked(others_end_after)
    if len(note_text) > _LONGEST_NOTE:
        raise InvalidValue(f"it has at most {_LONGEST_NOTE} characters", "note")
    await source_secrets.lock(work.connection, source)
    known = await source_secrets.list_of(work.connection, source)
    text = _make(work.desk.settings, source) if text is None else _read(text)
    id = new_id()
    sealed = work.desk.vault.seal(text, context_of(source, id))
    _refuse(work, source, text, known)
    made = await source_secrets.insert(
        work.connection, id=id, source=source, sealed=sealed, note=note_text.strip(), by=work.actor
    )
    ended = 0 if after is None else await source_secrets.end_others(work.connection, source, id, after)
    said = f"{made.shown_id}{f', {ended} others end in {after}' if ended else ''}"
    await note(work.connection, work.actor, "source.secret.add", source, said)
    return MadeSecret(made, text, ended)


def _read(text: str) -> str:
    text = text.strip()
    if not text or len(text) > LONGEST or not (text.isprintable() or text.startswith("-----BEGIN ")):
        raise InvalidValue(f"paste the secret itself: printable text of at most {LONGEST:,} characters", "secret")
    if text.startswith(("env:", "file:")):
        raise InvalidValue("such a reference belongs into boathook.toml; here goes the secret itself", "secret")
    return text


def _refuse(work: Work, source: str, text: str, known: tuple[SourceSecret, ...]) -> None:
    """Refuse a secret that could prove nothing, or does so already."""
    settings = work.desk.settings
    if settings.sources[source].unsigned:
        raise NotPossible(f"sources.{source} says unsigned = true, so nothing is proven there", "unsigned_source")
    now = datetime.now(UTC)
    holding = [one for one in known if one.holds_at(now)]
    if len(holding) >= MOST:
        raise LimitReached(f"{source} has {MOST} added secrets; remove those that are used no more")
    try:
        Verifier(replace(spec_of(settings, source, AddedSecrets(settings, ())), secrets=(text,)))
    except ConfigError as error:
        raise InvalidValue(str(error).partition(": ")[2] or str(error), "secret") from None
    taken = {*settings.secrets_of(source), *_opened(work, holding)}
    if text in taken:
        raise InvalidValue("it is one of this source's secrets already", "secret")


def _opened(work: Work, known: list[SourceSecret]) -> set[str]:
    found = set()
    for one in known:
        try:
            found.add(work.desk.vault.open(one.sealed, one.context))
        except SecretUnreadable:
            continue
    return found


def _make(settings: Settings, source: str) -> str:
    """Return a secret in the form this source's sender uses, of 256 random bits."""
    proof = recipe_of(source, settings.sources[source].provider).proof
    match proof:
        case Hmac(key_form=KeyForm.STANDARD):
            return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        case Hmac(key_form=KeyForm.BASE64) | FieldMac(key_form=KeyForm.BASE64):
            return base64.b64encode(secrets.token_bytes(32)).decode()
        case _:
            # Hexadecimal digits are let in by every sender's form.
            return secrets.token_hex(24)


async def end(work: Work, source: str, id: str, after: timedelta | None) -> SourceSecret:
    """Let an added secret end after a while, or take its end back.

    Raises:
        NotFound: there is none of this id that has not ended.
        NotPossible: it is the last one of its source.
        InvalidValue: the time is too long.
    """
    found = await _last_checked(work, source, id, is_ending=after is not None)
    ended = await source_secrets.end(work.connection, source, found, None if after is None else _checked(after))
    if ended is None:
        raise NotFound(f"the secret {id} of {source} has ended already")
    what = "source.secret.keep" if after is None else "source.secret.end"
    await note(work.connection, work.actor, what, source, f"{id}{'' if after is None else f' in {after}'}")
    return ended


async def remove(work: Work, source: str, id: str) -> None:
    """Delete an added secret: at once it proves nothing. Raises NotFound, and NotPossible for a source's last one."""
    found = await _last_checked(work, source, id, is_ending=True)
    if not await source_secrets.remove(work.connection, source, found):
        raise NotFound(f"there is no secret {id} of {source}")
    await note(work.connection, work.actor, "source.secret.remove", source, id)


async def _last_checked(work: Work, source: str, shown_id: str, *, is_ending: bool) -> UUID:
    settings = work.desk.settings
    _check(settings, source)
    try:
        id = ids.read(ids.SOURCE_SECRET, shown_id)
    except ValueError:
        raise NotFound(f"there is no secret {shown_id} of {source}") from None
    await source_secrets.lock(work.connection, source)
    known = await source_secrets.list_of(work.connection, source)
    # What the encryption keys at hand do not open proves nothing, so it is no reason to let go of what does.
    others = [one for one in known if one.id != id and one.ends_at is None and _is_readable(work, one)]
    is_alone = not others and not settings.sources[source].secrets and not is_told(settings.sources[source])
    if is_ending and is_alone and any(one.id == id for one in known):
        raise NotPossible(
            f"it is the last secret of {source} that has no end; add another one first, or nothing would be accepted",
            "last_secret",
        )
    return id


def _checked(after: timedelta) -> timedelta:
    if not timedelta() <= after <= LONGEST_GRACE:
        raise InvalidValue(f"write a time from 0 to {LONGEST_GRACE.days} days", "after")
    return after


def _check(settings: Settings, source: str) -> None:
    if source not in settings.sources:
        known = ", ".join(sorted(settings.sources)) or "none"
        raise NotFound(f"there is no source {source!r}; the settings have {known}")
