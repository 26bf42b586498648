"""The invariants C1 to C15, each a pure function from a case to its violations.

The numbers and their wording are those of tests/faults/README.md. "Accepted" means answered 2xx; a request that was answered
5xx or not at all is unknown, and both outcomes are legal for it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tests.faults.rig.history import FAULT, HEALED, QUIET, Answered, Arrived, History, Marked, Sent, Silent
from tests.faults.rig.store_state import Edge, Effect, Limits, Spooled, Store, StoredEvent

Request = tuple[str, str]
"""A key and the SHA-256 of a body: what a sender calls one event, and one version of it."""

ENDED = frozenset({"succeeded", "ignored", "dead"})
LEGAL = frozenset({
    ("", "pending"), ("pending", "leased"), ("pending", "dead"), ("leased", "pending"), ("leased", "dead"), ("leased", ""),
    ("dead", "pending"), ("dead", ""),
})  # fmt: skip
"""Edges a delivery's row may take; an empty name stands for no row."""
_EXCUSED = frozenset({"CONNECTION_LOST", "CONFLICT"})
"""Codes of attempts that PostgreSQL itself ended, which do not count against the policy."""
_ENOUGH = 30
"""Answers that a percentile needs to mean anything."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of an invariant."""

    invariant: str
    subject: str
    """The key, event or account it is about; empty where it is about all."""
    words: str


@dataclass(frozen=True)
class Case:
    """A history and a store, with cached look-ups."""

    history: History
    store: Store
    spool: tuple[Spooled, ...] = ()
    limits: Limits = field(default_factory=Limits)
    told: Mapping[str, int] = field(default_factory=dict)
    """What boathook itself reports: ``dead``, the dead letters it lists; ``verify``, the exit code of that command."""

    @cached_property
    def sent(self) -> dict[int, tuple[int, Sent]]:
        """By request number, the position of its line and the request."""
        return {fact.number: (place, fact) for place, fact in enumerate(self.history) if isinstance(fact, Sent)}

    @cached_property
    def signed(self) -> dict[Request, int]:
        """Validly signed events, with the position of the first request."""
        first: dict[Request, int] = {}
        for place, fact in self.sent.values():
            if fact.is_signed:
                first.setdefault((fact.key, fact.sha), place)
        return first

    @cached_property
    def acked(self) -> dict[Request, int]:
        """Events answered 2xx, with the position of the first such response."""
        first: dict[Request, int] = {}
        for place, fact in enumerate(self.history):
            if isinstance(fact, Answered) and is_ok(fact.status):
                sent = self.sent[fact.number][1]
                first.setdefault((sent.key, sent.sha), place)
        return first

    @cached_property
    def statuses(self) -> dict[Request, list[int]]:
        """Every answer that the signed copies of a request got; 0 for none."""
        found: dict[Request, list[int]] = defaultdict(list)
        answered = {fact.number: fact.status for fact in self.history if isinstance(fact, Answered)}
        for _, fact in self.sent.values():
            if fact.is_signed:
                found[fact.key, fact.sha].append(answered.get(fact.number, 0))
        return found

    @cached_property
    def received(self) -> list[StoredEvent]:
        """Stored events that were received from outside."""
        return [event for event in self.store.events if not event.message]

    @cached_property
    def stored(self) -> frozenset[Request]:
        """Stored requests: events and conflicts."""
        kept = ((one.key, one.sha) for one in self.store.conflicts)
        return frozenset([*((one.key, one.sha) for one in self.received), *kept])

    @cached_property
    def by_id(self) -> dict[str, StoredEvent]:
        """Stored events by id."""
        return {event.id: event for event in self.store.events}

    def sha_of(self, event: str) -> str:
        """Return the digest of a stored event's bytes; empty where it is not stored."""
        return self.by_id[event].sha if event in self.by_id else ""

    @cached_property
    def edges(self) -> dict[tuple[str, int], list[Edge]]:
        """The changes of each delivery, in order."""
        found: dict[tuple[str, int], list[Edge]] = defaultdict(list)
        for edge in sorted(self.store.edges, key=lambda edge: edge.number):
            found[edge.event, edge.ordinal].append(edge)
        return found

    @cached_property
    def excused(self) -> frozenset[tuple[str, str]]:
        """Events and recipients without an order guarantee: dead letters and replays."""
        dead = {(edge.event, edge.recipient) for edge in self.store.edges if edge.after == "dead"}
        return frozenset(dead | {(one.event, one.recipient) for one in self.store.deliveries if one.is_replay})


