"""Starts a whole boathook and plays real life at it over HTTP, then checks the books against the senders' own record.

folder   the demo's own folder, with configuration and secrets
serving  the real `boathook serve`, as a process
letters, traffic, client   strangers who send, and tally, what they were answered
handlers what the demo's boathook does with the events
receiver, sending   a customer whose server is told of what the shop does, and their record
systems  the four ready-made apps, each played by its own simulator
ledger   the senders' record against the store and the effects
screen, advice   what is shown, and what to try next
"""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from boathook.config import defaults
from boathook.demo import advice, folder, ledger, screen, sending, serving
from boathook.demo.folder import Folder
from boathook.demo.receiver import Receiver
from boathook.demo.screen import Screen
from boathook.demo.serving import Serving
from boathook.demo.systems import Systems
from boathook.demo.tally import Tally
from boathook.demo.traffic import PROVIDERS, Traffic
from boathook.domain.errors import BoathookError
from boathook.journal import books
from boathook.journal.database import Database
from boathook.journal.embedded import EmbeddedServer

PLAY_S = 180.0
"""How long the demo plays where no time is given."""
_DRAIN_S = 60.0
_DRAIN_POLL_S = 0.1


def run_demo(*, seconds: float | None, data_dir: Path, port: int, console: Console) -> int:
    """Play the demo and return its exit code: 0 where the books and the senders' record balance, else 1.

    Ctrl-C and SIGTERM end the play early, and the books are checked all the same; a second one ends everything at once.

    Args:
        seconds: how long to play, and then to stop; None plays for three minutes and serves on until Ctrl-C.
        data_dir: the demo's own folder, emptied at the start; a folder with other files in it is refused.
        port: where to serve on loopback; the next free one is taken where it is not free.
        console: where everything is shown.

    Raises:
        ConfigError: the folder is not a demo's own, or PostgreSQL's binaries are not installed.
        BoathookError: PostgreSQL or boathook does not start, or ended while it was being used.
    """
    try:
        with folder.claim(data_dir) as own:
            return asyncio.run(_Demo(own, seconds, port, console).run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped at once; the books were not checked")
        return 1


@dataclass(frozen=True, slots=True)
class _Stage:
    """What a play needs."""

    database: Database
    serving: Serving
    traffic: Traffic
    tally: Tally
    screen: Screen
    receiver: Receiver
    systems: Systems
    recipients: dict[str, str]
    """Of the customer's endpoints, by their paths; empty where the play was left before it began."""


class _Demo:
    """One demo, from an empty folder to the verdict."""

    def __init__(self, own: Folder, seconds: float | None, port: int, console: Console) -> None:
        self._folder = own
        self._seconds = seconds
        self._length_s = PLAY_S if seconds is None else seconds
        self._wanted_port = port
        self._console = console
        self._leave = asyncio.Event()
        # Interrupting a start would leave PostgreSQL running with nobody to stop it.
        self._may_hurry = False

    async def run(self) -> int:
        """Set up, play, and check; whatever happens, everything started here is stopped."""
        with self._signals():
            await folder.empty(self._folder, self._say)
            port = folder.find_port(self._wanted_port)
            if self._wanted_port not in {0, port}:
                self._say(f"port {self._wanted_port} is taken, so this demo uses {port}")
            secrets = self._folder.furnish(port)
            async with self._stage(port, secrets) as stage:
                if self._leave.is_set():
                    self._say("stopped before anything was sent")
                    return 0
                self._may_hurry = True
                await self._play(stage)
                is_balanced = await self._check(stage)
                is_serving = self._seconds is None and not self._leave.is_set()
                self._advise(port, secrets["github"], is_serving=is_serving)
                if is_serving:
                    await self._until_curtain(stage, None)
                self._say("stopping")
                code = await stage.serving.stop()
            if code != 0:
                self._say(f"boathook serve ended with exit code {code}:\n{stage.serving.last_words()}")
            return 0 if is_balanced and code == 0 else 1

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def heard() -> None:
            if self._leave.is_set() and self._may_hurry and task is not None:
                task.cancel()
            self._leave.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, heard)
        yield
        for number in numbers:
            loop.remove_signal_handler(number)

    @contextlib.asynccontextmanager
    async def _stage(self, port: int, secrets: dict[str, str]) -> AsyncIterator[_Stage]:
        server = await EmbeddedServer.start(self._folder.data, progress=self._say)
        try:
            database = await Database.open(server.url, purpose="demo", size=2)
            try:
                await ledger.create_tables(database)
                self._say(f"starting boathook serve on http://127.0.0.1:{port} (its log: {self._folder.log})")
                receiver = Receiver()
                async with receiver.listen(), serving.serve(self._folder, port) as process:
                    await self._await_ready(process)
                    is_left = self._leave.is_set()
                    recipients = {} if is_left else await sending.set_up(database, self._folder, receiver)
                    if not is_left:
                        password = await sending.let_in(database, self._folder)
                        where = f"http://127.0.0.1:{port}/console"
                        self._say(f"watch it on {where} (name {sending.READER}, password {password})")
                    tally = Tally(PROVIDERS)
                    dice = random.Random(time.time_ns())
                    traffic = Traffic(port, secrets, tally, dice)
                    shown = Screen(self._console, database, tally)
                    systems = Systems(self._folder, port, self._length_s, self._say)
                    yield _Stage(database, process, traffic, tally, shown, receiver, systems, recipients)
            finally:
                await database.close()
        finally:
            await server.stop()

    async def _await_ready(self, process: Serving) -> None:
        """Wait until boathook serves, or somebody wants to leave."""
        ready, leave = asyncio.create_task(process.become_ready()), asyncio.create_task(self._leave.wait())
        await asyncio.wait({ready, leave}, return_when=asyncio.FIRST_COMPLETED)
        leave.cancel()
        if ready.done():
            ready.result()
        ready.cancel()
        await asyncio.gather(ready, leave, return_exceptions=True)

    async def _play(self, stage: _Stage) -> None:
        """Let the senders play for their time, and wait until all that they caused has ended."""
        done = asyncio.Event()
        what = f"playing {self._length_s:.0f} seconds of real life"
        self._say(f"{what}; Ctrl-C ends it early, and the books are checked all the same")
        stage.screen.footer = "Ctrl-C stops the senders, checks the books and stops everything"
        shown = asyncio.create_task(stage.screen.show(done))
        playing, systems = (asyncio.create_task(one.play()) for one in (stage.traffic, stage.systems))
        try:
            await self._until_curtain(stage, self._length_s)
            stage.traffic.stop()
            await playing
            stage.screen.footer = "the senders have stopped; waiting for the four systems' stories to end"
            await systems
            stage.screen.footer = "all have stopped; waiting for what is still to be retried"
            await self._drain(stage)
        finally:
            done.set()
            playing.cancel()
            systems.cancel()
            await asyncio.gather(playing, systems, return_exceptions=True)
            await shown

    async def _until_curtain(self, stage: _Stage, length_s: float | None) -> None:
        """Wait for the end of the time, or for somebody who wants to leave."""
        ended = asyncio.create_task(stage.serving.wait())
        leave = asyncio.create_task(self._leave.wait())
        await asyncio.wait({ended, leave}, timeout=length_s, return_when=asyncio.FIRST_COMPLETED)
        is_over = ended.done()
        for task in (ended, leave):
            task.cancel()
        await asyncio.gather(ended, leave, return_exceptions=True)
        if is_over:
            raise BoathookError(f"boathook serve ended while it was being used:\n{stage.serving.last_words()}")

    async def _drain(self, stage: _Stage) -> None:
        """Wait until no delivery is open, or until none has ended for a minute; the books will show what still is."""
        left, deadline = -1, time.monotonic() + _DRAIN_S
        while (still_open := await ledger.count_open(stage.database)) and time.monotonic() < deadline:
            if still_open != left:
                left, deadline = still_open, time.monotonic() + _DRAIN_S
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _check(self, stage: _Stage) -> bool:
        """Print the books and the senders' record, and return whether both balance."""
        complaints = ledger.compare(stage.tally, await ledger.read_stored(stage.database, self._folder.mailbox))
        delivered = await ledger.read_delivered(stage.database)
        by_path = {path: delivered.get(recipient, set()) for path, recipient in stage.recipients.items()}
        complaints += sending.compare(stage.receiver, by_path)
        if still_open := await ledger.count_open(stage.database):
            complaints.insert(
                0, f"not finished yet: {still_open} deliveries are open, and none has ended for {_DRAIN_S:.0f} seconds"
            )
        found = await books.verify(stage.database, dedup_days=defaults()["retention"]["dedup_days"], is_deep=True)
        screen.print_books(self._console, found, stage.tally, complaints, stage.receiver.records)
        screen.print_systems(self._console, stage.systems.outcomes)
        return found.is_balanced and not complaints and stage.systems.are_right

    def _advise(self, port: int, secret: str, *, is_serving: bool) -> None:
        self._console.print()
        for line in advice.write(self._folder, port, secret, is_serving=is_serving):
            # A line for a shell must not be broken, nor coloured.
            self._console.print(Text(line, style="dim" if line.startswith("#") else ""), soft_wrap=True)
        self._console.print()

    def _say(self, what: str) -> None:
        self._console.print(Text(f"· {what}"), soft_wrap=True)


__all__ = ["run_demo"]
