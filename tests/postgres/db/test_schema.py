"""The schema: migrations are applied once and in order, and its rules refuse illegal rows."""

import asyncio
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from boathook.db import migrations
from boathook.db.database import Database
from boathook.db.migrations import list_pending, migrate
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, DatabaseUnavailable

FIRST = "0001_initial"

CATALOG = """
    select 'column' as kind, c.relname || '.' || a.attname as name,
        concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attstorage, a.attcompression,
            pg_get_expr(d.adbin, d.adrelid), c.relkind, c.reloptions::text, pg_get_partkeydef(c.oid),
            pg_get_expr(c.relpartbound, c.oid)) as what
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'boathook'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')
    union all
    select 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
    from pg_constraint where connamespace = 'boathook'::regnamespace
    union all
    select 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid)
    from pg_index where indrelid::regclass::text like 'boathook.%'
    union all
    select 'function', proname || '(' || pg_get_function_identity_arguments(oid) || ')', pg_get_functiondef(oid)
    from pg_proc where pronamespace = 'boathook'::regnamespace
    union all
    select 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid)
    from pg_trigger where not tgisinternal and tgrelid::regclass::text like 'boathook.%'
    order by 1, 2
"""


async def catalog(url: str) -> dict[tuple[str, str], str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(CATALOG)
    finally:
        await connection.close()
    return {(row["kind"], row["name"]): row["what"] for row in rows}


async def test_migrating_again_changes_nothing(empty_url: str) -> None:
    assert FIRST in await list_pending(empty_url)
    assert (await migrate(empty_url))[0] == FIRST
    before = await catalog(empty_url)
    assert await list_pending(empty_url) == []
    assert await migrate(empty_url) == []
    assert await catalog(empty_url) == before


async def test_pending_reads_an_open_database(db: Database, empty_url: str) -> None:
    assert await list_pending(db) == []
    empty = await Database.open(empty_url, purpose="test", size=1)
    assert FIRST in await list_pending(empty)
    await empty.close()


async def test_processes_that_start_together_migrate_once(empty_url: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_url) for _ in range(5)))
    assert sorted(len(names) for names in applied)[:4] == [0, 0, 0, 0]
    assert sum(names.count(FIRST) for names in applied) == 1


async def test_a_schema_made_beforehand_is_used(empty_url: str) -> None:
    connection = await asyncpg.connect(empty_url)
    await connection.execute("create schema boathook")
    await connection.close()
    assert FIRST in await migrate(empty_url)


async def test_a_newer_schema_is_not_changed(pg_url: str) -> None:
    connection = await asyncpg.connect(pg_url)
    await connection.execute(
        "insert into boathook.migration (app, name, sha256) values ('boathook', '9999_post_of_the_future', '')"
    )
    await connection.close()
    assert await list_pending(pg_url) == []
    assert await migrate(pg_url) == []


@pytest.fixture
def later_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The migrations with a *pre* and a *post* one after them."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.MIGRATIONS, folder)
    for name, sql in {
        "0998_pre_widen": "create table boathook.wide (a int); insert into boathook.wide values (1); select 1",
        "0999_post_narrow": "drop table boathook.wide",
    }.items():
        (folder / f"{name}.sql").write_text(sql)
    monkeypatch.setattr(migrations, "MIGRATIONS", folder)
    return folder


async def test_a_rolling_upgrade_stops_before_post(pg_url: str, later_migrations: Path) -> None:
    assert await list_pending(pg_url) == ["0998_pre_widen", "0999_post_narrow"]
    assert await migrate(pg_url, only_pre=True) == ["0998_pre_widen"]
    assert await migrate(pg_url, only_pre=True) == []
    assert await migrate(pg_url) == ["0999_post_narrow"]


async def test_a_refused_migration_changes_nothing_and_is_named(pg_url: str, later_migrations: Path) -> None:
    (later_migrations / "0998_pre_widen.sql").write_text("create table boathook.half (a int); select 1 / 0")
    with pytest.raises(DatabaseError, match=r"0998_pre_widen.*division by zero"):
        await migrate(pg_url)
    assert await list_pending(pg_url) == ["0998_pre_widen", "0999_post_narrow"]
    assert ("column", "half.a") not in await catalog(pg_url)


async def test_a_migration_waits_for_no_table_for_long(
    pg_url: str, later_migrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", "20ms")
    (later_migrations / "0998_pre_widen.sql").write_text("alter table boathook.route add column more int")
    holder = await asyncpg.connect(pg_url)
    async with holder.transaction():
        await holder.execute("select from boathook.route")
        with pytest.raises(DatabaseError, match="0998_pre_widen cannot lock"):
            await migrate(pg_url, only_pre=True)
    await holder.close()
    assert await migrate(pg_url, only_pre=True) == ["0998_pre_widen"]


async def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable):
        await migrate(f"postgresql://x@/x?host={tmp_path}")


