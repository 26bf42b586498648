"""The simulated sending side: senders and keepers as processes, with a publisher, endpoints, operators and faults.

`run_sender` with its queues, recorder, executor, `run_keeper`, `EventStore` and the operators' moves are the production
code; endpoints and the wire are scripted, in place of libcurl.
"""

import asyncio
import functools
import hashlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.config import Settings, load
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.secret_box import SecretBox
from boathook.delivery import sender as senders
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.errors import DatabaseError
from boathook.domain.model import NewDelivery, NewEvent, Origin, ProofStrength
from tests.simulation.base_world import QUIET_S, BaseWorld
from tests.simulation.faults import MOVES, inject_server_fault, operate
from tests.simulation.gateway import URL
from tests.simulation.loop import Process
from tests.simulation.sending.invariants import SendingRecorder
from tests.simulation.sending.plan import Plan, Receiver
from tests.simulation.sending.receivers import EndpointReceiver, Network
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Endpoint, Transaction

_KEY: Final = "a key of nobody but this simulation"
_SECRET: Final = "whsec_" + "c2ltdWxhdGVkLXNlY3JldC1zaW11bGF0ZWQ="


@dataclass
class Sender:
    """A sender's slot, and the process in it."""

    process: Process | None = None
    stop: asyncio.Event | None = None
    predecessors: list[str] = field(default_factory=list)


@functools.lru_cache(maxsize=256)
def _encrypted(number: int) -> bytes:
    return SecretBox([_KEY]).encrypt(_SECRET, f"endpoint_secret:{ids.show(ids.ENDPOINT, UUID(int=number))}")


def _settings(plan: Plan) -> Settings:
    outbound = {
        "encryption_keys": [_KEY],
        "concurrency": plan.concurrency,
        "endpoint_concurrency": plan.per_endpoint,
        "timeout_s": plan.timeout_s,
        "breaker_after": plan.breaker_after,
        "breaker_pause_s": plan.breaker_pause_s,
        "breaker_max_pause_s": 4 * plan.breaker_pause_s,
    }
    database = {"url": URL, "statement_timeout_s": plan.statement_timeout_s, "connect_timeout_s": 2.0}
    worker = {"lease_s": plan.lease_s, "poll_interval_s": plan.poll_s}
    return load(None, {"database": database, "worker": worker, "server": {"drain_s": 2.0}, "outbound": outbound})


