"""The check of the dedup memory: it finds a range's keys by a small index, and adapts its range size."""

import json
from typing import Final
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from boathook.db import integrity, invariants
from boathook.db.database import Database
from boathook.db.maintenance import SQL as CHORES
from tests.support import sampled

EVENTS: Final = 30_000
"""Their keys fill some five hundred pages, of which the index tells apart four ranges."""
FILL: Final = """
    with made as materialized (
        select n, (lpad(to_hex($1::bigint + n), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid as id
        from generate_series($2::integer, $3::integer) as n
    ),
    keys as (
        insert into boathook.dedup (key, event_id, body_sha256, expires_at)
        select md5(id::text)::uuid, id, sha256(''), now() + interval '30 days' from made order by n
    )
    insert into boathook.event (
        id, source, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout)
    select id, 'stripe', 'x', id::text, 'none', 'received', '{}', '', '', sha256(''), 0 from made order by n
"""
FORGET: Final = "delete from boathook.dedup where event_id >= $1 and event_id < $2"
SETTLE: Final = (
    "vacuum (analyze) boathook.dedup",
    "vacuum (analyze) boathook.event",
)
"""So that statistics and pages are as they are told to be, at the moment at which they are."""


class Memory:
    """A store of many events whose dedup keys fill many pages."""

    def __init__(self, db: Database, url: str) -> None:
        self.db = db
        self.url = url
        self.first_ms = 0

    async def fill(self, first: int, last: int) -> None:
        await self.db.execute(FILL, self.first_ms, first, last)

    async def settle(self) -> None:
        """Vacuum and analyze."""
        connection = await asyncpg.connect(self.url)
        for statement in SETTLE:
            await connection.execute(statement)
        await connection.close()

    def id_of(self, n: int) -> UUID:
        return UUID(int=((self.first_ms + n) << 80) | (0x7000 << 64) | (0x8000 << 48) | n)

    async def verify(self) -> dict[str, int]:
        """Return how often each rule of the memory is broken."""
        found = await integrity.check_integrity(self.db, dedup_days=30)
        return {one.check: one.count for one in found.violations}

    async def pages_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the number of dedup pages that a query for a range reads, and of all pages."""
        arguments = [self.id_of(first), self.id_of(last), [self.id_of(1)], [await self.key_of(1)], [], [], 30.0]
        async with self.db.acquire() as connection, connection.transaction():
            await connection.execute(integrity.SQL["prepare_look"])
            sql = "explain (analyze, buffers, format json) " + integrity.range_query(invariants.DEDUP_MEMORY)
            plan = await connection.fetchval(sql, *arguments)
            return _pages(plan), await connection.fetchval(CHORES["measure_dedup"])

    async def key_of(self, n: int) -> UUID:
        return await self.db.fetchval("select md5($1::uuid::text)::uuid", self.id_of(n))


def _pages(plan: str) -> int:
    """Return the pages of dedup memory itself that a plan, as JSON, has read by the index or one after the other."""

    def walk(node: dict) -> int:
        is_here = node.get("Relation Name") == "dedup" and node["Node Type"] in {"Bitmap Heap Scan", "Seq Scan"}
        here = node["Shared Hit Blocks"] + node["Shared Read Blocks"] if is_here else 0
        return here + sum(map(walk, node.get("Plans", [])))

    return walk(json.loads(plan)[0]["Plan"])


@pytest.fixture
async def memory(db: Database, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(integrity, "SCANS", (invariants.DEDUP_MEMORY,))
    made = Memory(db, pg_url)
    await db.execute("alter table boathook.dedup set (autovacuum_enabled = off)")
    await db.execute("truncate boathook.dedup")  # rows must lie in their order, not where an earlier test has left room
    row = await db.fetchrow("select (extract(epoch from now()) * 1000)::bigint - 3600000 as ms")
    made.first_ms = row["ms"]
    await made.fill(1, EVENTS)
    await made.settle()
    return made


async def test_a_query_reads_only_pages_that_may_hold_its_keys(memory: Memory):
    read, there = await memory.pages_of(20_000, 21_000)
    assert read <= there // 2
    assert await memory.verify() == {}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_the_index_it_would_read_all_of_them(memory: Memory):
    await memory.db.execute("drop index boathook.dedup_order")
    read, there = await memory.pages_of(20_000, 21_000)
    assert read >= there
    assert await memory.verify() == {}


async def reuse(memory: Memory) -> None:
    """Forget keys, and put those of later events into their place, three times, so that the pages' times are mixed."""
    for part in range(3):
        low = part * 10_000 + 1
        await memory.db.execute(FORGET, memory.id_of(low), memory.id_of(low + 8_000))
        await memory.db.execute(
            "delete from boathook.event where id >= $1 and id < $2", memory.id_of(low), memory.id_of(low + 8_000)
        )
        await memory.settle()
        await memory.fill(EVENTS + low, EVENTS + low + 7_999)
    await memory.settle()


