"""Commands about event types: what messages may be about."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, cli_context, out, run, run_in_transaction, work
from boathook.cli.options import Json, Limit, read_json
from boathook.cli.output import Column
from boathook.domain.endpoints import check_type

if TYPE_CHECKING:
    from boathook.service.event_types import EventType

event_types = typer.Typer(no_args_is_help=True, help="Event types of messages.")

Name = Annotated[str, typer.Argument(help="Name, such as invoice.paid.")]
_COLUMNS = (
    Column("name", lambda one: one.name, is_whole=True),
    Column("state", lambda one: "archived" if one.is_archived else "deprecated" if one.is_deprecated else "live"),
    Column("group", lambda one: one.group_name, is_optional=True),
    Column("schemas", lambda one: " ".join(one.schemas or {}), is_optional=True),
    Column("description", lambda one: one.description),
)
_PAGE = 1_000


@event_types.command(
    "create",
    epilog=example(
        "boathook event-types create invoice.paid --description 'An invoice was paid'",
        "boathook event-types create invoice.paid --schema @invoice.json",
    ),
)
def create_type(
    ctx: typer.Context,
    name: Name,
    description: Annotated[str, typer.Option(help="Description.")] = "",
    schema: Annotated[
        str | None, typer.Option(metavar="JSON", help="The JSON Schema of its payloads; @FILE reads a file.")
    ] = None,
    version: Annotated[str, typer.Option(help="The schema's version.")] = "1",
    group: Annotated[str | None, typer.Option(help="Group.")] = None,
    deprecated: Annotated[
        bool, typer.Option("--deprecated", help="Mark as deprecated: still sent, no longer recommended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create an event type, or restore an archived one."""
    from boathook.service import event_types as actions

    try:
        check_type(name)
    except ValueError as error:
        raise UsageError(f"NAME: {error}") from None
    new = actions.NewEventType(
        description=description,
        is_deprecated=deprecated,
        schemas=None if schema is None else {version: read_json("--schema", schema)},
        group_name=group,
    )

    async def make() -> "EventType":
        async with work(cli_context(ctx).settings()) as one:
            return await actions.create(one, name, new)

    made = run(make())
    if as_json:
        output.print_json(_plain(made))
    else:
        out.print(made.name, markup=False)


@event_types.command("list", epilog=example("boathook event-types list --all --json"))
def list_types(
    ctx: typer.Context,
    with_archived: Annotated[bool, typer.Option("--all", help="Include archived event types.")] = False,
    limit: Limit = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this name.")] = None,
    as_json: Json = False,
) -> None:
    """List event types by name."""
    rows = run_in_transaction(ctx, lambda one: _read_all(one, after, limit, with_archived))
    more = rows[-1].name if rows and len(rows) == limit else ""
    output.print_rows(rows, _COLUMNS, as_json=as_json, plain=_plain, after=more)


async def _read_all(one: Any, after: str | None, limit: int, with_archived: bool) -> "list[EventType]":
    from boathook.service import event_types as actions

    rows: list[EventType] = []
    while not limit or len(rows) < limit:
        most = min(_PAGE, limit - len(rows)) if limit else _PAGE
        page: Sequence[EventType] = await actions.list_page(one, place=after, limit=most, with_archived=with_archived)
        rows += page
        if len(page) < most:
            break
        after = page[-1].name
    return rows


@event_types.command("show", epilog=example("boathook event-types show invoice.paid"))
def show_type(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show one event type with its schemas."""
    from boathook.service import event_types as actions

    found = _plain(run_in_transaction(ctx, lambda one: actions.get(one, name)))
    output.print_one(found, as_json=as_json)


@event_types.command("archive", epilog=example("boathook event-types archive invoice.paid"))
def archive_type(ctx: typer.Context, name: Name) -> None:
    """Archive an event type: endpoints cannot newly subscribe to it; existing subscriptions still receive it."""
    from boathook.service import event_types as actions

    run_in_transaction(ctx, lambda one: actions.delete(one, name))
    out.print(f"{name} archived", markup=False)


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
    from boathook.service import environment
    from boathook.service.openapi_import import read_webhooks

    try:
        named = read_webhooks(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"FILE: cannot read {file}: {error}") from None

    async def take_in() -> list[str]:
        async with work(cli_context(ctx).settings()) as one:
            changed = await environment.import_openapi(one, named, is_dry_run=dry_run, is_whole=replace_all)
            return [type.name for type in changed]

    for name in run(take_in()):
        if as_json:
            output.print_json({"name": name})
        else:
            out.print(name, markup=False)


def _plain(type: "EventType") -> dict[str, Any]:
    return {
        "name": type.name,
        "description": type.description,
        "archived": type.is_archived,
        "deprecated": type.is_deprecated,
        "group": type.group_name,
        "feature_flags": type.feature_flags,
        "schemas": type.schemas,
        "created_at": type.created_at,
        "updated_at": type.updated_at,
    }
