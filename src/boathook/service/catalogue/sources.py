"""Operations on the sources that are stored in PostgreSQL."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import msgspec

from boathook.domain.errors import NotFound
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.domain.redaction import RedactedStruct
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import Result
from boathook.service.fields import Input, Rule
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Source"
Name = Annotated[str, Rule(help="The source's name.", name="name", argument="NAME", example="shop")]
Provider = Annotated[str, Rule(help="Provider name; see `boathook sources providers`.", example="stripe")]
Settings = Annotated[
    Mapping[str, Any],
    Rule(
        help="Keys of `[sources.NAME]` in boathook.toml, without `provider` and secrets. References such as `env:NAME`"
        " and paths of files are refused.",
        example={"paths": ["/webhooks/shop"], "rate": 50},
    ),
]


class NewSource(Input, RedactedStruct, frozen=True, kw_only=True):
    """A source to store."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secret", "settings"})

    name: Annotated[Name, Rule(help="Unique; requests arrive at `/in/NAME`.")]
    provider: Provider
    settings: Settings = msgspec.field(default_factory=dict)
    secret: Annotated[
        str | None,
        Rule(help="The secret that the sender signs with, or its public key.", is_secret=True, example="whsec_..."),
    ] = None
    generate_secret: Annotated[bool, Rule(help="Generate the secret, and return it once.")] = False


class SourceChange(Input, RedactedStruct, frozen=True, kw_only=True):
    """Keys of a source to change."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"settings"})

    source_name: Name
    settings: Annotated[
        Settings,
        Rule(
            help="Keys to change, `provider` included; null removes a key.",
            description="Keys of `[sources.NAME]` in boathook.toml, `provider` included.",
            example={"rate": 50, "paths": None},
        ),
    ]


class SourceReplacement(Input, RedactedStruct, frozen=True, kw_only=True):
    """The new settings of a source; keys that are not given return to their defaults."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"settings"})

    source_name: Name
    provider: Provider
    settings: Settings = msgspec.field(default_factory=dict)


class SourceNamed(Input, frozen=True, kw_only=True):
    """The source that is meant."""

    source_name: Name


class CreatedSource(Result, frozen=True, kw_only=True):
    """A source that was just created."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secret"})

    name: str
    secret: Annotated[str | None, Rule(help="The generated secret for the sender; it is not shown again.")] = None


class ChangedSource(Result, frozen=True, kw_only=True):
    """A source that was changed."""

    name: str


class RemovedSource(Result, frozen=True, kw_only=True):
    """A source that is not stored any more."""

    source_name: str


@operation(
    "source.create",
    Permission.SOURCE_MANAGE,
    Scope.ORGANIZATION,
    Http("POST", "/source", 201, is_derived=False),
    tag=TAG,
    undo="delete it",
    secret="secret",  # noqa: S106 - the name of a field
)
async def create(work: UnitOfWork, input: NewSource) -> CreatedSource:
    """Store a source; every gateway serves it within seconds, without a restart."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import stored_sources

    require_reach(work, input.name)
    values = {**input.settings, "provider": input.provider}
    added = await stored_sources.add(
        work, input.name, values, secret=input.secret, is_secret_generated=input.generate_secret
    )
    return CreatedSource(name=added.name, secret=added.secret)


@operation(
    "source.change",
    Permission.SOURCE_MANAGE,
    Scope.ORGANIZATION,
    Http("PATCH", "/source/{source_name}", is_derived=False),
    tag=TAG,
    undo="change it back",
)
async def change(work: UnitOfWork, input: SourceChange) -> ChangedSource:
    """Change the given keys of a stored source."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import stored_sources

    require_reach(work, input.source_name)
    await stored_sources.change(work, input.source_name, input.settings)
    return ChangedSource(name=input.source_name)


@operation(
    "source.replace",
    Permission.SOURCE_MANAGE,
    Scope.ORGANIZATION,
    Http("PUT", "/source/{source_name}", is_derived=False),
    tag=TAG,
    undo="change it back",
)
async def replace(work: UnitOfWork, input: SourceReplacement) -> ChangedSource:
    """Replace the settings of a stored source; its secrets stay, and so do hidden values that are sent back."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import stored_sources

    require_reach(work, input.source_name)
    values = {**input.settings, "provider": input.provider}
    await stored_sources.change(work, input.source_name, values, is_replaced=True)
    return ChangedSource(name=input.source_name)


@operation(
    "source.delete",
    Permission.SOURCE_MANAGE,
    Scope.ORGANIZATION,
    Http("DELETE", "/source/{source_name}", 204, is_derived=False),
    tag=TAG,
    undo=None,
    warns="remove the source {source_name}, whose requests are then answered 404",
    must_confirm=True,
)
async def delete(work: UnitOfWork, input: SourceNamed) -> RemovedSource:
    """Delete a stored source and its secrets; its events, deliveries and rejections stay."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import stored_sources

    require_reach(work, input.source_name)
    await stored_sources.remove(work, input.source_name)
    return RemovedSource(source_name=input.source_name)


def require_reach(work: UnitOfWork, name: str) -> None:
    """Raise NotFound unless the caller may reach sources, which belong to the default organization."""
    if work.caller.tenant not in {None, DEFAULT_ORGANIZATION}:
        raise NotFound(f"there is no source {name}")
