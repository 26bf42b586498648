"""What apps and their owners may do to PostgreSQL, and PostgreSQL to them: nothing waits for ever, nothing half-done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pytest

from boathook import Boathook
from boathook.admin.platform import open_platform
from boathook.config import load
from boathook.domain.errors import ConfigError, JournalError, JournalUnavailable
from boathook.journal.app_schema import migrate_apps, pending_apps
from boathook.journal.database import Database
from boathook.server import console, mounts
from boathook.telemetry.exporters import History
from tests.postgres.api import make_desk, make_token
from tests.postgres.test_doors import Visitor
from tests.support import eventually


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


@pytest.fixture
async def small(pg_url: str) -> AsyncIterator[Database]:
    """Two connections of a console whose statements may take half a second."""
    opened = await Database.open(pg_url, purpose="small", size=2, statement_timeout_s=0.5, is_reset=False)
    yield opened
    await opened.close()


@asynccontextmanager
async def keys_locked(db: Database) -> AsyncIterator[None]:
    """Keep everybody from reading API keys."""
    async with db.transaction() as connection:
        await connection.execute("lock table boathook.api_key in access exclusive mode")
        yield


class TestDoorsWhilePostgresqlFails:
    async def test_a_statement_that_takes_too_long_is_answered_503(self, db: Database, small: Database):
        token = await make_token(make_desk(db))
        async with keys_locked(db):
            visitor = await Visitor(small).visit(authorization=f"Bearer {token}")
        assert (visitor.status, visitor.seen) == (503, [])

    async def test_a_connection_that_breaks_under_a_request_is_answered_503(self, db: Database):
        token = await make_token(make_desk(db))
        slow = await Database.open(db.url, purpose="cut", size=1, is_reset=False)
        async with keys_locked(db):
            visiting = asyncio.create_task(Visitor(slow).visit(authorization=f"Bearer {token}"))
            cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'boathook:cut'"
            await eventually(
                lambda: db.fetchval(f"{cut} and wait_event_type = 'Lock' and datname = current_database()")
            )
            visitor = await visiting
        assert (visitor.status, visitor.seen) == (503, [])
        await slow.close()

    async def test_connections_that_never_come_free_are_answered_503(
        self, db: Database, small: Database, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(mounts, "_WAIT_S", 0.2)
        token = await make_token(make_desk(db))
        async with small.acquire(), small.acquire():
            visitor = await asyncio.wait_for(Visitor(small).visit(authorization=f"Bearer {token}"), 20)
        assert (visitor.status, visitor.seen) == (503, [])

    async def test_a_token_that_is_revoked_after_an_outage_still_ends_its_websocket(
        self, db: Database, small: Database
    ):
        desk = make_desk(db)
        token = await make_token(desk)
        visitor = Visitor(small, recheck_s=0.05)
        visiting = asyncio.create_task(visitor.visit("websocket", authorization=f"Bearer {token}"))
        await eventually(lambda: bool(visitor.got))
        async with keys_locked(db):
            waiting = (
                "select count(*) from pg_stat_activity where application_name = 'boathook:small'"
                " and wait_event_type = 'Lock' and datname = current_database()"
            )
            await eventually(lambda: db.fetchval(waiting))
            await eventually(partial(_none, db, waiting))
        await db.execute("update boathook.api_key set revoked_at = now()")
        await asyncio.wait_for(visiting, 10)
        assert visitor.got[-1]["code"] == 1008


async def _none(db: Database, sql: str) -> bool:
    return not await db.fetchval(sql)


async def test_an_app_that_fails_in_an_unheard_of_way_is_told_of_and_the_api_stays(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def burn(*_: object) -> None:
        raise RuntimeError("the app is on fire")

    told: list[str] = []
    monkeypatch.setattr(console, "_prepare_mounts", burn)
    monkeypatch.setattr(console._LOG, "error", lambda event, **_: told.append(event), raising=False)
    overrides = {"database.url": db.url, "server.data_dir": str(tmp_path), "server.app": "any:hook"}
    opened = console.Console(load(None, overrides), History(tmp_path))
    opened.open()
    await eventually(lambda: bool(told))
    assert told == ["console_failed"]
    assert opened._api is not None
    await opened.close()


@asynccontextmanager
async def deaf_to_the_end(pg_url: str) -> AsyncIterator[str]:
    """Stand between us and PostgreSQL, and pass on everything but that a connection has ended."""
    parts = urlsplit(pg_url)
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if folder := parse_qs(parts.query).get("host"):
            there = await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{parts.port or 5432}")
        else:
            there = await asyncio.open_connection(parts.hostname, parts.port or 5432)
        writers.extend((writer, there[1]))
        tasks.add(asyncio.create_task(pipe(reader, there[1])))
        tasks.add(asyncio.create_task(pipe(there[0], writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    user = parts.netloc.rpartition("@")[0]
    yield urlunsplit(parts._replace(netloc=f"{user}@{address}" if user else address, query="sslmode=disable"))
    server.close()
    for task in tasks:
        task.cancel()
    for writer in writers:
        writer.close()
    await asyncio.gather(*tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True)


async def test_a_server_that_falls_silent_while_a_pool_is_opened_keeps_nobody_waiting(pg_url: str):
    async with deaf_to_the_end(pg_url) as url:
        with pytest.raises(JournalUnavailable):
            await asyncio.wait_for(Database.open(url, purpose="test", size=1, connect_timeout_s=0.5), 20)
