"""The checker detects each kind of damage in hand-made histories and passes consistent ones."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from tests.faults.rig.checker import judge
from tests.faults.rig.history import (
    FAULT,
    HEALED,
    QUIET,
    Answered,
    Arrived,
    Confirmed,
    Fact,
    Marked,
    Published,
    Sent,
    Silent,
)
from tests.faults.rig.invariants import CHECKS
from tests.faults.rig.store_state import Attempt, Conflict, Delivery, Edge, Effect, Limits, Spooled, Store, StoredEvent

MAX = {"handler:move": 4, "handler:letter": 4}
OPENING = 100


@dataclass(frozen=True)
class World:
    """A history and a store that agree, or did before the damage."""

    history: tuple[Fact, ...]
    store: Store
    spool: tuple[Spooled, ...] = ()
    limits: Limits = field(default_factory=lambda: Limits(attempts=MAX, quiet_s=10.0))
    told: tuple[tuple[str, int], ...] = (("dead", 1), ("check", 0))

    def change(self, **store: Any) -> "World":
        return replace(self, store=replace(self.store, **store))

    def say(self, *facts: Fact) -> "World":
        return replace(self, history=(*self.history, *facts))


def sound() -> World:
    """Five events: e1 and e3 in one line, e2 at its second attempt, e4 dead, e5 with a message to one endpoint.

    e1 was sent twice, the first time without an answer. A forgery was rejected, and a second body under the id of
    e2 is a conflict.
    """
    history = (
        Sent(number=1, key="e1", sha="s1", line="a", at=1.0),
        Silent(number=1, why="ConnectionResetError", at=1.1),
        Marked(what=f"{FAULT}killed", at=1.2),
        Sent(number=2, key="e1", sha="s1", line="a", at=1.3),
        Answered(number=2, status=200, seconds=0.01, at=1.4),
        Sent(number=3, key="e2", sha="s2", line="b", at=1.5),
        Answered(number=3, status=200, seconds=0.01, at=1.6),
        Sent(number=4, key="e3", sha="s3", line="a", at=1.7),
        Answered(number=4, status=200, seconds=0.01, at=1.8),
        Sent(number=5, key="e4", sha="s4", line="c", at=1.9),
        Answered(number=5, status=200, seconds=0.01, at=2.0),
        Sent(number=6, key="e2", sha="other", line="b", at=2.1),
        Answered(number=6, status=200, seconds=0.01, at=2.2),
        Sent(number=7, key="e9", sha="forged", is_signed=False, at=2.3),
        Answered(number=7, status=401, seconds=0.01, at=2.4),
        Sent(number=8, key="e5", sha="s5", line="d", at=2.5),
        Answered(number=8, status=200, seconds=0.01, at=2.6),
        Sent(number=9, key="e6", sha="s6", line="d", at=2.7),
        Answered(number=9, status=503, seconds=0.01, at=2.8),
        Arrived(message="msg_5", place="/a", sha="m5", status=204, at=2.9),
        Marked(what=HEALED, at=3.0),
        Marked(what=QUIET, at=4.0),
    )
    events = tuple(StoredEvent(id=f"i{n}", key=f"e{n}", sha=f"s{n}", claimed=f"s{n}") for n in range(1, 6))
    store = Store(
        events=(*events, StoredEvent(id="i6", key="told:e5", sha="m5", claimed="m5", message="msg_5")),
        conflicts=(Conflict(key="e2", sha="other"),),
        remembered=frozenset({"i1", "i2", "i3", "i4", "i5", "i6"}),
        deliveries=(
            Delivery(event="i1"),
            Delivery(event="i2", attempts=2),
            Delivery(event="i3"),
            Delivery(event="i4", state="dead", attempts=4),
            Delivery(event="i5", recipient="handler:letter"),
            Delivery(event="i6", recipient="endpoint:ep_1", place="/a"),
        ),
        attempts_made=(
            Attempt(event="i1"),
            Attempt(event="i2", outcome="retry", code="Error"),
            Attempt(event="i2", number=2),
            Attempt(event="i3"),
            *(Attempt(event="i4", number=n, outcome="dead" if n == 4 else "retry", code="Error") for n in range(1, 5)),
            Attempt(event="i5"),
            Attempt(event="i6"),
        ),
        edges=_edges(),
        effects=(
            Effect(number=1, key="e1", event="i1", account="a", other="b", sha="s1"),
            Effect(number=3, key="e2", event="i2", attempt=2, account="b", other="a", sha="s2"),
            Effect(number=4, key="e3", event="i3", account="a", other="b", sha="s3"),
            Effect(number=9, key="e5", event="i5", handler="letter", account="b", other="a", sha="s5"),
        ),
        balances={"a": OPENING, "b": OPENING},
        opening=OPENING,
    )
    return World(history, store)


def publishing(world: World, *answers: str, status: int = 202, is_stored: bool = True, fault: str = "") -> World:
    """Publish a message with a key as often as there are answers, with a fault before the last; store the first."""
    facts: list[Fact] = []
    for number, message in enumerate(answers, 30):
        if fault and message == answers[-1]:
            facts.append(Marked(what=f"{FAULT}{fault}"))
        facts.append(Published(number=number, sha="m7", key="k"))
        facts.append(Confirmed(number=number, status=status, message=message))
    stored = (*world.store.events, _message(answers[0])) if is_stored else world.store.events
    return replace(world, history=(*facts, *world.history)).change(events=stored)


def _message(name: str) -> StoredEvent:
    return StoredEvent(id=f"i_{name}", key=f"evt_{name}", sha="m7", fanout=0, message=name)


def _edges() -> tuple[Edge, ...]:
    lives = {
        "i1": ("handler:move", 1, "a"), "i2": ("handler:move", 2, "b"), "i3": ("handler:move", 1, "a"),
        "i4": ("handler:move", 4, "c"), "i5": ("handler:letter", 1, "d"), "i6": ("endpoint:ep_1", 1, ""),
    }  # fmt: skip
    found: list[Edge] = []

    def add(**edge: Any) -> None:
        found.append(Edge(number=len(found) + 1, **edge))

    for seq, (event, (recipient, attempts, line)) in enumerate(lives.items(), 1):
        same: dict[str, Any] = {"event": event, "recipient": recipient, "order_key": line, "seq": seq}
        add(**same, after="pending")
        for n in range(1, attempts + 1):
            add(**same, before="pending", after="leased", fence=n, attempts=n, attempts_before=n - 1)
            after = "pending" if n < attempts else "dead" if event == "i4" else ""
            add(**same, before="leased", after=after, fence=n, attempts=n, attempts_before=n)
    return tuple(found)


def damaged(edges: tuple[Edge, ...], event: str, place: int, **changes: Any) -> tuple[Edge, ...]:
    """Return the edges with one of an event's changed."""
    numbers = [edge.number for edge in edges if edge.event == event]
    return tuple(replace(edge, **changes) if edge.number == numbers[place] else edge for edge in edges)


