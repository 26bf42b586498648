"""Routes that export and import the configuration of an organization."""

from datetime import UTC, datetime
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from boathook.api.event_types import EventTypeOut, show_event_type
from boathook.api.route import AnyCall, router
from boathook.domain.errors import InvalidValue
from boathook.service import openapi_import
from boathook.service.authorization import Permission, requires
from boathook.service.openapi_import import MAX_TYPES, schemas_of
from boathook.service.schemas.fields import Input, Output, StrictBoolOrNull, Timestamp
from boathook.service.schemas.messages import EventTypeIn

routes = router("Environment")
importing = router("Event Type")


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


@routes.post("/environment/export", operation_id="v1.environment.export", summary="Export an environment")
@requires(Permission.ENVIRONMENT_EXPORT)
async def export_environment(call: AnyCall) -> EnvironmentOut:
    """Return all event types of the organization."""
    return EnvironmentOut(
        version=openapi_import.EXPORT_VERSION,
        created_at=datetime.now(UTC),
        event_types=[show_event_type(one) for one in await openapi_import.export_event_types(call.work)],
        settings={},
        connectors=[],
    )


@routes.post(
    "/environment/import", status_code=204, operation_id="v1.environment.import", summary="Import an environment"
)
@requires(Permission.ENVIRONMENT_IMPORT)
async def import_environment(call: AnyCall, body: EnvironmentIn) -> None:
    """Create or update the given event types; nothing is deleted."""
    await openapi_import.import_event_types(call.work, [(one.name, one.value()) for one in body.event_types or ()])


@importing.post(
    "/event-type/import/openapi",
    operation_id="v1.event-type.import-openapi",
    summary="Create event types from an OpenAPI document",
)
@requires(Permission.EVENT_TYPE_MANAGE)
async def import_openapi(call: AnyCall, body: ImportOpenApiIn) -> ImportOpenApiOut:
    """Create or update event types from the document's webhooks or x-webhooks."""
    if (body.spec is None) is (body.spec_raw is None):
        raise InvalidValue("set either spec or specRaw", "spec")
    named = await openapi_import.read_openapi((body.spec or {}) if body.spec_raw is None else body.spec_raw)
    changed = await openapi_import.import_openapi(call.work, named, is_dry_run=body.dry_run, is_whole=body.replace_all)
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
