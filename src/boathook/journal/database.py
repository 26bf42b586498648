"""Connections to PostgreSQL: a pool with safe settings, and the check that its word can be relied on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import asyncpg

from boathook.domain.errors import JournalError, JournalUnavailable, Taken, UnsafeDatabase
from boathook.telemetry.log import get_logger

OLDEST_SERVER = 140000
DUE_CHANNEL = "boathook_due"

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Record = asyncpg.Record

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server's last word came just as something was being sent
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.QueryCanceledError,
    asyncpg.DiskFullError,
)
"""What a server that is down, hanging, full or starting raises: worth trying again later, unchanged."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into `JournalUnavailable` and `JournalError`; others pass."""
    try:
        yield
    except _AWAY as error:
        raise JournalUnavailable(_sentence(error)) from error
    except asyncpg.PostgresError as error:
        raise JournalError(_sentence(error)) from error


@contextlib.contextmanager
def dialled() -> Iterator[None]:
    """Turn what keeps a connection from being made into `JournalUnavailable`, which names the setting and the fix."""
    try:
        with translated():
            yield
    except ValueError as error:
        raise JournalUnavailable(f"database.url cannot be used: {_sentence(error)}") from error
    except JournalUnavailable as error:
        raise JournalUnavailable(_say_where(error)) from error.__cause__


def _say_where(error: JournalUnavailable) -> str:
    match error.__cause__:
        case asyncpg.ClientConfigurationError():
            return f"database.url cannot be used: {error}"
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidCatalogNameError():
            return f"PostgreSQL refuses database.url: {error}; correct its user, password or database"
        case asyncpg.PostgresError():
            return f"PostgreSQL at database.url takes no connection: {error}"
        case _:
            return f"PostgreSQL at database.url cannot be reached: {error}; start the server, or correct database.url"


@contextlib.contextmanager
def unique(message: str, kind: str = "conflict") -> Iterator[None]:
    """Raise `Taken` with *message* where a unique index refuses what is written."""
    try:
        yield
    except asyncpg.UniqueViolationError:
        raise Taken(message, kind) from None


