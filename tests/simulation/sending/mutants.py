"""Mutants of sending: each removes one safeguard, and the simulation must find a violation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from boathook.db import endpoint_deliveries
from boathook.db.deliveries import DeliveryStore
from boathook.db.endpoint_deliveries import EndpointClaimLimit
from boathook.delivery import http_executor
from boathook.delivery.endpoint_queues import EndpointQueue
from boathook.delivery.keeper import Keeper
from boathook.domain.policy import Success
from tests.simulation import lease_statements, sending_statements
from tests.simulation.sending.plan import Plan
from tests.simulation.server import Rates
from tests.simulation.statements import BY_TEXT
from tests.simulation.tables import Record, Transaction

Mutant = Callable[[pytest.MonkeyPatch], None]


def settling_without_fence(patch: pytest.MonkeyPatch) -> None:
    """A process that lost its claim may still settle it."""
    patch.setattr(lease_statements, "holds", lambda row, _fence: row is not None and row.leased_by is not None)


def without_rescue(patch: pytest.MonkeyPatch) -> None:
    """Claims of dead processes are never taken back."""

    async def nothing(*_: object, **__: object) -> int:
        return 0

    patch.setattr(Keeper, "_reap", nothing)
    patch.setattr(DeliveryStore, "reap", nothing)


def renewing_nothing(patch: pytest.MonkeyPatch) -> None:
    """A sender's claims run out while their requests are under way."""

    async def nothing(*_: object, **__: object) -> set[object]:
        return set()

    patch.setattr(DeliveryStore, "renew", nothing)


def probing_all_at_once(patch: pytest.MonkeyPatch) -> None:
    """Every sender may probe a paused endpoint at the same time."""

    def take(t: Transaction, endpoint_ids: Sequence[UUID], hold: timedelta, _timeout_s: float) -> list[Record]:
        until = t.tables.clock() + hold
        rests = [key for key in endpoint_ids if (health := t.get("health", key)) is not None and health.open_until]
        return [Record(endpoint_id=key, open_until=until) for key in rests]

    patch.setitem(BY_TEXT, endpoint_deliveries.SQL["take_probes"], ("take_probes", take))


def ignoring_order(patch: pytest.MonkeyPatch) -> None:
    """A claim ignores other deliveries with the same order key."""
    patch.setattr(lease_statements, "is_first", lambda _t, _row: True)
    patch.setattr(sending_statements, "_is_pending", lambda row: row.state == "pending")


def limiting_each_sender_alone(patch: pytest.MonkeyPatch) -> None:
    """A sender counts its own requests under way, not those of others."""
    claim_limit = EndpointQueue.claim_limit

    def unbounded(self: EndpointQueue, slots: int, now: float, *, is_probe: bool) -> EndpointClaimLimit:
        wanted = claim_limit(self, slots, now, is_probe=is_probe)
        return EndpointClaimLimit(
            wanted.recipient, wanted.slots, wanted.since, None, endpoint_id=wanted.endpoint_id, is_probe=is_probe
        )

    patch.setattr(EndpointQueue, "claim_limit", unbounded)


def metering_nothing(patch: pytest.MonkeyPatch) -> None:
    """A rate grants every request."""

    def take(_t: Transaction, endpoint_ids: Sequence[UUID], numbers: Sequence[int], _rates: object) -> list[Record]:
        pairs = zip(endpoint_ids, numbers, strict=True)
        return [Record(endpoint_id=key, taken=number, next_s=0.0) for key, number in pairs]

    patch.setitem(BY_TEXT, endpoint_deliveries.SQL["take_tokens"], ("take_tokens", take))


def believing_every_answer(patch: pytest.MonkeyPatch) -> None:
    """Every result of a request counts as success."""

    def fine(_answer: Any) -> Success:
        return Success()

    patch.setattr(http_executor, "classify_response", fine)


def slow_requests(plan: Plan) -> Plan:
    """Return a plan whose requests take longer than a lease, while senders are paused and nothing else fails.

    A lease is lost under way in few of the seeds as they are drawn.
    """
    receivers = tuple(replace(one, behaviours=("slow", "ok"), rate=None, concurrency=None) for one in plan.receivers)
    return replace(
        plan, senders=3, lease_s=1.0, timeout_s=2.0, breaker_after=0, receivers=receivers, work_s=10.0, crash_rate=0.0,
        faults=("endpoint turns", "pause sender"), fault_every_s=0.3, rates=Rates(),
    )  # fmt: skip


@dataclass(frozen=True)
class Noticed:
    """How a mutant is noticed."""

    by: str
    """The invariants that it breaks, as a pattern."""
    seed: int
    """A seed that has noticed it."""
    plan: Callable[[Plan], Plan] = lambda plan: plan
    """Returns the plan to run, given the plan that the seed draws."""


ALL: dict[Mutant, Noticed] = {
    settling_without_fence: Noticed("C7", 10, slow_requests),
    without_rescue: Noticed("C11", 5),
    renewing_nothing: Noticed("C12: .* was taken again", 6, slow_requests),
    probing_all_at_once: Noticed("L3", 6),
    ignoring_order: Noticed("C6", 5),
    limiting_each_sender_alone: Noticed("L1", 1),
    metering_nothing: Noticed("L2", 2),
    believing_every_answer: Noticed("C12", 1),
}
