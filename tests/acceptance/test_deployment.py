"""boathook under a service manager and in a container's surroundings: what deploy/ relies on."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from boathook.server.child_process import ServiceNotifier
from boathook.testing import sign
from tests.acceptance.conftest import free_port
from tests.support import until

COMPOSE = Path(__file__).parents[2] / "deploy/compose"


class Manager:
    """The notify socket of a service manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(address)
        self._line.setblocking(False)
        self.heard: list[str] = []

    def hear(self) -> list[str]:
        """Return all notifications received so far."""
        while True:
            try:
                self.heard.append(self._line.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    def close(self) -> None:
        self._line.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="boathook-notify-") as folder:  # an address has 107 characters at most
        manager = Manager(f"{folder}/notify")
        yield manager
        manager.close()


class TestService:
    def test_notifies_ready_once_and_the_watchdog_regularly(self, manager):
        environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
        service = ServiceNotifier(environment)
        assert environment == {}, "what is meant for this process is handed on to its children"
        service.beat(is_ready=False)
        service.beat(is_ready=True)
        assert manager.hear() == ["WATCHDOG=1", "READY=1"]

        def lives() -> bool:
            service.beat(is_ready=True)
            return manager.hear().count("WATCHDOG=1") > 2

        until(lives)
        service.stop()
        assert manager.hear()[-1] == "STOPPING=1"
        assert manager.hear().count("READY=1") == 1

    def test_a_watchdog_of_another_process_is_ignored(self, manager):
        service = ServiceNotifier({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"})
        service.beat(is_ready=True)
        assert manager.hear() == ["READY=1"]

    def test_it_does_not_wait_for_a_manager_that_does_not_listen(self, manager):
        service = ServiceNotifier({"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2"})
        for _ in range(2_000):  # more than any queue holds
            service.beat(is_ready=True)
        assert 1 < len(manager.hear()) < 2_000

    def test_a_missing_or_dead_notify_socket_is_ignored(self, tmp_path):
        for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"NOTIFY_SOCKET": "nonsense"}):
            ServiceNotifier(environment).beat(is_ready=True)


@pytest.mark.extended("starts several servers of its own")
def test_the_compose_setup_accepts_webhooks_and_notifies_its_manager(pg_url, tmp_path, manager):
    place = shutil.copytree(COMPOSE, tmp_path / "compose")
    subprocess.run(["sh", place / "make-secrets.sh"], check=True)
    (place / "secrets/database_url").write_text(pg_url)
    secret = (place / "secrets/stripe_secret").read_text()
    toml = place / "boathook.toml"
    patient = toml.read_text().replace("[server]", "[server]\ndrain_s = 300.0")
    toml.write_text(patient.replace("/run/secrets", str(place / "secrets")))
    port = free_port()
    environment = {
        **os.environ,
        "BOATHOOK_DATABASE_URL": f"file:{place}/secrets/database_url",
        "BOATHOOK_BIND": f"127.0.0.1:{port}",
        "BOATHOOK_DATA_DIR": str(tmp_path / "data"),
        "BOATHOOK_LOG_FORMAT": "json",
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "1000000",
    }
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "boathook", "--config", toml, "serve"],
            cwd=place / "app",
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: "READY=1" in manager.hear() or process.poll() is not None)
        assert process.poll() is None
        # A client that is told that it is ready may send at once.
        body = json.dumps({
            "id": "evt_1", "type": "payment_intent.succeeded", "data": {"object": {"id": "pi_1", "amount": 4200}},
        }).encode()  # fmt: skip
        answer = httpx.post(f"http://127.0.0.1:{port}/in/stripe", content=body, headers=sign("stripe", secret, body))
        assert answer.status_code == 200
        until(lambda: ("pi_1", 4200) in payments(pg_url))
        until(lambda: manager.hear().count("WATCHDOG=1") > 2)
        process.send_signal(signal.SIGTERM)
        until(lambda: process.poll() is not None)
        assert process.returncode == 0
        assert "STOPPING=1" in manager.hear()
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'serve.log').read_text()[-4000:]}") from None
    finally:
        process.kill()
        process.wait(300)


def payments(url: str) -> list[tuple[str, int]]:
    with psycopg.connect(url) as connection:
        if connection.execute("select to_regclass('payment')").fetchone() == (None,):
            return []
        return connection.execute("select id, amount from payment").fetchall()