def test_the_wheel_contains_the_migrations(tmp_path: Path) -> None:
    root = migrations.MIGRATIONS.parents[3]
    build = (
        "import sys; from hatchling.builders.wheel import WheelBuilder;"
        "print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard']))"
    )
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    made = subprocess.run(
        [sys.executable, "-c", build, str(root), str(tmp_path)], capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(made.stdout.strip()) as wheel:
        folder = "boathook/db/migrations"
        assert wheel.read(f"{folder}/{FIRST}.sql").startswith(b"--")
        for script in migrations.MIGRATIONS.glob("*.sql"):
            assert wheel.read(f"{folder}/{script.name}") == script.read_bytes()


EVENT = {
    "id": "'00000000-0000-7000-8000-000000000001'", "source": "'s'", "application": "null", "type": "'t'", "dedup_key": "'k'",
    "grade": "'body signed'", "origin": "'received'", "headers": "'{}'", "content_type": "''", "body": "''",
    "body_sha256": "sha256('')", "fanout": "1",
}  # fmt: skip
DELIVERY = {"event_id": "gen_random_uuid()", "ordinal": "0", "recipient": "'h'"}
LEASED = DELIVERY | {"state": "'leased'", "attempts": "1", "fence": "1", "leased_by": "'w'", "lease_until": "now()"}
DEAD = DELIVERY | {"state": "'dead'", "dead_at": "now()", "code": "'X'"}
ATTEMPT = {
    "event_id": "gen_random_uuid()", "ordinal": "0", "number": "1", "outcome": "'failed'", "worker": "'w'",
    "started_at": "now()", "ended_at": "now()",
}  # fmt: skip
OUTCOME = {
    "event_id": "gen_random_uuid()", "ordinal": "0", "recipient": "'h'", "state": "'succeeded'", "is_replay": "false",
    "attempts": "1", "replays": "0", "ended_at": "now()",
}  # fmt: skip
ROUTE = {
    "recipient": "'h'", "position": "0", "app": "'a'", "types": "'{*}'", "policy": "'{}'", "timeout_s": "1",
}  # fmt: skip
CONFLICT = {
    "id": "gen_random_uuid()", "event_id": "gen_random_uuid()", "dedup_key": "'k'", "type": "'t'", "grade": "'none'",
    "differs": "'body'", "headers": "'{}'", "content_type": "''", "body": "''", "body_sha256": "''",
}  # fmt: skip
DEDUP = {
    "key": "gen_random_uuid()",
    "event_id": "gen_random_uuid()",
    "body_sha256": "sha256('')",
    "expires_at": "now()",
}
REPLY = {
    "event_id": "gen_random_uuid()", "recipient": "'h'", "status": "200", "content_type": "'text/plain'", "body": "'OK'",
}  # fmt: skip

LEGAL = {
    "event": [
        EVENT,
        EVENT | {"origin": "'accepted_conflict'"},
        EVENT | {"source": "null", "origin": "'published'", "application": "'a'"},
    ],
    "delivery": [
        DELIVERY,
        LEASED,
        DEAD,
        DELIVERY | {"is_blocked": "true", "order_key": "'k'"},
        DELIVERY | {"item_path": "'events.0'", "item_type": "'paid'"},
    ],
    "attempt": [ATTEMPT],
    "delivery_archive": [OUTCOME, OUTCOME | {"state": "'ignored'", "attempts": "0", "note": "'by hand'"}],
    "route": [ROUTE],
    "conflict": [CONFLICT],
    "dedup": [DEDUP],
    "reply": [REPLY],
    "purge_log": [{"kind": "'event'", "reason": "'age'", "dropped": "0"}],
}
ILLEGAL = {
    "event": [
        EVENT | {"body_sha256": "'short'"},
        EVENT | {"grade": "'trusted'"},
        EVENT | {"origin": "'found'"},
        EVENT | {"fanout": "-1"},
        EVENT | {"source": "null"},
        EVENT | {"application": "'a'"},
        EVENT | {"body": "null"},
        EVENT | {"type": "null"},
    ],
    "delivery": [
        DELIVERY | {"state": "'succeeded'"},
        DELIVERY | {"state": "'done'"},
        DELIVERY | {"ordinal": "-1"},
        DELIVERY | {"attempts": "-1"},
        DELIVERY | {"leased_by": "'w'", "lease_until": "now()"},
        LEASED | {"leased_by": "null"},
        LEASED | {"lease_until": "null"},
        LEASED | {"fence": "0"},
        LEASED | {"fence": "-1"},
        LEASED | {"attempts": "0"},
        LEASED | {"attempts": "3", "attempts_before": "3"},
        LEASED | {"is_blocked": "true", "order_key": "'k'"},
        DEAD | {"code": "null"},
        DEAD | {"dead_at": "null"},
        DEAD | {"leased_by": "'w'", "lease_until": "now()"},
        DELIVERY | {"dead_at": "now()"},
        DELIVERY | {"is_blocked": "true"},
        DELIVERY | {"attempts_before": "1"},
        DELIVERY | {"attempts_before": "-1"},
        DELIVERY | {"crashes": "-1"},
        DELIVERY | {"replays": "-1"},
        DELIVERY | {"item_path": "'events.0'"},
        DELIVERY | {"item_type": "'paid'"},
    ],
    "attempt": [
        ATTEMPT | {"number": "0"},
        ATTEMPT | {"outcome": "'maybe'"},
        ATTEMPT | {"worker": "null"},
        ATTEMPT | {"ended_at": "null"},
    ],
    "delivery_archive": [
        OUTCOME | {"state": "'dead'"},
        OUTCOME | {"attempts": "0"},
        OUTCOME | {"state": "'ignored'"},
        OUTCOME | {"attempts": "-1"},
    ],
    "route": [
        ROUTE | {"recipient": "''"},
        ROUTE | {"position": "-1"},
        ROUTE | {"types": "'{}'"},
        ROUTE | {"timeout_s": "0"},
        ROUTE | {"source": "'s'", "application": "'a'"},
    ],
    "conflict": [CONFLICT | {"differs": "'nothing'"}, CONFLICT | {"seen": "0"}],
    "dedup": [DEDUP | {"body_sha256": "''"}, DEDUP | {"expires_at": "null"}],
    "reply": [REPLY | {"status": "199"}, REPLY | {"status": "600"}, REPLY | {"body": "null"}],
    "purge_log": [{"kind": "'event'", "reason": "'age'", "dropped": "-1"}],
    "route_version": [{"singleton": "true"}, {"singleton": "false"}],
}


def insert(table: str, row: dict[str, str]) -> str:
    return f"insert into boathook.{table} ({', '.join(row)}) values ({', '.join(row.values())})"


async def test_legal_rows_are_taken(db: Database) -> None:
    for table, rows in LEGAL.items():
        for row in rows:
            await db.execute(insert(table, row))
            await db.execute(f"delete from boathook.{table}")


async def test_illegal_rows_are_refused(db: Database) -> None:
    refusals = (asyncpg.IntegrityConstraintViolationError,)
    taken = []
    async with db.acquire() as connection:
        for table, rows in ILLEGAL.items():
            for row in rows:
                try:
                    await connection.execute(insert(table, row))
                except refusals:
                    continue
                taken.append((table, row))
    assert taken == []


async def test_two_leases_with_one_order_key_cannot_exist(db: Database) -> None:
    ordered = LEASED | {"order_key": "'customer 1'"}
    await db.execute(insert("delivery", ordered))
    async with db.acquire() as connection:
        with pytest.raises(asyncpg.UniqueViolationError, match="delivery_one_lease_per_order_key"):
            await connection.execute(insert("delivery", ordered))
    await db.execute(insert("delivery", ordered | {"order_key": "'customer 2'"}))
    await db.execute(insert("delivery", ordered | {"recipient": "'other'"}))
    await db.execute(insert("delivery", LEASED))
    await db.execute(insert("delivery", LEASED))


async def test_an_event_id_is_unique_across_partitions(db: Database) -> None:
    await db.execute(insert("event", EVENT))
    async with db.acquire() as connection:
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(insert("event", EVENT))


async def test_id_timestamps_are_the_same_in_sql_and_python(db: Database) -> None:
    for microsecond in (0, 999, 1_000, 499_500, 999_999):
        moment = datetime(2026, 2, 3, 4, 5, 6, microsecond, UTC)
        row = await db.fetchrow(
            "select boathook.min_id($1) as id, boathook.id_time(boathook.min_id($1)) as back", moment
        )
        assert row is not None
        assert row["id"] == ids.first_of(moment)
        assert row["back"] == ids.created_at(row["id"]) == moment.replace(microsecond=microsecond // 1000 * 1000)


async def test_a_migration_of_boathooks_own_that_was_changed_is_refused(pg_url: str, later_migrations: Path) -> None:
    await migrate(pg_url)
    (later_migrations / "0998_pre_widen.sql").write_text("select 1")
    migrations.read_own.cache_clear()
    with pytest.raises(DatabaseError, match="0998_pre_widen was changed after it had been applied"):
        await migrate(pg_url)
    with pytest.raises(DatabaseError, match="0998_pre_widen was changed"):
        await list_pending(pg_url)


def test_each_function_is_created_once_from_the_file_of_its_name() -> None:
    files = {path.stem: path.read_text() for path in (migrations.MIGRATIONS.parent / "functions").glob("*.sql")}
    text = "".join(path.read_text() for path in migrations.MIGRATIONS.glob("*.sql"))
    assert sorted(re.findall(r"^-- function: (\w+)$", text, re.MULTILINE)) == sorted(files)
    assert "create function" not in text
    for name, function in files.items():
        assert re.findall(r"create function boathook\.(\w+)", function) == [name]
