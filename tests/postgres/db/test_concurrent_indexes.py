"""Concurrent index builds: writers are not blocked, and migrating again completes interrupted builds."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from boathook.db import concurrent_indexes, migrations
from boathook.db.migrations import connected, list_pending, migrate
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from tests.support import eventually

INDEXES = ("delivery_dead_group", "delivery_dead_at")
REVISION = "0901_pre_dead_indexes"
DEAD = """
    insert into boathook.delivery (event_id, ordinal, recipient, state, dead_at, code, error)
    select gen_random_uuid(), 0, 'handler:a', 'dead', now(), 'BROKEN', 'the order ' || n || ' of "anna" broke at line 17'
    from generate_series(1, $1::integer) as n
"""
WRITE = "insert into boathook.delivery (event_id, ordinal, recipient) values (gen_random_uuid(), 0, 'handler:a')"
BUILDERS = """
    select pid from pg_stat_activity
    where datname = current_database() and application_name = 'boathook:migrate' and query like $1 and wait_event_type = 'Lock'
"""


@contextlib.asynccontextmanager
async def held(url: str, statement: str) -> AsyncIterator[None]:
    """Keep a transaction open that has done *statement*, and sees the database as it was then."""
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.execute(statement)
        yield


FORGET = "delete from boathook.migration where name = $1"


async def drop_indexes(url: str, *names: str) -> list[str]:
    """Drop these indexes of dead letters, and return their definitions."""
    async with connected(url) as connection:
        definitions = [
            await connection.fetchval("select pg_get_indexdef(to_regclass('boathook.' || $1))", name) for name in names
        ]
        for name in names:
            await connection.execute(f"drop index boathook.{name}")
        await connection.execute(FORGET, REVISION)
    return definitions


async def validity(url: str) -> dict[str, bool]:
    async with connected(url) as connection:
        rows = await connection.fetch(
            "select c.relname, i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid"
            " where c.relname = any ($1)",
            INDEXES,
        )
    return dict(map(tuple, rows))


async def waiting(url: str, query: str) -> int:
    """Return the process id of the server's that builds, once it waits for another process."""
    async with connected(url) as connection:
        return await eventually(lambda: connection.fetchval(BUILDERS, query))


async def kill(url: str, pid: int) -> None:
    async with connected(url) as connection:
        await connection.execute("select pg_terminate_backend($1, 10000)", pid)


@pytest.fixture
async def url(pg_url: str, folder: Path) -> str:
    """A database that lacks the indexes, which a migration in *folder* builds."""
    definitions = await drop_indexes(pg_url, *INDEXES)
    statements = (text.replace(" INDEX ", " INDEX CONCURRENTLY IF NOT EXISTS ") + ";\n" for text in definitions)
    (folder / f"{REVISION}.sql").write_text("-- concurrently\n" + "".join(map(lower_head, statements)))
    return pg_url


def lower_head(statement: str) -> str:
    head, on, rest = statement.partition(" ON ")
    return f"{head.lower()} on {rest}" if on else statement


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of boathook's migrations, to which more can be added."""
    copied = tmp_path / "migrations"
    shutil.copytree(migrations.MIGRATIONS, copied)
    monkeypatch.setattr(migrations, "MIGRATIONS", copied)
    return copied


@pytest.fixture
def transactional(url: str, folder: Path) -> None:
    """The same indexes, made in the migration's transaction."""
    file = folder / f"{REVISION}.sql"
    file.write_text(file.read_text().replace("-- concurrently\n", "").replace(" concurrently", ""))


async def longest_write_in_the_build(url: str) -> float:
    """Return the longest write's share of the migration's time, with 100,000 dead letters."""
    async with connected(url) as writer:
        await writer.execute(DEAD, 100_000)
        began = time.monotonic()
        migrating = asyncio.create_task(migrate(url))
        longest = 0.0
        while not migrating.done():
            at = time.monotonic()
            await writer.execute(WRITE)
            longest = max(longest, time.monotonic() - at)
        assert REVISION in await migrating
        return longest / (time.monotonic() - began)


@pytest.mark.extended("is judged by the clock")
async def test_index_builds_do_not_block_writers(url: str):
    assert await longest_write_in_the_build(url) < 0.4
    assert await validity(url) == dict.fromkeys(INDEXES, True)


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.usefixtures("transactional")
async def test_in_a_transaction_they_would_wait_for_it(url: str):
    """Mutant of the test before."""
    assert await longest_write_in_the_build(url) > 0.6


