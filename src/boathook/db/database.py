"""Connections to PostgreSQL: a pool with safe settings, and the check that commits on the server are durable."""

import asyncio
import contextlib
import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

import asyncpg

from boathook.db.connection import (
    DRIVER_ERRORS,
    SERVER_KEEPALIVES,
    TRANSACTION_POOLER,
    Connection,
    SafeConnection,
    connect,
    is_connection_closed,
    read_session_settings,
    reset_statements,
    retry_on_conflict,
    terminate,
    time_limit,
    translate_connect_errors,
    translate_errors,
    translate_unique_violation,
)
from boathook.db.server_monitor import (
    MAX_STALLED,
    MIN_SERVER_VERSION,
    SQL,
    NotificationCallback,
    ServerMonitor,
    assess_safety,
    describe_stall,
    heartbeat_name,
)
from boathook.db.sql_functions import REPLICATE, REPLICATE_ARGUMENTS
from boathook.domain.errors import DatabaseError, DatabaseUnavailable, DatabaseUrlRejected, UnsafeDatabase
from boathook.observability.log import get_logger

__all__ = [
    "TRANSACTION_POOLER",
    "Connection",
    "Database",
    "Record",
    "UnreachedDatabase",
    "check_safety",
    "check_usable",
    "is_connection_closed",
    "replicate_reads",
    "reset_statements",
    "translate_connect_errors",
    "translate_errors",
    "translate_unique_violation",
]

_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_RETRY_INTERVAL_S = 0.5
_TRY_LOCK = "select pg_try_advisory_lock(hashtextextended('boathook.turn:' || $1, 0))"

NO_SCANS: Final = "set local enable_seqscan = off"
_QUEUE_PLANS: Final = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
"""Vacuum shortens the empty queue to no pages, and plans made then are kept for the burst that follows. Such a plan
would scan all deliveries for each one. A generic plan is not made again for each length of a batch."""

Record = asyncpg.Record
Result = TypeVar("Result")