def only(rows: tuple[Any, ...], event: str, **changes: Any) -> tuple[Any, ...]:
    """Return rows with those of an event changed."""
    name = "event" if hasattr(rows[0], "event") else "id"
    return tuple(replace(row, **changes) if getattr(row, name) == event else row for row in rows)


def dropped(rows: tuple[Any, ...], event: str) -> tuple[Any, ...]:
    """Return rows without those of an event."""
    name = "event" if hasattr(rows[0], "event") else "id"
    return tuple(row for row in rows if getattr(row, name) != event)


def answers(world: World, *, before_s: float, after_s: float, status: int = 200) -> World:
    """Add forty bystanders' answers on either side of the fault."""
    facts: list[Fact] = []
    for number in range(100, 180):
        if number == 140:
            facts.append(Marked(what=f"{FAULT}more"))
        facts.append(Sent(number=number, key=f"b{number}", sha="x", lane="bystander", is_signed=False))
        late = number >= 140
        facts.append(Answered(number=number, status=status if late else 200, seconds=after_s if late else before_s))
    # Their events are of no interest here: only how soon they were answered.
    kept = tuple(Conflict(key=f"b{number}", sha="x") for number in range(100, 180))
    signed = tuple(msgspec.structs.replace(fact, is_signed=True) if isinstance(fact, Sent) else fact for fact in facts)
    world = replace(world, history=(*signed, *world.history), limits=replace(world.limits, bystander_ratio=1.2))
    return world.change(conflicts=(*world.store.conflicts, *kept))


def _swap(world: World) -> World:
    """Let e3 take effect before e1, its predecessor in the order."""
    numbers = {"i1": 4, "i3": 1}
    return world.change(
        effects=tuple(replace(one, number=numbers.get(one.event, one.number)) for one in world.store.effects)
    )


