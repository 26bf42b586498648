"""Commands about the spool: what waits on disk for PostgreSQL, and how it is brought there by hand."""

import json
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from boathook.cli import show
from boathook.cli.commands import example
from boathook.cli.options import Json, Limit, Source, read_ids
from boathook.cli.session import Misused, journal, out, run, session
from boathook.cli.session import err as err_console
from boathook.cli.show import Column
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import NotFound, SpoolUnavailable
from boathook.domain.filters import Router
from boathook.domain.model import NewEvent
from boathook.inbound.arrival import Arrivals
from boathook.inbound.draining import RoutedStore
from boathook.inbound.records import UNROUTED
from boathook.inbound.salvage import Haul, Report, Salvage, What
from boathook.inbound.spooled import OPEN, Spooled, Tally, events, tally
from boathook.journal.database import check_safety
from boathook.journal.events import EventStore
from boathook.journal.moves import announce_due
from boathook.journal.registry import read_router
from boathook.spool.survey import Folder, State, look

spool = typer.Typer(no_args_is_help=True, help="Events that wait on disk while PostgreSQL is away.")

Dir = Annotated[
    Path | None,
    typer.Option("--dir", metavar="PATH", help="A spool's folder; `spool` in server.data_dir unless given."),
]

_COUNTED = ("accepted", "there", "duplicate", "conflict", "refused", "lost", "unreadable")
_STATUS = (
    Column("life", lambda row: row.life, is_whole=True),
    Column("held", lambda row: "yes" if row.is_held else "no"),
    Column("waiting", lambda row: row.waiting),
    Column("oldest", lambda row: show.age(row.oldest_at)),
    Column("bytes", lambda row: f"{row.bytes:,}"),
    Column("segments", lambda row: row.segments[State.WAITING]),
    Column("done", lambda row: row.segments[State.DONE]),
    Column("bad", lambda row: row.segments[State.BAD] or "", is_optional=True),
    Column("lost", lambda row: row.lost or "", is_optional=True),
    Column("torn", lambda row: row.torn_bytes or "", is_optional=True),
    Column("refused", lambda row: row.refused or "", is_optional=True),
)
_LISTED = (
    Column("id", lambda row: row["event_id"] or "(unreadable)", is_whole=True),
    Column("source", lambda row: row["source"]),
    Column("type", lambda row: row["type"]),
    Column("key", lambda row: row["key"]),
    Column("age", lambda row: show.age(row["accepted_at"])),
    Column("size", lambda row: row["bytes"]),
    Column("state", lambda row: row["state"]),
)
_HAULS = (
    Column("", lambda row: row.what, is_whole=True),
    Column("segments", lambda row: row.segments),
    *(Column(name, attrgetter(name)) for name in _COUNTED),
)


@spool.command(
    "status", epilog=example("boathook spool status", "boathook spool status --dir /mnt/old/.boathook/spool")
)
def show_status(ctx: typer.Context, dir: Dir = None, as_json: Json = False) -> None:
    """
    Show what waits in the spool, what was drained, and what needs a person, folder by folder.

    Looks at the files only: no database is needed, and gateways notice nothing.
    """
    root = _root(ctx, dir)
    with _told():
        tallies = [tally(folder) for folder in look(root)]
    if as_json:
        for one in tallies:
            show.print_json(asdict(one))
        return
    if not tallies:
        out.print(f"the spool is empty: nothing lies in {root}", markup=False, soft_wrap=True)
        return
    out.print(show.table(_STATUS, tallies))
    out.print()
    for line in _advice(tallies):
        out.print(show.text(line), soft_wrap=True)


