"""The simulated installation: gateways, workers and keepers as processes, with senders, operators and faults.

All of boathook's own code in it is the production code: `Intake` and `EventStore`, `run_worker`, `run_keeper`, and the
operators' moves. Everything around it is drawn from the seed.
"""

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from boathook.config import Settings, load
from boathook.delivery import handler_executor as workers
from boathook.domain import ids
from boathook.domain.errors import BoathookError, SpoolUnavailable
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, NewEvent, Origin, ProofStrength, Receipt
from boathook.handlers.hooks import Hooks
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.intake import Intake, Mode
from boathook.ingest.spool_records import UNROUTED, decode
from boathook.spool.segment import read_segment
from boathook.spool.segment_store import SegmentStore, SpoolLimits
from boathook.spool.spool import Spool
from tests.simulation import patching
from tests.simulation.base_world import QUIET_S, BaseWorld
from tests.simulation.disk import Disk, Trouble
from tests.simulation.faults import MOVES, inject_faults, operate
from tests.simulation.gateway import URL, FakeStore, routed
from tests.simulation.handlers import LINE, NOTE, make_hook
from tests.simulation.invariants import Recorder
from tests.simulation.loop import Process
from tests.simulation.plan import Plan
from tests.simulation.sometimes import sometimes

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
    worker = {
        "lease_s": lease_s,
        "poll_interval_s": poll_s,
        "concurrency": concurrency,
        "timeout_s": timeout_s,
        "memory_mb": 0,
    }
    database = {
        "url": URL,
        "worker_connections": connections,
        "statement_timeout_s": statement_timeout_s,
        "connect_timeout_s": 2.0,
    }
    return load(None, {"database": database, "worker": worker, "server": {"drain_s": 2.0}})


