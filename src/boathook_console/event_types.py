"""Pages of event types, with the schemas that payloads are validated against."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.datastructures import FormData
from starlette.responses import Response

from boathook.domain.errors import AdminError, InvalidValue
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import event_types as operations
from boathook.service.catalogue.event_types import EventType, EventTypeNamed, EventTypeUpdate, OpenApiDocument
from boathook.service.sending import event_types
from boathook.service.sending.event_types import find_fault
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params

routes = Routes()
_LIST: Final = f"{BASE}/event-types"
_PAGE: Final = 100
_MAX_LISTENERS: Final = 50


_FORM_FIELDS: Final = {"groupName": "group_name", "featureFlags": "feature_flags"}
"""Fields whose names differ from the API's."""


class EventTypeForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an event type's form, as submitted."""

    name: str = ""
    description: str = ""
    group_name: str = ""
    feature_flags: str = ""
    schemas: str = ""
    is_deprecated: bool = False
    example: str = ""
    """A payload to validate against the schemas; it is not stored."""

    @classmethod
    def from_form(cls, form: FormData) -> "EventTypeForm":
        """Return the values of a submitted form."""
        names = ("name", "description", "group_name", "feature_flags", "schemas", "example")
        return cls(
            **{name: str(form.get(name, "")).strip() for name in names}, is_deprecated=bool(form.get("is_deprecated"))
        )

    @classmethod
    def from_event_type(cls, type: EventType) -> "EventTypeForm":
        """Return the form values of an existing event type."""
        return cls(
            name=type.name,
            description=type.description,
            group_name=type.group_name or "",
            feature_flags=" ".join(type.feature_flags or ()),
            schemas="" if not type.schemas else _pretty(type.schemas),
            is_deprecated=type.is_deprecated,
        )

    def values(self) -> dict[str, Any]:
        """Return the values of the event type, besides its name. Raises InvalidValue."""
        flags = self.feature_flags.replace(",", " ").split()
        return {
            "description": self.description,
            "is_deprecated": self.is_deprecated,
            "schemas": self.read_schemas(),
            "feature_flags": flags or None,
            "group_name": self.group_name or None,
        }

    def read_schemas(self) -> Mapping[str, Any] | None:
        """Return the schemas by version; a single schema is version 1. Raises InvalidValue."""
        document = _read_json(self.schemas, "schemas") if self.schemas else None
        if document is None:
            return None
        if not isinstance(document, dict):
            raise InvalidValue('enter a JSON Schema, or schemas by version: {"1": {...}}', "schemas")
        by_version = document if document and all(key.isdigit() for key in document) else {"1": document}
        try:
            event_types.check_schemas(by_version)
        except InvalidValue as error:
            raise InvalidValue(f"version {error.where[0]}: {error}", "schemas") from None
        return by_version

    def check_schemas(self) -> str:
        """Validate the schemas, and the example against the latest one; return a message. Raises InvalidValue."""
        schemas = self.read_schemas()
        if schemas is None:
            return "No schema: every payload is valid."
        if not self.example:
            return "The schemas are valid. Add an example to validate it."
        fault = find_fault(_read_json(self.example, "example"), schemas)
        if fault is not None:
            raise InvalidValue(f"does not match the schema: {fault}", "example")
        return "The schemas are valid and the example matches."