class Database:
    """A pool of connections to one database, for one purpose."""

    def __init__(
        self,
        url: str,
        pool: asyncpg.Pool,
        connections: "weakref.WeakSet[asyncpg.Connection]",
        *,
        purpose: str,
        wait_s: float,
        monitor: ServerMonitor,
        owns_monitor: bool,
        allow_unsafe: bool,
    ) -> None:
        self.url = url
        self.monitor = monitor
        """Whether the server responds; pools of one process may share it."""
        self._wait_s = wait_s
        self._pool = pool
        self._connections = connections
        self._purpose = purpose
        self._owns_monitor = owns_monitor
        self._allow_unsafe = allow_unsafe
        monitor.add_outage_callback(self._cut)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        purpose: str,
        size: int,
        min_size: int = 0,
        connect_timeout_s: float = 5.0,
        statement_timeout_s: float = 30.0,
        idle_in_transaction_s: float = 60.0,
        is_reset: bool = True,
        is_queue: bool = False,
        allow_unsafe: bool = False,
        monitor: ServerMonitor | None = None,
        min_timeout_s: float | None = None,
    ) -> "Database":
        """Connect to *url* with up to *size* connections, shown in PostgreSQL as ``boathook:<purpose>``.

        The server ends a session that leaves a transaction idle for *idle_in_transaction_s*, so that a frozen process
        cannot hold its locks forever. Between two uses a connection is reset, which costs a round trip. *is_reset*
        turns that off, for pools that run only boathook's own statements. *is_queue* is for pools that only claim and
        settle: their statements keep plans that look rows up in an index, whatever size the queue seems to have.

        A server that stops responding is detected within five seconds. Every connection is then closed, and callers do
        not wait for another one until the server responds again. The health check uses one extra connection, unless the
        *monitor* of another pool of this process is shared, which must be closed after this pool. *min_timeout_s* makes
        it wait longer for a busy server, for processes on which no caller's timeout depends.

        With each heartbeat the server also reports whether its commits are durable; see `unsafe_because`. With
        *allow_unsafe* its settings are ignored.

        Raises:
            DatabaseUnavailable: the server cannot be reached with this URL.
        """
        settings = {
            "application_name": f"boathook:{purpose}",
            "statement_timeout": str(int(statement_timeout_s * 1000)),
            "idle_in_transaction_session_timeout": str(int(idle_in_transaction_s * 1000)),
            "timezone": "UTC",
            "jit": "off",
            **(_QUEUE_PLANS if is_queue else {}),
            **SERVER_KEEPALIVES,
        }
        owns_monitor = monitor is None
        if monitor is None:
            name = {"application_name": heartbeat_name(purpose), **SERVER_KEEPALIVES}
            dial = functools.partial(connect, url, timeout=connect_timeout_s, server_settings=name)
            monitor = ServerMonitor(dial, purpose=purpose, max_connect_s=connect_timeout_s, min_timeout_s=min_timeout_s)
        connections: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()

        async def make(*args: Any, **options: Any) -> asyncpg.Connection:
            if monitor.level and "synchronous_commit" in settings:
                settings["synchronous_commit"] = monitor.level
            async with monitor.dialling():
                connection = await connect(*args, **options | {"server_settings": settings})
            connections.add(connection)
            return connection

        with translate_connect_errors():
            settings |= await read_session_settings(url, connect_timeout_s)
            pool = await asyncpg.create_pool(
                url,
                min_size=min_size,
                max_size=size,
                timeout=connect_timeout_s,
                # The server's own timeout should apply first; this one is for a single session that hangs.
                command_timeout=statement_timeout_s + 2,
                reset=None if is_reset else _skip_reset,
                server_settings=settings,
                connection_class=SafeConnection,
                connect=make,
            )
        if owns_monitor:
            monitor.start()
        return cls(
            url,
            pool,
            connections,
            purpose=purpose,
            wait_s=statement_timeout_s,
            monitor=monitor,
            owns_monitor=owns_monitor,
            allow_unsafe=allow_unsafe,
        )

    async def close(self) -> None:
        """Close all connections, after a short wait for those in use."""
        if self.monitor.is_unavailable:
            self._cut()
        try:
            await asyncio.wait_for(self._pool.close(), _CLOSE_TIMEOUT_S)
        except DRIVER_ERRORS:
            self._pool.terminate()
        finally:
            self.monitor.remove_outage_callback(self._cut)
            if self._owns_monitor:
                await self.monitor.stop()

    def _cut(self) -> None:
        for connection in list(self._connections):
            terminate(connection)

    @property
    def bounds(self) -> str:
        """Statements that set the limits of a transaction, whatever a pooler has changed in the session."""
        return f"set local statement_timeout = {int(self._wait_s * 1000)}; set local jit = off"

    @property
    def unsafe_because(self) -> list[str]:
        """Why the server's commits are not durable, in sentences; empty while they are."""
        return self.monitor.safety.reasons(allow_lossy=self._allow_unsafe)

    def require_safety(self) -> None:
        """Raise DatabaseUnavailable while the server may lose commits."""
        if reasons := self.unsafe_because:
            raise DatabaseUnavailable(" ".join(reasons))

    @contextlib.asynccontextmanager
    async def acquire(
        self, wait_s: float | None = None, within_s: float | None = None, *, is_commit: bool = False
    ) -> AsyncIterator[Connection]:
        """Acquire a connection; only errors of acquiring it are translated, those of its use are the driver's.

        Args:
            wait_s: how long to wait for a free connection; None: forever.
            within_s: limit for acquiring, using and releasing the connection in total; None: forever. When it expires
                the connection is closed without notifying the server, which may hang.
            is_commit: whether to do the same as soon as commits are known to wait for a synchronous standby.

        Raises:
            DatabaseUnavailable: PostgreSQL is unavailable, or the time is up; the work may have been committed. Or a
                commit was cancelled that waited for a synchronous standby: it is visible, and the standby may lack it.
        """
        async with time_limit(within_s) as connections:
            connection = await self._take(wait_s)
            connections.append(connection)
            try:
                with self.monitor.committing(connection) if is_commit else contextlib.nullcontext():
                    yield connection
                _check_replicated(connection)
            finally:
                with contextlib.suppress(*DRIVER_ERRORS):
                    await asyncio.shield(self._pool.release(connection))

    async def _take(self, wait_s: float | None) -> asyncpg.pool.PoolConnectionProxy:
        if self.monitor.safety.stalled >= MAX_STALLED:
            raise DatabaseUnavailable(describe_stall(self.monitor.safety.stalled))
        with translate_errors():
            try:
                return await self._pool.acquire(timeout=wait_s)
            except TimeoutError:
                if wait_s is None:
                    raise
                raise DatabaseUnavailable(
                    f"no free connection for {self._purpose} within {wait_s:g} s; find out what holds them"
                ) from None

    @contextlib.asynccontextmanager
    async def transaction(self, *, commit_within_s: float | None = None) -> AsyncIterator[Connection]:
        """Acquire a connection in a transaction that commits at the end and rolls back on an error.

        Args:
            commit_within_s: how long the commit may wait for a synchronous standby; None: as long as any statement.
                When it expires the connection is closed, and the server goes on waiting.

        Raises:
            DatabaseUnavailable: PostgreSQL is unavailable, or did not commit in time: it may commit later.
        """
        async with self.acquire() as connection:
            with translate_errors():
                async with contextlib.AsyncExitStack() as commit, connection.transaction():
                    yield connection
                    (await commit.enter_async_context(time_limit(commit_within_s))).append(connection)

    @contextlib.asynccontextmanager
    async def queue_transaction(self) -> AsyncIterator[Connection]:
        """Open a `transaction` whose statements look deliveries up in an index, as on a pool with *is_queue*."""
        async with self.transaction() as connection:
            await connection.execute(NO_SCANS)
            yield connection

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Acquire a connection whose statements all read the same state of the database, and cannot write."""
        async with self.acquire() as connection:
            with translate_errors():
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    yield connection

    @contextlib.asynccontextmanager
    async def user_transaction(self) -> AsyncIterator[Connection]:
        """Acquire a connection in a transaction for code that is not part of boathook.

        It differs from `transaction` in two ways. Of the errors that the code raises, only the driver's are translated.
        If PostgreSQL has aborted the transaction because of an error that the code ignored, it does not count as
        committed.

        Blocks that each hold one connection and need another could deadlock on the pool, so acquiring one waits no
        longer than the statement timeout.

        Raises:
            DatabaseError: a statement failed, or the transaction could not be committed.
        """
        async with self.acquire(self._wait_s) as connection:
            with translate_errors():
                await connection.execute("begin")
            try:
                yield connection
            except BaseException as error:
                with contextlib.suppress(*DRIVER_ERRORS):
                    await connection.execute("rollback")
                if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
                    with translate_errors():
                        raise
                raise
            with translate_errors():
                tag = await connection.execute("commit")
            if tag != "COMMIT":
                raise DatabaseError("a statement of this transaction had failed before, so nothing of it was committed")

    async def fetch(self, sql: str, *args: Any) -> list[Record]:
        """Run one statement and return its rows."""
        rows: list[Record] = await self._run(lambda connection: connection.fetch(sql, *args))
        return rows

    async def fetchrow(self, sql: str, *args: Any) -> Record | None:
        """Run one statement and return its first row, if any."""
        return await self._run(lambda connection: connection.fetchrow(sql, *args))

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run one statement and return the first column of its first row."""
        return await self._run(lambda connection: connection.fetchval(sql, *args))

    async def execute(self, sql: str, *args: Any) -> str:
        """Run one statement and return its command tag, such as ``UPDATE 3``."""
        tag: str = await self._run(lambda connection: connection.execute(sql, *args))
        return tag

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement once for each row, in one transaction."""
        await self._run(lambda connection: connection.executemany(sql, rows))

    async def _run(self, statement: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run one statement; retry it if PostgreSQL rolled it back in a conflict."""

        async def once() -> Result:
            async with self.acquire() as connection:
                with translate_errors():
                    return await statement(connection)

        return await retry_on_conflict(once)

    async def ping(self) -> None:
        """Raise DatabaseError if PostgreSQL does not respond."""
        await self.fetchval("select 1")

    async def listen(
        self, channel: str, callback: NotificationCallback, on_listening: Callable[[], None] = lambda: None
    ) -> None:
        """Call *callback* with the payload of each notification while this database is open.

        A lost connection is reopened automatically. Notifications sent meanwhile are lost, so a notification is only a
        hint, and callers must poll too. *on_listening* is called whenever notifications begin to arrive.
        """
        self.monitor.listen(channel, callback, on_listening)


