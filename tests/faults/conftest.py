"""A sender that records every response, and a check of the database against that record."""

import asyncio
import contextlib
import fcntl
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from boathook.db import migrations
from tests.acceptance.conftest import BoathookProcess, boathook, payload, shared_boathook, signed  # noqa: F401 - two are fixtures
from tests.conftest import _shared_folder
from tests.faults.rig import environment
from tests.faults.rig.postgres import OwnServer as OwnServer  # noqa: PLC0414 - tests beside this file take it from here
from tests.support import until


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault: a scenario of the fault rig, or its mutant; `make soak` runs them all")


@pytest.fixture(scope="session")
def cluster_template(run_id: str) -> Path:
    """A stopped PostgreSQL cluster with the schema, to be copied; shared by all xdist processes."""
    shared = _shared_folder(run_id)
    shared.mkdir(exist_ok=True)
    shared.chmod(0o755)
    with (shared / "cluster.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        template = shared / "cluster"
        if not template.exists():
            environment.prepare(template)
        return template


class Sender:
    """Sends signed events from several threads, and records the status of every response."""

    def __init__(self, base: str, *, kind: str = "payment.paid", threads: int = 4, retries: int = 0) -> None:
        self.base = base
        self.kind = kind
        self.retries = retries
        self.answered: dict[str, set[int]] = {}
        """Every response status by key; 0 for no response."""
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self) -> "Sender":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(300)

    def _run(self, thread: int) -> None:
        number = 0
        while not self._stop.is_set():
            key = f"evt_{thread}_{number}"
            number += 1
            self._send(key)

    def _send(self, key: str) -> None:
        statuses = self.answered.setdefault(key, set())
        body, headers = signed(payload(key, self.kind))
        for _ in range(self.retries + 1):
            try:
                # A connection of its own for each request, as most senders have.
                status = httpx.post(f"{self.base}/in/stripe", content=body, headers=headers, timeout=10).status_code
            except httpx.TransportError:
                status = 0
            statuses.add(status)
            if status == 200 or self._stop.is_set():
                return
            time.sleep(0.05)

    @property
    def accepted(self) -> set[str]:
        """Keys that were answered 2xx."""
        return {key for key, statuses in self.answered.copy().items() if 200 in statuses}

    def wait_for(self, accepted: int, timeout: float = 60) -> None:
        """Wait until so many keys more than now were answered 2xx."""
        goal = len(self.accepted) + accepted
        until(lambda: len(self.accepted) >= goal, timeout=timeout)


def stored_keys(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [key for (key,) in connection.execute("select dedup_key from boathook.event")]


def effect_counts(url: str) -> Counter[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return Counter(key for (key,) in connection.execute("select event_key from shop.effect"))


def open_deliveries(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select count(*) from boathook.delivery where state <> 'dead'").fetchone()
        assert row is not None
        return int(row[0])


def judge(url: str, sent: Iterable[str], accepted: set[str]) -> None:
    """Assert that no accepted event is lost, no stored event was not sent, and every event has exactly one effect."""
    stored = stored_keys(url)
    effects = effect_counts(url)
    assert accepted - set(stored) == set(), "answered 2xx but not stored"
    assert set(stored) - set(sent) == set(), "stored but never sent"
    assert len(stored) == len(set(stored)), "stored twice"
    assert {key: count for key, count in effects.items() if count != 1} == {}, (
        "effects that did not happen exactly once"
    )
    assert set(effects) == set(stored), "stored events without their effect"


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    server = OwnServer()
    asyncio.run(migrations.migrate(server.url))
    yield server
    server.close()


@pytest.fixture
def settle_and_judge():
    def run(running: BoathookProcess, sender: Sender) -> None:
        with contextlib.suppress(AssertionError):  # which ones are missing, the judge says
            until(lambda: sender.accepted <= set(stored_keys(running.database_url)))  # what is in the spool comes later
        until(lambda: open_deliveries(running.database_url) == 0)
        judge(running.database_url, sender.answered, sender.accepted)
        assert running.cli("check").returncode == 0

    return run
