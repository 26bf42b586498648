"""Stores and lists event types, and validates payloads against their schemas."""

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
from boathook.domain.errors import AlreadyExists, InvalidMessage, InvalidValue
from boathook.service.common_fields import Description, Flag
from boathook.service.fields import Rule, check_value, check_values
from boathook.service.unit_of_work import UnitOfWork


async def check_payload(connection: Connection, *, organization: str, type: str, payload: Any) -> None:
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


EventTypeName = Annotated[str, Rule(check=check_type)]
MAX_VERSIONS: Final = 20
"""Maximum number of schema versions of an event type."""


class NewEventType(msgspec.Struct, frozen=True, kw_only=True):
    """The values of an event type to create or replace."""

    description: Annotated[Description, Rule(example="An invoice was paid")]
    is_archived: Annotated[
        bool,
        Rule(help="Archive: it accepts no new subscriptions.", description=None, name="archived", option="--archived"),
    ] = False
    is_deprecated: Annotated[
        bool,
        Rule(
            help="Mark as deprecated: still sent, no longer recommended.", description=None,
            name="deprecated", option="--deprecated",
        ),
    ] = False  # fmt: skip
    schemas: Annotated[
        Mapping[str, Any] | None,
        Rule(help="JSON Schemas, draft 7, of the payload, by version.", description=None, option="--schema"),
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


async def create(work: UnitOfWork, name: str, new: NewEventType) -> EventType:
    """Create an event type; an archived one of this name is restored with the values of *new*.

    Raises:
        InvalidValue: the name or a value is invalid.
        AlreadyExists: there is an active event type of this name.
    """
    row = await event_types.lock(work.connection, work.organization, name)
    if row is not None and row.is_archived:
        return await save(work, row, asdict(new))
    created = None if row is not None else await insert(work, name, new)
    if created is None:
        raise AlreadyExists(f"event type {name} already exists", "event_type_exists")
    return created


async def insert(work: UnitOfWork, name: str, new: NewEventType) -> EventType | None:
    """Store a new event type; return None if another transaction has stored it meanwhile. Raises InvalidValue."""
    check_value(EventTypeName, name, "name")
    row = EventType(organization=work.organization, name=name, **await _read_columns(asdict(new)))
    created = await event_types.insert(work.connection, row)
    if created is not None:
        await record(work.connection, work.actor, "event_type.create", name)
    return created


async def save(work: UnitOfWork, row: EventType, values: Mapping[str, Any]) -> EventType:
    """Change some values of a locked event type, by their names in `NewEventType`. Raises InvalidValue."""
    saved = await event_types.save(work.connection, replace(row, **await _read_columns(values)))
    await record_change(work.connection, work.actor, "event_type.update", row.name, row, saved)
    return saved


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


def check_schemas(schemas: Mapping[str, Any], *location: str) -> None:
    """Check that schemas are valid; *location* is the path that errors name. Raises InvalidValue."""
    # Importing the validator takes longer than most commands; the gateway imports it at start.
    from boathook.verification.json_schema import check_schema

    for version, schema in schemas.items():
        try:
            check_schema(schema)
        except ValueError as error:
            raise InvalidValue(str(error), *location, version) from None


async def _read_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return some values of `NewEventType`, by their names, as they are stored. Raises InvalidValue."""
    check_values(NewEventType, values)
    columns = dict(values)
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
