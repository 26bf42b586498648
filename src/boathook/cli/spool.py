"""Commands for the spool: the events on disk that wait for PostgreSQL, and their import."""

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from boathook.cli import output
from boathook.cli.commands import example
from boathook.cli.context import UsageError, cli_context, open_database, out, run
from boathook.cli.context import err as err_console
from boathook.cli.options import Json, Limit, Source
from boathook.cli.output import STATE, Column, View, hint, say
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.domain.model import NewEvent
from boathook.domain.plurals import counted
from boathook.service.receiving import spool as spooled
from boathook.service.receiving.spool import (
    UNSTORED_STATES,
    FolderSummary,
    ImportReport,
    ImportScope,
    NamedSpool,
    ProgressCallback,
    SegmentState,
    SpooledEvent,
)

spool = typer.Typer(no_args_is_help=True, help="Events on disk that wait for PostgreSQL.")

Dir = Annotated[
    Path | None,
    typer.Option("--dir", metavar="PATH", help="A spool's folder; `spool` in server.data_dir unless given."),
]

_COUNTED = ("accepted", "there", "duplicate", "conflict", "refused", "lost", "unreadable")
_STATUS = (
    Column("life", is_whole=True),
    Column("held", lambda row: "yes" if row.is_held else "no"),
    Column("waiting"),
    Column("oldest", output.age_of("oldest_at")),
    Column("bytes", lambda row: f"{row.bytes:,}"),
    Column("segments", lambda row: row.segments[SegmentState.WAITING]),
    Column("done", lambda row: row.segments[SegmentState.DONE]),
    Column("bad", lambda row: row.segments[SegmentState.BAD] or "", is_optional=True),
    Column("lost", lambda row: row.lost or "", is_optional=True),
    Column("torn", lambda row: row.torn_bytes or "", is_optional=True),
    Column("refused", lambda row: row.refused or "", is_optional=True),
)
_LISTED = View(
    (
        Column("id", lambda row: row["event_id"] or "(unreadable)", is_whole=True),
        Column("source"),
        Column("application", is_optional=True),
        Column("type"),
        Column("key"),
        Column("age", output.age_of("accepted_at")),
        Column("size", "bytes"),
        STATE,
    )
)
_REPORT_COLUMNS = (
    Column("", "what", is_whole=True),
    Column("segments"),
    *map(Column, _COUNTED),
)


@spool.command(
    "status", epilog=example("boathook spool status", "boathook spool status --dir /mnt/old/.boathook/spool")
)
def show_status(ctx: typer.Context, dir: Dir = None, as_json: Json = False) -> None:
    """
    Show waiting, drained and damaged events of the spool, folder by folder, and those that wait for other cells.

    Reads only the files: no database is needed, and running gateways are not affected.
    """
    root = _root(ctx, dir)
    tallies = spooled.summarize(root)
    others = [(spool.title, spooled.summarize(spool.root)) for spool in _other_spools(ctx, dir)]
    if as_json:
        for row in chain(tallies, *(rows for _, rows in others)):
            output.print_json(row)
        return
    if tallies:
        output.print_table(_STATUS, tallies)
        out.print()
        for line in _advice(tallies):
            say(line)
    else:
        say(f"the spool at {root} is empty")
    for title, rows in others:
        if rows:
            out.print()
            say(f"{title}:")
            output.print_table(_STATUS, rows)


