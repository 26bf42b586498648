"""Commands for the event types of messages."""

from pathlib import Path
from typing import Annotated, Final

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, run_in_transaction
from boathook.cli.options import Json, Limit, read_json
from boathook.cli.output import Column, View
from boathook.service.sending import event_types as actions
from boathook.service.sending import openapi_import
from boathook.service.sending.openapi_import import read_webhooks
from boathook.service.unit_of_work import UnitOfWork

event_types = typer.Typer(no_args_is_help=True, help="Event types of messages.")

Name = Annotated[str, typer.Argument(help="Name, such as invoice.paid.")]


def _state(one: actions.EventType) -> str:
    return "archived" if one.is_archived else "deprecated" if one.is_deprecated else "live"


_VIEW: Final = View(
    (
        Column("name", is_whole=True),
        Column("state", _state, is_whole=True),
        Column("group", "group_name", is_optional=True),
        Column("schemas", lambda one: " ".join(one.schemas or {}), is_optional=True),
        Column("description"),
    ),
    (
        "name", "description", ("archived", "is_archived"), ("deprecated", "is_deprecated"), ("group", "group_name"),
        "feature_flags", "schemas", "created_at", "updated_at",
    ),
    cursor="name",
)  # fmt: skip


@event_types.command("create", epilog=example(
    "boathook event-types create invoice.paid --description 'An invoice was paid'",
    "boathook event-types create invoice.paid --schema @invoice.json",
))  # fmt: skip
def create_type(
    ctx: typer.Context,
    name: Name,
    description: Annotated[str, typer.Option(help="Description.")] = "",
    schemas: Annotated[
        str | None,
        typer.Option("--schema", metavar="JSON", help="The JSON Schema of its payloads; @FILE reads a file."),
    ] = None,
    version: Annotated[str, typer.Option(help="The schema's version.")] = "1",
    group_name: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Group.")] = None,
    feature_flags: Annotated[
        list[str] | None,
        typer.Option(
            "--flag", metavar="FLAG", help="Only portal users with one of these flags see it.", show_default=False
        ),
    ] = None,
    deprecated: Annotated[
        bool, typer.Option("--deprecated", help="Mark as deprecated: still sent, no longer recommended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create an event type, or restore an archived one."""
    new = actions.NewEventType(
        description=description,
        is_deprecated=deprecated,
        schemas=None if schemas is None else {version: read_json("--schema", schemas)},
        group_name=group_name,
        feature_flags=feature_flags,
    )
    made = run_in_transaction(ctx, lambda work: actions.create(work, name, new))
    _VIEW.print_done(made, made.name, as_json=as_json)


@event_types.command("list", epilog=example("boathook event-types list --all --json"))
def list_types(
    ctx: typer.Context,
    with_archived: Annotated[bool, typer.Option("--all", help="Include archived event types.")] = False,
    limit: Limit = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this name.")] = None,
    as_json: Json = False,
) -> None:
    """List event types by name."""

    async def read(work: UnitOfWork) -> None:
        pages = output.pages(
            lambda at, limit: actions.list_page(work, place=at, limit=limit, with_archived=with_archived),
            after,
            limit,
            lambda one: one.name,
        )
        await _VIEW.print_pages(pages, limit=limit, as_json=as_json)

    run_in_transaction(ctx, read)


@event_types.command("show", epilog=example("boathook event-types show invoice.paid"))
def show_type(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show one event type with its schemas."""
    _VIEW.print_one(run_in_transaction(ctx, lambda work: actions.get(work, name)), as_json=as_json)


@event_types.command("archive", epilog=example("boathook event-types archive invoice.paid"))
def archive_type(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Archive an event type: it accepts no new subscriptions; existing ones still receive it."""
    run_in_transaction(ctx, lambda work: actions.delete(work, name))
    output.print_done({"name": name, "archived": True}, f"{name} archived", as_json=as_json)


@event_types.command("import-openapi", epilog=example("boathook event-types import-openapi openapi.yaml --dry-run"))
def import_openapi(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An OpenAPI document, YAML or JSON.")],
    replace_all: Annotated[
        bool, typer.Option("--replace-all", help="Archive event types that are not in the document.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Create or update event types from the webhooks of an OpenAPI document."""
    try:
        named = read_webhooks(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"FILE: cannot read {file}: {error}") from None
    changed = run_in_transaction(
        ctx, lambda work: openapi_import.import_openapi(work, named, is_dry_run=dry_run, is_whole=replace_all)
    )
    for type in changed:
        output.print_done({"name": type.name}, type.name, as_json=as_json)
