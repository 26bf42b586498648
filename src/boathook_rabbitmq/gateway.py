"""The part of a gateway that keeps events with brokers, and drains what all gateways have published."""

import socket
from collections.abc import Sequence
from datetime import datetime
from typing import Self

from boathook.db import buffer_marks
from boathook.domain.model import BufferMark
from boathook.server.background import BackgroundTasks
from boathook.server.gateway_part import Gateway, GatewayPart
from boathook_rabbitmq.access import read_access
from boathook_rabbitmq.drain import BufferDrain
from boathook_rabbitmq.gateway_buffer import BrokerFirstBuffer
from boathook_rabbitmq.queues import queue_of
from boathook_rabbitmq.settings import brokers_of, holds_events


def open_gateway_part(gateway: Gateway) -> "BrokerPart | None":
    """Return the part; None if no events go to brokers. Raises ConfigError."""
    return BrokerPart(gateway) if holds_events(gateway.settings) else None


class BrokerPart(GatewayPart):
    """The brokers of a gateway: its buffer, and the drain of all buffers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._access = read_access(gateway.settings)
        self._tasks = BackgroundTasks()
        self.buffer: BrokerFirstBuffer = BrokerFirstBuffer(
            self._access,
            queue=queue_of(f"{socket.gethostname()}/{gateway.slot}"),
            confirm_s=brokers_of(gateway.settings).confirm_s,
            spool=gateway.spool,
            read_marks=self._read_marks,
        )

    async def __aenter__(self) -> Self:
        drain = BufferDrain(
            self._access,
            self._gateway.make_writer(),
            self._advance_mark,
            is_available=self._gateway.database.is_available,
            note_stored=self._gateway.intake.note_stored,
            batch=self._gateway.settings.database.ingest_batch_size,
        )
        self._tasks.start(drain.run(), "buffer:drain")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.__aexit__()

    async def _advance_mark(
        self, series: int, first: int, last: int, last_event_at: datetime | None
    ) -> buffer_marks.Gap:
        database = self._gateway.database.require_database()
        return await buffer_marks.advance(database, series, first, last, last_event_at)

    async def _read_marks(self, series: Sequence[int]) -> dict[int, BufferMark]:
        database, within_s = self._gateway.database.require_database(), self._gateway.settings.spool.fallback_after_s
        return await buffer_marks.read(database, series, within_s=within_s)
