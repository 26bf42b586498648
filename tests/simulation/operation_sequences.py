"""Random sequences of database operations, played on the fake database and on PostgreSQL for comparison.

A sequence is drawn beforehand as data and refers to events and claims by number, so that it means the same on both.
Where PostgreSQL does not define an order, as for deliveries due at the same time, `SequenceDatabase.arrange` sets one first.
"""

import asyncio
import functools
import hashlib
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import asyncpg
from msgspec.structs import replace

from boathook.db import delivery_commands, sql_functions
from boathook.db.database import Connection, Database
from boathook.db.deliveries import (
    ClaimedDelivery,
    ClaimLimit,
    DeliveryStore,
    FailedAttempt,
    WaitingAttempt,
    settle_arguments,
    transaction_mark,
)
from boathook.db.events import EventStore
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.errors import BoathookError
from boathook.domain.model import NewDelivery, NewEvent, Origin, ProofStrength
from boathook.domain.policy import Complete, DeadLetter, RetryAt, RetryDefaults, WaitUntil
from tests import delivery_actions

Op = tuple[Any, ...]
RECIPIENTS = ("handler:a", "handler:b", "handler:c")
WORKERS = ("w1", "w2")
PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


class SequenceDatabase(Protocol):
    """The database on which a sequence is played, with operations that bypass boathook."""

    database: Database
    wait_s: float
    """How long to watch an operation that is expected to wait for a lock."""

    async def arrange(self) -> None:
        """Set the due times of deliveries due within the hour to the order of their positions."""

    async def lapse(self) -> None:
        """Let every lease expire, except those that are being ended."""

    async def route(self) -> None:
        """Change the routes."""

    async def version(self) -> int:
        """Return the version of the routes."""

    async def dump(self) -> dict[str, Any]:
        """Return everything that is stored, without times."""


def draw_ops(seed: int, length: int) -> list[Op]:
    """Return a random sequence."""
    rng = random.Random(f"ops {seed}")
    return [_draw(rng) for _ in range(length)]


def _draw(rng: random.Random) -> Op:
    some = tuple(rng.randrange(12) for _ in range(rng.randint(1, 3)))
    kind = rng.choices(
        ("append", "claim", "suspect", "renew", "give back", "record failure", "record wait", "settle", "hold", "release", "lapse", "reap",
         "unblock", "fate", "replay dead", "ignore dead", "replay event", "wake", "route", "remember", "recall"),
        (10, 10, 2, 2, 2, 6, 3, 6, 4, 4, 2, 3, 1, 2, 3, 1, 2, 2, 1, 1, 1),
    )[0]  # fmt: skip
    match kind:
        case "append":
            return kind, tuple(_draw_event(rng) for _ in range(rng.randint(1, 3))), rng.random() < 0.9
        case "claim":
            wants = tuple(
                (name, rng.choice((1, 2, 100)), rng.choice((None, None, 1, 2)))
                for name in RECIPIENTS
                if rng.random() < 0.7
            )
            return kind, rng.choice(WORKERS), wants
        case "suspect":
            return kind, rng.choice(WORKERS)
        case "record failure":
            return (
                kind,
                some,
                rng.choice(("past", "future", "dead")),
                rng.choice(("failed", "retry", "lost")),
                rng.random() < 0.2,
            )
        case "record wait":
            return kind, some, rng.choice(("past", "future", "ignored"))
        case "settle" | "hold":
            return kind, some[0], rng.random() < 0.2, rng.random() < 0.1
        case "release":
            return kind, rng.random() < 0.7
        case "reap":
            return kind, rng.random() < 0.3
        case "replay dead" | "ignore dead":
            return kind, rng.choice((1, 100)), rng.choice((None, "handler:a"))
        case "replay event" | "wake" | "fate" | "remember" | "recall":
            return kind, some[0]
        case _:
            return kind, some


def _draw_event(rng: random.Random) -> tuple[int, bool, tuple[tuple[str, str | None], ...], int | None]:
    """Draw which event, whether its body differs, whom it is for with which order key, and its replay key."""
    recipients = rng.sample(RECIPIENTS, rng.randint(0, 2))
    owed = tuple((name, rng.choice((None, "k1", "k2")) if name != "handler:a" else None) for name in recipients)
    return rng.randrange(20), rng.random() < 0.15, owed, rng.choice((None, None, None, 1, 2))


