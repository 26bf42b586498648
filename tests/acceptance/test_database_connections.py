"""The connections to PostgreSQL that running processes hold, against what `doctor` and the start compute."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg

from boathook.config import load
from boathook.service.database import connections_by_role
from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until

ROLES = {
    "gateway": "gateway", "console": "console", "worker": "worker", "handlers": "worker", "sender": "sender",
    "keeper": "keeper", "alerts": "keeper", "integrity": "keeper", "sampler": "supervisor", "supervisor": "supervisor",
}  # fmt: skip
"""The roles of the pools, by the name that PostgreSQL shows."""


def held(connection: psycopg.Connection) -> Counter[str]:
    """Return the connections that boathook's processes hold now, by role."""
    rows = connection.execute(
        "select split_part(application_name, ':', 2), count(*) from pg_stat_activity"
        " where datname = current_database() and application_name like 'boathook:%' group by 1"
    ).fetchall()
    found: Counter[str] = Counter()
    for purpose, number in rows:
        found[ROLES[purpose]] += number
    return found


def test_no_role_holds_more_connections_than_are_computed(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles="gateway,worker,console,keeper", senders=1)
    needs = connections_by_role(load(running.folder / "boathook.toml"))

    def send(number: int) -> int:
        body, headers = signed(payload(f"held-{number}", "slow.held", seconds=0.2))
        return httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300).status_code

    with psycopg.connect(running.database_url, autocommit=True) as connection, ThreadPoolExecutor(16) as threads:
        # Without work, each role opens what the start requires.
        until(lambda: all(held(connection)[role] >= need.least for role, need in needs.items()))
        most = held(connection)
        answers = [threads.submit(send, number) for number in range(60)]
        while not all(answer.done() for answer in answers):
            most |= held(connection)
        assert {answer.result() for answer in answers} == {200}
        until(lambda: connection.execute("select count(*) from boathook.delivery").fetchone() == (0,))
        most |= held(connection)
    assert {role: number for role, number in most.items() if number > needs[role].most} == {}
    assert most["worker"] > needs["worker"].least, "the load reached no handler"
