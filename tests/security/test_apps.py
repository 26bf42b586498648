"""Attacks on apps: mistakes of their owners, hostile requests and metrics, and a PostgreSQL that fails under them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pytest
from websockets.frames import Opcode

from boathook import Boathook
from boathook.cli.apps import tables
from boathook.cli.commands import parse_global_options
from boathook.config import load
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.migrations import list_pending, migrate
from boathook.delivery import keeper
from boathook.domain.errors import ConfigError, DatabaseError, DatabaseUnavailable
from boathook.handlers.manifest import Chore
from boathook.http import websocket
from boathook.ingest.intake import Intake
from boathook.observability import meters
from boathook.observability.exposition import to_prometheus
from boathook.observability.live_metrics import LiveMetrics, gather
from boathook.server import interfaces
from boathook.server.asgi_guard import WebSocketGuard
from boathook.server.loading import load_apps, with_apps
from boathook.service.app_platform import open_platform
from boathook.verification.verifier import compile_body_schema
from boathook_apps import mount_access
from boathook_apps.mounts import Lifespan
from tests.postgres.api_client import make_context, make_token
from tests.postgres.server.test_mounts import MountClient
from tests.support import eventually
from tests.unit.test_loading import Place, complaint, place, same_metrics
from tests.unit.test_mount_calls import Client
from tests.unit.test_sockets import SocketHarness, frame

__all__ = ["place", "same_metrics"]

HEAD = """
from boathook import Boathook
from pydantic import BaseModel, field_validator
"""
TREE = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
HMAC = '{"provider": "hmac", "secret": "hush", "header": "X-Mac"}'


def declaring(name: str, sources: str) -> str:
    """Return an app with this expression as its sources."""
    return f"{HEAD}\nhook = Boathook({name!r})\n@hook.sources\ndef sources(_):\n    return {sources}\n"


class TestInvalidSettings:
    def test_a_module_that_exits_on_import_is_reported(self, place: Place):
        settings = place("import sys\nsys.exit('bye')\n")
        assert "fails: SystemExit: bye" in complaint(lambda: load_apps(settings))

    def test_an_exception_in_an_apps_validator_is_reported(self, place: Place):
        code = f"""{HEAD}
class Own(BaseModel):
    size: int = 1

    @field_validator("size", mode="before")
    @classmethod
    def grow(cls, given):
        return given + 1

