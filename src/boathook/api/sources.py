"""Routes of sources: those of boathook.toml and of apps can be read, stored ones also be created and changed."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Path
from pydantic import Field

from boathook.api.errors import not_found
from boathook.api.pages import ListOf, SourcePage
from boathook.api.route import AnyCall, Call, router
from boathook.domain.health import Health, HealthState
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import sources as actions
from boathook.service.operating.recipient_stats import DEFAULT_RANGE, STATS_RANGES, read_source_health
from boathook.service.receiving import sources
from boathook.service.receiving.sources import SourceView, base_url_of
from boathook.service.schemas.derived import with_fields
from boathook.service.schemas.fields import Input, Output, Timestamp

routes = router("Source")


def _own_call(call: AnyCall) -> Call:
    # Sources belong to the whole installation, which other organizations only share.
    if call.work.organization != DEFAULT_ORGANIZATION:
        raise not_found()
    return call


SourceCall = Annotated[Call, Depends(_own_call)]
SourceRef = Annotated[str, Path(description="The source's name.", examples=["shop"])]


@with_fields(actions.SourceReplacement, ("provider", "settings"), takes_null=False)
class SourceUpdate(Input):
    """The new settings of a stored source; keys that are omitted return to their defaults."""


@with_fields(actions.SourceChange, ("settings",))
class SourcePatch(Input):
    """Keys to change; null removes a key."""


@with_fields(actions.NewSource, types={"generate_secret": bool}, takes_null=False)
class SourceIn(SourceUpdate):
    """A source to store."""


class SourceOut(Output):
    """A source."""

    name: str = Field(examples=["shop"])
    provider: str = Field(examples=["stripe"], description="Empty if the settings cannot be read.")
    stored: bool = Field(description="Whether it is stored in PostgreSQL, so that it can be changed here.")
    paths: list[str] = Field(examples=[["/in/shop", "/webhooks/shop"]])
    url: str | None = Field(
        examples=["https://hooks.example.com/in/shop"], description="Null without `server.public_url`."
    )
    settings: dict[str, Any] = Field(description="The keys of a stored source; secret values are hidden.")
    health: HealthState | None = Field(description="By its requests of the last 24 hours; null if it is not served.")
    problem: str | None = Field(description="Why it is not served; null if it is.")
    created_by: str | None
    created_at: Timestamp | None
    updated_by: str | None
    updated_at: Timestamp | None


class CreatedSourceOut(SourceOut):
    """A source that was just created."""

    secret: str | None = Field(description="The generated secret for the sender; it is not shown again.")


def _show(call: Call, view: SourceView, health: Mapping[str, Health]) -> dict[str, Any]:
    settings = sources.read_stored_settings(call.work.app_context, view.name) if view.is_stored else {}
    base = base_url_of(call.work.app_context.settings, view.name)
    return {
        "name": view.name,
        "provider": view.provider,
        "stored": view.is_stored,
        "paths": list(view.paths),
        "url": f"{base}{view.paths[0]}" if base else None,
        "settings": {key: value for key, value in settings.items() if key != "provider"},
        "health": health[view.name].state if view.name in health else None,
        "problem": view.trouble or view.stored_problem or None,
        "created_by": view.created_by,
        "created_at": view.created_at,
        "updated_by": view.changed_by,
        "updated_at": view.changed_at,
    }


async def _read(call: Call, name: str) -> dict[str, Any]:
    view = await sources.get(call.work, name)
    return _show(call, view, await _read_health(call))


async def _read_health(call: Call) -> Mapping[str, Health]:
    settings = call.work.app_context.settings
    return await read_source_health(call.work.connection, settings, STATS_RANGES[DEFAULT_RANGE], datetime.now(UTC))


@routes.get("/source", operation_id="v1.source.list", summary="List sources")
@requires(Permission.SOURCE_VIEW)
async def list_sources(call: SourceCall, page: SourcePage) -> ListOf[SourceOut]:
    """List all sources by name, those that cannot be served too."""
    rows = [
        view
        for view in sorted(await sources.list_all(call.work), key=lambda view: view.name, reverse=not page.is_upward)
        if page.place is None or ((view.name > page.place) is page.is_upward and view.name != page.place)
    ][: page.limit + 1]
    health = await _read_health(call)
    return page.answer(rows, lambda view: view.name, lambda view: SourceOut(**_show(call, view, health)))


@routes.post("/source", status_code=201, operation_id="v1.source.create", summary="Create a source")
@requires(Permission.SOURCE_MANAGE)
async def create_source(call: SourceCall, body: SourceIn) -> CreatedSourceOut:
    """Store a source; every gateway serves it within seconds, without a restart."""
    added = await actions.create(call.work, actions.NewSource(**dict(body)))
    return CreatedSourceOut(**await _read(call, added.name), secret=added.secret)


@routes.get("/source/{source_name}", operation_id="v1.source.get", summary="Get a source")
@requires(Permission.SOURCE_VIEW)
async def get_source(call: SourceCall, source_name: SourceRef) -> SourceOut:
    """Return a source."""
    return SourceOut(**await _read(call, source_name))


@routes.put("/source/{source_name}", operation_id="v1.source.update", summary="Replace the settings of a source")
@requires(Permission.SOURCE_MANAGE)
async def put_source(call: SourceCall, source_name: SourceRef, body: SourceUpdate) -> SourceOut:
    """Replace the settings of a stored source; its secrets stay, and so do hidden values that are sent back."""
    await actions.replace(call.work, actions.SourceReplacement(source_name=source_name, **dict(body)))
    return SourceOut(**await _read(call, source_name))


@routes.patch("/source/{source_name}", operation_id="v1.source.patch", summary="Change a source")
@requires(Permission.SOURCE_MANAGE)
async def patch_source(call: SourceCall, source_name: SourceRef, body: SourcePatch) -> SourceOut:
    """Change the given keys of a stored source."""
    await actions.change(call.work, actions.SourceChange(source_name=source_name, **dict(body)))
    return SourceOut(**await _read(call, source_name))


@routes.delete("/source/{source_name}", status_code=204, operation_id="v1.source.delete", summary="Delete a source")
@requires(Permission.SOURCE_MANAGE)
async def delete_source(call: SourceCall, source_name: SourceRef) -> None:
    """Delete a stored source and its secrets; its events, deliveries and rejections stay."""
    await actions.delete(call.work, actions.SourceNamed(source_name=source_name))
