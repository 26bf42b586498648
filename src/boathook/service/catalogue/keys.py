"""Operations on API keys, which only operators run: a key never creates another one."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec.structs import asdict, replace

from boathook.config.types import check_mount_path
from boathook.db import api_keys
from boathook.db.api_keys import ApiKey
from boathook.db.audit import record
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotAllowed, NotFound
from boathook.domain.model import DEFAULT_ORGANIZATION, MountRole
from boathook.service.access import keys
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import PageInput, Result, read_id, read_iterator
from boathook.service.common_fields import KeyName
from boathook.service.fields import Input, Rule
from boathook.service.sending import applications
from boathook.service.unit_of_work import UnitOfWork, new_id

TAG: Final = "API Key"
MAX_LIFETIME_S: Final = 100 * 365 * 86_400


class KeyScope(StrEnum):
    """What a key may reach."""

    ORGANIZATION = "organization"
    APPLICATION = "application"
    MOUNT = "mount"


class Key(Result, frozen=True, kw_only=True):
    """An API key, without its token."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.API_KEY)]
    name: str
    scope: KeyScope
    organization: str
    application: Annotated[str | None, Rule(help="The only application that it may access.", prefix=ids.APPLICATION)]
    mount: Annotated[str | None, Rule(help="The only mounted path of an app that it may call.")]
    role: MountRole | None
    is_portal: Annotated[bool, Rule(help="Whether it belongs to a user of an application's portal.")]
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class CreatedKey(Key, frozen=True, kw_only=True):
    """An API key that was just created."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"token"})

    token: Annotated[str, Rule(help="The bearer token; it is not stored, and never shown again.")]


class KeyRevoked(Result, frozen=True, kw_only=True):
    """A key that is not valid any more."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.API_KEY)]
    revoked: bool = True


class KeyPage(Result, frozen=True, kw_only=True):
    """A page of keys."""

    data: list[Key]
    iterator: str | None
    done: bool


class NewKey(Input, frozen=True, kw_only=True):
    """An API key to create."""

    scope: Annotated[KeyScope, Rule(help="The whole organization, one application, or one app's path.")]
    organization: Annotated[str, Rule(help="Organization of the key.", max_length=1_000)] = DEFAULT_ORGANIZATION
    application: Annotated[str | None, Rule(help="The application's id or uid.", prefix=ids.APPLICATION)] = None
    mount: Annotated[
        str | None, Rule(help="The app's mounted path.", example="/api/rentprog", check=check_mount_path)
    ] = None
    role: Annotated[MountRole | None, Rule(help="With a mounted path: may read, or also change.")] = None
    name: KeyName | None = None
    lifetime_seconds: Annotated[
        int | None,
        Rule(
            help="Lifetime; by default it never expires.",
            unit="seconds",
            example=2_592_000,
            minimum=1,
            maximum=MAX_LIFETIME_S,
            option="--expires",
            is_duration=True,
        ),
    ] = None


class KeyNamed(Input, frozen=True, kw_only=True):
    """The key that is meant."""

    id: Annotated[str, Rule(help="The key's id.", argument="KEY", prefix=ids.API_KEY)]


class KeyFilter(PageInput, frozen=True, kw_only=True):
    """The keys to list."""

    organization: Annotated[str | None, Rule(help="Only of this organization.")] = None
    portal: Annotated[bool, Rule(help="Include portal keys.")] = False


