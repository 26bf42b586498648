"""A cluster of three brokers takes what PostgreSQL does not: senders notice nothing while a majority of it answers."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from boathook_rabbitmq.queues import BUFFER_QUEUES, DUE_HANDLERS, LANE_QUEUES
from tests.brokers import PASSWORD, USER, Cluster, RabbitNode, running_cluster
from tests.conftest import open_folder
from tests.faults.rig.applications import open_publishing
from tests.faults.rig.environment import Environment
from tests.faults.rig.history import Answered, Sent
from tests.faults.rig.invariants import is_ok
from tests.faults.rig.outages import unanswered
from tests.support import until

pytestmark = [
    pytest.mark.extended("runs three brokers; the tests with one broker stay"),
    pytest.mark.timeout(1200),
]
RATE = 40.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = open_folder()
    with running_cluster(folder, 3) as one:
        yield one
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def vhost(cluster: Cluster) -> str:
    return cluster.new_vhost()


@pytest.fixture
def env(cluster_template: Path, tmp_path: Path) -> Iterator[Environment]:
    with Environment(tmp_path, template=cluster_template) as one:
        yield one


def start(
    env: Environment,
    cluster: Cluster,
    vhost: str,
    *,
    lane: str = "postgresql",
    roles: str = "gateway,worker,keeper",
    senders: int = 0,
    **buffer: Any,
) -> None:
    """Start a gateway that uses the brokers, and wait until each queue has its three copies."""
    table = {
        "kind": "rabbitmq", "hosts": cluster.hosts, "vhost": vhost, "user": USER, "password": PASSWORD,
        "management_url": cluster.management_url, "confirm_s": 3.0, **buffer,
    }  # fmt: skip
    env.start(roles=roles, senders=senders, settings={"buffer": table, "delivery": {"lane": lane}})
    until(lambda: all(len(cluster.queue(vhost, name)["members"]) == 3 for name in BUFFER_QUEUES))
    until(lambda: metric(env, "boathook_buffer_unavailable") == 0)


def metric(env: Environment, name: str) -> float:
    """Return a metric's sum over the series with this name or first labels, as the gateway exports it."""
    lines = httpx.get(f"{env.host.base}/metrics", timeout=30).text.splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((f"{name} ", f"{name}{{", f"{name},", f"{name}}}"))
    )


def leader(cluster: Cluster, vhost: str) -> RabbitNode:
    """Return the node that leads the queue which has messages."""
    for name in BUFFER_QUEUES:
        found = cluster.queue(vhost, name)
        if found.get("messages"):
            return next(node for node in cluster.nodes if node.name == found["leader"])
    raise AssertionError("no queue has messages")


def finish(env: Environment, *, has_new_gateway: bool = False) -> None:
    """Let everything recover, and check that nothing is lost or doubled, nor out of order unless the gateway is new."""
    env.heal()
    env.warm(30, timeout_s=300)
    env.outside.stop()
    until(lambda: metric(env, "boathook_database_unavailable") == 0)
    assert metric(env, "boathook_buffer_lost_total") == 0
    env.quiesce(300.0)
    verdict = env.judge()
    broken = verdict.broken - ({"C6"} if has_new_gateway else set())
    assert not broken, verdict.report


def test_postgresql_outage_with_brokers_fails_no_request(env: Environment, cluster: Cluster, vhost: str):
    start(env, cluster, vhost)
    env.begin(rate=RATE)
    env.warm(30, timeout_s=300)
    env.fault("PostgreSQL is stopped")
    env.server.stop()
    env.outside.wait_events(400, timeout_s=300)
    finish(env)
    assert unanswered(env.history()) == 0
    assert metric(env, "boathook_buffer_appended_total") > 100


def test_postgresql_outage_with_mixed_traffic_and_brokers_fails_no_request(
    env: Environment, cluster: Cluster, vhost: str
):
    start(env, cluster, vhost, roles="gateway,console,worker,keeper", senders=1)
    publishing = open_publishing(env, place="/notes")
    env.begin(rate=RATE / 2, publishing=publishing)
    env.warm(30, timeout_s=300)
    env.fault("PostgreSQL is stopped")
    env.server.stop()
    env.outside.wait_events(150, timeout_s=300)
    finish(env)
    assert unanswered(env.history()) == 0
    assert metric(env, "boathook_buffer_appended_total") > 100


def test_losing_the_queue_leader_too_fails_no_request(env: Environment, cluster: Cluster, vhost: str):
    start(env, cluster, vhost)
    env.begin(rate=RATE)
    env.warm(30, timeout_s=300)
    env.fault("PostgreSQL is stopped, and the leader of the queue is killed")
    env.server.stop()
    env.outside.wait_events(100, timeout_s=300)
    killed = until(lambda: leader(cluster, vhost))
    killed.kill()
    try:
        env.outside.wait_events(200, timeout_s=300)
        finish(env)
    finally:
        killed.start()
        cluster.wait_running()
    assert unanswered(env.history()) == 0


