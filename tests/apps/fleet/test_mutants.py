"""The safeguards of the fleet app's tables, each with a mutant without it that shows the violation."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from boathook_fleet import records
from boathook_fleet.parse import Change
from boathook_fleet.records import Arrival, apply_changes, feed_since, note_change
from boathook_fleet.words import Action, Entity
from tests.support import eventually

MIGRATIONS = Path(records.__file__).with_name("migrations")
AT = datetime(2026, 11, 21, 10, tzinfo=UTC)


@pytest.fixture
async def url(pg_url: str) -> str:
    connection = await asyncpg.connect(pg_url)
    for script in sorted(MIGRATIONS.glob("*.sql")):
        await connection.execute(script.read_text())
    await connection.close()
    return pg_url


@contextlib.asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Any]:
    """A connection in a transaction with the methods of boathook's `Transaction` that the app uses."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def note(
    tx: Any, minute: int, *, accepted: int | None = None, action: Action = Action.UPDATE, **data: Any
) -> bool:
    """Note a change of car 1 that happened in this minute, and was accepted in that."""
    stamp, accepted_at = (AT + timedelta(minutes=one) for one in (minute, minute if accepted is None else accepted))
    arrival = Arrival(event_id=uuid.uuid4(), source="rentprog", type="car_update", accepted_at=accepted_at)
    change = Change(entity=Entity.CAR, action=action, id="1", stamp=stamp, data=data)
    return await note_change(tx, arrival, change, stamp)


async def apply(url: str) -> None:
    async with transaction(url) as tx:
        await apply_changes(tx, Entity.CAR, "1")


async def state(url: str) -> dict[str, Any]:
    async with transaction(url) as tx:
        row = await tx.fetchrow("select data, deleted_at, upserts, changes from fleet.cars where id = '1'")
        assert row is not None
        return {
            **json.loads(row["data"]), "is_deleted": row["deleted_at"] is not None, "upserts": row["upserts"],
            "changes": row["changes"],
        }  # fmt: skip


async def out_of_order(url: str) -> dict[str, Any]:
    """Record minute 5, then minute 2."""
    for minute in (5, 2):
        async with transaction(url) as tx:
            await note(tx, minute, accepted=20 - minute, state=f"minute {minute}")
        await apply(url)
    return await state(url)


async def test_an_older_change_never_overwrites_a_newer_one(url: str):
    assert (await out_of_order(url))["state"] == "minute 5"


async def test_mutant_ordered_by_arrival_the_older_state_wins(url: str, monkeypatch):
    monkeypatch.setattr(records, "ORDER", "accepted_at, event_id")
    monkeypatch.setattr(records, "GUARD", "")
    assert (await out_of_order(url))["state"] == "minute 2"


async def forgotten(url: str) -> dict[str, Any]:
    """Record minute 5, delete its log, then record minute 2."""
    async with transaction(url) as tx:
        await note(tx, 5, state="minute 5")
    await apply(url)
    async with transaction(url) as tx:
        await tx.execute("delete from fleet.change")
        await note(tx, 2, state="minute 2")
    await apply(url)
    return await state(url)


async def test_an_older_change_overwrites_nothing_after_log_retention(url: str):
    assert (await forgotten(url))["state"] == "minute 5"


async def test_mutant_without_the_guard_it_does(url: str, monkeypatch):
    monkeypatch.setattr(records, "GUARD", "")
    assert (await forgotten(url))["state"] == "minute 2"


async def concurrent_apply(url: str) -> dict[str, Any]:
    """Note a second change in a transaction that is still open while the first is applied."""
    async with transaction(url) as tx:
        await note(tx, 1, state="first")
    async with transaction(url) as noting:
        await note(noting, 2, state="second")
        applying = asyncio.create_task(apply(url))
        await eventually(partial(_is_waiting_or_done, url, applying))
    await applying
    await apply(url)  # whatever is marked by then
    return await state(url)


async def _is_waiting_or_done(url: str, applying: asyncio.Task[None]) -> bool:
    async with transaction(url) as watching:  # one for each look: a transaction sees the activity it saw first
        return applying.done() or bool(
            await watching.fetchval(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
            )
        )


async def test_a_change_noted_while_another_is_applied_is_never_missed(url: str):
    assert (await concurrent_apply(url))["state"] == "second"


async def test_mutant_a_mark_that_locks_nothing_loses_a_change(url: str, monkeypatch):
    monkeypatch.setitem(
        records.SQL,
        "mark",
        "insert into fleet.dirty (entity, entity_id, oldest, changes, announced_at)"
        " select $1, $2, $3, 1, now() where $4::float8 > 0 on conflict do nothing returning true",
    )
    assert (await concurrent_apply(url))["state"] == "first"


