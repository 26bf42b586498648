"""Senders that behave as providers: signed events at a rate, retries until accepted, with copies, conflicts and forgeries.

A load may publish a message by the API after each event, too.

What is sent follows from a `Load` and its seed alone; when, from the clock and the dice.
"""

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec

from tests.faults.rig.connections import ConnectionPool
from tests.faults.rig.history import Answered, Confirmed, Fact, Published, Sent, Silent
from tests.faults.rig.publishing import Publishing, PublishRequest, message_id, path, requests_beside

SECRET = "whsec_faults_of_the_tests"
PATH = "/in/stripe"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of events."""

    hosts: tuple[str, ...]
    """Gateways as ``host:port``; an account's events all go to one of them."""
    lane: str = "load"
    rate: float = 100.0
    """Events a second, on average: the gaps are exponential."""
    count: int = 0
    """How many events; 0: until it is told to stop."""
    accounts: int = 20
    seed: int = 0
    kinds: dict[str, float] = msgspec.field(default_factory=lambda: {"move.made": 1.0})
    """Types of events and their weights."""
    more: dict[str, float | str] = {}
    """Further fields of every body, such as ``seconds`` for slow events."""
    secret: str = SECRET
    """The secret of genuine events."""
    forger_secret: str = "whsec_of_a_stranger"
    """The secret of forged events."""
    prefix: str = "evt"
    """What ids begin with; two loads of one scenario need different ones."""
    copies: float = 0.05
    """Share of events that are sent once more, some at the same time and some later."""
    conflicts: float = 0.01
    """Share of events whose id is used again, with a good signature, for another body."""
    forgeries: float = 0.02
    """Share of events whose id is also sent with a wrong signature, shortly before or after."""
    shuffled: int = 0
    """So many events in a row leave in any order; 0 leaves them as their accounts number them."""
    is_in_line: bool = False
    """Send an account's next event only when the one before it was accepted."""
    is_patient: bool = True
    """Send again until accepted, as providers do; else every event is sent once."""
    first_wait_s: float = 0.1
    longest_wait_s: float = 1.0
    timeout_s: float = 10.0
    most_at_once: int = 64
    """Most concurrent requests; further ones wait, so that a stalled gateway does not get a thousand connections."""
    is_keeping: bool = True
    """Whether connections are kept for the next request."""
    publishing: Publishing | None = None
    """How messages are published, one after each event; None: there are none."""


