"""Receivers of messages fail, and those who send them die."""

from dataclasses import replace

from tests.faults.rig import bank
from tests.faults.rig.environment import Lab
from tests.faults.rig.mutants import Twin
from tests.faults.rig.receivers import Manner
from tests.faults.rig.scenario import scenario

IN_FLIGHT = 100
"""Most copies that the death of a sender may cost here."""


@scenario(
    fault="a sender is killed while one of two endpoints answers 500",
    target="every message arrives; copies only of those under way",
    twin=Twin("believes_every_answer", breaks=frozenset({"C12"})),
    limits=replace(bank.LIMITS, wire_copies=IN_FLIGHT),
    tier="soak",
)
def test_sender_killed(it: Lab) -> None:
    it.endpoint("/a")
    it.endpoint("/b")
    it.start(senders=1)
    it.begin(rate=60, kinds={"letter.sent": 1.0})
    it.outside.wait_arrived(60)
    it.fault("an endpoint fails and the sender is killed")
    it.outside.answer("/a", Manner(status=500))
    it.outside.wait_arrived(40)
    it.host.kill("sender")
    it.warm(20)
    it.outside.answer("/a", Manner())
    it.heal()
    it.outside.wait_arrived(60)
