"""A PostgreSQL that cannot be reached: the error names the setting and the fix."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

import boathook_billing
from boathook.db import connection
from boathook.db.connection import translate_errors
from boathook.db.database import Database, is_connection_closed
from boathook.db.migrations import connected
from boathook.domain.errors import DatabaseUnavailable
from tests.databases import with_database
from tests.support import sampled

_CANCEL = vars(asyncpg.Connection)["_cancel_current_command"]
SAMPLE = Path(boathook_billing.__file__).with_name("boathook.toml")


@pytest.fixture
def silent_url() -> str:
    """The URL of a port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"postgresql://boathook:sesame@127.0.0.1:{one.getsockname()[1]}/boathook"


async def complaint(url: str) -> str:
    with pytest.raises(DatabaseUnavailable) as caught:
        await Database.open(url, purpose="test", size=1, connect_timeout_s=3)
    return str(caught.value)


async def test_a_server_that_is_down_is_named_by_its_setting_with_the_fix(silent_url: str):
    told = await complaint(silent_url)
    assert told.startswith("PostgreSQL at database.url cannot be reached: ")
    assert told.endswith("; start the server, or correct database.url")
    assert str(urlsplit(silent_url).port) in told
    assert "sesame" not in told


async def test_migrations_report_the_same_error(silent_url: str):
    with pytest.raises(DatabaseUnavailable, match=r"database\.url cannot be reached: .+start the server"):
        async with connected(silent_url):
            pass


async def test_a_connect_timeout_is_reported():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"postgresql://u@127.0.0.1:{mute.getsockname()[1]}/x?sslmode=disable"
        with pytest.raises(DatabaseUnavailable, match=r"database\.url cannot be reached: .+"):
            await Database.open(url, purpose="test", size=1, connect_timeout_s=0.3)


async def test_a_statement_that_gets_no_answer_is_explained(db: Database):
    async with db.acquire() as lent:
        with pytest.raises(DatabaseUnavailable, match=r"^PostgreSQL did not answer in time$"), translate_errors():
            await lent.fetchval("select pg_sleep(600)", timeout=0.05)


async def test_a_database_that_is_not_there_is_no_server_that_is_down(admin_url: str):
    told = await complaint(with_database(admin_url, "no_such_database"))
    assert told.startswith("PostgreSQL rejects database.url: ")
    assert "no_such_database" in told
    assert told.endswith("correct its user, password or database")


async def test_an_invalid_url_is_reported(silent_url: str):
    assert (await complaint(silent_url + "?target_session_attrs=nonsense")).startswith("database.url cannot be used: ")


@pytest.mark.parametrize(
    "command", sampled([["billing", "payments"], ["events", "list"], ["migrate"]], keep=1), ids=" ".join
)
def test_app_and_boathook_commands_report_it_alike(tmp_path: Path, silent_url: str, command: list[str]):
    (tmp_path / "boathook.toml").write_text(f'{SAMPLE.read_text()}\n[database]\nurl = "{silent_url}"\n')
    done = subprocess.run(
        [sys.executable, "-m", "boathook", *command],
        cwd=tmp_path, env={"BILLING_SECRET": "x", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("boathook: PostgreSQL at database.url cannot be reached: ")
    assert done.stderr.strip().endswith("; start the server, or correct database.url")


async def give_up(database: Database, begin: str, statement: str) -> tuple[bool, bool]:
    """Return whether a connection is lost, and its session on the server ends, when *statement* is given up."""
    async with database.acquire() as lent:
        pid = await lent.fetchval("select pg_backend_pid()")
        if begin:
            await lent.execute(begin)
        with pytest.raises(TimeoutError):
            await lent.execute(statement, timeout=0.2)
        await asyncio.sleep(0)
        is_lost = is_connection_closed(lent)
    alive = "select count(*) from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'"
    return is_lost, await database.fetchval(alive, pid) == 0


@pytest.mark.parametrize(
    ("begin", "statement"),
    [
        ("", "select pg_sleep(9)"),
        ("begin", "select pg_sleep(9); commit"),
        ("begin", "commit; select pg_sleep(9)"),
        ("begin", "select pg_sleep(9);\n  END"),
    ],
)
async def test_a_statement_that_may_commit_is_not_cancelled(begin: str, statement: str, db: Database):
    assert await give_up(db, begin, statement) == (True, False)


async def test_a_cancelled_statement_leaves_its_transaction_usable(db: Database):
    async with db.transaction() as lent:
        await lent.execute("savepoint before")
        with pytest.raises(TimeoutError):
            await lent.fetch("select pg_sleep(9), 'commit'", timeout=0.2)
        await lent.execute("rollback to before")
        assert await lent.fetchval("select 1") == 1


async def test_a_commit_would_be_cancelled_by_the_driver(db: Database, monkeypatch: pytest.MonkeyPatch):
    """Mutant of the test before the last one."""
    monkeypatch.setattr(connection.SafeConnection, "_cancel_current_command", _CANCEL)
    assert await give_up(db, "begin", "select pg_sleep(9); commit") == (False, True)
