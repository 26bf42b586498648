"""Stores endpoints: the URL, settings and secrets for sending an application's messages.

Each change increases the endpoint's revision. A change of the messages that it receives also increases the
application's `routes_version` in the same transaction, so that neither senders nor publishers use outdated settings.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db.applications import PageRequest, bump_routes_version
from boathook.db.database import Connection, Record, translate_unique_violation
from boathook.db.statements import load, with_direction
from boathook.domain import ids
from boathook.domain.endpoints import DEFAULT_DESTINATION, RECIPIENT, parse_reference, recipient_of
from boathook.domain.errors import AlreadyExists
from boathook.domain.policy import RetryPolicy

_UID_TAKEN: Final = "another endpoint of the application has this uid"
_ROUTING_FIELDS: Final = ("event_types", "channels", "filter", "order_by", "is_disabled")
_RETRY = msgspec.json.Decoder(RetryPolicy)


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an endpoint that are stored as they are given."""

    url: str
    description: str = ""
    uid: str | None = None
    """The application's own id for it, unique there."""
    event_types: Sequence[str] | None = None
    """Names of event types, or patterns with ``*``; None: all."""
    channels: Sequence[str] | None = None
    """Only messages that share one of them; None: all."""
    filter: Mapping[str, Any] | None = None
    """See `boathook.domain.filters`."""
    order_by: str | None = None
    """A dotted path into the payload; messages with the same value there are sent in order. ``*``: all messages."""
    throttle_rate: int | None = None
    """Maximum messages per second; None: the application's setting."""
    concurrency: int | None = None
    """Maximum concurrent requests; None: the configured default."""
    timeout_s: float | None = None
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    api_version: int = 1
    is_disabled: bool = False


class Endpoint(EndpointSettings, frozen=True, kw_only=True):
    """A destination of an application's messages."""

    id: UUID
    application_id: UUID
    imported_id: str | None = None
    """Its id on the server that it was imported from, unique in the application; also a name of it."""
    retry_name: str | None = None
    """The name of the preset in `retry`, if it is one."""
    retry: RetryPolicy | None = None
    """None: the configured default."""
    encrypted_headers: bytes | None = None
    encrypted_auth: bytes | None = None
    destination: str = DEFAULT_DESTINATION
    """The kind of its destination."""
    destination_fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The fields of the kind, without those that are secrets."""
    encrypted_destination: bytes | None = None
    disabled_because: str | None = None
    """``manual``, ``gone`` or ``failing``."""
    disabled_at: datetime | None = None
    revision: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.ENDPOINT, self.id)

    @property
    def recipient(self) -> str:
        """The recipient of its deliveries."""
        return recipient_of(self.shown_id)


_WRITTEN: Final = [name for name in Endpoint.__struct_fields__ if name not in {"revision", "created_at", "updated_at"}]
_KEYS: Final = ("id", "application_id")
_COLUMNS: Final = (*_KEYS, *(name for name in _WRITTEN if name not in _KEYS))
_JSON_COLUMNS: Final = frozenset({"filter", "retry", "metadata", "destination_fields"})


def _fill(statement: str) -> str:
    parameters = ", ".join(f"${number}" for number in range(1, len(_COLUMNS) + 1))
    return statement.replace("{columns}", ", ".join(_COLUMNS)).replace("{parameters}", parameters)


SQL = {name: _fill(statement) for name, statement in load(__file__).items()}


class DisabledEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that was just disabled, and its owner."""

    organization: str
    application_id: UUID
    application_uid: str | None
    is_operational: bool
    """Whether it receives operational webhooks; its own disabling is not published."""
    endpoint_id: UUID
    endpoint_uid: str | None


async def insert(connection: Connection, endpoint: Endpoint) -> Endpoint:
    """Store an endpoint. Raises AlreadyExists if its uid is in use; the transaction can go on then."""
    row = await connection.fetchrow(SQL["insert_endpoint"], *_columns(endpoint))
    if row is None:
        raise AlreadyExists(_UID_TAKEN)
    await bump_routes_version(connection, endpoint.application_id)
    return _endpoint(row)


async def measure_routing(connection: Connection, application_id: UUID) -> tuple[int, int]:
    """Return the number of an application's endpoints, and the bytes of their event types, channels and filters."""
    (row,) = await connection.fetch(SQL["measure_endpoints"], application_id)
    return row["number"], row["bytes"]


async def find(connection: Connection, application_id: UUID, reference: str) -> Endpoint | None:
    """Return an application's endpoint by id, uid or imported id."""
    return await _find("find_endpoint", connection, application_id, reference)


async def lock(connection: Connection, application_id: UUID, reference: str) -> Endpoint | None:
    """Return an application's endpoint by id, uid or imported id, locked for an update in this transaction."""
    return await _find("lock_endpoint", connection, application_id, reference)


async def _find(statement: str, connection: Connection, application_id: UUID, reference: str) -> Endpoint | None:
    names = parse_reference(ids.ENDPOINT, reference)
    row = await connection.fetchrow(SQL[statement], application_id, *names) if names else None
    return None if row is None else _endpoint(row)


