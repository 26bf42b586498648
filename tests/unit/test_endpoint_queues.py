"""The queues of endpoints in one sender, without a database: what a claim asks for, and how discovery pauses."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.config import load
from boathook.db.endpoint_deliveries import DueEndpoint, DueEndpointPage, EndpointDeliveryStore
from boathook.db.secret_box import SecretBox
from boathook.delivery import endpoint_queues
from boathook.delivery.dispatcher import DatabaseClock, SlowSteps
from boathook.delivery.endpoint_executor import EndpointExecutors
from boathook.delivery.endpoint_queues import MAX_CLAIMED, EndpointQueues
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.service.unit_of_work import new_id
from tests.sender_harness import KEY


def make_queues(number: int, *, mean_s: float | None = None, places: int = 512) -> EndpointQueues:
    """Return the queues of *number* endpoints with due deliveries."""
    settings = load(None, {"outbound": {"concurrency": places, "encryption_keys": [KEY]}})
    store = mock.create_autospec(EndpointDeliveryStore, instance=True)
    queues = EndpointQueues(
        settings, store=store, secret_box=SecretBox([KEY]), clock=DatabaseClock(),
        prepare=EndpointExecutors(settings).prepare,
    )  # fmt: skip
    for _ in range(number):
        endpoint = new_id()
        name = recipient_of(ids.show(ids.ENDPOINT, endpoint))
        queues.upsert(DueEndpoint(name, endpoint, False, None, None, None))
    for queue in queues:
        queue.mean_s = mean_s
    return queues


def claimed(queues: EndpointQueues) -> list[int]:
    """Return the slots of the next claim."""
    requests, _ = queues.plan(time.monotonic(), datetime.now(UTC))
    return [request.slots for request in requests]


@pytest.mark.parametrize("mean_s", [None, 0.01])
def test_one_claim_serves_a_message_to_a_hundred_endpoints(mean_s: float | None):
    slots = claimed(make_queues(100, mean_s=mean_s))
    assert len(slots) == 100
    assert sum(slots) <= MAX_CLAIMED


def test_one_claim_serves_no_more_endpoints_than_it_may_claim_deliveries():
    slots = claimed(make_queues(1_000, mean_s=0.01))
    assert slots == [1] * MAX_CLAIMED


def test_few_endpoints_may_use_the_whole_claim():
    few = claimed(make_queues(2, mean_s=0.01))
    assert min(few) > MAX_CLAIMED // 100


@given(st.lists(st.integers(min_value=1, max_value=500), max_size=MAX_CLAIMED))
def test_a_claim_is_divided_fairly(wanted: list[int]):
    shares = endpoint_queues.divide(MAX_CLAIMED, wanted)
    assert sum(shares) == min(MAX_CLAIMED, sum(wanted))
    assert all(1 <= share <= most for share, most in zip(shares, wanted, strict=True))
    refused = [share for share, most in zip(shares, wanted, strict=True) if share < most]
    assert not refused or max(shares) - min(refused) <= 1


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 0.002), (0.01, 0.1), (60.0, 0.5)])
async def test_discovery_pauses_for_the_time_that_the_server_took_but_not_for_long(
    took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
):
    queues = make_queues(1)
    [queue] = queues
    due = DueEndpoint(queue.recipient, queue.endpoint_id, False, None, None, None)
    pages = [DueEndpointPage([due], None, "next", took_s / 2), DueEndpointPage([due], None, "", took_s / 2)]
    pauses: list[float] = []

    async def find_due(_after: str, _limit: int) -> DueEndpointPage:
        return pages.pop(0)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(queues._store, "find_due", find_due)
    monkeypatch.setattr(asyncio, "sleep", pause)
    await queues.discover(lambda: None)
    assert pauses == [pytest.approx(pause_s)]


class TestSlowSteps:
    """Slow claims and writes in the log."""

    def test_logs_deliveries_and_duration(self):
        assert self.lines([(0.0, "settle", 400, 2.574), (1.0, "claim", 1, 0.01)]) == [
            {"step": "settle", "deliveries": 400, "took_s": 2.574, "skipped": 0}
        ]

    def test_counts_what_it_leaves_out(self):
        steps = [(0.0, "settle", 400, 1.0), *[(1.0, "claim", 9, 1.0)] * 3, (60.0, "settle", 5, 0.5)]
        assert self.lines(steps)[1:] == [{"step": "settle", "deliveries": 5, "took_s": 0.5, "skipped": 3}]

    @staticmethod
    def lines(steps: Sequence[tuple[float, str, int, float]]) -> list[dict[str, Any]]:
        log, now = mock.Mock(), [0.0]
        slow = SlowSteps(log, clock=lambda: now[0])
        for now[0], step, deliveries, took_s in steps:
            slow.note(step, deliveries, took_s)
        assert all(call.args == ("queue_slow",) for call in log.warning.call_args_list)
        return [call.kwargs for call in log.warning.call_args_list]
