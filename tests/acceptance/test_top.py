"""`boathook top` against a real boathook: near and far, at a terminal and in a pipe, and how it ends."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    return shared_boathook()


def post(running: BoathookProcess, key: str, kind: str = "payment.paid") -> None:
    body, headers = signed(payload(key, kind))
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300).status_code == 200


def looked(running: BoathookProcess, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(running.cli("top", "--once", "--json", *arguments).stdout)
    return found


@pytest.fixture
def traffic(running: BoathookProcess) -> Iterator[None]:
    """A sender that sends all the time."""
    stop = threading.Event()

    def send() -> None:
        number = 0
        while not stop.is_set():
            post(running, f"traffic-{id(stop)}-{number}", "broken.top" if number % 5 == 0 else "payment.paid")
            number += 1

    sender = threading.Thread(target=send)
    sender.start()
    yield
    stop.set()
    sender.join()


@pytest.mark.extended("starts several servers of its own")
@pytest.mark.usefixtures("traffic")
@pytest.mark.parametrize("is_far", [False, True])
def test_rates_and_backlog_are_shown_locally_and_remotely(running: BoathookProcess, is_far: bool) -> None:
    where = ("--url", running.base) if is_far else ()

    def told() -> bool:
        seen = looked(running, *where)
        names = {one["recipient"] for one in seen["recipients"]}
        return (
            seen["accepted"] > 0
            and seen["ack_p99"] is not None
            and {one["source"] for one in seen["sources"]} == {"stripe"}
            and {"handler:pay", "handler:broken"} <= names
            and seen["backlog"].get("dead", 0) > 0
        )

    assert until(told, every=0.5)


@pytest.mark.extended("starts several servers of its own")
def test_each_host_is_shown_with_its_processes(running: BoathookProcess) -> None:
    until(lambda: any(one["roles"].get("keeper") for one in looked(running)["hosts"]), every=0.5)
    (host,) = looked(running)["hosts"]
    assert host["name"].endswith("/data")
    assert host["roles"]["gateway"] == host["roles"]["supervisor"] == 1


def test_in_a_pipe_each_sample_is_a_line_until_the_reader_leaves(running: BoathookProcess) -> None:
    command = f"{sys.executable} -m boathook top --every 0.2 | head -n 3; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=running.folder,
        env=running.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    *lines, code = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("ack p50" in line for line in lines)
    assert (code, done.stderr) == ("0", "")


@pytest.mark.extended("starts several servers of its own")
def test_ctrl_c_ends_it_cleanly(running: BoathookProcess) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "boathook", "top", "--json", "--every", "0.2"],
        cwd=running.folder, env=running.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "accepted" in json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (0, "")


class Terminal:
    """A terminal of 100 columns with a command in it."""

    def __init__(self, running: BoathookProcess, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "boathook", *arguments],
            cwd=running.folder, env={**running.environment, "TERM": "xterm-256color"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self.text += os.read(self.master, 65_536).decode(errors="replace")
            except OSError:
                return

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def close(self) -> None:
        self.process.wait(300)
        os.close(self.slave)
        os.close(self.master)


@pytest.mark.extended("starts several servers of its own")
def test_at_a_terminal_keys_sort_pause_and_quit_and_leave_it_as_it_was(running: BoathookProcess) -> None:
    post(running, "terminal-1")
    terminal = Terminal(running, "top", "--every", "0.3")
    until(lambda: "acknowledged" in terminal.text and "q quits" in terminal.text)
    assert "(by pending)" in terminal.text
    terminal.press("s")
    until(lambda: "(by done)" in terminal.text)
    terminal.press("p")
    until(lambda: "(paused)" in terminal.text)
    terminal.press("q")
    assert terminal.process.wait(300) == 0
    assert termios.tcgetattr(terminal.slave)[3] == terminal.before[3]
    until(lambda: "\x1b[?1049l" in terminal.text)  # the other screen is left
    terminal.close()


def test_an_unreachable_gateway_is_reported_in_one_sentence(running: BoathookProcess) -> None:
    done = running.cli("top", "--once", "--url", "http://127.0.0.1:1", check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "word"), [(("--key", "x"), "--url"), (("--url", "ftp://x"), "--url")])
def test_an_invalid_option_is_named(running: BoathookProcess, arguments: tuple[str, ...], word: str) -> None:
    done = running.cli("top", *arguments, check=False)
    assert (done.returncode, word in done.stderr) == (2, True)