def is_ok(status: int) -> bool:
    """Return whether a status accepts."""
    return 200 <= status < 300


def is_refusal(status: int) -> bool:
    """Return whether a status says that nothing was kept."""
    return 400 <= status < 500


def no_loss(case: Case) -> Iterator[Violation]:
    """C1: every event answered 2xx is stored or in the spool."""
    safe = case.stored | {(one.key, one.sha) for one in case.spool}
    for key, sha in case.acked:
        if (key, sha) not in safe:
            yield Violation("C1", key, "answered 2xx, and neither stored nor in the spool")


def no_phantom(case: Case) -> Iterator[Violation]:
    """C2: everything stored was sent and verified; rejected requests left nothing."""
    for key, sha in sorted(case.stored):
        if (key, sha) not in case.signed:
            yield Violation("C2", key, "stored, but never sent with a good signature")
        elif case.statuses[key, sha] and all(map(is_refusal, case.statuses[key, sha])):
            yield Violation("C2", key, "stored although every request with it was refused")
    for event in sorted(case.store.remembered - case.by_id.keys()):
        yield Violation("C2", event, "dedup memory names an event that is not stored")


def one_row(case: Case) -> Iterator[Violation]:
    """C3: one row for each signed id."""
    for key, count in Counter(event.key for event in case.received).items():
        if count > 1:
            yield Violation("C3", key, f"stored {count} times")


def one_end(case: Case) -> Iterator[Violation]:
    """C4: finally each delivery has ended in exactly one way."""
    owed = defaultdict(list)
    for one in case.store.deliveries:
        owed[one.event, one.ordinal].append(one)
    for event in case.store.events:
        for ordinal in range(event.fanout):
            if (event.id, ordinal) not in owed:
                yield Violation("C4", event.key, f"delivery {ordinal} of {event.id} is nowhere")
    for (identifier, ordinal), ends in owed.items():
        name = case.by_id[identifier].key if identifier in case.by_id else identifier
        if len(ends) > 1:
            yield Violation("C4", name, f"delivery {ordinal} is {' and '.join(sorted(end.state for end in ends))}")
        elif ends[0].state not in ENDED:
            yield Violation("C4", name, f"delivery {ordinal} to {ends[0].recipient} is still {ends[0].state}")
        if identifier not in case.by_id:
            yield Violation("C4", name, "a delivery of an event that is not stored")


def one_effect(case: Case) -> Iterator[Violation]:
    """C5: one effect for each delivery that succeeded, none for any other."""
    wanted: Counter[tuple[str, str]] = Counter()
    for one in case.store.deliveries:
        if one.recipient.startswith("handler:") and one.recipient not in case.limits.without_effect:
            wanted[one.event, one.recipient.removeprefix("handler:")] += one.state == "succeeded"
    found = Counter((effect.event, effect.handler) for effect in case.store.effects)
    for event, handler in sorted(wanted.keys() | found.keys()):
        if wanted[event, handler] != found[event, handler]:
            name = case.by_id[event].key if event in case.by_id else event
            words = f"{found[event, handler]} effects of {handler}, {wanted[event, handler]} successes"
            yield Violation("C5", name, words)


