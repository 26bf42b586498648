"""A worker's slots: one message commits an attempt and begins the next one's transaction."""

import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from boathook.db.database import Database, is_connection_closed
from boathook.handlers.runner import RunSlot
from tests.support import eventually


@pytest.fixture
async def slot(db: Database) -> AsyncIterator[RunSlot]:
    """A slot for which another claim always waits."""
    slot = RunSlot(db, has_waiting=lambda: True)
    yield slot
    await slot.release()


async def begun_at(connection: Any) -> Any:
    return await connection.fetchval("select now()")


async def attempt(slot: RunSlot, claimed_s: float | None = None, *statements: str) -> Any:
    """Run an attempt claimed at this time, and return the start of its transaction."""
    connection, mark = await slot.begin(time.monotonic() if claimed_s is None else claimed_s)
    assert await connection.fetchval("select current_setting('boathook.mark')") == mark
    for statement in statements:
        await connection.execute(statement)
    began = await begun_at(connection)
    await slot.commit(connection, [])
    return began


async def test_commit_starts_the_next_transaction(slot: RunSlot, monkeypatch: pytest.MonkeyPatch):
    claimed_s = time.monotonic()
    first = await attempt(slot, claimed_s)
    assert slot.is_idle_in_transaction
    connection = await slot.connection()
    sent: list[str] = []
    monkeypatch.setattr(type(connection), "execute", lambda *args, **_: sent.append(args[1]))
    again, _ = await slot.begin(claimed_s)
    monkeypatch.undo()
    assert (sent, await begun_at(again) > first) == ([], True)
    await slot.commit(again, [])


async def test_a_claim_never_uses_an_older_transaction(slot: RunSlot, db: Database):
    """Otherwise now() in the handler could be before its event was accepted."""
    await attempt(slot)
    accepted_at = await db.fetchval("select clock_timestamp()")
    assert await attempt(slot) > accepted_at


async def test_mutant_without_the_comparison_now_would_be_before_the_event(slot: RunSlot, db: Database):
    await attempt(slot)
    accepted_at = await db.fetchval("select clock_timestamp()")
    assert await attempt(slot, claimed_s=0.0) < accepted_at


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_settings_of_a_handler_reach_no_other(slot: RunSlot, ends: str):
    """The reset is part of the transaction that the same message begins, so a rollback undoes it."""
    claimed_s = time.monotonic()
    await attempt(slot, claimed_s, "set work_mem = '77MB'")
    connection, _ = await slot.begin(claimed_s)
    assert await connection.fetchval("show work_mem") != "77MB"
    if ends == "commit":
        await slot.commit(connection, [])
    else:
        await connection.execute("rollback; reset all")
    connection, _ = await slot.begin(time.monotonic())
    assert await connection.fetchval("show work_mem") != "77MB"


async def test_a_failed_settle_commits_and_starts_nothing(slot: RunSlot, db: Database):
    connection, _ = await slot.begin(time.monotonic())
    await connection.execute("create table kept (n int)")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await slot.commit(connection, ["select 1 / 0"])
    assert not slot.is_idle_in_transaction
    await connection.execute("rollback")
    assert await db.fetchval("select to_regclass('kept')") is None


async def test_an_unused_transaction_is_ended_and_its_connection_kept(slot: RunSlot):
    await attempt(slot)
    connection = await slot.connection()
    await slot.end_transaction()
    assert (slot.is_idle_in_transaction, connection.is_in_transaction()) == (False, False)
    assert await slot.connection() is connection


async def test_a_connection_lost_between_two_attempts_is_replaced(slot: RunSlot, db: Database):
    claimed_s = time.monotonic()
    await attempt(slot, claimed_s)
    connection = await slot.connection()
    lost = connection.get_server_pid()
    await db.execute("select pg_terminate_backend($1)", lost)
    await eventually(lambda: is_connection_closed(connection))
    again, mark = await slot.begin(claimed_s)
    assert again.get_server_pid() != lost
    assert await again.fetchval("select current_setting('boathook.mark')") == mark
    await slot.commit(again, [])


async def test_without_a_waiting_claim_no_transaction_stays_open(db: Database):
    slot = RunSlot(db, has_waiting=lambda: False)
    await attempt(slot)
    assert not (await slot.connection()).is_in_transaction()
    await slot.release()
