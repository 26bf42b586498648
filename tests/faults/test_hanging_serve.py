"""A whole boathook lives through a PostgreSQL that hangs: without a restart of any of its processes."""

import asyncio
import time
from collections.abc import Callable, Iterator

import httpx
import psycopg
import pytest

from boathook.db import migrations
from tests.acceptance.conftest import BoathookProcess, boathook_processes, payload, signed
from tests.faults.conftest import effect_counts, open_deliveries, stored_keys
from tests.faults.frozen_server import frozen
from tests.faults.rig.postgres import OwnServer
from tests.support import until

LEASE_S = 2.0
TOLD_S = 8.0
"""The longest wait of a request while the hang is not detected yet, on a busy machine."""
SETTLED_S = LEASE_S + 2.0
LATE_S = 6.0
"""What a busy machine may add."""
SLOW_S = 1.0
ROLES = ("gateway", "worker", "suspects", "sender", "keeper")


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    one = OwnServer()
    asyncio.run(migrations.migrate(one.url))
    yield one
    one.close()


@pytest.fixture
def make(server: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., BoathookProcess]]:
    with boathook_processes(tmp_path_factory.mktemp("hanging"), server.url) as make:
        yield lambda **more: make(roles="gateway,worker,keeper,console", senders=1, **more)


def send(running: BoathookProcess, key: str, kind: str = "payment.paid", **more: object) -> int:
    body, headers = signed(payload(key, kind, **more))
    return httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=10).status_code


def children_by_role(running: BoathookProcess) -> dict[str, set[int]]:
    return {role: {child.pid for child in running.children(role)} for role in ROLES}


class ApiClient:
    """An API client."""

    def __init__(self, running: BoathookProcess) -> None:
        self._url = f"{running.base}/api/v1/app"
        token = running.cli("keys", "create", "--scope", "organization").stdout.strip()
        self._headers = {"authorization": f"Bearer {token}"}
        until(lambda: self.ask()[0].status_code == 200)

    def ask(self) -> tuple[httpx.Response, float]:
        """Return the answer and how long it took."""
        began = time.monotonic()
        answer = httpx.get(self._url, headers=self._headers, timeout=40)
        return answer, time.monotonic() - began


def wait_for_an_open_transaction(server: OwnServer) -> None:
    """Wait until a handler has written something that it has not committed."""
    name = "select 1 from pg_stat_activity where application_name = 'boathook:handlers' and backend_xid is not null"
    with psycopg.connect(server.url, autocommit=True) as connection:
        until(lambda: connection.execute(name).fetchone())


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_everything_resumes_after_a_hang_without_a_restart(make: Callable[..., BoathookProcess], server: OwnServer):
    running = make()
    clerk, before = ApiClient(running), children_by_role(running)
    assert all(before.values())
    assert send(running, "hang_slow", "slow.paid", seconds=SLOW_S) == 200
    wait_for_an_open_transaction(server)
    with frozen(server):
        began = time.monotonic()
        assert httpx.get(f"{running.base}/healthz", timeout=1).status_code == 200
        answer, took_s = clerk.ask()
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert took_s < TOLD_S
        answer, took_s = clerk.ask()
        assert answer.status_code == 503
        assert took_s < 1, "who asks a server known to be away is told at once"
        assert send(running, "hang_during") == 200
        until(lambda: time.monotonic() - began > LEASE_S)
        assert httpx.get(f"{running.base}/healthz", timeout=1).status_code == 200
    until(lambda: {"hang_slow", "hang_during"} <= set(effect_counts(server.url)), timeout=SETTLED_S + SLOW_S + LATE_S)
    until(lambda: open_deliveries(server.url) == 0)
    until(lambda: clerk.ask()[0].status_code == 200)
    assert children_by_role(running) == before, "somebody was restarted"
    assert set(effect_counts(server.url).values()) == {1}
    assert sorted(stored_keys(server.url)) == ["hang_during", "hang_slow"]


@pytest.mark.soak
def test_processes_start_and_stop_during_a_hang(make: Callable[..., BoathookProcess], server: OwnServer):
    running = make()
    with frozen(server):
        for role in ROLES:
            running.kill(role)
        told = running.cli("events", "list", check=False)
        assert told.returncode == 1
        assert told.stderr.startswith("boathook: PostgreSQL at database.url cannot be reached: it does not answer")
        assert running.process is not None
        until(lambda: "postgresql_awaited" in running.log())
    until(lambda: all(children_by_role(running).values()))
    until(lambda: _is_taking(running))
    until(lambda: "hang_after" in effect_counts(server.url))
    assert running.log().count("child_failed") == 0
    with frozen(server):
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < TOLD_S + LATE_S


def _is_taking(running: BoathookProcess) -> bool:
    try:
        return send(running, "hang_after") == 200
    except httpx.TransportError:
        return False
