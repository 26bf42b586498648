"""Event types: what applications' endpoints can ask for, with the schemas that payloads are judged by."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec
from starlette.datastructures import FormData
from starlette.responses import Response

from boathook.admin import environment
from boathook.admin import event_types as actions
from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.admin.event_types import NewEventType
from boathook.domain.endpoints import check_type
from boathook.domain.errors import AdminError, InvalidValue
from boathook.inbound.schemas import check_schema, validate
from boathook.journal.event_types import EventType

routes = Routes()
_LIST: Final = f"{BASE}/event-types"
_PAGE: Final = 100
_LISTENERS: Final = 50
_LONGEST: Final = 4_096
"""Characters of a description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeForm:
    """The fields of an event type's form, as they were typed."""

    name: str = ""
    description: str = ""
    group_name: str = ""
    feature_flags: str = ""
    schemas: str = ""
    is_deprecated: bool = False
    example: str = ""
    """A payload to be judged by the schemas; it is not kept."""

    @classmethod
    def of(cls, form: FormData) -> "TypeForm":
        """Return what a form holds."""
        names = ("name", "description", "group_name", "feature_flags", "schemas", "example")
        return cls(
            **{name: str(form.get(name, "")).strip() for name in names}, is_deprecated=bool(form.get("is_deprecated"))
        )

    @classmethod
    def showing(cls, type: EventType) -> "TypeForm":
        """Return the form of an event type as it is."""
        return cls(
            name=type.name,
            description=type.description,
            group_name=type.group_name or "",
            feature_flags=" ".join(type.feature_flags or ()),
            schemas="" if not type.schemas else _pretty(type.schemas),
            is_deprecated=type.is_deprecated,
        )

    def value(self) -> NewEventType:
        """Return what actions take. Raises InvalidValue."""
        if len(self.description) > _LONGEST:
            raise InvalidValue(f"it has at most {_LONGEST:,} characters", "description")
        flags = self.feature_flags.replace(",", " ").split()
        if any(len(text) > 256 for text in (*flags, self.group_name)):
            raise InvalidValue("a flag, and a group, has at most 256 characters", "feature_flags")
        return NewEventType(
            description=self.description,
            is_deprecated=self.is_deprecated,
            schemas=self.read_schemas(),
            feature_flags=flags or None,
            group_name=self.group_name or None,
        )

    def read_schemas(self) -> Mapping[str, Any] | None:
        """Return the schemas by version; one that stands alone is version 1. Raises InvalidValue."""
        found = _read_json(self.schemas, "schemas") if self.schemas else None
        if found is None:
            return None
        if not isinstance(found, dict):
            raise InvalidValue('write a JSON Schema, or schemas by version: {"1": {...}}', "schemas")
        by_version = found if found and all(key.isdigit() for key in found) else {"1": found}
        for version, schema in by_version.items():
            try:
                check_schema(schema)
            except ValueError as error:
                raise InvalidValue(f"version {version}: {error}", "schemas") from None
        return by_version

    def judge(self) -> str:
        """Say in one sentence whether the schemas are schemas, and the example fits the latest. Raises InvalidValue."""
        schemas = self.read_schemas()
        if schemas is None:
            return "There is no schema, so every payload fits."
        if not self.example:
            return "The schemas are right. Write an example to see whether it fits."
        fault = validate(_read_json(self.example, "example"), schemas)
        if fault is not None:
            raise InvalidValue(f"it does not fit: {fault}", "example")
        return "The schemas are right, and the example fits."


