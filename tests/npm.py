"""Programs and packages of Node.js that tests ask."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
"""Where programs are looked for: first beside the Python that runs the tests, where a wheel brings Node.js."""


def find_program(name: str) -> str:
    """Return where a program is; fail where there is none."""
    path = shutil.which(name, path=PROGRAMS)
    if path is None:
        pytest.fail(f"these tests ask npm packages and need {name}: make dev brings it along")
    return path


def install(folder: Path, *, timeout: float) -> None:
    """Install the packages of a folder's lock file unless present; xdist processes wait for each other."""
    lock_file = folder / "package-lock.json"
    wanted = hashlib.sha256(lock_file.read_bytes()).hexdigest()
    stamp = folder / "node_modules" / ".installed"
    with lock_file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        done = subprocess.run(
            [find_program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
            cwd=folder,
            env=os.environ | {"PATH": PROGRAMS},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"npm could not install {folder}: {done.stderr[-2000:]}"
        stamp.write_text(wanted)
