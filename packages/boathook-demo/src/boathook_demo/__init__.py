"""Runs the demo: starts boathook, sends it realistic traffic, and compares the store with the senders' own record.

folder          the demo's folder and configuration, and the `boathook serve` that runs in it
sample_events   events of four senders, and the record of requests and responses
traffic         sends the events, with duplicates, disorder, conflicts and forgeries
handlers        the event handlers of the demo
customer        an application with endpoints, its receiver, and the receiver's record
systems         the four ready-made apps, each with its own simulator
services        RabbitMQ and Redis beside PostgreSQL, where they are installed
rabbitmq        brokers from the distribution's package; redis_server: the same for Redis
outage          stops PostgreSQL in the middle, so that a broker takes the events
reconciliation  compares the senders' record with the store and the effects
screen          the output, and suggestions for next steps
"""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from boathook import config
from boathook.db.database import Database
from boathook.domain.errors import BoathookError
from boathook.server import with_apps
from boathook.service.operating import integrity
from boathook_demo import customer, folder, reconciliation, screen, services
from boathook_demo.customer import Receiver
from boathook_demo.folder import Folder, ServerProcess
from boathook_demo.outage import Outage
from boathook_demo.sample_events import SenderLog
from boathook_demo.screen import Screen
from boathook_demo.services import Choice, Services
from boathook_demo.systems import AppSimulators
from boathook_demo.traffic import PROVIDERS, Traffic
from boathook_embedded.server import EmbeddedServer

DEFAULT_DURATION_S = 180.0
"""How long the demo runs by default."""
_DRAIN_S = 60.0
_DRAIN_POLL_S = 0.1


