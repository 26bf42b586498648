"""Maintenance: old rows are deleted and counted, and pending deliveries keep their events."""

import asyncio
import hashlib
import os
import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from boathook.config import RetentionSettings
from boathook.db import maintenance
from boathook.db.database import Database
from boathook.db.maintenance import run_maintenance
from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=200)
TABLES = ("event", "attempt", "delivery_archive", "side_effect", "reply")


def retention(**changes: float) -> RetentionSettings:
    """The default settings with some changed."""
    defaults = {
        "events_days": 90, "dedup_days": 30, "conflicts_days": 90, "rejections_days": 7, "rejections_count": 1000,
        "rejections_bytes": 16_777_216, "rejections_rate": 10.0, "maintenance_interval_s": 60.0,
    }  # fmt: skip
    return RetentionSettings.model_validate(defaults | changes)


def new_id(moment: datetime) -> UUID:
    return ids.make(int(moment.timestamp() * 1000), random.getrandbits(74))


async def make_week(db: Database, moment: datetime) -> None:
    """Create the partitions of a past week."""
    monday = (moment - timedelta(days=moment.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)
    low, high = ids.first_of(monday), ids.first_of(monday + timedelta(days=7))
    for table in TABLES:
        await db.execute(
            f"create table boathook.{table}_{monday:%Y%m%d} partition of boathook.{table}"
            f" for values from ('{low}') to ('{high}')"
        )


async def add_event(db: Database, moment: datetime, *, state: str = "succeeded") -> UUID:
    """Store an event with one delivery in *state*, its attempt, an effect and a reply."""
    event_id, body = new_id(moment), os.urandom(20)
    await db.execute(
        "insert into boathook.event (id, source, type, dedup_key, grade, origin, headers, content_type, body, body_sha256,"
        " fanout, accepted_at) values ($1, 's', 't', $2, 'none', 'received', '{}', '', $3, $4, 1, $5)",
        event_id, str(event_id), body, hashlib.sha256(body).digest(), moment,
    )  # fmt: skip
    if state == "succeeded":
        await db.execute(
            "insert into boathook.delivery_archive values ($1, 0, 'h', 'succeeded', null, false, 1, 0, null, $2)",
            event_id,
            moment,
        )
    else:
        await db.execute(
            "insert into boathook.delivery (event_id, ordinal, recipient, state, attempts, dead_at, code)"
            " values ($1, 0, 'h', $2, 1, case when $2 = 'dead' then now() end, case when $2 = 'dead' then 'BAD' end)",
            event_id, state,
        )  # fmt: skip
    outcome = "succeeded" if state == "succeeded" else "failed"
    await db.execute(
        "insert into boathook.attempt values ($1, 0, 1, $2, null, null, null, 'w', $3, $3)", event_id, outcome, moment
    )
    await db.execute("insert into boathook.side_effect values ($1, 'h', 'mail', '1')", event_id)
    await db.execute("insert into boathook.reply values ($1, 'h', 200, 'text/plain', 'yes')", event_id)
    return event_id


async def stored(db: Database) -> dict[str, int]:
    return {table: await db.fetchval(f"select count(*) from boathook.{table}") for table in TABLES}


async def counted(db: Database) -> dict[tuple[str, str], int]:
    rows = await db.fetch("select kind, reason, sum(dropped)::int as n from boathook.purge_log group by 1, 2")
    return {(row["kind"], row["reason"]): row["n"] for row in rows}


async def partitions(db: Database, table: str) -> set[str]:
    rows = await db.fetch(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = $1::text::regclass",
        f"boathook.{table}",
    )
    return {row["name"].removeprefix("boathook.") for row in rows}


async def test_an_old_week_is_dropped_and_counted(db: Database) -> None:
    await make_week(db, OLD)
    for _ in range(7):
        await add_event(db, OLD)
    young = await add_event(db, NOW)
    report = await run_maintenance(db, retention())
    assert report.weeks_dropped == 1
    assert report.left == []
    assert dict(report.dropped) == await counted(db) == {(table, "age"): 7 for table in TABLES}
    assert [row["id"] for row in await db.fetch("select id from boathook.event")] == [young]
    assert await stored(db) == dict.fromkeys(TABLES, 1)
    assert len(await partitions(db, "event")) == 6  # this week, four ahead, and the default


async def test_a_week_is_kept_until_its_last_day_is_old_enough(db: Database) -> None:
    monday = (NOW - timedelta(days=NOW.weekday() + 70)).replace(hour=0, minute=0, second=0, microsecond=0)
    await make_week(db, monday)
    await add_event(db, monday)
    age = (datetime.now(UTC) - monday - timedelta(days=7)) / timedelta(days=1)
    report = await run_maintenance(db, retention(events_days=age + 0.01))
    assert report.weeks_dropped == 0
    assert (await stored(db))["event"] == 1
    report = await run_maintenance(db, retention(events_days=age - 0.01))
    assert report.weeks_dropped == 1
    assert (await stored(db))["event"] == 0


@pytest.mark.parametrize("state", ["dead", "pending"])
async def test_an_open_delivery_keeps_its_event_and_related_rows(db: Database, state: str) -> None:
    await make_week(db, OLD)
    kept = await add_event(db, OLD, state=state)
    for _ in range(5):
        await add_event(db, OLD)
    report = await run_maintenance(db, retention())
    assert report.weeks_dropped == 0
    assert await counted(db) == {(table, "age"): 5 for table in TABLES}
    assert [row["id"] for row in await db.fetch("select id from boathook.event")] == [kept]
    assert await stored(db) == {"event": 1, "attempt": 1, "delivery_archive": 0, "side_effect": 1, "reply": 1}

    await db.execute("delete from boathook.delivery")
    report = await run_maintenance(db, retention())
    assert report.weeks_dropped == 1
    assert (await counted(db))["event", "age"] == 6
    assert await stored(db) == dict.fromkeys(TABLES, 0)


async def test_mutant_without_the_delivery_check_a_dead_letter_loses_its_event(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_week(db, OLD)
    await add_event(db, OLD, state="dead")
    monkeypatch.setitem(maintenance.SQL, "is_week_pending", "select false and $1::timestamptz is null")
    await run_maintenance(db, retention())
    assert (await stored(db))["event"] == 0


async def test_old_events_are_deleted_in_batches(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BATCH", 3)
    await make_week(db, OLD)
    await add_event(db, OLD, state="dead")
    for _ in range(10):
        await add_event(db, OLD)
    await run_maintenance(db, retention())
    assert (await counted(db))["event", "age"] == 10
    assert await db.fetchval("select count(*) from boathook.purge_log") == len(
        TABLES
    )  # one row a day and kind, however many batches


async def test_an_event_that_is_being_replayed_stays(db: Database) -> None:
    await make_week(db, OLD)
    await add_event(db, OLD, state="dead")
    replayed = await add_event(db, OLD)
    async with db.transaction() as operator:
        await operator.execute(
            "select pg_advisory_xact_lock(hashtextextended('boathook.replay:' || $1, 0))", str(replayed)
        )
        await run_maintenance(db, retention())
        await operator.execute(
            "insert into boathook.delivery (event_id, ordinal, recipient, is_replay) values ($1, 1, 'h', true)",
            replayed,
        )
    await run_maintenance(db, retention())
    assert (await stored(db))["event"] == 2
    assert await counted(db) == {}


async def test_mutant_without_the_operators_lock_a_replayed_event_is_lost(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    heedless = maintenance.SQL["pick_old_events"].replace(
        "where pg_try_advisory_xact_lock", "where true or pg_try_advisory_xact_lock"
    )
    monkeypatch.setitem(maintenance.SQL, "pick_old_events", heedless)
    await make_week(db, OLD)
    await add_event(db, OLD, state="dead")
    replayed = await add_event(db, OLD)
    async with db.transaction() as operator:
        await operator.execute(
            "select pg_advisory_xact_lock(hashtextextended('boathook.replay:' || $1, 0))", str(replayed)
        )
        await run_maintenance(db, retention())
        await operator.execute(
            "insert into boathook.delivery (event_id, ordinal, recipient, is_replay) values ($1, 1, 'h', true)",
            replayed,
        )
    assert await db.fetchval("select count(*) from boathook.event where id = $1", replayed) == 0


async def test_a_reader_of_an_old_week_is_waited_for_and_not_disturbed(db: Database) -> None:
    await make_week(db, OLD)
    await add_event(db, OLD)
    async with db.transaction() as reader:
        assert await reader.fetchval("select count(*) from boathook.event") == 1
        report = await run_maintenance(db, retention())
        assert report.left
        assert report.weeks_dropped == 0
        assert not report.dropped
        assert await reader.fetchval("select count(*) from boathook.event") == 1
    assert await counted(db) == {}
    assert (await run_maintenance(db, retention())).weeks_dropped == 1
    assert (await counted(db))["event", "age"] == 1


async def test_live_traffic_on_the_parents_only_delays_the_drop(db: Database) -> None:
    await make_week(db, OLD)
    await add_event(db, OLD)
    async with db.transaction() as handler:
        event_id = new_id(NOW)
        await handler.execute("insert into boathook.side_effect values ($1, 'h', 'mail', '1')", event_id)
        report = await run_maintenance(db, retention())
        assert report.weeks_dropped == 0
        assert report.dropped["event", "age"] == 1
    assert await db.fetchval("select count(*) from boathook.event") == 0
    report = await run_maintenance(db, retention())
    assert report.weeks_dropped == 1
    assert not report.dropped
    assert (await counted(db))["event", "age"] == 1


async def test_rows_in_the_default_partition_are_moved(db: Database) -> None:
    last_week, far = NOW - timedelta(days=21), NOW + timedelta(days=50)
    strays = [await add_event(db, moment) for moment in (last_week, last_week, far)]
    assert await db.fetchval("select count(*) from boathook.event_default") == 3
    report = await run_maintenance(db, retention())
    assert report.rows_moved == 3 * len(TABLES)
    assert report.partitions_created == 2 * len(TABLES)
    for table in TABLES:
        assert await db.fetchval(f"select count(*) from boathook.{table}_default") == 0
    assert {row["id"] for row in await db.fetch("select id from boathook.event")} == set(strays)
    assert await counted(db) == {}
    with pytest.raises(Exception, match="duplicate key"):
        await db.execute("insert into boathook.event select * from boathook.event where id = $1", strays[0])


async def test_future_partitions_are_created_after_a_long_pause(db: Database) -> None:
    for name in await partitions(db, "event"):
        if not name.endswith("default"):
            await db.execute(f"drop table boathook.{name}")
    stray = await add_event(db, NOW)
    report = await run_maintenance(db, retention())
    assert report.left == []
    assert len(await partitions(db, "event")) == 6
    assert (
        await db.fetchval("select tableoid::regclass::text from boathook.event where id = $1", stray)
        != "boathook.event_default"
    )


async def test_too_many_strays_stay_and_nothing_breaks(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MAX_MOVED_ROWS", 1)
    for name in await partitions(db, "event"):
        if not name.endswith("default"):
            await db.execute(f"drop table boathook.{name}")
    for _ in range(2):
        await add_event(db, NOW)
    report = await run_maintenance(db, retention())
    assert len(report.left) == 2
    assert await db.fetchval("select count(*) from boathook.event_default") == 2


async def test_old_strays_are_dropped_where_they_are(db: Database) -> None:
    await add_event(db, OLD)
    await add_event(db, OLD, state="dead")
    await run_maintenance(db, retention())
    assert await counted(db) == {(table, "age"): 1 for table in TABLES}
    assert (await stored(db))["event"] == 1


async def test_only_expired_keys_are_deleted(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BATCH", 4)
    await db.execute(
        "insert into boathook.dedup (key, event_id, body_sha256, expires_at)"
        " select gen_random_uuid(), gen_random_uuid(), sha256('x'), now() + make_interval(mins => case when n <= 11 then -1 else 1 end)"
        " from generate_series(1, 20) n"
    )
    report = await run_maintenance(db, retention())
    assert report.dropped["dedup", "expired"] == 11
    assert await counted(db) == {("dedup", "expired"): 11}
    assert await db.fetchval("select count(*) from boathook.dedup where expires_at > now()") == 9
    assert await db.fetchval("select count(*) from boathook.dedup") == 9


async def test_a_large_memory_of_keys_is_covered_over_many_rounds(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MAX_PAGES", 4)
    await db.execute(
        "insert into boathook.dedup (key, event_id, body_sha256, expires_at)"
        " select gen_random_uuid(), gen_random_uuid(), sha256('x'), now() - interval '1 day' from generate_series(1, 1500) n"
    )
    first = (await run_maintenance(db, retention())).dropped["dedup", "expired"]
    assert 0 < first < 1500
    for _ in range(300):
        if not await db.fetchval("select count(*) from boathook.dedup"):
            break
        await run_maintenance(db, retention())
    assert await counted(db) == {("dedup", "expired"): 1500}


async def test_a_key_in_use_is_passed_by(db: Database) -> None:
    await db.execute(
        "insert into boathook.dedup (key, event_id, body_sha256, expires_at)"
        " select gen_random_uuid(), gen_random_uuid(), sha256('x'), now() - interval '1 day' from generate_series(1, 3)"
    )
    async with db.transaction() as gateway:
        await gateway.execute("select from boathook.dedup limit 1 for update")
        assert (await run_maintenance(db, retention())).dropped["dedup", "expired"] == 2
    assert (await run_maintenance(db, retention())).dropped["dedup", "expired"] == 1


async def add_rejection(
    db: Database, source: str, age: timedelta, size: int = 10, reason: str = "signature_mismatch"
) -> UUID:
    identifier = new_id(datetime.now(UTC) - age)
    await db.execute(
        "insert into boathook.rejection values ($1, $2, 401, $5, '', '', 'POST', '/', '{}', '', $3, $4)",
        identifier, source, b"x" * size, size, reason,
    )  # fmt: skip
    return identifier


async def test_rejections_are_bounded_for_each_source(db: Database) -> None:
    kept = [await add_rejection(db, "a", timedelta(minutes=minutes)) for minutes in range(3)]
    for minutes in range(3, 8):
        await add_rejection(db, "a", timedelta(minutes=minutes))
    await add_rejection(db, "a", timedelta(days=8))
    kept += [await add_rejection(db, "b", timedelta(minutes=5), size=60)]
    await add_rejection(db, "b", timedelta(minutes=6), size=60)
    report = await run_maintenance(db, retention(rejections_count=3, rejections_bytes=100))
    expected = {("rejection", "age"): 1, ("rejection", "count"): 5, ("rejection", "bytes"): 1}
    assert dict(report.dropped) == await counted(db) == expected
    assert {row["id"] for row in await db.fetch("select id from boathook.rejection")} == set(kept)


async def keep_beside_a_flood(db: Database) -> bool:
    """Return whether rejections of a source outlive later ones that have no body or no source."""
    kept = {await add_rejection(db, "a", timedelta(hours=1))}
    kept.add(await add_rejection(db, "a", timedelta(hours=1), size=0, reason="body_too_large"))
    for minutes in range(10):
        await add_rejection(db, "", timedelta(minutes=minutes), size=0, reason="unknown_path")
    for minutes in range(1, 3):
        await add_rejection(db, "a", timedelta(minutes=minutes), size=0, reason="method_not_allowed")
    await run_maintenance(db, retention(rejections_count=3))
    rows = await db.fetch("select id, source from boathook.rejection")
    assert sum(not row["source"] for row in rows) <= 3
    return kept <= {row["id"] for row in rows}


async def test_rejections_of_no_source_and_those_without_a_body_evict_no_others(db: Database) -> None:
    assert await keep_beside_a_flood(db)


async def test_the_eviction_is_seen_where_all_have_one_bound(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    window = "partition by source, reason = any ($4::text[])"
    statement = maintenance.SQL["bound_rejections"]
    assert window in statement
    mutant = statement.replace(window, "partition by $4::text[]")
    monkeypatch.setitem(maintenance.SQL, "bound_rejections", mutant)
    assert not await keep_beside_a_flood(db)


async def test_old_conflicts_are_deleted(db: Database) -> None:
    for days in (10, 89, 91, 300):
        await db.execute(
            "insert into boathook.conflict (id, event_id, source, dedup_key, type, grade, differs, headers, content_type, body,"
            " body_sha256, last_seen_at) values ($1, $1, 's', 'k', 't', 'none', 'body', '{}', '', '', '', now() - make_interval(days => $2))",
            new_id(OLD), days,
        )  # fmt: skip
    await run_maintenance(db, retention())
    assert await counted(db) == {("conflict", "age"): 2}
    assert await db.fetchval("select count(*) from boathook.conflict") == 2


async def test_two_at_once_do_not_count_twice(db: Database) -> None:
    await make_week(db, OLD)
    for _ in range(20):
        await add_event(db, OLD)
    reports = await asyncio.gather(*(run_maintenance(db, retention()) for _ in range(4)))
    assert sum(report.dropped["event", "age"] for report in reports) == 20
    assert (await counted(db))["event", "age"] == 20


async def test_maintenance_running_elsewhere_is_not_disturbed(db: Database) -> None:
    async with db.acquire() as other:
        await other.execute(maintenance.SQL["try_lock"])
        assert (await run_maintenance(db, retention())).was_already_running
        await other.execute(maintenance.SQL["release_lock"])
    assert not (await run_maintenance(db, retention())).was_already_running


async def test_the_count_and_the_deletion_are_one_transaction(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_week(db, OLD)
    for _ in range(3):
        await add_event(db, OLD)
    monkeypatch.setitem(maintenance.SQL, "empty_week", "select 1 / 0; truncate {children}")
    with pytest.raises(Exception, match="division by zero"):
        await run_maintenance(db, retention())
    assert await counted(db) == {}
    assert (await stored(db))["event"] == 3


async def test_maintenance_does_not_block_storing_events(db: Database) -> None:
    """Weeks are dropped and made while a writer never waits long."""
    for weeks in range(4):
        await make_week(db, OLD - timedelta(weeks=weeks))
        await add_event(db, OLD - timedelta(weeks=weeks))
    stop, slowest, written = asyncio.Event(), 0.0, 0

    async def write() -> None:
        nonlocal slowest, written
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            began = loop.time()
            await add_event(db, NOW)
            slowest, written = max(slowest, loop.time() - began), written + 1

    writer = asyncio.create_task(write())
    dropped = 0
    for _ in range(50):
        dropped += (await run_maintenance(db, retention())).weeks_dropped
        if dropped == 4 and written > 20:
            break
    stop.set()
    await writer
    assert dropped == 4
    assert (await counted(db))["event", "age"] == 4
    assert (await stored(db))["event"] == written
    assert slowest < 5


async def test_raises_when_the_server_is_down(db: Database) -> None:
    await db.close()
    with pytest.raises(DatabaseUnavailable):
        await run_maintenance(db, retention())


async def content(db: Database) -> dict[str, int]:
    """Return the bytes left of each event, by its dedup key."""
    rows = await db.fetch(
        "select dedup_key, octet_length(body) as size, expunged_at from boathook.event order by dedup_key"
    )
    assert all((row["size"] == 0) == (row["expunged_at"] is not None) for row in rows)
    return {row["dedup_key"]: row["size"] for row in rows}


async def test_expired_content_is_deleted_without_pending_deliveries(db: Database) -> None:
    states = {"done": "succeeded", "dead": "dead", "waiting": "pending", "young": "succeeded", "kept": "succeeded"}
    for key, state in states.items():
        event_id = await add_event(db, NOW, state=state)
        until = {"young": NOW + timedelta(days=1), "kept": None}.get(key, NOW - timedelta(seconds=1))
        await db.execute(
            "update boathook.event set dedup_key = $2, content_until = $3 where id = $1", event_id, key, until
        )
    report = await run_maintenance(db, retention())
    assert await content(db) == {"dead": 0, "done": 0, "kept": 20, "waiting": 20, "young": 20}
    assert await counted(db) == dict(report.dropped) == {("content", "expired"): 2}
    await db.execute("delete from boathook.delivery where state = 'pending'")
    await run_maintenance(db, retention())
    assert (await content(db))["waiting"] == 0
    assert await counted(db) == {("content", "expired"): 3}


async def test_content_is_deleted_in_batches_except_during_a_replay(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BATCH", 4)
    events = [await add_event(db, NOW) for _ in range(9)]
    await db.execute("update boathook.event set content_until = now() - interval '1 s'")
    async with db.transaction() as connection:
        await connection.fetch(
            "select pg_advisory_xact_lock(hashtextextended('boathook.replay:' || $1::uuid::text, 0))", events[0]
        )
        await run_maintenance(db, retention())
        sizes = (await content(db)).values()
        assert sorted(sizes) == [0] * 8 + [20]
    await run_maintenance(db, retention())
    assert set((await content(db)).values()) == {0}


async def test_without_the_second_check_content_of_a_replay_is_deleted(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: content is deleted without checking for deliveries again."""
    event_id = await add_event(db, NOW)
    await db.execute("update boathook.event set content_until = now() - interval '1 s'")

    async def added_before_the_delete() -> int:
        # What `expunge_content` is given is what was picked before a replay that has committed since.
        await db.execute(
            "insert into boathook.delivery (event_id, ordinal, recipient, is_replay) values ($1, 1, 'h', true)"
            " on conflict do nothing",
            event_id,
        )
        number: int = await db.fetchval(maintenance.SQL["expunge_content"], [event_id])
        return number

    assert await added_before_the_delete() == 0
    guard = "and not exists (select from boathook.delivery d where d.event_id = e.id and d.state <> 'dead')"
    assert guard in maintenance.SQL["expunge_content"]
    monkeypatch.setitem(maintenance.SQL, "expunge_content", maintenance.SQL["expunge_content"].replace(guard, ""))
    assert await added_before_the_delete() == 1


async def test_a_retention_beyond_1970_keeps_everything(db: Database) -> None:
    await db.execute(
        "drop table " + ", ".join(f"boathook.{name}" for name in await partitions(db, "event") - {"event_default"})
    )
    await add_event(db, NOW)
    await add_rejection(db, "a", timedelta(minutes=1))
    await db.execute("insert into boathook.unhandled (event_id, subject) select id, source from boathook.event")
    report = await run_maintenance(db, retention(events_days=36_500, rejections_days=36_500))
    assert dict(report.dropped) == {}