class UnreachedDatabase(Database):
    """Stands in for a database that has not been reached yet: each use raises DatabaseUnavailable."""

    def __init__(self) -> None:
        """Create it without a pool."""

    def require_safety(self) -> None:
        """Raise DatabaseUnavailable."""
        raise DatabaseUnavailable("PostgreSQL has not been reached yet")

    @contextlib.asynccontextmanager
    async def acquire(
        self,
        wait_s: float | None = None,  # noqa: ARG002 - the signature is inherited
        within_s: float | None = None,  # noqa: ARG002 - the same
        *,
        is_commit: bool = False,  # noqa: ARG002 - the same
    ) -> AsyncIterator[Connection]:
        """Raise DatabaseUnavailable."""
        self.require_safety()
        yield cast("Connection", None)


@contextlib.asynccontextmanager
async def try_advisory_lock(database: Database, name: str) -> AsyncIterator[Connection | None]:
    """Acquire the lock of *name* and yield the connection that holds it, or None if another process holds the lock.

    At most one process, over all hosts, holds it. The lock lasts as long as the connection.

    Raises:
        DatabaseError: PostgreSQL is unavailable or aborted the statement.
    """
    async with database.acquire() as connection:
        with translate_errors():
            is_ours = await connection.fetchval(_TRY_LOCK, name)
        yield connection if is_ours else None