class SendingWorld(BaseWorld):
    """One run of sending."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(
            plan.seed, plan.rates, crash_rate=plan.crash_rate, longest_pause_s=3 * plan.lease_s,
            client_noticed_s=plan.client_noticed_s,
        )  # fmt: skip
        self.plan = plan
        self.settings = _settings(plan)
        self.recorder = SendingRecorder(
            self.server.tables, plan.max_attempts, violations=self.violations, now=self.loop.time, is_plain=plan.is_plain,
            is_exact=plan.is_exact,
        )  # fmt: skip
        self.server.tables.watchers.append(self._trace_commit)
        self.receivers = [self._open(number, like) for number, like in enumerate(plan.receivers, 1)]
        self.network = Network(self.loop, self.rng, self.receivers, self.recorder)
        self.senders = [Sender() for _ in range(plan.senders)]
        self.keepers = [[self.loop.world] for _ in range(plan.keepers)]
        self.unsent = plan.messages

    def _open(self, number: int, like: Receiver) -> EndpointReceiver:
        endpoint = Endpoint(
            UUID(int=number), f"https://{number}.example/", recipient_of(ids.show(ids.ENDPOINT, UUID(int=number))),
            rate=like.rate, concurrency=like.concurrency, retry=msgspec.json.encode(self.plan.retry).decode(),
            encrypted=_encrypted(number),
        )  # fmt: skip
        self.server.tables.committed["endpoint"][endpoint.id] = endpoint
        self.server.tables.policies[endpoint.recipient] = endpoint.retry or ""
        return EndpointReceiver(endpoint, like.behaviours, is_ordered=like.is_ordered)

    # Faults of processes

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.recorder.fault_injected(process.name)
        super().kill(process)

    def freeze(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self.recorder.fault_injected(process.name)
        self.recorder.stricken.add(process.name)
        super().freeze(process, seconds)

    def _stop(self, sender: Sender) -> None:
        if sender.process is not None and sender.stop is not None:
            self.recorder.fault_injected(sender.process.name)
            self.recorder.stricken.add(sender.process.name)
            sender.stop.set()

    async def _befall(self) -> None:
        kinds = [kind for kind in self.plan.faults if kind not in MOVES]
        while kinds:
            await asyncio.sleep(self.rng.expovariate(1 / self.plan.fault_every_s))
            self._inject_fault(self.rng.choice(kinds))

    def _inject_fault(self, kind: str) -> None:
        rng, longest_s = self.rng, 3 * self.plan.lease_s
        process = rng.choice(self.senders).process
        match kind:
            case "kill sender" if process is not None and not process.is_dead:
                self.kill(process)
            case "pause sender" if process is not None:
                self.freeze(process, rng.random() * longest_s)
            case "kill keeper":
                keeper = rng.choice(self.keepers)[0]
                if keeper is not self.loop.world and not keeper.is_dead:
                    self.kill(keeper)
            case "deploy":
                self.note("DEPLOY")
                for sender in self.senders:
                    self._stop(sender)
            case "clock jump" if process is not None:
                process.clock_ahead += timedelta(seconds=rng.uniform(-longest_s, longest_s))
            case "endpoint turns":
                receiver = rng.choice(self.receivers)
                receiver.change_behaviour(rng)
                self.note("ENDPOINT", receiver.endpoint.url, receiver.behaviour)
            case "endpoint enabled":
                self._enable(rng.choice(self.receivers))
            case _:
                inject_server_fault(self, kind, longest_s)

    def _enable(self, receiver: EndpointReceiver) -> None:
        """Enable a disabled endpoint, as its owner does: its health is reset."""
        t = Transaction(self.server.tables)
        key = receiver.endpoint.id
        if t.try_hold("endpoint", key) and t.try_hold("health", key):
            endpoint = t.latest("endpoint", key)
            if endpoint.is_disabled:
                self.note("ENABLE", endpoint.url)
                sometimes("a disabled endpoint was enabled again")
                changed = endpoint._replace(is_disabled=False, disabled_because=None, revision=endpoint.revision + 1)
                t.put("endpoint", key, changed)
                t.put("health", key, None)
        t.commit()

    # Processes

    def process_loops(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Return what keeps each process running."""
        yield from (self._keep_sender(slot) for slot in self.senders)
        yield from (self.keep_keeper(self.settings, (), receiver) for receiver in self.keepers)
        yield self._publish()

    async def _keep_sender(self, slot: Sender) -> None:
        while True:
            process = slot.process = self.process("sender")
            slot.stop = asyncio.Event()
            await self.run_process(
                process,
                senders.run_sender(
                    self.settings, sender_id=process.name, stop=slot.stop, beat=lambda: None,
                    predecessors=tuple(slot.predecessors),
                ),
            )  # fmt: skip
            slot.predecessors = [*slot.predecessors, process.name][-20:]
            await asyncio.sleep(0.1 + self.rng.random() * 0.5)

    async def _publish(self) -> None:
        process = self.process("publisher")
        for number in range(self.plan.messages):
            body = msgspec.json.encode({"n": number})
            self.loop.spawn(process, self._insist(self._message(number, body), self.rng.random() * self.plan.work_s))

    async def _insist(self, message: NewEvent, wait_s: float) -> None:
        """Publish one message, again and again until it is known to be stored."""
        await asyncio.sleep(wait_s)
        self.recorder.sent[message.id] = message
        while True:
            try:
                database = await Database.open(URL, purpose="publisher", size=1, statement_timeout_s=2.0)
                try:
                    (receipt,) = await EventStore(database).append([message])
                    self.recorder.told(message, receipt.event_id)
                    self.unsent -= 1
                    return
                finally:
                    await database.close()
            except DatabaseError:
                await asyncio.sleep(0.2 + self.rng.random())

    def _message(self, number: int, body: bytes) -> NewEvent:
        chosen = self.rng.sample(self.receivers, self.rng.randint(1, min(3, len(self.receivers))))
        key = f"msg_{number}"
        return NewEvent(
            id=ids.make(1_772_600_000_000 + number, self.rng.getrandbits(74)), source="app", application=None,
            type="thing.done", dedup_key=key, key_hash=UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]),
            replay_hash=None, grade=ProofStrength.BODY, origin=Origin.RECEIVED, headers="{}", content_type="application/json",
            body=body, body_sha256=hashlib.sha256(body).digest(), routes_version=1,
            deliveries=tuple(NewDelivery(receiver.endpoint.recipient, self._order_key(receiver)) for receiver in chosen),
        )  # fmt: skip

    def _order_key(self, receiver: EndpointReceiver) -> str | None:
        return f"k{self.rng.randrange(self.plan.order_keys)}" if receiver.is_ordered else None

    # The course of a run

    async def scenario(self) -> None:
        """Publish messages and inject faults; then every delivery has to end."""
        plan = self.plan
        moves = [kind for kind in plan.faults if kind in MOVES]
        chaos = [self.loop.create_task(self._befall())]
        chaos.append(self.loop.create_task(operate(self, moves, plan.fault_every_s)))
        await asyncio.sleep(plan.work_s)
        if plan.is_healing:
            for task in chaos:
                task.cancel()
            await self._calm_down()
        else:
            await asyncio.sleep(plan.work_s)
        self.check_process_tasks()
        self.recorder.conclude(set(), is_quiet=plan.is_healing)

    async def _calm_down(self) -> None:
        self.is_calm = True
        self.note("HEAL")
        self.server.heal()
        for process in self.processes:
            self.loop.resume(process)
            process.clock_ahead = timedelta()
        for receiver in self.receivers:
            receiver.behaviour = "ok"
        deadline = self.loop.now + QUIET_S
        while (self.unsent or self.recorder.unended()) and self.loop.now < deadline:
            for receiver in self.receivers:  # a request may have been in flight to an endpoint that was disabled since
                self._enable(receiver)
            await asyncio.sleep(1.0)
        if self.unsent:
            self.violations.append(f"C11: {self.unsent} messages were not stored {QUIET_S:g} s after all faults")
        self.note("QUIET")
