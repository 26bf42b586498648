"""Operations on the secrets of sources that operators add while boathook runs, and on handshake secrets."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final

from msgspec.structs import asdict

from boathook.domain import ids
from boathook.domain.redaction import RedactedStruct
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.sources import require_reach
from boathook.service.catalogue.values import Result
from boathook.service.common_fields import Note
from boathook.service.fields import Input, Rule
from boathook.service.limits import MAX_SOURCE_SECRET_GRACE
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Source"
_SECRET: Final = ids.SOURCE_SECRET


def _check_grace(seconds: float) -> None:
    if not 0 <= seconds <= MAX_SOURCE_SECRET_GRACE.total_seconds():
        raise ValueError(f"write a time from 0 to {MAX_SOURCE_SECRET_GRACE.days} days")


SourceName = Annotated[str, Rule(help="The source's name.", argument="SOURCE", example="stripe")]
SecretId = Annotated[str, Rule(help="Secret id as listed.", argument="SECRET", prefix=_SECRET)]
Grace = Annotated[float, Rule(unit="seconds", example=86_400, is_duration=True, check=_check_grace)]


class SourceNamed(Input, frozen=True, kw_only=True):
    """The source that is meant."""

    source: SourceName


class NewSecret(Input, RedactedStruct, frozen=True, kw_only=True):
    """A secret to add to a source."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secret"})

    source: SourceName
    secret: Annotated[
        str | None,
        Rule(help="The secret that the sender signs with, or its public key; by default generated.", is_secret=True),
    ] = None
    note: Annotated[Note, Rule(help="Label.", example="after the rotation")] = ""
    expire_others: Annotated[
        Grace | None, Rule(help="Seconds until previously added secrets expire; null: they do not.")
    ] = None


class SecretNamed(Input, frozen=True, kw_only=True):
    """The added secret that is meant."""

    source: SourceName
    secret: SecretId


class SecretExpiry(SecretNamed, frozen=True, kw_only=True):
    """The added secret to expire, and when."""

    after: Annotated[Grace, Rule(help="Seconds until it expires; by default it expires now.")] = 0


class Secret(Result, frozen=True, kw_only=True):
    """A secret of a source, without its text."""

    where: Annotated[str, Rule(help="boathook.toml, from the sender's handshake, or added.")]
    name: Annotated[str, Rule(help="The reference in the settings, such as env:NAME, or the id.")]
    note: str
    added_by: str | None
    added_at: datetime | None
    expires_at: datetime | None
    is_over: Annotated[bool, Rule(help="Whether it has ended.")]
    is_readable: Annotated[bool, Rule(help="Whether it can be decrypted with the configured keys.")]


class Secrets(Result, frozen=True, kw_only=True):
    """The secrets of a source."""

    data: Annotated[Sequence[Secret], Rule(help="Those of the settings first, then added ones, newest first.")]


class CreatedSecret(Result, frozen=True, kw_only=True):
    """A secret that was just added."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secret"})

    id: Annotated[str, Rule(help="Its id.", prefix=_SECRET)]
    source: str
    others_expired: Annotated[int, Rule(help="How many other secrets were set to expire.")]
    secret: Annotated[str | None, Rule(help="The generated secret for the sender; it is not shown again.")] = None


class SecretExpires(Result, frozen=True, kw_only=True):
    """When an added secret expires."""

    id: Annotated[str, Rule(help="Its id.", prefix=_SECRET)]
    source: str
    expires_at: datetime | None


class RemovedSecret(Result, frozen=True, kw_only=True):
    """A secret that is not valid any more."""

    id: Annotated[str, Rule(help="Its id.", prefix=_SECRET)]
    source: str
    removed: bool = True


class HandshakeSecret(Result, frozen=True, kw_only=True):
    """The secret that a sender sent in its handshake."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secret"})

    source: str
    secret: Annotated[str, Rule(help="To paste into the sender's settings.")]


class ForgottenSecret(Result, frozen=True, kw_only=True):
    """A source that waits for the next secret of its sender."""

    source: str


