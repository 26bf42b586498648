"""Clocks of processes that go wrong by an hour: leases and retries follow PostgreSQL's, and the signature window says so."""

from tests.faults.rig.environment import MUTANTS, Environment
from tests.faults.rig.history import Answered
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.recorder import ROOT
from tests.faults.rig.scenario import scenario


def _clocks(env: Environment, *patches: str) -> dict[str, str]:
    """Return the environment of a host with a wrong clock, followed by the mutant's own patch."""
    names = [*patches, env.mutant.patch] if env.mutant.patch else patches
    return {"PYTHONPATH": f"{MUTANTS}:{ROOT}", "BOATHOOK_MUTANT": ",".join(names)}


@scenario(
    fault="the clock of one worker an hour ahead, that of another an hour behind",
    target="0 effects changed: each once, in order, tried again when it should be",
    mutant=Mutant("schedules_by_its_own_clock", breaks=frozenset({"C4"})),
    tier="soak",
)
def test_clocks_of_workers(env: Environment) -> None:
    env.start(roles="gateway,keeper")
    for way in ("ahead", "behind"):
        patches = (f"clock_an_hour_{way}", f"workers_an_hour_{way}")
        env.start(roles="worker,keeper", **_clocks(env, *patches))
    env.fault("clocks are wrong")
    env.begin(rate=60, kinds={"move.made": 3.0, "flaky.now": 1.0})
    env.warm(300, timeout_s=60)
    env.quiesce()
    workers = env.ask("select count(distinct worker) from boathook.attempt")[0][0]
    dead = env.ask("select count(*) from boathook.delivery where state = 'dead'")[0][0]
    env.expect("C11", workers == 2, f"{workers} workers have done all of it")
    env.expect("C4", not dead, f"{dead} deliveries are dead, whose third attempt would have succeeded")
    env.figure("dead", dead)


@scenario(
    fault="the clock of a gateway an hour ahead",
    target="it refuses every signature and says why; nothing is kept; another one takes them",
    mutant=Mutant(
        settings={"sources.stripe": {"tolerance_s": 1_000_000.0}}, label="no signature window", breaks=frozenset({"C2"})
    ),
    tier="soak",
)
def test_clock_of_a_gateway(env: Environment) -> None:
    late = env.start(roles="gateway", **_clocks(env, "clock_an_hour_ahead"))
    env.fault("the clock is wrong")
    env.begin(rate=60, count=100, copies=0.0, conflicts=0.0, forgeries=0.0)
    env.outside.wait_events(100)
    env.outside.settle()
    taken = sum(fact.status == 200 for fact in env.history() if isinstance(fact, Answered))
    env.expect("C2", taken == 0, f"{taken} events were accepted whose signatures were an hour old by its clock")
    env.outside.mark("the reasons are read")
    reasons = {reason for (reason,) in env.ask("select distinct reason from boathook.rejection")}
    env.expect("C11", reasons == {"timestamp_too_old"}, f"the reasons on record are {sorted(reasons)}")
    env.figure("reason on record", ", ".join(sorted(reasons)))
    late.stop()
    env.start()
    env.begin(rate=60, hosts=(env.hosts[1].address,))
    env.warm(60)