class Lines:
    """The logged lines."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))

    info = warning

    def of(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.told if name == event]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    logged = Lines()
    for module in (concurrent_indexes, migrations):
        monkeypatch.setattr(module, "_LOG", logged)
    return logged


READ = "select from boathook.event"


@pytest.mark.parametrize("holding", [READ, WRITE], ids=["a snapshot", "a writer"])
@pytest.mark.parametrize("index", INDEXES)
async def test_a_killed_build_is_completed_by_the_next_migration(url: str, index: str, holding: str):
    if index == INDEXES[1]:
        await migrate(url)
        await drop_indexes(url, index)
    async with held(url, holding):
        migrating = asyncio.create_task(migrate(url))
        await kill(url, await waiting(url, "create index concurrently%"))
        with pytest.raises(DatabaseError, match=REVISION):
            await migrating
        assert (await validity(url))[index] is False
        assert REVISION in await list_pending(url)
    assert REVISION in await migrate(url)
    assert await validity(url) == dict.fromkeys(INDEXES, True)
    assert await list_pending(url) == []


async def leave_half_built(url: str) -> None:
    async with held(url, READ):
        migrating = asyncio.create_task(migrate(url))
        await kill(url, await waiting(url, "create index concurrently%"))
        await asyncio.gather(migrating, return_exceptions=True)
    assert await validity(url) == {INDEXES[0]: False}


async def test_a_build_killed_while_dropping_is_completed_too(url: str):
    await leave_half_built(url)
    async with held(url, "select from boathook.delivery"):
        migrating = asyncio.create_task(migrate(url))
        await kill(url, await waiting(url, "drop index concurrently%"))
        with pytest.raises(DatabaseError):
            await migrating
    assert REVISION in await migrate(url)
    assert await validity(url) == dict.fromkeys(INDEXES, True)


async def test_without_dropping_it_a_half_built_index_would_stay(url: str, monkeypatch: pytest.MonkeyPatch):
    """Mutant of the two before: `if not exists` skips an invalid index."""
    await leave_half_built(url)
    monkeypatch.setitem(concurrent_indexes.SQL, "find_remnants", "select null where $1 = $2")
    assert REVISION in await migrate(url)
    assert (await validity(url))[INDEXES[0]] is False


async def migrated_together(url: str) -> list[list[str] | BaseException]:
    """Run two migrations concurrently: one builds while the other waits for the lock."""
    async with held(url, READ):
        both = [asyncio.create_task(migrate(url)) for _ in range(2)]
        await waiting(url, "create index concurrently%")
    return await asyncio.gather(*both, return_exceptions=True)


async def test_concurrent_migrations_build_in_turn(url: str):
    done = await migrated_together(url)
    assert sorted(REVISION in one for one in done if isinstance(one, list)) == [False, True]
    assert await validity(url) == dict.fromkeys(INDEXES, True)


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_waiting_in_a_lock_statement_blocks_the_build(url: str, monkeypatch: pytest.MonkeyPatch):
    """Mutant of the test before: a lock statement holds a snapshot, which blocks the build."""
    taken = migrations.TRY_LOCK.replace("pg_try_advisory_lock", "pg_advisory_lock").replace(
        "select ", "select true from "
    )
    monkeypatch.setattr(migrations, "TRY_LOCK", taken)
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", "60s")
    monkeypatch.setattr(concurrent_indexes, "LOCK_TIMEOUT", "2s")
    monkeypatch.setattr(concurrent_indexes, "MAX_TRIES", 1)
    assert any(isinstance(one, DatabaseError) for one in await migrated_together(url))


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_the_session_blocking_a_build_is_reported(url: str, lines: Lines, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(concurrent_indexes, "LOCK_TIMEOUT", "2s")
    monkeypatch.setattr(concurrent_indexes, "LOG_INTERVAL_S", 0.05)
    async with held(url, READ):
        with pytest.raises(DatabaseUnavailable) as refusal:
            await migrate(url)
    assert re.search(
        rf"{REVISION} waits .* 2s long: pid \d+ \(.*idle in transaction\) since .*pg_terminate", str(refusal.value)
    )
    assert "idle in transaction" in str(lines.of("migration_waits")[0]["holders"])
    assert REVISION in await migrate(url)
    assert [line["index"] for line in lines.of("index_half_built")] == ["boathook.delivery_dead_group"]
    assert await validity(url) == dict.fromkeys(INDEXES, True)


async def test_waiting_too_long_for_the_migration_lock_is_explained(
    url: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
):
    for bound, seconds in {"_MAX_WAIT_S": 1.0, "_LOG_INTERVAL_S": 0.4}.items():
        monkeypatch.setattr(migrations, bound, seconds)
    async with migrations._lock(url):
        with pytest.raises(DatabaseUnavailable, match="another process has been migrating"):
            await migrate(url)
    assert lines.of("migration_lock_wait")
    assert REVISION in await migrate(url)


async def test_indexes_that_a_database_has_already_stay(url: str):
    async with connected(url) as connection:
        for statement in concurrent_indexes._split(REVISION, (migrations.MIGRATIONS / f"{REVISION}.sql").read_text()):
            await connection.execute(statement.replace(" concurrently", ""))
        before = await connection.fetch("select oid from pg_class where relname = any ($1) order by oid", INDEXES)
        assert REVISION in await migrate(url, only_pre=True)
        assert (
            await connection.fetch("select oid from pg_class where relname = any ($1) order by oid", INDEXES) == before
        )


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app's folder, of which the second file builds an index."""
    (tmp_path / "0001_first.sql").write_text("create schema shelf; create table shelf.book (title text)")
    (tmp_path / "0002_find.sql").write_text(
        "-- concurrently\ncreate index concurrently if not exists book_title on shelf.book (title);\n"
    )
    return tmp_path


