"""The command that shows live statistics in tables, from local counters or from the metrics of a remote gateway."""

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final, Protocol

import msgspec
import typer
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from boathook.cli import output
from boathook.cli.context import UsageError, cli_context, err, open_database, out, run
from boathook.cli.options import Json, read_address
from boathook.cli.output import Column
from boathook.config import Settings
from boathook.domain.errors import DatabaseError, DatabaseUnavailable, FetchFailed
from boathook.domain.plurals import counted
from boathook.observability.live_metrics import LiveMetrics
from boathook.service.database import Database, with_stored_sources
from boathook.service.operating.activity_health import ActivityHealth, read_activity_health
from boathook.service.operating.live_stats import (
    MIN_WINDOW_S,
    LiveStats,
    LiveStatsReader,
    RecipientActivity,
    RemoteStatsReader,
    SourceActivity,
    format_duration,
    format_rate,
    format_size,
    recipient_title,
    summarize,
)
from boathook.service.remote import RemoteClient

_MAX_SOURCES: Final = 8
_MAX_RECIPIENTS: Final = 14
_HEALTH_S: Final = 10.0


class StatsReader(Protocol):
    """Reads live statistics repeatedly."""

    async def read(self) -> LiveStats:
        """Return the live statistics."""
        ...


def top(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Gateway URL, such as https://hooks.example.com; by default the local settings are used.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Bearer token for /metrics behind a proxy: env:NAME, file:PATH or the token."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Json = False,
) -> None:
    """
    Show live statistics: rates, latencies, backlog by age, spool and hosts. Press q or Ctrl-C to quit.

    In a terminal it is a live table; p pauses it, s changes the sort order. Otherwise each update is one line.
    """
    settings = cli_context(ctx).settings()
    if key is not None and url is None:
        raise UsageError("--key needs --url URL")
    token = None if key is None else settings.resolve(key, "--key")
    source = (
        _local_source(settings)
        if url is None
        else _remote_source(settings, read_address("--url", url).rstrip("/"), token)
    )
    with contextlib.suppress(KeyboardInterrupt):
        run(_watch(source, every, is_once=once, as_json=as_json))


class _ReaderWithHealth:
    """Adds the health of sources and recipients, read every ten seconds, to live statistics."""

    def __init__(self, reader: LiveStatsReader, database: Database, settings: Settings) -> None:
        self._reader = reader
        self._database = database
        self._settings = settings
        self._health = ActivityHealth()
        self._read_at = -_HEALTH_S

    async def read(self) -> LiveStats:
        """Return the live statistics; the health is unknown while PostgreSQL is unavailable."""
        if time.monotonic() - self._read_at >= _HEALTH_S:
            self._read_at = time.monotonic()
            try:
                settings = await with_stored_sources(self._settings, self._database)
                self._health = await read_activity_health(self._database, settings)
            except DatabaseError:
                self._health = ActivityHealth()
        return self._health.add_to(await self._reader.read())


@asynccontextmanager
async def _remote_source(settings: Settings, url: str, key: str | None) -> AsyncIterator[StatsReader]:
    yield RemoteStatsReader(RemoteClient(settings), url, key)


@asynccontextmanager
async def _local_source(settings: Settings) -> AsyncIterator[StatsReader]:
    """Read the counters of local processes, and those of other hosts from the database if it is available."""
    data_dir = settings.server.data_dir
    live_metrics = LiveMetrics(data_dir)
    sampling = asyncio.create_task(live_metrics.run())
    try:
        async with contextlib.AsyncExitStack() as stack:
            try:
                database = await stack.enter_async_context(open_database(settings, purpose="top"))
            except DatabaseUnavailable as error:
                err.print(output.text(f"showing only this host: {error}"), style="yellow", soft_wrap=True)
                database = None
            reader = LiveStatsReader(live_metrics, data_dir, database)
            yield reader if database is None else _ReaderWithHealth(reader, database, settings)
    finally:
        sampling.cancel()


async def _watch(
    source: "contextlib.AbstractAsyncContextManager[StatsReader]",
    every_s: float,
    *,
    is_once: bool,
    as_json: bool,
) -> None:
    async with source as reader:
        if is_once:
            await reader.read()  # remote rates need two samples
            await asyncio.sleep(MIN_WINDOW_S + 0.1)
            _print(await reader.read(), as_json=as_json, is_whole=True)
        elif as_json or not out.is_terminal:
            await _print_lines(reader, every_s, as_json=as_json)
        else:
            await _Screen(reader, every_s).show()


async def _print_lines(source: StatsReader, every_s: float, *, as_json: bool) -> None:
    while True:
        _print(await source.read(), as_json=as_json, is_whole=False)
        await asyncio.sleep(every_s)


def _print(seen: LiveStats, *, as_json: bool, is_whole: bool) -> None:
    if as_json:
        print(msgspec.json.encode(seen).decode(), flush=True)
    elif is_whole:
        out.print(dashboard(seen, SortOrder.PENDING))
    else:
        print(_line(seen).plain, flush=True)