async def test_reused_pages_are_distinguished(memory: Memory):
    pages = await memory.db.fetchval(CHORES["measure_dedup"])
    await reuse(memory)
    read, there = await memory.pages_of(EVENTS + 12_000, EVENTS + 12_500)
    assert there < pages * 1.2
    assert read <= there // 2
    assert await memory.verify() == {}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_by_one_span_each_they_would_not_be(memory: Memory):
    """Mutant of the test before: an index that keeps the first and the last id of each range of pages alone."""
    await memory.db.execute("drop index boathook.dedup_order")
    await memory.db.execute("create index dedup_order on boathook.dedup using brin (expires_at, event_id)")
    await reuse(memory)
    first, there = await memory.pages_of(9_000, 9_100)
    second, _ = await memory.pages_of(29_000, 29_100)
    assert max(first, second) > there // 2


LONE = "insert into boathook.dedup (key, event_id, body_sha256, expires_at) values (gen_random_uuid(), $1, sha256(''), now())"
DAMAGE: Final = {
    "every event has its dedup key": "delete from boathook.dedup where event_id = $1",
    "every dedup key has its event": "delete from boathook.event where id = $1",
    "one dedup key per event": LONE,
    "dedup keys match the body": "update boathook.dedup set body_sha256 = sha256('x') where event_id = $1",
}


@pytest.mark.parametrize("is_reused", [False, True], ids=["in order", "mixed"])
@pytest.mark.parametrize("rule", sampled(DAMAGE, keep=1))
async def test_damage_is_found_on_any_page(memory: Memory, rule: str, is_reused: bool, monkeypatch: pytest.MonkeyPatch):
    if is_reused:
        await reuse(memory)
    small = replace(invariants.DEDUP_MEMORY, rows=1_500, max_rows=1_500)
    monkeypatch.setattr(integrity, "SCANS", (small,))
    places = [10_000, 20_000, 30_000] if not is_reused else [10_000, EVENTS + 5_000, EVENTS + 15_000, EVENTS + 28_000]
    for n in places:
        await memory.db.execute(DAMAGE[rule], memory.id_of(n))
    assert await memory.verify() == {rule: len(places)}


@pytest.mark.extended("needs thousands of rows, objects or connections")
async def test_the_bounds_of_ranges_part_no_event_from_its_keys(memory: Memory, monkeypatch: pytest.MonkeyPatch):
    """For any size, each event and its keys are in the same range."""
    for n in (101, 202, 303):
        await memory.db.execute(LONE, memory.id_of(n))
    between = UUID(int=memory.id_of(400).int + 1)
    await memory.db.execute(LONE, between)
    await memory.db.execute("delete from boathook.event where id > $1", memory.id_of(1_000))
    await memory.db.execute("delete from boathook.dedup where event_id > $1", memory.id_of(1_000))
    for rows in (1, 2, 7, 100, 101, 999, 1_000):
        walk = replace(invariants.DEDUP_MEMORY, rows=rows, max_rows=rows)
        monkeypatch.setattr(integrity, "SCANS", (walk,))
        assert await memory.verify() == {"one dedup key per event": 3, "every dedup key has its event": 1}


async def test_the_same_index_finds_expired_keys(memory: Memory):
    """One index for both: the chore that forgets keys, in plans of either kind."""
    await memory.db.execute(
        "update boathook.dedup set expires_at = now() - interval '1 day' where event_id < $1", memory.id_of(500)
    )
    await memory.settle()
    async with memory.db.acquire() as connection, connection.transaction():
        await connection.execute("set local plan_cache_mode = force_custom_plan")
        plan = await connection.fetch("explain " + CHORES["forget_expired_keys"], 0, 8_192, 500)
        assert any("dedup_order" in row[0] for row in plan)
        rows = await connection.fetch(CHORES["forget_expired_keys"], 0, 8_192, 1_000)
    assert [row["dropped"] for row in rows] == [499]


def fitted(rows: int, *, fixed_s: float, each_s: float, looks: int = 40) -> list[int]:
    """Return the range sizes for queries that take *fixed_s* and *each_s* per row."""
    walk = replace(invariants.DEDUP_MEMORY, rows=rows)
    size, sizes = integrity.RangeSize(walk), []
    for _ in range(looks):
        size.fit(fixed_s + each_s * size.rows)
        sizes.append(size.rows)
    return sizes


def test_ranges_are_fitted_to_a_quarter_of_a_second():
    for start in (200, 4_000, 200_000):
        assert all(20_000 < rows < 30_000 for rows in fitted(start, fixed_s=0.0, each_s=1e-5)[-20:])


def test_ranges_do_not_shrink_where_small_ones_take_as_long():
    assert set(fitted(4_000, fixed_s=3.0, each_s=1e-6)[-20:]) == {invariants.DEDUP_MEMORY.max_rows}


def test_the_range_size_balances_fixed_and_row_costs():
    sizes = fitted(4_000, fixed_s=0.5, each_s=1e-5)[-20:]
    assert min(sizes) >= 12_500
    assert max(sizes) <= 200_000


def test_one_slow_query_does_not_keep_ranges_large():
    size = integrity.RangeSize(invariants.DEDUP_MEMORY)
    for took in (5.0, 0.01, 5.0, 0.01):
        size.fit(took)
    for _ in range(20):
        size.fit(size.rows * 1e-5)
    assert 20_000 < size.rows < 30_000
