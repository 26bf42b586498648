"""Operations on event types: the types of an organization's messages, with the schemas of their payloads."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import asdict, replace

from boathook.db import event_types as store
from boathook.db.audit import record
from boathook.db.event_types import EventType as StoredEventType
from boathook.domain.endpoints import check_type
from boathook.domain.errors import InvalidValue, NotFound
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import PageInput, Result, flags_of
from boathook.service.common_fields import Description
from boathook.service.fields import Change, Input, Rule, with_changes
from boathook.service.sending import event_types, openapi_import
from boathook.service.sending.event_types import EventTypeName, NewEventType
from boathook.service.sending.openapi_import import WebhookType, schemas_of
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Event Type"
_ONE: Final = "/event-type/{name}"
Name = Annotated[EventTypeName, Rule(help="Name, such as invoice.paid.", argument="NAME")]


class EventType(Result, frozen=True, kw_only=True):
    """An event type."""

    name: str
    description: str
    is_archived: bool = msgspec.field(name="archived")
    is_deprecated: bool = msgspec.field(name="deprecated")
    schemas: Annotated[Mapping[str, Any] | None, Rule(help="JSON Schemas of its payloads, by version.")] = None
    feature_flags: tuple[str, ...] | None = None
    group_name: str | None = None
    created_at: datetime
    updated_at: datetime


class EventTypePage(Result, frozen=True, kw_only=True):
    """A page of event types."""

    data: list[EventType]
    iterator: str | None
    done: bool


class EventTypePut(Result, frozen=True, kw_only=True):
    """An event type that was replaced or created."""

    event_type: EventType
    is_created: bool


class EventTypeArchived(Result, frozen=True, kw_only=True):
    """An event type that accepts no new subscriptions."""

    name: str
    archived: bool = True


class EventTypeDeleted(Result, frozen=True, kw_only=True):
    """An event type that is gone."""

    name: str
    deleted: bool = True


class DocumentedEventType(Result, frozen=True, kw_only=True):
    """An event type as an OpenAPI document describes it."""

    name: str
    description: str
    is_deprecated: bool = msgspec.field(name="deprecated")
    schemas: Mapping[str, Any] | None = None


class ImportChanges(Result, frozen=True, kw_only=True):
    """The changes of an import."""

    modified: Annotated[list[str], Rule(help="Names of new and changed event types.")]
    to_modify: Annotated[
        list[DocumentedEventType] | None, Rule(help="These event types, of a dry run.")
    ] = msgspec.field(name="to_modify", default=None)  # fmt: skip


class EventTypeImport(Result, frozen=True, kw_only=True):
    """The result of an import, or of its dry run."""

    data: ImportChanges


class EventTypeNamed(Input, frozen=True, kw_only=True):
    """The event type that is meant."""

    name: Name


class EventTypeFilter(PageInput, frozen=True, kw_only=True):
    """The event types to list."""

    with_archived: Annotated[
        bool, Rule(help="Include archived event types.", name="include_archived", option="--all")
    ] = False  # fmt: skip
    with_schemas: Annotated[
        bool, Rule(help="Show the schemas.", name="with_content", option="--schemas/--no-schemas")
    ] = True  # fmt: skip


class EventTypeCreate(NewEventType, frozen=True, kw_only=True):
    """An event type to create or replace."""

    name: Name
    description: Description = ""


@with_changes(NewEventType)
class EventTypeUpdate(Change, frozen=True, kw_only=True):
    """Changes to an event type."""

    name: Name


class OpenApiDocument(Input, frozen=True, kw_only=True):
    """An OpenAPI document whose webhooks become event types."""

    spec: Annotated[Mapping[str, Any] | None, Rule(help="The document.", argument="FILE")] = None
    spec_raw: Annotated[str | None, Rule(help="The document as text, JSON or YAML.", argument="FILE")] = None
    dry_run: Annotated[bool, Rule(help="Change nothing.")] = False
    replace_all: Annotated[bool, Rule(help="Archive event types that are not in the document.")] = False


@operation(
    "event_type.list",
    Permission.EVENT_TYPE_VIEW,
    Scope.APPLICATION,
    Http("GET", "/event-type", is_derived=False),
    tag=TAG,
    examples=("boathook event-types list --all --json",),
)
async def list_event_types(work: UnitOfWork, input: EventTypeFilter) -> EventTypePage:
    """List event types by name."""
    if input.iterator is not None:
        try:
            check_type(input.iterator)
        except ValueError:
            raise InvalidValue("write an iterator of an earlier page, the name of an event type", "iterator") from None
    rows = await event_types.list_page(
        work,
        place=input.iterator,
        limit=input.limit + 1,
        with_archived=input.with_archived,
        flags=flags_of(work.caller),
    )
    data = [view(row, with_schemas=input.with_schemas) for row in rows[: input.limit]]
    return EventTypePage(data=data, iterator=data[-1].name if data else None, done=len(rows) <= input.limit)


@operation(
    "event_type.get",
    Permission.EVENT_TYPE_VIEW,
    Scope.APPLICATION,
    Http("GET", _ONE, is_derived=False),
    tag=TAG,
    examples=("boathook event-types show invoice.paid",),
)
async def get(work: UnitOfWork, target: EventTypeNamed) -> EventType:
    """Show one event type with its schemas, archived or not."""
    row = await store.find(work.connection, work.organization, target.name, flags_of(work.caller))
    return view(_existing(row, target.name))


def _existing(row: StoredEventType | None, name: str) -> StoredEventType:
    if row is None:
        raise NotFound(f"there is no event type {name}")
    return row


@operation(
    "event_type.create",
    Permission.EVENT_TYPE_MANAGE,
    Scope.ORGANIZATION,
    Http("POST", "/event-type", 201, is_derived=False),
    tag=TAG,
    undo="archive it",
    says="{name}",
    examples=(
        "boathook event-types create invoice.paid --description 'An invoice was paid'",
        "boathook event-types create invoice.paid --schema @invoice.json",
    ),
)
async def create(work: UnitOfWork, new: EventTypeCreate) -> EventType:
    """Create an event type, or restore an archived one."""
    return view(await event_types.create(work, new.name, _values(new)))


def _values(new: EventTypeCreate) -> NewEventType:
    return NewEventType(**{name: getattr(new, name) for name in NewEventType.__struct_fields__})


@operation(
    "event_type.put",
    Permission.EVENT_TYPE_MANAGE,
    Scope.ORGANIZATION,
    Http("PUT", _ONE, is_derived=False),
    tag=TAG,
    undo="put its former values",
)
async def put(work: UnitOfWork, new: EventTypeCreate) -> EventTypePut:
    """Replace an event type's fields, or create it."""
    row = await store.lock(work.connection, work.organization, new.name)
    if row is None:
        created = await event_types.insert(work, new.name, _values(new))
        if created is not None:
            return EventTypePut(event_type=view(created), is_created=True)
        row = await store.lock(work.connection, work.organization, new.name)
    saved = await event_types.save(work, _existing(row, new.name), asdict(_values(new)))
    return EventTypePut(event_type=view(saved), is_created=False)