def order(case: Case) -> Iterator[Violation]:
    """C6: effects of one line come in the order in which its events were accepted.

    Accept order is judged twice: by the store's own numbers, and from outside, where an event that was answered before
    another was first sent must have its effect first.
    """
    lines: dict[tuple[str, str], list[Effect]] = defaultdict(list)
    keys = {(sent.key, sent.sha): sent.line for _, sent in case.sent.values() if sent.line}
    for effect in sorted(case.store.effects, key=lambda effect: effect.number):
        key = keys.get((effect.key, case.sha_of(effect.event)), "")
        if (
            key
            and effect.handler in case.limits.ordered
            and (effect.event, f"handler:{effect.handler}") not in case.excused
        ):
            lines[effect.handler, key].append(effect)
    seqs = {(one.event, one.recipient): one.seq for one in case.store.edges if not one.before}
    for (handler, key), line in lines.items():
        yield from _by_store(line, [seqs.get((effect.event, f"handler:{handler}"), 0) for effect in line], key)
        yield from _by_history(case, line, key)


def _by_store(line: list[Effect], seqs: list[int], key: str) -> Iterator[Violation]:
    for earlier, later, before, after in zip(line, line[1:], seqs, seqs[1:], strict=False):
        if after < before:
            yield Violation("C6", later.key, f"took effect after {earlier.key}, which the line {key} has behind it")


def _by_history(case: Case, line: list[Effect], key: str) -> Iterator[Violation]:
    first_ack, acked = len(case.history), ""
    for effect in reversed(line):
        request = (effect.key, case.sha_of(effect.event))
        if request in case.signed and first_ack < case.signed[request]:
            words = f"took effect before {acked}, which was answered before this one was sent, in the line {key}"
            yield Violation("C6", effect.key, words)
        if case.acked.get(request, first_ack) < first_ack:
            first_ack, acked = case.acked[request], effect.key


def leases(case: Case) -> Iterator[Violation]:
    """C7: one live lease at a time, with a number that only rises; no commit uses an older one."""
    for (event, ordinal), edges in case.edges.items():
        newest = 0
        for edge in edges:
            if edge.after == "leased":
                if edge.before == "leased":
                    yield Violation("C7", event, f"delivery {ordinal} was claimed while it was leased")
                if edge.fence <= newest:
                    yield Violation(
                        "C7", event, f"delivery {ordinal} was claimed with fence {edge.fence} after {newest}"
                    )
                newest = max(newest, edge.fence)
            elif edge.before == "leased" and edge.fence < newest:
                yield Violation("C7", event, f"delivery {ordinal} was settled with fence {edge.fence}, not {newest}")
    yield from _stale_commits(case)


def _stale_commits(case: Case) -> Iterator[Violation]:
    good = {
        (one.event, one.ordinal): one.number
        for one in case.store.attempts_made
        if one.outcome in {"succeeded", "ignored"}
    }
    replayed = {(one.event, one.recipient) for one in case.store.deliveries if one.is_replay}
    owed = {(one.event, one.recipient): (one.event, one.ordinal) for one in case.store.deliveries}
    for effect in case.store.effects:
        name = (effect.event, f"handler:{effect.handler}")
        number = None if name in replayed else good.get(owed.get(name, ("", 0)))
        if number is not None and effect.attempt != number:
            words = f"attempt {effect.attempt} left an effect, but attempt {number} is the one that succeeded"
            yield Violation("C7", effect.key, words)


def bounded(case: Case) -> Iterator[Violation]:
    """C8: attempts stay within the policy, each was a claim, and none follows an end."""
    tried: Counter[tuple[str, int]] = Counter((one.event, one.ordinal) for one in case.store.attempts_made)
    spent = Counter((one.event, one.ordinal) for one in case.store.attempts_made if one.code not in _EXCUSED)
    for one in case.store.deliveries:
        name, most = (one.event, one.ordinal), case.limits.attempts.get(one.recipient)
        if most is not None and spent[name] > most * (one.replays + 1):
            yield Violation("C8", one.event, f"{spent[name]} attempts of {one.recipient}, where {most} are allowed")
        if one.state in ENDED and tried[name] != one.attempts:
            yield Violation("C8", one.event, f"{one.attempts} attempts are counted, {tried[name]} are on record")
    for (event, ordinal), edges in case.edges.items():
        yield from _claims(event, ordinal, edges)


