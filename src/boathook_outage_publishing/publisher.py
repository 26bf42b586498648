"""Publishes messages for the API while PostgreSQL is unavailable: into what holds a gateway's events meanwhile.

A message goes through the gateway's intake like a received event. So it is answered once it is durable, it keeps its
place behind what this gateway accepted before, and it is moved to PostgreSQL by the same drain. Its id is assigned now.
What it needs PostgreSQL for is decided then: its recipients, and whether its eventId or idempotency key is known. What
must be decided now is decided by the `AccessCopy`, or the request is refused. If PostgreSQL answers because only older
messages wait, it looks idempotency keys up at once, so that a repeated request gets the id of the stored message.
"""

import asyncio
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from typing import Final, assert_never
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db.database import Database
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.domain.errors import (
    AccessUnknown,
    ApplicationDeleted,
    DatabaseError,
    NotFound,
    ServedElsewhere,
    SpoolUnavailable,
)
from boathook.domain.messages import Message, check_message, read_object
from boathook.domain.model import Accepted, Duplicate, IdempotencyKey, NewEvent, Receipt
from boathook.handlers.outbox import IDEMPOTENCY_DAYS, Outbox, hash_key
from boathook.ingest.intake import Intake
from boathook.ingest.spool_records import encode
from boathook.observability import meters
from boathook.service.access.authorization import Principal
from boathook.service.access.idempotency import key_reused
from boathook.service.receiving import spool
from boathook.service.sending.buffered_publisher import BufferedPublisher
from boathook.service.sending.message_store import to_event
from boathook.service.sending.messages import event_id_taken
from boathook.spool.spool import Spool
from boathook_outage_publishing.access_copy import AccessCopy
from boathook_outage_publishing.settings import publishes_without_database
from boathook_outage_publishing.store import find_by_idempotency_key

_MAX_REMEMBERED: Final = 10_000
"""Idempotency keys in memory, so that a client which repeats a request gets the same answer."""
_DAY_S: Final = 86_400.0
_LOOK_UP_S: Final = 0.5
"""How long PostgreSQL may take to look a key up, while it is slow or about to be unavailable."""
_MAX_PARSED: Final = 8
"""Requests parsed at once, as a parsed body can take thirty times its size in memory."""


class _Remembered(msgspec.Struct, frozen=True):
    """A message that was published with an idempotency key."""

    request_sha256: bytes
    id: UUID
    until: float
    """When its key is forgotten."""


def open_publisher(
    settings: Settings, intake: Intake, outbox: Outbox, secret_box: SecretBox
) -> "OutagePublisher | None":
    """Return the publisher of a gateway; None if the settings do without."""
    if not publishes_without_database(settings):
        return None
    return OutagePublisher(intake, AccessCopy.load(settings, secret_box), outbox)