def _sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def is_gone(connection: Connection) -> bool:
    """Return whether a connection has ended, so that nothing can be done with it."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken back what was lost
        return True


@contextlib.asynccontextmanager
async def _time_limit(seconds: float | None) -> AsyncIterator[list[Connection]]:
    """Cut the connections that the block puts into the list, and break the block off, when its time is up.

    The cut comes before the breaking off: a statement that is cancelled alone makes the driver ask the server to give
    it up and wait for the answer, and a transaction would be rolled back in the same vain hope.
    """
    lent: list[Connection] = []
    if seconds is None:
        yield lent
        return
    loop = asyncio.get_running_loop()
    block = asyncio.timeout(None)
    is_over = False

    def cut() -> None:
        nonlocal is_over
        is_over = True
        for connection in lent:
            with contextlib.suppress(asyncpg.InterfaceError):  # lost and taken back already
                connection.terminate()
        block.reschedule(loop.time())

    fuse = loop.call_later(seconds, cut)
    try:
        async with block:
            yield lent
    except (JournalError, asyncpg.PostgresError, *_AWAY) as error:
        if not is_over:
            raise
        raise JournalUnavailable(f"PostgreSQL did not answer within {seconds:g} s") from error
    finally:
        fuse.cancel()


class Database:
    """A pool of connections to one database, for one purpose."""

    def __init__(self, url: str, pool: asyncpg.Pool, purpose: str, wait_s: float) -> None:
        self.url = url
        self._wait_s = wait_s
        self._pool = pool
        self._purpose = purpose
        self._listeners: list[asyncio.Task[None]] = []

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
    ) -> "Database":
        """Connect to *url* with up to *size* connections, shown to PostgreSQL as ``boathook:<purpose>``.

        A session that leaves a transaction idle for *idle_in_transaction_s* is ended by the server, so that a
        frozen process cannot hold its locks for ever. Between two uses a connection is reset, which costs a round
        trip; without *is_reset* it is not, which is for pools that run boathook's own statements only.

        Raises:
            JournalUnavailable: the server cannot be reached with this URL.
        """
        settings = {
            "application_name": f"boathook:{purpose}",
            "statement_timeout": str(int(statement_timeout_s * 1000)),
            "idle_in_transaction_session_timeout": str(int(idle_in_transaction_s * 1000)),
            "timezone": "UTC",
            "jit": "off",
        }
        with dialled():
            settings |= await _make_durable(url, connect_timeout_s)
            pool = await asyncpg.create_pool(
                url,
                min_size=min_size,
                max_size=size,
                timeout=connect_timeout_s,
                # The server's own limit should be the one that is met; this is for a server that hangs.
                command_timeout=statement_timeout_s + 2,
                reset=None if is_reset else _leave_as_it_is,
                server_settings=settings,
            )
        return cls(url, pool, purpose, statement_timeout_s)

    async def close(self) -> None:
        """Stop listening and close every connection, waiting briefly for those in use."""
        for task in self._listeners:
            task.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except (TimeoutError, *_AWAY):
            self._pool.terminate()

    @contextlib.asynccontextmanager
    async def acquire(self, wait_s: float | None = None, within_s: float | None = None) -> AsyncIterator[Connection]:
        """Lend a connection; only getting it is translated, what is done with it raises as the driver does.

        Args:
            wait_s: how long to wait for one that is in use to be given back; None: for ever.
            within_s: how long the whole use may take, the getting, what is done and the giving back; None: for ever.
                When it is over the connection is cut, without a word to a server that may not be listening.

        Raises:
            JournalUnavailable: PostgreSQL is away, or the time was up; what was under way may be committed.
        """
        async with _time_limit(within_s) as lent:
            connection = await self._take(wait_s)
            lent.append(connection)
            try:
                yield connection
            finally:
                with contextlib.suppress(*_AWAY):
                    await asyncio.shield(self._pool.release(connection))

    async def _take(self, wait_s: float | None) -> Connection:
        with translated():
            try:
                return await self._pool.acquire(timeout=wait_s)
            except TimeoutError:
                if wait_s is None:
                    raise
                raise JournalUnavailable(
                    f"no connection for {self._purpose} was to be had within {wait_s:g} s; what holds them all?"
                ) from None

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Lend a connection inside a transaction that commits at the end and rolls back on an error."""
        async with self.acquire() as connection:
            with translated():
                async with connection.transaction():
                    yield connection

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """Lend a transaction to code that is not boathook's.

        It differs from `transaction` in two ways: of what that code raises only the driver's errors are translated,
        and a transaction that PostgreSQL has given up, by an error which that code has swallowed, is not taken for
        committed.

        Blocks that hold all connections and want another would wait for each other, so nobody waits for one longer
        than a statement may take.

        Raises:
            JournalError: a statement failed, or the transaction could not be committed.
        """
        async with self.acquire(self._wait_s) as connection:
            with translated():
                await connection.execute("begin")
            try:
                yield connection
            except BaseException as error:
                with contextlib.suppress(*_AWAY, asyncpg.PostgresError):
                    await connection.execute("rollback")
                if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
                    with translated():
                        raise
                raise
            with translated():
                tag = await connection.execute("commit")
            if tag != "COMMIT":
                raise JournalError("a statement of this transaction had failed before, so nothing of it was committed")

    async def fetch(self, sql: str, *args: Any) -> list[Record]:
        """Run one statement and return its rows."""
        with translated():
            rows: list[Record] = await self._pool.fetch(sql, *args)
            return rows

    async def fetchrow(self, sql: str, *args: Any) -> Record | None:
        """Run one statement and return its first row, if any."""
        with translated():
            return await self._pool.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run one statement and return the first column of its first row."""
        with translated():
            return await self._pool.fetchval(sql, *args)

    async def execute(self, sql: str, *args: Any) -> str:
        """Run one statement and return its command tag, such as ``UPDATE 3``."""
        with translated():
            tag: str = await self._pool.execute(sql, *args)
            return tag

    async def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement once for each row, in one transaction."""
        with translated():
            await self._pool.executemany(sql, rows)

    async def listen(self, channel: str, callback: Callable[[str], None]) -> None:
        """Call *callback* with the payload of each notification, for as long as this database is open.

        A lost connection is made again by itself; what was announced meanwhile is not repeated, so a
        notification is a hint and polling stays the truth.
        """
        self._listeners.append(asyncio.create_task(self._listen(channel, callback), name=f"listen:{channel}"))

    async def _listen(self, channel: str, callback: Callable[[str], None]) -> None:
        def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            callback(str(payload))

        while True:
            try:
                connection = await asyncpg.connect(
                    self.url, timeout=5, server_settings={"application_name": f"boathook:{self._purpose}:listen"}
                )
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
                try:
                    await connection.add_listener(channel, heard)
                    await lost.wait()
                finally:
                    with contextlib.suppress(*_AWAY):
                        await asyncio.shield(connection.close(timeout=1))
            except (*_AWAY, asyncpg.PostgresError) as error:
                get_logger("journal").debug("listen_interrupted", channel=channel, error=_sentence(error))
            await asyncio.sleep(1)


