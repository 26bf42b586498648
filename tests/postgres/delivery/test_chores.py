"""Chores of apps: in one process of all, never twice at once, and never in the way of the keeper's own."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from boathook import Boathook
from boathook.config import Settings, load
from boathook.db.database import Connection, Database
from boathook.delivery import keeper
from boathook.delivery.keeper import next_time, run_keeper
from boathook.domain.errors import ConfigError
from boathook.observability import meters
from tests.support import eventually

TURNS = """
    select pid from pg_locks
    where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
"""
SEATS = """
    select pid from pg_locks
    where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
        and ((classid::bigint << 32) | objid::bigint) = hashtextextended('boathook.keeper', 0)
"""


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    meters.reset()
    yield
    meters.reset()


def settings_for(db: Database) -> Settings:
    return load(None, {"database.url": db.url, "server.drain_s": 2.0})


@asynccontextmanager
async def kept(db: Database, *hooks: Boathook) -> AsyncIterator[None]:
    """Run a keeper that does the chores of *hooks*."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_keeper(settings_for(db), hooks=hooks, stop=stop, beat=lambda: None))
    try:
        yield
    finally:
        stop.set()
        await task


def count(outcome: str, chore: str = "tidy") -> float:
    return meters.counter("boathook_chores_total", app="shop", chore=chore, outcome=outcome).value


class Busy:
    """A slow chore that ignores cancellation, with its observations."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.now = self.most = self.runs = 0

    def hook(self) -> Boathook:
        shop = Boathook("shop")
        shop.every(0.05, name="tidy")(self.do)
        return shop

    async def do(self) -> None:
        self.runs += 1
        self.now += 1
        self.most = max(self.most, self.now)
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
        self.now -= 1


def test_a_chore_must_be_async():
    with pytest.raises(ConfigError, match="async def tidy"):
        Boathook("shop").every(1.0, name="tidy")(lambda: None)


async def test_a_chore_runs_again_and_again(db: Database):
    shop, runs = Boathook("shop"), []

    @shop.every(0.1)
    async def tidy() -> None:
        runs.append(1)

    async with kept(db, shop):
        await eventually(lambda: len(runs) >= 4)
    assert count("done") == len(runs)


async def test_an_error_is_counted_and_the_chore_runs_again(db: Database):
    shop, runs = Boathook("shop"), []

    @shop.every(0.05)
    async def tidy() -> None:
        runs.append(1)
        raise KeyError("broom")

    async with kept(db, shop):
        await eventually(lambda: count("failed") >= 3)
    assert len(runs) >= 3
    assert count("done") == 0


async def test_a_slow_chore_keeps_neither_the_keeper_nor_other_chores_waiting(db: Database):
    shop, quick = Boathook("shop"), []
    never = asyncio.Event()

    @shop.every(0.05)
    async def slow() -> None:
        await never.wait()

    @shop.every(0.05)
    async def tidy() -> None:
        quick.append(1)

    async with kept(db, shop):
        await eventually(lambda: len(quick) >= 3)
        await db.execute("""
            insert into boathook.delivery (
                event_id, ordinal, recipient, state, attempts, fence, leased_by, lease_until)
            values (gen_random_uuid(), 0, 'handler:x', 'leased', 1, 1, 'gone', now() - interval '1 hour')
        """)
        free = "select count(*) from boathook.delivery where state = 'pending'"
        await eventually(lambda: db.fetchval(free))
    assert count("broken_off", "slow") == 1


@pytest.mark.parametrize(
    ("now", "expected"), [(100.0, 110.0), (103.0, 110.0), (110.0, 110.0), (110.1, 120.0), (134.0, 140.0)]
)
def test_a_chore_that_takes_longer_than_its_interval_runs_less_often(now: float, expected: float):
    assert next_time(100.0, 10.0, now) == expected


async def test_of_two_keepers_one_does_the_chores(db: Database):
    first, second = Busy(0.0), Busy(0.0)
    async with kept(db, first.hook()), kept(db, second.hook()):
        await eventually(lambda: first.runs + second.runs >= 10)
        assert 0 in {first.runs, second.runs}


async def test_mutant_without_the_seat_both_keepers_do_them(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper, "elect_keeper", give_to_all)
    first, second = Busy(0.0), Busy(0.0)
    async with kept(db, first.hook()), kept(db, second.hook()):
        await eventually(lambda: first.runs and second.runs)


async def test_another_keeper_takes_over_when_the_first_stops(db: Database):
    first, second = Busy(0.0), Busy(0.0)
    async with contextlib.AsyncExitStack() as later:
        async with kept(db, first.hook()):
            await eventually(lambda: first.runs)
            await later.enter_async_context(kept(db, second.hook()))
        done = first.runs
        await eventually(lambda: second.runs)
        assert first.runs == done


async def lose_leader_lock(db: Database) -> None:
    """Cut off the keeper's own session, and nothing else of its process."""
    (holder,) = await db.fetch(SEATS)
    await db.execute("select pg_terminate_backend($1)", holder["pid"])


async def hand_over(db: Database) -> Busy:
    """Elect another keeper while a chore that ignores cancellation runs in the first one."""
    busy = Busy(4.0)
    async with kept(db, busy.hook()):
        await eventually(lambda: busy.now)
        async with kept(db, busy.hook()):
            await lose_leader_lock(db)
            await until_rows(db, SEATS, 1)
            # The chore ends, and is run again by the current keeper.
            await eventually(lambda: busy.runs >= 2)
    return busy


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_chore_never_runs_twice_at_once_after_a_lost_leader_lock(db: Database):
    assert (await hand_over(db)).most == 1


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_mutant_without_the_turn_it_is_done_twice_at_once(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper, "try_advisory_lock", give_to_all)
    assert (await hand_over(db)).most >= 2


async def test_a_chore_is_broken_off_when_its_turn_is_lost(db: Database):
    shop, ended = Boathook("shop"), []

    @shop.every(0.05)
    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    async with kept(db, shop):
        await until_rows(db, TURNS, 2)
        seat = {row["pid"] for row in await db.fetch(SEATS)}
        for row in await db.fetch(TURNS):
            if row["pid"] not in seat:
                await db.execute("select pg_terminate_backend($1)", row["pid"])
        await eventually(lambda: ended)


async def until_rows(db: Database, sql: str, least: int) -> None:
    async def are_there() -> bool:
        return len(await db.fetch(sql)) >= least

    await eventually(are_there)


async def test_chores_end_before_the_leader_lock_is_released(db: Database):
    shop, seen = Boathook("shop"), []

    @shop.every(0.05)
    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            seen.append(len(await db.fetch(SEATS)))

    async with kept(db, shop):
        await until_rows(db, TURNS, 2)
    assert seen == [1]


@asynccontextmanager
async def give_to_all(database: Database, *_name: Any) -> AsyncIterator[Connection]:
    async with database.acquire() as connection:
        yield connection
