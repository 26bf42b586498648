"""Processes and PostgreSQL die, freeze and come back under load."""

from tests.faults.rig.environment import Lab
from tests.faults.rig.mutants import UNFENCED, Twin
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import make_letter


@scenario(
    fault="SIGKILL of the gateway under load",
    target="0 lost, 0 phantom, one row each",
    twin=Twin("answers_before_commit", breaks=frozenset({"C1"})),
)
def test_gateway_killed(it: Lab) -> None:
    it.start()
    it.begin(rate=150)
    it.warm(60)
    for _ in range(2):
        it.fault("the gateway is killed")
        it.host.kill("gateway")
        it.warm(60)
    it.figure("kills", 2)


@scenario(
    fault="SIGKILL of PostgreSQL and all its processes under load",
    target="0 lost, 0 phantom, effects once",
    twin=Twin(
        "commits_in_memory",
        breaks=frozenset({"C1"}),
        server={"synchronous_commit": "off", "wal_writer_delay": "10s"},
        settings={"database": {"allow_unsafe": True}},
    ),
    tier="extended",
)
def test_postgresql_killed(it: Lab) -> None:
    it.start()
    it.begin(rate=150)
    it.warm(100)
    it.fault("PostgreSQL is killed")
    it.server.kill_all()
    it.outside.wait_events(20)
    it.heal()
    it.warm(60)


@scenario(
    fault="a worker frozen beyond its lease (SIGSTOP), then thawed",
    target="effects once; the stale commit is refused",
    twin=Twin(sql=UNFENCED, label="settles without the fence", breaks=frozenset({"C5", "C7"})),
    tier="extended",
)
def test_worker_frozen_beyond_its_lease(it: Lab) -> None:
    it.start()
    it.send(make_letter("evt_slow", "slow.job", "a00", "a01", 1, seconds=1.0))
    it.wait_row("select 1 from boathook.delivery where recipient = 'handler:slow' and state = 'leased'")
    it.fault("the worker is frozen")
    it.host.freeze("worker")
    other = it.start(roles="worker,keeper")
    it.wait_row("select 1 from boathook.outcome where recipient = 'handler:slow'")
    it.heal()
    it.begin(rate=100)
    it.warm(60)
    it.figure("taken over by", other.roles)