class _Screen:
    """The live table in a terminal, with its keys."""

    def __init__(self, source: StatsReader, every_s: float) -> None:
        self._source = source
        self._every_s = every_s
        self._order = SortOrder.PENDING
        self._is_paused = False
        self._seen: LiveStats | None = None
        self._trouble = ""
        self._done = asyncio.Event()
        self._drawn = asyncio.Event()

    async def show(self) -> None:
        """Show the table until q is pressed."""
        looking = asyncio.create_task(self._poll())
        try:
            with Live(Text("loading …"), console=out, auto_refresh=False, screen=True) as live, _keys(self._press):
                while not self._done.is_set():
                    await self._drawn.wait()
                    self._drawn.clear()
                    if self._seen is not None:
                        live.update(dashboard(self._seen, self._order, self._footer()), refresh=True)
        finally:
            looking.cancel()

    async def _poll(self) -> None:
        while True:
            if not self._is_paused:
                try:
                    self._seen, self._trouble = await self._source.read(), ""
                except FetchFailed as error:
                    self._seen, self._trouble = self._seen or summarize([]), str(error)
                self._drawn.set()
            await asyncio.sleep(self._every_s)

    def _press(self, key: str) -> None:
        match key:
            case "q" | "\x03":
                self._done.set()
            case "p":
                self._is_paused = not self._is_paused
            case "s":
                self._order = self._order.next()
        self._drawn.set()

    def _footer(self) -> Text:
        paused = "p resumes (paused)" if self._is_paused else "p pauses"
        keys = Text(f"q quits   {paused}   s sorts (by {self._order})", style="dim")
        return keys if not self._trouble else Text(f"{self._trouble}\n", style="red") + keys


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call *press* with each pressed key while the block runs; without a terminal, do nothing."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, _read_keys, descriptor, press)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read_keys(descriptor: int, press: Callable[[str], None]) -> None:
    pressed = os.read(descriptor, 64).decode(errors="replace")
    for key in pressed or "q":  # a closed terminal counts as q
        press(key)