@operation(
    "key.create",
    Permission.KEY_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/key", 201),
    tag=TAG,
    undo="revoke it",
    secret="token",  # noqa: S106 - the name of a field
    examples=(
        "boathook keys create --scope organization --name backend",
        "boathook keys create --scope application --application acme --expires 30d --json",
        "boathook keys create --scope mount --mount /api/rentprog --role reader --expires 30d",
    ),
)
async def create(work: UnitOfWork, new: NewKey) -> CreatedKey:
    """Create a key and return its token once; the token is not stored."""
    _check_scope(new)
    if work.caller.tenant not in {None, new.organization}:
        raise NotAllowed("a key of one organization may not act on another")
    work = replace(work, organization=new.organization)
    application = None if new.application is None else await applications.get(work, new.application)
    key = ApiKey(
        id=new_id(),
        organization=new.organization,
        application_id=None if application is None else application.id,
        name=new.name or "",
        mount=new.mount,
        mount_role=new.role,
    )
    lifetime = None if new.lifetime_seconds is None else timedelta(seconds=new.lifetime_seconds)
    created = await keys.issue(work, key, application, lifetime)
    note = None if new.mount is None else f"{new.role} of {new.mount}"
    await record(work.connection, work.actor, "key.create", created.key.shown_id, note)
    return CreatedKey(token=created.token, **asdict(view(created.key)))


def _check_scope(new: NewKey) -> None:
    """Raise InvalidValue for what a key of this scope lacks, or has too much."""
    if new.scope is KeyScope.APPLICATION and new.application is None:
        raise InvalidValue("enter the id or uid of the application: `scope` application needs it", "application")
    if new.scope is not KeyScope.APPLICATION and new.application is not None:
        raise InvalidValue("only a key with `scope` application has one", "application")
    for name, instruction in (("mount", "enter the path, such as /api/rentprog"), ("role", "choose a role")):
        value = getattr(new, name)
        if new.scope is KeyScope.MOUNT and value is None:
            raise InvalidValue(f"{instruction}: `scope` mount needs it", name)
        if new.scope is not KeyScope.MOUNT and value is not None:
            raise InvalidValue("only a key with `scope` mount has one", name)


@operation(
    "key.list",
    Permission.KEY_VIEW,
    Scope.DEPLOYMENT,
    Http("GET", "/key"),
    tag=TAG,
    examples=("boathook keys list --json",),
)
async def list_keys(work: UnitOfWork, input: KeyFilter) -> KeyPage:
    """List keys, newest first."""
    before = None if input.iterator is None else read_iterator(ids.API_KEY, input.iterator)
    organization = work.caller.tenant or input.organization
    rows = await api_keys.list_all(
        work.connection, organization, with_portal=input.portal, before=before, limit=input.limit + 1
    )
    data = [view(row) for row in rows[: input.limit]]
    return KeyPage(data=data, iterator=data[-1].id if data else None, done=len(rows) <= input.limit)


@operation(
    "key.get",
    Permission.KEY_VIEW,
    Scope.DEPLOYMENT,
    Http("GET", "/key/{id}"),
    tag=TAG,
    examples=("boathook keys show key_01h455vb4pex5vsknk084sn02q4",),
)
async def get(work: UnitOfWork, input: KeyNamed) -> Key:
    """Show one key, without its token."""
    key = await api_keys.get(work.connection, read_id(ids.API_KEY, input.id), work.caller.tenant)
    if key is None:
        raise NotFound(f"there is no key {input.id}")
    return view(key)


@operation(
    "key.revoke",
    Permission.KEY_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/key/{id}/revoke"),
    tag=TAG,
    undo=None,
    says="{id} revoked",
    warns="revoke the key {id}: requests with it are rejected immediately, and this cannot be undone",
    examples=("boathook keys revoke key_01h455vb4pex5vsknk084sn02q4",),
)
async def revoke(work: UnitOfWork, input: KeyNamed) -> KeyRevoked:
    """Revoke a key immediately; requests with it are rejected from now on."""
    await keys.revoke(work, read_id(ids.API_KEY, input.id), work.caller.tenant)
    return KeyRevoked(id=input.id)


def view(key: ApiKey) -> Key:
    """Return a key as interfaces show it."""
    scope = KeyScope.ORGANIZATION if key.application_id is None else KeyScope.APPLICATION
    return Key(
        id=key.shown_id,
        name=key.name,
        scope=scope if key.mount is None else KeyScope.MOUNT,
        organization=key.organization,
        application=None if key.application_id is None else ids.show(ids.APPLICATION, key.application_id),
        mount=key.mount,
        role=None if key.mount_role is None else MountRole(key.mount_role),
        is_portal=key.is_portal,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )
