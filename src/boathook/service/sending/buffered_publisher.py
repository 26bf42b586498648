"""Publishes messages of the API while PostgreSQL does not take them; an optional package brings a publisher."""

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.db.database import Database
from boathook.db.secret_box import SecretBox
from boathook.domain.messages import Message
from boathook.domain.model import IdempotencyKey, Receipt
from boathook.handlers.outbox import IDEMPOTENCY_DAYS, Outbox
from boathook.ingest.intake import Intake
from boathook.service.access.authorization import Principal


class BufferedPublisher(Protocol):
    """Publishes messages through a gateway's intake, whose buffer holds them meanwhile."""

    parsing: asyncio.Semaphore
    """Limits how many requests are parsed at once, as connections do while PostgreSQL is available."""

    @property
    def is_needed(self) -> bool:
        """Whether messages must go to the buffer: PostgreSQL is unavailable, or other messages wait there."""
        ...

    async def follow(self, database: Database) -> None:
        """Keep what decides about tokens and applications up to date, until cancelled."""
        ...

    async def find_principal(self, token: str) -> Principal:
        """Return the holder of a token. Raises AccessUnknown if that cannot be decided without PostgreSQL."""
        ...

    async def publish(self, message: Message) -> tuple[UUID, bool]:
        """Publish a message; return its id, and whether an earlier request with its idempotency key had published it.

        Args:
            message: the message; its `event_id` makes it safe to publish it again after an error.

        Raises:
            AccessUnknown: the application is not known here.
            InvalidMessage: a field breaks a rule.
            NotFound: the application was deleted.
            ServedElsewhere: the application has moved to another installation.
            AlreadyExists: another message has its id, or another request used its idempotency key.
            IngestError: neither PostgreSQL nor the buffer can take it.
            DatabaseError: as `Intake.accept`.
        """
        ...

    def single(self, key: Hashable) -> AbstractAsyncContextManager[None]:
        """Let the blocks with one key run one after another."""
        ...

    def remember(self, key: IdempotencyKey, identifier: UUID, days: float = IDEMPOTENCY_DAYS) -> None:
        """Remember the message that was published with a key, also one in PostgreSQL, which may be unavailable soon."""
        ...


OpenBufferedPublisher = Callable[[Settings, Intake, Outbox, SecretBox], BufferedPublisher | None]
"""What `Package.buffered_publisher` names."""


def open_buffered_publisher(
    settings: Settings, intake: Intake, outbox: Outbox, secret_box: SecretBox
) -> BufferedPublisher | None:
    """Return the publisher of the package in use that has one; None if messages always need PostgreSQL."""
    for package in settings.packages:
        if package.buffered_publisher is not None:
            open_publisher: OpenBufferedPublisher = resolve(package.buffered_publisher)
            if (publisher := open_publisher(settings, intake, outbox, secret_box)) is not None:
                return publisher
    return None


async def send_buffered(settings: Settings, message: Message) -> Receipt | None:
    """Make one message durable on this host, whose gateways store it later; None if no package in use can do that.

    Raises:
        AccessUnknown: no gateway would store it, or its application is not known here.
        ServedElsewhere: its application has moved to another installation.
        InvalidMessage: a field breaks a rule.
        SpoolUnavailable: the spool is full, fails, or belongs to another user.
    """
    for package in settings.packages:
        if package.send_buffered is not None:
            receipt: Receipt = await resolve(package.send_buffered)(settings, message)
            return receipt
    return None