def test_a_gateway_killed_with_its_disk_loses_nothing(env: Environment, cluster: Cluster, vhost: str):
    start(env, cluster, vhost, then="refuse")
    env.begin(rate=RATE)
    env.warm(30, timeout_s=300)
    env.fault("PostgreSQL is stopped, and the host of the gateway is lost with its disk")
    env.server.stop()
    env.outside.wait_events(100, timeout_s=300)
    assert not (env.host.data / "spool").exists(), "there is nothing of value on the gateway's disk"
    env.host.kill_all()
    shutil.rmtree(env.host.data)
    env.server.restart()
    env.host.start()
    finish(env, has_new_gateway=True)  # it does not know of the events that the former one published


def test_without_postgresql_brokers_and_disk_requests_get_503(env: Environment, cluster: Cluster, vhost: str):
    start(env, cluster, vhost, then="refuse")
    env.begin(rate=RATE)
    env.warm(30, timeout_s=300)
    env.fault("PostgreSQL and all brokers are stopped")
    env.server.stop()
    env.outside.wait_events(60, timeout_s=300)
    for node in cluster.nodes:
        node.kill()
    try:
        answered = time.monotonic()
        env.outside.wait_events(100, timeout_s=300)
        signed = {fact.number for fact in env.history() if isinstance(fact, Sent) and fact.is_signed}
        until(lambda: any(_refused(env, signed)))
        assert set(_refused(env, signed)) == {503}, f"after {time.monotonic() - answered:.0f} s"
    finally:
        for node in cluster.nodes:
            node.start()
        cluster.wait_running()
    until(lambda: metric(env, "boathook_buffer_unavailable") == 0)
    finish(env)


def _refused(env: Environment, signed: set[int]) -> list[int]:
    """Return the statuses, other than 2xx, of requests with a good signature."""
    answers = (fact for fact in env.history() if isinstance(fact, Answered) and not is_ok(fact.status))
    return [fact.status for fact in answers if fact.number in signed]


def test_deliveries_survive_the_loss_of_all_brokers(env: Environment, cluster: Cluster, vhost: str):
    start(env, cluster, vhost, lane="rabbitmq")
    until(lambda: metric(env, "boathook_due_lane_unavailable") == 0)
    env.begin(rate=RATE)
    env.warm(30, timeout_s=300)
    until(lambda: metric(env, 'boathook_due_lane_messages_total{outcome="received"') > 0)
    leader_name = cluster.queue(vhost, DUE_HANDLERS)["leader"]
    nodes = sorted(cluster.nodes, key=lambda node: node.name != leader_name)
    try:
        env.fault("the leader of the workers' queue is killed")
        nodes[0].kill()
        env.outside.wait_events(100, timeout_s=300)
        env.fault("the other brokers are killed")
        for node in nodes[1:]:
            node.kill()
        until(lambda: metric(env, "boathook_due_lane_unavailable") == 1)
        env.warm(60, timeout_s=300)
    finally:
        for node in nodes:
            node.start()
        cluster.wait_running()
    until(lambda: metric(env, "boathook_due_lane_unavailable") == 0)
    finish(env)


def test_doctor_accepts_three_copies_and_names_a_missing_node(env: Environment, cluster: Cluster, vhost: str):
    start(env, cluster, vhost, lane="rabbitmq")
    until(lambda: all(len(cluster.queue(vhost, name)["members"]) == 3 for name in LANE_QUEUES))
    found = findings(env)
    assert found["brokers"]["verdict"] == found["copies"]["verdict"] == "ok"
    statuses = env.host.listing("buffer", "status")
    assert len(statuses) == 9 + len(LANE_QUEUES)
    assert not any(one["problem"] for one in statuses)
    cluster.nodes[2].kill()
    try:
        until(lambda: _is_missing(cluster.nodes[2].name, findings(env)["copies"]))
    finally:
        cluster.nodes[2].start()
        cluster.wait_running()


def _is_missing(node: str, copies: dict[str, Any]) -> bool:
    """Return whether doctor names a node; right after its end, the brokers themselves know it now and then."""
    return copies["verdict"] == "warn" and node in copies["found"]


def findings(env: Environment) -> dict[str, dict[str, Any]]:
    """Return what doctor finds, by check; it fails in the test's surroundings for other reasons."""
    lines = env.host.cli("doctor", "--json", check=False).stdout.splitlines()
    return {one["check"]: one for one in map(json.loads, lines)}
