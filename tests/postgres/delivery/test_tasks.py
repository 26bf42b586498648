"""Tasks: messages replayed exactly once despite interruptions, and background counts and purges."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from boathook.db import integrity, resends, tasks
from boathook.db.database import Connection, Database
from boathook.db.tasks import Task, TaskOperation, TaskState
from boathook.delivery import tasks as runner
from boathook.domain import ids
from boathook.handlers.outbox import Outbox
from boathook.service.unit_of_work import new_id
from tests.postgres.message_factory import MessageFactory, ago
from tests.support import sampled

FAR = timedelta(days=1)


async def start(factory: MessageFactory, kind: TaskOperation, endpoint_id: UUID | None = None, **request: Any) -> Task:
    """Store a task about the factory's application, by default about the last week."""
    async with factory.db.transaction() as connection:
        return await insert(connection, factory, kind, endpoint_id, **request)


async def insert(
    connection: Connection,
    factory: MessageFactory,
    kind: TaskOperation,
    endpoint_id: UUID | None = None,
    **request: Any,
) -> Task:
    return await tasks.insert(
        connection,
        new_id(),
        kind,
        organization=factory.organization,
        application_id=factory.application_id,
        endpoint_id=endpoint_id,
        request={"since": ago(days=7).isoformat(), "until": datetime.now(UTC).isoformat()} | request,
    )


async def preview(factory: MessageFactory, task: Task) -> int:
    """Return how many messages a task would send, counted without a change."""
    assert task.endpoint_id is not None
    before = await factory.pending_deliveries(task.endpoint_id)
    async with factory.db.transaction() as connection:
        number, is_whole = await runner.count_resends(
            connection, task.kind, factory.application_id, task.endpoint_id, task.request
        )
    assert is_whole
    assert await factory.pending_deliveries(task.endpoint_id) == before
    return number


RESENDS = {TaskOperation.RECOVER, TaskOperation.REPLAY_MISSING, TaskOperation.BULK_REPLAY}


async def run(factory: MessageFactory, task: Task) -> Task:
    """Run steps until a task has ended; those that send messages send as many as were counted before."""
    counted = await preview(factory, task) if task.kind in RESENDS and not task.place else None
    ended = await run_to_the_end(factory, task)
    assert counted is None or ended.state is TaskState.FAILED or ended.data == {"messagesSent": counted}
    return ended


async def run_to_the_end(factory: MessageFactory, task: Task) -> Task:
    """Run steps until a task has ended."""
    for _ in range(1_000):
        async with factory.db.acquire() as connection:
            found = await tasks.find(connection, factory.organization, task.id)
        assert found is not None
        if found.state is not TaskState.RUNNING:
            return found
        await runner.run_step(factory.db, Outbox())
    raise AssertionError("the task does not end")


@pytest.fixture
async def factory(db: Database) -> AsyncIterator[MessageFactory]:
    """A message factory whose store must be consistent in the end."""
    yield await MessageFactory(db).open()
    found = await integrity.check_integrity(db, dedup_days=30, is_deep=True)
    assert found.violations == ()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resends, "PAGE", 40)
    monkeypatch.setattr(resends, "BODY_PAGE", 7)


async def three_hundred_failed(factory: MessageFactory, endpoint_id: UUID) -> list[UUID]:
    dice = random.Random(4)
    return [
        await factory.failed(ago(hours=20) + timedelta(seconds=3 * place), endpoint_id, dice, attempts=2)
        for place in range(300)
    ]


async def revived(factory: MessageFactory, endpoint_id: UUID) -> list[UUID]:
    rows = await factory.pending_deliveries(endpoint_id)
    assert all(
        row["replays"] == 1 and row["attempts_before"] == row["attempts"] and row["is_manual"]
        for row in rows
        if row["state"] == "pending"
    )
    return [row["event_id"] for row in rows if row["state"] == "pending"]