@spool.command("inspect", epilog=example(
    "boathook spool inspect --source stripe --limit 0 --json",
    "boathook spool inspect --state refused",
    "boathook spool inspect evt_01h455vb4pex5vsknk084sn02q4 --body > body.json",
))  # fmt: skip
def inspect(
    ctx: typer.Context,
    event: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="One event to show in full: its id or the beginning of it.", show_default=False
        ),
    ] = None,
    dir: Dir = None,
    state: Annotated[
        SegmentState | None,
        typer.Option(help="Only segments in this state; by default those not drained."),
    ] = None,
    source: Source = None,
    limit: Limit = 50,
    body: Annotated[bool, typer.Option("--body", help="Write only the event's body, byte for byte.")] = False,
    as_json: Json = False,
) -> None:
    """
    List the events in the spool, oldest first, or show one with its headers and body. Those for other cells come last.

    Reads only the files: no database is needed, and running gateways are not affected.
    """
    root = _root(ctx, dir)
    roots = [root, *(spool.root for spool in _other_spools(ctx, dir))]
    if event is not None:
        states = set(SegmentState) if state is None else {state}
        spooled_event = next(filter(None, (spooled.find_event(path, event, states) for path in roots)), None)
        if spooled_event is None or spooled_event.event is None:
            raise NotFound(f"{event} is not in the spool at {root}; `boathook events show` looks in the database")
        _show_one(spooled_event, spooled_event.event, as_json=as_json, is_raw=body)
        return
    if body:
        raise UsageError("--body needs an event id")
    _list(roots, UNSTORED_STATES if state is None else {state}, source, limit, as_json)


def _list(
    roots: Iterable[Path], states: Collection[SegmentState], source: str | None, limit: int, as_json: bool
) -> None:
    events = chain.from_iterable(spooled.list_events(root, states) for root in roots)
    rows = (_row(event) for event in events if source is None or _source(event) == source)
    if as_json:
        for row in islice(rows, limit or None):
            output.print_json(row)
        return
    listed = list(islice(rows, limit or None))
    _LISTED.print_rows(listed, as_json=False)
    if limit and len(listed) == limit:
        hint("there may be more: raise --limit, or use --limit 0 for all")


@spool.command("drain", epilog=example(
    "boathook spool drain",
    "boathook spool drain --dir /mnt/old/.boathook/spool --dry-run",
    "boathook spool drain --again",
    "boathook spool drain --refused --json",
))  # fmt: skip
def drain(
    ctx: typer.Context,
    dir: Dir = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="First import drained events again, for a database restored from a backup."),
    ] = False,
    refused: Annotated[bool, typer.Option("--refused", help="Also retry events that PostgreSQL rejected.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count; no database is needed.")] = False,
    as_json: Json = False,
) -> None:
    """
    Import spooled events that no running process drains, such as those of a lost host.

    Safe to repeat and to run beside gateways: each event is stored once. Exits with 1 if events are left.
    """
    root = _root(ctx, dir)
    steps = [ImportScope.AGAIN] * again + [ImportScope.REFUSED] * refused + [ImportScope.WAITING]
    if dry_run:
        _print_reports(spooled.preview_import(root, steps), as_json=as_json, is_dry_run=True)
        return
    import_reports = run(_import_events(cli_context(ctx).settings(), root, steps))
    _print_reports(import_reports, as_json=as_json)
    has_left = _left(root, as_json=as_json)
    raise typer.Exit(0 if all(report.is_whole for report in import_reports) and not has_left else 1)


async def _import_events(settings: Settings, root: Path, steps: Sequence[ImportScope]) -> list[ImportReport]:
    size = spooled.import_size(root, steps)
    async with open_database(settings, purpose="spool drain") as database:
        with _bar(size) as report:
            return await spooled.import_events(database, settings, root, steps, report)


@contextmanager
def _bar(size: int) -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal; silent elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True, disable=not err_console.is_terminal) as progress:
        task = progress.add_task("importing events", total=size)
        yield lambda completed: progress.advance(task, completed)


def _other_spools(ctx: typer.Context, dir: Path | None) -> list[NamedSpool]:
    return spooled.other_spools(cli_context(ctx).plain_settings()) if dir is None else []


def _root(ctx: typer.Context, dir: Path | None) -> Path:
    if dir is None:
        return spooled.root_of(cli_context(ctx).plain_settings())
    if not dir.is_dir():
        raise UsageError(f"--dir: folder {dir} not found; give the spool folder, such as /mnt/old/.boathook/spool")
    if (dir / "spool").is_dir():
        raise UsageError(f"--dir: {dir} is not a spool folder; use --dir {dir / 'spool'}")
    return dir


