"""Commands for cells: list them, show and assign the cell of each source, move a source."""

from enum import StrEnum
from typing import Annotated

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import cli_context, run
from boathook.cli.options import Json
from boathook.cli.output import Column, hint, say
from boathook.domain.plurals import counted
from boathook.service import cells as services
from boathook.service.cells import SourceCell

cells = typer.Typer(no_args_is_help=True, help="Several installations that share the sources among them.")

_CELLS = (
    Column("name", lambda cell: f"{cell.name} *" if cell.is_own else cell.name, is_whole=True),
    Column("url", is_whole=True),
    Column("new sources", lambda cell: "yes" if cell.accepts_new else "no"),
    Column("events/s", lambda cell: f"{cell.accepted_per_s:,.1f}"),
    Column("failed", lambda cell: f"{cell.dead:,}"),
    Column("oldest due", lambda cell: f"{cell.oldest_due_s:,.0f} s"),
    Column("waiting", lambda cell: f"{cell.waiting:,}"),
    Column("problem", is_optional=True),
)
_SOURCES = (
    Column("source", is_whole=True),
    Column("cell", is_whole=True),
    Column("assigned", lambda one: "yes" if one.is_assigned else "no"),
    Column("not known to", lambda one: ", ".join(one.disagreeing), is_optional=True),
)


class RouteFormat(StrEnum):
    """What `cells routes` prints."""

    TABLE = "table"
    NGINX = "nginx"


@cells.command("list", epilog=example("boathook cells list", "boathook cells list --json"))
def list_cells(ctx: typer.Context, as_json: Json = False) -> None:
    """
    List the cells with their state: events accepted per second, failed deliveries, events that wait.

    Asks the gateways of each cell. The one of this host is marked with a star. Exits with 1 if one has a problem.
    """
    settings = cli_context(ctx).plain_settings()
    found = run(services.read_statuses(settings))
    if as_json:
        for one in found:
            output.print_json(one)
    else:
        output.print_table(_CELLS, found)
    raise typer.Exit(1 if any(one.problem for one in found) else 0)


@cells.command("routes", epilog=example("boathook cells routes", "boathook cells routes --format nginx"))
def list_routes(
    ctx: typer.Context,
    format: Annotated[
        RouteFormat, typer.Option("--format", help="table, or nginx: locations for a proxy before all cells.")
    ] = RouteFormat.TABLE,
    as_json: Json = False,
) -> None:
    """
    Show the cell of each source, and which cells do not know it yet.

    Needs the databases of all cells. A source that is not assigned belongs to one of the cells that accept new ones.
    """
    settings = cli_context(ctx).plain_settings()
    found = run(services.list_sources(settings))
    if format is RouteFormat.NGINX:
        for line in services.to_nginx(found, settings):
            say(line)
    else:
        _print_sources(found, as_json=as_json)


@cells.command("assign", epilog=example("boathook cells assign"))
def assign(ctx: typer.Context, as_json: Json = False) -> None:
    """
    Assign the sources that have no cell, and store all assignments in all cells.

    Run it before another cell accepts new sources: what is assigned stays where it is. Prints what it has changed.
    """
    settings = cli_context(ctx).plain_settings()
    found = run(services.assign_sources(settings))
    _print_sources(found, as_json=as_json)
    for one in found:
        if one.is_moving:
            hint(f"the move of {one.source} is not complete: repeat `boathook cells move {one.source} --to {one.cell}`")


@cells.command("move", epilog=example("boathook cells move github --to c2"))
def move(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(help="The source.")],
    to: Annotated[str, typer.Option("--to", metavar="CELL", help="The cell that stores its events from now on.")],
    as_json: Json = False,
) -> None:
    """
    Move a source to another cell, while its sender goes on. No event is lost or stored twice.

    Its events wait in spools while the keys of known events are copied. What was stored before stays in the old cell,
    with its deliveries. Safe to repeat: repeat it if it was interrupted.
    """
    settings = cli_context(ctx).plain_settings()
    done = run(services.move_source(settings, source, to))
    if as_json:
        output.print_json(done)
        return
    say(f"{done.source} belongs to {done.target} now; copied {counted(done.keys, 'key')} of known events")
    if done.unreached:
        hint(f"not updated yet: {', '.join(done.unreached)}; run `boathook cells assign` when they are back")
    if done.handlers_missing:
        hint(f"{done.target} has no handler for {done.source}, but {done.origin} has: deploy it there")


def _print_sources(found: list[SourceCell], *, as_json: bool) -> None:
    if as_json:
        for one in found:
            output.print_json(one)
    else:
        output.print_table(_SOURCES, found)
