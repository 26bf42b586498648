"""How long a child's event loop is silent: the time in which its threads waited for a processor does not count."""

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from boathook.server import child_process
from boathook.server.child_process import ChildProcess, read_run_delays
from tests.support import until


@pytest.fixture
def crowded() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three processes that compete for one processor."""
    processor = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    yield running
    for process in running:
        process.kill()
        process.wait()


def silent_child(pid: int) -> ChildProcess:
    child = ChildProcess("worker", "worker-0")
    child.process = cast("Any", SimpleNamespace(pid=pid, returncode=None, is_orphan=False))
    return child


def test_waiting_for_a_processor_is_no_silence(crowded: list[subprocess.Popen[bytes]]):
    child = silent_child(crowded[0].pid)
    assert child.silent_s(30.0) == 30.0, "nothing was measured before"
    until(lambda: child.silent_s(30.0) < 29.8)


def test_a_process_that_could_run_is_silent(crowded: list[subprocess.Popen[bytes]]):
    blocked = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    with blocked:
        assert blocked.stdout is not None
        blocked.stdout.readline()
        child, other = silent_child(blocked.pid), silent_child(crowded[0].pid)
        child.silent_s(30.0), other.silent_s(30.0)
        until(lambda: other.silent_s(30.0) < 29.8)
        assert child.silent_s(30.0) > 29.9
        blocked.kill()


def test_without_the_measurement_a_crowded_process_would_be_silent(
    crowded: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
):
    """The mutant."""
    other = silent_child(crowded[0].pid)
    other.silent_s(30.0)
    until(lambda: other.silent_s(30.0) < 29.8)
    monkeypatch.setattr(child_process, "read_run_delays", lambda _pid: {})
    assert silent_child(crowded[0].pid).silent_s(30.0) == 30.0


def test_a_process_that_has_ended_has_no_delays():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert read_run_delays(process.pid) == {}
