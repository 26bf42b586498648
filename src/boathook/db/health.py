"""Reads the health of the database, its server, standbys and endpoints, and says whether it can be used."""

import asyncio
from datetime import date, datetime
from typing import Final

import msgspec

from boathook.db.database import Database, translate_errors
from boathook.db.migrations import connected, list_pending
from boathook.db.server_monitor import SQL as SERVER_STATEMENTS
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.errors import BoathookError

SQL = load(__file__)
CHECK_TIMEOUT_S: Final = 5.0
NOT_REACHED: Final = "PostgreSQL has not been reached yet"


class UnroutedRecipient(msgspec.Struct, frozen=True):
    """A recipient with unfinished deliveries but no active route."""

    recipient: str
    number: int
    oldest: datetime


class DatabaseHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the database and its server."""

    now: datetime
    """The server's time."""
    version: str
    connections: int
    max_connections: int
    wal_compression: str
    has_lz4: bool
    """Whether the server can compress its write-ahead log with lz4."""
    latest_partition: date | None
    """The Monday of the last week that has a partition; None if there is none."""
    unpartitioned_events: int
    """Events in the default partition, counted up to a thousand."""
    unrouted: tuple[UnroutedRecipient, ...]
    overdue: int
    """Deliveries that have been due for more than a minute."""
    oldest_due: datetime | None
    expired_leases: int
    """Leases that expired more than a minute ago."""
    dead: int
    snapshot_since: datetime | None
    """Start of the oldest open snapshot."""
    snapshot_by: str
    vacuum_blockers: tuple[str, ...]
    """Prepared transactions and idle replication slots."""


class SendingHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the endpoints."""

    endpoints: int
    disabled: tuple[str, ...]
    """Endpoints that boathook has disabled automatically, latest first; up to a thousand."""
    paused: tuple[str, ...]
    """Endpoints whose circuit breaker is open; up to a thousand."""
    hosts: int
    """Number of addresses from which boathook processes are connected."""
    has_secrets: bool


class StandbyHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server's standbys."""

    names: str
    """The setting synchronous_standby_names; empty if commits wait for no standby."""
    connected: int
    synchronous: int
    """How many of the connected ones are synchronous."""
    is_hidden: bool
    """Whether this role lacks the permission to see which of them are synchronous."""
    stalled: int
    """Commits of this role that have waited for a standby for more than three seconds."""


async def read_standby_health(database: Database) -> StandbyHealth:
    """Read the state of the server's standbys."""
    row = await database.fetchrow(SQL["read_standbys"])
    assert row is not None
    safety = await database.fetchrow(SERVER_STATEMENTS["read_safety"])
    assert safety is not None
    return StandbyHealth(names=safety["synchronous_standby_names"], stalled=safety["stalled"], **row)


async def read_sending_health(database: Database) -> SendingHealth:
    """Read the state of the endpoints."""
    row = await database.fetchrow(SQL["read_sending"])
    assert row is not None
    return SendingHealth(
        endpoints=row["endpoints"],
        disabled=tuple(ids.show(ids.ENDPOINT, endpoint_id) for endpoint_id in row["disabled"]),
        paused=tuple(ids.show(ids.ENDPOINT, endpoint_id) for endpoint_id in row["paused"]),
        hosts=row["hosts"],
        has_secrets=row["has_secrets"],
    )


async def read_clock(database: Database) -> datetime:
    """Return the server's time."""
    now: datetime = await database.fetchval(SQL["read_clock"])
    return now


async def read_database_health(database: Database) -> DatabaseHealth:
    """Read the state of the database; fast whatever the size of the store."""
    server = await database.fetchrow(SQL["read_server"])
    partitions = await database.fetchrow(SQL["read_partitions"])
    backlog = await database.fetchrow(SQL["read_backlog"])
    assert server is not None  # each of the three has exactly one row
    assert partitions is not None
    assert backlog is not None
    snapshot = await database.fetchrow(SQL["read_oldest_snapshot"])
    return DatabaseHealth(
        now=await read_clock(database),
        version=server["version"],
        connections=server["used"],
        max_connections=server["most"],
        wal_compression=server["wal_compression"],
        has_lz4=server["has_lz4"],
        latest_partition=partitions["latest"],
        unpartitioned_events=partitions["unpartitioned"],
        unrouted=tuple(UnroutedRecipient(**dict(row)) for row in await database.fetch(SQL["list_unrouted"])),
        overdue=backlog["overdue"],
        oldest_due=backlog["oldest_due"],
        expired_leases=backlog["abandoned"],
        dead=backlog["dead"],
        snapshot_since=snapshot["since"] if snapshot else None,
        snapshot_by=f"{snapshot['name'] or 'a session'} (pid {snapshot['pid']})" if snapshot else "",
        vacuum_blockers=tuple(row["name"] for row in await database.fetch(SQL["list_prepared"])),
    )


class ConnectionLimit(msgspec.Struct, frozen=True):
    """The lowest limit of the connections that a role may open."""

    name: str
    """What sets it, such as ``max_connections of the server``."""
    number: int


async def read_connection_limit(url: str) -> ConnectionLimit:
    """Read the lowest limit of connections to the database at a URL. Raises DatabaseUnavailable."""
    async with connected(url) as connection:
        with translate_errors():
            row = await connection.fetchrow(SQL["read_connection_limits"])
    assert row is not None  # the server's own limit is always there
    return ConnectionLimit(row["name"], row["number"])


async def database_problems(database: Database) -> list[str]:
    """Return the reasons why the database cannot be used, in sentences."""
    try:
        missing = await asyncio.wait_for(list_pending(database), CHECK_TIMEOUT_S)
    except (BoathookError, TimeoutError) as error:
        return [f"PostgreSQL does not answer: {str(error) or type(error).__name__}"]
    if missing:
        return [f"the schema lacks {', '.join(missing)}; run boathook migrate"]
    return database.unsafe_because