async def save(connection: Connection, before: Endpoint, after: Endpoint) -> Endpoint:
    """Store an endpoint's changed fields as its next revision. Raises AlreadyExists if the uid is in use."""
    with translate_unique_violation(_UID_TAKEN):
        row = await connection.fetchrow(SQL["save_endpoint"], *_columns(after))
    if any(getattr(before, name) != getattr(after, name) for name in _ROUTING_FIELDS):
        await bump_routes_version(connection, after.application_id)
    return _endpoint(row)


async def set_imported_id(connection: Connection, id: UUID, imported_id: str) -> None:
    """Store an endpoint's id on the server that it was imported from. Raises AlreadyExists if another has it."""
    with translate_unique_violation("another endpoint of the application has this imported id"):
        await connection.execute(SQL["set_imported_id"], id, imported_id)


async def list_page(connection: Connection, application_id: UUID, window: PageRequest) -> list[Endpoint]:
    """Return a page of an application's endpoints, in the order of the window."""
    sql = with_direction(SQL["list_endpoints"], is_ascending=window.is_ascending)
    rows = await connection.fetch(sql, application_id, window.bound, window.limit)
    return [_endpoint(row) for row in rows]


async def delete(connection: Connection, endpoint: Endpoint) -> None:
    """Mark an endpoint as deleted; its uid becomes free, and the keeper dead-letters its pending deliveries."""
    await connection.execute(SQL["delete_endpoint"], endpoint.application_id, endpoint.id)
    await bump_routes_version(connection, endpoint.application_id)


async def disable(connection: Connection, endpoint_id: UUID, because: str, at: datetime) -> DisabledEndpoint | None:
    """Disable an enabled endpoint; return None if it is not enabled.

    Args:
        connection: inside a transaction.
        endpoint_id: the endpoint.
        because: ``manual``, ``gone`` or ``failing``.
        at: the time from which it counts as disabled.
    """
    row = await connection.fetchrow(SQL["disable_endpoint"], endpoint_id, because, at)
    return None if row is None else DisabledEndpoint(**row)


async def reset_failures(connection: Connection, endpoint_id: UUID) -> None:
    """Reset an endpoint's failures and pauses."""
    await connection.execute(SQL["forget_failures"], endpoint_id)


async def probe(connection: Connection, recipients: Collection[str], first: tuple[UUID, int] | None = None) -> None:
    """Let those of these recipients that are paused endpoints be probed once the caller's transaction commits.

    Args:
        connection: inside a transaction.
        recipients: of deliveries that an operator has made due.
        first: the delivery that is sent as the probe; None sends the one that has been due for longest.
    """
    endpoints = sorted({recipient for recipient in recipients if recipient.startswith(RECIPIENT)})
    if not endpoints:
        return
    if first is not None:
        await connection.execute(SQL["put_first"], *first)
    await connection.execute(SQL["allow_probes"], endpoints)


async def cancel_pending(connection: Connection, endpoint: Endpoint, reason: str) -> int:
    """Dead-letter an endpoint's pending deliveries with the code CANCELED; return the number."""
    tag = await connection.execute(SQL["cancel_backlog"], endpoint.recipient, reason)
    return int(tag.rpartition(" ")[2])


async def add_secret(connection: Connection, endpoint_id: UUID, encrypted: bytes) -> None:
    """Store an endpoint's first secret."""
    await connection.execute(SQL["insert_secret"], endpoint_id, encrypted)


async def replace_secret(connection: Connection, endpoint_id: UUID, encrypted: bytes, grace: timedelta) -> None:
    """Store an endpoint's next secret; the current one keeps signing for *grace*."""
    await connection.execute(SQL["delete_old_secrets"], endpoint_id)
    await connection.execute(SQL["retire_secret"], endpoint_id, grace)
    await connection.execute(SQL["insert_secret"], endpoint_id, encrypted)


async def find_secret(connection: Connection, endpoint_id: UUID) -> bytes | None:
    """Return an endpoint's current secret, encrypted."""
    encrypted: bytes | None = await connection.fetchval(SQL["find_secret"], endpoint_id)
    return encrypted


async def count_old_secrets(connection: Connection, endpoint_id: UUID) -> tuple[int, datetime | None]:
    """Return how many former secrets of an endpoint still sign, and when the first of them expires."""
    row = await connection.fetchrow(SQL["count_old_secrets"], endpoint_id)
    assert row is not None
    return row["number"], row["next_end"]


def _columns(endpoint: Endpoint) -> tuple[Any, ...]:
    values = ((name, getattr(endpoint, name)) for name in _COLUMNS)
    return tuple(_dump(value) if name in _JSON_COLUMNS else value for name, value in values)


def _dump(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


_PLAIN_COLUMNS: Final = [
    name for name in Endpoint.__struct_fields__ if name not in {"event_types", "channels"} | _JSON_COLUMNS
]


def _endpoint(row: Record | None) -> Endpoint:
    assert row is not None
    return Endpoint(
        **{name: row[name] for name in _PLAIN_COLUMNS},
        event_types=None if row["event_types"] is None else tuple(row["event_types"]),
        channels=None if row["channels"] is None else tuple(row["channels"]),
        filter=None if row["filter"] is None else msgspec.json.decode(row["filter"]),
        retry=None if row["retry"] is None else _RETRY.decode(row["retry"]),
        metadata=msgspec.json.decode(row["metadata"]),
        destination_fields=msgspec.json.decode(row["destination_fields"]),
    )
