"""The network between boathook and PostgreSQL stalls, breaks and crawls."""

from tests.faults.rig.history import Answered
from tests.faults.rig.lab import Lab
from tests.faults.rig.scenario import scenario
from tests.faults.rig.twins import Twin


def _refused(it: Lab) -> int:
    """Return how many requests were answered 5xx or 429."""
    return sum(fact.status == 429 or fact.status >= 500 for fact in it.history() if isinstance(fact, Answered))


@scenario(
    fault="the way to PostgreSQL falls silent for 4 s, no connection ends",
    target="every signed event answered 2xx meanwhile",
    twin=Twin(settings={"spool": {"enabled": False}}, label="no spool", breaks=frozenset({"C11"})),
)
def test_silent_cut(it: Lab) -> None:
    host = it.start(is_wired=True)
    assert host.wire is not None
    it.begin(rate=60)
    it.warm(40)
    it.fault("nothing passes between boathook and PostgreSQL")
    host.wire.set(is_stalled=True)
    it.outside.wait_events(240)
    waiting = len(it.spooled())
    it.heal()
    it.warm(30)
    it.quiesce()
    refused = _refused(it)
    it.expect("C11", refused == 0, f"{refused} requests were refused")
    it.expect("C11", waiting > 0, "nothing went into the spool")
    it.figure("spooled meanwhile", waiting)
    it.figure("refused", refused)
