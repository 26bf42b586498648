"""Checks the invariants C1 to C11 of tests/simulation/README.md at every commit and at the end of a run.

The recorder trusts no production code: it keeps its own fences, its own count of attempts and its own list of what senders were
told, and holds the database against them.
"""

import hashlib
import itertools
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from boathook.domain.model import TRANSITIONS, NewEvent, State
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Key, Row, Tables, Transaction


class Violation(AssertionError):
    """An invariant is broken."""


def require(holds: object, invariant: str, what: str) -> None:
    if not holds:
        raise Violation(f"{invariant}: {what}")


@dataclass
class Recorder:
    """Watches one run."""

    tables: Tables
    most_attempts: int
    sent: dict[UUID, NewEvent] = field(default_factory=dict)
    """Every event that was handed in, by id."""
    answered: dict[UUID, UUID] = field(default_factory=dict)
    """Of those answered 2xx, the event that each was told to be."""
    handed: dict[str, list[UUID]] = field(default_factory=dict)
    """What was brought to each gateway, in this order."""
    handed_at: dict[UUID, int] = field(default_factory=dict)
    answered_at: dict[UUID, int] = field(default_factory=dict)
    accepted_rows: dict[Key, Row] = field(default_factory=dict)
    """Every delivery as it was when it first came to be committed."""
    fences: dict[Key, int] = field(default_factory=dict)
    begun: Counter[Key] = field(default_factory=Counter)
    """Handlers that were called, by delivery, since it was last revived."""
    effects: Counter[Key] = field(default_factory=Counter)
    appeared: dict[Key, int] = field(default_factory=dict)
    """In which order deliveries came to be committed."""
    violations: list[str] = field(default_factory=list)
    _moment: int = 0

    def __post_init__(self) -> None:
        self.tables.watchers.append(self.watch)

    def watch(self, transaction: Transaction) -> None:
        """Check a commit before it is applied."""
        try:
            self._judge(transaction)
        except Violation as violation:
            self.violations.append(str(violation))

    def _judge(self, transaction: Transaction) -> None:
        committed = self.tables.committed
        for (table, key), row in transaction.writes.items():
            if table == "delivery":
                self._judge_move(transaction, key, committed["delivery"].get(key), row)
            elif table == "event":
                self._judge_event(key, row.event)
        for effect in transaction.effects:
            key = (effect.event_id, effect.ordinal)
            self.effects[key] += 1
            require(self.effects[key] == 1, "C5", f"{key} had its effect {self.effects[key]} times")
            ended = transaction.writes.get(("delivery_archive", key))
            require(ended is not None and ended.state == "succeeded", "C5", f"an effect of {key} without its end")
            newest = self.fences.get(key, 0)
            require(effect.fence == newest, "C7", f"{key} was ended with fence {effect.fence}, the newest is {newest}")

    def _judge_event(self, event_id: UUID, event: NewEvent) -> None:
        sent = self.sent.get(event_id)
        require(sent is not None, "C2", f"event {event_id} was never sent")
        assert sent is not None
        require(hashlib.sha256(event.body).digest() == sent.body_sha256, "C10", f"the bytes of {event_id} changed")
        same = [one for one in self.tables.committed["event"].values() if one.event.key_hash == event.key_hash]
        require(not same, "C3", f"{event.source} {event.dedup_key} is stored twice")

    def _judge_move(self, transaction: Transaction, key: Key, old: Row | None, new: Row | None) -> None:
        if old is None:
            require(new is not None and new.state == "pending", "C9", f"{key} began as {new}")
            self.appeared[key] = len(self.appeared)
            self.accepted_rows[key] = new  # type: ignore[assignment]
            return
        before = State(old.state)
        if new is None:
            ended = transaction.writes.get(("delivery_archive", key))
            require(ended is not None, "C1", f"{key} vanished while it was {before}")
            after = State(ended.state)
            self._judge_order(old)
        else:
            after = State(new.state)
            require(new.fence >= old.fence, "C7", f"the fence of {key} fell from {old.fence} to {new.fence}")
        if after is not before:
            require(after in TRANSITIONS[before], "C9", f"{key} went from {before} to {after}")
        if new is not None and after is State.LEASED and before is not State.LEASED:
            require(new.fence > self.fences.get(key, 0), "C7", f"{key} was claimed with the fence {new.fence} again")
            self.fences[key] = new.fence
            spent = new.attempts - new.attempts_before
            require(spent <= self.most_attempts, "C8", f"{key} is tried for the {spent}th time")
        if before is State.DEAD and after is State.PENDING:
            self.begun[key] = 0

    def _judge_order(self, ended: Row) -> None:
        if ended.order_key is None or ended.state != "leased":
            return
        earlier = [
            row
            for row in self.tables.committed["delivery"].values()
            if (row.recipient, row.order_key) == (ended.recipient, ended.order_key)
            and row.seq < ended.seq
            and row.state != "dead"
            and self.appeared[row.key] < self.appeared[ended.key]
        ]
        # A dead letter that is replayed goes back to its place; what ran meanwhile was right when it was claimed.
        require(all(row.replays for row in earlier), "C6", f"{ended.key} overtook {[row.key for row in earlier]}")
        sometimes("a dead letter was revived behind a running successor", if_=bool(earlier))

    # What handlers and senders see

    def handler_called(self, key: Key, body: bytes) -> None:
        """A handler begins with a delivery."""
        self.begun[key] += 1
        sent = self.sent[key[0]]
        if hashlib.sha256(body).digest() != sent.body_sha256:
            self.violations.append(f"C10: the handler of {key} got other bytes")
        # Beside the budget: attempts that a lost connection or a sacrificed transaction cut off are run again.
        if self.begun[key] > 4 * (self.most_attempts + 20):
            self.violations.append(f"C8: the handler of {key} was called {self.begun[key]} times")

    def handed_in(self, gateway: str, event: NewEvent) -> None:
        """A gateway begins with a request."""
        self.handed.setdefault(gateway, []).append(event.id)
        self.handed_at[event.id] = self._moment = self._moment + 1

    def told(self, event: NewEvent, first: UUID, *, is_spooled: bool = False) -> None:
        """A sender was answered 2xx; *is_spooled* if the event may be in the spool."""
        self.answered[event.id] = first
        self.answered_at[event.id] = self._moment = self._moment + 1
        if not is_spooled and first not in self.tables.committed["event"]:
            self.violations.append(f"C1: {event.id} was answered 2xx and is not in the database")

    # The end

    def unended(self) -> list[Key]:
        """Return the deliveries that still have to end."""
        return [key for key, row in self.tables.committed["delivery"].items() if row.state != "dead"]

    def conclude(self, spooled: set[UUID], *, is_quiet: bool) -> None:
        """Check the final state; *is_quiet* if everything had time to end, *spooled* the keys in the spool."""
        try:
            self._judge_answers(spooled)
            self._judge_arrivals()
            self._judge_ends(is_quiet=is_quiet)
        except Violation as violation:
            self.violations.append(str(violation))

    def _judge_arrivals(self) -> None:
        """Events of one gateway answered before another was sent precede it in each order."""
        line = {
            row.event_id: row for row in self.accepted_rows.values() if row.order_key is not None and not row.is_replay
        }
        for handed in self.handed.values():
            mine = [event_id for event_id in handed if event_id in line and self.answered.get(event_id) == event_id]
            for earlier, later in itertools.combinations(mine, 2):
                one, other = line[earlier], line[later]
                if one.order_key == other.order_key and self.answered_at[earlier] <= self.handed_at[later]:
                    require(one.seq < other.seq, "C6", f"{later} was accepted after {earlier} and stands before it")

    def _judge_answers(self, spooled: set[UUID]) -> None:
        stored = {row.event.key_hash for row in self.tables.committed["event"].values()}
        for event_id in self.answered:
            event = self.sent[event_id]
            is_there = event.key_hash in stored or event.key_hash in spooled
            require(is_there, "C1", f"{event.id} ({event.dedup_key}) was answered 2xx and is nowhere")

    def _judge_ends(self, *, is_quiet: bool) -> None:
        deliveries, outcomes = self.tables.committed["delivery"], self.tables.committed["delivery_archive"]
        both = deliveries.keys() & outcomes.keys()
        require(not both, "C4", f"{both} ended and are owed")
        for event_id, stored in self.tables.committed["event"].items():
            for ordinal in range(stored.fanout):
                key = (event_id, ordinal)
                require(key in deliveries or key in outcomes, "C4", f"{key} is neither owed nor ended")
        for key, ended in outcomes.items():
            wanted = int(ended.state == "succeeded")
            require(self.effects[key] == wanted, "C5", f"{key} is {ended.state} with {self.effects[key]} effects")
        for key, row in deliveries.items():
            require(self.effects[key] == 0, "C5", f"{key} is {row.state} with {self.effects[key]} effects")
        if is_quiet:
            left = {key: deliveries[key] for key in self.unended()}
            require(not left, "C11", f"after all faults had ended, these did not: {left}")
