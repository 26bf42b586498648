"""Payloads that ruin whoever handles them."""

from tests.faults.rig import bank
from tests.faults.rig.environment import Lab
from tests.faults.rig.mutants import UNCOUNTED, Twin
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import make_letter

TARGET = "buried after three attempts, no effect; neighbours unharmed"


def _poison(it: Lab, *kinds: str) -> None:
    it.start(settings={"worker": {"lease_s": 1.0, "memory_mb": 1024}})
    it.begin(rate=60)
    it.warm(30)
    it.fault("poison arrives")
    it.send(*(make_letter(f"evt_{kind}", f"poison.{kind}", "a00", "a01", 1) for kind in kinds))
    it.warm(30)
    it.quiesce()
    for kind in kinds:
        found = it.ask(
            "select attempts from boathook.delivery where state = 'dead' and recipient = %s", f"handler:poison_{kind}"
        )
        it.expect(
            "C8", found == [(bank.POISON_ATTEMPTS,)], f"poison.{kind} is not dead after {bank.POISON_ATTEMPTS} attempts"
        )
    it.figure("kinds of poison", len(kinds))


@scenario(
    fault="payloads that kill their worker, recurse, hog memory, wait for ever",
    target=TARGET,
    twin=Twin(sql=UNCOUNTED, label="counts no attempt whose worker died", breaks=frozenset({"C4", "C8"})),
    tier="soak",
)
def test_poison_payloads(it: Lab) -> None:
    _poison(it, "crash", "recursion", "memory", "deadlock")


@scenario(
    fault="payloads that crash the interpreter, or loop without end",
    target=TARGET,
    twin=Twin(sql=UNCOUNTED, label="counts no attempt whose worker died", breaks=frozenset({"C4", "C8"})),
    tier="soak",
)
def test_poison_payloads_of_the_worst_kind(it: Lab) -> None:
    _poison(it, "segfault", "loop", "crash")
