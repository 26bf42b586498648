"""The demo, from the command line to the last process: its verdict, its warnings, its exit, and its output."""

import contextlib
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import psycopg
import pytest

from boathook_demo.redis_server import PROGRAMS
from tests.acceptance.conftest import free_port
from tests.brokers import has_server
from tests.support import until

SHELL_LINES = ("curl ", "body=")
POOR_CURL = """
import argparse, httpx
parser = argparse.ArgumentParser()
parser.add_argument("-sS", action="store_true")
parser.add_argument("url")
parser.add_argument("-H", action="append")
parser.add_argument("-d")
given = parser.parse_args()
headers = [header.split(": ", 1) for header in given.H]
print(httpx.post(given.url, headers=headers, content=given.d.encode()).text)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a demo that PostgreSQL's account can enter, unlike pytest's own when root runs the tests."""
    parent = Path(tempfile.mkdtemp(prefix="boathook-demo-"))
    parent.chmod(0o755)
    yield parent / "demo"
    shutil.rmtree(parent, ignore_errors=True)


class Demo:
    """One `boathook demo` as a process."""

    def __init__(self, folder: Path, *arguments: str, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.output = folder.parent / f"output-{self.port}.txt"
        command = [sys.executable, "-m", "boathook", "demo", "--data-dir", str(folder), "--port", str(self.port)]
        if "--buffer" not in arguments:
            arguments = (*arguments, "--buffer", "disk")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "140"},
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def end(self, timeout: float = 180) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the demo does not end:\n{self.text[-3000:]}") from None

    def wait_for_output(self, text: str, timeout: float = 300, every: float = 0.05) -> None:
        def said() -> bool:
            assert self.process.poll() is None or text in self.text, self.text[-3000:]
            return text in self.text

        until(said, timeout=timeout, every=every)

    @property
    def accepted(self) -> int:
        """How many requests the latest line says were accepted."""
        return max(map(int, re.findall(r"^accepted (\d+)", self.text, re.MULTILINE)), default=0)

    def connect(self) -> psycopg.Connection:
        # The demo's own account for it, so that root can be told from others.
        sockets = (self.folder / "data" / "postgres").resolve() / "run"
        return psycopg.connect(f"postgresql://boathook@/boathook?host={quote(str(sockets), safe='/')}", autocommit=True)

    def leftovers(self) -> list[str]:
        """Return every process that belongs to this demo and still runs."""
        home = str((self.folder / "data" / "postgres").resolve())
        left = []
        for process in psutil.process_iter(["pid", "cmdline", "cwd", "status"]):
            seen = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
            is_ours = any(str(self.folder) in word or home in word for word in seen)
            if is_ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                left.append(f"{process.info['pid']}: {' '.join(seen)}")
        return left


@pytest.fixture
def demo(folder: Path) -> Iterator[Callable[..., Demo]]:
    """Start demos in one folder; they are stopped at the end, killed if necessary."""
    made: list[Demo] = []

    def start(*arguments: str, port: int | None = None) -> Demo:
        made.append(Demo(folder, *arguments, port=port))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.terminate()
            try:
                one.process.wait(300)
            except subprocess.TimeoutExpired:
                one.process.kill()


def test_it_plays_balances_and_leaves_nothing_running(demo: Callable[..., Demo]):
    running = demo("--seconds", "8")
    assert running.end() == 0, running.text
    assert "The store is consistent" in running.text
    assert "deliveries created" in running.text
    assert running.accepted > 20
    assert systems_agree(running.text) == ["billing", "fleet", "music", "cashdesk"]
    for figure in ("duplicate", "conflict", "rejected", "succeeded", "ignored", "dead"):
        assert max(map(int, re.findall(rf"{figure} (\d+)", running.text))) > 0, running.text
    assert running.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
