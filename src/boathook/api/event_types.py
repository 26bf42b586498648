"""Routes of event types, also imported from OpenAPI documents, and of the environment, which is made of them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path, Query, Response
from msgspec.structs import asdict
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from boathook.api.errors import invalid
from boathook.api.pages import ListOf, NamePage
from boathook.api.route import AnyCall, router
from boathook.domain.endpoints import check_type
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import event_types as operations
from boathook.service.catalogue.event_types import EventType, EventTypeCreate, EventTypeNamed, OpenApiDocument
from boathook.service.catalogue.values import flags_of
from boathook.service.schemas.fields import DEPRECATED, Input, Output, StrictBoolOrNull, Timestamp
from boathook.service.schemas.messages import EventTypeIn, EventTypePatch, EventTypeUpdate
from boathook.service.sending import event_types, openapi_import
from boathook.service.sending.openapi_import import MAX_TYPES

routes = router("Event Type")
environment = router("Environment")

TypeRef = Annotated[str, Path(description="The event type's name.", examples=["invoice.paid"])]


class EventTypeOut(Output):
    """An event type."""

    name: str = Field(examples=["invoice.paid"])
    description: str = Field(examples=["An invoice was paid"])
    archived: bool
    deprecated: bool
    schemas: dict[str, Any] | None
    feature_flag: str | None = Field(json_schema_extra=DEPRECATED)
    feature_flags: list[str] | None
    group_name: str | None
    created_at: Timestamp
    updated_at: Timestamp


def _show_event_type(type: EventType) -> EventTypeOut:
    """Return an event type as the API shows it."""
    flags = None if type.feature_flags is None else list(type.feature_flags)
    return EventTypeOut(
        name=type.name,
        description=type.description,
        archived=type.is_archived,
        deprecated=type.is_deprecated,
        schemas=_plain(type.schemas),
        feature_flag=flags[0] if flags else None,
        feature_flags=flags,
        group_name=type.group_name,
        created_at=type.created_at,
        updated_at=type.updated_at,
    )


def _plain(schemas: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if schemas is None else dict(schemas)


@routes.get("/event-type", operation_id="v1.event-type.list", summary="List event types")
@requires(Permission.EVENT_TYPE_VIEW)
async def list_event_types(
    call: AnyCall,
    page: NamePage,
    include_archived: Annotated[bool, Query(description="Show archived ones too.")] = False,
    with_content: Annotated[bool, Query(description="Show the schemas.")] = False,
) -> ListOf[EventTypeOut]:
    """List event types by name."""
    rows = await event_types.list_page(
        call.work,
        place=page.place,
        is_ascending=page.is_upward,
        limit=page.limit + 1,
        with_archived=include_archived,
        flags=flags_of(call.principal),
    )
    return page.answer(
        rows,
        lambda row: row.name,
        lambda row: _show_event_type(operations.view(row, with_schemas=with_content)),
    )


@routes.post("/event-type", status_code=201, operation_id="v1.event-type.create", summary="Create an event type")
@requires(Permission.EVENT_TYPE_MANAGE)
async def create_event_type(call: AnyCall, body: EventTypeIn) -> EventTypeOut:
    """Create an event type, or restore an archived one."""
    return _show_event_type(await operations.create(call.work, _new(body.name, body)))


def _new(name: str, body: EventTypeUpdate) -> EventTypeCreate:
    return EventTypeCreate(name=name, **asdict(body.value()))


@routes.get("/event-type/{event_type_name}", operation_id="v1.event-type.get", summary="Get an event type")
@requires(Permission.EVENT_TYPE_VIEW)
async def get_event_type(call: AnyCall, event_type_name: TypeRef) -> EventTypeOut:
    """Return an event type, archived or not."""
    return _show_event_type(await operations.get(call.work, EventTypeNamed(name=_name(event_type_name))))


@routes.put(
    "/event-type/{event_type_name}",
    operation_id="v1.event-type.update",
    summary="Replace or create an event type",
    responses={201: {"model": EventTypeOut, "description": "There was none; it was created"}},
)
@requires(Permission.EVENT_TYPE_MANAGE)
async def put_event_type(
    call: AnyCall, event_type_name: TypeRef, body: EventTypeUpdate, response: Response
) -> EventTypeOut:
    """Replace an event type's fields, or create it."""
    put = await operations.put(call.work, _new(_name(event_type_name), body))
    response.status_code = 201 if put.is_created else 200
    return _show_event_type(put.event_type)


