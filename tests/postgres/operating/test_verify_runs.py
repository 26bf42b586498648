"""Background integrity checks: one at a time, restarted if their process died, cancelled on stop."""

import asyncio
import functools
from datetime import timedelta

import pytest

from boathook.db import integrity, integrity_runs
from boathook.db.database import Database
from boathook.delivery import integrity_runner
from boathook.delivery.integrity_runner import IntegrityRunner
from boathook.delivery.tasks import run_tasks
from boathook.domain.errors import InvalidState
from boathook.handlers.outbox import Outbox
from boathook.service.caller import HOST
from boathook.service.catalogue import integrity as actions
from boathook.service.catalogue.integrity import AllRuns, IntegrityRun, NewRun, RunNamed
from tests.postgres.api_client import make_context
from tests.support import eventually


def maker(db: Database) -> IntegrityRunner:
    return IntegrityRunner(db, functools.partial(Database.open, db.url, purpose="integrity", size=2))


async def begin(db: Database, **how: bool) -> str:
    async with make_context(db).work(actor="test", caller=HOST) as work:
        return (await actions.start(work, NewRun(**how))).id


async def state_of(db: Database, id: str) -> IntegrityRun:
    async with make_context(db).work(caller=HOST) as work:
        return await actions.get(work, RunNamed(id=id))


async def has_state(db: Database, id: str, state: str) -> bool:
    return (await state_of(db, id)).state == state


async def test_a_check_is_made_and_its_result_kept(db: Database):
    id, one = await begin(db, deep=True), maker(db)
    await one.start()
    await eventually(lambda: has_state(db, id, "finished"))
    data = (await state_of(db, id)).data
    assert data["balanced"] is True
    assert data["balance"]["missing"] == 0
    assert data["imbalances"] == []
    await one.stop()


async def test_only_one_is_under_way(db: Database):
    await begin(db)
    with pytest.raises(InvalidState, match="a check is running"):
        await begin(db)


async def test_concurrent_requests_start_one_run(db: Database):
    found = await asyncio.gather(*(begin(db) for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(one, str) for one in found) == 1
    assert all(isinstance(one, str | InvalidState) for one in found)


async def test_a_run_without_heartbeats_is_restarted_by_another(db: Database, monkeypatch: pytest.MonkeyPatch):
    id = await begin(db)
    assert await integrity_runs.claim(db, "somebody who dies", timedelta(seconds=30)) is not None
    other = maker(db)
    await other.start()
    assert await has_state(db, id, "running"), "its maker may be alive"
    monkeypatch.setattr(integrity_runner, "HEARTBEAT_TIMEOUT_S", 0.0)
    await other.start()
    await eventually(lambda: has_state(db, id, "finished"))
    await other.stop()


async def test_the_late_result_of_a_dead_maker_changes_nothing(db: Database):
    id = await begin(db)
    run = await integrity_runs.claim(db, "the slow one", timedelta(seconds=30))
    assert run is not None
    assert await integrity_runs.claim(db, "the other one", timedelta()) is not None
    assert not await integrity_runs.end(db, run, "the slow one", "finished", {"balanced": True})
    assert await has_state(db, id, "running")


async def test_a_stopped_check_is_broken_off(db: Database, monkeypatch: pytest.MonkeyPatch):
    begun, broken_off = asyncio.Event(), asyncio.Event()

    async def endless(*_args: object, **_more: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            broken_off.set()

    monkeypatch.setattr(integrity, "check_integrity", endless)
    monkeypatch.setattr(integrity_runner, "HEARTBEAT_INTERVAL_S", 0.02)
    id, one = await begin(db), maker(db)
    await one.start()
    await begun.wait()
    async with make_context(db).work(actor="test", caller=HOST) as work:
        await actions.stop(work, RunNamed(id=id))
    async with asyncio.timeout(300):
        await broken_off.wait()
    await one.stop()
    assert (await state_of(db, id)).data == {"error": "stopped by test"}


async def test_an_exception_in_a_check_fails_its_run(db: Database, monkeypatch: pytest.MonkeyPatch):
    async def broken(*_args: object, **_more: object) -> None:
        raise ZeroDivisionError("of the check itself")

    monkeypatch.setattr(integrity, "check_integrity", broken)
    id, one = await begin(db), maker(db)
    await one.start()
    await eventually(lambda: has_state(db, id, "failed"))
    assert "of the check itself" in (await state_of(db, id)).data["error"]
    await one.stop()


async def test_tasks_that_run_in_pieces_leave_checks_alone(db: Database):
    id = await begin(db)
    assert await run_tasks(db, Outbox()) == 0
    assert await has_state(db, id, "running")


async def test_only_the_last_ones_are_kept(db: Database):
    for _ in range(integrity_runs.MAX_RUNS + 3):
        id = await begin(db)
        async with make_context(db).work(actor="test", caller=HOST) as work:
            await actions.stop(work, RunNamed(id=id))
            assert len((await actions.list_runs(work, AllRuns())).data) <= integrity_runs.MAX_RUNS
    assert await db.fetchval("select count(*) from boathook.task") == integrity_runs.MAX_RUNS