class SortOrder(StrEnum):
    """The sort order of rows."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    NAME = "name"

    def next(self) -> "SortOrder":
        """Return the next order."""
        every = list(SortOrder)
        return every[(every.index(self) + 1) % len(every)]


_RECIPIENT_KEYS: Final[dict[SortOrder, Callable[[RecipientActivity], float]]] = {
    SortOrder.PENDING: lambda recipient: -recipient.backlog.pending,
    SortOrder.DONE: lambda recipient: -recipient.succeeded,
    SortOrder.FAILED: lambda recipient: -recipient.failed - recipient.backlog.dead / 1e9,
    SortOrder.NAME: lambda _: 0,
}
_SOURCE_KEYS: Final[dict[SortOrder, Callable[[SourceActivity], float]]] = {
    SortOrder.PENDING: lambda source: -source.accepted,
    SortOrder.DONE: lambda source: -source.accepted,
    SortOrder.FAILED: lambda source: -source.rejected - source.faults,
    SortOrder.NAME: lambda _: 0,
}


def dashboard(seen: LiveStats, order: SortOrder, footer: Text | None = None) -> RenderableType:
    """Return the whole dashboard; tables omit their less important columns where the terminal is narrow."""
    parts: list[RenderableType] = [_figures(seen), _sources(seen.sources, order), _recipients(seen.recipients, order)]
    return Group(*parts) if footer is None else Group(*parts, footer)


def _line(seen: LiveStats) -> Text:
    """Return the most important figures in one line."""
    return Text(
        f"{seen.at:%H:%M:%S}  in {format_rate(seen.accepted)}/s  rejected {format_rate(seen.rejected)}/s"
        f"  ack p50 {format_duration(seen.ack_p50)} p99 {format_duration(seen.ack_p99)}"
        f"  done {format_rate(seen.succeeded)}/s"
        f"  failed {format_rate(seen.failed)}/s  due {seen.backlog.due}  later {seen.backlog.later}"
        f"  dead {seen.backlog.dead}  spool {seen.spool_records}"
    )


def _figures(seen: LiveStats) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    for name, figures in (*_flow(seen), *_stock(seen)):
        table.add_row(name, figures)
    return table


def _flow(seen: LiveStats) -> list[tuple[str, Text]]:
    return [
        ("boathook", Text(f"{seen.at:%Y-%m-%d %H:%M:%S} UTC   {_hosts(seen)}")),
        (
            "in",
            _joined(
                (f"{format_rate(seen.accepted)}/s accepted", ""),
                (f"{format_rate(seen.duplicates)}/s duplicates", ""),
                (f"{format_rate(seen.rejected)}/s rejected", "yellow" if seen.rejected else ""),
                (f"{format_rate(seen.bad_signatures)}/s bad signatures", "red" if seen.bad_signatures else ""),
                (f"{format_rate(seen.faults)}/s answered 5xx", "red" if seen.faults else ""),
            ),
        ),
        (
            "latency",
            _joined(
                (f"acknowledged {_pair(seen.ack_p50, seen.ack_p99)}", ""),
                (f"begun {_pair(seen.start_p50, seen.start_p99)}", ""),
                (f"endpoints answer {_pair(seen.send_p50, seen.send_p99)}", ""),
            ),
        ),
        (
            "out",
            _joined(
                (f"{format_rate(seen.succeeded)}/s done", ""),
                (f"{format_rate(seen.failed)}/s failed", "yellow" if seen.failed else ""),
                (f"{format_rate(seen.sent)}/s to endpoints", ""),
            ),
        ),
    ]


def _stock(seen: LiveStats) -> list[tuple[str, Text]]:
    backlog = seen.backlog
    oldest = f" (the oldest for {format_duration(seen.oldest_due_s)})" if backlog.due else ""
    spool = f"{counted(seen.spool_records, 'event')}, {format_size(seen.spool_bytes)}"
    return [
        (
            "pending",
            _joined(
                (f"{backlog.due} due{oldest}", ""),
                (f"{backlog.later} later", ""),
                (f"{backlog.leased} in progress", ""),
                (f"{backlog.dead} dead", "red" if backlog.dead else ""),
            ),
        ),
        (
            "endpoints",
            _joined(
                (f"{seen.failing_endpoints} failing", "yellow" if seen.failing_endpoints else ""),
                (f"{seen.breakers_open} paused", "yellow" if seen.breakers_open else ""),
                (f"{seen.disabled_endpoints} disabled", "red" if seen.disabled_endpoints else ""),
            ),
        ),
        ("spool", _joined((spool, "yellow" if seen.spool_records else ""), *_away(seen))),
    ]


def _away(seen: LiveStats) -> list[tuple[str, str]]:
    return [("PostgreSQL does not accept events", "red")] if seen.is_spooling else []


def _hosts(seen: LiveStats) -> str:
    if not seen.hosts:
        return "no processes found; is `boathook serve` running with this server.data_dir or database.url?"
    processes = sum(number for host in seen.hosts for number in host.roles.values())
    suffix = f", {counted(processes, 'process')}" if processes else ""
    return f"{counted(len(seen.hosts), 'host')}{suffix}"


def _pair(p50: float | None, p99: float | None) -> str:
    return f"p50 {format_duration(p50)} p99 {format_duration(p99)}"


def _joined(*parts: tuple[str, str]) -> Text:
    return Text("   ").join(Text(text, style=style) for text, style in parts)


def _sources(rows: Sequence[SourceActivity], order: SortOrder) -> Table:
    top_sources = sorted(rows, key=lambda row: (_SOURCE_KEYS[order](row), row.source))[:_MAX_SOURCES]
    return output.table(_SOURCE_COLUMNS, top_sources, box=box.SIMPLE_HEAD)


def _recipients(rows: Sequence[RecipientActivity], order: SortOrder) -> Table:
    top_recipients = sorted(rows, key=lambda row: (_RECIPIENT_KEYS[order](row), row.recipient))[:_MAX_RECIPIENTS]
    return output.table(
        _RECIPIENT_COLUMNS,
        top_recipients,
        box=box.SIMPLE_HEAD,
        style_of=lambda recipient: "red" if recipient.backlog.dead else "yellow" if recipient.failed else "",
    )


def _number(title: str, read: Callable[[Any], object], *, is_whole: bool = False) -> Column:
    return Column(title, read, is_number=True, is_whole=is_whole)


def _rate(title: str, name: str, *, is_whole: bool = False) -> Column:
    return _number(title, lambda row: format_rate(getattr(row, name)), is_whole=is_whole)


def _age(title: str, place: int) -> Column:
    return _number(title, lambda recipient: recipient.backlog.ages[place])


def _health(row: RecipientActivity) -> str | None:
    return f"paused until {row.paused_until:%H:%M:%S}" if row.paused_until else row.health


_SOURCE_COLUMNS: Final = (
    Column("source", is_whole=True),
    Column("health", is_whole=True, is_optional=True),
    _rate("accepted/s", "accepted"),
    _rate("duplicates/s", "duplicates"),
    _rate("rejected/s", "rejected", is_whole=True),
    _rate("bad signatures/s", "bad_signatures"),
    _rate("5xx/s", "faults"),
)
_RECIPIENT_COLUMNS: Final = (
    Column("recipient", lambda row: recipient_title(row.recipient), is_whole=True),
    Column("health", _health, is_whole=True, is_optional=True),
    _rate("done/s", "succeeded"),
    _rate("failed/s", "failed"),
    *(_age(title, place) for place, title in enumerate(("<10s", "<1m", "<10m", "<1h", "older"))),
    _number("later", lambda row: row.backlog.later),
    _number("work", lambda row: row.backlog.leased),
    _number("dead", lambda row: row.backlog.dead, is_whole=True),
)
