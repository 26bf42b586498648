"""Commands about event types: what messages may be about."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from boathook.cli import show
from boathook.cli.commands import example
from boathook.cli.options import Json, Limit, read_json
from boathook.cli.session import Misused, act, out, run, session, work
from boathook.cli.show import Column
from boathook.domain.endpoints import check_type
from boathook.journal.event_types import EventType

event_types = typer.Typer(no_args_is_help=True, help="What messages may be about.")

Name = Annotated[str, typer.Argument(help="Its name, such as invoice.paid.")]
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
    description: Annotated[str, typer.Option(help="What it means.")] = "",
    schema: Annotated[
        str | None, typer.Option(metavar="JSON", help="The JSON Schema of its payloads; @FILE reads a file.")
    ] = None,
    version: Annotated[str, typer.Option(help="The schema's version.")] = "1",
    group: Annotated[str | None, typer.Option(help="What it is shown under.")] = None,
    deprecated: Annotated[bool, typer.Option("--deprecated", help="Still sent, no longer recommended.")] = False,
    as_json: Json = False,
) -> None:
    """Make an event type; an archived one of this name comes back."""
    from boathook.admin import event_types as actions

    try:
        check_type(name)
    except ValueError as error:
        raise Misused(f"NAME: {error}") from None
    new = actions.NewEventType(
        description=description,
        is_deprecated=deprecated,
        schemas=None if schema is None else {version: read_json("--schema", schema)},
        group_name=group,
    )

    async def make() -> EventType:
        async with work(session(ctx).settings()) as one:
            return await actions.create(one, name, new)

    made = run(make())
    if as_json:
        show.print_json(_plain(made))
    else:
        out.print(made.name, markup=False)


@event_types.command("list", epilog=example("boathook event-types list --all --json"))
def list_types(
    ctx: typer.Context,
    with_archived: Annotated[bool, typer.Option("--all", help="Archived ones too.")] = False,
    limit: Limit = 50,
    after: Annotated[str | None, typer.Option(help="The name in the last row of the page before.")] = None,
    as_json: Json = False,
) -> None:
    """List event types by name."""
    rows = act(ctx, lambda one: _read_all(one, after, limit, with_archived))
    more = rows[-1].name if rows and len(rows) == limit else ""
    show.print_rows(rows, _COLUMNS, as_json=as_json, plain=_plain, after=more)


async def _read_all(one: Any, after: str | None, limit: int, with_archived: bool) -> list[EventType]:
    from boathook.admin import event_types as actions

    rows: list[EventType] = []
    while not limit or len(rows) < limit:
        most = min(_PAGE, limit - len(rows)) if limit else _PAGE
        page: Sequence[EventType] = await actions.list_some(one, place=after, limit=most, with_archived=with_archived)
        rows += page
        if len(page) < most:
            break
        after = page[-1].name
    return rows


@event_types.command("show", epilog=example("boathook event-types show invoice.paid"))
def show_type(ctx: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show one event type with its schemas."""
    from boathook.admin import event_types as actions

    found = _plain(act(ctx, lambda one: actions.get(one, name)))
    show.print_one(found, as_json=as_json)


@event_types.command("archive", epilog=example("boathook event-types archive invoice.paid"))
def archive_type(ctx: typer.Context, name: Name) -> None:
    """Take an event type out of the catalog: endpoints can no longer ask for it; those that do still get it."""
    from boathook.admin import event_types as actions

    act(ctx, lambda one: actions.delete(one, name))
    out.print(f"{name} is archived", markup=False)


@event_types.command("import-openapi", epilog=example("boathook event-types import-openapi openapi.yaml --dry-run"))
def import_openapi(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An OpenAPI document, YAML or JSON.")],
    replace_all: Annotated[bool, typer.Option("--replace-all", help="Archive those it does not name.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make or change the event types that a document's webhooks are, and say which."""
    from boathook.admin import environment
    from boathook.admin.openapi import read_webhooks

    try:
        named = read_webhooks(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"FILE: cannot read {file}: {error}") from None

    async def take_in() -> list[str]:
        async with work(session(ctx).settings()) as one:
            changed = await environment.import_openapi(one, named, is_dry=dry_run, is_whole=replace_all)
            return [type.name for type in changed]

    for name in run(take_in()):
        if as_json:
            show.print_json({"name": name})
        else:
            out.print(name, markup=False)


def _plain(type: EventType) -> dict[str, Any]:
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
