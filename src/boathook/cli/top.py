"""The command that shows what goes on, as a live table: here by the counts at hand, far away by a gateway's metrics."""

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol
from urllib.parse import urlsplit

import msgspec
import typer
from rich.live import Live
from rich.text import Text

from boathook.admin.present import SHORTEST_S, WINDOW_S, Present, Watch, present
from boathook.cli import show
from boathook.cli.dashboard import Order, dashboard, line
from boathook.cli.options import Json
from boathook.cli.session import Misused, err, journal, out, run, session
from boathook.config import Settings
from boathook.domain.errors import FetchFailed, JournalUnavailable
from boathook.journal.samples import HostSample
from boathook.outbound.client import Client
from boathook.outbound.tap import own_ground
from boathook.telemetry.exporters import History, Merged, from_prometheus
from boathook.telemetry.tally import counted

_LARGEST: Final = 32 * 1_048_576
_ASK_WITHIN_S: Final = 10.0


class Lookout(Protocol):
    """Whatever can tell what goes on."""

    async def look(self) -> Present:
        """Return what goes on."""
        ...


class FarGateway:
    """A gateway somewhere else, which tells what its processes have counted."""

    def __init__(self, client: Client, url: str, key: str | None) -> None:
        self._client = client
        self._url = url
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._heard: deque[Merged] = deque()

    async def look(self) -> Present:
        """Return what went on since the first look, or in the last quarter of a minute. Raises FetchFailed."""
        merged = await self._ask()
        self._heard.append(merged)
        while merged.at - self._heard[0].at > WINDOW_S:
            self._heard.popleft()
        return present([HostSample(self._url, datetime.now(UTC), counted(self._heard[0], merged))])

    async def _ask(self) -> Merged:
        answer = await self._client.request(
            "GET", f"{self._url}/metrics", headers=self._headers, timeout_s=_ASK_WITHIN_S, max_bytes=_LARGEST
        )
        if answer.status != 200:
            raise FetchFailed(f"{self._url}/metrics answers {answer.status}: is that a boathook's address?")
        try:
            return from_prometheus(answer.body.decode(), time.time())
        except ValueError:
            raise FetchFailed(f"what {self._url}/metrics answers are no metrics of boathook's") from None


def top(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A gateway, such as https://hooks.example.com; else the settings at hand."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Sent as a bearer token, where a proxy guards /metrics: env:NAME, file:PATH or the key."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """
    Show what goes on: sources and recipients with rates, latencies, backlog by age, spool, hosts. Ctrl-C or q ends it.

    At a terminal it is a table that stays up to date; p pauses it, s sorts it otherwise. Elsewhere each look is a line.
    """
    settings = session(ctx).settings()
    if key is not None and url is None:
        raise Misused("--key is for a gateway far away: add --url URL")
    token = None if key is None else settings.resolve(key, "--key")
    lookout = _near(settings) if url is None else _far(settings, _address(url), token)
    try:
        run(_watch(lookout, every, is_once=once, as_json=as_json))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough, which is how a command without an end may end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _address(url: str) -> str:
    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Misused(f"--url: write an address such as https://hooks.example.com, not {url!r}")
    return whole.rstrip("/")


@asynccontextmanager
async def _far(settings: Settings, url: str, key: str | None) -> AsyncIterator[Lookout]:
    client = Client(own_ground(settings))
    try:
        yield FarGateway(client, url, key)
    finally:
        client.close()


@asynccontextmanager
async def _near(settings: Settings) -> AsyncIterator[Lookout]:
    """Look at the counts of the processes here, and at what other hosts have told the database where it is there."""
    data_dir = settings.server.data_dir
    history = History(data_dir)
    sampling = asyncio.create_task(history.keep_sampling())
    try:
        async with contextlib.AsyncExitStack() as stack:
            try:
                database = await stack.enter_async_context(journal(settings, purpose="top"))
            except JournalUnavailable as error:
                err.print(show.text(f"only this host is shown: {error}"), style="yellow", soft_wrap=True)
                database = None
            yield Watch(history, data_dir, database)
    finally:
        sampling.cancel()


async def _watch(
    lookout: "contextlib.AbstractAsyncContextManager[Lookout]", every_s: float, *, is_once: bool, as_json: bool
) -> None:
    async with lookout as one:
        if is_once:
            await one.look()  # what is counted far away begins to be known with the first look
            await asyncio.sleep(SHORTEST_S + 0.1)
            _print(await one.look(), as_json=as_json, is_whole=True)
        elif as_json or not out.is_terminal:
            await _print_lines(one, every_s, as_json=as_json)
        else:
            await _Screen(one, every_s).show()


async def _print_lines(lookout: Lookout, every_s: float, *, as_json: bool) -> None:
    while True:
        _print(await lookout.look(), as_json=as_json, is_whole=False)
        await asyncio.sleep(every_s)


def _print(seen: Present, *, as_json: bool, is_whole: bool) -> None:
    if as_json:
        print(msgspec.json.encode(seen).decode(), flush=True)
    elif is_whole:
        out.print(dashboard(seen, Order.OWED))
    else:
        print(line(seen).plain, flush=True)


class _Screen:
    """The table at a terminal, and the keys that change it."""

    def __init__(self, lookout: Lookout, every_s: float) -> None:
        self._lookout = lookout
        self._every_s = every_s
        self._order = Order.OWED
        self._is_paused = False
        self._seen: Present | None = None
        self._trouble = ""
        self._done = asyncio.Event()
        self._drawn = asyncio.Event()

    async def show(self) -> None:
        """Show it until q is pressed."""
        looking = asyncio.create_task(self._keep_looking())
        try:
            with Live(Text("looking …"), console=out, auto_refresh=False, screen=True) as live, _keys(self._press):
                while not self._done.is_set():
                    await self._drawn.wait()
                    self._drawn.clear()
                    if self._seen is not None:
                        live.update(dashboard(self._seen, self._order, self._footer()), refresh=True)
        finally:
            looking.cancel()

    async def _keep_looking(self) -> None:
        while True:
            if not self._is_paused:
                try:
                    self._seen, self._trouble = await self._lookout.look(), ""
                except FetchFailed as error:
                    self._seen, self._trouble = self._seen or present([]), str(error)
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
        paused = "p goes on, this is paused" if self._is_paused else "p pauses"
        keys = Text(f"q quits   {paused}   s sorts, by {self._order} at present", style="dim")
        return keys if not self._trouble else Text(f"{self._trouble}\n", style="red") + keys


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call *press* with each key that is pressed, as long as the block runs; without a keyboard, with none."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, _hear, descriptor, press)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _hear(descriptor: int, press: Callable[[str], None]) -> None:
    pressed = os.read(descriptor, 64).decode(errors="replace")
    for key in pressed or "q":  # a keyboard that is gone presses nothing any more
        press(key)
