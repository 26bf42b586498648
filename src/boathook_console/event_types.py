"""Pages of event types, with the schemas that payloads are validated against."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import asdict
from starlette.datastructures import FormData
from starlette.responses import Response

from boathook.domain.errors import AdminError, InvalidValue
from boathook.service.access.authorization import Permission
from boathook.service.sending import event_types as actions
from boathook.service.sending import openapi_import
from boathook.service.sending.event_types import EventType, NewEventType, find_fault
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

    def value(self) -> NewEventType:
        """Return the validated event type. Raises InvalidValue."""
        flags = self.feature_flags.replace(",", " ").split()
        return NewEventType(
            description=self.description,
            is_deprecated=self.is_deprecated,
            schemas=self.read_schemas(),
            feature_flags=flags or None,
            group_name=self.group_name or None,
        )

    def read_schemas(self) -> Mapping[str, Any] | None:
        """Return the schemas by version; a single schema is version 1. Raises InvalidValue."""
        found = _read_json(self.schemas, "schemas") if self.schemas else None
        if found is None:
            return None
        if not isinstance(found, dict):
            raise InvalidValue('enter a JSON Schema, or schemas by version: {"1": {...}}', "schemas")
        by_version = found if found and all(key.isdigit() for key in found) else {"1": found}
        try:
            actions.check_schemas(by_version)
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
        rows = await actions.list_page(work, place=after, limit=_PAGE + 1, with_archived=with_archived)
    more = ""
    if len(rows) > _PAGE:
        more = query_params.build_url(_LIST, {}, after=rows[_PAGE - 1].name, archived="yes" if with_archived else None)
    return context.page("event_types/list.html", rows=rows[:_PAGE], more=more, with_archived=with_archived)


@routes.get("/event-types/{name}", Permission.EVENT_TYPE_VIEW)
async def show_type(context: ConsoleContext) -> Response:
    """Show one event type and the endpoints that subscribe to it."""
    async with context.work() as work:
        type = await actions.get(work, context.path["name"])
        listeners = await actions.list_subscribed_endpoints(work, type.name, limit=_MAX_LISTENERS + 1)
    return context.page(
        "event_types/show.html",
        type=type,
        schemas={version: _pretty(schema) for version, schema in (type.schemas or {}).items()},
        listeners=listeners[:_MAX_LISTENERS],
        has_more=len(listeners) > _MAX_LISTENERS,
    )


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
        new = await asyncio.to_thread(form.value)
        async with context.work() as work:
            made = await actions.create(work, form.name, new)
    except AdminError as error:
        return _form(context, form, error=error)
    return context.to(f"{_LIST}/{made.name}", f"Event type {made.name} created.")


@routes.get("/event-types/{name}/edit", Permission.EVENT_TYPE_MANAGE)
async def edit(context: ConsoleContext) -> Response:
    """Show the form of an event type."""
    async with context.work() as work:
        type = await actions.get(work, context.path["name"])
    return _form(context, EventTypeForm.from_event_type(type), name=type.name)


@routes.post("/event-types/{name}/edit", Permission.EVENT_TYPE_MANAGE)
async def change(context: ConsoleContext) -> Response:
    """Update an event type, or only validate its schemas."""
    name, form = context.path["name"], EventTypeForm.from_form(context.form)
    try:
        if context.form.get("check"):
            return _form(context, form, name=name, verdict=await asyncio.to_thread(form.check_schemas))
        new = await asyncio.to_thread(form.value)
        changes = {key: value for key, value in asdict(new).items() if key != "is_archived"}
        async with context.work() as work:
            await actions.update(work, name, changes)
    except AdminError as error:
        return _form(context, form, name=name, error=error)
    return context.to(f"{_LIST}/{name}", f"Event type {name} saved.")


def _form(
    context: ConsoleContext, form: EventTypeForm, *, name: str = "", error: AdminError | None = None, verdict: str = ""
) -> Response:
    """Show a form; *name* is that of an existing event type."""
    where = str(error.where[0]) if isinstance(error, InvalidValue) and error.where else ""
    where = _FORM_FIELDS.get(where, where)
    status = 200 if error is None else 400
    return context.page("event_types/form.html", status, form=form, name=name, error=error, where=where, judged=verdict)


@routes.post("/event-types/{name}/archive", Permission.EVENT_TYPE_MANAGE)
async def archive(context: ConsoleContext) -> Response:
    """Archive an event type."""
    async with context.work() as work:
        await actions.delete(work, context.path["name"])
    return context.to(f"{_LIST}/{context.path['name']}", "Event type archived: it accepts no new subscriptions.")


@routes.post("/event-types/{name}/restore", Permission.EVENT_TYPE_MANAGE)
async def restore(context: ConsoleContext) -> Response:
    """Restore an archived event type."""
    async with context.work() as work:
        await actions.update(work, context.path["name"], {"is_archived": False})
    return context.to(f"{_LIST}/{context.path['name']}", "Event type restored.")


@routes.post("/event-types/{name}/delete", Permission.EVENT_TYPE_MANAGE)
async def delete(context: ConsoleContext) -> Response:
    """Permanently delete an event type."""
    async with context.work() as work:
        await actions.delete(work, context.path["name"], is_expunged=True)
    return context.to(_LIST, f"Event type {context.path['name']} deleted.")


@routes.get("/event-types-import", Permission.EVENT_TYPE_MANAGE)
async def show_import_form(context: ConsoleContext) -> Response:
    """Show the form for an OpenAPI document."""
    return context.page("event_types/import.html", text="", is_whole=False, changed=None, error="")


@routes.post("/event-types-import", Permission.EVENT_TYPE_MANAGE)
async def import_document(context: ConsoleContext) -> Response:
    """Show the changes that an OpenAPI document would make, or apply them."""
    text, is_whole = context.field("document"), bool(context.form.get("is_whole"))
    is_dry_run = not context.form.get("do")
    try:
        named = await openapi_import.read_openapi(text)
        async with context.work() as work:
            changed = await openapi_import.import_openapi(work, named, is_dry_run=is_dry_run, is_whole=is_whole)
    except AdminError as error:
        return context.page(
            "event_types/import.html", 400, text=text, is_whole=is_whole, changed=None, error=str(error)
        )
    if is_dry_run:
        return context.page("event_types/import.html", text=text, is_whole=is_whole, changed=changed, error="")
    return context.to(_LIST, f"{len(changed)} event types created or updated.")