@dataclass(frozen=True, slots=True)
class SignedEvent:
    """One event as it is sent: the same bytes each time, with a new signature."""

    key: str
    body: bytes
    line: str
    kind: str
    is_signed: bool = True

    @property
    def sha(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def make_event(key: str, kind: str, account: str, to: str, number: int, **more: object) -> SignedEvent:
    """Return an event of the bank app."""
    body = {"id": key, "type": kind, "object": "event", "account": account, "to": to, "n": number, **more}
    return SignedEvent(key, msgspec.json.encode(body), account, kind)


def generate_events(load: Load) -> Iterator[SignedEvent]:
    """Yield the events of a load, as their accounts number them."""
    dice = random.Random(load.seed)
    numbers: dict[str, Iterator[int]] = {}
    kinds, weights = list(load.kinds), list(load.kinds.values())
    for position in itertools.count() if not load.count else range(load.count):
        account, to = (f"a{name:02}" for name in dice.sample(range(load.accounts), 2))
        number = next(numbers.setdefault(account, itertools.count(1)))
        kind = dice.choices(kinds, weights)[0]
        yield make_event(f"{load.prefix}_{load.seed}_{position}", kind, account, to, number, **load.more)


def shuffled(source: Iterator[SignedEvent], window: int, dice: random.Random) -> Iterator[SignedEvent]:
    """Yield the same events, each window of them in any order."""
    while some := list(itertools.islice(source, max(1, window))):
        dice.shuffle(some)
        yield from some


class Senders:
    """Sends loads and passes each fact to *write*."""

    def __init__(self, write: Callable[[Fact], None]) -> None:
        self._write = write
        self._numbers = itertools.count(1)
        self._connections = ConnectionPool()
        self._stopped: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._lines: dict[tuple[str, str], asyncio.Lock] = {}
        self.is_given_up = False
        self.accepted = 0
        """Requests that were answered 2xx."""
        self.events = 0
        """Events begun, with copies, conflicts and forgeries."""

    @property
    def under_way(self) -> int:
        """How many loads and events are not done with."""
        return len(self._tasks)

    def begin(self, load: Load) -> None:
        """Start a load in the background."""
        self._stopped.discard(load.lane)
        self._gates[load.lane] = asyncio.Semaphore(load.most_at_once)
        self._spawn(self._run(load))

    def stop(self, lane: str) -> None:
        """Begin no more events of a lane, or of any; those begun are still sent until they are accepted."""
        self._stopped.update([lane] if lane else self._gates)

    def send(self, load: Load, event: SignedEvent) -> None:
        """Send one event as *load* says."""
        self._gates.setdefault(load.lane, asyncio.Semaphore(load.most_at_once))
        self._spawn(self._deliver(load, event, 0.0))

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, load: Load) -> None:
        dice, publisher_dice = random.Random(load.seed + 1), random.Random(load.seed + 2)
        due = time.monotonic()
        for event in shuffled(generate_events(load), load.shuffled, dice):
            due += dice.expovariate(load.rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if load.lane in self._stopped:
                return
            await self._gates[load.lane].acquire()
            self._gates[load.lane].release()
            for companion, delay_s in [(event, 0.0), *_companions(load, event, dice)]:
                self._spawn(self._deliver(load, companion, delay_s))
            if load.publishing is not None:
                for request, delay_s in requests_beside(load.publishing, event.key, publisher_dice):
                    self._spawn(self._publish(load, load.publishing, request, delay_s))

    async def _deliver(self, load: Load, event: SignedEvent, delay_s: float) -> None:
        self.events += 1
        if delay_s:
            await asyncio.sleep(delay_s)
        line: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        if load.is_in_line and event.is_signed:
            line = self._lines.setdefault((load.lane, event.line), asyncio.Lock())
        async with line:
            await self._insist(load, event)

    async def _publish(self, load: Load, publishing: Publishing, request: PublishRequest, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        host = load.hosts[zlib.crc32(request.payload) % len(load.hosts)]

        async def publish() -> int:
            number = next(self._numbers)
            self._write(Published(at=time.time(), number=number, key=request.key, sha=request.sha, host=host))
            headers = request.headers(publishing)
            answer = await self._post(load, host, number, path(publishing), headers, request.body)
            if answer is None:
                return 0
            status, seconds, content = answer
            message = message_id(content) if _is_accepted(status) else ""
            self._write(Confirmed(at=time.time(), number=number, status=status, message=message, seconds=seconds))
            return status

        await self._repeat(load, request.key, publish, is_repeatable=load.is_patient and bool(request.key))

    async def _insist(self, load: Load, event: SignedEvent) -> None:
        await self._repeat(
            load, event.key, lambda: self._try(load, event), is_repeatable=load.is_patient and event.is_signed
        )

    async def _repeat(self, load: Load, key: str, send: Callable[[], Awaitable[int]], *, is_repeatable: bool) -> None:
        """Send until the answer is final: 2xx, or 4xx other than 408 and 429."""
        dice = random.Random(key)
        wait_s = load.first_wait_s
        while not self.is_given_up:
            async with self._gates[load.lane]:
                status = await send()
            self.accepted += _is_accepted(status)
            if _is_accepted(status) or (400 <= status < 500 and status not in {408, 429}) or not is_repeatable:
                return
            await asyncio.sleep(wait_s * (0.5 + dice.random()))
            wait_s = min(2 * wait_s, load.longest_wait_s)

    async def _try(self, load: Load, event: SignedEvent) -> int:
        number, host = next(self._numbers), load.hosts[zlib.crc32(event.line.encode()) % len(load.hosts)]
        self._write(
            Sent(
                at=time.time(), number=number, key=event.key, sha=event.sha, line=event.line, lane=load.lane,
                kind=event.kind, is_signed=event.is_signed, host=host,
            )
        )  # fmt: skip
        headers = {"stripe-signature": signature(load, event)}
        answer = await self._post(load, host, number, PATH, headers, event.body)
        if answer is None:
            return 0
        status, seconds, _ = answer
        self._write(Answered(at=time.time(), number=number, status=status, seconds=seconds))
        return status

    async def _post(
        self, load: Load, host: str, number: int, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, float, bytes] | None:
        """Return the status, the seconds that the answer took, and its body; None if there is no answer."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(load.timeout_s):
                status, content = await self._connections.post(host, path, headers, body, is_keeping=load.is_keeping)
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            self._write(Silent(at=time.time(), number=number, why=type(error).__name__))
            return None
        return status, time.monotonic() - began, content


def _is_accepted(status: int) -> bool:
    return 200 <= status < 300


def _companions(load: Load, event: SignedEvent, dice: random.Random) -> Iterator[tuple[SignedEvent, float]]:
    """Yield the copies, conflicts and forgeries of an event with their delays in seconds."""
    if dice.random() < load.copies:
        yield event, dice.choice([0.0, 0.0, 0.2, 1.0])
    if dice.random() < load.conflicts:
        body = msgspec.json.decode(event.body) | {"note": "another"}
        yield SignedEvent(event.key, msgspec.json.encode(body), event.line, event.kind), 0.1
    if dice.random() < load.forgeries:
        body = msgspec.json.decode(event.body) | {"note": "forged"}
        key = event.key if dice.random() < 0.5 else f"{event.key}_forged"
        forged = msgspec.json.encode(body | {"id": key})
        yield SignedEvent(key, forged, event.line, event.kind, is_signed=False), dice.choice([0.0, 0.1])


def signature(load: Load, event: SignedEvent) -> str:
    """Return Stripe's signature header for the current time; forged events are signed with `forger_secret`."""
    stamp = int(time.time())
    secret = load.secret if event.is_signed else load.forger_secret
    digest = hmac.new(secret.encode(), b"%d.%s" % (stamp, event.body), hashlib.sha256).hexdigest()
    return f"t={stamp},v1={digest}"
