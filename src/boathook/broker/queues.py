"""The queues of the buffer: their names and the arguments without which they would lose confirmed messages."""

import zlib
from collections.abc import Mapping
from typing import Final

QUEUE_COUNT: Final = 8
"""Fixed, so that nothing has to be agreed on while PostgreSQL is unavailable."""
BUFFER_QUEUES: Final = tuple(f"boathook.buffer.{number}" for number in range(QUEUE_COUNT))
REFUSED_QUEUE: Final = "boathook.buffer.refused"
"""Keeps batches that cannot be read, and events that PostgreSQL refuses."""
ALL_QUEUES: Final = (*BUFFER_QUEUES, REFUSED_QUEUE)
REPLICAS: Final = 3
"""Members that a quorum queue gets, if the cluster has as many nodes."""
_MAX_QUEUE_BYTES: Final = 4 << 30
_FIRST_WITH_DEFAULT_LIMIT: Final = 4
"""RabbitMQ 4 deletes a message that was delivered 20 times, unless the limit is -1. RabbitMQ 3.10 has no limit by
itself, and with -1 it deletes a message that was delivered once."""

Arguments = Mapping[str, str | int | bool]


def queue_of(gateway: str) -> str:
    """Return the queue that a gateway process always uses, by its name, so that its events keep their order."""
    return BUFFER_QUEUES[zlib.crc32(gateway.encode()) % QUEUE_COUNT]


def arguments_of(queue: str, server_version: tuple[int, ...]) -> Arguments:
    """Return the arguments that a queue is declared with."""
    arguments: dict[str, str | int | bool] = {
        "x-queue-type": "quorum",
        "x-quorum-initial-group-size": REPLICAS,
        "x-max-length-bytes": _MAX_QUEUE_BYTES,
        "x-overflow": "reject-publish",
    }
    if queue != REFUSED_QUEUE:
        arguments["x-single-active-consumer"] = True
    if server_version[0] >= _FIRST_WITH_DEFAULT_LIMIT:
        arguments["x-delivery-limit"] = -1
    return arguments
