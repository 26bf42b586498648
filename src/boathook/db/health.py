"""What can be read off a journal to tell how it is doing."""

from dataclasses import dataclass
from datetime import date, datetime

from boathook.db.database import Database
from boathook.db.safety import SQL as SAFETY
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class UnroutedRecipient:
    """A recipient that is owed something though no active route names it."""

    recipient: str
    number: int
    oldest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseHealth:
    """The state of a journal and its server at one moment."""

    now: datetime
    """By the server's clock."""
    version: str
    connections: int
    max_connections: int
    latest_partition: date | None
    """The Monday of the last week that has a partition; None where there is none."""
    unpartitioned_events: int
    """Events in the default partition, counted up to a thousand."""
    unrouted: tuple[UnroutedRecipient, ...]
    overdue: int
    """Deliveries due for more than a minute that nobody has taken."""
    oldest_due: datetime | None
    expired_leases: int
    """Leases that ended more than a minute ago."""
    dead: int
    snapshot_since: datetime | None
    """Since when the oldest snapshot has been held."""
    snapshot_by: str
    vacuum_blockers: tuple[str, ...]
    """Prepared transactions and idle replication slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingHealth:
    """The state of the endpoints at one moment."""

    endpoints: int
    disabled: tuple[str, ...]
    """Those that boathook has disabled by itself, the latest first; up to a thousand."""
    paused: tuple[str, ...]
    """Those whose breaker is open; up to a thousand."""
    hosts: int
    """From how many addresses processes of boathook are connected."""
    has_secrets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyHealth:
    """The server's standbys at one moment."""

    names: str
    """The setting synchronous_standby_names; empty where commits wait for none."""
    connected: int
    synchronous: int
    """Of those connected."""
    is_hidden: bool
    """Whether this role may not be told which of them are synchronous."""
    stalled: int
    """Commits of this role that have waited for one for more than three seconds."""


async def read_standby_health(database: Database) -> StandbyHealth:
    """Read how the server's standbys are."""
    row = await database.fetchrow(SQL["read_standbys"])
    assert row is not None
    safety = await database.fetchrow(SAFETY["read_safety"])
    assert safety is not None
    return StandbyHealth(names=safety["synchronous_standby_names"], stalled=safety["stalled"], **row)


async def read_sending_health(database: Database) -> SendingHealth:
    """Read how the endpoints are."""
    row = await database.fetchrow(SQL["read_sending"])
    assert row is not None
    return SendingHealth(
        endpoints=row["endpoints"],
        disabled=tuple(ids.show(ids.ENDPOINT, one) for one in row["disabled"]),
        paused=tuple(ids.show(ids.ENDPOINT, one) for one in row["paused"]),
        hosts=row["hosts"],
        has_secrets=row["has_secrets"],
    )


async def read_clock(database: Database) -> datetime:
    """Return the time on the server's clock."""
    moment: datetime = await database.fetchval(SQL["read_clock"])
    return moment


async def read_database_health(database: Database) -> DatabaseHealth:
    """Read the state of the journal; cheap, whatever the store's size."""
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
        latest_partition=partitions["latest"],
        unpartitioned_events=partitions["strays"],
        unrouted=tuple(UnroutedRecipient(**dict(row)) for row in await database.fetch(SQL["list_unrouted"])),
        overdue=backlog["overdue"],
        oldest_due=backlog["oldest_due"],
        expired_leases=backlog["abandoned"],
        dead=backlog["dead"],
        snapshot_since=snapshot["since"] if snapshot else None,
        snapshot_by=f"{snapshot['name'] or 'a session'} (pid {snapshot['pid']})" if snapshot else "",
        vacuum_blockers=tuple(row["name"] for row in await database.fetch(SQL["list_prepared"])),
    )