async def replicate_reads(connection: Connection) -> None:
    """Make the commit of a transaction wait for a synchronous standby, even if it only read data; see `REPLICATE`."""
    await connection.execute(REPLICATE.literal(REPLICATE_ARGUMENTS))


@contextlib.asynccontextmanager
async def wait_for_database(
    stop: asyncio.Event, dial: Callable[[], Awaitable[Database]]
) -> AsyncIterator[Database | None]:
    """Yield the database that *dial* opens, retrying until PostgreSQL is available; None if *stop* is set first."""
    database = await _wait_for_database(stop, dial)
    try:
        yield database
    finally:
        if database is not None:
            await database.close()


async def _wait_for_database(stop: asyncio.Event, dial: Callable[[], Awaitable[Database]]) -> Database | None:
    is_logged = False
    while not stop.is_set():
        try:
            return await dial()
        except DatabaseUnavailable as error:
            if not is_logged:
                get_logger("db").warning("postgresql_awaited", error=str(error))
                is_logged = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_INTERVAL_S):
                await stop.wait()
    return None


async def _skip_reset(_connection: object) -> None:
    """Do not reset the connection."""


def _check_replicated(connection: Connection) -> None:
    if getattr(connection, "is_unreplicated", False):
        terminate(connection)
        raise DatabaseUnavailable(
            "a commit was cancelled while it waited for a synchronous standby: it is done, but the standby may lack it"
        )


async def check_safety(database: Database, *, allow_unsafe: bool = False) -> list[str]:
    """Return why the server is unsafe, in sentences; raise an error unless *allow_unsafe*.

    Raises:
        UnsafeDatabase: as `check_usable` does, or the server could lose committed data.
        DatabaseUnavailable: as `check_usable` does.
    """
    assessment = assess_safety(await check_usable(database.url))
    if (assessment.lossy or assessment.weak) and not allow_unsafe:
        sentences = " ".join([*assessment.lossy, *assessment.weak])
        raise UnsafeDatabase(f"{sentences} To run all the same, set database.allow_unsafe = true.")
    return [*assessment.lossy, *assessment.weak]


async def check_usable(url: str) -> Record:
    """Return the server's properties in a default session, such as the handlers' own sessions.

    Raises:
        UnsafeDatabase: the server is too old, or the database's encoding lacks characters that events contain.
        DatabaseUrlRejected: the server is a standby, possibly during its promotion; or a pooler in between gives each
            transaction another session.
        DatabaseUnavailable: the server cannot be reached, or the database is read-only.
    """
    row = await _read_server(url)
    if row["version_number"] < MIN_SERVER_VERSION:
        raise UnsafeDatabase(
            f"PostgreSQL {row['version']} is too old: boathook needs version 14 or later. Upgrade the server."
        )
    if row["encoding"] != "UTF8":
        raise UnsafeDatabase(
            f"the database {row['database']!r} has the encoding {row['encoding']}, so it cannot store every event."
            " Create another one and name it in database.url:"
            " create database boathook template template0 encoding 'UTF8' locale 'C'"
        )
    if row["is_standby"]:
        raise DatabaseUrlRejected(
            "database.url names a standby, which cannot be written to. Use the primary's address."
        )
    if (reason := assess_safety(row).read_only) is not None:
        raise DatabaseUnavailable(reason)
    return row


async def _read_server(url: str) -> Record:
    """Return the server's properties; raise DatabaseUrlRejected if two connections get one session."""
    async with contextlib.AsyncExitStack() as stack:
        with translate_connect_errors():
            first, second = [await _open_default(url, stack) for _ in range(2)]
            row = await first.fetchrow(SQL["read_safety"])
            assert row is not None  # the query has no condition
            for _ in range(_MAX_PROBES):
                if await second.fetchval(_READ_PID) == row["pid"] or await first.fetchval(_READ_PID) != row["pid"]:
                    raise DatabaseUrlRejected(TRANSACTION_POOLER)
    return row


async def _open_default(url: str, stack: contextlib.AsyncExitStack) -> Connection:
    connection = await connect(url, timeout=_CONNECT_TIMEOUT_S, command_timeout=_CONNECT_TIMEOUT_S)
    stack.push_async_callback(connection.close, timeout=_CONNECT_TIMEOUT_S)
    return connection


_READ_PID = "select pg_backend_pid()"
_MAX_PROBES = 3
"""How often two connections are compared: a busy pooler may give them different sessions by chance."""
