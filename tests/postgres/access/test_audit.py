"""The audit log: bounded searches, and seals row by row without blocking writers."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import pytest

from boathook.config import load
from boathook.db import audit, integrity
from boathook.db.audit import AuditFilter
from boathook.db.database import Database
from boathook.delivery.keeper import Keeper
from boathook.domain.errors import DatabaseError
from tests.support import eventually, sampled


async def note(db: Database, number: int, actor: str = "cli:anna", action: str = "dead.replay") -> None:
    async with db.transaction() as connection:
        for place in range(number):
            await audit.record(connection, actor, action, f"dlv_{place}", "why")


async def broken(db: Database) -> list[str]:
    return [one.check for one in (await integrity.check_integrity(db, dedup_days=30)).violations]


async def test_rows_are_sealed_one_after_the_other_and_the_chain_holds(db: Database):
    await note(db, 5)
    assert await audit.seal(db) == 5
    await note(db, 3)
    assert await audit.seal(db) == 3
    assert await audit.seal(db) == 0
    rows = await db.fetch("select sealed_as from boathook.audit order by id")
    assert [row[0] for row in rows] == list(range(1, 9))
    head = await audit.read_head(db)
    assert head is not None
    assert (head.place, len(head.seal)) == (8, 64)
    assert await broken(db) == []


async def test_a_chain_of_many_pages_holds_and_a_change_on_any_of_them_shows(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(integrity, "AUDIT_PAGE", 3)
    await note(db, 11)
    await audit.seal(db)
    assert await broken(db) == []
    for place in (1, 3, 4, 7, 11):
        await db.execute("update boathook.audit set note = note || '!' where sealed_as = $1", place)
        assert await broken(db) == ["the audit log is unchanged"], place
        await db.execute("update boathook.audit set note = 'why' where sealed_as = $1", place)
    assert await broken(db) == []


@pytest.mark.parametrize("page", sampled([2, 3, 4, 500], keep=1))
@pytest.mark.parametrize(
    "deed",
    [
        "delete from boathook.audit where sealed_as = 4",
        "delete from boathook.audit where sealed_as = 1",
        "delete from boathook.audit where sealed_as = 6",
        "delete from boathook.audit where sealed_as > 2",
        "delete from boathook.audit",
        "delete from boathook.audit_head",
        "update boathook.audit set actor = 'cli:boris' where sealed_as = 6",
        "update boathook.audit set at = at - interval '1 day' where sealed_as = 3",
        "update boathook.audit a set subject = b.subject from boathook.audit b where a.sealed_as + b.sealed_as = 5",
        "update boathook.audit set sealed_as = null, seal = null where sealed_as = 6",
        "update boathook.audit set sealed_as = null, seal = null where sealed_as = 2",
        "update boathook.audit set sealed_as = sealed_as + 1000; update boathook.audit set sealed_as = 1007 - sealed_as",
        "insert into boathook.audit (actor, action, subject, sealed_as, seal) values ('cli:boris', 'x', 'y', 7, 'seal')",
    ],
)
async def test_any_change_to_sealed_rows_is_detected_permanently(
    db: Database, monkeypatch: pytest.MonkeyPatch, page: int, deed: str
):
    monkeypatch.setattr(integrity, "AUDIT_PAGE", page)
    await note(db, 6)
    await audit.seal(db)
    assert await broken(db) == []
    async with db.acquire() as connection:
        await connection.execute(deed)
    assert await broken(db) == ["the audit log is unchanged"]
    with contextlib.suppress(DatabaseError):  # where the next place is taken, sealing fails aloud
        await note(db, 2)
        await audit.seal(db)
    assert await broken(db) == ["the audit log is unchanged"]


async def test_without_the_head_seal_deleted_last_rows_go_undetected(db: Database):
    await note(db, 6)
    await audit.seal(db)
    await db.execute("delete from boathook.audit where sealed_as > 4")
    await db.execute(
        "update boathook.audit_head h set place = 4, seal = a.seal from boathook.audit a where a.sealed_as = 4"
    )
    assert await broken(db) == []


async def test_a_late_committed_row_is_sealed_later_despite_its_id(db: Database):
    async with db.acquire() as slow:
        late = slow.transaction()
        await late.start()
        await audit.record(slow, "cli:late", "event.send", "evt_1")
        await note(db, 2)
        assert await audit.seal(db) == 2, "the sealer does not wait for whoever is under way"
        await late.commit()
    assert await audit.seal(db) == 1
    assert [row[0] for row in await db.fetch("select sealed_as from boathook.audit order by id")] == [3, 1, 2]
    assert await broken(db) == []


async def test_writers_do_not_wait_for_sealing(db: Database):
    await note(db, 3)
    async with db.transaction() as sealer:
        assert await sealer.fetchval("select boathook.seal_audit(100)") == 3
        async with asyncio.timeout(300):
            await note(db, 2)
    assert await audit.seal(db) == 2
    assert await broken(db) == []


async def test_two_sealers_at_once_make_one_chain(db: Database):
    await note(db, 200)
    assert sum(await asyncio.gather(*(audit.seal(db) for _ in range(4)))) == 200
    assert await broken(db) == []


async def test_two_rows_cannot_have_one_place(db: Database):
    await note(db, 2)
    with pytest.raises(DatabaseError):
        await db.execute("update boathook.audit set sealed_as = 1, seal = 'x'")


async def test_the_keeper_seals_new_rows(db: Database):
    await note(db, 4)
    stop = asyncio.Event()
    keeper = asyncio.create_task(Keeper(db, load(None)).run(stop, lambda: None))
    try:
        await eventually(lambda: db.fetchval("select count(*) = 4 from boathook.audit where sealed_as is not null"))
    finally:
        stop.set()
        await keeper


async def test_audit_rows_are_found_by_actor_action_and_time(db: Database):
    await note(db, 3)
    await note(db, 2, actor="console:boris", action="dead.ignore")
    now = datetime.now(UTC)

    async def number(**wanted) -> int:
        return len((await audit.search(db, AuditFilter(**wanted), before=None, limit=50)).rows)

    assert await number() == 5
    assert await number(actor="console:boris") == 2
    assert await number(action="dead.*") == 5
    assert await number(action="dead.ig*", actor="cli:anna") == 0
    assert await number(until=now - timedelta(hours=1)) == 0
    assert await number(since=now - timedelta(hours=1), until=now + timedelta(hours=1)) == 5
    assert await audit.list_actions(db) == ["dead.ignore", "dead.replay"]


@pytest.mark.parametrize("limit", [1, 3, 7])
async def test_pages_follow_each_other_without_a_gap(db: Database, monkeypatch: pytest.MonkeyPatch, limit: int):
    monkeypatch.setattr(audit, "SCAN_ROWS", 4)
    for place in range(5):
        await note(db, 2, actor="cli:anna" if place % 2 else "cli:boris")
    for wanted, expected in ((AuditFilter(), 10), (AuditFilter(actor="cli:anna"), 4), (AuditFilter(actor="nobody"), 0)):
        seen, before = [], None
        while True:
            found = await audit.search(db, wanted, before=before, limit=limit)
            seen += [row.id for row in found.rows]
            if (before := found.place) is None:
                break
        assert seen == sorted(set(seen), reverse=True)
        assert len(seen) == expected


async def test_a_fruitless_search_stops_in_time_with_a_cursor(db: Database, monkeypatch):
    monkeypatch.setattr(audit, "SCAN_ROWS", 2)
    monkeypatch.setattr(audit, "SCAN_BUDGET_S", 0.0)
    await note(db, 10)
    found = await audit.search(db, AuditFilter(actor="nobody"), before=None, limit=50)
    assert (found.rows, found.is_full) == ([], False)
    assert found.place is not None
