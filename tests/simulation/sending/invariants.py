"""Checks the invariants of sending at every commit and at every request."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from boathook.delivery.endpoint_queues import EndpointAttempt
from boathook.http_client.messages import OutgoingRequest
from tests.simulation.invariants import Recorder, require
from tests.simulation.sending.receivers import EndpointReceiver, key_of
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Key, Row, Transaction

Claim = tuple[Key, int]
"""A delivery and the fence it was claimed with."""
_SLACK_S = 0.3
"""Seconds from the rate's permission until arrival at the endpoint, if nothing is paused."""


@dataclass
class SendingRecorder(Recorder):
    """Watches one run of sending."""

    now: Callable[[], float] = lambda: 0.0
    """The loop's clock."""
    is_plain: bool = False
    is_exact: bool = False
    holders: dict[Claim, str] = field(default_factory=dict)
    """Which process made each claim."""
    broken: set[Claim] = field(default_factory=set)
    """Claims that were in progress in a process when a fault hit it."""
    stricken: set[str] = field(default_factory=set)
    """Processes that a fault is hitting at this moment."""
    requests: Counter[Claim] = field(default_factory=Counter)
    takes: dict[Key, list[int]] = field(default_factory=dict)
    """With which fences each delivery was taken by its endpoint."""
    successes: set[Claim] = field(default_factory=set)
    """Claims whose sender was sent a 2xx."""
    probes: dict[UUID, list[EndpointAttempt]] = field(default_factory=dict)
    """Probes sent since each endpoint's breaker opened."""
    arrivals: dict[UUID, list[float]] = field(default_factory=dict)

    # Commits

    def _judge(self, transaction: Transaction) -> None:
        super()._judge(transaction)
        for (table, key), row in transaction.writes.items():
            old = self.tables.committed[table].get(key)
            if table == "health" and (row is None or row.open_until is None):
                self.probes.pop(key, None)
            if table != "delivery" or old is None:
                continue
            if old.state == "pending" and row is not None and row.state == "leased":
                self._judge_claim(transaction, row)
            elif old.state == "leased" and (row is None or row.state != "leased"):
                self._judge_settling(transaction, old)

    def _judge_claim(self, transaction: Transaction, row: Row) -> None:
        self.holders[row.key, row.fence] = str(row.leased_by)
        if row.leased_by in self.stricken:
            self.broken.add((row.key, row.fence))
        limit = next(
            one.concurrency for one in self.tables.committed["endpoint"].values() if one.recipient == row.recipient
        )
        if limit is not None:
            after = {**self.tables.committed["delivery"]}
            after.update({key: one for (table, key), one in transaction.writes.items() if table == "delivery"})
            leased = sum(
                one is not None and one.state == "leased" and one.recipient == row.recipient for one in after.values()
            )
            require(leased <= limit, "L1", f"{leased} requests are under way to {row.recipient}, which wants {limit}")

    def _judge_settling(self, transaction: Transaction, old: Row) -> None:
        tried = transaction.writes.get(("attempt", (*old.key, old.attempts)))
        if tried is None or tried.outcome == "lost":
            return
        client = transaction.owner.client.name  # type: ignore[attr-defined]
        require(client == old.leased_by, "C7", f"{client} settled {old.key}, which {old.leased_by} held")
        if tried.outcome == "succeeded":
            is_true = (old.key, old.fence) in self.successes
            require(is_true, "C12", f"{old.key} was settled as sent, which its endpoint has not said to this claim")

    # The wire

    def arrived(self, receiver: EndpointReceiver, attempt: EndpointAttempt, request: OutgoingRequest) -> None:
        """A request has reached its endpoint."""
        try:
            self._judge_request(receiver, attempt, request)
        except AssertionError as violation:
            self.violations.append(str(violation))

    def _judge_request(self, receiver: EndpointReceiver, attempt: EndpointAttempt, request: OutgoingRequest) -> None:
        key, fence = key_of(attempt), attempt.delivery.fence
        self.requests[key, fence] += 1
        require(self.requests[key, fence] == 1, "C8", f"{key} was sent twice for one claim")
        digest = hashlib.sha256(request.body).digest()
        require(digest == self.sent[key[0]].body_sha256, "C10", f"the endpoint got other bytes of {key}")
        self._judge_line(key)
        if attempt.delivery.is_probe:
            self._judge_probe(receiver, attempt)
        if receiver.endpoint.rate is not None and self.is_exact:
            self._judge_rate(receiver.endpoint.id, receiver.endpoint.rate)

    def _judge_line(self, key: Key) -> None:
        mine = self.accepted_rows[key]
        if mine.order_key is None:
            return
        earlier = [
            row
            for row in self.tables.committed["delivery"].values()
            if (row.recipient, row.order_key) == (mine.recipient, mine.order_key)
            and row.seq < mine.seq
            and row.state != "dead"
            and not row.replays
            and self.appeared[row.key] < self.appeared[key]
        ]
        require(not earlier, "C6", f"{key} reached its endpoint before {[row.key for row in earlier]}")

    def _judge_probe(self, receiver: EndpointReceiver, attempt: EndpointAttempt) -> None:
        others = [one for one in self.probes.get(receiver.endpoint.id, []) if one in receiver.under_way]
        require(not others, "L3", f"two probes are under way to {receiver.endpoint.url}")
        self.probes.setdefault(receiver.endpoint.id, []).append(attempt)
        sometimes("a paused endpoint was probed")

    def _judge_rate(self, endpoint_id: UUID, rate: int) -> None:
        moments = self.arrivals.setdefault(endpoint_id, [])
        moments.append(self.now())
        burst = max(1, -(-rate // 10))
        for number, moment in enumerate(reversed(moments), 1):
            allowed = burst + rate * (moments[-1] - moment + _SLACK_S)
            require(number <= allowed, "L2", f"{number} requests in {moments[-1] - moment:.3f} s at a rate of {rate}")

    def taken(self, attempt: EndpointAttempt) -> None:
        """An endpoint has processed a message."""
        self.takes.setdefault(key_of(attempt), []).append(attempt.delivery.fence)

    def told_success(self, attempt: EndpointAttempt) -> None:
        """An endpoint answers 2xx."""
        self.successes.add((key_of(attempt), attempt.delivery.fence))

    # Faults

    def fault_injected(self, holder: str) -> None:
        """A fault is about to hit a process: its messages may be sent again."""
        for row in self.tables.committed["delivery"].values():
            if row.state == "leased" and row.leased_by == holder:
                self.broken.add((row.key, row.fence))

    # The end

    def _judge_ends(self, *, is_quiet: bool) -> None:
        deliveries, outcomes = self.tables.committed["delivery"], self.tables.committed["delivery_archive"]
        both = deliveries.keys() & outcomes.keys()
        require(not both, "C4", f"{both} ended and are owed")
        for key in self.accepted_rows:
            require(key in deliveries or key in outcomes, "C4", f"{key} is neither owed nor ended")
        for key, ended in outcomes.items():
            require(ended.state != "succeeded" or key in self.takes, "C12", f"{key} never reached its endpoint")
        if self.is_plain:
            self._judge_duplicates()
        if is_quiet:
            left = {key: deliveries[key] for key in self.unended()}
            require(not left, "C11", f"after all faults had ended, these did not: {left}")

    def _judge_duplicates(self) -> None:
        """A message accepted twice was in flight when a fault hit its sender, or its response was lost."""
        for key, fences in self.takes.items():
            for fence in sorted(fences)[:-1]:
                claim = (key, fence)
                is_free = claim in self.broken or claim not in self.successes
                require(is_free, "C12", f"{key} was taken again although nothing had befallen fence {fence}")
                sometimes("an endpoint took a message twice, because its sender broke down", if_=claim in self.broken)
