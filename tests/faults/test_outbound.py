"""Failing receivers of messages, and dying sender processes."""

from dataclasses import replace

from tests.faults.rig import bank
from tests.faults.rig.environment import Environment
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.receivers import Behaviour
from tests.faults.rig.scenario import scenario

IN_FLIGHT = 100
"""Most copies that the death of a sender may cost here."""


@scenario(
    fault="a sender is killed while one of two endpoints answers 500",
    target="every message arrives; copies only of those under way",
    mutant=Mutant("believes_every_answer", breaks=frozenset({"C12"})),
    limits=replace(bank.LIMITS, wire_copies=IN_FLIGHT),
    tier="soak",
)
def test_sender_killed(env: Environment) -> None:
    env.endpoint("/a")
    env.endpoint("/b")
    env.start(senders=1)
    env.begin(rate=60, kinds={"letter.sent": 1.0})
    env.outside.wait_arrived(60)
    env.fault("an endpoint fails and the sender is killed")
    env.outside.answer("/a", Behaviour(status=500))
    env.outside.wait_arrived(40)
    env.host.kill("sender")
    env.warm(20)
    env.outside.answer("/a", Behaviour())
    env.heal()
    env.outside.wait_arrived(60)