@pytest.mark.extended("needs thousands of rows, objects or connections")
async def test_recover_revives_each_of_300_failed_messages_once(factory: MessageFactory, small_pages: None):
    endpoint_id = await factory.endpoint()
    failed = await three_hundred_failed(factory, endpoint_id)
    task = await run(factory, await start(factory, TaskOperation.RECOVER, endpoint_id))
    assert task.state is TaskState.FINISHED
    assert task.data == {"messagesSent": 300}
    assert await revived(factory, endpoint_id) == sorted(failed)
    again = await run(factory, await start(factory, TaskOperation.RECOVER, endpoint_id))
    assert again.data == {"messagesSent": 0}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_paging_by_the_time_of_death_would_lose_messages(
    factory: MessageFactory, small_pages: None, monkeypatch: pytest.MonkeyPatch
):
    """The mutant: messages do not die in the order of their ids, so an order of deaths cannot be walked by ids."""
    endpoint_id = await factory.endpoint()
    await three_hundred_failed(factory, endpoint_id)
    by_death = """select event_id from boathook.delivery
        where recipient = $1 and state = 'dead' and event_id >= $2 and event_id < $3 and dead_at <= $4
        order by dead_at limit $5"""
    monkeypatch.setitem(resends.SQL, "page_dead", by_death)
    task = await run_to_the_end(factory, await start(factory, TaskOperation.RECOVER, endpoint_id))
    assert task.data["messagesSent"] < 300


async def test_recover_leaves_everything_else_alone(factory: MessageFactory):
    endpoint_id, other = await factory.endpoint(), await factory.endpoint()
    dice = random.Random(1)
    early = await factory.failed(ago(days=8), endpoint_id, dice)
    elsewhere = await factory.failed(ago(hours=9), other, dice)
    retried = await factory.message(ago(hours=8), recipients=(endpoint_id,), due=datetime.now(UTC) + FAR)
    await factory.attempt(retried, moment=ago(hours=7))
    repaired = await factory.message(ago(hours=6), recipients=(endpoint_id, endpoint_id))
    await factory.attempt(repaired, 0, moment=ago(hours=5), outcome="dead")
    await factory.attempt(repaired, 1, moment=ago(hours=4), outcome="succeeded", is_manual=True)
    canceled = await factory.message(ago(hours=3), recipients=(endpoint_id,))
    await factory.mark_dead(canceled, code="CANCELED")
    forgotten = await factory.message(ago(hours=3), recipients=(endpoint_id,), expunged_at=ago(hours=1))
    await factory.mark_dead(forgotten)
    failed = await factory.failed(ago(hours=2), endpoint_id, dice)
    before = {row["event_id"]: dict(row) for row in await factory.pending_deliveries(endpoint_id)}
    task = await run(factory, await start(factory, TaskOperation.RECOVER, endpoint_id))
    assert task.data == {"messagesSent": 1}
    after = {row["event_id"]: dict(row) for row in await factory.pending_deliveries(endpoint_id)}
    assert {one for one in after if after[one] != before[one]} == {failed}
    assert early in after
    assert retried in after
    assert canceled in after
    assert [row["state"] for row in await factory.pending_deliveries(other)] == ["dead"]
    assert elsewhere not in after


async def test_of_several_dead_letters_of_a_message_recover_revives_one(factory: MessageFactory):
    endpoint_id = await factory.endpoint()
    message_id = await factory.message(ago(hours=6), recipients=(endpoint_id, endpoint_id, endpoint_id))
    await factory.db.execute("update boathook.delivery set is_manual = ordinal < 2")
    for ordinal in range(3):
        await factory.attempt(message_id, ordinal, moment=ago(hours=5 - ordinal), outcome="dead")
    task = await run(factory, await start(factory, TaskOperation.RECOVER, endpoint_id))
    assert task.data == {"messagesSent": 1}
    pending = [row for row in await factory.pending_deliveries(endpoint_id) if row["state"] == "pending"]
    assert [row["ordinal"] for row in pending] == [2]


