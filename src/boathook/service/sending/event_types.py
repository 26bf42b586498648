"""Creates, changes, lists and archives event types, and validates payloads against their schemas."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import asdict, replace

from boathook.db import event_types
from boathook.db.audit import record, record_change
from boathook.db.database import Connection
from boathook.db.event_types import EventType as EventType  # noqa: PLC0414 - re-exported
from boathook.db.event_types import SubscribedEndpoint
from boathook.db.route_registry import read_schemas
from boathook.domain.endpoints import check_type
from boathook.domain.errors import AlreadyExists, InvalidMessage, InvalidValue, NotFound
from boathook.service import limits
from boathook.service.common_fields import Description, Flag
from boathook.service.fields import Rule, check_values
from boathook.service.unit_of_work import UnitOfWork


async def check_message(connection: Connection, *, organization: str, type: str, payload: Any) -> None:
    """Validate a payload against its event type's schema; a type without a schema accepts any payload.

    Raises:
        InvalidMessage: the payload is invalid; the message names the path.
    """
    schemas = await read_schemas(connection, organization, type)
    # In a thread: a schema can need many steps for any payload.
    fault = await asyncio.to_thread(find_fault, payload, schemas) if schemas else None
    if fault is not None:
        raise InvalidMessage(f"it does not match the schema of {type}: {fault}", "payload")


def find_fault(payload: Any, schemas: Mapping[str, Any]) -> str | None:
    """Return why a payload violates the schema with the latest version, with the path; None if it is valid."""
    # Importing the validator takes longer than most commands.
    from boathook.verification.json_schema import validate

    return validate(payload, schemas)


MAX_VERSIONS: Final = 20
"""Maximum number of schema versions of an event type."""


class NewEventType(msgspec.Struct, frozen=True, kw_only=True):
    """The values of an event type to create or replace."""

    description: Annotated[Description, Rule(example="An invoice was paid")]
    is_archived: Annotated[bool, Rule(name="archived")] = False
    is_deprecated: Annotated[
        bool, Rule(help="Mark as deprecated: still sent, no longer recommended.", description=None, name="deprecated")
    ] = False
    schemas: Annotated[
        Mapping[str, Any] | None,
        Rule(help="JSON Schemas, draft 7, of the payload, by version.", description=None),
    ] = None
    feature_flags: Annotated[
        Sequence[Flag] | None,
        Rule(
            help="Only portal users with one of these flags see it.",
            description="Portal users without one of these flags do not see the event type.",
            option="--flag", metavar="FLAG",
        ),
    ] = None  # fmt: skip
    group_name: Annotated[
        str | None,
        Rule(help="Group.", description=None, option="--group", metavar="GROUP", max_length=256, example="invoices"),
    ] = None


async def get(work: UnitOfWork, name: str, flags: Collection[str] | None = None) -> EventType:
    """Return an event type, archived or not; with *flags*, only if they make it visible. Raises NotFound."""
    return _found(await event_types.find(work.connection, work.organization, name, flags), name)


def _found(type: EventType | None, name: str) -> EventType:
    if type is None:
        raise NotFound(f"there is no event type {name}")
    return type


async def list_page(
    work: UnitOfWork,
    *,
    place: str | None = None,
    is_ascending: bool = True,
    limit: int,
    with_archived: bool = False,
    flags: Collection[str] | None = None,
) -> list[EventType]:
    """Return event types after the name *place*, in ascending or descending order."""
    return await event_types.list_page(
        work.connection,
        work.organization,
        place=place,
        is_ascending=is_ascending,
        limit=limit,
        with_archived=with_archived,
        flags=flags,
    )


async def list_subscribed_endpoints(work: UnitOfWork, name: str, *, limit: int) -> list[SubscribedEndpoint]:
    """Return endpoints that receive an event type: those that name it first, then those that receive all."""
    return await event_types.list_subscribed_endpoints(work.connection, work.organization, name, limit=limit)


async def create(work: UnitOfWork, name: str, new: NewEventType) -> EventType:
    """Create an event type; an archived one of this name is restored with the values of *new*.

    Raises:
        InvalidValue: a schema is invalid.
        AlreadyExists: there is an active event type of this name.
    """
    former = await event_types.lock(work.connection, work.organization, name)
    if former is not None and not former.is_archived:
        raise AlreadyExists(f"event type {name} already exists", "event_type_exists")
    if former is not None:
        return await _save(work, former, asdict(new))
    created = await event_types.insert(work.connection, await _new(work, name, new))
    if created is None:
        raise AlreadyExists(f"event type {name} already exists", "event_type_exists")
    await record(work.connection, work.actor, "event_type.create", name)
    return created


async def put(work: UnitOfWork, name: str, new: NewEventType) -> tuple[EventType, bool]:
    """Update an event type with these values, or create it; and whether it was created. Raises InvalidValue."""
    former = await event_types.lock(work.connection, work.organization, name)
    if former is None:
        created = await event_types.insert(work.connection, await _new(work, name, new))
        if created is not None:
            await record(work.connection, work.actor, "event_type.create", name)
            return created, True
        former = await event_types.lock(work.connection, work.organization, name)
    return await _save(work, _found(former, name), asdict(new)), False


async def update(work: UnitOfWork, name: str, changes: Mapping[str, Any]) -> EventType:
    """Change some values of an event type, by their names in `NewEventType`. Raises NotFound, InvalidValue."""
    event_type = _found(await event_types.lock(work.connection, work.organization, name), name)
    return await _save(work, event_type, dict(changes))


async def delete(work: UnitOfWork, name: str, *, is_expunged: bool = False) -> None:
    """Archive an event type, so that endpoints can no longer select it, or delete it. Raises NotFound."""
    event_type = _found(await event_types.lock(work.connection, work.organization, name), name)
    if is_expunged:
        await event_types.delete(work.connection, work.organization, name)
    else:
        await event_types.save(work.connection, replace(event_type, is_archived=True))
    await record(work.connection, work.actor, "event_type.delete" if is_expunged else "event_type.archive", name)


async def _new(work: UnitOfWork, name: str, new: NewEventType) -> EventType:
    with limits.field("name"):
        check_type(name)
    return EventType(organization=work.organization, name=name, **await _checked(asdict(new)))


async def _save(work: UnitOfWork, event_type: EventType, columns: dict[str, Any]) -> EventType:
    saved = await event_types.save(work.connection, replace(event_type, **await _checked(columns)))
    await record_change(work.connection, work.actor, "event_type.update", event_type.name, event_type, saved)
    return saved


def check_schemas(schemas: Mapping[str, Any], *location: str) -> None:
    """Check that schemas are valid; *location* is the path that errors name. Raises InvalidValue."""
    # Importing the validator takes longer than most commands; the gateway imports it at start.
    from boathook.verification.json_schema import check_schema

    for version, schema in schemas.items():
        try:
            check_schema(schema)
        except ValueError as error:
            raise InvalidValue(str(error), *location, version) from None


async def _checked(columns: dict[str, Any]) -> dict[str, Any]:
    check_values(NewEventType, columns)
    schemas = columns.get("schemas") or {}
    if len(schemas) > MAX_VERSIONS:
        raise InvalidValue(f"an event type has at most {MAX_VERSIONS} versions; remove old ones", "schemas")
    if schemas:
        # Compiling patterns takes up to half a second; keep it off the event loop.
        await asyncio.to_thread(check_schemas, schemas, "schemas")
    if "feature_flags" in columns:
        # An empty list means the same as null: visible to everyone.
        columns["feature_flags"] = tuple(dict.fromkeys(columns["feature_flags"] or ())) or None
    return columns
