"""Commands for the event types of messages."""

import inspect
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from boathook.cli.context import UsageError
from boathook.cli.derived import add
from boathook.cli.options import read_json
from boathook.cli.output import Column, View
from boathook.service.catalogue import event_types as operations
from boathook.service.catalogue.event_types import EventType, EventTypeImport

event_types = typer.Typer(no_args_is_help=True, help="Event types of messages.")


def _state(type: EventType) -> str:
    return "archived" if type.is_archived else "deprecated" if type.is_deprecated else "live"


_VIEW: Final = View(
    (
        Column("name", is_whole=True),
        Column("state", _state, is_whole=True),
        Column("group", "group_name", is_optional=True),
        Column("schemas", lambda row: " ".join(row.schemas or {}), is_optional=True),
        Column("description"),
    ),
    (
        "name", "description", ("archived", "is_archived"), ("deprecated", "is_deprecated"), ("group", "group_name"),
        "feature_flags", "schemas", "created_at", "updated_at",
    ),
    cursor="name",
)  # fmt: skip


_SCHEMA: Final = {
    "schemas": (
        Annotated[
            str | None,
            typer.Option("--schema", metavar="JSON", help="The JSON Schema of its payloads; @FILE reads a file."),
        ],
        None,
    ),
    "version": (Annotated[str, typer.Option(help="The schema's version.")], "1"),
}


def _read_schema(_ctx: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    version, schema = values.pop("version"), values.pop("schemas")
    schemas = {} if schema is None else {"schemas": {version: read_json("--schema", schema)} if schema else ""}
    return values | schemas


_FILE: Final = Annotated[Path, typer.Argument(metavar="FILE", help="An OpenAPI document, YAML or JSON.")]


_AFTER: Final = Annotated[str | None, typer.Option(help="Continue after this name.")]


def _read_document(_ctx: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    file = values.pop("spec_raw")
    try:
        return values | {"spec_raw": file.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"FILE: cannot read {file}: {error}") from None


def _changed(result: EventTypeImport) -> list[dict[str, str]]:
    return [{"name": name} for name in result.data.modified]


add(event_types, operations.create, "create", view=_VIEW, options=_SCHEMA, read=_read_schema)
add(event_types, operations.list_event_types, "list", view=_VIEW, options={"after": (_AFTER, None)})
add(event_types, operations.get, "show", view=_VIEW)
add(event_types, operations.update, "update", view=_VIEW, options=_SCHEMA, read=_read_schema)
add(event_types, operations.archive, "archive")
add(event_types, operations.delete, "delete")
add(
    event_types,
    operations.import_openapi,
    "import-openapi",
    options={"spec": None, "spec_raw": (_FILE, inspect.Parameter.empty)},
    read=_read_document,
    show=_changed,
)
