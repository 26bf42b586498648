"""The conservation checker: compares requests and responses with the stored data, and shows the first violation.

    verdict = judge(history, store, spool=..., limits=..., told=...)
    verdict.is_sound            whether every invariant holds
    verdict.broken              those that do not, such as {"C1", "C5"}
    verdict.summary             sent 2000 = ok 1971 + info 20 + fail 9; ok lost 0; effects 1950 = done 1950; ...
    verdict.report              the summary, the violations, and the timeline of the first one

It reads nothing and starts nothing: the same input gives the same verdict.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.rig.history import Answered, Arrived, Confirmed, Fact, History, Marked, Published, Sent, Silent
from tests.faults.rig.invariants import CHECKS, Case, Violation, is_ok, is_refusal, percentile
from tests.faults.rig.message_invariants import MESSAGE_CHECKS
from tests.faults.rig.store_state import Limits, Spooled, Store

_SHOWN = 12
_MAX_TIMELINE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many there are of each."""

    sent: int
    ok: int
    info: int
    """Answered 5xx, or not at all: unknown."""
    fail: int
    """Answered 4xx."""
    forged: int
    lost: int
    stored: int
    spooled: int
    effects: int
    done: int
    dead: int
    twice: int
    """Effects beyond the first of an event and handler, without replays."""
    disordered: int
    arrived: int
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of everything."""

    counts: Counts
    violations: tuple[Violation, ...]
    timeline: tuple[str, ...]
    """Everything known about the first violation's subject, in order."""
    seconds: Mapping[str, float]
    """Of answers with 2xx: ``p50``, ``p99`` and ``max``."""

    @property
    def is_sound(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations

    @property
    def broken(self) -> frozenset[str]:
        """The invariants that do not hold."""
        return frozenset(violation.invariant for violation in self.violations)

    @property
    def summary(self) -> str:
        """All counts in one line."""
        n = self.counts
        return (
            f"sent {n.sent} = ok {n.ok} + info {n.info} + fail {n.fail}; ok lost {n.lost};"
            f" stored {n.stored}, spooled {n.spooled}; effects {n.effects} = done {n.done}, dead {n.dead};"
            f" dup effects {n.twice}; order breaks {n.disordered}; messages {n.arrived}, copies {n.copies}"
        )

    @property
    def report(self) -> str:
        """The summary, the violations by invariant, and the first counter-example."""
        lines = [self.summary]
        by_invariant = Counter(violation.invariant for violation in self.violations)
        for name, count in by_invariant.items():
            lines.append(f"{name} broken {count} times:")
            some = [violation for violation in self.violations if violation.invariant == name][:_SHOWN]
            lines += [f"    {violation.subject or '-'}: {violation.words}" for violation in some]
        return "\n".join([*lines, *(["first counter-example:"] if self.timeline else []), *self.timeline])


def judge(
    history: History,
    store: Store,
    *,
    spool: Sequence[Spooled] = (),
    limits: Limits | None = None,
    told: Mapping[str, int] | None = None,
) -> Verdict:
    """Return the verdict on the requests, the store and the spool."""
    case = Case(history, store, tuple(spool), limits or Limits(), told or {})
    violations = tuple(violation for check in (*CHECKS.values(), *MESSAGE_CHECKS) for violation in check(case))
    seconds = [fact.seconds for fact in history if isinstance(fact, Answered) and is_ok(fact.status)]
    return Verdict(
        counts=_count(case, violations),
        violations=violations,
        timeline=tuple(_timeline(case, violations[0].subject)) if violations else (),
        seconds={
            "p50": percentile(seconds, 50), "p99": percentile(seconds, 99), "max": max(seconds, default=0.0),
        },
    )  # fmt: skip


def _count(case: Case, violations: Sequence[Violation]) -> Counts:
    statuses = [fact.status for fact in case.history if isinstance(fact, Answered)]
    by_invariant = Counter(violation.invariant for violation in violations)
    effects = Counter((effect.event, effect.handler) for effect in case.store.effects)
    states = Counter(
        one.state for one in case.store.deliveries if one.recipient not in case.limits.without_effect and not one.place
    )
    arrived = Counter(
        (fact.message, fact.place) for fact in case.history if isinstance(fact, Arrived) and is_ok(fact.status)
    )
    ok, fail = sum(map(is_ok, statuses)), sum(map(is_refusal, statuses))
    return Counts(
        sent=len(case.sent), ok=ok, info=len(case.sent) - ok - fail, fail=fail,
        forged=sum(not fact.is_signed for _, fact in case.sent.values()), lost=by_invariant["C1"],
        stored=len(case.received), spooled=len(case.spool), effects=sum(effects.values()), done=states["succeeded"],
        dead=states["dead"], twice=sum(count - 1 for count in effects.values()), disordered=by_invariant["C6"],
        arrived=sum(arrived.values()), copies=sum(count - 1 for count in arrived.values()),
    )  # fmt: skip


def _timeline(case: Case, subject: str) -> Iterator[str]:
    """Describe all facts about a key, an event or a message, oldest first; for everything: the marks."""
    ids = {event.id for event in case.store.events if subject and subject in {event.id, event.key, event.message}}
    keys = {event.key for event in case.store.events if event.id in ids} | ({subject} if subject else set())
    messages = {event.message for event in case.store.events if event.id in ids and event.message}
    numbers = {number for number, (_, sent) in case.sent.items() if sent.key in keys}
    numbers |= {fact.number for fact in case.history if isinstance(fact, Published) and subject and fact.key == subject}
    numbers |= {
        fact.number for fact in case.history if isinstance(fact, Confirmed) and subject and fact.message == subject
    }
    outside = [fact for fact in case.history if _concerns(fact, numbers, messages | {subject})]
    for fact in outside[:_MAX_TIMELINE]:
        yield f"    {_clock(fact.at)}  {_tell(fact)}"
    for edge in sorted(case.store.edges, key=lambda edge: edge.number):
        if edge.event in ids:
            change = f"{edge.before or 'new'} -> {edge.after or 'ended'}"
            yield f"    edge {edge.number}: {edge.recipient} {change}, fence {edge.fence}, attempts {edge.attempts}"
    for one in case.store.attempts_made:
        if one.event in ids:
            yield f"    attempt {one.number} of delivery {one.ordinal}: {one.outcome} {one.code}".rstrip()
    for effect in sorted(case.store.effects, key=lambda effect: effect.number):
        if effect.event in ids:
            yield f"    effect {effect.number}: {effect.handler}, attempt {effect.attempt}"
    for owed in case.store.deliveries:
        if owed.event in ids:
            yield f"    delivery {owed.ordinal} to {owed.recipient} is {owed.state} after {owed.attempts} attempts"


def _concerns(fact: Fact, numbers: set[int], messages: set[str]) -> bool:
    match fact:
        case Sent() | Answered() | Silent() | Published() | Confirmed():
            return fact.number in numbers
        case Arrived():
            return fact.message in messages
        case Marked():
            return True


def _clock(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%H:%M:%S.%f")[:-3]


def _tell(fact: Fact) -> str:
    match fact:
        case Sent():
            return f"sent {fact.key} as request {fact.number}, body {fact.sha[:8]}" + (
                "" if fact.is_signed else ", forged"
            )
        case Answered():
            return f"request {fact.number} was answered {fact.status} after {fact.seconds * 1000:.0f} ms"
        case Silent():
            return f"request {fact.number} got no answer: {fact.why}"
        case Published():
            return f"published as request {fact.number}, key {fact.key or 'none'}, payload {fact.sha[:8]}"
        case Confirmed():
            answer = f"{fact.status} {fact.message}".rstrip()
            return f"request {fact.number} was answered {answer} after {fact.seconds * 1000:.0f} ms"
        case Arrived():
            return f"message {fact.message} came to {fact.place}, answered {fact.status}"
        case Marked():
            return f"-- {fact.what}"
