"""Counts of hosts reach PostgreSQL despite killed and stopped processes."""

from collections.abc import Callable

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until


def post(running: BoathookProcess, *keys: str) -> None:
    for key in keys:
        body, headers = signed(payload(key))
        assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300).status_code == 200


def kept(running: BoathookProcess, what: str = "boathook_events_accepted_total") -> int:
    with psycopg.connect(running.database_url) as connection:
        row = connection.execute(
            """
            select coalesce(sum((counted ->> 1)::int), 0)
            from boathook.metric_sample, json_array_elements(series #> array['counters', %s]) as counted
            where step_s = 10 and counted #>> '{0,0}' = 'stripe'
            """,
            [what],
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.extended("starts several servers of its own")
def test_a_stopping_host_stores_its_last_counts(boathook: Callable[..., BoathookProcess]) -> None:
    # What goes through the spool counts as accepted before it is known to be a duplicate.
    running = boathook(extra="[spool]\nenabled = false\n")
    post(running, "a", "b", "c")
    assert running.stop() == 0
    assert kept(running) == 3
    running.start()
    post(running, "d", "a")
    assert running.stop() == 0
    assert (kept(running), kept(running, "boathook_duplicates_total")) == (4, 1)


@pytest.mark.extended("starts several servers of its own")
def test_two_hosts_on_one_database_are_both_sampled(boathook: Callable[..., BoathookProcess]) -> None:
    first, second = boathook(), boathook(roles="gateway")
    post(first, "first-1")
    post(second, "second-1", "second-2")

    def hosts() -> bool:
        with psycopg.connect(first.database_url) as connection:
            found = connection.execute("select count(distinct host) from boathook.metric_sample").fetchone()
        return found == (2,)

    until(hosts, every=0.5)
    (seen,) = first.listing("top", "--once")
    assert [host["name"].rpartition("/")[0].endswith(n) for host, n in zip(seen["hosts"], "01", strict=True)]
    assert "supervisor" in seen["hosts"][0]["roles"]
    assert first.stop() == second.stop() == 0
    assert kept(first) == 3


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_killed_host_continues_its_counts(boathook: Callable[..., BoathookProcess]) -> None:
    running = boathook()
    post(running, "k-1", "k-2")
    until(lambda: "accepted" in (running.folder / "data/metrics/gateway-0.json").read_text())
    running.kill_all()
    running.start()
    post(running, "k-3")
    assert running.stop() == 0
    # What was counted between the last sample and the death may be missing, and nothing is told twice.
    assert 1 <= kept(running) <= 3
