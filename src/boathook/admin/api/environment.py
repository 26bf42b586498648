"""Routes that take what an organization has set up out and put it in."""

from datetime import UTC, datetime
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from boathook.admin import environment
from boathook.admin.api.calls import AnyCall, router
from boathook.admin.api.event_types import EventTypeIn, EventTypeOut, show_event_type
from boathook.admin.api.fields import Input, Moment, OffFlag, Output
from boathook.admin.authorization import Permission, needs
from boathook.admin.openapi import MOST_TYPES, schemas_of
from boathook.domain.errors import InvalidValue

routes = router("Environment")
importing = router("Event Type")


class EnvironmentIn(Input):
    """What is put in; boathook has no settings of an organization and no connectors, so those are passed over."""

    event_types: list[EventTypeIn] | None = Field(default=None, max_length=MOST_TYPES)
    settings: dict[str, Any] | None = None
    connectors: list[dict[str, Any]] | None = None


class EnvironmentOut(Output):
    """What an organization has set up."""

    version: int
    created_at: Moment
    event_types: list[EventTypeOut]
    settings: dict[str, Any] = Field(description="boathook has none of an organization; always {}.")
    connectors: list[dict[str, Any]]


class ImportOpenApiIn(Input):
    """An OpenAPI document whose webhooks become event types."""

    spec: dict[str, Any] | None = Field(default=None, description="The document.")
    spec_raw: str | None = Field(
        default=None, description="The document as text: JSON, or YAML of at most 65,536 characters."
    )
    dry_run: OffFlag = Field(default=False, description="Only tell what would change.")
    replace_all: OffFlag = Field(default=False, description="Archive event types that the document does not name.")


class EventTypeFromOpenApi(Output):
    """An event type as the document has it."""

    name: str
    description: str
    deprecated: bool
    schemas: dict[str, Any] | None
    group_name: str | None = None
    feature_flags: list[str] | None = None


class ImportOpenApiData(Output):
    """What changes."""

    # The one answer whose names have underscores.
    model_config = ConfigDict(alias_generator=lambda name: name if name == "to_modify" else to_camel(name))

    modified: list[str] = Field(description="Names of the event types that are new or otherwise than before.")
    to_modify: list[EventTypeFromOpenApi] | None = None


class ImportOpenApiOut(Output):
    """What the import did, or would do."""

    data: ImportOpenApiData


@routes.post("/environment/export", operation_id="v1.environment.export", summary="Take an environment out")
@needs(Permission.ENVIRONMENT_EXPORT)
async def export_environment(call: AnyCall) -> EnvironmentOut:
    """Return all event types of the organization."""
    return EnvironmentOut(
        version=environment.VERSION,
        created_at=datetime.now(UTC),
        event_types=[show_event_type(one) for one in await environment.export(call.work)],
        settings={},
        connectors=[],
    )


@routes.post(
    "/environment/import", status_code=204, operation_id="v1.environment.import", summary="Put an environment in"
)
@needs(Permission.ENVIRONMENT_IMPORT)
async def import_environment(call: AnyCall, body: EnvironmentIn) -> None:
    """Make or change the event types that are given; nothing is deleted."""
    await environment.take_in(call.work, [(one.name, one.value()) for one in body.event_types or ()])


@importing.post(
    "/event-type/import/openapi",
    operation_id="v1.event-type.import-openapi",
    summary="Make event types from an OpenAPI document",
)
@needs(Permission.EVENT_TYPE_MANAGE)
async def import_openapi(call: AnyCall, body: ImportOpenApiIn) -> ImportOpenApiOut:
    """Make or change the event types that the document's webhooks, or x-webhooks, are."""
    if (body.spec is None) is (body.spec_raw is None):
        raise InvalidValue("write spec or specRaw, one of the two", "spec")
    named = await environment.read_openapi((body.spec or {}) if body.spec_raw is None else body.spec_raw)
    changed = await environment.import_openapi(call.work, named, is_dry=body.dry_run, is_whole=body.replace_all)
    shown = [
        EventTypeFromOpenApi(
            name=one.name,
            description=one.description,
            deprecated=one.is_deprecated,
            schemas=schemas_of(one),
        )
        for one in changed
    ]
    names = [one.name for one in changed]
    return ImportOpenApiOut(data=ImportOpenApiData(modified=names, to_modify=shown if body.dry_run else None))