class Player:
    """Plays one sequence and records the results."""

    def __init__(self, target: SequenceDatabase, seed: int) -> None:
        self._target = target
        self._store = DeliveryStore(target.database, RetryDefaults())
        self._entropy = random.Random(f"ids {seed}")
        self._works: list[ClaimedDelivery] = []
        self._events: list[UUID] = []
        self._held: tuple[Any, Connection] | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._version = 0
        self.seen: list[Any] = []

    async def play(self, ops: list[Op], expected: list[Any] | None = None) -> None:
        """Play the sequence; *expected* holds the results of another player, so that waits are known beforehand."""
        self._version = await self._target.version()
        for op in [*ops, ("release", True)]:
            # A waiting operation is released before anything else happens, so that nothing depends on the order.
            if self._waiting is not None:
                await self._do(("release", len(self.seen) % 3 > 0), expected)
            await self._do(op, expected)
        if self._waiting is not None:
            await self._do(("release", True), expected)

    async def _do(self, op: Op, expected: list[Any] | None) -> None:
        if op[0] in ("claim", "suspect"):
            await self._target.arrange()
        if op[0] == "release":
            self.seen.append((op[0], await self._release(is_commit=op[1])))
            return
        task = asyncio.ensure_future(self._guarded(op))
        is_to_wait = expected is not None and expected[len(self.seen)] == (op[0], "waits")
        timeout = self._target.wait_s if expected is None or is_to_wait else 30.0
        done, _ = await asyncio.wait({task}, timeout=timeout)
        if done:
            self.seen.append((op[0], task.result()))
        else:
            self.seen.append((op[0], "waits"))
            self._waiting = task

    async def _guarded(self, op: Op) -> Any:
        act = getattr(self, "_" + op[0].replace(" ", "_"))
        try:
            return await act(*op[1:])
        except BoathookError as error:
            return type(error).__name__
        except asyncpg.PostgresError as error:
            return error.sqlstate

    # Operations

    async def _append(self, drawn: tuple[Any, ...], is_current: bool) -> Any:
        # Of one append at most one event that may be new for each recipient: which of two falls due first is left open.
        events, taken = [], set()
        for number, is_changed, owed, replay in drawn:
            kept = tuple(one for one in owed if one[0] not in taken)
            taken |= {name for name, _ in kept}
            events.append(self._event(number, is_changed, kept, replay, self._version if is_current else -1))
        receipts = await EventStore(self._target.database).append(events)
        self._events += [event.id for event in events]
        return [(type(one).__name__, str(one.event_id), one.conflict) for one in receipts]

    def _event(
        self, number: int, is_changed: bool, owed: tuple[Any, ...], replay: int | None, version: int
    ) -> NewEvent:
        # Two numbers have one body.
        body = b'{"n":%d%s}' % (number // 2, b',"more":1' if is_changed else b"")
        key = f"key-{number}"
        return NewEvent(
            id=ids.make(1_772_600_000_000 + self._entropy.randrange(10**6), self._entropy.getrandbits(74)),
            source="shop", application=None, type="thing.done", dedup_key=key, key_hash=_hash(key),
            replay_hash=None if replay is None else _hash(f"replay-{number // 2}-{replay}"), grade=ProofStrength.BODY,
            origin=Origin.RECEIVED, headers="{}", content_type="application/json", body=body,
            body_sha256=hashlib.sha256(body).digest(), deliveries=tuple(NewDelivery(*one) for one in owed), routes_version=version,
        )  # fmt: skip

    async def _claim(self, worker: str, wants: tuple[Any, ...]) -> Any:
        works = await self._store.claim(
            [ClaimLimit(name, slots, maximum=most) for name, slots, most in wants], worker=worker, lease_s=300
        )
        return self._note(works)

    async def _suspect(self, worker: str) -> Any:
        wants = [ClaimLimit(name, 1) for name in RECIPIENTS]
        return self._note(await self._store.claim(wants, worker=worker, lease_s=300, is_suspect=True))

    def _note(self, works: list[ClaimedDelivery]) -> Any:
        works = sorted(works, key=lambda work: (work.claim.event_id, work.claim.ordinal))
        self._works += works
        return [
            (str(c.event_id), c.ordinal, c.recipient, c.fence, c.attempt, c.attempts_before, c.free_retries, c.suspect, c.order_key, w.event and w.event.body)
            for w in works
            for c in [w.claim]
        ]  # fmt: skip

    def _chosen(self, numbers: tuple[int, ...]) -> list[ClaimedDelivery]:
        """Return claims by how recent they are, so that most of them still hold."""
        found = {
            self._works[-1 - number % len(self._works)].claim: self._works[-1 - number % len(self._works)]
            for number in numbers
            if self._works
        }
        return list(found.values())

    async def _renew(self, numbers: tuple[int, ...]) -> Any:
        lost = await self._store.renew([work.claim for work in self._chosen(numbers)], lease_s=300)
        return sorted((str(event_id), ordinal, fence) for event_id, ordinal, fence in lost)

    async def _give_back(self, numbers: tuple[int, ...]) -> Any:
        return await self._store.release_claims([work.claim for work in self._chosen(numbers)])

    async def _record_failure(self, numbers: tuple[int, ...], when: str, outcome: str, is_free: bool) -> Any:
        works = self._chosen(numbers)
        due = {"past": PAST, "future": FUTURE}.get(when)
        move = DeadLetter("GIVEN_UP", "it never worked") if due is None else RetryAt(due, "BROKEN", "it broke", is_free)
        ended = [FailedAttempt(work.claim, move, outcome, None, "w1", work.claimed_at) for work in works]
        return await self._store.record_failed_attempts(ended) if ended else None

    async def _record_wait(self, numbers: tuple[int, ...], when: str) -> Any:
        until = {"past": PAST, "future": FUTURE}.get(when)
        move = Complete("it did not come") if until is None else WaitUntil("key", until, "WAITING", "it will come")
        waits = [WaitingAttempt(work.claim, move, "w1", work.claimed_at) for work in self._chosen(numbers)]
        return (await self._store.record_attempts([], waits))[1] if waits else None

    async def _settle(self, number: int, is_ignored: bool, is_unmarked: bool) -> Any:
        for work in self._chosen((number,)):
            async with self._target.database.acquire() as connection:
                return await self._end(connection, work, is_ignored, is_unmarked, "; commit; reset all")
        return None

    async def _hold(self, number: int, is_ignored: bool, is_unmarked: bool) -> Any:
        if self._held is not None:
            return None
        for work in self._chosen((number,)):
            lent = self._target.database.acquire()
            connection = await lent.__aenter__()
            self._held = (lent, connection)
            return await self._end(connection, work, is_ignored, is_unmarked, "")
        return None

    @staticmethod
    async def _end(
        connection: Connection, work: ClaimedDelivery, is_ignored: bool, is_unmarked: bool, tail: str
    ) -> Any:
        move = Complete("it isn't \\ for 'us'" if is_ignored else None)
        other = replace(work.claim, fence=work.claim.fence + 1)
        arguments = settle_arguments(work.claim, move, worker="w1", started_at=work.claimed_at)
        await connection.execute(
            f"begin; set local boathook.mark = '{transaction_mark(other if is_unmarked else work.claim)}'"
        )
        try:
            await connection.execute(sql_functions.SETTLE.literal(arguments) + tail)
        except asyncpg.PostgresError:
            await connection.execute("rollback; reset all")
            raise
        return "settled"

    async def _release(self, *, is_commit: bool) -> Any:
        if self._held is None:
            return None
        lent, connection = self._held
        self._held = None
        if connection.is_in_transaction():
            await connection.execute("commit" if is_commit else "rollback")
        await lent.__aexit__(None, None, None)
        waiting, self._waiting = self._waiting, None
        return None if waiting is None else await waiting

    async def _lapse(self, _numbers: tuple[int, ...]) -> Any:
        await self._target.lapse()

    async def _reap(self, is_dead: bool) -> Any:
        return await self._store.reap(dead_workers=["w1"] if is_dead else [])

    async def _unblock(self, _numbers: tuple[int, ...]) -> Any:
        return await self._store.unblock()

    async def _fate(self, number: int) -> Any:
        for work in self._chosen((number,)):
            return (await self._store.commit_outcome(work.claim)).name
        return None

    async def _replay_dead(self, limit: int, recipient: str | None) -> Any:
        pace = delivery_commands.ReplaySchedule(await delivery_commands.read_clock(self._target.database), gap_s=0.001)
        selection = delivery_commands.Selection(ListFilter(recipient=recipient))
        return await self._keys(functools.partial(delivery_actions.replay_dead, pace=pace, limit=limit), selection)

    async def _ignore_dead(self, limit: int, recipient: str | None) -> Any:
        selection = delivery_commands.Selection(ListFilter(recipient=recipient))
        return await self._keys(functools.partial(delivery_actions.ignore_dead, limit=limit), selection)

    async def _keys(self, move: Callable[..., Awaitable[Any]], selection: delivery_commands.Selection) -> Any:
        found = await move(self._target.database, selection, delivery_commands.AuditContext(actor="me", note="why"))
        return [(str(event_id), ordinal) for event_id, ordinal in found]

    async def _replay_event(self, number: int) -> Any:
        if not self._events:
            return None
        pace = delivery_commands.ReplaySchedule(await delivery_commands.read_clock(self._target.database), gap_s=0.001)
        chosen = [self._events[-1 - number % len(self._events)]]
        done = await delivery_actions.replay_events(
            self._target.database, chosen, delivery_commands.AuditContext(actor="me"), pace=pace
        )
        return done.events, done.added, done.revived

    async def _wake(self, number: int) -> Any:
        if not self._events:
            return None
        chosen = self._events[-1 - number % len(self._events)]
        async with self._target.database.transaction() as connection:
            return await delivery_commands.make_due_now(connection, chosen, delivery_commands.AuditContext(actor="me"))

    async def _route(self, _numbers: tuple[int, ...]) -> Any:
        await self._target.route()
        self._version = await self._target.version()
        return self._version

    async def _remember(self, number: int) -> Any:
        for work in self._chosen((number,)):
            return await self._store.save_side_effect(work.claim, "charge", f'"{len(self.seen)}"')
        return None

    async def _recall(self, number: int) -> Any:
        for work in self._chosen((number,)):
            return await self._store.find_side_effect(work.claim, "charge")
        return None


def _hash(text: str) -> UUID:
    return UUID(bytes=hashlib.sha256(text.encode()).digest()[:16])


SOON = timedelta(hours=1)
