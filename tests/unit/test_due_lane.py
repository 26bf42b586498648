"""The delivery lane's queues and messages."""

from collections.abc import Collection
from typing import cast

import pytest

from boathook.config import load
from boathook.domain.due import DueRecipient, due_recipients
from boathook.domain.errors import ConfigError
from boathook_rabbitmq.access import BrokerAccess
from boathook_rabbitmq.connection import BrokerConnection
from boathook_rabbitmq.due_lane import MAX_NAMES, DueLane, decode
from boathook_rabbitmq.errors import BrokerRefused
from boathook_rabbitmq.queues import DELAYS_S, DUE_ENDPOINTS, DUE_HANDLERS, LANE_QUEUES, arguments_of, queue_for


@pytest.mark.parametrize(("wait_s", "queue"), [
    (-1, DUE_ENDPOINTS), (0, DUE_ENDPOINTS), (4.4, DUE_ENDPOINTS), (4.9, f"{DUE_ENDPOINTS}.5"),
    (59, f"{DUE_ENDPOINTS}.5"), (59.9, f"{DUE_ENDPOINTS}.60"), (60, f"{DUE_ENDPOINTS}.60"), (3_599.4, f"{DUE_ENDPOINTS}.60"),
    (3_600, f"{DUE_ENDPOINTS}.3600"), (10_799.4, f"{DUE_ENDPOINTS}.3600"), (10_800, f"{DUE_ENDPOINTS}.10800"),
    (86_399.4, f"{DUE_ENDPOINTS}.10800"), (86_400, f"{DUE_ENDPOINTS}.86400"), (1e9, f"{DUE_ENDPOINTS}.86400"),
])  # fmt: skip
def test_the_longest_delay_that_is_not_too_long_is_taken(wait_s: float, queue: str):
    assert queue_for("endpoint:ep_1", wait_s) == queue
    assert queue_for("invoice", wait_s) == queue.replace(DUE_ENDPOINTS, DUE_HANDLERS)
    assert queue in LANE_QUEUES


@pytest.mark.parametrize("due", [DUE_ENDPOINTS, DUE_HANDLERS])
def test_delays_lead_to_the_due_queue(due: str):
    for delay_s in DELAYS_S:
        arguments = arguments_of(f"{due}.{delay_s}", (4, 0, 5))
        assert arguments["x-queue-type"] == "quorum"
        assert arguments["x-message-ttl"] == delay_s * 1000
        assert arguments["x-dead-letter-routing-key"] == due
        assert arguments["x-dead-letter-strategy"] == "at-least-once"
        assert arguments["x-overflow"] == "reject-publish"
        assert arguments["x-delivery-limit"] == -1
        assert "x-delivery-limit" not in arguments_of(f"{due}.{delay_s}", (3, 13, 7))
    assert "x-single-active-consumer" not in arguments_of(due, (4, 0, 5))


def test_a_message_names_recipients_with_times():
    assert decode(b'[["endpoint:ep_1", 0], ["h", 17.5]]') == [("endpoint:ep_1", 0.0), ("h", 17.5)]
    assert decode(b"[]") == []


@pytest.mark.parametrize("body", [
    b"", b"[", b"{}", b"[1]", b'[["a"]]', b'[["a", "0"]]', b'[["a", NaN]]', b'[["", 0]]', b'[["a\\u0000b", 0]]', b"\xff",
    b'[["' + b"a" * 513 + b'", 0]]', b"[" + b",".join([b'["a", 0]'] * (MAX_NAMES + 1)) + b"]", b"[]" + b" " * (1 << 20),
])  # fmt: skip
def test_other_messages_are_refused(body: bytes):
    with pytest.raises(ValueError):  # noqa: PT011 - a decoder's message
        decode(body)


def test_the_lane_needs_brokers():
    with pytest.raises(ConfigError, match=r'delivery\.lane: "rabbitmq" needs buffer\.hosts'):
        load(overrides={"delivery.lane": "rabbitmq"})
    brokers = {"buffer.hosts": ["mq1:5672"], "buffer.user": "u", "buffer.password": "p"}
    found = load(overrides={"delivery.lane": "rabbitmq", **brokers})
    assert (found.has_package_notifier, found.has_package_buffer) == (True, False)
    usual = load().packages
    assert [package.name for package in found.packages if package not in usual] == ["rabbitmq"]
    assert "rabbitmq" not in [package.name for package in usual]


async def test_a_full_queue_does_not_affect_the_other_queue():
    published: list[str] = []

    class Connection:
        async def publish(self, queue: str, _body: bytes, _within_s: float) -> None:
            if queue == DUE_HANDLERS:
                raise BrokerRefused("the queue is full")
            published.append(queue)

    lane = DueLane(cast("BrokerAccess", None), confirm_s=1)
    lane._connection, lane._problem = cast("BrokerConnection", Connection()), ""
    notified: list[str] = []

    async def notify(due: Collection[DueRecipient]) -> None:
        notified.extend(recipient for recipient, _ in due)

    await lane.announce(notify, due_recipients(["invoice"]))
    assert (notified, lane.is_available) == (["invoice"], True)
    await lane.announce(notify, due_recipients(["endpoint:ep_1"]))
    assert (published, notified) == ([DUE_ENDPOINTS], ["invoice"])
