"""Base class of the simulated installations: processes on the virtual loop, the fake database, the trace and the shutdown."""

import asyncio
import itertools
import random
from collections.abc import Coroutine, Iterable
from typing import Any

from boathook.config import Settings
from boathook.delivery import keeper as keepers
from boathook.delivery.dispatcher import AttemptStuck
from boathook.domain.errors import BoathookError
from boathook.handlers.api import Boathook
from tests.simulation import patching
from tests.simulation.handlers import Killed
from tests.simulation.loop import PROCESS, Process, VirtualLoop
from tests.simulation.server import Rates, Server
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Transaction as Commit

QUIET_S = 240.0
"""Virtual seconds after the last fault within which everything has to end."""


class BaseWorld:
    """One simulation run: `process_loops` keeps its processes running, `scenario` injects the faults.

    Args:
        seed: seed of the random generators of the loop and the world.
        crash_rate: probability that a process is killed or frozen at a crash point.
        longest_pause_s: longest pause of a process that is frozen at a crash point.
        client_noticed_s: longest time until the server detects a dead client.
    """

    def __init__(
        self, seed: int, rates: Rates, *, crash_rate: float, longest_pause_s: float, client_noticed_s: float
    ) -> None:
        self.rng = random.Random(f"world {seed}")
        self.loop = VirtualLoop(random.Random(f"loop {seed}"))
        self.server = Server(self.loop, rates)
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.processes: list[Process] = []
        self.is_calm = False
        self._crash_rate = crash_rate
        self._longest_pause_s = longest_pause_s
        self._client_noticed_s = client_noticed_s
        self._numbers = itertools.count(1)
        self._process_tasks: list[asyncio.Task[Any]] = []

    def process_loops(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return a coroutine for each process that starts it again whenever it ends."""
        raise NotImplementedError

    async def scenario(self) -> None:
        """Run the seed's plan, and check the invariants."""
        raise NotImplementedError

    # The trace

    def note(self, what: str, *details: object) -> None:
        """Write a line of the trace."""
        process = PROCESS.get(self.loop.world)
        self.trace.append(f"{self.loop.now:10.4f} {process.name:<12} {what} {' '.join(map(str, details))}".rstrip())

    def _trace_commit(self, transaction: Commit) -> None:
        for (table, key), row in transaction.writes.items():
            if table == "delivery":
                old = self.server.tables.committed["delivery"].get(key)
                was = old.state if old else "-"
                now = f"{row.state} fence={row.fence} attempts={row.attempts} by={row.leased_by}" if row else "ended"
                self.note("commit", f"{str(key[0])[-4:]}/{key[1]}", was, "->", now)
            elif table in ("event", "delivery_archive"):
                self.note("commit", table, str(key[0] if isinstance(key, tuple) else key)[-4:])

    def _hear(self, event: str, fields: dict[str, object]) -> None:
        if event == "attempt_failed" and fields.get("code") in _OURS:
            self.violations.append(f"a simulated handler is wrong: {fields.get('error')}")
        self.note("log", event, *(f"{name}={value}" for name, value in fields.items() if name in _TOLD))

    # Processes

    def process(self, name: str) -> Process:
        """Return a new process."""
        process = Process(f"{name}.{next(self._numbers)}")
        process.on_death.append(lambda: self.server.client_died(process, self._client_noticed_s))
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Kill a process as SIGKILL does."""
        self.note("KILL", process.name)
        self.loop.kill(process)

    def _die(self, process: Process) -> None:
        self.kill(process)
        raise Killed

    def freeze(self, process: Process, seconds: float) -> None:
        """Pause a process as SIGSTOP does, and resume it after *seconds*."""
        if process.is_paused or process.is_dead:
            return
        self.note("PAUSE", process.name, f"{seconds:.2f}s")
        self.loop.pause(process)

        def go_on() -> None:
            if process.is_paused:
                self.note("RESUME", process.name)
                self.loop.resume(process)

        self.loop.call_later(seconds, go_on, context=self.loop.world.context)

    def _pass_point(self, name: str) -> None:
        process = PROCESS.get(self.loop.world)
        rate = self._crash_rate
        if self.is_calm or not rate or process is self.loop.world or self.rng.random() >= rate:
            return
        self.note("crash point", name)
        sometimes(f"a process died at {name}")
        if self.rng.random() < 0.3:
            self.freeze(process, self.rng.random() * self._longest_pause_s)
            return
        self.kill(process)
        raise Killed

    async def run_process(self, process: Process, coro: Coroutine[Any, Any, Any]) -> BaseException | None:
        """Run a process until it ends or is killed; return its error, if any."""
        task = self.loop.spawn(process, coro)
        ended = self.loop.create_future()

        def end(*_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        process.on_death.append(end)
        task.add_done_callback(end, context=self.loop.world.context)
        await ended
        if process.is_dead or not task.done():
            return None
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BoathookError | OSError | AttemptStuck | Killed):
            self.violations.append(f"{process.name} failed: {error!r}")
        process.is_dead = True
        self.server.client_died(process, 0.01)
        return error

    async def keep_keeper(self, settings: Settings, hooks: Iterable[Boathook], place: list[Process]) -> None:
        """Run keepers one after another; *place* holds the current one."""
        while True:
            place[0] = process = self.process("keeper")
            stop = asyncio.Event()
            await self.run_process(
                process, keepers.run_keeper(settings, hooks=tuple(hooks), stop=stop, beat=lambda: None)
            )
            await asyncio.sleep(0.1 + self.rng.random() * 0.5)

    # The run

    def run(self) -> None:
        """Run the plan to its end; `found` returns the violations."""
        try:
            self.begin()
            self.run_until_done(self.scenario())
        finally:
            self.unwind()

    def begin(self) -> None:
        """Start every process."""
        asyncio.set_event_loop(None)
        patching.listen(self._hear, self._pass_point)
        self._process_tasks += [self.loop.create_task(life) for life in self.process_loops()]

    def found(self) -> list[str]:
        """Return the violations found."""
        return self.violations + self.loop.surprises

    def unwind(self) -> None:
        """End all tasks and sessions of this run."""
        patching.listen(None, None)
        self.violations += self.loop.surprises
        self.server.is_closing = True
        self.server.wake()
        for session in list(self.server.sessions.values()):
            session.lose()
        self.server.tables.watchers.clear()
        try:
            self.loop.bury(self.processes)
        finally:
            self.loop.close()
            self.loop.surprises.clear()

    def check_process_tasks(self) -> None:
        """Record failures of the simulation itself as violations."""
        for task in self._process_tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.violations.append(f"the simulation itself failed: {error!r}")

    def run_until_done(self, what: Coroutine[Any, Any, None]) -> None:
        """Run the loop until *what* has ended."""
        try:
            self.loop.run_until_complete(what)
        except Exception as error:  # noqa: BLE001 any error is a finding of this run
            self.violations.append(f"the run failed: {error!r}")


_OURS = frozenset({"NameError", "AttributeError", "TypeError", "AssertionError", "KeyError"})
_TOLD = frozenset({"error", "leases", "code", "outcome", "delivery", "attempt"})