hook = Boathook("shelf", settings=Own)
"""
        settings = place(code, toml='[shelf]\nsize = "3"')
        assert "boathook.toml: shelf: the app fails to check it: TypeError" in complaint(lambda: load_apps(settings))

    def test_the_value_of_a_mistyped_secret_is_not_shown(self, place: Place):
        code = f"{HEAD}\nclass Own(BaseModel, extra='forbid'):\n    secret: str = ''\nhook = Boathook('shelf', settings=Own)"
        settings = place(code, toml='[shelf]\nsecrett = "hush"')
        assert complaint(lambda: load_apps(settings)).endswith("shelf.secrett: is not a setting")

    @pytest.mark.parametrize("sources", ["None", "[]", '{"books": 3}', '[{"provider": "hmac"}]'])
    def test_invalid_app_sources_are_reported(self, place: Place, sources: str):
        settings = place(declaring("shelf", sources))
        assert "must return tables by their names" in complaint(lambda: with_apps(settings))

    @pytest.mark.parametrize("name", ["../x", "a b", "a/b", "", "a%2fb", "x\n"])
    def test_a_source_name_invalid_in_a_url_is_refused(self, place: Place, name: str):
        settings = place(declaring("shelf", f"{{{name!r}: {HMAC}}}"))
        assert "invalid source name" in complaint(lambda: with_apps(settings))

    def test_two_apps_with_one_source_are_refused(self, place: Place):
        mine, yours = declaring("shelf", f'{{"books": {HMAC}}}'), declaring("desk", f'{{"books": {HMAC}}}')
        assert "both declare the source 'books'" in complaint(lambda: with_apps(place(mine, yours)))

    def test_passwords_in_addresses_and_numbers_are_not_shown(self, place: Place):
        shown = json.dumps(tables(place(toml='[shelf]\nurl = "https://me:hush@host/x"\npassword = 4711\nkeys = [1]')))
        assert "hush" not in shown
        assert "4711" not in shown
        assert "[1]" not in shown
        assert "https://me:(hidden)@host/x" in shown

    @pytest.mark.parametrize("arguments", [["--config"], ["-c"], ["--config="]])
    def test_an_incomplete_option_does_not_raise(self, arguments: list[str]):
        assert parse_global_options(arguments)[1] is None


class TestMetrics:
    @pytest.mark.parametrize("label", ["name", "n", "value", "self"])
    def test_a_label_may_have_any_other_name(self, same_metrics: None, label: str):
        hook = Boathook("shelf")
        hook.counter(f"shelf_{label}_total", "x", label).add(2, **{label: "a"})
        hook.gauge(f"shelf_{label}", "x", label).set(3, **{label: "a"})
        hook.histogram(f"shelf_{label}_seconds", "x", label).observe(1, **{label: "a"})
        assert meters.snapshot()[f"shelf_{label}_total"] == [[["a"], 2]]

    @pytest.mark.parametrize("labels", [("le",), ("a", "a"), ("__name__",)])
    def test_invalid_metric_labels_are_refused(self, same_metrics: None, labels: tuple[str, ...]):
        with pytest.raises(ConfigError, match="duplicate or reserved label"):
            Boathook("shelf").counter("shelf_total", "x", *labels)

    @pytest.mark.parametrize("bounds", [(5, 1), (1, 1), (float("nan"),), (1, float("inf"))])
    def test_invalid_histogram_bounds_are_refused(self, same_metrics: None, bounds: tuple[float, ...]):
        with pytest.raises(ConfigError, match="bounds must be"):
            Boathook("shelf").histogram("shelf_seconds", "x", bounds=bounds)

    def test_hostile_labels_and_help_are_escaped_and_limited(self, same_metrics: None):
        books = Boathook("shelf").counter("shelf_books_total", "first\nsecond \\ third", "title")
        for title in ("\ud800", "x" * 1_000_000, 'a"b\nc\\'):
            books.add(title=title)
            books.add(title=title)
        text = to_prometheus(gather(None, None, 0.0))
        lines = [line for line in text.splitlines() if b"shelf_books_total" in line]
        assert lines[0] == rb"# HELP shelf_books_total first\nsecond \\ third"
        assert [line[-4:] for line in lines[2:]] == [b" 2.0"] * 3
        assert sum(map(len, lines)) < 10_000
        assert max(len(str(key)) for key in meters._series_cache) < 1_000


def test_settings_show_no_secret_of_an_app(place: Place):
    settings = place(toml='[shelf]\nsecret = "hush"\n[sources.books]\nsecret = "hush"')
    assert "hush" not in repr(settings)


class TestHostileBodies:
    @pytest.mark.parametrize("leaf", ["\\" * 500_000, list(range(130_000))], ids=["text", "numbers"])
    def test_error_messages_about_large_bodies_are_cheap(self, leaf: object):
        for _ in range(100):
            leaf = [leaf]
        body = json.dumps(leaf).encode()
        shape = compile_body_schema("books", TREE)
        began = time.thread_time()
        assert "steps" in (shape.find_error(body) or "")
        spent = time.thread_time() - began
        began = time.thread_time()
        repr(json.loads(body))
        assert spent < 30 * (time.thread_time() - began)

    def test_a_large_body_is_checked_against_several_alternatives(self):
        body = json.dumps([[["x" * 900_000]]]).encode()
        schema = {"anyOf": [{"type": "integer"}, {"type": "array"}], "items": {"anyOf": [{"type": "null"}, {}]}}
        assert compile_body_schema("books", schema).find_error(body) is None


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_a_budget_error_messages_are_expensive(monkeypatch: pytest.MonkeyPatch):
    from boathook.verification import json_schema

    monkeypatch.setattr(json_schema, "MESSAGE_CHARS_PER_STEP", 10**12)
    with pytest.raises(AssertionError):
        TestHostileBodies().test_error_messages_about_large_bodies_are_cheap(list(range(130_000)))


class TestFloodsOfFrames:
    async def test_many_tiny_frames_apply_backpressure(self):
        harness = await SocketHarness().accept()
        harness.socket.data_received(frame(Opcode.TEXT) * 40_000)
        await asyncio.sleep(0)
        assert len(harness.socket._unread) < 500
        assert not harness.wire.is_reading

    async def test_buffered_messages_are_received_in_order(self):
        harness = await SocketHarness().accept()
        harness.socket.data_received(b"".join(frame(Opcode.TEXT, b"%d" % n) for n in range(3_000)))
        got = [await harness.ask("receive") for _ in range(3_000)]
        assert [int(message["text"]) for message in got] == list(range(3_000))
        await eventually(lambda: harness.wire.is_reading)

    async def test_pings_leave_others_their_turn(self):
        harness = await SocketHarness().accept()
        harness.socket.data_received(frame(Opcode.PING) * 2_000 + frame(Opcode.TEXT, b"last"))
        assert len(harness.frames()) < 1_000
        assert (await harness.ask("receive"))["text"] == "last"
        assert len(harness.frames()) == 2_000

    async def test_a_close_after_many_frames_is_received_last(self):
        harness = await SocketHarness().accept()
        harness.socket.data_received(frame(Opcode.TEXT, b"x") * 2_000 + frame(Opcode.CLOSE, b"\x03\xe8"))
        for _ in range(2_000):
            assert (await harness.ask("receive"))["type"] == "websocket.receive"
        assert (await harness.ask("receive"))["code"] == 1000
        assert harness.wire.is_closed

    async def test_mutant_where_all_is_read_at_once_thousands_are_held(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(websocket, "READ_CHUNK", 1 << 30)
        with pytest.raises(AssertionError):
            await self.test_many_tiny_frames_apply_backpressure()


class TestApplicationsThatExit:
    @staticmethod
    async def leave(_scope, _receive, _send) -> None:
        raise SystemExit(3)

    async def test_end_their_request_and_not_the_gateway(self):
        client = await Client(b"").call(self.leave)
        assert client.status == 500

    async def test_end_their_response_and_not_the_gateway(self):
        async def begin(_scope, _receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise SystemExit(3)

        with pytest.raises(Exception, match="amid its answer"):
            await Client(b"").call(begin)

    async def test_end_their_websocket_and_not_the_gateway(self):
        client = Client()
        await WebSocketGuard(client.receive, client.send, "req_1").run(self.leave, {"path": "/x"})
        assert client.got[0]["status"] == 500

    async def test_end_their_life_and_not_the_gateway(self):
        life = Lifespan(self.leave)
        life.start()
        await eventually(lambda: life.is_up)
        await life.stop()

    async def test_end_their_chore_and_not_the_keeper(self):
        async def leave() -> None:
            raise SystemExit(3)

        await keeper._do(keeper.Owned("shelf", Chore(name="tidy", every_s=1.0, function=leave)))
        assert meters.snapshot()["boathook_chores_total"][-1][0] == ["shelf", "tidy", "failed"]


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
            ends = await asyncio.wait_for(asyncio.gather(*(nest() for _ in range(6)), return_exceptions=True), 300)
            assert any(isinstance(end, DatabaseUnavailable) and "connection" in str(end) for end in ends)
            async with hook.transaction() as tx:
                assert await tx.fetchval("select 1") == 1
        finally:
            await platform.stop()


class TestMigrations:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    async def test_a_file_that_is_not_utf8_is_named(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").write_bytes(b"create schema shelf; -- caf\xe9")
        with pytest.raises(ConfigError, match=r"0001_first\.sql is not UTF-8"):
            await list_pending(pg_url, [("shelf", folder)])

    async def test_a_file_that_cannot_be_read_is_named(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").mkdir()
        with pytest.raises(ConfigError, match=r"cannot read .*0001_first\.sql"):
            await list_pending(pg_url, [("shelf", folder)])

    @pytest.mark.parametrize("end", ["rollback", "commit", "rollback; select 1", "abort", "end"])
    async def test_a_file_that_ends_its_transaction_is_refused(self, pg_url: str, folder: Path, end: str):
        (folder / "0001_first.sql").write_text(f"create schema shelf; {end};")
        with pytest.raises(DatabaseError, match=r"shelf/0001_first.*remove commit"):
            await migrate(pg_url, [("shelf", folder)])
        assert await list_pending(pg_url, [("shelf", folder)]) == ["shelf/0001_first"]

    async def test_a_file_with_a_nul_is_refused(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").write_bytes(b"create schema shelf; select '\x00'")
        with pytest.raises((DatabaseError, ConfigError)):
            await migrate(pg_url, [("shelf", folder)])

    async def test_session_settings_of_a_migration_do_not_affect_the_next(self, db: Database, folder: Path):
        (folder / "0001_first.sql").write_text("create schema shelf; set search_path = shelf; set role none;")
        (folder / "0002_second.sql").write_text("create table plain (n int)")
        await migrate(db.url, [("shelf", folder)])
        assert await db.fetchval("select to_regclass('public.plain') is not null")

    async def test_hosts_that_begin_together_apply_each_once(self, pg_url: str, folder: Path):
        (folder / "0001_first.sql").write_text("create schema shelf; select pg_sleep(0.2);")
        done = await asyncio.gather(*(migrate(pg_url, [("shelf", folder)]) for _ in range(4)))
        assert sorted(done, key=len) == [[], [], [], ["shelf/0001_first"]]

    async def test_an_app_loaded_again_keeps_its_tables(self, db: Database, folder: Path):
        (folder / "0001_first.sql").write_text("create schema shelf; create table shelf.book (n int);")
        await migrate(db.url, [("shelf", folder)])
        await db.execute("insert into shelf.book values (1)")
        await migrate(db.url, [])
        assert await migrate(db.url, [("shelf", folder)]) == []
        assert await db.fetchval("select count(*) from shelf.book") == 1


@pytest.fixture
async def small(pg_url: str) -> AsyncIterator[Database]:
    """Two connections of a console with a statement timeout of half a second."""
    opened = await Database.open(pg_url, purpose="small", size=2, statement_timeout_s=0.5, is_reset=False)
    yield opened
    await opened.close()


@asynccontextmanager
async def keys_locked(db: Database) -> AsyncIterator[None]:
    """Lock the table of API keys against reads."""
    async with db.transaction() as connection:
        await connection.execute("lock table boathook.api_key in access exclusive mode")
        yield


class TestMountsWhilePostgresqlFails:
    async def test_a_statement_that_takes_too_long_is_answered_503(self, db: Database, small: Database):
        token = await make_token(make_context(db))
        async with keys_locked(db):
            client = await MountClient(small).request(authorization=f"Bearer {token}")
        assert (client.status, client.seen) == (503, [])

    async def test_a_connection_that_breaks_under_a_request_is_answered_503(self, db: Database):
        token = await make_token(make_context(db))
        slow = await Database.open(db.url, purpose="cut", size=1, is_reset=False)
        async with keys_locked(db):
            requesting = asyncio.create_task(MountClient(slow).request(authorization=f"Bearer {token}"))
            cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'boathook:cut'"
            await eventually(
                lambda: db.fetchval(f"{cut} and wait_event_type = 'Lock' and datname = current_database()")
            )
            client = await requesting
        assert (client.status, client.seen) == (503, [])
        await slow.close()

    async def test_an_exhausted_pool_answers_503(self, db: Database, small: Database, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(mount_access, "WAIT_S", 0.2)
        token = await make_token(make_context(db))
        async with small.acquire(), small.acquire():
            client = await asyncio.wait_for(MountClient(small).request(authorization=f"Bearer {token}"), 300)
        assert (client.status, client.seen) == (503, [])

    async def test_a_token_revoked_after_an_outage_ends_its_websocket(self, db: Database, small: Database):
        context = make_context(db)
        token = await make_token(context)
        client = MountClient(small, recheck_s=0.05)
        requesting = asyncio.create_task(client.request("websocket", authorization=f"Bearer {token}"))
        await eventually(lambda: bool(client.got))
        async with keys_locked(db):
            waiting = (
                "select count(*) from pg_stat_activity where application_name = 'boathook:small'"
                " and wait_event_type = 'Lock' and datname = current_database()"
            )
            await eventually(lambda: db.fetchval(waiting))
            await eventually(partial(_none, db, waiting))
        await db.execute("update boathook.api_key set revoked_at = now()")
        await asyncio.wait_for(requesting, 300)
        assert client.got[-1]["code"] == 1008


async def _none(db: Database, sql: str) -> bool:
    return not await db.fetchval(sql)


async def test_an_unexpected_app_failure_is_logged_and_the_api_stays(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def burn(*_: object) -> None:
        raise RuntimeError("the app is on fire")

    told: list[str] = []
    monkeypatch.setattr(interfaces, "prepare_mounts", burn)
    monkeypatch.setattr(interfaces._LOG, "error", lambda event, **_: told.append(event), raising=False)
    overrides = {"database.url": db.url, "server.data_dir": str(tmp_path), "server.app": "any:hook"}
    opened = interfaces.Interfaces(load(None, overrides), LiveMetrics(tmp_path))
    opened.start(Intake(EventStore(db)))
    await eventually(lambda: bool(told))
    assert told == ["console_failed"]
    assert opened._api is not None
    await opened.stop()


@asynccontextmanager
async def ignoring_disconnects(pg_url: str) -> AsyncIterator[str]:
    """Proxy PostgreSQL, passing on everything but the end of a connection."""
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


async def test_opening_a_pool_on_an_unresponsive_server_times_out(pg_url: str):
    async with ignoring_disconnects(pg_url) as url:
        with pytest.raises(DatabaseUnavailable):
            await asyncio.wait_for(Database.open(url, purpose="test", size=1, connect_timeout_s=0.5), 300)
