"""Commands for cells: list them, show and assign the cell of each source, move a source or an application."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import cli_context, run
from boathook.cli.options import Json
from boathook.cli.output import Column, hint, say
from boathook.config import Settings
from boathook.domain.plurals import counted
from boathook_cells import moves, status

cells = typer.Typer(no_args_is_help=True, help="Several installations that share sources and applications among them.")

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
    Column("assigned", lambda source: "yes" if source.is_assigned else "no"),
    Column("not known to", lambda source: ", ".join(source.disagreeing), is_optional=True),
)
_APPLICATIONS = (
    Column("application", is_whole=True),
    Column("name"),
    Column("cell", is_whole=True),
    Column("left", lambda application: ", ".join(application.left)),
    Column("moving", lambda application: "yes" if application.is_moving else "", is_optional=True),
)
_NOUNS = {"endpoint": "endpoint", "api_key": "API key", "event_type": "event type"}
"""Display names of the tables whose rows are copied."""


class RouteFormat(StrEnum):
    """The output format of `cells routes`."""

    TABLE = "table"
    NGINX = "nginx"


@cells.command("list", epilog=example("boathook cells list", "boathook cells list --json"))
def list_cells(ctx: typer.Context, as_json: Json = False) -> None:
    """
    List the cells with their state: events accepted per second, failed deliveries, events that wait.

    Asks the gateways of each cell. The one of this host is marked with a star. Exits with 1 if one has a problem.
    """
    settings = cli_context(ctx).plain_settings()
    statuses = run(status.read_statuses(settings))
    if as_json:
        for status_row in statuses:
            output.print_json(status_row)
    else:
        output.print_table(_CELLS, statuses)
    raise typer.Exit(1 if any(status_row.problem for status_row in statuses) else 0)


@cells.command("routes", epilog=example("boathook cells routes", "boathook cells routes --format nginx"))
def list_routes(
    ctx: typer.Context,
    format: Annotated[
        RouteFormat, typer.Option("--format", help="table, or nginx: locations for a proxy before all cells.")
    ] = RouteFormat.TABLE,
    applications: Annotated[
        bool, typer.Option("--applications", help="Show the applications that have moved instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """
    Show the cell of each source, and which cells do not have this assignment yet.

    Needs the databases of all cells. A source that is not assigned belongs to one of the cells that accept new ones. An
    application that has never moved belongs to the cell whose API created it.
    """
    settings = cli_context(ctx).plain_settings()
    if applications:
        _print(_APPLICATIONS, run(moves.list_moved_applications(settings)), as_json=as_json)
        return
    sources = run(moves.list_sources(settings))
    if format is RouteFormat.NGINX:
        for line in moves.to_nginx(sources, settings):
            say(line)
    else:
        _print(_SOURCES, sources, as_json=as_json)


@cells.command("assign", epilog=example("boathook cells assign"))
def assign(ctx: typer.Context, as_json: Json = False) -> None:
    """
    Assign the sources that have no cell, and store all assignments in all cells.

    Run it before another cell accepts new sources: what is assigned stays where it is. Prints what it has changed.
    """
    settings = cli_context(ctx).plain_settings()
    changed = run(moves.assign_sources(settings))
    _print(_SOURCES, changed, as_json=as_json)
    for source in changed:
        if source.is_moving:
            hint(
                f"the move of {source.source} is not complete: "
                f"repeat `boathook cells move {source.source} --to {source.cell}`"
            )


@cells.command("move", epilog=example("boathook cells move github --to c2", "boathook cells move app_... --to c2"))
def move(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A source, or the id of an application.")],
    to: Annotated[str, typer.Option("--to", metavar="CELL", help="The cell that stores its events from now on.")],
    as_json: Json = False,
) -> None:
    """
    Move a source or an application to another cell, in use. Nothing is lost or stored twice.

    Events of a source wait in spools while the keys of known events are copied. Requests for an application are
    answered 421 with the URL of the other cell. What was stored before stays in the old cell, with its deliveries.
    Repeat the command if it was interrupted.
    """
    settings = cli_context(ctx).plain_settings()
    if moves.is_application_id(name):
        _move_application(settings, name, to, as_json=as_json)
    else:
        _move_source(settings, name, to, as_json=as_json)


def _move_source(settings: Settings, source: str, to: str, *, as_json: bool) -> None:
    outcome = run(moves.move_source(settings, source, to))
    if as_json:
        output.print_json(outcome)
        return
    say(f"{outcome.source} belongs to {outcome.target} now; copied {counted(outcome.keys, 'key')} of known events")
    if outcome.unreached:
        hint(f"not updated yet: {', '.join(outcome.unreached)}; run `boathook cells assign` when they are back")
    if outcome.handlers_missing:
        hint(f"{outcome.target} has no handler for {outcome.source}, but {outcome.origin} has: deploy it there")


def _move_application(settings: Settings, application: str, to: str, *, as_json: bool) -> None:
    outcome = run(moves.move_application(settings, application, to))
    if as_json:
        output.print_json(outcome)
        return
    if outcome.origin == outcome.target:
        say(f"{outcome.application} belongs to {outcome.target} already")
        return
    say(f"{outcome.application} belongs to {outcome.target} now")
    copied = [counted(number, _NOUNS[table]) for table, number in outcome.copied.items() if table in _NOUNS]
    say(f"copied {', '.join([*copied, counted(outcome.keys, 'key')])} of known messages")
    if outcome.open_deliveries:
        hint(f"{outcome.origin} still has {counted(outcome.open_deliveries, 'open delivery')} of earlier messages")


def _print(columns: Sequence[Column], rows: Sequence[object], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            output.print_json(row)
    else:
        output.print_table(columns, rows)