@operation(
    "event_type.update",
    Permission.EVENT_TYPE_MANAGE,
    Scope.ORGANIZATION,
    Http("PATCH", _ONE, is_derived=False),
    tag=TAG,
    undo="set the former values",
    says="{name} updated",
    examples=(
        "boathook event-types update invoice.paid --description 'An invoice was paid in full'",
        "boathook event-types update invoice.paid --no-archived",
    ),
)
async def update(work: UnitOfWork, change: EventTypeUpdate) -> EventType:
    """Change the given values only. An empty text removes a value."""
    row = await store.lock(work.connection, work.organization, change.name)
    return view(await event_types.save(work, _existing(row, change.name), change.values))


@operation(
    "event_type.archive",
    Permission.EVENT_TYPE_MANAGE,
    Scope.ORGANIZATION,
    Http("DELETE", _ONE, 204, is_derived=False),
    tag=TAG,
    undo="update it with archived set to false",
    says="{name} archived",
    examples=("boathook event-types archive invoice.paid",),
)
async def archive(work: UnitOfWork, target: EventTypeNamed) -> EventTypeArchived:
    """Archive an event type: it accepts no new subscriptions; existing ones still receive it."""
    row = _existing(await store.lock(work.connection, work.organization, target.name), target.name)
    await store.save(work.connection, replace(row, is_archived=True))
    await record(work.connection, work.actor, "event_type.archive", target.name)
    return EventTypeArchived(name=target.name)