async def test_apps_build_indexes_in_the_same_way(pg_url: str, app: Path):
    applied = await migrate(pg_url, [("shelf", app)])
    assert applied == ["shelf/0001_first", "shelf/0002_find"]
    with psycopg.connect(pg_url) as connection:
        assert connection.execute(
            "select indisvalid from pg_index where indexrelid = 'shelf.book_title'::regclass"
        ).fetchall() == [(True,)]
    assert await migrate(pg_url, [("shelf", app)]) == []


@pytest.mark.parametrize(
    "statement",
    [
        "create table shelf.other (a int)",
        "create index concurrently book_title on shelf.book (title)",
        "create index concurrently if not exists book_title on book (title)",
        "drop index concurrently shelf.book_title",
        "drop index concurrently if exists book_title",
    ],
)
async def test_statements_that_cannot_be_repeated_are_refused_first(pg_url: str, app: Path, statement: str):
    (app / "0002_find.sql").write_text((app / "0002_find.sql").read_text() + statement)
    with pytest.raises(DatabaseError, match=r"shelf/0002_find is of the kind .*can be repeated") as refusal:
        await migrate(pg_url, [("shelf", app)])
    assert repr(statement) in str(refusal.value)
    with psycopg.connect(pg_url) as connection:
        assert connection.execute("select to_regclass('shelf.book_title')").fetchone() == (None,)


async def test_a_statement_that_the_database_refuses_is_named(pg_url: str, app: Path):
    (app / "0002_find.sql").write_text("-- concurrently\ncreate index concurrently if not exists a on shelf.none (a)")
    with pytest.raises(DatabaseError, match=r'shelf/0002_find was refused: relation "shelf.none" does not exist'):
        await migrate(pg_url, [("shelf", app)])


async def test_a_concurrent_build_without_its_first_line_is_explained(pg_url: str, app: Path):
    (app / "0002_find.sql").write_text("create index concurrently if not exists book_title on shelf.book (title)")
    with pytest.raises(DatabaseError, match="has the first line `-- concurrently`"):
        await migrate(pg_url, [("shelf", app)])


CREATED = re.compile(r"^create (?:unlogged )?table (?:if not exists )?(boathook\.\w+)", re.MULTILINE)
INDEXED = re.compile(r"^\s*create (?:unique )?index \w+ on (boathook\.\w+)", re.MULTILINE)


def closed_by(sql: str) -> set[str]:
    """Return the tables that a revision closes to writers while it builds an index of theirs."""
    return set(INDEXED.findall(sql)) - set(CREATED.findall(sql))


def test_no_revision_locks_large_tables_for_an_index():
    latest = [path for path in migrations.MIGRATIONS.glob("*.sql") if path.stem != "0001_initial"]
    assert {path.stem: closed for path in latest if (closed := closed_by(path.read_text()))} == {}


def test_a_revision_locking_a_large_table_is_detected():
    sql = "create table boathook.a (b int);\ncreate index a_b on boathook.a (b);\ncreate index d on boathook.delivery (b);"
    assert closed_by(sql) == {"boathook.delivery"}