def _read_json(text: str, field: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidValue(f"invalid JSON: {error}", field) from None


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


@routes.get("/event-types", Permission.EVENT_TYPE_VIEW)
async def list_types(context: ConsoleContext) -> Response:
    """Show the event types by name."""
    after, with_archived = context.query.get("after") or None, context.query.get("archived") == "yes"
    async with context.work() as work:
        rows = await event_types.list_page(work, place=after, limit=_PAGE + 1, with_archived=with_archived)
    more = ""
    if len(rows) > _PAGE:
        more = query_params.build_url(_LIST, {}, after=rows[_PAGE - 1].name, archived="yes" if with_archived else None)
    return context.page("event_types/list.html", rows=rows[:_PAGE], more=more, with_archived=with_archived)


@routes.get("/event-types/{name}", Permission.EVENT_TYPE_VIEW)
async def show_type(context: ConsoleContext) -> Response:
    """Show one event type and the endpoints that subscribe to it."""
    async with context.work() as work:
        type = await operations.get(work, _named(context))
        listeners = await event_types.list_subscribed_endpoints(work, type.name, limit=_MAX_LISTENERS + 1)
    return context.page(
        "event_types/show.html",
        type=type,
        schemas={version: _pretty(schema) for version, schema in (type.schemas or {}).items()},
        listeners=listeners[:_MAX_LISTENERS],
        has_more=len(listeners) > _MAX_LISTENERS,
    )


def _named(context: ConsoleContext) -> EventTypeNamed:
    return EventTypeNamed(name=context.path["name"])


# Not below /event-types/NAME, as any word can be the name of an event type.
@routes.get("/event-types-new", Permission.EVENT_TYPE_MANAGE)
async def show_new_form(context: ConsoleContext) -> Response:
    """Show the form for a new event type."""
    return _form(context, EventTypeForm(name=context.query.get("name", "")))


@routes.post("/event-types-new", Permission.EVENT_TYPE_MANAGE)
async def create(context: ConsoleContext) -> Response:
    """Create an event type, or only validate its schemas."""
    form = EventTypeForm.from_form(context.form)
    try:
        if context.form.get("check"):
            return _form(context, form, verdict=await asyncio.to_thread(form.check_schemas))
        new = operations.EventTypeCreate(name=form.name, **await asyncio.to_thread(form.values))
        async with context.work() as work:
            created = await operations.create(work, new)
    except AdminError as error:
        return _form(context, form, error=error)
    return context.to(f"{_LIST}/{created.name}", f"Event type {created.name} created.")


@routes.get("/event-types/{name}/edit", Permission.EVENT_TYPE_MANAGE)
async def edit(context: ConsoleContext) -> Response:
    """Show the form of an event type."""
    async with context.work() as work:
        type = await operations.get(work, _named(context))
    return _form(context, EventTypeForm.from_event_type(type), name=type.name)


@routes.post("/event-types/{name}/edit", Permission.EVENT_TYPE_MANAGE)
async def change(context: ConsoleContext) -> Response:
    """Update an event type, or only validate its schemas."""
    name, form = context.path["name"], EventTypeForm.from_form(context.form)
    try:
        if context.form.get("check"):
            return _form(context, form, name=name, verdict=await asyncio.to_thread(form.check_schemas))
        change = EventTypeUpdate(name=name, **await asyncio.to_thread(form.values))
        async with context.work() as work:
            await operations.update(work, change)
    except AdminError as error:
        return _form(context, form, name=name, error=error)
    return context.to(f"{_LIST}/{name}", f"Event type {name} saved.")


def _form(
    context: ConsoleContext, form: EventTypeForm, *, name: str = "", error: AdminError | None = None, verdict: str = ""
) -> Response:
    """Show a form; *name* is that of an existing event type."""
    field = str(error.where[0]) if isinstance(error, InvalidValue) and error.where else ""
    field = _FORM_FIELDS.get(field, field)
    status = 200 if error is None else 400
    return context.page("event_types/form.html", status, form=form, name=name, error=error, where=field, judged=verdict)


@routes.post("/event-types/{name}/archive", Permission.EVENT_TYPE_MANAGE)
async def archive(context: ConsoleContext) -> Response:
    """Archive an event type."""
    async with context.work() as work:
        await operations.archive(work, _named(context))
    return context.to(f"{_LIST}/{context.path['name']}", "Event type archived: it accepts no new subscriptions.")


@routes.post("/event-types/{name}/restore", Permission.EVENT_TYPE_MANAGE)
async def restore(context: ConsoleContext) -> Response:
    """Restore an archived event type."""
    restored: dict[str, Any] = {"is_archived": False}
    async with context.work() as work:
        await operations.update(work, EventTypeUpdate(name=context.path["name"], **restored))
    return context.to(f"{_LIST}/{context.path['name']}", "Event type restored.")


@routes.post("/event-types/{name}/delete", Permission.EVENT_TYPE_MANAGE)
async def delete(context: ConsoleContext) -> Response:
    """Permanently delete an event type."""
    async with context.work() as work:
        await operations.delete(work, _named(context))
    return context.to(_LIST, f"Event type {context.path['name']} deleted.")


@routes.get("/event-types-import", Permission.EVENT_TYPE_MANAGE)
async def show_import_form(context: ConsoleContext) -> Response:
    """Show the form for an OpenAPI document."""
    return context.page("event_types/import.html", text="", is_whole=False, changed=None, error="")


@routes.post("/event-types-import", Permission.EVENT_TYPE_MANAGE)
async def import_document(context: ConsoleContext) -> Response:
    """Show the changes that an OpenAPI document would make, or apply them."""
    text, is_whole = context.field("document"), bool(context.form.get("is_whole"))
    document = OpenApiDocument(spec_raw=text, dry_run=not context.form.get("do"), replace_all=is_whole)
    try:
        async with context.work() as work:
            changes = (await operations.import_openapi(work, document)).data
    except AdminError as error:
        return context.page(
            "event_types/import.html", 400, text=text, is_whole=is_whole, changed=None, error=str(error)
        )
    if document.dry_run:
        return context.page(
            "event_types/import.html", text=text, is_whole=is_whole, changed=changes.to_modify, error=""
        )
    return context.to(_LIST, f"{len(changes.modified)} event types created or updated.")
