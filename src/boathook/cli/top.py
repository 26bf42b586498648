"""The command that shows live statistics, from local counters or from the metrics of a remote gateway."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer
from rich.live import Live
from rich.text import Text

from boathook.cli import output as show
from boathook.cli.context import UsageError, cli_context, err, open_database, out, run
from boathook.cli.dashboard import SortOrder, dashboard, line
from boathook.cli.options import Json
from boathook.config import Settings
from boathook.domain.errors import DatabaseUnavailable, FetchFailed
from boathook.observability.live_metrics import LiveMetrics
from boathook.service.live_stats import MIN_WINDOW_S, LiveStats, LiveStatsReader, RemoteStatsReader, summarize
from boathook.service.remote import RemoteClient

StatsReader = LiveStatsReader | RemoteStatsReader


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
    source = _local_source(settings) if url is None else _remote_source(settings, _address(url), token)
    try:
        run(_watch(source, every, is_once=once, as_json=as_json))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe, which is a normal end of this command.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _address(url: str) -> str:
    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"--url: write an address such as https://hooks.example.com, not {url!r}")
    return whole.rstrip("/")


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
                err.print(show.text(f"showing only this host: {error}"), style="yellow", soft_wrap=True)
                database = None
            yield LiveStatsReader(live_metrics, data_dir, database)
    finally:
        sampling.cancel()


async def _watch(
    source: "contextlib.AbstractAsyncContextManager[StatsReader]",
    every_s: float,
    *,
    is_once: bool,
    as_json: bool,
) -> None:
    async with source as one:
        if is_once:
            await one.read()  # remote rates need two samples
            await asyncio.sleep(MIN_WINDOW_S + 0.1)
            _print(await one.read(), as_json=as_json, is_whole=True)
        elif as_json or not out.is_terminal:
            await _print_lines(one, every_s, as_json=as_json)
        else:
            await _Screen(one, every_s).show()


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
        print(line(seen).plain, flush=True)


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