class OutagePublisher(BufferedPublisher):
    """Publishes messages through a gateway's intake.

    Args:
        intake: makes messages durable.
        access: decides about tokens and applications.
        outbox: validates messages, and counts them.
    """

    def __init__(self, intake: Intake, access: AccessCopy, outbox: Outbox) -> None:
        self._intake = intake
        self._outbox = outbox
        self._remembered: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._in_flight: dict[Hashable, asyncio.Future[None]] = {}
        """By key, what ends with the block of `single` that runs."""
        self.access = access
        self.database: Database | None = None
        """Knows the keys of stored messages; None until PostgreSQL is reached."""
        intake.on_loss.append(self._remembered.clear)
        self.parsing = asyncio.Semaphore(_MAX_PARSED)

    async def follow(self, database: Database) -> None:
        """Keep the copy of keys and applications up to date, until cancelled."""
        self.database = database
        await self.access.follow(database)

    async def find_principal(self, token: str) -> Principal:
        """Return the holder of a token. Raises AccessUnknown as `AccessCopy.find_principal`."""
        return await self.access.find_principal(token)

    @property
    def is_needed(self) -> bool:
        """See `BufferedPublisher.is_needed`."""
        return not self._intake.is_direct

    async def publish(self, message: Message) -> tuple[UUID, bool]:
        """See `BufferedPublisher.publish`."""
        check_message(message)
        key = message.idempotency
        if key is None:
            return await self._publish(message)
        async with self.single(key.key):
            earlier_id = self._find(key) or await self._find_stored(key)
            return (earlier_id, True) if earlier_id is not None else await self._publish(message)

    @contextlib.asynccontextmanager
    async def single(self, key: Hashable) -> AsyncIterator[None]:
        """See `BufferedPublisher.single`."""
        while (earlier := self._in_flight.get(key)) is not None:
            await asyncio.wait([earlier])
        end = self._in_flight[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._in_flight[key]
            end.set_result(None)

    async def _publish(self, message: Message) -> tuple[UUID, bool]:
        target = await self._find_application(message.organization, message.application)
        draft = self._outbox.draft(message)
        try:
            receipt = await self._intake.accept(to_event(draft, target))
        except ApplicationDeleted as error:
            raise NotFound(str(error)) from error
        match receipt:
            case Accepted():
                self._outbox.count([draft])
                if receipt.is_spooled:
                    meters.count("boathook_messages_buffered_total")
                    if message.idempotency is not None:
                        self.remember(message.idempotency, draft.id, draft.memory_days)
                return draft.id, False
            case Duplicate(first, by_idempotency_key=True):
                if receipt.conflict:
                    raise key_reused()
                return first, True
            case Duplicate():
                raise event_id_taken(message)
            case _:
                assert_never(receipt)

    async def _find_application(self, organization: str, reference: str) -> UUID:
        """Return an application's id; the routes of those that were published to before are in memory too."""
        try:
            return await self.access.find_application(organization, reference)
        except AccessUnknown:
            routes = self._outbox.cached_routes(organization, reference)
            application = None if routes is None else routes.routing.application
            if application is None or application.is_operational:
                raise
            if application.home is not None:
                raise ServedElsewhere(reference, application.home) from None
            return application.id

    def _find(self, key: IdempotencyKey) -> UUID | None:
        """Return the message that was published with a key, for as long as PostgreSQL would know the key."""
        earlier = self._remembered.get(key.key)
        if earlier is None or time.time() >= earlier.until:
            return None
        if earlier.request_sha256 != key.request_sha256:
            raise key_reused()
        return earlier.id

    async def _find_stored(self, key: IdempotencyKey) -> UUID | None:
        """Return the stored message with a key, if PostgreSQL answers in time; the drain decides otherwise."""
        if self.database is None or self.database.monitor.is_unavailable:
            return None
        try:
            async with asyncio.timeout(_LOOK_UP_S):
                earlier = await find_by_idempotency_key(self.database, hash_key(key))
        except (DatabaseError, TimeoutError):
            return None
        if earlier is not None and earlier.request_sha256 != key.request_sha256:
            raise key_reused()
        return None if earlier is None else earlier.id

    def remember(self, key: IdempotencyKey, identifier: UUID, days: float = IDEMPOTENCY_DAYS) -> None:
        """See `BufferedPublisher.remember`."""
        self._remembered.pop(key.key, None)
        self._remembered[key.key] = _Remembered(key.request_sha256, identifier, time.time() + days * _DAY_S)
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)


async def send_without_database(settings: Settings, message: Message) -> Receipt:
    """Write one message into this host's spool, which its gateways drain once PostgreSQL is available.

    Args:
        settings: those of the host's gateways.
        message: as for `send`; its application is an id or a uid.

    Raises:
        AccessUnknown: no gateway would drain the spool, or the local copy lacks the application.
        ServedElsewhere: the application has moved to another installation.
        InvalidMessage: as for `send`.
        SpoolUnavailable: the spool is full, fails, or belongs to another user.
    """
    read_object(message.payload)
    check_message(message)
    _require_drained(settings)
    access = AccessCopy.load(settings, open_secret_box(settings))
    target = await access.find_application(message.organization, message.application)
    draft = Outbox.of(settings.retention).draft(message)
    await _append(settings, to_event(draft, target))
    return Accepted(draft.id, is_spooled=True)


def _require_drained(settings: Settings) -> None:
    """Check that what is written into this host's spool will be drained.

    Raises:
        AccessUnknown: messages may not be accepted without PostgreSQL, or no server runs here.
        SpoolUnavailable: gateways run as another user, and could not read it.
    """
    data_dir = settings.server.data_dir
    if not settings.has_spool or not publishes_without_database(settings):
        raise AccessUnknown(
            "PostgreSQL is unavailable, and messages need it because of spool.enabled, buffer.then,"
            " buffer.key_max_age_h or outbound.validate_payloads; try again later"
        )
    if not spool.is_served(data_dir):
        raise AccessUnknown(
            f"PostgreSQL is unavailable, and no server that uses {data_dir} runs here, so nothing would deliver the"
            " message later; run this on a host with a gateway, publish through its API, or try again later"
        )
    if data_dir.stat().st_uid != os.geteuid():
        raise SpoolUnavailable(f"{data_dir} belongs to another user; run this as the user that runs boathook")


async def _append(settings: Settings, event: NewEvent) -> None:
    """Make one event durable in a folder of this process, which gateways drain once it has ended.

    Raises:
        SpoolUnavailable: the spool is full, or its disk fails.
    """
    own = Spool.at(spool.root_of(settings), spool.limits_of(settings.spool))
    await own.start()
    try:
        await own.append(encode(event))
    finally:
        await own.stop()
