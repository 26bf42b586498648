"""Processes and PostgreSQL die, freeze and restart under load."""

from tests.faults.rig.environment import Environment
from tests.faults.rig.mutants import UNFENCED, Mutant
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import make_event


@scenario(
    fault="SIGKILL of the gateway under load",
    target="0 lost, 0 phantom, one row each",
    mutant=Mutant("answers_before_commit", breaks=frozenset({"C1"})),
)
def test_gateway_killed(env: Environment) -> None:
    env.start()
    env.begin(rate=150)
    env.warm(60)
    for _ in range(2):
        env.fault("the gateway is killed")
        env.host.kill("gateway")
        env.warm(60)
    env.figure("kills", 2)


@scenario(
    fault="SIGKILL of PostgreSQL and all its processes under load",
    target="0 lost, 0 phantom, effects once",
    mutant=Mutant(
        "commits_in_memory",
        breaks=frozenset({"C1"}),
        server={"synchronous_commit": "off", "wal_writer_delay": "10s"},
        settings={"database": {"allow_unsafe": True}},
    ),
    tier="extended",
)
def test_postgresql_killed(env: Environment) -> None:
    env.start()
    env.begin(rate=150)
    env.warm(100)
    env.fault("PostgreSQL is killed")
    env.server.kill_all()
    env.outside.wait_events(20)
    env.heal()
    env.warm(60)


@scenario(
    fault="a worker frozen beyond its lease (SIGSTOP), then thawed",
    target="effects once; the stale commit is refused",
    mutant=Mutant(
        "finishes_lost_attempts", sql=UNFENCED, label="settles without the fence", breaks=frozenset({"C5", "C7"})
    ),
    tier="extended",
)
def test_worker_frozen_beyond_its_lease(env: Environment) -> None:
    env.start()
    env.send(make_event("evt_slow", "slow.job", "a00", "a01", 1, seconds=1.0))
    env.wait_row("select 1 from boathook.delivery where recipient = 'handler:slow' and state = 'leased'")
    env.fault("the worker is frozen")
    env.host.freeze("worker")
    other = env.start(roles="worker,keeper")
    env.wait_row("select 1 from boathook.delivery_archive where recipient = 'handler:slow'")
    env.heal()
    env.begin(rate=100)
    env.warm(60)
    env.figure("taken over by", other.roles)
