"""Commands about conflicts: requests whose key or body, but not both, belonged to an event already."""

from dataclasses import asdict
from typing import Annotated

import typer

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import cli_context, open_database, out, run
from boathook.cli.options import After, Application, Json, Limit, Since, Source, Until, read_ids
from boathook.cli.output import Column
from boathook.domain import ids
from boathook.service import listings
from boathook.service.listings import ConflictRow, ListFilter

conflicts = typer.Typer(
    no_args_is_help=True, help="Requests with the same key and a different body, or the other way round."
)

_COLUMNS = (
    Column("id", lambda row: row.id, is_whole=True),
    Column("from", lambda row: row.source or row.application),
    Column("differs", lambda row: row.differs),
    Column("seen", lambda row: row.seen),
    Column("last", lambda row: output.format_age(row.last_seen_at)),
    Column("key", lambda row: row.dedup_key),
)


@conflicts.command("list", epilog=example("boathook conflicts list --source stripe --since 7d"))
def list_conflicts(
    ctx: typer.Context, source: Source = None, application: Application = None, since: Since = None,
    until: Until = None, limit: Limit = 50, after: After = None, as_json: Json = False,
) -> None:  # fmt: skip
    """List conflicts, newest first."""
    after = after and ids.show(ids.CONFLICT, *read_ids(ids.CONFLICT, [after]))
    wanted = ListFilter(source=source, application=application, since=since, until=until, limit=limit, after=after)

    async def work() -> None:
        async with open_database(cli_context(ctx).settings()) as database:
            await output.print_pages(listings.list_conflicts(database, wanted), _COLUMNS, limit=limit, as_json=as_json)

    run(work())


@conflicts.command("show", epilog=example("boathook conflicts show cfl_01h455vb4pex5vsknk084sn02q4"))
def show_conflict(
    ctx: typer.Context, conflict: Annotated[str, typer.Argument(metavar="ID", help="The conflict.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show one conflict with a diff of both bodies."""
    # Imported only here, as it brings what reads providers' requests.
    from boathook.service import conflicts as comparing

    (conflict_id,) = read_ids(ids.CONFLICT, [conflict])

    async def work() -> comparing.Comparison:
        async with open_database(cli_context(ctx).settings()) as database:
            return await comparing.compare_conflict(database, conflict_id)

    found = run(work())
    if as_json:
        event = None if found.event is None or found.first is None else {**asdict(found.event), **asdict(found.first)}
        shown = {**asdict(found.twin.row), **asdict(found.twin.stored), "content_type": found.twin.content_type}
        difference = None if found.lines is None else comparing.unified_diff(found)
        output.print_json(
            {**shown, "verdict": found.verdict, "item_path": found.item_path, "difference": difference, "event": event}
        )
        return
    output.print_fields(_facts(found.twin.row, found.item_path))
    out.print()
    out.print(output.text(found.verdict), soft_wrap=True)
    out.print()
    if found.lines:
        output.print_block("- original event, + conflict", comparing.unified_diff(found))
    else:
        output.print_block(f"body of the conflict, {found.twin.row.size} bytes", _readable(found.twin.stored.body))


def _facts(row: ConflictRow, item_path: str | None) -> dict[str, object]:
    return {
        "conflict": row.id,
        "event": row.event_id,
        "item": item_path,
        "source": row.source,
        "application": row.application,
        "differs": row.differs,
        "key": row.dedup_key,
        "seen": row.seen,
        "first": output.moment(row.first_seen_at),
        "last": output.moment(row.last_seen_at),
    }


def _readable(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")
