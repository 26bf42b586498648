"""Behind PgBouncer: in session mode all settings hold, and transaction mode is refused."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from boathook.config import load
from boathook.db import connection, integrity
from boathook.db.database import Database, check_safety
from boathook.db.migrations import migrate
from boathook.domain.errors import DatabaseError, DatabaseUrlRejected
from boathook.handlers.api import Boathook, Event, Transaction
from boathook.service.operating.doctor import CheckStatus, examine_all
from tests.conftest import open_folder
from tests.support import eventually, until
from tests.worker_harness import accept_events, running_worker, wait_for_states

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no pgbouncer; install the distribution's")

CONFIG = """
[databases]
* = host={server} port=5432 user=boathook

[pgbouncer]
listen_port = 6432
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
logfile = {folder}/pgbouncer.log
pidfile = {folder}/pgbouncer.pid
{more}
"""
DROPS = "ignore_startup_parameters = " + ",".join([
    "statement_timeout", "idle_in_transaction_session_timeout", "jit", "synchronous_commit", "search_path",
    "default_toast_compression", "enable_seqscan", "plan_cache_mode", *connection.SERVER_KEEPALIVES,
])  # fmt: skip
WANTED = {
    "statement_timeout": "2min", "idle_in_transaction_session_timeout": "1min", "jit": "off", "synchronous_commit": "on",
    "enable_seqscan": "off", "plan_cache_mode": "force_generic_plan",
}  # fmt: skip

Pooler = Callable[..., str]


@pytest.fixture
def pooler(db: Database) -> Iterator[Pooler]:
    """Starts a PgBouncer before the test's database and returns the URL through it."""
    server = parse_qs(urlsplit(db.url).query)["host"][0]
    folder = open_folder("boathook-pooler-")
    account = pwd.getpwuid(Path(server, ".s.PGSQL.5432").stat().st_uid)
    if os.geteuid() == 0:
        os.chown(folder, account.pw_uid, account.pw_gid)
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str, more: str = "") -> str:
        (folder / "pgbouncer.ini").write_text(CONFIG.format(server=server, folder=folder, mode=mode, more=more))
        assert PROGRAM is not None
        started.append(
            subprocess.Popen(
                [PROGRAM, "--quiet", str(folder / "pgbouncer.ini")],
                user=account.pw_uid if os.geteuid() == 0 else None,
                group=account.pw_gid if os.geteuid() == 0 else None,
            )
        )
        until(lambda: listens(folder / ".s.PGSQL.6432"))
        return f"postgresql://boathook@{urlsplit(db.url).path}?host={folder}&port=6432"

    yield start
    for process in started:
        process.terminate()
        process.wait(60)
    shutil.rmtree(folder)


@pytest.fixture(params=["", DROPS], ids=["refuses settings", "drops settings"])
async def pooled(pooler: Pooler, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """A pool behind a PgBouncer in session mode; PostgreSQL compiles every query with a long timeout."""
    database = await open_pool(pooler("session", request.param))
    yield database
    await database.close()


def listens(path: Path) -> bool:
    """Return whether a socket is listened on; it exists some time before."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        return True
    return False


async def open_pool(url: str, statement_timeout_s: float = 120) -> Database:
    return await Database.open(url, purpose="test", size=2, statement_timeout_s=statement_timeout_s, is_queue=True)


async def settings(database: Database) -> dict[str, str]:
    rows = await database.fetch(
        "select name, current_setting(name) as value from unnest($1::text[]) as name", [*WANTED]
    )
    return {row["name"]: row["value"] for row in rows}


@pytest.fixture
async def careless(db: Database) -> None:
    """The database's own settings: compile everything, wait for nothing, lose commits."""
    name = await db.fetchval("select current_database()")
    for setting in ("jit = on", "jit_above_cost = 0", "synchronous_commit = off", "statement_timeout = 0"):
        await db.execute(f'alter database "{name}" set {setting}')


async def test_settings_hold_in_session_mode(careless: None, pooled: Database) -> None:
    for _ in range(3):  # a pool resets its connections between two uses
        assert await settings(pooled) == WANTED
    impatient = await open_pool(pooled.url, 1)
    with pytest.raises(DatabaseError, match="statement timeout"):
        await impatient.fetchval("select pg_sleep(600)")
    await impatient.close()


async def test_without_settle_the_settings_are_lost(
    careless: None, pooler: Pooler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above, which shows that it can fail."""

    async def trust(*_args: object) -> None:
        pass

    monkeypatch.setattr(connection.SafeConnection, "settle", trust)
    database = await open_pool(pooler("session", DROPS))
    found = await settings(database)
    assert not {name: value for name, value in found.items() if WANTED[name] == value}
    await database.close()


async def test_the_books_are_read_within_their_bounds(
    careless: None, pooled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accept_events(pooled, *({"n": n} for n in range(5)))
    seen: list[tuple[str, str]] = []
    fetch: Any = asyncpg.Connection.fetch

    async def watch(self: asyncpg.Connection, sql: str, *args: object, **options: object) -> Any:
        if self.is_in_transaction():
            row = await fetch(self, "select current_setting('jit'), current_setting('statement_timeout')")
            seen.extend(tuple(one) for one in row)
        return await fetch(self, sql, *args, **options)

    monkeypatch.setattr(connection.SafeConnection, "fetch", watch, raising=False)
    # Even if the session had lost them.
    monkeypatch.setattr(
        connection.SafeConnection, "get_reset_query", lambda _: "set jit = on; set statement_timeout = 0"
    )
    found = await integrity.check_integrity(pooled, dedup_days=30)
    assert not found.violations
    assert len(seen) == found.looks
    assert set(seen) == {("off", "2min")}


async def test_handlers_run_behind_the_pooler(careless: None, pooled: Database) -> None:
    hook, seen = Boathook(), list[str]()

    @hook.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("set statement_timeout = 0")  # ends with the attempt
        seen.append(await tx.fetchval("show synchronous_commit"))

    async with running_worker(pooled, hook):
        await accept_events(pooled, *({"n": n} for n in range(4)))
        await wait_for_states(pooled, succeeded=4)
    assert seen == ["on"] * 4
    assert await settings(pooled) == WANTED


async def test_notifications_are_received_behind_the_pooler(pooled: Database) -> None:
    heard: list[str] = []
    await pooled.listen("news", heard.append)

    async def tell() -> bool:
        await pooled.execute("notify news, 'here'")
        return bool(heard)

    await eventually(tell)


async def test_session_mode_is_taken(pooled: Database) -> None:
    assert await check_safety(pooled) == []


async def test_transaction_mode_is_refused(pooler: Pooler) -> None:
    database = await open_pool(pooler("transaction"))
    with pytest.raises(DatabaseUrlRejected, match="pool_mode = session"):
        await check_safety(database)
    await database.close()


async def test_transaction_mode_is_refused_before_a_migration(pooler: Pooler) -> None:
    url = pooler("transaction")
    for _ in range(3):  # statements of an earlier client may be there already
        with pytest.raises(DatabaseUrlRejected, match=r"pooler in transaction mode.*pool_mode = session"):
            await migrate(url)


async def test_the_doctor_says_so_once(pooler: Pooler) -> None:
    findings = await examine_all(load(None, {"database.url": pooler("transaction")}))
    failed = {one.check: one.found for one in findings if one.verdict is CheckStatus.FAIL}
    assert any("pooler in transaction mode" in found for found in failed.values())
    assert not any("prepared statement" in found for found in failed.values())


async def test_session_mode_can_be_migrated(pooler: Pooler) -> None:
    assert await migrate(pooler("session")) == []