def _claims(event: str, ordinal: int, edges: list[Edge]) -> Iterator[Violation]:
    claims, has_ended = 0, False
    for edge in edges:
        if edge.after == "leased":
            claims += 1
            if has_ended:
                yield Violation("C8", event, f"delivery {ordinal} was claimed after its end")
        elif edge.attempts < edge.attempts_before:  # given back: the attempt never began
            claims -= 1
        if edge.attempts != claims:
            yield Violation("C8", event, f"delivery {ordinal} counts {edge.attempts} attempts after {claims} claims")
            return
        has_ended = has_ended or not edge.after


def legal_edges(case: Case) -> Iterator[Violation]:
    """C9: deliveries take allowed edges only, each from where the last one led."""
    for (event, ordinal), taken in case.edges.items():
        state = ""
        for edge in taken:
            is_overtaken = edge.recipient.startswith("endpoint:") and (edge.before, edge.after) == ("pending", "")
            if (edge.before, edge.after) not in LEGAL and not is_overtaken and edge.before != edge.after:
                words = f"delivery {ordinal} went from {edge.before or 'nowhere'} to {edge.after or 'its end'}"
                yield Violation("C9", event, words)
            elif edge.before != state:
                yield Violation("C9", event, f"delivery {ordinal} left {edge.before}, but was {state or 'nowhere'}")
            state = edge.after


def same_bytes(case: Case) -> Iterator[Violation]:
    """C10: the bytes are those that were sent: in the store, at the handler, on the wire."""
    for event in case.store.events:
        if event.claimed and event.claimed != event.sha:
            yield Violation("C10", event.key, "the stored bytes are not those of the stored digest")
        if (
            not event.message
            and (event.key, event.sha) not in case.signed
            and any(key == event.key for key, _ in case.signed)
        ):
            yield Violation("C10", event.key, "the stored bytes are not those of any request with this key")
    for effect in case.store.effects:
        if effect.sha and effect.event in case.by_id and effect.sha != case.by_id[effect.event].sha:
            yield Violation("C10", effect.key, f"the handler {effect.handler} was given other bytes than are stored")
    messages = {event.message: event for event in case.store.events if event.message}
    for fact in _arrivals(case):
        if fact.sha and fact.message in messages and fact.sha != messages[fact.message].sha:
            yield Violation("C10", fact.message, f"{fact.place} was sent other bytes than are stored")


def liveness(case: Case) -> Iterator[Violation]:
    """C11: after the last fault everything completes without help, in time."""
    healed = [fact.at for fact in case.history if isinstance(fact, Marked) and fact.what == HEALED]
    quiet = [fact.at for fact in case.history if isinstance(fact, Marked) and fact.what == QUIET]
    waiting = [one for one in case.spool if not one.is_refused]
    if case.limits.is_spool_empty and waiting:
        yield Violation("C11", waiting[0].key, f"{len(waiting)} records still wait in a spool")
    if not healed:
        return
    if not quiet or quiet[-1] < healed[-1]:
        yield Violation("C11", "", "after the last fault it never came to rest")
    elif quiet[-1] - healed[-1] > case.limits.quiet_s:
        yield Violation(
            "C11", "", f"it took {quiet[-1] - healed[-1]:.1f} s to come to rest, not {case.limits.quiet_s:g}"
        )


def outbox(case: Case) -> Iterator[Violation]:
    """C12: each message reaches its endpoints, and is repeated only around a fault."""
    arrived = Counter((fact.message, fact.place) for fact in _arrivals(case) if is_ok(fact.status))
    messages = {event.message: event for event in case.store.events if event.message}
    for one in case.store.deliveries:
        if one.place and one.state == "succeeded" and one.event in case.by_id:
            message = case.by_id[one.event].message
            if not arrived[message, one.place]:
                yield Violation("C12", message, f"said to be sent to {one.place}, which never took it")
    for fact in _arrivals(case):
        if fact.message not in messages:
            yield Violation("C12", fact.message, f"came to {fact.place}, but is not stored")
    copies = sum(count - 1 for count in arrived.values())
    if copies > case.limits.wire_copies:
        subject = next(message for (message, _), count in arrived.items() if count > 1)
        yield Violation("C12", subject, f"{copies} copies came again, where {case.limits.wire_copies} are allowed")
    published = {event.key for event in messages.values()}
    for effect in case.store.effects:
        prefix = case.limits.message_prefixes.get(effect.handler)
        if prefix is not None and prefix + effect.key not in published:
            yield Violation("C12", effect.key, "its effect is there, but not the message published with it")


