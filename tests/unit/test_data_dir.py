"""The data folder and its locks belong to one account; others can neither enter nor hold them."""

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from boathook.config.data_dir import open_lock, prepare_data_dir, take_lock
from boathook.server import supervisor
from tests.support import until

HOLD = """
import fcntl, sys
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_it_is_made_for_its_owner_alone(data_dir: Path):
    prepare_data_dir(data_dir / "below")
    with open_lock(data_dir / "below" / "a.lock"):
        assert (mode(data_dir / "below"), mode(data_dir / "below" / "a.lock")) == (0o700, 0o600)


def test_what_an_older_boathook_made_is_taken_from_others(data_dir: Path):
    data_dir.mkdir(mode=0o755)
    (data_dir / "serve-1.lock").touch(mode=0o644)
    with supervisor.instance_prefix(data_dir) as prefix:
        assert (prefix, mode(data_dir), mode(data_dir / "serve-1.lock")) == ("", 0o700, 0o600)


@pytest.mark.parametrize("reason", ["for all", "working folder"])
def test_a_folder_with_other_uses_stays_open(data_dir: Path, monkeypatch: pytest.MonkeyPatch, reason: str):
    (data_dir / "project").mkdir(parents=True)
    data_dir.chmod(0o1777 if reason == "for all" else 0o755)
    if reason == "working folder":
        monkeypatch.chdir(data_dir / "project")
    before = mode(data_dir)
    prepare_data_dir(data_dir)
    assert mode(data_dir) == before


@as_root
def test_a_folder_of_another_account_stays_as_it_is(data_dir: Path, monkeypatch: pytest.MonkeyPatch):
    data_dir.mkdir(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    prepare_data_dir(data_dir)
    assert mode(data_dir) == 0o755


@as_root
@pytest.mark.parametrize("is_mutant", [False, True])
def test_another_account_cannot_hold_a_lock(tmp_path_factory: pytest.TempPathFactory, is_mutant: bool):
    from tests.conftest import open_folder

    folder = open_folder("boathook-data-")
    with open_lock(folder / "serve-1.lock"):
        if is_mutant:  # as older versions made it
            (folder / "serve-1.lock").chmod(0o644)
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-c", HOLD, str(folder / "serve-1.lock")],
            env={"PATH": os.defpath}, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if "held" not in done.stdout and "PermissionError" not in done.stderr:
        pytest.skip(f"no Python for another account: {done.stderr[-200:]}")
    assert ("held" in done.stdout) is is_mutant


def test_a_wait_for_a_lock_names_its_holder(data_dir: Path):
    prepare_data_dir(data_dir)
    path, said = data_dir / "postgres.lock", list[str]()
    with open_lock(path) as lock:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        stdin = holder.stdin

        def report(sentence: str) -> None:
            said.append(sentence)
            stdin.close()  # which releases it

        take_lock(lock, fcntl.LOCK_EX, report)
        until(lambda: holder.poll() is not None)
        holder.stdout.close()
    who = f"pid {holder.pid}" if sys.platform == "linux" else "another process"
    assert said == [f"waiting for the lock {path}, held by {who}"]


def test_a_free_lock_is_taken_without_a_word(data_dir: Path):
    prepare_data_dir(data_dir)
    said: list[str] = []
    with open_lock(data_dir / "a.lock") as lock:
        take_lock(lock, fcntl.LOCK_EX, said.append)
    assert said == []
