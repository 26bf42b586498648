"""Draws the plan of a seed: the configuration, the workload, the kinds of faults and their rates."""

import random
from dataclasses import dataclass, field

from boathook.domain.policy import RetryPolicy
from tests.simulation.server import Rates

SCRIPTS = ("ok", "fail", "retry", "dead", "ignore", "slow", "hang", "once", "final", "late")
FAULTS = (
    "kill worker", "pause worker", "kill gateway", "pause gateway", "kill keeper", "database down", "database silent",
    "clock jump", "server clock jump", "deploy", "deploy gateways", "power cut", "routes change", "replay dead", "ignore dead", "replay events", "wake",
)  # fmt: skip


@dataclass
class Plan:
    """One seed's draw."""

    seed: int
    workers: int = 2
    concurrency: int = 2
    connections: int = 2
    lease_s: float = 2.0
    poll_s: float = 1.0
    timeout_s: float = 4.0
    statement_timeout_s: float = 5.0
    gateways: int = 1
    committers: int = 1
    batch: int = 4
    keepers: int = 1
    events: int = 12
    order_keys: int = 2
    has_spool: bool = True
    after_s: float = 0.5
    queue: int = 64
    spool_bytes: int = 1 << 20
    segment_bytes: int = 4096
    keep_s: float = 3600.0
    disk_full: float = 0.0
    disk_failing: float = 0.0
    disk_died: float = 0.0
    limit: int | None = None
    """Most attempts of the ordered handler at once, over all workers."""
    max_attempts: int = 4
    work_s: float = 12.0
    """How long events keep coming, and faults happen."""
    duplicates: float = 0.2
    conflicts: float = 0.1
    poison: float = 0.05
    scripts: tuple[str, ...] = ("ok",)
    faults: tuple[str, ...] = ()
    fault_every_s: float = 2.0
    crash_rate: float = 0.0
    """Probability that a process is killed or frozen at a crash point."""
    client_noticed_s: float = 0.1
    """Longest time until the server notices that a client is dead."""
    is_healing: bool = True
    rates: Rates = field(default_factory=Rates)

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(first_s=0.2, factor=2.0, max_delay_s=3.0, max_attempts=self.max_attempts, max_age_s=86_400)


def _some(rng: random.Random, chance: float, highest: float) -> float:
    return rng.random() * highest if rng.random() < chance else 0.0


def draw(seed: int) -> Plan:
    """Return the plan of *seed*, independent of other draws."""
    rng = random.Random(f"plan {seed}")
    plan = _draw(seed, rng)
    # Some seeds try the hardest cases: workers that wake up after their leases, power cuts in the middle of a
    # spool, and gateways that spool again and again beside each other.
    match rng.randrange(5):
        case 0:
            plan.faults = tuple(sorted({*plan.faults, "pause worker", "replay dead"}))
            plan.scripts, plan.lease_s, plan.fault_every_s = (*plan.scripts, "late", "slow", "dead"), 1.0, 0.5
        case 1:
            plan.faults = tuple(sorted({*plan.faults, "power cut", "database down"}))
            plan.has_spool, plan.disk_died, plan.fault_every_s = True, 0.1, 1.0
        case 2:
            plan.faults = tuple(sorted({*plan.faults, "kill gateway", "database down"}))
            plan.has_spool, plan.gateways, plan.keep_s, plan.work_s, plan.fault_every_s = True, 2, 0.5, 16.0, 2.0
        case _:
            pass
    return plan


def _draw(seed: int, rng: random.Random) -> Plan:
    concurrency = rng.randint(1, 4)
    some = rng.randint(0, 8)
    return Plan(
        seed,
        workers=rng.randint(1, 3),
        concurrency=concurrency,
        connections=rng.choice((concurrency, 1, concurrency + 1)),
        lease_s=rng.choice((1.0, 2.0, 5.0)),
        poll_s=rng.choice((0.5, 1.0, 2.0)),
        timeout_s=rng.choice((1.5, 4.0)),
        statement_timeout_s=rng.choice((2.0, 5.0)),
        gateways=rng.randint(1, 2),
        committers=rng.randint(1, 2),
        batch=rng.choice((1, 4, 64)),
        keepers=rng.choice((1, 1, 2)),
        events=rng.randint(3, 16),
        order_keys=rng.randint(1, 3),
        has_spool=rng.random() < 0.8,
        after_s=rng.choice((0.2, 1.0)),
        queue=rng.choice((2, 64)),
        spool_bytes=rng.choice((8_192, 1 << 20)),
        segment_bytes=rng.choice((600, 4_096)),
        keep_s=rng.choice((2.0, 3600.0)),
        disk_full=_some(rng, 0.2, 0.2),
        disk_failing=_some(rng, 0.2, 0.3),
        disk_died=_some(rng, 0.3, 0.05),
        limit=rng.choice((None, None, 1, 2)),
        max_attempts=rng.randint(2, 5),
        work_s=rng.choice((2.0, 5.0, 10.0)),
        duplicates=_some(rng, 0.5, 0.5),
        conflicts=_some(rng, 0.3, 0.3),
        poison=_some(rng, 0.25, 0.3),
        scripts=tuple(rng.sample(SCRIPTS, rng.randint(0, 5))) + ("ok",) * rng.randint(1, 4),
        faults=tuple(sorted(rng.sample(FAULTS, some))),
        fault_every_s=rng.choice((0.3, 1.0, 3.0)),
        crash_rate=_some(rng, 0.4, 0.08),
        client_noticed_s=rng.choice((0.01, 0.2, 6.0)),
        is_healing=rng.random() < 0.75,
        rates=Rates(
            lost_before=_some(rng, 0.25, 0.03),
            lost_after=_some(rng, 0.3, 0.05),
            lost_commit=_some(rng, 0.3, 0.1),
            killed=_some(rng, 0.2, 0.03),
            sacrificed=_some(rng, 0.2, 0.1),
            slow=_some(rng, 0.5, 0.4),
            slow_s=rng.choice((0.02, 0.3, 2.0)),
            late_execution=rng.random(),
        ),
    )
