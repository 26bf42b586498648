"""What apps and their owners may do to PostgreSQL, and PostgreSQL to them: nothing waits for ever, nothing half-done."""

import asyncio
from pathlib import Path

import pytest

from boathook import Boathook
from boathook.admin.platform import open_platform
from boathook.config import load
from boathook.domain.errors import ConfigError, JournalError, JournalUnavailable
from boathook.journal.app_schema import migrate_apps, pending_apps
from boathook.journal.database import Database


class TestTransactionsWithinTransactions:
    async def test_as_many_as_there_are_connections_end_in_an_error(self, pg_url: str, tmp_path: Path):
        overrides = {"database.url": pg_url, "server.data_dir": str(tmp_path), "database.statement_timeout_s": 1}
        platform = open_platform(load(None, overrides))
        hook = Boathook("shop")
        hook.bind(None, platform)
        all_in = asyncio.Barrier(6)

        async def nest() -> None:
            async with hook.transaction():
                await all_in.wait()
                async with hook.transaction() as inner:
                    await inner.execute("select 1")

        try:
            ends = await asyncio.wait_for(asyncio.gather(*(nest() for _ in range(6)), return_exceptions=True), 20)
            assert any(isinstance(end, JournalUnavailable) and "connection" in str(end) for end in ends)
            async with hook.transaction() as tx:
                assert await tx.fetchval("select 1") == 1
        finally:
            await platform.close()


class TestMigrations:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    async def test_a_file_that_is_not_utf8_is_named(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").write_bytes(b"create schema shelf; -- caf\xe9")
        with pytest.raises(ConfigError, match=r"0001_first\.sql is not UTF-8"):
            await pending_apps(pg_url, [("shelf", folder)])

    async def test_a_file_that_cannot_be_read_is_named(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").mkdir()
        with pytest.raises(ConfigError, match=r"cannot read .*0001_first\.sql"):
            await pending_apps(pg_url, [("shelf", folder)])

    @pytest.mark.parametrize("end", ["rollback", "commit", "rollback; select 1", "abort", "end"])
    async def test_a_file_that_ends_its_transaction_is_refused(self, pg_url: str, folder: Path, end: str):
        (folder / "0001_first.sql").write_text(f"create schema shelf; {end};")
        with pytest.raises(JournalError, match=r"shelf/0001_first.*leave out"):
            await migrate_apps(pg_url, [("shelf", folder)])
        assert await pending_apps(pg_url, [("shelf", folder)]) == ["shelf/0001_first"]

    async def test_a_file_with_a_nul_is_refused(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").write_bytes(b"create schema shelf; select '\x00'")
        with pytest.raises((JournalError, ConfigError)):
            await migrate_apps(pg_url, [("shelf", folder)])

    async def test_what_one_file_sets_for_its_session_is_not_there_for_the_next(self, db: Database, folder: Path):
        (folder / "0001_first.sql").write_text("create schema shelf; set search_path = shelf; set role none;")
        (folder / "0002_second.sql").write_text("create table plain (n int)")
        await migrate_apps(db.url, [("shelf", folder)])
        assert await db.fetchval("select to_regclass('public.plain') is not null")

    async def test_hosts_that_begin_together_apply_each_once(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").write_text("create schema shelf; select pg_sleep(0.2);")
        done = await asyncio.gather(*(migrate_apps(pg_url, [("shelf", folder)]) for _ in range(4)))
        assert sorted(done, key=len) == [[], [], [], ["shelf/0001_first"]]

    async def test_an_app_that_comes_back_finds_its_tables(self, db: Database, folder: Path):
        (folder / "0001_first.sql").write_text("create schema shelf; create table shelf.book (n int);")
        await migrate_apps(db.url, [("shelf", folder)])
        await db.execute("insert into shelf.book values (1)")
        await migrate_apps(db.url, [])
        assert await migrate_apps(db.url, [("shelf", folder)]) == []
        assert await db.fetchval("select count(*) from shelf.book") == 1