@pytest.mark.parametrize(
    "kind", sampled([TaskOperation.RECOVER, TaskOperation.REPLAY_MISSING, TaskOperation.BULK_REPLAY], keep=1)
)
async def test_a_task_killed_at_any_step_does_everything_once(
    factory: MessageFactory, small_pages: None, monkeypatch: pytest.MonkeyPatch, kind: TaskOperation
):
    endpoint_id = await factory.endpoint()
    dice = random.Random(2)
    for place in range(130):
        moment = ago(hours=20) + timedelta(seconds=9 * place)
        if kind is TaskOperation.REPLAY_MISSING:
            await factory.message(moment)
        else:
            await factory.failed(moment, endpoint_id, dice, attempts=1)
    task = await start(factory, kind, endpoint_id)
    await runner.run_step(factory.db, Outbox())
    save = tasks.save

    async def die(*_args: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    for _ in range(2):
        monkeypatch.setattr(tasks, "save", die)
        with pytest.raises(KeyboardInterrupt):
            await runner.run_step(factory.db, Outbox())
        monkeypatch.setattr(tasks, "save", save)
        await runner.run_step(factory.db, Outbox())
    ended = await run_to_the_end(factory, task)
    assert ended.data == {"messagesSent": 130}
    rows = await factory.pending_deliveries(endpoint_id)
    assert len(rows) == len({row["event_id"] for row in rows}) == 130
    assert all(row["state"] == "pending" for row in rows)


async def test_a_place_that_is_lost_in_a_crash_would_show(
    factory: MessageFactory, small_pages: None, monkeypatch: pytest.MonkeyPatch
):
    """The mutant: a step that does not commit together with its cursor is counted twice, or skipped."""
    endpoint_id = await factory.endpoint()
    for place in range(130):
        await factory.message(ago(hours=20) + timedelta(seconds=9 * place))
    task = await start(factory, TaskOperation.REPLAY_MISSING, endpoint_id)
    owe_missing = resends.resend_missing

    async def elsewhere(_connection: Any, *args: Any, **options: Any) -> Any:
        step = await owe_missing(_connection, *args, **options)
        await _connection.execute("rollback")
        await _connection.execute("begin")
        return step

    monkeypatch.setattr(resends, "resend_missing", elsewhere)
    ended = await run(factory, task)
    assert len(await factory.pending_deliveries(endpoint_id)) != ended.data["messagesSent"]


async def test_replay_missing_adds_matching_deliveries_only(factory: MessageFactory, small_pages: None):
    endpoint_id = await factory.endpoint(
        event_types=["invoice.*"], channels=["eu", "us"], filter='{"body": {"amount": {"gte": 100}}}'
    )
    fits = {"payload": {"amount": 100}, "channels": ["us"]}
    await factory.message(ago(days=8), **fits)
    known = await factory.message(ago(hours=5), recipients=(endpoint_id,), **fits)
    await factory.attempt(known, moment=ago(hours=5), outcome="succeeded")
    open_one = await factory.message(ago(hours=5), recipients=(endpoint_id,), **fits)
    await factory.message(ago(hours=4), type="customer.made", **fits)
    await factory.message(ago(hours=4), **fits | {"channels": ["asia"]})
    await factory.message(ago(hours=4), **fits | {"channels": None})
    await factory.message(ago(hours=4), **fits | {"payload": {"amount": 99}})
    await factory.message(ago(hours=4), **fits, expunged_at=ago(hours=1))
    missing = [await factory.message(ago(hours=3) + timedelta(seconds=place), **fits) for place in range(25)]
    task = await run(factory, await start(factory, TaskOperation.REPLAY_MISSING, endpoint_id))
    assert task.data == {"messagesSent": 25}
    rows = await factory.pending_deliveries(endpoint_id)
    assert [row["event_id"] for row in rows if row["is_replay"]] == missing
    assert [row["event_id"] for row in rows if not row["is_replay"]] == [open_one]
    assert all(row["ordinal"] == 0 and not row["is_manual"] for row in rows)
    again = await run(factory, await start(factory, TaskOperation.REPLAY_MISSING, endpoint_id))
    assert again.data == {"messagesSent": 0}


async def test_replayed_messages_of_an_ordered_endpoint_wait_in_line(factory: MessageFactory):
    endpoint_id = await factory.endpoint(order_by="customer")
    first = await factory.message(ago(hours=9), payload={"customer": "a"}, recipients=(endpoint_id,), order_key="a")
    for customer in ("a", "b", "a", "b"):
        await factory.message(ago(hours=5), payload={"customer": customer})
    task = await run(factory, await start(factory, TaskOperation.REPLAY_MISSING, endpoint_id))
    assert task.data == {"messagesSent": 4}
    rows = await factory.pending_deliveries(endpoint_id)
    by_key = {key: sorted((row for row in rows if row["order_key"] == key), key=lambda row: row["seq"]) for key in "ab"}
    assert by_key["a"][0]["event_id"] == first
    assert [row["is_blocked"] for row in by_key["a"]] == [False, True, True]
    assert [row["is_blocked"] for row in by_key["b"]] == [False, True]
    assert all([row["event_id"] for row in line] == sorted(row["event_id"] for row in line) for line in by_key.values())


async def test_bulk_replay_sends_successes_and_failures_again(factory: MessageFactory, small_pages: None):
    endpoint_id = await factory.endpoint()
    dice = random.Random(3)
    done = [await factory.message(ago(hours=9), recipients=(endpoint_id,), tags=["t"]) for _ in range(45)]
    for message_id in done:
        await factory.attempt(message_id, moment=ago(hours=9), outcome="succeeded", status=204)
    failed = await factory.failed(ago(hours=8), endpoint_id, dice)
    running = await factory.message(ago(hours=7), recipients=(endpoint_id,))
    await factory.message(ago(hours=7))
    task = await run(factory, await start(factory, TaskOperation.BULK_REPLAY, endpoint_id))
    assert task.data == {"messagesSent": 46}
    rows = await factory.pending_deliveries(endpoint_id)
    assert sorted(row["event_id"] for row in rows if row["is_replay"]) == sorted(done)
    assert [row["replays"] for row in rows if row["event_id"] == failed] == [1]
    assert {row["event_id"] for row in rows if row["is_manual"]} == {*done, failed}
    assert [row["replays"] for row in rows if row["event_id"] == running] == [0]


CHOICES = [
    ({"types": ["invoice.paid"]}, 2),
    ({"channel": "eu"}, 1),
    ({"tag": "t"}, 1),
    ({"status": 0}, 1),
    ({"status": 2}, 2),
    ({"status": 4}, 0),
    ({"status_class": 500}, 1),
    ({"status_class": 0}, 1),
    ({"status_class": 200}, 1),
    ({"status_class": 400}, 0),
]


async def test_bulk_replay_chooses_by_filters(factory: MessageFactory):
    endpoint_id = await factory.endpoint()
    one = await factory.message(ago(hours=9), recipients=(endpoint_id,), channels=["eu"])
    await factory.attempt(one, moment=ago(hours=9), outcome="dead", status=503)
    two = await factory.message(ago(hours=8), recipients=(endpoint_id,), tags=["t"])
    await factory.attempt(two, moment=ago(hours=8), outcome="dead", status=0)
    three = await factory.message(ago(hours=7), recipients=(endpoint_id,), type="other")
    await factory.attempt(three, moment=ago(hours=7), outcome="retry", status=500)
    await factory.attempt(three, moment=ago(hours=6), outcome="succeeded", status=200)
    for request, number in CHOICES:
        async with factory.db.transaction() as connection:
            task = await insert(connection, factory, TaskOperation.BULK_REPLAY, endpoint_id, **request)
            await runner.advance(connection, Outbox(), task)
            ended = await tasks.find(connection, factory.organization, task.id)
            assert ended is not None
            assert ended.data == {"messagesSent": number}, request
            await connection.execute("delete from boathook.delivery where is_replay")
            await connection.execute("update boathook.delivery set state = 'dead', dead_at = now() - interval '1 hour'")


async def test_a_task_for_a_deleted_endpoint_fails_with_the_reason(factory: MessageFactory):
    endpoint_id = await factory.endpoint(deleted_at=ago(hours=1))
    task = await run(factory, await start(factory, TaskOperation.RECOVER, endpoint_id))
    assert task.state is TaskState.FAILED
    assert task.data["error"] == "the endpoint was deleted"


async def test_a_failing_task_does_not_block_others(factory: MessageFactory, monkeypatch: pytest.MonkeyPatch):
    endpoint_id = await factory.endpoint()
    broken = await start(factory, TaskOperation.RECOVER, endpoint_id, since="no date")
    sound = await start(factory, TaskOperation.RECOVER, endpoint_id)
    await runner.run_tasks(factory.db, Outbox())
    assert (await run_to_the_end(factory, broken)).state is TaskState.FAILED
    assert (await run(factory, sound)).state is TaskState.FINISHED


async def test_a_finished_task_publishes_an_operational_event(factory: MessageFactory):
    operational = MessageFactory(factory.db)
    await operational.open()
    await factory.db.execute(
        "update boathook.application set is_operational = true where id = $1", operational.application_id
    )
    listener = await operational.endpoint(event_types=["background_task.finished"])
    task = await run(factory, await start(factory, TaskOperation.RECOVER, await factory.endpoint()))
    (owed,) = await operational.pending_deliveries(listener)
    body = await factory.db.fetchval(
        "select convert_from(body, 'UTF8')::json ->> 'data' from boathook.event where id = $1", owed["event_id"]
    )
    assert ids.show(ids.TASK, task.id) in body
    assert '"finished"' in body


async def test_purging_deletes_all_content_and_dead_letters_pending(
    factory: MessageFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "PURGED", 3)
    endpoint_id = await factory.endpoint()
    for _ in range(10):
        await factory.message(ago(hours=2), recipients=(endpoint_id,))
    other = await MessageFactory(factory.db).open()
    kept = await other.message(ago(hours=2))
    task = await run(factory, await start(factory, TaskOperation.PURGE_CONTENT))
    assert task.data == {"messagesPurged": 10}
    assert {row["state"] for row in await factory.pending_deliveries(endpoint_id)} == {"dead"}
    rest = await factory.db.fetch("select id from boathook.event where length(body) > 0")
    assert [row["id"] for row in rest] == [kept]


async def test_types_and_usage_are_counted_by_application(factory: MessageFactory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "APPLICATIONS", 2)
    monkeypatch.setattr(runner, "COUNTED", 1)
    factories = [factory] + [await MessageFactory(factory.db).open(uid=f"u{place}") for place in range(4)]
    await MessageFactory(factory.db, "other").open()
    await factories[1].endpoint(event_types=["b", "a"])
    await factories[1].endpoint(event_types=["b", "c"])
    catch_all = await factories[2].endpoint()
    await factories[2].message(ago(hours=1), recipients=(catch_all, await factories[2].endpoint()))
    await factories[2].message(ago(days=9), recipients=(catch_all,))
    types = (await run(factory, await start(factory, TaskOperation.AGGREGATE_TYPES))).data["event_types"]
    assert [row["appId"] for row in types] == [one.name for one in factories]
    assert types[1] == {
        "appId": factories[1].name,
        "explicitlySubscribedEventTypes": ["a", "b", "c"],
        "hasCatchAllEndpoint": False,
    }
    assert types[2]["hasCatchAllEndpoint"]
    assert types[2]["explicitlySubscribedEventTypes"] == []
    usage = (await run(factory, await start(factory, TaskOperation.COUNT_USAGE))).data["appStats"]
    assert [row["messageDestinations"] for row in usage] == [0, 0, 2, 0, 0]
    assert [row["appUid"] for row in usage] == [None, "u0", "u1", "u2", "u3"]
    some = await start(factory, TaskOperation.COUNT_USAGE, application_ids=[str(factories[2].application_id)])
    assert [row["appId"] for row in (await run(factory, some)).data["appStats"]] == [factories[2].name]
