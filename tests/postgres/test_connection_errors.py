"""A PostgreSQL that cannot be reached: the error names the setting and the fix."""

import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import boathook.apps.billing
from boathook.domain.errors import JournalUnavailable
from boathook.journal.database import Database
from boathook.journal.revising import connected
from tests.databases import with_database

SAMPLE = Path(boathook.apps.billing.__file__).with_name("boathook.toml")


@pytest.fixture
def silent_url() -> str:
    """The URL of a port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"postgresql://boathook:sesame@127.0.0.1:{one.getsockname()[1]}/boathook"


async def complaint(url: str) -> str:
    with pytest.raises(JournalUnavailable) as caught:
        await Database.open(url, purpose="test", size=1, connect_timeout_s=3)
    return str(caught.value)


async def test_a_server_that_is_down_is_named_by_its_setting_with_the_fix(silent_url: str):
    told = await complaint(silent_url)
    assert told.startswith("PostgreSQL at database.url cannot be reached: ")
    assert told.endswith("; start the server, or correct database.url")
    assert str(urlsplit(silent_url).port) in told
    assert "sesame" not in told


async def test_migrations_say_the_same(silent_url: str):
    with pytest.raises(JournalUnavailable, match=r"database\.url cannot be reached: .+start the server"):
        async with connected(silent_url):
            pass


async def test_a_server_that_does_not_answer_in_time_is_told_of_too():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"postgresql://u@127.0.0.1:{mute.getsockname()[1]}/x?sslmode=disable"
        with pytest.raises(JournalUnavailable, match=r"database\.url cannot be reached: .+"):
            await Database.open(url, purpose="test", size=1, connect_timeout_s=0.3)


async def test_a_database_that_is_not_there_is_no_server_that_is_down(admin_url: str):
    told = await complaint(with_database(admin_url, "no_such_database"))
    assert told.startswith("PostgreSQL refuses database.url: ")
    assert "no_such_database" in told
    assert told.endswith("correct its user, password or database")


async def test_a_url_that_is_none_is_told_of(silent_url: str):
    assert (await complaint(silent_url + "?target_session_attrs=nonsense")).startswith("database.url cannot be used: ")


@pytest.mark.parametrize("command", [["billing", "payments"], ["events", "list"], ["migrate"]], ids=" ".join)
def test_commands_of_apps_and_of_boathook_say_it_alike(tmp_path: Path, silent_url: str, command: list[str]):
    (tmp_path / "boathook.toml").write_text(f'{SAMPLE.read_text()}\n[database]\nurl = "{silent_url}"\n')
    done = subprocess.run(
        [sys.executable, "-m", "boathook", *command],
        cwd=tmp_path, env={"BILLING_SECRET": "x", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("boathook: PostgreSQL at database.url cannot be reached: ")
    assert done.stderr.strip().endswith("; start the server, or correct database.url")