def _read_json(text: str, field: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidValue(f"this is not JSON: {error}", field) from None


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


@routes.get("/event-types", Permission.EVENT_TYPE_VIEW)
async def list_types(visit: Visit) -> Response:
    """Show the event types by name."""
    after, with_archived = visit.query.get("after") or None, visit.query.get("archived") == "yes"
    async with visit.work() as work:
        rows = await actions.list_some(work, place=after, limit=_PAGE + 1, with_archived=with_archived)
    more = ""
    if len(rows) > _PAGE:
        more = asking.link(_LIST, {}, after=rows[_PAGE - 1].name, archived="yes" if with_archived else None)
    return visit.page("event_types/list.html", rows=rows[:_PAGE], more=more, with_archived=with_archived)


@routes.get("/event-types/{name}", Permission.EVENT_TYPE_VIEW)
async def show_type(visit: Visit) -> Response:
    """Show one event type and who listens to it."""
    async with visit.work() as work:
        type = await actions.get(work, visit.path["name"])
        listeners = await actions.list_listeners(work, type.name, limit=_LISTENERS + 1)
    return visit.page(
        "event_types/show.html",
        type=type,
        schemas={version: _pretty(schema) for version, schema in (type.schemas or {}).items()},
        listeners=listeners[:_LISTENERS],
        has_more=len(listeners) > _LISTENERS,
    )


# Beside /event-types/NAME, as every word may be the name of an event type.
@routes.get("/event-types-new", Permission.EVENT_TYPE_MANAGE)
async def begin(visit: Visit) -> Response:
    """Show the form of another event type."""
    return _form(visit, TypeForm(name=visit.query.get("name", "")))


@routes.post("/event-types-new", Permission.EVENT_TYPE_MANAGE)
async def create(visit: Visit) -> Response:
    """Make an event type, or only judge its schemas."""
    form = TypeForm.of(visit.form)
    try:
        if visit.form.get("check"):
            return _form(visit, form, judged=await asyncio.to_thread(form.judge))
        new = await asyncio.to_thread(form.value)
        async with visit.work() as work:
            made = await actions.create(work, _name(form.name), new)
    except AdminError as error:
        return _form(visit, form, error=error)
    return visit.to(f"{_LIST}/{made.name}", f"The event type {made.name} is there.")


@routes.get("/event-types/{name}/edit", Permission.EVENT_TYPE_MANAGE)
async def edit(visit: Visit) -> Response:
    """Show the form of an event type."""
    async with visit.work() as work:
        type = await actions.get(work, visit.path["name"])
    return _form(visit, TypeForm.showing(type), name=type.name)


@routes.post("/event-types/{name}/edit", Permission.EVENT_TYPE_MANAGE)
async def change(visit: Visit) -> Response:
    """Change an event type, or only judge its schemas."""
    name, form = visit.path["name"], TypeForm.of(visit.form)
    try:
        if visit.form.get("check"):
            return _form(visit, form, name=name, judged=await asyncio.to_thread(form.judge))
        new = await asyncio.to_thread(form.value)
        changes = {key: value for key, value in asdict(new).items() if key != "is_archived"}
        async with visit.work() as work:
            await actions.change(work, name, changes)
    except AdminError as error:
        return _form(visit, form, name=name, error=error)
    return visit.to(f"{_LIST}/{name}", f"The event type {name} is changed.")


def _form(
    visit: Visit, form: TypeForm, *, name: str = "", error: AdminError | None = None, judged: str = ""
) -> Response:
    """Show a form; *name* is that of an event type that is there."""
    where = str(error.where[0]) if isinstance(error, InvalidValue) and error.where else ""
    status = 200 if error is None else 400
    return visit.page("event_types/form.html", status, form=form, name=name, error=error, where=where, judged=judged)


def _name(name: str) -> str:
    try:
        return check_type(name)
    except ValueError as error:
        raise InvalidValue(str(error), "name") from None


@routes.post("/event-types/{name}/archive", Permission.EVENT_TYPE_MANAGE)
async def archive(visit: Visit) -> Response:
    """Take an event type out of the catalog."""
    async with visit.work() as work:
        await actions.delete(work, visit.path["name"])
    return visit.to(f"{_LIST}/{visit.path['name']}", "It is archived: endpoints can no longer ask for it.")


@routes.post("/event-types/{name}/restore", Permission.EVENT_TYPE_MANAGE)
async def restore(visit: Visit) -> Response:
    """Put an archived event type back into the catalog."""
    async with visit.work() as work:
        await actions.change(work, visit.path["name"], {"is_archived": False})
    return visit.to(f"{_LIST}/{visit.path['name']}", "It is in the catalog again.")


@routes.post("/event-types/{name}/delete", Permission.EVENT_TYPE_MANAGE)
async def delete(visit: Visit) -> Response:
    """Delete an event type for good."""
    async with visit.work() as work:
        await actions.delete(work, visit.path["name"], is_expunged=True)
    return visit.to(_LIST, f"The event type {visit.path['name']} is deleted.")


@routes.get("/event-types-import", Permission.EVENT_TYPE_MANAGE)
async def begin_import(visit: Visit) -> Response:
    """Show the form that takes an OpenAPI document."""
    return visit.page("event_types/import.html", text="", is_whole=False, changed=None, error="")


@routes.post("/event-types-import", Permission.EVENT_TYPE_MANAGE)
async def import_document(visit: Visit) -> Response:
    """Show what an OpenAPI document would change, or change it."""
    text, is_whole = str(visit.form.get("document", "")), bool(visit.form.get("is_whole"))
    is_dry = not visit.form.get("do")
    try:
        named = await environment.read_openapi(text)
        async with visit.work() as work:
            changed = await environment.import_openapi(work, named, is_dry=is_dry, is_whole=is_whole)
    except AdminError as error:
        return visit.page("event_types/import.html", 400, text=text, is_whole=is_whole, changed=None, error=str(error))
    if is_dry:
        return visit.page("event_types/import.html", text=text, is_whole=is_whole, changed=changed, error="")
    return visit.to(_LIST, f"{len(changed)} event types were made or changed.")
