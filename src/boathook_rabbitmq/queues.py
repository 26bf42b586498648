"""The queues of the buffer and of the delivery lane: their names and arguments.

Without these arguments the buffer's queues would lose confirmed messages.
"""

import zlib
from collections.abc import Mapping
from typing import Final

from boathook.domain.due import WALK_INTERVAL_S
from boathook.domain.endpoints import RECIPIENT

QUEUE_COUNT: Final = 8
"""Fixed, so that nothing has to be agreed on while PostgreSQL is unavailable."""
BUFFER_QUEUES: Final = tuple(f"boathook.buffer.{number}" for number in range(QUEUE_COUNT))
REFUSED_QUEUE: Final = "boathook.buffer.refused"
"""Keeps batches that cannot be read, and events that PostgreSQL refuses."""
ALL_QUEUES: Final = (*BUFFER_QUEUES, REFUSED_QUEUE)
DUE_ENDPOINTS: Final = "boathook.due.endpoints"
"""Names endpoints with due deliveries, for senders."""
DUE_HANDLERS: Final = "boathook.due.handlers"
"""Names handlers with due deliveries, for workers."""
DELAYS_S: Final = (5, 60, 3_600, 10_800, 86_400)
"""One queue for each, because messages expire at the head of a queue only."""
DELAY_SLACK_S: Final = 0.5
"""Maximum excess of a delay: of a retry after an hour, some milliseconds are over when it is recorded."""
_DELAY_QUEUES: Final = {
    f"{due}.{delay_s}": (due, delay_s) for due in (DUE_ENDPOINTS, DUE_HANDLERS) for delay_s in DELAYS_S
}
LANE_QUEUES: Final = (DUE_ENDPOINTS, DUE_HANDLERS, *_DELAY_QUEUES)
REPLICAS: Final = 3
"""Members that a quorum queue gets, if the cluster has as many nodes."""
_MAX_QUEUE_BYTES: Final = 4 << 30
_MAX_LANE_BYTES: Final = 64 << 20
_FIRST_WITH_DEFAULT_LIMIT: Final = 4
"""RabbitMQ 4 deletes a message that was delivered 20 times, unless the limit is -1. RabbitMQ 3.10 has no limit by
default, and with -1 it deletes a message that was delivered once."""

Arguments = Mapping[str, str | int | bool]


def queue_of(gateway: str) -> str:
    """Return the queue that a gateway process always uses, by its name, so that its events keep their order."""
    return BUFFER_QUEUES[zlib.crc32(gateway.encode()) % QUEUE_COUNT]


def queue_for(recipient: str, wait_s: float) -> str:
    """Return where to name a recipient that has a due delivery in *wait_s*: the longest delay that is not too long."""
    due = DUE_ENDPOINTS if recipient.startswith(RECIPIENT) else DUE_HANDLERS
    fitting = [delay_s for delay_s in DELAYS_S if delay_s <= wait_s + DELAY_SLACK_S]
    return f"{due}.{fitting[-1]}" if fitting else due


def arguments_of(queue: str, server_version: tuple[int, ...]) -> Arguments:
    """Return the arguments that a queue is declared with."""
    arguments: dict[str, str | int | bool] = {
        "x-queue-type": "quorum",
        "x-quorum-initial-group-size": REPLICAS,
        "x-max-length-bytes": _MAX_LANE_BYTES if queue in LANE_QUEUES else _MAX_QUEUE_BYTES,
        "x-overflow": "reject-publish",
    }
    if queue in _DELAY_QUEUES:
        due, delay_s = _DELAY_QUEUES[queue]
        arguments |= {
            "x-message-ttl": delay_s * 1000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": due,
            "x-dead-letter-strategy": "at-least-once",
        }
    elif queue in LANE_QUEUES:
        arguments["x-message-ttl"] = int(WALK_INTERVAL_S * 1000)
    elif queue != REFUSED_QUEUE:
        arguments["x-single-active-consumer"] = True
    if server_version[0] >= _FIRST_WITH_DEFAULT_LIMIT:
        arguments["x-delivery-limit"] = -1
    return arguments