def _swap_all(world: World) -> World:
    """Let the store itself claim that e3 came first: only the history contradicts it."""
    seqs = {"i1": 3, "i3": 1}
    swapped = _swap(world)
    return swapped.change(edges=tuple(replace(one, seq=seqs.get(one.event, one.seq)) for one in swapped.store.edges))


def _extra_effect(world: World, **how: Any) -> World:
    effect = Effect(**{"number": 10, "key": "e1", "event": "i1", "account": "", "sha": "s1", **how})
    return world.change(effects=(*world.store.effects, effect))


Damage = Callable[[World], World]
BROKEN: dict[str, tuple[str, Damage]] = {
    # C1
    "an accepted event is gone": ("C1", lambda w: w.change(
        events=dropped(w.store.events, "i3"), deliveries=dropped(w.store.deliveries, "i3"), effects=dropped(w.store.effects, "i3"))),
    "an accepted conflict was not kept": ("C1", lambda w: w.change(conflicts=())),
    "an accepted event is stored under another key": ("C1", lambda w: w.change(events=only(w.store.events, "i1", key="e0"))),
    "an accepted event was never stored at all": ("C1", lambda w: w.say(
        Sent(number=20, key="e20", sha="s20"), Answered(number=20, status=202))),
    "the spool holds another version of an accepted event": ("C1", lambda w: replace(w.say(
        Sent(number=20, key="e20", sha="s20"), Answered(number=20, status=200)), spool=(Spooled(key="e20", sha="s21"),))),
    "an accepted message is gone": ("C1", lambda w: publishing(w, "msg_7", is_stored=False)),
    "an accepted message is gone, although another with its key was reported": ("C1", lambda w: publishing(
        w, "msg_7", "msg_8", is_stored=False).change(reported={"msg_8": "msg_7"})),
    # C2
    "a message whose publisher heard 401 is stored": ("C2", lambda w: publishing(w, "msg_7", status=401)),
    "something is stored that nobody sent": ("C2", lambda w: w.change(
        events=(*w.store.events, StoredEvent(id="i7", key="e7", sha="s7")), deliveries=(*w.store.deliveries, Delivery(event="i7")))),
    "a forgery is stored": ("C2", lambda w: w.change(events=(*w.store.events, StoredEvent(id="i9", key="e9", sha="forged")))),
    "a refused event is stored": ("C2", lambda w: w.say(
        Sent(number=20, key="e20", sha="s20"), Answered(number=20, status=429)).change(
        events=(*w.store.events, StoredEvent(id="i20", key="e20", sha="s20", fanout=0)))),
    "a forgery became a conflict": ("C2", lambda w: w.change(conflicts=(*w.store.conflicts, Conflict(key="e9", sha="forged")))),
    "a stranger's key is remembered": ("C2", lambda w: w.change(remembered=w.store.remembered | {"i9"})),
    # C3
    "an event is stored twice": ("C3", lambda w: w.change(
        events=(*w.store.events, StoredEvent(id="i7", key="e1", sha="s1", fanout=0)))),
    "two bodies of one id are both events": ("C3", lambda w: w.change(
        events=(*w.store.events, StoredEvent(id="i7", key="e2", sha="other", fanout=0)))),
    "one key is answered two ids": ("C3", lambda w: publishing(w, "msg_7", "msg_8").change(reported={"msg_8": "msg_7"})),
    "a message with a key is stored twice": ("C3", lambda w: publishing(w, "msg_7").change(events=(
        *w.store.events, _message("msg_7"), _message("msg_8")))),
    # C4
    "a delivery is still pending": ("C4", lambda w: w.change(deliveries=only(w.store.deliveries, "i1", state="pending"))),
    "a delivery is still leased": ("C4", lambda w: w.change(deliveries=only(w.store.deliveries, "i1", state="leased"))),
    "a delivery is nowhere": ("C4", lambda w: w.change(deliveries=dropped(w.store.deliveries, "i1"))),
    "one of two deliveries is nowhere": ("C4", lambda w: w.change(events=only(w.store.events, "i1", fanout=2))),
    "a delivery is dead and done": ("C4", lambda w: w.change(deliveries=(*w.store.deliveries, Delivery(event="i1", state="dead")))),
    "a delivery has ended well twice": ("C4", lambda w: w.change(deliveries=(*w.store.deliveries, Delivery(event="i1", state="ignored")))),
    "a delivery is of no event": ("C4", lambda w: w.change(deliveries=(*w.store.deliveries, Delivery(event="i77")))),
    # C5
    "an effect happened twice": ("C5", _extra_effect),
    "an effect is missing": ("C5", lambda w: w.change(effects=dropped(w.store.effects, "i1"))),
    "the dead left an effect": ("C5", lambda w: _extra_effect(w, key="e4", event="i4")),
    "an ignored delivery left an effect": ("C5", lambda w: w.change(deliveries=only(w.store.deliveries, "i1", state="ignored"))),
    "an effect is of no event": ("C5", lambda w: _extra_effect(w, key="e77", event="i77")),
    "an effect is of a handler that was not owed": ("C5", lambda w: _extra_effect(w, handler="slow")),
    # C6
    "two of a line took effect in the wrong order": ("C6", _swap),
    "the store believes in the wrong order": ("C6", _swap_all),
    "a line's number runs backwards": ("C6", lambda w: w.change(
        edges=tuple(replace(one, seq=9) if one.event == "i1" else one for one in w.store.edges))),
    # C7
    "a fence did not rise": ("C7", lambda w: w.change(edges=damaged(w.store.edges, "i2", 3, fence=1))),
    "a delivery was claimed while it was leased": ("C7", lambda w: w.change(
        edges=damaged(w.store.edges, "i2", 3, before="leased"))),
    "a stale lease settled": ("C7", lambda w: w.change(edges=damaged(w.store.edges, "i2", 4, fence=1))),
    "a stale attempt left the effect": ("C7", lambda w: w.change(effects=only(w.store.effects, "i2", attempt=1))),
    # C8
    "too many attempts": ("C8", lambda w: replace(w, limits=replace(w.limits, attempts={"handler:move": 3}))),
    "an attempt is on no record": ("C8", lambda w: w.change(attempts_made=tuple(
        one for one in w.store.attempts_made if (one.event, one.number) != ("i2", 1)))),
    "an attempt too many is counted": ("C8", lambda w: w.change(deliveries=only(w.store.deliveries, "i1", attempts=2))),
    "a claim was not counted": ("C8", lambda w: w.change(edges=damaged(w.store.edges, "i2", 3, attempts=1))),
    "a failure took its attempt back and claimed again": ("C8", lambda w: w.change(edges=damaged(w.store.edges, "i2", 2, attempts=0))),
    "an attempt followed the end": ("C8", lambda w: w.change(edges=(*w.store.edges, Edge(
        number=99, event="i1", before="", after="leased", fence=2, attempts=2, attempts_before=1)))),
    # C9
    "pending became done without a lease": ("C9", lambda w: w.change(edges=damaged(w.store.edges, "i1", 2, before="pending"))),
    "the dead came back leased": ("C9", lambda w: w.change(edges=(*w.store.edges, Edge(
        number=99, event="i4", before="dead", after="leased", fence=5, attempts=5, attempts_before=4)))),
    "a row appeared leased": ("C9", lambda w: w.change(edges=damaged(w.store.edges, "i1", 0, after="leased"))),
    "an edge is missing": ("C9", lambda w: w.change(edges=tuple(
        one for one in w.store.edges if one.number != next(e.number for e in w.store.edges if e.event == "i4" and e.before)))),
    # C10
    "the stored bytes are others than the digest says": ("C10", lambda w: w.change(events=only(w.store.events, "i1", claimed="sx"))),
    "the stored bytes are nobody's": ("C10", lambda w: w.change(events=only(w.store.events, "i1", sha="sx", claimed="sx"))),
    "the handler saw other bytes": ("C10", lambda w: w.change(effects=only(w.store.effects, "i1", sha="sx"))),
    "the wire carried other bytes": ("C10", lambda w: w.say(Arrived(message="msg_5", place="/a", sha="mx", status=500))),
    # C11
    "it never came to rest": ("C11", lambda w: replace(w, history=w.history[:-1])),
    "it came to rest before the last fault was over": ("C11", lambda w: w.say(Marked(what=HEALED, at=5.0))),
    "it took too long to come to rest": ("C11", lambda w: replace(w, limits=replace(w.limits, quiet_s=0.5))),
    "a record was left in the spool": ("C11", lambda w: replace(w, spool=(Spooled(key="e1", sha="s1"),))),
    # C12
    "a sent message never came": ("C12", lambda w: replace(w, history=tuple(
        fact for fact in w.history if not isinstance(fact, Arrived)))),
    "a refused message counts as sent": ("C12", lambda w: replace(w, history=tuple(
        msgspec.structs.replace(fact, status=500) if isinstance(fact, Arrived) else fact for fact in w.history))),
    "a message came that is not stored": ("C12", lambda w: w.say(Arrived(message="msg_7", place="/a", status=204))),
    "a message came again": ("C12", lambda w: w.say(Arrived(message="msg_5", place="/a", sha="m5", status=204))),
    "an effect without its message": ("C12", lambda w: w.change(events=only(w.store.events, "i6", key="told:e7"))),
    # C13
    "money was made": ("C13", lambda w: w.change(balances={"a": OPENING + 1, "b": OPENING})),
    "money was lost": ("C13", lambda w: w.change(balances={"a": OPENING, "b": OPENING - 1})),
    "money was moved without an effect": ("C13", lambda w: w.change(balances={"a": OPENING - 1, "b": OPENING + 1})),
    "an account is overdrawn": ("C13", lambda w: w.change(balances={"a": -1, "b": 2 * OPENING + 1})),
    # C14
    "bystanders were slowed down": ("C14", lambda w: answers(w, before_s=0.1, after_s=0.2)),
    "bystanders were refused": ("C14", lambda w: answers(w, before_s=0.1, after_s=0.1, status=503)),
    "there is too little to judge bystanders by": ("C14", lambda w: replace(w, limits=replace(w.limits, bystander_ratio=1.2))),
    # C15
    "a dead letter is not listed": ("C15", lambda w: replace(w, told=(("dead", 0),))),
    "check finds fault": ("C15", lambda w: replace(w, told=(("check", 1),))),
    "the spool is said to hold what it does not": ("C15", lambda w: replace(w, told=(("spooled", 3),))),
}  # fmt: skip


