"""The import that all apps share, in one process, and what happens without its safeguards."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest

from boathook import BoathookError
from boathook.handlers.transaction import Transaction
from boathook_app_tools import table_import
from boathook_app_tools.table_import import INTEGER, TEXT, BadValue, Counts, Import, Report, SourceTable, converted

SCHEMA = """
    create schema shop;
    create table shop.note (number bigint generated always as identity primary key, words text);
    create table shop.imported_row (
        table_name text, source_key text, target_key text not null, source_sha256 bytea not null,
        target_sha256 bytea not null, imported_at timestamptz default now(), primary key (table_name, source_key));
    create schema old;
    create table old.notes (id bigint primary key, words text);
    insert into old.notes select n, 'note ' || n from generate_series(1, 10) as n;
"""


class Killed(Exception):
    """Ends an import as a kill does: what is not committed is lost."""


async def convert(_tx: Transaction, _source: table_import.Source, rows: Sequence[Any]) -> Sequence[Any]:
    def one(row: Any) -> Any:
        if not row["words"]:
            raise BadValue("words", "it is empty")
        return {"words": row["words"]}

    return converted(rows, one)


NOTES = SourceTable(
    name="notes", columns={"id": INTEGER, "words": TEXT}, target="shop.note", target_key="number", convert=convert
)
PLAN = Import(app="shop", tables=(NOTES,))


class Runner:
    """Runs the import on a pool's connections."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool

    async def run(self, *, killed_in: int | None = None, **options: Any) -> Report:
        """Import; *killed_in* is the transaction, from 0, that is never committed."""
        opened = 0

        @asynccontextmanager
        async def open() -> AsyncIterator[Transaction]:
            nonlocal opened
            opened += 1
            async with self.pool.acquire() as connection, connection.transaction():
                yield Transaction(connection, due=set())
                if opened - 1 == killed_in:
                    raise Killed

        return await table_import.run(open, PLAN, schema="old", **options)

    async def words(self) -> list[str]:
        return [row["words"] for row in await self.pool.fetch("select words from shop.note order by words")]


@pytest.fixture
async def runner(empty_url) -> AsyncIterator[Runner]:
    pool = await asyncpg.create_pool(empty_url, min_size=1, max_size=4)
    await pool.execute(SCHEMA)
    yield Runner(pool)
    await pool.close()


def expected(rows: int = 10) -> list[str]:
    return sorted(f"note {n}" for n in range(1, rows + 1))


@pytest.mark.parametrize("killed_in", range(6))
async def test_a_kill_in_any_transaction_loses_and_doubles_nothing(runner, killed_in):
    with pytest.raises(Killed):
        await runner.run(killed_in=killed_in, batch=3)
    assert len(await runner.words()) == min(max(killed_in - 1, 0) * 3, 10)
    report = await runner.run(batch=3)
    assert await runner.words() == expected()
    counts = report.counts["notes"]
    assert (counts.rows, counts.imported + counts.unchanged, counts.rejected) == (10, 10, 0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        # Without a row for each imported row, the next run imports it again.
        (
            "_ADD",
            lambda sql: f"select 1 from (values ($1::text, $2::text, $3::text, $4::bytea, $5::bytea)) as no_{'row'}",
        ),
        ("_KNOWN", lambda sql: sql + " and false"),
    ],
)
async def test_mutant_without_the_rows_of_the_ledger_a_second_run_does_not_end_well(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[str], str]
) -> None:
    monkeypatch.setattr(table_import, name, change(getattr(table_import, name)))
    await runner.run(batch=3)
    report = await runner.run(batch=3)
    assert report.counts["notes"].unchanged == 0
    assert len(await runner.words()) == 20 or report.counts["notes"].rejected == 10


async def test_mutant_whose_hashes_are_equal_misses_changes(runner, monkeypatch):
    await runner.run()
    await runner.pool.execute("update old.notes set words = 'changed' where id = 1")
    with monkeypatch.context() as patched:
        patched.setattr(table_import, "sha256", lambda _row: b"")
        await runner.pool.execute("update shop.imported_row set source_sha256 = ''")
        assert (await runner.run()).counts["notes"].unchanged == 10
    await runner.pool.execute("truncate shop.imported_row, shop.note restart identity")
    await runner.run()
    await runner.pool.execute("update old.notes set words = 'changed again' where id = 1")
    assert (await runner.run()).counts["notes"].updated == 1
    assert "changed again" in await runner.words()


