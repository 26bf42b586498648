"""Routes of event types."""

from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import Field

from boathook.api.errors import invalid
from boathook.api.pages import ListOf, NamePage
from boathook.api.route import AnyCall, router
from boathook.domain.endpoints import check_type
from boathook.service import event_types
from boathook.service.authorization import Permission, Principal, requires
from boathook.service.event_types import EventType
from boathook.service.schemas.fields import DEPRECATED, Output, Timestamp
from boathook.service.schemas.messages import EventTypeIn, EventTypePatch, EventTypeUpdate

routes = router("Event Type")

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


def show_event_type(type: EventType, *, with_content: bool = True) -> EventTypeOut:
    """Return an event type as the API shows it."""
    flags = None if type.feature_flags is None else list(type.feature_flags)
    assert type.created_at is not None
    assert type.updated_at is not None
    return EventTypeOut(
        name=type.name,
        description=type.description,
        archived=type.is_archived,
        deprecated=type.is_deprecated,
        schemas=dict(type.schemas) if with_content and type.schemas is not None else None,
        feature_flag=flags[0] if flags else None,
        feature_flags=flags,
        group_name=type.group_name,
        created_at=type.created_at,
        updated_at=type.updated_at,
    )


def _seen_by(principal: Principal) -> frozenset[str] | None:
    """Return the feature flags that limit what the caller sees; None for the organization, which sees all."""
    return None if principal.application_id is None else principal.feature_flags


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
        flags=_seen_by(call.principal),
    )
    return page.answer(rows, lambda row: row.name, lambda row: show_event_type(row, with_content=with_content))


@routes.post("/event-type", status_code=201, operation_id="v1.event-type.create", summary="Create an event type")
@requires(Permission.EVENT_TYPE_MANAGE)
async def create_event_type(call: AnyCall, body: EventTypeIn) -> EventTypeOut:
    """Create an event type, or restore an archived one."""
    return show_event_type(await event_types.create(call.work, body.name, body.value()))


@routes.get("/event-type/{event_type_name}", operation_id="v1.event-type.get", summary="Get an event type")
@requires(Permission.EVENT_TYPE_VIEW)
async def get_event_type(call: AnyCall, event_type_name: TypeRef) -> EventTypeOut:
    """Return an event type, archived or not."""
    return show_event_type(await event_types.get(call.work, _name(event_type_name), _seen_by(call.principal)))


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
    type, is_made = await event_types.put(call.work, _name(event_type_name), body.value())
    response.status_code = 201 if is_made else 200
    return show_event_type(type)


@routes.patch("/event-type/{event_type_name}", operation_id="v1.event-type.patch", summary="Change an event type")
@requires(Permission.EVENT_TYPE_MANAGE)
async def patch_event_type(call: AnyCall, event_type_name: TypeRef, body: EventTypePatch) -> EventTypeOut:
    """Change the given fields."""
    return show_event_type(await event_types.update(call.work, _name(event_type_name), body.value()))


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
    await event_types.delete(call.work, _name(event_type_name), is_expunged=expunge)


def _name(word: str) -> str:
    try:
        return check_type(word)
    except ValueError as error:
        raise invalid(str(error), "path", "event_type_name") from None
