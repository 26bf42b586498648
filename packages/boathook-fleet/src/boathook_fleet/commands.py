"""The commands: ``boathook fleet ...``."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from boathook_app_tools import simulation
from boathook_app_tools.import_commands import add_import, add_views
from boathook_app_tools.terminal import Json, ask, print_json, print_rows, say
from boathook_fleet import dead_letters, owner_tables, records, sending
from boathook_fleet.app import hook
from boathook_fleet.log import Kind, Phase, list_errors
from boathook_fleet.staff import sign_in
from boathook_fleet.tables import TABLES
from boathook_fleet.words import Entity

Limit = Annotated[int, typer.Option(min=1, max=100_000, help="Maximum rows.")]
DeadLetter = Annotated[str, typer.Argument(metavar="ID", help="The dead letter.")]
_OWN_COLUMNS: Final = 3
"""The number of columns that fits a terminal of 80 characters."""

app = typer.Typer(no_args_is_help=True, help="A car-rental back office on RentProg's and Umnico's webhooks.")
dead = typer.Typer(no_args_is_help=True, help="Dead letters, and when each is retried.")


def _lister(entity: Entity) -> Callable[..., None]:
    names = ("id", *(column.name for column in TABLES[entity].columns[:_OWN_COLUMNS]), "stamp", "changes", "upserts")

    def list_them(
        limit: Limit = 50,
        after: Annotated[str, typer.Option(metavar="ID", help="Go on behind this id.")] = "",
        as_json: Json = False,
    ) -> None:
        rows = ask(hook, lambda tx: records.list_things(tx, entity, limit=limit, after=after))
        print_rows(rows, as_json=as_json, columns=names)

    return list_them


for _entity, _table in TABLES.items():
    _example = f"Example: boathook fleet {_table.name} --json"
    app.command(_table.name, help=f"List {_table.name} by id.", epilog=_example)(_lister(_entity))


@app.command("errors", epilog="Example: boathook fleet errors --phase upsert --json")
def show_errors(
    phase: Annotated[Phase | None, typer.Option(help="Only those of this phase.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only those of this kind.")] = None,
    code: Annotated[str | None, typer.Option(help="Only those with this code.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the error log, newest first."""
    rows = ask(hook, lambda tx: list_errors(tx, phase=phase, kind=kind, code=code, limit=limit))
    print_rows(rows, as_json=as_json, columns=("created_at", "phase", "kind", "code", "error", "number"))


def _add_list(name: str, help: str, list_help: str, read: Callable[..., Any], columns: Sequence[str]) -> None:
    """Add a group with the command ``list``."""
    group = typer.Typer(no_args_is_help=True, help=help)

    @group.callback()
    def _group() -> None:
        pass

    @group.command("list", help=list_help, epilog=f"Example: boathook fleet {name} list --json")
    def list_rows(limit: Limit = 50, as_json: Json = False) -> None:
        print_rows(ask(hook, lambda tx: read(tx, limit=limit)), as_json=as_json, columns=columns)

    app.add_typer(group, name=name)


_add_list(
    "unknown", "Requests that could not be parsed.", "List them, newest first, each with the start of its body.",
    records.list_unknown, ("event_id", "reason", "sample"),
)  # fmt: skip
_add_list(
    "unparsed", "Fields that were not understood.",
    "List objects with such fields, latest first; their columns have the former values.",
    records.list_unparsed, ("entity", "id", "unparsed_fields", "updated_at"),
)  # fmt: skip


@dead.command("list", epilog="Example: boathook fleet dead list --json")
def list_dead(
    source: Annotated[str | None, typer.Option(help="Only those whose first request came from it.")] = None,
    type: Annotated[str | None, typer.Option(help="Only those of this type; * matches any text.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List dead letters, those of the newest events first, each with its first request."""
    rows = hook.run(dead_letters.list_dead(hook, source=source, type=type, limit=limit))
    print_rows(rows, as_json=as_json, columns=("id", "recipient", "code", "note", "next_replay_at"))


@dead.command("show", epilog="Example: boathook fleet dead show dlv_01h455vb4pex5vsknk084sn02q4_0")
def show_dead(id: DeadLetter) -> None:
    """Print a dead letter as JSON, with its first request and its attempts."""
    print_json(hook.run(dead_letters.show_dead(hook, id)))


@dead.command("replay", epilog="Example: boathook fleet dead replay dlv_01h455vb4pex5vsknk084sn02q4_0")
def replay_dead(
    id: DeadLetter,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would come of it.")] = False,
) -> None:
    """Replay a dead letter."""
    if dry_run:
        say(hook.run(dead_letters.dry_run(hook, id)))
    else:
        hook.run(dead_letters.replay(hook, id))
        say(f"{id} is handled again")


@dead.command("cleanup", epilog="Example: boathook fleet dead cleanup --days 30")
def clean_up_dead(
    days: Annotated[
        float | None, typer.Option(min=0, help="Dead for more days than this; fleet.dead_days if absent.")
    ] = None,
) -> None:
    """Settle old dead letters as ignored, with a note; nothing is deleted."""
    ignored = hook.run(dead_letters.ignore_old(hook, days=hook.settings.dead_days if days is None else days))
    say(f"{len(ignored)} dead letters are ignored")


app.add_typer(dead, name="dead")
app.add_typer(sign_in.commands(), name="staff")


@app.command("simulate", epilog="Example: boathook fleet simulate --url http://127.0.0.1:8080 --count 100")
def simulate(
    url: simulation.Url = simulation.HERE,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="Number of histories to generate.")] = 100,
    seed: simulation.Seed = None,
    wait: simulation.Wait = simulation.WAIT_S,
    as_json: Json = False,
) -> None:
    """Send simulated requests with the configured secrets, and compare the tables with the expected results."""
    result = hook.run(sending.simulate(hook, url, count=count, seed=seed, wait_s=wait))
    simulation.finish(result, as_json=as_json)


add_import(hook, app, owner_tables.make_import(hook))
add_views(hook, app, owner_tables.VIEWS)
hook.commands(app)