@routes.patch("/event-type/{event_type_name}", operation_id="v1.event-type.patch", summary="Change an event type")
@requires(Permission.EVENT_TYPE_MANAGE)
async def patch_event_type(call: AnyCall, event_type_name: TypeRef, body: EventTypePatch) -> EventTypeOut:
    """Change the given fields."""
    change = operations.EventTypeUpdate(name=_name(event_type_name), **body.value())
    return _show_event_type(await operations.update(call.work, change))


@routes.delete(
    "/event-type/{event_type_name}",
    status_code=204,
    operation_id="v1.event-type.delete",
    summary="Archive or delete an event type",
)
@requires(Permission.EVENT_TYPE_MANAGE)
async def delete_event_type(
    call: AnyCall,
    event_type_name: TypeRef,
    expunge: Annotated[bool, Query(description="Delete it permanently instead of archiving it.")] = False,
) -> None:
    """Archive an event type, so that endpoints can no longer subscribe to it, or delete it."""
    end = operations.delete if expunge else operations.archive
    await end(call.work, EventTypeNamed(name=_name(event_type_name)))


def _name(word: str) -> str:
    try:
        return check_type(word)
    except ValueError as error:
        raise invalid(str(error), "path", "event_type_name") from None


class EnvironmentIn(Input):
    """The configuration to import; `settings` and `connectors` are ignored, as boathook has neither."""

    event_types: list[EventTypeIn] | None = Field(default=None, max_length=MAX_TYPES)
    settings: dict[str, Any] | None = None
    connectors: list[dict[str, Any]] | None = None


class EnvironmentOut(Output):
    """The configuration of an organization."""

    version: int
    created_at: Timestamp
    event_types: list[EventTypeOut]
    settings: dict[str, Any] = Field(description="Always {}; boathook has no settings of an organization.")
    connectors: list[dict[str, Any]]


class ImportOpenApiIn(Input):
    """An OpenAPI document whose webhooks become event types."""

    spec: dict[str, Any] | None = Field(default=None, description="The document.")
    spec_raw: str | None = Field(
        default=None, description="The document as text: JSON, or YAML of at most 65,536 characters."
    )
    dry_run: StrictBoolOrNull = Field(default=False, description="Only report what would change.")
    replace_all: StrictBoolOrNull = Field(
        default=False, description="Archive event types that are not in the document."
    )


class EventTypeFromOpenApi(Output):
    """An event type as defined in the document."""

    name: str
    description: str
    deprecated: bool
    schemas: dict[str, Any] | None
    group_name: str | None = None
    feature_flags: list[str] | None = None


class ImportOpenApiData(Output):
    """The changes of an import."""

    # The only response with a name in snake case.
    model_config = ConfigDict(alias_generator=lambda name: name if name == "to_modify" else to_camel(name))

    modified: list[str] = Field(description="Names of new and changed event types.")
    to_modify: list[EventTypeFromOpenApi] | None = None


class ImportOpenApiOut(Output):
    """The result of an import or of its dry run."""

    data: ImportOpenApiData


@environment.post("/environment/export", operation_id="v1.environment.export", summary="Export an environment")
@requires(Permission.ENVIRONMENT_EXPORT)
async def export_environment(call: AnyCall) -> EnvironmentOut:
    """Return all event types of the organization."""
    return EnvironmentOut(
        version=openapi_import.EXPORT_VERSION,
        created_at=datetime.now(UTC),
        event_types=[
            _show_event_type(operations.view(row)) for row in await openapi_import.export_event_types(call.work)
        ],
        settings={},
        connectors=[],
    )


@environment.post(
    "/environment/import", status_code=204, operation_id="v1.environment.import", summary="Import an environment"
)
@requires(Permission.ENVIRONMENT_IMPORT)
async def import_environment(call: AnyCall, body: EnvironmentIn) -> None:
    """Create or update the given event types; nothing is deleted."""
    for type in body.event_types or ():
        await operations.put(call.work, _new(type.name, type))


@routes.post(
    "/event-type/import/openapi",
    operation_id="v1.event-type.import-openapi",
    summary="Create event types from an OpenAPI document",
)
@requires(Permission.EVENT_TYPE_MANAGE)
async def import_openapi(call: AnyCall, body: ImportOpenApiIn) -> ImportOpenApiOut:
    """Create or update event types from the document's webhooks or x-webhooks."""
    document = OpenApiDocument(
        spec=body.spec, spec_raw=body.spec_raw, dry_run=body.dry_run, replace_all=body.replace_all
    )
    changes = (await operations.import_openapi(call.work, document)).data
    rows = [
        EventTypeFromOpenApi(
            name=type.name, description=type.description, deprecated=type.is_deprecated, schemas=_plain(type.schemas)
        )
        for type in changes.to_modify or ()
    ]
    return ImportOpenApiOut(data=ImportOpenApiData(modified=changes.modified, to_modify=rows if body.dry_run else None))
