"""Clocks of processes that go wrong by an hour: leases and retries follow PostgreSQL's, and the signature window says so."""

from tests.faults.rig.environment import SABOTAGE, Lab
from tests.faults.rig.history import Answered
from tests.faults.rig.mutants import Twin
from tests.faults.rig.recorder import ROOT
from tests.faults.rig.scenario import scenario


def _clocks(it: Lab, *patches: str) -> dict[str, str]:
    """Return the environment of a host whose clock is wrong, with the twin's own patch behind."""
    names = [*patches, it.twin.patch] if it.twin.patch else patches
    return {"PYTHONPATH": f"{SABOTAGE}:{ROOT}", "BOATHOOK_SABOTAGE": ",".join(names)}


@scenario(
    fault="the clock of one worker an hour ahead, that of another an hour behind",
    target="0 effects changed: each once, in order, tried again when it should be",
    twin=Twin("schedules_by_its_own_clock", breaks=frozenset({"C4"})),
    tier="soak",
)
def test_clocks_of_workers(it: Lab) -> None:
    it.start(roles="gateway,keeper")
    for way in ("ahead", "behind"):
        patches = (f"clock_an_hour_{way}", f"workers_an_hour_{way}")
        it.start(roles="worker,keeper", **_clocks(it, *patches))
    it.fault("clocks are wrong")
    it.begin(rate=60, kinds={"move.made": 3.0, "flaky.now": 1.0})
    it.warm(300, timeout_s=60)
    it.quiesce()
    workers = it.ask("select count(distinct worker) from boathook.attempt")[0][0]
    dead = it.ask("select count(*) from boathook.delivery where state = 'dead'")[0][0]
    it.expect("C11", workers == 2, f"{workers} workers have done all of it")
    it.expect("C4", not dead, f"{dead} deliveries are dead, whose third attempt would have succeeded")
    it.figure("dead", dead)


@scenario(
    fault="the clock of a gateway an hour ahead",
    target="it refuses every signature and says why; nothing is kept; another one takes them",
    twin=Twin(
        settings={"sources.stripe": {"tolerance_s": 1_000_000.0}}, label="no signature window", breaks=frozenset({"C2"})
    ),
    tier="soak",
)
def test_clock_of_a_gateway(it: Lab) -> None:
    late = it.start(roles="gateway", **_clocks(it, "clock_an_hour_ahead"))
    it.fault("the clock is wrong")
    it.begin(rate=60, count=100, copies=0.0, conflicts=0.0, forgeries=0.0)
    it.outside.wait_events(100)
    it.outside.settle()
    taken = sum(fact.status == 200 for fact in it.history() if isinstance(fact, Answered))
    it.expect("C2", taken == 0, f"{taken} events were accepted whose signatures were an hour old by its clock")
    it.outside.mark("the reasons are read")
    reasons = {reason for (reason,) in it.ask("select distinct reason from boathook.rejection")}
    it.expect("C11", reasons == {"timestamp_too_old"}, f"the reasons on record are {sorted(reasons)}")
    it.figure("reason on record", ", ".join(sorted(reasons)))
    late.stop()
    it.start()
    it.begin(rate=60, hosts=(it.hosts[1].address,))
    it.warm(60)