async def overtaken(url: str) -> dict[str, Any]:
    """Note a deletion and the late repetition of an update; then the update itself, whose delivery was repeated."""

    async def note_unstamped(minute: int, action: Action, **pair: Any) -> None:
        arrival = Arrival(
            event_id=uuid.uuid4(), source="rentprog", type="x", accepted_at=AT + timedelta(minutes=minute)
        )
        change = Change(
            entity=Entity.CAR, action=action, id="1", data={name: after for name, (_, after) in pair.items()},
            before={name: before for name, (before, _) in pair.items()},
        )  # fmt: skip
        async with transaction(url) as tx:
            await note_change(tx, arrival, change, arrival.accepted_at)
        await apply(url)

    await note_unstamped(0, Action.CREATE)
    await note_unstamped(2, Action.DELETE)
    await note_unstamped(3, Action.UPDATE, state=("a", "b"))
    await note_unstamped(1, Action.UPDATE, state=("a", "b"))
    return await state(url)


async def test_a_change_that_is_noted_late_has_later_ones_decided_again(url: str):
    assert await overtaken(url) == {"state": "b", "is_deleted": True, "upserts": 4, "changes": 3}


async def test_mutant_that_decides_once_revives_what_is_deleted(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(records.SQL, "is_overtaken", "select $1 = '' and $2 = '' and $3 < now()")
    assert (await overtaken(url))["is_deleted"] is False


async def many(url: str, *, is_announced_always: bool) -> dict[str, Any]:
    """Note fifty changes, and apply as often as that is announced, after all of them or after each."""
    for minute in range(50):
        async with transaction(url) as tx:
            is_first = await note(tx, minute, state=f"minute {minute}")
        if is_announced_always:
            assert is_first
            await apply(url)
        else:
            assert is_first is (minute == 0)
    await apply(url)
    return await state(url)


async def test_fifty_changes_are_announced_once_and_written_once(url: str):
    assert await many(url, is_announced_always=False) == {
        "state": "minute 49", "is_deleted": False, "upserts": 1, "changes": 50
    }  # fmt: skip


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_mutant_without_collecting_each_change_costs_an_upsert(url: str):
    assert (await many(url, is_announced_always=True))["upserts"] == 50


async def test_a_dirty_mark_with_a_lost_announcement_is_announced_again(url: str):
    async with transaction(url) as tx:
        assert await note(tx, 1)
    async with transaction(url) as tx:
        assert not await note(tx, 2)
        await tx.execute("update fleet.dirty set announced_at = now() - interval '2 minutes'")
    async with transaction(url) as tx:
        assert await note(tx, 3)


async def overtaking_changes(url: str) -> list[int]:
    """Record two changes concurrently, committing in reverse order; read them like a browser."""
    async with transaction(url) as tx:
        for car in ("1", "2"):
            arrival = Arrival(event_id=uuid.uuid4(), source="rentprog", type="x", accepted_at=AT)
            await note_change(tx, arrival, Change(entity=Entity.CAR, action=Action.UPDATE, id=car, data={}), AT)
    seen: list[int] = []
    async with transaction(url) as slow:
        await apply_changes(slow, Entity.CAR, "1")
        quick = asyncio.create_task(_apply_second(url))
        await eventually(partial(_is_waiting_or_done, url, quick))
        seen += await _read_feed(url, seen)
    await quick
    return seen + await _read_feed(url, seen)


async def _apply_second(url: str) -> None:
    async with transaction(url) as tx:
        await apply_changes(tx, Entity.CAR, "2")


async def _read_feed(url: str, seen: list[int]) -> list[int]:
    async with transaction(url) as tx:
        return [row["version"] for row in await feed_since(tx, max(seen, default=0), limit=100)]


async def test_versions_become_visible_in_order(url: str):
    assert await overtaking_changes(url) == [1, 2]


async def test_mutant_without_the_lock_a_reader_misses_a_change(url: str, monkeypatch):
    real = records.add_to_feed

    class Unlocked:
        def __init__(self, tx: Any) -> None:
            self._tx = tx

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        async def execute(self, sql: str, *arguments: Any) -> Any:
            return None if "advisory" in sql else await self._tx.execute(sql, *arguments)

    monkeypatch.setattr(records, "add_to_feed", lambda tx, *arguments: real(Unlocked(tx), *arguments))
    assert await overtaking_changes(url) == [2]


async def test_a_deletion_beats_earlier_updates_and_loses_to_later_ones(url: str):
    async with transaction(url) as tx:
        await note(tx, 1, state="there")
        await note(tx, 5, action=Action.DELETE)
        await note(tx, 3, state="late")
    await apply(url)
    assert await state(url) == {"state": "late", "is_deleted": True, "upserts": 1, "changes": 3}
    async with transaction(url) as tx:
        await note(tx, 7, state="again")
    await apply(url)
    assert (await state(url))["is_deleted"] is False
