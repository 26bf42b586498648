"""Payloads that crash the worker that handles them."""

from tests.faults.rig import bank
from tests.faults.rig.environment import Environment
from tests.faults.rig.mutants import UNCOUNTED, Mutant
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import make_event

TARGET = "buried after three attempts, no effect; neighbours unharmed"


def _poison(env: Environment, *kinds: str) -> None:
    env.start(settings={"worker": {"lease_s": 1.0, "memory_mb": 1024}})
    env.begin(rate=60)
    env.warm(30)
    env.fault("poison arrives")
    env.send(*(make_event(f"evt_{kind}", f"poison.{kind}", "a00", "a01", 1) for kind in kinds))
    env.warm(30)
    env.quiesce()
    for kind in kinds:
        found = env.ask(
            "select attempts from boathook.delivery where state = 'dead' and recipient = %s", f"handler:poison_{kind}"
        )
        env.expect(
            "C8", found == [(bank.POISON_ATTEMPTS,)], f"poison.{kind} is not dead after {bank.POISON_ATTEMPTS} attempts"
        )
    env.figure("kinds of poison", len(kinds))


@scenario(
    fault="payloads that kill their worker, recurse, hog memory, wait for ever",
    target=TARGET,
    mutant=Mutant(sql=UNCOUNTED, label="counts no attempt whose worker died", breaks=frozenset({"C4", "C8"})),
    tier="soak",
)
def test_poison_payloads(env: Environment) -> None:
    _poison(env, "crash", "recursion", "memory", "deadlock")


@scenario(
    fault="payloads that crash the interpreter, or loop without end",
    target=TARGET,
    mutant=Mutant(sql=UNCOUNTED, label="counts no attempt whose worker died", breaks=frozenset({"C4", "C8"})),
    tier="soak",
)
def test_poison_payloads_of_the_worst_kind(env: Environment) -> None:
    _poison(env, "segfault", "loop", "crash")