@operation(
    "event_type.delete",
    Permission.EVENT_TYPE_MANAGE,
    Scope.ORGANIZATION,
    Http("DELETE", f"{_ONE}?expunge=true", 204, is_derived=False),
    tag=TAG,
    undo=None,
    must_confirm=True,
    says="{name} deleted",
    warns="delete the event type {name} with its schemas: this cannot be undone",
    examples=("boathook event-types delete invoice.paid --yes",),
)
async def delete(work: UnitOfWork, target: EventTypeNamed) -> EventTypeDeleted:
    """Delete an event type permanently; messages and subscriptions of its name stay."""
    _existing(await store.lock(work.connection, work.organization, target.name), target.name)
    await store.delete(work.connection, work.organization, target.name)
    await record(work.connection, work.actor, "event_type.delete", target.name)
    return EventTypeDeleted(name=target.name)


@operation(
    "event_type.import",
    Permission.EVENT_TYPE_MANAGE,
    Scope.ORGANIZATION,
    Http("POST", "/event-type/import/openapi", is_derived=False),
    tag=TAG,
    undo="archive or update what it has changed",
    examples=("boathook event-types import-openapi openapi.yaml --dry-run",),
)
async def import_openapi(work: UnitOfWork, document: OpenApiDocument) -> EventTypeImport:
    """Create or update event types from the webhooks of an OpenAPI document; archived ones are restored."""
    if (document.spec is None) is (document.spec_raw is None):
        raise InvalidValue("set either spec or specRaw", "spec")
    types = await openapi_import.read_openapi((document.spec or {}) if document.spec_raw is None else document.spec_raw)
    existing = {row.name: row for row in await openapi_import.export_event_types(work)}
    changed = [type for type in types if not _is_same(existing.get(type.name), type)]
    if not document.dry_run:
        await _store_import(work, changed, existing)
        if document.replace_all:
            names = {type.name for type in types}
            for row in existing.values():
                if row.name not in names and not row.is_archived:
                    await archive(work, EventTypeNamed(name=row.name))
    documented = [
        DocumentedEventType(
            name=type.name,
            description=type.description,
            is_deprecated=type.is_deprecated,
            schemas=schemas_of(type),
        )
        for type in changed
    ]
    changes = ImportChanges(
        modified=[type.name for type in changed], to_modify=documented if document.dry_run else None
    )
    return EventTypeImport(data=changes)


async def _store_import(
    work: UnitOfWork, types: Sequence[WebhookType], existing: Mapping[str, StoredEventType]
) -> None:
    for type in types:
        row = existing.get(type.name)
        new = EventTypeCreate(
            name=type.name,
            description=type.description,
            is_deprecated=type.is_deprecated,
            schemas=schemas_of(type),
            feature_flags=None if row is None else row.feature_flags,
            group_name=None if row is None else row.group_name,
        )
        await put(work, new)


def _is_same(row: StoredEventType | None, type: WebhookType) -> bool:
    if row is None or row.is_archived:
        return False
    before = (row.description, row.is_deprecated, row.schemas)
    return before == (type.description, type.is_deprecated, schemas_of(type))


def view(row: StoredEventType, *, with_schemas: bool = True) -> EventType:
    """Return an event type as interfaces show it."""
    values = asdict(row)
    del values["organization"]
    if not with_schemas:
        values["schemas"] = None
    return EventType(**values)
