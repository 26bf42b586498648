"""Prepares and inspects the brokers' queues, and offers refused events again, on an operator's request."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from boathook.config import Settings
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.service.remote import RemoteClient
from boathook_rabbitmq.access import read_access, read_ca_file
from boathook_rabbitmq.errors import BrokerUnavailable
from boathook_rabbitmq.queues import ALL_QUEUES, BUFFER_QUEUES, LANE_QUEUES, REFUSED_QUEUE, arguments_of
from boathook_rabbitmq.settings import brokers_of, holds_events, notifies

if TYPE_CHECKING:
    from boathook_rabbitmq.connection import BrokerConnection

_PUBLISH_TIMEOUT_S: Final = 5.0
_MANAGEMENT_TIMEOUT_S: Final = 10.0
_MAX_ANSWER: Final = 1 << 20


class QueueStatus(msgspec.Struct, frozen=True):
    """One queue, as brokers describe it."""

    queue: str
    messages: int | None
    """Messages that are ready to be drained; None if the queue cannot be read."""
    problem: str = ""
    """Why events cannot be published there; empty if they can."""


class QueueMembers(msgspec.Struct, frozen=True):
    """Where the copies of one queue are."""

    queue: str
    members: tuple[str, ...]
    """The nodes that keep a copy."""
    online: tuple[str, ...]
    """Those of them that take part now."""


class ReturnedBatches(msgspec.Struct, frozen=True):
    """The result of returning refused batches to their queue."""

    returned: int
    """Batches that were put into a buffer's queue again, for gateways to drain."""
    unreadable: int
    """Batches that stay refused, because they are damaged."""


def require_brokers(settings: Settings) -> None:
    """Check that events go to brokers at all. Raises ConfigError if not."""
    if not holds_events(settings):
        raise ConfigError('buffer.kind: is "disk", so there are no brokers; see `boathook spool status`')


def _queues(settings: Settings) -> tuple[str, ...]:
    return (ALL_QUEUES if holds_events(settings) else ()) + (LANE_QUEUES if notifies(settings) else ())


async def prepare_queues(settings: Settings) -> str | None:
    """Create the queues that are missing and verify the others, for ``boathook migrate``; return what to print.

    Raises:
        BrokerMisconfigured: a queue has other arguments, or the broker refuses the login.
        BrokerUnavailable: no broker answers.
    """
    queues = _queues(settings)
    if not queues:
        return None
    async with _connection(settings) as connection:
        for queue in queues:
            await connection.declare(queue, arguments_of(queue, connection.server_version))
    return "the brokers' queues are ready"


async def read_queues(settings: Settings) -> list[QueueStatus]:
    """Return the status of every queue; nothing is created.

    Raises:
        BrokerMisconfigured: the broker refuses the login.
        BrokerUnavailable: no broker answers.
    """
    return [await _read_queue(settings, queue) for queue in _queues(settings)]


async def _read_queue(settings: Settings, queue: str) -> QueueStatus:
    messages = None
    # A broker closes the channel of a failed request, so each queue has its own.
    async with _connection(settings) as connection:
        try:
            messages = await connection.find(queue)
            await connection.declare(queue, arguments_of(queue, connection.server_version))
        except BrokerUnavailable as error:
            return QueueStatus(queue, messages, str(error))
    return QueueStatus(queue, messages)


async def read_members(settings: Settings) -> list[QueueMembers]:
    """Return where the copies of each queue are, from the management API.

    Raises:
        FetchFailed: the API does not answer, or not as expected.
    """
    return [await _read_members(settings, queue) for queue in _queues(settings)]


async def _read_members(settings: Settings, queue: str) -> QueueMembers:
    access = read_access(settings)
    outbound = settings.outbound.model_copy(update={"ca_file": read_ca_file(settings) or "", "proxy": ""})
    url = f"{brokers_of(settings).management_url}/api/queues/{quote(access.vhost, safe='')}/{quote(queue, safe='')}"
    answer = await RemoteClient(settings.model_copy(update={"outbound": outbound})).request(
        "GET",
        f"{url}?columns=members,online",
        headers={"authorization": "Basic " + b64encode(f"{access.user}:{access.password}".encode()).decode()},
        timeout_s=_MANAGEMENT_TIMEOUT_S,
        max_bytes=_MAX_ANSWER,
    )
    if answer.status != 200:
        raise FetchFailed(f"the management API answers {answer.status} for {queue}", status=answer.status)
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FetchFailed(f"the management API's answer for {queue} is not JSON")
    return QueueMembers(queue, _names(document, "members"), _names(document, "online"))


def _names(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = document.get(key)
    return tuple(map(str, names)) if isinstance(names, list) else ()


async def return_refused(settings: Settings) -> ReturnedBatches:
    """Put refused batches into a buffer's queue again, for a gateway to store them; damaged ones stay.

    Raises:
        BrokerUnavailable: no broker answers; nothing is lost, and it can be repeated.
    """
    # Its extra may not be installed.
    from boathook_rabbitmq.batch import UNNUMBERED, UnreadableBatch, decode_batch, encode_batch

    returned = unreadable = 0
    async with _connection(settings) as connection:
        for _ in range(await connection.find(REFUSED_QUEUE)):
            delivery = await connection.get(REFUSED_QUEUE)
            if delivery is None:
                break
            try:
                payloads = decode_batch(delivery.body).payloads
            except UnreadableBatch:
                payloads = (None,)
            whole = [payload for payload in payloads if payload is not None]
            if len(whole) < len(payloads):
                unreadable += 1  # unacknowledged, it goes back to its place when the connection closes
                continue
            await connection.publish(BUFFER_QUEUES[0], encode_batch(UNNUMBERED, 1, whole), _PUBLISH_TIMEOUT_S)
            await connection.acknowledge(delivery)
            returned += 1
    return ReturnedBatches(returned, unreadable)


@asynccontextmanager
async def _connection(settings: Settings) -> "AsyncIterator[BrokerConnection]":
    access = read_access(settings)
    # Its extra may not be installed, which read_access reports.
    from boathook_rabbitmq.connection import first_connection

    connection = await first_connection(access, purpose="admin")
    try:
        yield connection
    finally:
        await connection.close()