async def _make_durable(url: str, timeout_s: float) -> dict[str, str]:
    """Return the settings by which sessions on this server commit durably, and compress bodies with lz4 if it can.

    They belong into the start of a session: what is set later, a reset takes back. A role that bears the name of
    boathook's schema would find it in front of its own tables, so it gets a search path without it.
    """
    # A server may fall silent at any moment, and whoever opens a pool may be what all others wait for.
    connection = await asyncpg.connect(url, timeout=timeout_s, command_timeout=timeout_s)
    try:
        rows = await connection.fetch("""
            select name, 'on' as value from pg_settings
            where name = 'synchronous_commit' and setting in ('off', 'local', 'remote_write')
            union all
            select name, 'lz4' from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals)
            union all
            select name, 'public' from pg_settings
            where name = 'search_path' and setting = '"$user", public' and current_user = 'boathook'
        """)
        return {row["name"]: row["value"] for row in rows}
    finally:
        await connection.close(timeout=timeout_s)


async def _leave_as_it_is(_connection: object) -> None:
    """Reset nothing."""


async def check_safety(database: Database, *, allow_unsafe: bool = False) -> list[str]:
    """Return what is unsafe about the server, in sentences; refuse it unless *allow_unsafe*.

    Raises:
        UnsafeDatabase: the server is too old, or could lose what it said it had committed.
    """
    value = await _read_server(database.url)
    if int(value["server_version_num"]) < OLDEST_SERVER:
        raise UnsafeDatabase(
            f"PostgreSQL {value['server_version']} is too old: boathook needs version 14 or later. Upgrade the server."
        )
    found = [
        f"{name} is off on this server, so it can lose events after boathook has answered 2xx. {cure}"
        for name, cure in _CURES.items()
        if value[name] == "off"
    ]
    if await database.fetchval("select pg_is_in_recovery()"):
        raise UnsafeDatabase("database.url names a standby, which cannot be written to. Use the primary's address.")
    if found and not allow_unsafe:
        raise UnsafeDatabase(f"{' '.join(found)} To run all the same, set database.allow_unsafe = true.")
    return found


async def _read_server(url: str) -> dict[str, str]:
    """Return what the server gives a session that asks for nothing, as handlers' own sessions do."""
    with dialled():
        connection = await asyncpg.connect(url, timeout=10)
        try:
            rows = await connection.fetch("select name, setting from pg_settings where name = any ($1)", _TELLING)
            return {row["name"]: row["setting"] for row in rows}
        finally:
            await connection.close()


_TELLING = ["server_version_num", "server_version", "fsync", "full_page_writes", "synchronous_commit"]
_CURES = {
    "fsync": "Set fsync = on in postgresql.conf and restart it.",
    "full_page_writes": "Set full_page_writes = on in postgresql.conf and reload it.",
    "synchronous_commit": "Set synchronous_commit = on in postgresql.conf, for the role and for the database.",
}
