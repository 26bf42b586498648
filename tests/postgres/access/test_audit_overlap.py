"""Two keepers may overlap while one is cut off: the audit log stays one chain."""

import asyncio

from boathook.db import audit
from boathook.db.database import Database
from tests.postgres.access.test_audit import broken, note
from tests.support import eventually

FUNCTION = "select pg_get_functiondef('boathook.seal_audit(integer)'::regprocedure)"
LOCK = "perform pg_advisory_xact_lock(hashtextextended('boathook.seal_audit', 0));"

LOOP = "for entry in select"
WAIT = "perform pg_advisory_lock(42); perform pg_advisory_unlock(42);"


async def seal_by_many(db: Database) -> list[BaseException]:
    """Let several keepers seal while operators write; return the problems."""
    writing = [note(db, 10, actor=f"cli:{name}") for name in ("anna", "boris", "clara", "dora") for _ in range(5)]
    sealing = [audit.seal(db) for _ in range(30)]
    found = await asyncio.gather(*writing, *sealing, return_exceptions=True)
    return [one for one in found if isinstance(one, BaseException)]


async def test_the_seals_of_keepers_that_overlap_are_one_chain(db: Database):
    assert await seal_by_many(db) == []
    await audit.seal(db)
    rows = await db.fetch("select sealed_as from boathook.audit order by sealed_as")
    assert [row["sealed_as"] for row in rows] == list(range(1, 201))
    assert await broken(db) == []


async def test_without_their_lock_the_chain_would_break(db: Database):
    """The mutant: a keeper continues from a seal that is no longer the last."""
    function = await db.fetchval(FUNCTION)
    assert LOCK in function
    assert LOOP in function
    await db.execute(function.replace(LOCK, "").replace(LOOP, f"{WAIT} {LOOP}"))
    await note(db, 5)
    async with db.acquire() as gate:
        await gate.execute("select pg_advisory_lock(42)")
        late = asyncio.create_task(audit.seal(db))
        await eventually(lambda: db.fetchval("select count(*) > 0 from pg_locks where objid = 42 and not granted"))
        await db.execute(function)
        assert await audit.seal(db) == 5
        await note(db, 3)
        await gate.execute("select pg_advisory_unlock(42)")
    (fault,) = await asyncio.gather(late, return_exceptions=True)
    assert isinstance(fault, BaseException) or await broken(db)
