"""Draws the plan of a seed of sending: endpoints and their behaviour, messages, senders and faults."""

import random
from dataclasses import dataclass, field

from boathook.domain.policy import RetryPolicy
from tests.simulation.faults import MOVES
from tests.simulation.server import Rates

BEHAVIOURS = ("ok", "slow", "5xx", "429", "410", "hang", "flapping", "answer lost", "refused")
EXACT = ("kill sender", "kill keeper", "endpoint turns", "endpoint enabled")
"""Faults under which rate limits can still be checked to the request."""
PLAIN = (*EXACT, "pause sender", "deploy")
"""Faults under which duplicates can still be checked to the request: the database and its clock are healthy."""
FAULTS = (*PLAIN, "database down", "database silent", "server clock jump", "clock jump", *(
    move for move in MOVES if move != "routes change"
))  # fmt: skip


@dataclass
class Receiver:
    """The behavior of an endpoint."""

    rate: int | None = None
    concurrency: int | None = None
    is_ordered: bool = False
    behaviours: tuple[str, ...] = ("ok",)
    """The behaviors that it switches to, in order."""


@dataclass
class Plan:
    """One seed's draw."""

    seed: int
    senders: int = 2
    concurrency: int = 4
    per_endpoint: int = 4
    keepers: int = 1
    lease_s: float = 2.0
    poll_s: float = 1.0
    timeout_s: float = 1.0
    statement_timeout_s: float = 5.0
    receivers: tuple[Receiver, ...] = (Receiver(),)
    messages: int = 16
    order_keys: int = 2
    breaker_after: int = 3
    breaker_pause_s: float = 1.0
    max_attempts: int = 5
    work_s: float = 10.0
    faults: tuple[str, ...] = ()
    fault_every_s: float = 2.0
    crash_rate: float = 0.0
    client_noticed_s: float = 0.1
    is_healing: bool = True
    rates: Rates = field(default_factory=Rates)

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(first_s=0.2, factor=2.0, max_delay_s=3.0, max_attempts=self.max_attempts, max_age_s=86_400)

    @property
    def is_plain(self) -> bool:
        """Whether nothing but senders and endpoints fails, so that each duplicate has its reason."""
        return self.rates == Rates() and set(self.faults) <= set(PLAIN)

    @property
    def is_exact(self) -> bool:
        """Whether no sender is paused or waits for a free slot while it holds a rate token."""
        return self.is_plain and set(self.faults) <= set(EXACT) and not self.crash_rate and self.concurrency > 4


def draw(seed: int) -> Plan:
    """Return what *seed* draws."""
    rng = random.Random(f"sending plan {seed}")
    plan = _draw(seed, rng)
    # Half of the seeds let nothing but senders and endpoints fail, so that duplicates can be counted.
    if rng.random() < 0.5:
        plan.rates = Rates()
        plan.faults = tuple(one for one in plan.faults if one in PLAIN)
        if rng.random() < 0.4:
            plan.crash_rate, plan.faults = 0.0, tuple(one for one in plan.faults if one in EXACT)
    return plan


def _draw(seed: int, rng: random.Random) -> Plan:
    return Plan(
        seed,
        senders=rng.randint(1, 3),
        concurrency=rng.choice((2, 4, 16)),
        per_endpoint=rng.choice((2, 8)),
        keepers=rng.choice((1, 1, 2)),
        lease_s=rng.choice((1.0, 2.0, 4.0)),
        poll_s=rng.choice((0.5, 1.0)),
        timeout_s=rng.choice((0.5, 2.0)),
        statement_timeout_s=rng.choice((2.0, 5.0)),
        receivers=tuple(_draw_receiver(rng) for _ in range(rng.randint(1, 4))),
        messages=rng.randint(4, 24),
        order_keys=rng.randint(1, 2),
        breaker_after=rng.choice((0, 2, 2, 4)),
        breaker_pause_s=rng.choice((0.3, 1.0)),
        max_attempts=rng.randint(2, 8),
        work_s=rng.choice((2.0, 5.0, 10.0)),
        faults=tuple(sorted({*rng.sample(FAULTS, rng.randint(0, 7)), "endpoint turns"})),
        fault_every_s=rng.choice((0.3, 1.0, 2.0)),
        crash_rate=rng.random() * 0.1 if rng.random() < 0.5 else 0.0,
        client_noticed_s=rng.choice((0.01, 0.2, 6.0)),
        is_healing=rng.random() < 0.75,
        rates=_draw_rates(rng),
    )


def _draw_receiver(rng: random.Random) -> Receiver:
    behaviours = (*rng.sample(BEHAVIOURS, rng.randint(0, 3)), "ok")
    return Receiver(
        rate=rng.choice((None, None, 2, 20)),
        concurrency=rng.choice((None, None, 1, 2)),
        is_ordered=rng.random() < 0.4,
        behaviours=behaviours,
    )


def _draw_rates(rng: random.Random) -> Rates:
    def some(chance: float, highest: float) -> float:
        return rng.random() * highest if rng.random() < chance else 0.0

    return Rates(
        lost_before=some(0.3, 0.03), lost_after=some(0.3, 0.05), lost_commit=some(0.3, 0.1), killed=some(0.2, 0.03),
        sacrificed=some(0.2, 0.1), slow=some(0.5, 0.4), slow_s=rng.choice((0.02, 0.3, 2.0)), late_execution=rng.random(),
    )  # fmt: skip