async def test_a_rejected_row_is_tried_again_by_the_next_run(runner):
    await runner.pool.execute("update old.notes set words = '' where id = 4")
    report = await runner.run(batch=4)
    assert report.counts["notes"] == Counts(rows=10, imported=9, rejected=1)
    [row] = report.rejected
    assert (row.table, row.key, row.column, row.problem) == ("notes", "4", "words", "it is empty")
    await runner.pool.execute("update old.notes set words = 'note 4' where id = 4")
    assert (await runner.run()).counts["notes"] == Counts(rows=10, imported=1, unchanged=9)
    assert await runner.words() == expected()


async def test_a_constraint_rejects_only_its_row(runner):
    await runner.pool.execute("alter table shop.note add constraint no_seven check (words <> 'note 7')")
    report = await runner.run(batch=5)
    assert report.counts["notes"] == Counts(rows=10, imported=9, rejected=1)
    assert [(row.key, row.column) for row in report.rejected] == [("7", "no_seven")]


async def test_a_row_that_cannot_be_completed_is_not_stored(runner, monkeypatch):
    async def refuse(_tx: Transaction, _source: table_import.Source, row: Any, _key: str) -> None:
        if row["id"] == 3:
            raise BadValue("words", "it is not wanted")

    monkeypatch.setattr(f"{__name__}.PLAN", replace(PLAN, tables=(replace(NOTES, stored=refuse),)))
    report = await runner.run(batch=5)
    assert report.counts["notes"] == Counts(rows=10, imported=9, rejected=1)
    assert [(row.key, row.column) for row in report.rejected] == [("3", "words")]
    assert "note 3" not in await runner.words()


async def test_a_change_does_not_undo_one_of_the_app(runner):
    await runner.run()
    await runner.pool.execute("update old.notes set words = 'theirs' where id in (1, 2)")
    await runner.pool.execute("update shop.note set words = 'ours' where words = 'note 1'")
    report = await runner.run()
    assert report.counts["notes"] == Counts(rows=10, updated=1, unchanged=8, rejected=1)
    assert [row.key for row in report.rejected] == ["1"]
    assert {"ours", "theirs"} <= set(await runner.words())


async def test_a_key_that_may_be_null_is_refused(runner):
    await runner.pool.execute("alter table old.notes drop constraint notes_pkey, alter column id drop not null")
    await runner.pool.execute("insert into old.notes values (null, 'lost')")
    with pytest.raises(BoathookError, match=r"notes.id does not identify rows"):
        await runner.run()


async def test_a_dry_run_leaves_nothing(runner):
    report = await runner.run(is_dry=True, batch=3)
    assert report.counts["notes"] == Counts(rows=10, imported=10)
    assert await runner.words() == []
    assert await runner.pool.fetchval("select count(*) from shop.imported_row") == 0


async def test_progress_is_reported_after_each_batch(runner):
    steps: list[tuple[str, int, int]] = []
    await runner.run(batch=4, notify=lambda *step: steps.append(step))
    assert steps == [("notes", 0, 10), ("notes", 4, 10), ("notes", 8, 10), ("notes", 10, 10)]


async def test_a_linked_table_of_another_database_is_imported(runner):
    """As `import foreign schema` makes it: without keys or constraints."""
    if not await runner.pool.fetchval("select count(*) from pg_available_extensions where name = 'postgres_fdw'"):
        pytest.skip("this PostgreSQL has no postgres_fdw")
    await runner.pool.execute("create extension postgres_fdw")
    name, user = await runner.pool.fetchrow("select current_database(), current_user")
    port = await runner.pool.fetchval("select current_setting('port')")
    folder = await runner.pool.fetchval("select split_part(current_setting('unix_socket_directories'), ',', 1)")
    await runner.pool.execute(f"""
        alter table old.notes rename to real_notes;
        create server former foreign data wrapper postgres_fdw
            options (host '{folder.strip('"') or "127.0.0.1"}', port '{port}', dbname '{name}');
        create user mapping for current_user server former options (user '{user}', password_required 'false');
        create foreign table old.notes (id bigint, words text) server former options (schema_name 'old', table_name 'real_notes');
    """)
    assert (await runner.run(batch=3)).counts["notes"] == Counts(rows=10, imported=10)
    assert (await runner.run(batch=3)).counts["notes"] == Counts(rows=10, unchanged=10)


def test_hashes_do_not_depend_on_the_connections_settings():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    elsewhere = at.astimezone(timezone(timedelta(hours=4)))
    assert table_import.sha256({"at": at}) == table_import.sha256({"at": elsewhere})
    assert table_import.sha256({"a": None}) != table_import.sha256({"a": ""})