@pytest.mark.parametrize(
    ("corruption", "complaint"),
    [
        ("delete from boathook.event where id = (select id from boathook.event where source = 'github' limit 1)", "is stored not at all"),
        ("insert into demo.effect (event_id, event_key, handler, attempt) select event_id, event_key, handler, attempt from demo.effect limit 1", "twice"),
        ("update boathook.event set body = body || ' ' where id = (select id from boathook.event where source = 'slack' limit 1)", "bodies match their hashes"),
    ],
)  # fmt: skip
def test_tampering_with_the_store_is_detected(demo: Callable[..., Demo], corruption: str, complaint: str):
    running = demo("--seconds", "6")
    until(lambda: running.accepted > 20)
    with running.connect() as connection:
        until(lambda: connection.execute(corruption).rowcount == 1)  # what it needs may not be there yet
    assert running.end() == 1, running.text
    assert "Inconsistent: " in running.text
    assert complaint in running.text
    assert running.leftovers() == []


def systems_agree(text: str) -> list[str]:
    """Return which of the four systems the table reports as consistent."""
    return re.findall(r"^ (\w+) +[1-9]\d* +[1-9]\d* +\d+ +[1-9]\d* .* agree\s*$", text, re.MULTILINE)


@pytest.mark.extended("plays a whole demo; one such run stays")
def test_tampering_with_a_subscription_is_detected(demo: Callable[..., Demo]):
    running = demo("--seconds", "12")
    running.wait_for_output("of real life")
    with running.connect() as connection:
        tamper = (
            "update billing.subscriptions set current_period_end = current_period_end + interval '400 days'"
            " where user_id = (select min(user_id) from billing.subscriptions where current_period_end is not null)"
        )
        until(lambda: connection.execute(tamper).rowcount == 1, every=0.01)
    assert running.end() == 1, running.text
    assert "The store is consistent" in running.text
    assert re.search(r"^  billing: \S+@example.com: .*until", running.text, re.MULTILINE), running.text
    assert systems_agree(running.text) == ["fleet", "music", "cashdesk"]
    assert running.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
def test_a_second_signal_ends_the_four_systems_too(demo: Callable[..., Demo]):
    running = demo()
    until(lambda: any(" simulate " in line for line in running.leftovers()))
    running.process.send_signal(signal.SIGINT)
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 1, running.text
    assert "the consistency check did not run" in running.text
    assert running.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_after_the_books(demo: Callable[..., Demo], number: signal.Signals):
    running = demo()
    until(lambda: running.accepted > 20)
    running.process.send_signal(number)
    assert running.end() == 0, running.text
    assert "The store is consistent" in running.text
    assert running.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
def test_a_signal_while_it_starts_stops_everything(demo: Callable[..., Demo]):
    running = demo()
    running.wait_for_output("starting PostgreSQL")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0, running.text
    assert "stopped before anything was sent" in running.text
    assert running.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
def test_the_printed_lines_work(demo: Callable[..., Demo]):
    running = demo("--seconds", "3")
    assert running.end() == 0, running.text
    lines = [line for line in running.text.splitlines() if line and not line.startswith(("#", " ", "·"))]
    requests = [line for line in lines if line.startswith(SHELL_LINES)]
    commands = [line for line in lines if "--config" in line]
    serve = next(line for line in commands if line.endswith(" serve"))
    assert len(requests) == 2
    with running.output.open("ab") as output:
        serving = subprocess.Popen(["sh", "-c", f"exec {serve}"], stdout=output, stderr=output, start_new_session=True)
    try:
        until(lambda: _is_ready(running.port))
        for line in requests:
            for is_duplicate in (False, True):
                assert _request(line, running.port) == is_duplicate
        for command in commands:
            if command != serve:
                done = _shell(command)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    finally:
        serving.terminate()
        serving.wait(60)
    assert running.leftovers() == []


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def _shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=300, check=False)


def _request(line: str, port: int) -> bool:
    """Send a printed request, without curl if missing; return whether it was a duplicate."""
    if shutil.which("curl") is None:
        line = f'curl() {{ {sys.executable} -c {shlex.quote(POOR_CURL)} "$@"; }}; {line}'
    done = _shell(line)
    assert '"ok":true' in done.stdout, f"{line}\n{done.stdout}\n{done.stderr}"
    return '"duplicate":true' in done.stdout


@pytest.mark.extended("starts several servers of its own")
def test_a_foreign_folder_is_not_emptied(demo: Callable[..., Demo], folder: Path):
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    running = demo("--seconds", "1")
    assert running.end() == 2
    assert "choose another --data-dir" in running.text
    assert (folder / "thesis.txt").read_text() == "years of work"


