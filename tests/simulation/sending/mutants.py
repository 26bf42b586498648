"""Mutants of sending: each removes one safeguard, and the simulation must find a violation."""

from collections.abc import Callable, Sequence
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

    def take(t: Transaction, endpoint_ids: Sequence[UUID], hold: timedelta) -> list[Record]:
        until = t.tables.clock() + hold
        rests = [key for key in endpoint_ids if (health := t.get("health", key)) is not None and health.open_until]
        return [Record(endpoint_id=key, open_until=until) for key in rests]

    patch.setitem(BY_TEXT, endpoint_deliveries.SQL["take_probes"], ("take_probes", take))


def ignoring_order(patch: pytest.MonkeyPatch) -> None:
    """A claim does not look at what else has the same order key."""
    patch.setattr(lease_statements, "is_first", lambda _t, _row: True)
    patch.setattr(sending_statements, "_is_pending", lambda row: row.state == "pending")


def limiting_each_sender_alone(patch: pytest.MonkeyPatch) -> None:
    """A sender counts its own requests under way, not those of others."""
    want = EndpointQueue.want

    def unbounded(self: EndpointQueue, slots: int, now: float, *, is_probe: bool) -> EndpointClaimLimit:
        wanted = want(self, slots, now, is_probe=is_probe)
        return EndpointClaimLimit(
            wanted.recipient, wanted.slots, wanted.since, None, endpoint_id=wanted.endpoint_id, is_probe=is_probe
        )

    patch.setattr(EndpointQueue, "want", unbounded)


def metering_nothing(patch: pytest.MonkeyPatch) -> None:
    """A rate grants whatever is asked of it."""

    def take(_t: Transaction, endpoint_ids: Sequence[UUID], numbers: Sequence[int], _rates: object) -> list[Record]:
        pairs = zip(endpoint_ids, numbers, strict=True)
        return [Record(endpoint_id=key, taken=number, next_s=0.0) for key, number in pairs]

    patch.setitem(BY_TEXT, endpoint_deliveries.SQL["take_tokens"], ("take_tokens", take))


def believing_every_answer(patch: pytest.MonkeyPatch) -> None:
    """Whatever comes of a request counts as success."""

    def fine(_answer: Any) -> Success:
        return Success()

    patch.setattr(http_executor, "classify_response", fine)


ALL: dict[Mutant, tuple[str, int]] = {
    settling_without_fence: ("C7", 373),
    without_rescue: ("C11", 5),
    renewing_nothing: ("C12: .* was taken again", 651),
    probing_all_at_once: ("L3", 2),
    ignoring_order: ("C6", 1),
    limiting_each_sender_alone: ("L1", 1),
    metering_nothing: ("L2", 2),
    believing_every_answer: ("C12", 1),
}
"""Each with the invariants by which it is to be noticed, and a seed that has noticed it."""