@operation(
    "source_secret.list",
    Permission.SOURCE_SECRET_VIEW,
    Scope.DEPLOYMENT,
    Http("GET", "/source/{source}/secret"),
    tag=TAG,
)
async def list_secrets(work: UnitOfWork, input: SourceNamed) -> Secrets:
    """List the secrets of a source and where each is stored. Their values are never shown."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import source_secrets

    require_reach(work, input.source)
    lines = await source_secrets.list_secrets(work, input.source)
    return Secrets(data=[Secret(**asdict(line)) for line in lines])


@operation(
    "source_secret.create",
    Permission.SOURCE_SECRET_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/source/{source}/secret", 201),
    tag=TAG,
    undo="delete it",
    secret="secret",  # noqa: S106 - the name of a field
)
async def create(work: UnitOfWork, input: NewSecret) -> CreatedSecret:
    """Add a secret to a source; every gateway accepts it within seconds.

    It is valid in addition to the others, so that the sender can change over at any time.
    """
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import source_secrets

    require_reach(work, input.source)
    after = None if input.expire_others is None else timedelta(seconds=input.expire_others)
    created = await source_secrets.add(
        work, input.source, input.secret, note_text=input.note, expire_others_after=after
    )
    return CreatedSecret(
        id=created.secret.shown_id,
        source=input.source,
        others_expired=created.ended,
        secret=created.text if input.secret is None else None,
    )


@operation(
    "source_secret.expire",
    Permission.SOURCE_SECRET_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/source/{source}/secret/{secret}/expire"),
    tag=TAG,
    undo="keep it before it has expired",
)
async def expire(work: UnitOfWork, input: SecretExpiry) -> SecretExpires:
    """Expire an added secret, now or later."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import source_secrets

    require_reach(work, input.source)
    secret = await source_secrets.expire(work, input.source, input.secret, timedelta(seconds=input.after))
    return SecretExpires(id=secret.shown_id, source=input.source, expires_at=secret.expires_at)


@operation(
    "source_secret.keep",
    Permission.SOURCE_SECRET_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/source/{source}/secret/{secret}/keep"),
    tag=TAG,
    undo="expire it",
)
async def keep(work: UnitOfWork, input: SecretNamed) -> SecretExpires:
    """Cancel the expiry of an added secret."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import source_secrets

    require_reach(work, input.source)
    secret = await source_secrets.expire(work, input.source, input.secret, None)
    return SecretExpires(id=secret.shown_id, source=input.source, expires_at=None)


@operation(
    "source_secret.delete",
    Permission.SOURCE_SECRET_MANAGE,
    Scope.DEPLOYMENT,
    Http("DELETE", "/source/{source}/secret/{secret}"),
    tag=TAG,
    undo=None,
)
async def delete(work: UnitOfWork, input: SecretNamed) -> RemovedSecret:
    """Delete an added secret immediately."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import source_secrets

    require_reach(work, input.source)
    await source_secrets.remove(work, input.source, input.secret)
    return RemovedSecret(id=input.secret, source=input.source)


@operation(
    "source_secret.show_handshake",
    Permission.SOURCE_SECRET_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/source/{source}/handshake-secret"),
    tag=TAG,
    undo="delete it",
    secret="secret",  # noqa: S106 - the name of a field
)
async def show_handshake(work: UnitOfWork, input: SourceNamed) -> HandshakeSecret:
    """Return the secret that a sender such as Notion sent in its handshake, and activate it."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import source_secrets

    require_reach(work, input.source)
    return HandshakeSecret(source=input.source, secret=await source_secrets.show_secret(work, input.source))


@operation(
    "source_secret.forget_handshake",
    Permission.SOURCE_SECRET_MANAGE,
    Scope.DEPLOYMENT,
    Http("DELETE", "/source/{source}/handshake-secret"),
    tag=TAG,
    undo=None,
)
async def forget_handshake(work: UnitOfWork, input: SourceNamed) -> ForgottenSecret:
    """Delete the secret from a sender's handshake, so that the sender can send another."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import source_secrets

    require_reach(work, input.source)
    await source_secrets.forget_secret(work, input.source)
    return ForgottenSecret(source=input.source)