def _take_quiet_port(taken: socket.socket) -> int:
    """Bind below the ephemeral ports, so that no client gets the next port."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


@pytest.mark.extended("plays a whole demo; one such run stays")
def test_the_next_free_port_is_taken_and_named(demo: Callable[..., Demo]):
    with socket.socket() as taken:
        port = _take_quiet_port(taken)
        taken.listen()
        running = demo("--seconds", "1", port=port)
        assert running.end() == 0, running.text
    assert re.search(rf"port {port} is taken, so this demo uses \d+", running.text)


@pytest.mark.extended("plays a whole demo; one such run stays")
def test_one_folder_serves_one_demo_at_a_time_and_is_used_again(demo: Callable[..., Demo]):
    first = demo()
    first.wait_for_output("of real life")
    second = demo("--seconds", "1")
    assert second.end() == 2
    assert "another demo is running" in second.text
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 0
    third = demo("--seconds", "1")
    assert third.end() == 0, third.text
    assert "removing what the last demo left" in third.text
    assert third.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
@pytest.mark.skipif(not has_server(), reason="rabbitmq-server is not installed")
@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="redis-server is not installed")
def test_installed_servers_are_used_beside_the_four_systems(demo: Callable[..., Demo]):
    running = demo("--seconds", "9", "--buffer", "auto")
    assert running.end(600) == 0, running.text
    assert re.search(r"RabbitMQ announced [1-9][\d,]* messages of due deliveries\.", running.text), running.text
    assert "Redis, for the rates of sources, is in use." in running.text
    assert "The four systems" in running.text
    assert running.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
@pytest.mark.skipif(not has_server(), reason="rabbitmq-server is not installed")
def test_with_a_broker_a_postgresql_outage_fails_no_request(demo: Callable[..., Demo]):
    running = demo("--seconds", "9", "--buffer", "rabbitmq")
    assert running.end(600) == 0, running.text
    assert "The store is consistent" in running.text
    buffered = re.search(r"(\d+) events waited with RabbitMQ", running.text)
    assert buffered, running.text
    assert int(buffered[1]) > 0
    assert running.leftovers() == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int((running.folder / "rabbitmq" / "epmd-port").read_text())))


@pytest.mark.extended("plays a whole demo; one such run stays")
@pytest.mark.skipif(not has_server(), reason="rabbitmq-server is not installed")
def test_a_broker_that_buffered_no_event_is_reported(demo: Callable[..., Demo]):
    running = demo("--seconds", "9", "--buffer", "rabbitmq")
    running.wait_for_output("of real life", timeout=600)
    os.kill(int((running.folder / "rabbitmq" / "node0" / "pid").read_text()), signal.SIGKILL)
    assert running.end(600) == 1, running.text
    assert "no event waited with RabbitMQ" in running.text
    assert running.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
@pytest.mark.skipif(not has_server(), reason="rabbitmq-server is not installed")
def test_the_broker_that_a_killed_demo_left_is_ended_by_the_next(demo: Callable[..., Demo]):
    killed = demo("--buffer", "rabbitmq")
    killed.wait_for_output("starting PostgreSQL", timeout=600, every=0.01)
    killed.process.kill()
    killed.process.wait()
    assert any("rabbitmq" in line for line in killed.leftovers())
    following = demo("--seconds", "1")
    assert following.end(600) == 0, following.text
    assert following.leftovers() == []


@pytest.mark.extended("plays a whole demo; one such run stays")
@pytest.mark.skipif(not has_server(), reason="rabbitmq-server is not installed")
def test_a_folder_that_a_killed_demo_still_uses_is_not_emptied(demo: Callable[..., Demo]):
    killed = demo("--buffer", "rabbitmq")
    until(lambda: killed.accepted > 0, timeout=600)
    killed.process.kill()
    killed.process.wait()
    following = demo("--seconds", "1")
    assert following.end(600) == 2, following.text
    assert "a boathook is still running" in following.text
    for line in killed.leftovers():
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(int(line.partition(":")[0])).kill()
    last = demo("--seconds", "1")
    assert last.end(600) == 0, last.text
    assert last.leftovers() == []