@spool.command("inspect", epilog=example(
    "boathook spool inspect --source stripe --limit 0 --json",
    "boathook spool inspect --state refused",
    "boathook spool inspect evt_01h455vb4pex5vsknk084sn02q4 --body > body.json",
))  # fmt: skip
def inspect(
    ctx: typer.Context,
    event: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="One event, to be shown whole.", show_default=False)
    ] = None,
    dir: Dir = None,
    state: Annotated[
        State | None, typer.Option(help="Only of segments in this state; unless given, what PostgreSQL does not have.")
    ] = None,
    source: Source = None,
    limit: Limit = 50,
    body: Annotated[
        bool, typer.Option("--body", help="Write the event's body, byte by byte, and nothing else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """
    List the events in the spool, oldest first, or show one with its headers and its bytes.

    Looks at the files only: no database is needed, and gateways notice nothing.
    """
    root = _root(ctx, dir)
    if event is not None:
        (event_id,) = read_ids(ids.EVENT, [event])
        with _told():
            states = State if state is None else {state}
            found = next(
                (one for one in events(look(root), set(states)) if one.event and one.event.id == event_id), None
            )
        if found is None or found.event is None:
            raise NotFound(f"{event} is not in the spool at {root}; `boathook events show` looks in the database")
        _show_one(found, found.event, as_json=as_json, is_raw=body)
        return
    if body:
        raise Misused("--body writes the body of one event: name its id too")
    _list(root, OPEN if state is None else {state}, source, limit, as_json)


def _list(root: Path, states: Collection[State], source: str | None, limit: int, as_json: bool) -> None:
    with _told():
        rows = (_row(one) for one in events(look(root), states) if source is None or _source(one) == source)
        if as_json:
            for row in islice(rows, limit or None):
                show.print_json(row)
            return
        shown = list(islice(rows, limit or None))
    show.print_rows(shown, _LISTED, as_json=False, plain=dict)
    if limit and len(shown) == limit:
        err_console.print("there may be more: add a larger --limit, or --limit 0 for all", style="dim", soft_wrap=True)


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
        typer.Option(
            "--again", help="First offer what was drained before, to a database that was restored from a backup."
        ),
    ] = False,
    refused: Annotated[bool, typer.Option("--refused", help="Also try what PostgreSQL has refused.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count; no database is needed.")] = False,
    as_json: Json = False,
) -> None:
    """
    Bring to the configured database what lies in the spool and no living process will bring: a lost host's, say.

    Safe to repeat, and beside running gateways: each event is stored once. Exits with 1 if not all could be brought.
    """
    root = _root(ctx, dir)
    steps = [What.AGAIN] * again + [What.REFUSED] * refused + [What.WAITING]
    with _told():
        folders = look(root)
    if dry_run:
        _print_hauls([_foreseen(folders, step) for step in steps], as_json=as_json, is_dry=True)
        return
    hauls = run(_bring(session(ctx).settings(), root, steps, sum(_sizes(folders, steps))))
    _print_hauls(hauls, as_json=as_json)
    left = _left(root, as_json=as_json)
    raise typer.Exit(0 if all(haul.is_whole for haul in hauls) and not left else 1)


async def _bring(settings: Settings, root: Path, steps: Collection[What], size: int) -> list[Haul]:
    from boathook.inbound.gates import dedup_days_of

    async with journal(settings, purpose="spool drain") as database:
        # A segment is put aside because PostgreSQL has its events: that must be as true as for a gateway's 2xx.
        await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
        store = EventStore(database, dedup_days=settings.retention.dedup_days, dedup_days_of=dedup_days_of(settings))
        with _bar(size) as report:
            salvage = Salvage(
                root,
                RoutedStore(store, Arrivals(Router((), UNROUTED), lambda: read_router(database)).route_again),
                batch=settings.database.intake_batch,
                report=report,
            )
            does = {What.AGAIN: salvage.offer_again, What.REFUSED: salvage.try_refused, What.WAITING: salvage.drain}
            hauls = [await does[step]() for step in steps]
        await announce_due(database)
        return hauls


@contextmanager
def _bar(size: int) -> Iterator[Report]:
    """Lend a bar on a terminal; elsewhere silence."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err_console, transient=True, disable=not err_console.is_terminal) as progress:
        task = progress.add_task("bringing events", total=size)
        yield lambda done: progress.advance(task, done)


def _root(ctx: typer.Context, dir: Path | None) -> Path:
    if dir is None:
        return session(ctx).plain_settings().server.data_dir / "spool"
    if not dir.is_dir():
        raise Misused(f"--dir: there is no folder {dir}; name the spool itself, such as /mnt/old/.boathook/spool")
    if (dir / "spool").is_dir():
        raise Misused(f"--dir: {dir} holds a spool, but is none: write --dir {dir / 'spool'}")
    return dir


@contextmanager
def _told() -> Iterator[None]:
    """Say which file could not be read."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        fix = "run this as the user that runs boathook" if isinstance(error, PermissionError) else "look at the disk"
        raise SpoolUnavailable(f"{error.filename} cannot be read: {error.strerror}; {fix}") from None


def _foreseen(folders: Collection[Folder], step: What) -> Haul:
    """Return what there is to be brought, as if all of it were new."""
    haul = Haul(what=step)
    reached = folders if step is What.AGAIN else [folder for folder in folders if not folder.is_held]
    haul.accepted = sum(1 for _ in events(reached, _STATES[step]))
    haul.segments = sum(1 for _ in _sizes(folders, [step]))
    return haul


_STATES = {
    What.AGAIN: {State.DONE, State.BAD},
    What.REFUSED: {State.REFUSED},
    What.WAITING: {State.WAITING},
}


def _sizes(folders: Collection[Folder], steps: Collection[What]) -> Iterator[int]:
    for step in steps:
        for folder in folders:
            if step is not What.WAITING or not folder.is_held:
                yield from (one.size for one in folder.segments if one.state in _STATES[step])


def _print_hauls(hauls: Collection[Haul], *, as_json: bool, is_dry: bool = False) -> None:
    if is_dry:
        for haul in hauls:
            if as_json:
                show.print_json({"what": haul.what, "segments": haul.segments, "events": haul.accepted})
            else:
                out.print(
                    f"{haul.what}: would offer {_events(haul.accepted)} of {haul.segments} segment(s)", markup=False
                )
        return
    for haul in hauls if as_json else ():
        show.print_json(asdict(haul))
    if as_json:
        return
    out.print(show.table(_HAULS, list(hauls)))
    for haul in hauls:
        if haul.what is What.AGAIN:
            back = f"missing in this database, and back: {_events(haul.accepted)}; there already: {_events(haul.there)}"
            out.print(show.text(back), soft_wrap=True)


def _left(root: Path, *, as_json: bool) -> bool:
    """Say what still waits, and return whether nobody is about to bring that."""
    with _told():
        waiting = [one for one in map(tally, look(root)) if one.segments[State.WAITING]]
    for one in waiting if not as_json else ():
        whose = "a living process holds it, and brings them itself" if one.is_held else "try again"
        err_console.print(show.text(f"{one.path}: {_events(one.waiting)} left; {whose}"), soft_wrap=True)
    return any(not one.is_held for one in waiting)


def _advice(tallies: Collection[Tally]) -> Iterator[str]:
    """Yield the sums, and what is to be done."""
    held = sum(one.waiting for one in tallies if one.is_held)
    left = sum(one.waiting for one in tallies if not one.is_held)
    yield f"waiting for PostgreSQL: {_events(held + left)}, of which running processes hold {_events(held)}"
    if left:
        yield (
            f"left by processes that have ended: {_events(left)}; a gateway that starts here brings them, and without"
            " one `boathook spool drain` does"
        )
    if refused := sum(one.refused for one in tallies):
        yield (
            f"refused by PostgreSQL: {_events(refused)}; see `boathook spool inspect --state refused`, and once the"
            " cause is mended, run `boathook spool drain --refused`, or remove the file"
        )
    for one in tallies:
        if one.segments[State.BAD] or one.lost:
            yield (
                f"lost in {one.path}, as the disk does not give them back: {_events(one.lost)}; `boathook spool inspect"
                " --state bad` shows those around them; ask their senders to send again, then remove the .bad files"
            )


def _events(number: int) -> str:
    return "1 event" if number == 1 else f"{number:,} events"


def _source(one: Spooled) -> str | None:
    return None if one.event is None else one.event.source


def _row(one: Spooled) -> dict[str, object]:
    event = one.event
    return {
        "event_id": None if event is None else ids.show(ids.EVENT, event.id),
        "source": None if event is None else event.source,
        "type": None if event is None else event.type,
        "key": None if event is None else event.dedup_key,
        "accepted_at": None if event is None else ids.made_at(event.id),
        "bytes": len(one.record.payload if event is None else event.body),
        "state": one.lying.state,
        "life": one.lying.life,
        "segment": str(one.lying.path),
        "sequence": one.record.sequence,
    }


def _show_one(one: Spooled, event: NewEvent, *, as_json: bool, is_raw: bool) -> None:
    headers = json.loads(event.headers)
    if is_raw:
        out.file.flush()
        with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as raw:
            raw.write(event.body)
    elif as_json:
        more = {"proof": event.grade, "content_type": event.content_type, "headers": headers, "body": event.body}
        show.print_json({**_row(one), **more})
    else:
        show.facts(show.readable(_row(one) | {"proof": event.grade}))
        out.print()
        show.block("headers", "\n".join(f"{name}: {value}" for name, value in headers.items()) or "(none kept)")
        show.block(f"body, {len(event.body)} bytes", event.body.decode("utf-8", "backslashreplace"))
