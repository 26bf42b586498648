"""The simulated installation: gateways, workers and keepers as processes, senders, operators, and what befalls them.

All of boathook's own code in it is the production code: `Intake` and `EventStore`, `run_worker`, `run_keeper`, and the
operators' moves. What stands around it is drawn from the seed.
"""

import asyncio
import contextlib
import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from boathook.config import Settings, load
from boathook.dispatch import keeper as keepers
from boathook.dispatch import worker as workers
from boathook.domain import ids
from boathook.domain.errors import BoathookError, SpoolUnavailable
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Grade, NewEvent, Origin, Receipt
from boathook.handlers.hooks import Hooks
from boathook.inbound.arrival import Arrivals
from boathook.inbound.intake import Intake, Mode
from boathook.inbound.records import UNROUTED, decode
from boathook.spool.segment import read_segment
from boathook.spool.shelf import Bounds, Shelf
from boathook.spool.spool import Spool
from tests.simulation import patching
from tests.simulation.disk import Disk, Trouble
from tests.simulation.faults import befall, operate
from tests.simulation.gateway import URL, Journal, routed
from tests.simulation.handlers import LINE, NOTE, Killed, make_hook
from tests.simulation.invariants import Recorder
from tests.simulation.loop import PROCESS, Process, VirtualLoop
from tests.simulation.plan import Plan
from tests.simulation.server import Server
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Transaction as Commit

QUIET_S = 240.0
"""Virtual seconds after the last fault within which everything has to end."""
ROOT = Path("/spool")


@dataclass
class Gateway:
    """A gateway process with its intake."""

    process: Process
    accept: Callable[[NewEvent], Coroutine[Any, Any, Receipt]] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Worker:
    """A worker's slot, and the process in it."""

    name: str
    only_suspects: bool = False
    process: Process | None = None
    stop: asyncio.Event | None = None
    predecessors: list[str] = field(default_factory=list)


@functools.lru_cache(maxsize=64)
def _settings(
    lease_s: float, poll_s: float, concurrency: int, connections: int, timeout_s: float, statement_timeout_s: float
) -> Settings:
    worker = {"lease_s": lease_s, "poll_s": poll_s, "concurrency": concurrency, "timeout_s": timeout_s, "memory_mb": 0}
    database = {
        "url": URL,
        "worker_connections": connections,
        "statement_timeout_s": statement_timeout_s,
        "connect_timeout_s": 2.0,
    }
    return load(None, {"database": database, "worker": worker, "server": {"drain_s": 2.0}})