def look(world: World):
    return judge(list(world.history), world.store, spool=world.spool, limits=world.limits, told=dict(world.told))


@pytest.mark.parametrize("name", BROKEN)
def test_each_damage_is_found(name: str):
    invariant, damage = BROKEN[name]
    verdict = look(damage(sound()))
    assert invariant in verdict.broken, verdict.report
    assert "first counter-example" in verdict.report


def test_every_invariant_has_its_damages():
    assert len(BROKEN) >= 40
    assert {invariant for invariant, _ in BROKEN.values()} == set(CHECKS)


SOUND: dict[str, Damage] = {
    "as it is": lambda w: w,
    "nothing was ever sent": lambda w: World((), Store(), told=()),
    "an accepted event waits in the spool": lambda w: replace(
        w.say(Sent(number=20, key="e20", sha="s20"), Answered(number=20, status=200)),
        spool=(Spooled(key="e20", sha="s20"),), limits=replace(w.limits, is_spool_empty=False)),
    "an event refused by PostgreSQL waits for a person": lambda w: replace(
        w.say(Sent(number=20, key="e20", sha="s20"), Answered(number=20, status=200)),
        spool=(Spooled(key="e20", sha="s20", is_refused=True),)),
    "an event whose sender heard 503 is stored": lambda w: w.change(
        events=(*w.store.events, StoredEvent(id="i7", key="e6", sha="s6", fanout=0))),
    "an event whose sender heard nothing is not stored": lambda w: w.say(
        Sent(number=20, key="e20", sha="s20"), Silent(number=20)),
    "the dead lets its line pass, and comes later by a replay": lambda w: w.change(
        edges=(*dropped(w.store.edges, "i1"), *_replayed()),
        deliveries=only(w.store.deliveries, "i1", attempts=2, replays=1),
        attempts_made=(*dropped(w.store.attempts_made, "i1"), Attempt(event="i1", outcome="dead"), Attempt(event="i1", number=2)),
        effects=tuple(replace(one, number=6, attempt=2) if one.event == "i1" else one for one in w.store.effects),
    ),
    "two sent at once may take effect in either order": lambda w: replace(_swap_all(w), history=(
        w.history[3], w.history[7], *(fact for place, fact in enumerate(w.history) if place not in {0, 1, 3, 7}))),
    "a claim was given back": lambda w: w.change(edges=_given_back(w.store.edges)),
    "copies within what the fault allows": lambda w: replace(
        w.say(Arrived(message="msg_5", place="/a", sha="m5", status=204)), limits=replace(w.limits, wire_copies=1)),
    "free retries cost nothing": lambda w: w.change(
        deliveries=only(w.store.deliveries, "i1", attempts=6),
        edges=(*dropped(w.store.edges, "i1"), *_long_life(6)),
        effects=only(w.store.effects, "i1", attempt=6),
        attempts_made=(*dropped(w.store.attempts_made, "i1"),
            *(Attempt(event="i1", number=n, outcome="retry", code="CONNECTION_LOST") for n in range(1, 6)), Attempt(event="i1", number=6))),
    "a message is published once, and its key is answered one id": lambda w: publishing(w, "msg_7", "msg_7"),
    "an accepted message waits in the spool": lambda w: replace(
        publishing(w, "msg_7", is_stored=False), spool=(Spooled(key="evt_7", sha="m7", message="msg_7"),),
        limits=replace(w.limits, is_spool_empty=False)),
    "a key from before an outage is answered another id, which is reported": lambda w: publishing(
        w, "msg_7", "msg_8", fault="stopped").change(reported={"msg_8": "msg_7"}),
    "bystanders as quick as before": lambda w: answers(w, before_s=0.1, after_s=0.11),
}  # fmt: skip