def run_demo(*, seconds: float | None, data_dir: Path, port: int, console: Console, buffer: str = "auto") -> int:
    """Run the demo and return its exit code: 0 if the store is consistent and matches the senders' record, else 1.

    Ctrl-C and SIGTERM end the traffic early, but the checks still run; a second signal ends everything immediately.

    Args:
        seconds: how long to run before stopping; None runs for three minutes and then serves until Ctrl-C.
        data_dir: the demo's own folder, emptied at the start; a folder with other files in it is refused.
        port: the port on loopback; if it is taken, the next free one is used.
        console: where all output goes.
        buffer: ``auto`` runs RabbitMQ and Redis where they are installed, and says what is left out. ``rabbitmq`` also
            stops PostgreSQL in the middle; the four systems are left out, because their simulators read it. ``disk``
            runs neither.

    Raises:
        ConfigError: the folder does not belong to a demo, or PostgreSQL's binaries, RabbitMQ or its client are not
            installed.
        BoathookError: PostgreSQL, the broker or boathook does not start, or ended while it was being used.
    """
    choice = services.chosen(buffer)
    try:
        with folder.claim(data_dir) as own:
            return asyncio.run(_Demo(own, seconds, port, console, choice, has_outage=buffer == "rabbitmq").run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped immediately; the consistency check did not run")
        return 1


@dataclass(frozen=True, slots=True)
class _Resources:
    """Resources of one demo run."""

    database: Database
    serving: ServerProcess
    traffic: Traffic
    sender_log: SenderLog
    screen: Screen
    receiver: Receiver
    systems: AppSimulators | None
    """None if PostgreSQL is stopped in the middle."""
    outage: Outage | None
    recipients: dict[str, str]
    """The recipients of the customer's endpoints, by path; empty if the run was stopped before it began."""
    services: Services
    secrets: dict[str, str] = field(repr=False)
    """The secrets of the demo's own senders, by source."""


class _Demo:
    """One demo run, from an empty folder to the result."""

    def __init__(
        self, own: Folder, seconds: float | None, port: int, console: Console, choice: Choice, *, has_outage: bool
    ) -> None:
        self._folder = own
        self._seconds = seconds
        self._length_s = DEFAULT_DURATION_S if seconds is None else seconds
        self._wanted_port = port
        self._console = console
        self._choice = choice
        self._has_outage = has_outage
        self._stop_requested = asyncio.Event()
        # Interrupting the start would leave PostgreSQL running.
        self._can_cancel = False

    async def run(self) -> int:
        """Set up, run and check; everything started here is stopped in any case."""
        with self._signals():
            await folder.empty(self._folder, self._say)
            port = folder.find_port(self._wanted_port)
            if self._wanted_port not in {0, port}:
                self._say(f"port {self._wanted_port} is taken, so this demo uses {port}")
            for sentence in self._choice.left_out:
                self._say(f"left out: {sentence}")
            running = services.running(self._folder, self._choice, self._say)
            async with running as beside, self._set_up(port, beside) as resources:
                if self._stop_requested.is_set():
                    self._say("stopped before anything was sent")
                    return 0
                self._can_cancel = True
                await self._play(resources)
                is_consistent = await self._check(resources)
                is_serving = self._seconds is None and not self._stop_requested.is_set()
                self._advise(port, resources.secrets["github"], is_serving=is_serving)
                if is_serving:
                    await self._wait_for_end(resources, None)
                self._say("stopping")
                code = await resources.serving.stop()
            if code != 0:
                self._say(f"boathook serve ended with exit code {code}:\n{resources.serving.log_tail()}")
            return 0 if is_consistent and code == 0 else 1

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def on_signal() -> None:
            if self._stop_requested.is_set() and self._can_cancel and task is not None:
                task.cancel()
            self._stop_requested.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        yield
        for number in numbers:
            loop.remove_signal_handler(number)

    @contextlib.asynccontextmanager
    async def _set_up(self, port: int, beside: Services) -> AsyncIterator[_Resources]:
        secrets = self._folder.write_files(
            port, broker=beside.broker, redis=beside.redis, has_apps=not self._has_outage
        )
        server = await EmbeddedServer.start(self._folder.data, progress=self._say)
        outage = None
        if self._has_outage:
            outage = Outage(server, self._folder.data, self._length_s, self._stop_requested, self._say)
        try:
            database = await Database.open(server.url, purpose="demo", size=2)
            try:
                await reconciliation.create_tables(database)
                self._say(f"starting boathook serve on http://127.0.0.1:{port} (its log: {self._folder.log})")
                receiver = Receiver()
                url = server.url if outage else ""
                async with receiver.listen(), folder.serve(self._folder, port, url) as process:
                    await self._await_ready(process)
                    is_left = self._stop_requested.is_set()
                    recipients = {} if is_left else await customer.set_up(database, self._folder, receiver)
                    if not is_left:
                        password = await customer.create_operator(database, self._folder)
                        console_url = f"http://127.0.0.1:{port}/console"
                        self._say(f"watch it on {console_url} (name {customer.OPERATOR_NAME}, password {password})")
                    sender_log = SenderLog(PROVIDERS)
                    rng = random.Random(time.time_ns())
                    traffic = Traffic(port, secrets, sender_log, rng)
                    screen = Screen(self._console, database, sender_log)
                    systems = None if outage else AppSimulators(self._folder, port, self._length_s, self._say)
                    yield _Resources(
                        database=database,
                        serving=process,
                        traffic=traffic,
                        sender_log=sender_log,
                        screen=screen,
                        receiver=receiver,
                        systems=systems,
                        outage=outage,
                        recipients=recipients,
                        services=beside,
                        secrets=secrets,
                    )
            finally:
                await database.close()
        finally:
            await (outage or server).stop()

    async def _await_ready(self, process: ServerProcess) -> None:
        """Wait until boathook is ready, or until the user asks to stop."""
        ready, leave = asyncio.create_task(process.wait_until_ready()), asyncio.create_task(self._stop_requested.wait())
        await asyncio.wait({ready, leave}, return_when=asyncio.FIRST_COMPLETED)
        leave.cancel()
        if ready.done():
            ready.result()
        ready.cancel()
        await asyncio.gather(ready, leave, return_exceptions=True)

    async def _play(self, resources: _Resources) -> None:
        """Run the senders for the configured time, and wait until everything they caused has ended."""
        is_over = asyncio.Event()
        title = f"playing {self._length_s:.0f} seconds of real life"
        self._say(f"{title}; Ctrl-C ends it early, and the consistency check still runs")
        resources.screen.footer = "Ctrl-C stops the senders, runs the consistency check and stops everything"
        showing = asyncio.create_task(resources.screen.show(is_over))
        playing = asyncio.create_task(resources.traffic.play())
        systems = asyncio.create_task(_play_systems(resources))
        outage = asyncio.create_task(_play_outage(resources))
        try:
            await self._wait_for_end(resources, self._length_s)
            await outage
            resources.traffic.stop()
            await playing
            resources.screen.footer = "the senders have stopped; waiting for the four systems' stories to end"
            await systems
            resources.screen.footer = "all have stopped; waiting for what is still to be retried"
            await self._drain(resources)
        finally:
            is_over.set()
            tasks = (playing, systems, outage)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await showing

    async def _wait_for_end(self, resources: _Resources, length_s: float | None) -> None:
        """Wait until the time is over, or until the user asks to stop."""
        exited = asyncio.create_task(resources.serving.wait())
        leave = asyncio.create_task(self._stop_requested.wait())
        await asyncio.wait({exited, leave}, timeout=length_s, return_when=asyncio.FIRST_COMPLETED)
        is_over = exited.done()
        for task in (exited, leave):
            task.cancel()
        await asyncio.gather(exited, leave, return_exceptions=True)
        if is_over:
            raise BoathookError(f"boathook serve ended while it was being used:\n{resources.serving.log_tail()}")

    async def _drain(self, resources: _Resources) -> None:
        """Wait until no delivery is open, or until none has ended for a minute; the check reports those still open."""
        open_count, deadline = -1, time.monotonic() + _DRAIN_S
        while (still_open := await reconciliation.count_open(resources.database)) and time.monotonic() < deadline:
            if still_open != open_count:
                open_count, deadline = still_open, time.monotonic() + _DRAIN_S
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _check(self, resources: _Resources) -> bool:
        """Print the consistency check and the senders' record, and return whether both are consistent."""
        complaints = reconciliation.compare(
            resources.sender_log, await reconciliation.read_stored(resources.database, self._folder.mailbox)
        )
        delivered = await reconciliation.read_delivered(resources.database)
        by_path = {path: delivered.get(recipient, set()) for path, recipient in resources.recipients.items()}
        complaints += customer.compare(resources.receiver, by_path, may_repeat=resources.sender_log.had_outage)
        if still_open := await reconciliation.count_open(resources.database):
            complaints.insert(
                0, f"not finished yet: {still_open} deliveries are open, and none has ended for {_DRAIN_S:.0f} seconds"
            )
        settings, _ = with_apps(config.load(self._folder.configuration))
        report = await integrity.check(resources.database, settings, is_deep=True)
        screen.print_books(self._console, report, resources.sender_log, complaints, resources.receiver.records)
        is_right = report.is_consistent and not complaints
        if resources.systems is not None:
            screen.print_systems(self._console, resources.systems.outcomes)
            is_right = is_right and resources.systems.are_right
        if resources.outage is not None:
            resources.outage.judge(resources.sender_log)
            screen.print_outage(self._console, resources.outage)
            is_right = is_right and not resources.outage.complaints
        used = await services.report(resources.services, resources.serving)
        screen.print_services(self._console, used)
        return is_right and all(is_used for _, is_used in used)

    def _advise(self, port: int, secret: str, *, is_serving: bool) -> None:
        self._console.print()
        has_apps = not self._has_outage
        for line in screen.write(self._folder, port, secret, is_serving=is_serving, has_apps=has_apps):
            # Shell lines must be neither wrapped nor coloured.
            self._console.print(Text(line, style="dim" if line.startswith("#") else ""), soft_wrap=True)
        self._console.print()

    def _say(self, line: str) -> None:
        self._console.print(Text(f"· {line}"), soft_wrap=True)


async def _play_systems(resources: _Resources) -> None:
    if resources.systems is not None:
        await resources.systems.play()


async def _play_outage(resources: _Resources) -> None:
    if resources.outage is not None:
        await resources.outage.play(resources.serving, resources.sender_log)


__all__ = ["run_demo"]