def _print_reports(import_reports: Collection[ImportReport], *, as_json: bool, is_dry_run: bool = False) -> None:
    if is_dry_run:
        for report in import_reports:
            fields = {"what": report.what, "segments": report.segments, "events": report.accepted}
            offered = f"{counted(report.accepted, 'event')} of {counted(report.segments, 'segment')}"
            message = f"{report.what}: would offer {offered}"
            output.print_done(fields, message, as_json=as_json)
        return
    if as_json:
        for report in import_reports:
            output.print_json(report)
        return
    output.print_table(_REPORT_COLUMNS, list(import_reports))
    for report in import_reports:
        if report.what is ImportScope.AGAIN:
            imported = f"missing in this database, and imported: {counted(report.accepted, 'event')}"
            say(f"{imported}; there already: {counted(report.there, 'event')}")


def _left(root: Path, *, as_json: bool) -> bool:
    """Print the remaining events, and return whether some of them are not held by a running process."""
    waiting = [folder for folder in spooled.summarize(root) if folder.segments[SegmentState.WAITING]]
    for folder in waiting if not as_json else ():
        whose = "a running process drains them" if folder.is_held else "try again"
        err_console.print(
            output.text(f"{folder.path}: {counted(folder.waiting, 'event')} left; {whose}"), soft_wrap=True
        )
    return any(not folder.is_held for folder in waiting)


def _advice(tallies: Collection[FolderSummary]) -> Iterator[str]:
    """Yield lines with the totals and the required actions."""
    held_count = sum(tally.waiting for tally in tallies if tally.is_held)
    abandoned = sum(tally.waiting for tally in tallies if not tally.is_held)
    total = counted(held_count + abandoned, "event")
    yield f"waiting for PostgreSQL: {total}, of which running processes have {held_count:,}"
    if abandoned:
        left_behind = counted(abandoned, "event")
        yield f"left by ended processes: {left_behind}; start a gateway here or run `boathook spool drain`"
    if refused := sum(tally.refused for tally in tallies):
        yield (
            f"rejected by PostgreSQL: {counted(refused, 'event')}; see `boathook spool inspect --state refused`, fix"
            " the cause and run `boathook spool drain --refused`, or remove the file"
        )
    for tally in tallies:
        if tally.segments[SegmentState.BAD] or tally.lost:
            yield (
                f"lost in {tally.path} (unreadable): {counted(tally.lost, 'event')}; `boathook spool inspect"
                " --state bad` shows those around them; ask their senders to resend them, then remove the .bad files"
            )


def _source(spooled_event: SpooledEvent) -> str | None:
    return None if spooled_event.event is None else spooled_event.event.source


def _row(spooled_event: SpooledEvent) -> dict[str, object]:
    event = spooled_event.event
    return {
        "event_id": None if event is None else ids.show(ids.EVENT, event.id),
        "source": None if event is None else event.source,
        "application": None if event is None else event.application,
        "type": None if event is None else event.type,
        "key": None if event is None else event.dedup_key,
        "accepted_at": None if event is None else ids.created_at(event.id),
        "bytes": len(spooled_event.record.payload if event is None else event.body),
        "state": spooled_event.location.state,
        "life": spooled_event.location.life,
        "segment": str(spooled_event.location.path),
        "sequence": spooled_event.record.sequence,
    }


def _show_one(spooled_event: SpooledEvent, event: NewEvent, *, as_json: bool, is_raw: bool) -> None:
    headers = json.loads(event.headers)
    if is_raw:
        out.file.flush()
        with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as raw:
            raw.write(event.body)
    elif as_json:
        more = {"proof": event.grade, "content_type": event.content_type, "headers": headers, "body": event.body}
        output.print_json({**_row(spooled_event), **more})
    else:
        output.print_fields(output.format_fields(_row(spooled_event) | {"proof": event.grade}))
        out.print()
        output.print_request(headers, event.body)