def _given_back(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    same: dict[str, Any] = {"event": "i1", "order_key": "a", "seq": 1}
    return (
        Edge(number=1, **same, after="pending"),
        Edge(number=2, **same, before="pending", after="leased", fence=1, attempts=1),
        Edge(number=3, **same, before="leased", after="pending", fence=1, attempts=0, attempts_before=1),
        Edge(number=4, **same, before="pending", after="leased", fence=2, attempts=1),
        Edge(number=5, **same, before="leased", after="", fence=2, attempts=1, attempts_before=1),
        *(replace(edge, number=edge.number + 10) for edge in edges if edge.event != "i1"),
    )


def _replayed() -> tuple[Edge, ...]:
    same: dict[str, Any] = {"event": "i1", "order_key": "a", "seq": 1}
    return (
        Edge(number=101, **same, after="pending"),
        Edge(number=102, **same, before="pending", after="leased", fence=1, attempts=1),
        Edge(number=103, **same, before="leased", after="dead", fence=1, attempts=1, attempts_before=1),
        Edge(number=104, **same, before="dead", after="pending", fence=1, attempts=1, attempts_before=1),
        Edge(number=105, **same, before="pending", after="leased", fence=2, attempts=2, attempts_before=1),
        Edge(number=106, **same, before="leased", after="", fence=2, attempts=2, attempts_before=2),
    )


def _long_life(attempts: int) -> tuple[Edge, ...]:
    same: dict[str, Any] = {"event": "i1", "order_key": "a", "seq": 1}
    edges = [Edge(number=100, **same, after="pending")]
    for n in range(1, attempts + 1):
        after = "" if n == attempts else "pending"
        edges.append(
            Edge(
                number=100 + 2 * n, **same, before="pending", after="leased", fence=n, attempts=n, attempts_before=n - 1
            )
        )
        edges.append(
            Edge(number=101 + 2 * n, **same, before="leased", after=after, fence=n, attempts=n, attempts_before=n)
        )
    return tuple(edges)


@pytest.mark.parametrize("name", SOUND)
def test_a_consistent_history_passes(name: str):
    verdict = look(SOUND[name](sound()))
    assert verdict.is_sound, verdict.report


def test_the_summary_counts_everything():
    verdict = look(sound())
    assert verdict.summary == (
        "sent 9 = ok 6 + info 2 + fail 1; ok lost 0; stored 5, spooled 0; effects 4 = done 4, dead 1;"
        " dup effects 0; order breaks 0; messages 1, copies 0"
    )


def test_the_timeline_describes_the_first_counterexample():
    verdict = look(
        sound().change(effects=(*sound().store.effects, Effect(number=10, key="e2", event="i2", attempt=1, sha="s2")))
    )
    told = "\n".join(verdict.timeline)
    assert "sent e2 as request 3" in told
    assert "attempt 1 of delivery 0: retry Error" in told
    assert "effect 10: move, attempt 1" in told
    assert "e1 " not in told
