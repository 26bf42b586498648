"""What makes a database useless for boathook is said before the start, with the statement that cures it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from boathook.cli import main
from boathook.config import load
from boathook.db.connection import translate_connect_errors
from boathook.db.health import read_connection_limit
from boathook.db.migrations import migrate
from boathook.db.server_monitor import assess_safety
from boathook.domain.errors import ConfigError, DatabaseError, DatabaseUnavailable, DatabaseUrlRejected, UnsafeDatabase
from boathook.handlers.hooks import Hooks
from boathook.server import supervisor
from boathook.service.database import check_connections, count_connections, with_url
from boathook.service.operating.doctor import examine_all
from tests.databases import with_database

ROLE = "boathook_test_limited"


@contextlib.contextmanager
def database(admin_url: str, name: str, how: str) -> Iterator[str]:
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"drop database if exists {name}")
        admin.execute(f"create database {name} {how}")
        yield with_database(admin_url, name)
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "WIN1251"])
def narrow_url(admin_url: str, run_id: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database whose encoding is not UTF8."""
    name = f"narrow_{request.param}_{run_id}".lower()
    with database(admin_url, name, f"template template0 encoding '{request.param}' locale 'C'") as url:
        yield url


@pytest.fixture
def limited_url(empty_url: str) -> Iterator[str]:
    """An empty database, and a role without privileges in it."""
    with psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute(f"drop role if exists {ROLE}")
        admin.execute(f"create role {ROLE} connection limit 9")
        yield f"{empty_url}{'&' if '?' in empty_url else '?'}role={ROLE}"
        admin.execute(f"drop owned by {ROLE}")
        admin.execute(f"drop role {ROLE}")


def run(url: str, folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Return the exit code and the output of a command with a database."""
    file = folder / "boathook.toml"
    file.write_text(f'[database]\nurl = "{url}"\n[server]\ndata_dir = "data"\nbind = "127.0.0.1:0"\n')
    with pytest.raises(SystemExit) as ended:
        main(["-c", str(file), *arguments])
    answer = capsys.readouterr()
    assert "Traceback" not in answer.out + answer.err
    return ended.value.code, answer.out + answer.err


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_another_encoding_is_refused(
    narrow_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, said = run(narrow_url, tmp_path, capsys, command)
    assert (code, "create database" in said, "encoding 'UTF8'" in said) == (1, True, True)


async def test_a_server_does_not_start_on_another_encoding(narrow_url: str) -> None:
    settings = with_url(load(), narrow_url)

    async def prepare() -> None:
        await supervisor.prepare_database(settings, Hooks({}), [])

    with pytest.raises(UnsafeDatabase, match="encoding 'UTF8'"):
        await supervisor.try_prepare(prepare, can_wait=True)


def make_read_only(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("alter role current_user in database :name set default_transaction_read_only = on".replace(
            ":name", admin.info.dbname))  # fmt: skip


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_a_read_only_database_is_named(
    pg_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    make_read_only(pg_url)
    code, said = run(pg_url, tmp_path, capsys, command)
    assert (code, "read-only" in said, "default_transaction_read_only" in said) == (1, True, True)


async def test_a_start_waits_for_a_read_only_database_and_says_why(pg_url: str) -> None:
    make_read_only(pg_url)
    settings = with_url(load(), pg_url)

    async def prepare() -> None:
        await supervisor.prepare_database(settings, Hooks({}), [])

    assert await supervisor.try_prepare(prepare, can_wait=True) is False
    with pytest.raises(DatabaseUnavailable, match=r"database is read-only.*alter role"):
        await supervisor.try_prepare(prepare, can_wait=False)


def test_a_heartbeat_notes_that_the_database_became_read_only() -> None:
    row = {
        "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": "",
        "stalled": 0, "is_standby": False, "is_read_only": True, "role": "shop",
    }  # fmt: skip
    (reason,) = assess_safety(row).reasons(allow_lossy=True)
    assert ("read-only" in reason, 'alter role "shop"' in reason) == (True, True)
    assert assess_safety({**row, "is_read_only": False}).reasons() == []


async def test_a_missing_privilege_is_named_with_its_grant(limited_url: str, empty_url: str) -> None:
    with pytest.raises(DatabaseError, match=rf'permission denied.*grant create on database ".+" to "{ROLE}"'):
        await migrate(limited_url)
    doctor = await examine_all(with_url(load(), limited_url))
    (schema,) = [finding for finding in doctor if finding.check == "schema"]
    assert f'to "{ROLE}"; then run `boathook migrate`' in schema.fix
    await migrate(empty_url)
    with psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute(f'grant create on database "{admin.info.dbname}" to {ROLE}')
    with pytest.raises(DatabaseError, match="grant usage on schema boathook"):
        await migrate(limited_url)


def test_a_missing_right_to_connect_is_named_with_its_grant() -> None:
    refusal = asyncpg.InsufficientPrivilegeError('permission denied for database "shop"')
    with (
        pytest.raises(DatabaseUrlRejected, match=r'permission denied for database "shop".*grant connect on'),
        translate_connect_errors(),
    ):
        raise refusal


async def test_too_few_connections_are_named_before_the_start(limited_url: str, empty_url: str) -> None:
    settings = load()
    need = count_connections(settings)
    assert (await read_connection_limit(limited_url)).number == 9
    with pytest.raises(
        ConfigError, match=rf"role {ROLE} allows 9 connections.*at least {need.least}.*up to {need.most}"
    ):
        await check_connections(with_url(settings, limited_url))
    with psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute(f"alter role {ROLE} connection limit {need.most - 1}")
        assert f"up to {need.most}" in str(await check_connections(with_url(settings, limited_url)))
        admin.execute(f"alter role {ROLE} connection limit {need.most}")
    assert await check_connections(with_url(settings, limited_url)) is None
    assert await check_connections(with_url(settings, empty_url)) is None, "the owner has no limit of its own"