class World:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"world {plan.seed}")
        self.loop = VirtualLoop(random.Random(f"loop {plan.seed}"))
        self.server = Server(self.loop, plan.rates)
        self.recorder = Recorder(self.server.tables, plan.max_attempts)
        self.server.tables.watchers.append(self._trace_commit)
        self.settings = _settings(
            plan.lease_s, plan.poll_s, plan.concurrency, plan.connections, plan.timeout_s, plan.statement_timeout_s
        )
        self.hooks = Hooks({"simulated": make_hook(self)})
        policy = msgspec.json.encode(plan.retry).decode()
        self.server.tables.policies = {f"handler:{name}": policy for name in (NOTE, LINE)}
        routes = [route for each in self.hooks.routes(timeout_s=plan.timeout_s).values() for route in each]
        self.server.tables.routes = msgspec.json.encode(routes).decode()
        self.disk = Disk(self.rng, lambda: patching.BEGINNING.timestamp() + self.loop.now, self.loop.world, self._die)
        self.disk.trouble = Trouble(full=plan.disk_full, failing_sync=plan.disk_failing, died=plan.disk_died)
        self.processes: list[Process] = []
        self._numbers = itertools.count(1)
        self.gateways = [Gateway(self.process("gateway")) for _ in range(plan.gateways)]
        self.workers = [Worker(f"worker-{n}") for n in range(plan.workers)] + [Worker("suspects", only_suspects=True)]
        self.keepers = [[self.loop.world] for _ in range(plan.keepers)]
        self.trace: list[str] = []
        self.is_calm = False
        self.unsent = 0
        self._lives: list[asyncio.Task[Any]] = []

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
            elif table in ("event", "outcome"):
                self.note("commit", table, str(key[0] if isinstance(key, tuple) else key)[-4:])

    def _hear(self, event: str, fields: dict[str, object]) -> None:
        if event == "attempt_failed" and fields.get("code") in _OURS:
            self.recorder.violations.append(f"a simulated handler is wrong: {fields.get('error')}")
        self.note("log", event, *(f"{name}={value}" for name, value in fields.items() if name in _TOLD))

    # Processes

    def process(self, name: str) -> Process:
        """Return a process to be started."""
        process = Process(f"{name}.{next(self._numbers)}")
        process.on_death.append(lambda: self.server.client_died(process, self.plan.client_noticed_s))
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.note("KILL", process.name)
        self.loop.kill(process)

    def _die(self, process: Process) -> None:
        self.kill(process)
        raise Killed

    def lose_power(self) -> None:
        """Cut the power of the gateways' host."""
        self.note("POWER CUT")
        for gateway in self.gateways:
            if not gateway.process.is_dead:
                self.kill(gateway.process)
        self.disk.lose_power()

    def freeze(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
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
        rate = self.plan.crash_rate
        if self.is_calm or not rate or process is self.loop.world or self.rng.random() >= rate:
            return
        self.note("crash point", name)
        sometimes(f"a process died at {name}")
        if self.rng.random() < 0.3:
            self.freeze(process, self.rng.random() * 3 * self.plan.lease_s)
            return
        self.kill(process)
        raise Killed

    async def _live(self, process: Process, coro: Coroutine[Any, Any, Any]) -> BaseException | None:
        """Run a process until it ends or is killed; returns what it ended with."""
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
        if error is not None and not isinstance(error, BoathookError | OSError | workers.Stuck | Killed):
            self.recorder.violations.append(f"{process.name} failed: {error!r}")
        process.is_dead = True
        self.server.client_died(process, 0.01)
        return error

    # Gateways

    async def _keep_gateway(self, gateway: Gateway) -> None:
        while True:
            gateway.process = self.process("gateway")
            gateway.accept, gateway.stop = None, asyncio.Event()
            await self._live(gateway.process, self._serve(gateway))
            await asyncio.sleep(0.1 + self.rng.random())

    async def _serve(self, gateway: Gateway) -> None:
        plan, journal = self.plan, Journal(self.plan)
        reaching = asyncio.create_task(journal.keep_reaching())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(reaching)
        arrivals = Arrivals(Router((), UNROUTED), journal.read_router)
        intake = Intake(
            journal, announce=journal.announce, route=arrivals.route_again, spool=self._spool(gateway.process),
            within_s=plan.after_s, lanes=plan.lanes, batch=plan.batch, queue=plan.queue,
        )  # fmt: skip
        await intake.start(is_away=not reaching.done())
        gateway.accept = functools.partial(self._take, gateway.process, arrivals, intake)
        await gateway.stop.wait()
        gateway.accept = None
        sometimes("a gateway was stopped with a full spool", if_=intake.mode is not Mode.DIRECT)
        await intake.drain()
        reaching.cancel()
        await journal.close()

    def _spool(self, process: Process) -> Spool | None:
        if not self.plan.has_spool:
            return None
        bounds = Bounds(max_bytes=self.plan.spool_bytes, segment_bytes=self.plan.segment_bytes, keep_s=self.plan.keep_s)
        name = f"{int(process.name.rpartition('.')[2]):020d}"
        return Spool(Shelf(ROOT, bounds, self.disk, name=name), run=self._in_thread, queue=32)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        await asyncio.sleep(self.rng.random() * 0.01)
        return call()

    async def _take(self, process: Process, arrivals: Arrivals, intake: Intake, event: NewEvent) -> Receipt:
        (known,) = routed(arrivals.router, [event])
        self.recorder.handed_in(process.name, event)
        receipt = await intake.accept(known)
        sometimes(f"an event was taken while {intake.mode}")
        return receipt

    # Senders

    async def _send(self, number: int, at: float) -> None:
        body = self._body(number)
        await asyncio.sleep(at)
        tries = 1 + (self.rng.random() < self.plan.duplicates) + (self.rng.random() < self.plan.duplicates)
        jobs = [self._insist(number, body, n * self.rng.random()) for n in range(tries)]
        if self.rng.random() < self.plan.conflicts:
            jobs.append(self._insist(number, body.replace(b"}", b',"changed":1}', 1), self.rng.random()))
        await asyncio.gather(*jobs)
        self.unsent -= 1

    def bring(self, number: int, who: int, note: list[str], line: list[str]) -> None:
        """Send one event until it is answered."""
        body = msgspec.json.encode({"n": number, "who": f"who{who}", NOTE: note, LINE: line})
        self.unsent += 1
        task = self.loop.create_task(self._insist(number, body, 0.0))
        task.add_done_callback(self._answered, context=self.loop.world.context)
        self._lives.append(task)

    def _answered(self, _task: object) -> None:
        self.unsent -= 1

    def _body(self, number: int) -> bytes:
        def script() -> list[str]:
            if self.rng.random() < self.plan.poison:
                return ["kill"] * 9
            return [self.rng.choice(self.plan.scripts) for _ in range(self.rng.randint(1, 4))]

        content = {
            "n": number,
            "who": f"who{self.rng.randrange(self.plan.order_keys)}",
            NOTE: script(),
            LINE: script(),
        }
        return msgspec.json.encode(content)

    async def _insist(self, number: int, body: bytes, wait_s: float) -> None:
        """Send until a 2xx comes, as senders do, each time as another request."""
        await asyncio.sleep(wait_s)
        while True:
            event = self._event(number, body)
            gateway = self.rng.choice(self.gateways)
            if gateway.accept is not None and not gateway.process.is_dead:
                self.recorder.sent[event.id] = event
                receipt = await self._ask(gateway, event)
                if receipt is not None:
                    self.note("2xx", f"{str(event.id)[-4:]}", type(receipt).__name__, str(receipt.event_id)[-4:])
                    first = self.server.tables.committed["delivery"].get((receipt.event_id, 0))
                    is_leased = first is not None and first.state == "leased"
                    sometimes(
                        "a duplicate came while its event was being handled",
                        if_=is_leased and receipt.event_id != event.id,
                    )
                    is_spooled = isinstance(receipt, Accepted) and receipt.is_spooled
                    self.recorder.told(event, receipt.event_id, is_spooled=is_spooled or self.plan.has_spool)
                    return
            await asyncio.sleep(0.3 + self.rng.random() * 2)

    async def _ask(self, gateway: Gateway, event: NewEvent) -> Receipt | None:
        assert gateway.accept is not None
        answer: asyncio.Future[Receipt | None] = self.loop.create_future()

        async def handle(accept: Callable[[NewEvent], Coroutine[Any, Any, Receipt]]) -> None:
            try:
                receipt: Receipt | None = await accept(event)
            except BoathookError as error:
                self.note("5xx", str(event.id)[-4:], repr(error)[:80])
                self._judge_refusal(error)
                receipt = None
            if not answer.done():
                answer.set_result(receipt)

        self.loop.spawn(gateway.process, handle(gateway.accept))
        try:
            async with asyncio.timeout(10):
                return await answer
        except TimeoutError:
            return None

    def _judge_refusal(self, error: BoathookError) -> None:
        """A gateway whose disk is well takes events whether the journal is there or not, until it stops or is full."""
        is_well = not (self.plan.disk_full or self.plan.disk_failing)
        is_ours = "the file exists" in str(error) or (is_well and not any(word in str(error) for word in _FULL))
        if isinstance(error, SpoolUnavailable) and is_ours:
            self.recorder.violations.append(f"C11: an event was refused although the spool's disk is well: {error}")

    def _event(self, number: int, body: bytes) -> NewEvent:
        now_ms = int(1_772_600_000_000 + self.loop.now * 1000)
        key = f"evt_{number}"
        return NewEvent(
            id=ids.make(now_ms, self.rng.getrandbits(74)), source="shop", application=None, type="thing.done", dedup_key=key,
            key_hash=UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]), replay_hash=None, grade=Grade.BODY,
            origin=Origin.RECEIVED, headers="{}", content_type="application/json", body=body,
            body_sha256=hashlib.sha256(body).digest(),
        )  # fmt: skip

    # Workers and keepers

    async def _keep_worker(self, slot: Worker) -> None:
        while True:
            process = slot.process = self.process(slot.name)
            slot.stop = asyncio.Event()
            worker_id = process.name
            await self._live(
                process,
                workers.run_worker(
                    self.settings, self.hooks, worker_id=worker_id, only_suspects=slot.only_suspects, stop=slot.stop,
                    beat=lambda: None, predecessors=tuple(slot.predecessors),
                ),
            )  # fmt: skip
            slot.predecessors = [*slot.predecessors, worker_id][-20:]
            await asyncio.sleep(0.1 + self.rng.random() * 0.5)

    async def _keep_keeper(self, place: list[Process]) -> None:
        while True:
            process = self.process("keeper")
            place[0] = process
            stop = asyncio.Event()
            await self._live(
                process, keepers.run_keeper(self.settings, hooks=tuple(self.hooks), stop=stop, beat=lambda: None)
            )
            await asyncio.sleep(0.1 + self.rng.random() * 0.5)

    # The run

    def run(self) -> None:
        """Run the plan to its end; `found` tells what was wrong."""
        try:
            self.begin()
            self._conclude_with(self._follow_plan())
        finally:
            self.unwind()

    def begin(self) -> None:
        """Start every process."""
        asyncio.set_event_loop(None)
        patching.listen(self._hear, self._pass_point)
        for job in (
            *(self._keep_gateway(gateway) for gateway in self.gateways),
            *(self._keep_worker(worker) for worker in self.workers),
            *(self._keep_keeper(place) for place in self.keepers),
        ):
            self._lives.append(self.loop.create_task(job))

    def go_on(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        self._conclude_with(asyncio.sleep(seconds))

    def heal_and_conclude(self) -> None:
        """End all faults, give everything the time to end, and judge what is left."""
        self._conclude_with(self._calm_down())
        self._conclude_with(self._judge_end(is_quiet=True))

    def found(self) -> list[str]:
        """Return what was found to be wrong."""
        return self.recorder.violations + self.loop.surprises

    def unwind(self) -> None:
        """Let all that was started come to an end, so that nothing of it is left."""
        patching.listen(None, None)
        self.recorder.violations += self.loop.surprises
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

    def _conclude_with(self, what: Coroutine[Any, Any, None]) -> None:
        try:
            self.loop.run_until_complete(what)
        except Exception as error:  # noqa: BLE001 whatever it is, it is what this run has found
            self.recorder.violations.append(f"the run failed: {error!r}")

    async def _follow_plan(self) -> None:
        plan = self.plan
        for number in range(plan.events):
            self.unsent += 1
            self._lives.append(self.loop.create_task(self._send(number, self.rng.random() * plan.work_s)))
        chaos = [self.loop.create_task(befall(self)), self.loop.create_task(operate(self))]
        await asyncio.sleep(plan.work_s)
        if plan.is_healing:
            for task in chaos:
                task.cancel()
            await self._calm_down()
        else:
            await asyncio.sleep(plan.work_s)
        await self._judge_end(is_quiet=plan.is_healing)

    async def _judge_end(self, *, is_quiet: bool) -> None:
        for task in self._lives:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.recorder.violations.append(f"the simulation itself failed: {error!r}")
        if is_quiet and self._is_spooled():
            self.recorder.violations.append(f"C11: events are still in the spool {QUIET_S:g} s after all faults")
        self.lose_power()
        self.recorder.conclude(self._spooled(), is_quiet=is_quiet)

    async def _calm_down(self) -> None:
        self.is_calm = True
        self.note("HEAL")
        self.server.heal()
        self.disk.trouble = Trouble()
        for process in self.processes:
            self.loop.resume(process)
            process.clock_ahead = timedelta()
        deadline = self.loop.now + QUIET_S
        while (self.unsent or self.recorder.unended() or self._is_spooled()) and self.loop.now < deadline:  # noqa: ASYNC110 virtual
            await asyncio.sleep(1.0)
        if self.unsent:
            self.recorder.violations.append(
                f"C11: {self.unsent} senders were not answered {QUIET_S:g} s after all faults"
            )
        self.note("QUIET")

    def _is_spooled(self) -> bool:
        return any(read_segment(data).records for _, data in self.disk.waiting())

    def _spooled(self) -> set[UUID]:
        """Return the keys of what could be read from the spool after a power cut."""
        return {
            decode(record.payload).key_hash for _, data in self.disk.waiting() for record in read_segment(data).records
        }


_FULL = ("spool is full", "too many events are waiting")
_OURS = frozenset({"NameError", "AttributeError", "TypeError", "AssertionError", "KeyError"})
_TOLD = frozenset({"error", "leases", "code", "outcome", "delivery", "attempt"})