class World(BaseWorld):
    """One run."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(
            plan.seed, plan.rates, crash_rate=plan.crash_rate, longest_pause_s=3 * plan.lease_s,
            client_noticed_s=plan.client_noticed_s,
        )  # fmt: skip
        self.plan = plan
        self.recorder = Recorder(self.server.tables, plan.max_attempts, violations=self.violations)
        self.server.tables.watchers.append(self._trace_commit)
        self.settings = _settings(
            plan.lease_s, plan.poll_s, plan.concurrency, plan.connections, plan.timeout_s, plan.statement_timeout_s
        )
        self.hooks = Hooks({"simulated": make_hook(self)})
        policy = msgspec.json.encode(plan.retry).decode()
        self.server.tables.policies = {f"handler:{name}": policy for name in (NOTE, LINE)}
        declared = self.hooks.routes(timeout_s=plan.timeout_s, retries=self.settings.retry_defaults())
        routes = [route for each in declared.values() for route in each]
        self.server.tables.routes = msgspec.json.encode(routes).decode()
        self.disk = Disk(self.rng, lambda: patching.BEGINNING.timestamp() + self.loop.now, self.loop.world, self._die)
        self.disk.trouble = Trouble(full=plan.disk_full, failing_sync=plan.disk_failing, died=plan.disk_died)
        self.gateways = [Gateway(self.process("gateway")) for _ in range(plan.gateways)]
        self.workers = [Worker(f"worker-{n}") for n in range(plan.workers)] + [Worker("suspects", only_suspects=True)]
        self.keepers = [[self.loop.world] for _ in range(plan.keepers)]
        self.unsent = 0

    def lose_power(self) -> None:
        """Cut the power of the gateways' host."""
        self.note("POWER CUT")
        for gateway in self.gateways:
            if not gateway.process.is_dead:
                self.kill(gateway.process)
        self.disk.lose_power()

    # Gateways

    async def _keep_gateway(self, gateway: Gateway) -> None:
        while True:
            gateway.process = self.process("gateway")
            gateway.accept, gateway.stop = None, asyncio.Event()
            await self.run_process(gateway.process, self._serve(gateway))
            await asyncio.sleep(0.1 + self.rng.random())

    async def _serve(self, gateway: Gateway) -> None:
        plan, store = self.plan, FakeStore(self.plan)
        reaching = asyncio.create_task(store.keep_connecting())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(reaching)
        arrivals = EventBuilder(Router((), UNROUTED), store.read_router)
        intake = Intake(
            store, announce=store.announce, reroute=arrivals.reroute, buffer=self._spool(gateway.process),
            within_s=plan.after_s, committers=plan.committers, batch=plan.batch, queue=plan.queue,
        )  # fmt: skip
        await intake.start(is_store_unavailable=not reaching.done())
        gateway.accept = functools.partial(self._take, gateway.process, arrivals, intake)
        await gateway.stop.wait()
        gateway.accept = None
        sometimes("a gateway was stopped with a full spool", if_=intake.mode is not Mode.DIRECT)
        await intake.drain()
        reaching.cancel()
        await store.close()

    def _spool(self, process: Process) -> Spool | None:
        if not self.plan.has_spool:
            return None
        bounds = SpoolLimits(
            max_bytes=self.plan.spool_bytes, segment_bytes=self.plan.segment_bytes, keep_s=self.plan.keep_s
        )
        name = f"{int(process.name.rpartition('.')[2]):020d}"
        return Spool(SegmentStore(ROOT, bounds, self.disk, name=name), run=self._in_thread, queue=32)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        await asyncio.sleep(self.rng.random() * 0.01)
        return call()

    async def _take(self, process: Process, arrivals: EventBuilder, intake: Intake, event: NewEvent) -> Receipt:
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
        self._process_tasks.append(task)

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
        """A gateway with a working disk accepts events with or without the database, until it stops or is full."""
        is_well = not (self.plan.disk_full or self.plan.disk_failing)
        is_ours = "the file exists" in str(error) or (is_well and not any(word in str(error) for word in _FULL))
        if isinstance(error, SpoolUnavailable) and is_ours:
            self.recorder.violations.append(f"C11: an event was refused although the spool's disk is well: {error}")

    def _event(self, number: int, body: bytes) -> NewEvent:
        now_ms = int(1_772_600_000_000 + self.loop.now * 1000)
        key = f"evt_{number}"
        return NewEvent(
            id=ids.make(now_ms, self.rng.getrandbits(74)), source="shop", application=None, type="thing.done", dedup_key=key,
            key_hash=UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]), replay_hash=None, grade=ProofStrength.BODY,
            origin=Origin.RECEIVED, headers="{}", content_type="application/json", body=body,
            body_sha256=hashlib.sha256(body).digest(),
        )  # fmt: skip

    # Workers and keepers

    async def _keep_worker(self, slot: Worker) -> None:
        while True:
            process = slot.process = self.process(slot.name)
            slot.stop = asyncio.Event()
            worker_id = process.name
            await self.run_process(
                process,
                workers.run_worker(
                    self.settings, self.hooks, worker_id=worker_id, only_suspects=slot.only_suspects, stop=slot.stop,
                    beat=lambda: None, predecessors=tuple(slot.predecessors),
                ),
            )  # fmt: skip
            slot.predecessors = [*slot.predecessors, worker_id][-20:]
            await asyncio.sleep(0.1 + self.rng.random() * 0.5)

    # The run

    def process_loops(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Return what keeps each process running."""
        yield from (self._keep_gateway(gateway) for gateway in self.gateways)
        yield from (self._keep_worker(worker) for worker in self.workers)
        yield from (self.keep_keeper(self.settings, self.hooks, place) for place in self.keepers)

    def go_on(self, seconds: float) -> None:
        """Wait for an amount of virtual time."""
        self.run_until_done(asyncio.sleep(seconds))

    def heal_and_conclude(self) -> None:
        """End all faults, let everything end, and check the final state."""
        self.run_until_done(self._calm_down())
        self.run_until_done(self._judge_end(is_quiet=True))

    async def scenario(self) -> None:
        """Send events and inject faults; then everything has to end."""
        plan = self.plan
        for number in range(plan.events):
            self.unsent += 1
            self._process_tasks.append(self.loop.create_task(self._send(number, self.rng.random() * plan.work_s)))
        moves = [kind for kind in plan.faults if kind in MOVES]
        chaos = [
            self.loop.create_task(inject_faults(self)),
            self.loop.create_task(operate(self, moves, plan.fault_every_s)),
        ]
        await asyncio.sleep(plan.work_s)
        if plan.is_healing:
            for task in chaos:
                task.cancel()
            await self._calm_down()
        else:
            await asyncio.sleep(plan.work_s)
        await self._judge_end(is_quiet=plan.is_healing)

    async def _judge_end(self, *, is_quiet: bool) -> None:
        self.check_process_tasks()
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