def money(case: Case) -> Iterator[Violation]:
    """C13: money is neither made nor lost, and every account says what its effects say."""
    balances = case.store.balances
    if not balances:
        return
    total, expected = sum(balances.values()), len(balances) * case.store.opening
    if total != expected:
        yield Violation("C13", "", f"there are {total} units, not {expected}")
    moved: Counter[str] = Counter()
    for effect in case.store.effects:
        if effect.account:
            moved[effect.account] -= 1
            moved[effect.other] += 1
    for account, balance in sorted(balances.items()):
        if balance != case.store.opening + moved[account]:
            words = f"its balance is {balance}, its effects make {case.store.opening + moved[account]}"
            yield Violation("C13", account, words)
        if balance < 0:
            yield Violation("C13", account, f"its balance is {balance}")


def isolation(case: Case) -> Iterator[Violation]:
    """C14: requests that the fault does not concern are hardly slower."""
    if not case.limits.bystander_ratio:
        return
    before, after = bystanders(case)
    failed = [status for number, status in _answers(case.history) if status != 200 and _is_bystander(case, number)]
    if failed:
        yield Violation("C14", "", f"{len(failed)} requests of bystanders were not answered 2xx")
    if len(before) < _ENOUGH or len(after) < _ENOUGH:
        yield Violation(
            "C14", "", f"too few answers to judge by: {len(before)} before and {len(after)} after the fault"
        )
        return
    allowed = max(case.limits.bystander_floor_s, case.limits.bystander_ratio * percentile(before, 99))
    if percentile(after, 99) > allowed:
        words = f"bystanders' p99 rose from {percentile(before, 99):.3f} to {percentile(after, 99):.3f} s"
        yield Violation("C14", "", words)


def bystanders(case: Case) -> tuple[list[float], list[float]]:
    """Return how many seconds bystanders' answers took, before and after the first fault."""
    before: list[float] = []
    after: list[float] = []
    found = before
    for fact in case.history:
        if isinstance(fact, Marked) and fact.what.startswith(FAULT):
            found = after
        elif isinstance(fact, Answered) and _is_bystander(case, fact.number):
            found.append(fact.seconds)
    return before, after


def _is_bystander(case: Case, number: int) -> bool:
    return case.sent[number][1].lane == "bystander"


def _answers(history: History) -> Iterator[tuple[int, int]]:
    for fact in history:
        if isinstance(fact, Answered):
            yield fact.number, fact.status
        elif isinstance(fact, Silent):
            yield fact.number, 0


def percentile(values: Iterable[float], rank: float) -> float:
    """Return the value below which *rank* percent of the values are; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * rank / 100))] if ordered else 0.0


def truth(case: Case) -> Iterator[Violation]:
    """C15: boathook's own figures match the facts."""
    dead = sum(one.state == "dead" for one in case.store.deliveries)
    if case.told.get("dead", dead) != dead:
        yield Violation("C15", "", f"it lists {case.told['dead']} dead letters, there are {dead}")
    if case.told.get("check", 0) != 0:
        yield Violation("C15", "", f"`boathook check` ended with {case.told['check']}")
    if case.told.get("spooled", len(case.spool)) != len(case.spool):
        yield Violation("C15", "", f"it says {case.told['spooled']} events are spooled, there are {len(case.spool)}")


def _arrivals(case: Case) -> Iterator[Arrived]:
    return (fact for fact in case.history if isinstance(fact, Arrived))


CHECKS: Mapping[str, Callable[[Case], Iterator[Violation]]] = {
    "C1": no_loss, "C2": no_phantom, "C3": one_row, "C4": one_end, "C5": one_effect, "C6": order, "C7": leases, "C8": bounded,
    "C9": legal_edges, "C10": same_bytes, "C11": liveness, "C12": outbox, "C13": money, "C14": isolation, "C15": truth,
}  # fmt: skip
