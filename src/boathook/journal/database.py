"""Connections to PostgreSQL: a pool with safe settings, and the check that its word can be relied on."""

import asyncio
import contextlib
import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from boathook.domain.errors import AddressRefused, JournalError, JournalUnavailable, UnsafeDatabase
from boathook.journal.calls import REPLICATE, REPLICATE_ARGUMENTS
from boathook.journal.connection import SERVER_SIDE, Session, connect, reset_all
from boathook.journal.outages import (
    TROUBLE,
    Connection,
    cut,
    dialled,
    is_gone,
    run_again,
    time_limit,
    translated,
    unique,
)
from boathook.journal.pulse import Heard, Pulse
from boathook.journal.safety import MOST_STALLED, OLDEST_SERVER, SQL, judge, stall
from boathook.telemetry.log import get_logger

__all__ = [
    "Connection",
    "Database",
    "Record",
    "check_safety",
    "dialled",
    "is_gone",
    "reached",
    "replicate_reads",
    "reset_all",
    "translated",
    "unique",
]

DUE_CHANNEL = "boathook_due"
_CONNECT_S = 10.0
_CLOSE_S = 5.0
_AGAIN_S = 0.5

Record = asyncpg.Record
Result = TypeVar("Result")


class Database:
    """A pool of connections to one database, for one purpose."""

    def __init__(
        self,
        url: str,
        pool: asyncpg.Pool,
        made: "weakref.WeakSet[asyncpg.Connection]",
        *,
        purpose: str,
        wait_s: float,
        pulse: Pulse,
        owns_pulse: bool,
        allow_unsafe: bool,
    ) -> None:
        self.url = url
        self.pulse = pulse
        """Whether the server answers; pools of one process may share it."""
        self._wait_s = wait_s
        self._pool = pool
        self._made = made
        self._purpose = purpose
        self._owns_pulse = owns_pulse
        self._allow_unsafe = allow_unsafe
        pulse.share(self._cut)

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
        allow_unsafe: bool = False,
        pulse: Pulse | None = None,
    ) -> "Database":
        """Connect to *url* with up to *size* connections, shown to PostgreSQL as ``boathook:<purpose>``.

        A session that leaves a transaction idle for *idle_in_transaction_s* is ended by the server, so that a
        frozen process cannot hold its locks for ever. Between two uses a connection is reset, which costs a round
        trip; without *is_reset* it is not, which is for pools that run boathook's own statements only.

        A server that answers nothing any more is found out within five seconds: every connection is cut then, and
        nobody waits for another until it answers again. The connection which asks for that is one more, unless the
        *pulse* of another pool of this process is shared, which has to be closed after this one.

        With each sign of life the server says anew whether it keeps what it commits; see `unsafe_because`. Where
        *allow_unsafe* its settings are not held against it.

        Raises:
            JournalUnavailable: the server cannot be reached with this URL.
        """
        settings = {
            "application_name": f"boathook:{purpose}",
            "statement_timeout": str(int(statement_timeout_s * 1000)),
            "idle_in_transaction_session_timeout": str(int(idle_in_transaction_s * 1000)),
            "timezone": "UTC",
            "jit": "off",
            **SERVER_SIDE,
        }
        owns_pulse = pulse is None
        if pulse is None:
            name = {"application_name": f"boathook:{purpose}:pulse", **SERVER_SIDE}
            dial = functools.partial(connect, url, timeout=connect_timeout_s, server_settings=name)
            pulse = Pulse(dial, purpose=purpose, longest_s=connect_timeout_s)
        made: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()

        async def make(*args: Any, **options: Any) -> asyncpg.Connection:
            if pulse.level and "synchronous_commit" in settings:
                settings["synchronous_commit"] = pulse.level
            async with pulse.dialling():
                connection = await connect(*args, **options | {"server_settings": settings})
            made.add(connection)
            return connection

        with dialled():
            settings |= await _make_durable(url, connect_timeout_s)
            pool = await asyncpg.create_pool(
                url,
                min_size=min_size,
                max_size=size,
                timeout=connect_timeout_s,
                # The server's own limit should be the one that is met; this is for one session that hangs alone.
                command_timeout=statement_timeout_s + 2,
                reset=None if is_reset else _leave_as_it_is,
                server_settings=settings,
                connection_class=Session,
                connect=make,
            )
        if owns_pulse:
            pulse.start()
        return cls(
            url,
            pool,
            made,
            purpose=purpose,
            wait_s=statement_timeout_s,
            pulse=pulse,
            owns_pulse=owns_pulse,
            allow_unsafe=allow_unsafe,
        )

    async def close(self) -> None:
        """Close every connection, waiting briefly for those in use."""
        if self.pulse.is_away:
            self._cut()
        try:
            await asyncio.wait_for(self._pool.close(), _CLOSE_S)
        except TROUBLE:
            self._pool.terminate()
        finally:
            self.pulse.leave(self._cut)
            if self._owns_pulse:
                await self.pulse.close()

    def _cut(self) -> None:
        for connection in list(self._made):
            cut(connection)

    @property
    def bounds(self) -> str:
        """Statements that bound those after them in a transaction, whatever a pooler has made of the session."""
        return f"set local statement_timeout = {int(self._wait_s * 1000)}; set local jit = off"

    @property
    def unsafe_because(self) -> list[str]:
        """Why nothing may be accepted on this server's word, in sentences; none while it keeps what it commits."""
        return self.pulse.safety.reasons(allow_lossy=self._allow_unsafe)

    def require_safety(self) -> None:
        """Raise JournalUnavailable while the server might lose what it commits."""
        if reasons := self.unsafe_because:
            raise JournalUnavailable(" ".join(reasons))

    @contextlib.asynccontextmanager
    async def acquire(self, wait_s: float | None = None, within_s: float | None = None) -> AsyncIterator[Connection]:
        """Lend a connection; only getting it is translated, what is done with it raises as the driver does.

        Args:
            wait_s: how long to wait for one that is in use to be given back; None: for ever.
            within_s: how long the whole use may take, the getting, what is done and the giving back; None: for ever.
                When it is over the connection is cut, without a word to a server that may not be listening.

        Raises:
            JournalUnavailable: PostgreSQL is away, or the time was up; what was under way may be committed. Or somebody
                has cancelled a commit that waited for a synchronous standby: it is done, and the standby may lack it.
        """
        async with time_limit(within_s) as lent:
            connection = await self._take(wait_s)
            lent.append(connection)
            try:
                yield connection
                _check_replicated(connection)
            finally:
                with contextlib.suppress(*TROUBLE):
                    await asyncio.shield(self._pool.release(connection))

    async def _take(self, wait_s: float | None) -> asyncpg.pool.PoolConnectionProxy:
        if self.pulse.safety.stalled >= MOST_STALLED:
            raise JournalUnavailable(stall(self.pulse.safety.stalled))
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
                with contextlib.suppress(*TROUBLE):
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
        """Run one statement, again where PostgreSQL has sacrificed it to others."""

        async def once() -> Result:
            async with self.acquire() as connection:
                with translated():
                    return await statement(connection)

        return await run_again(once)

    async def listen(self, channel: str, callback: Heard) -> None:
        """Call *callback* with the payload of each notification, for as long as this database is open.

        A lost connection is made again by itself; what was announced meanwhile is not repeated, so a
        notification is a hint and polling stays the truth.
        """
        self.pulse.listen(channel, callback)


async def replicate_reads(connection: Connection) -> None:
    """Let the commit of a transaction wait for a synchronous standby, even where it has only read; see `REPLICATE`."""
    await connection.execute(REPLICATE.literal(REPLICATE_ARGUMENTS))


@contextlib.asynccontextmanager
async def reached(stop: asyncio.Event, dial: Callable[[], Awaitable[Database]]) -> AsyncIterator[Database | None]:
    """Lend what *dial* opens, trying until PostgreSQL can be reached; None where *stop* was set before."""
    database = await _reach(stop, dial)
    try:
        yield database
    finally:
        if database is not None:
            await database.close()


async def _reach(stop: asyncio.Event, dial: Callable[[], Awaitable[Database]]) -> Database | None:
    is_told = False
    while not stop.is_set():
        try:
            return await dial()
        except JournalUnavailable as error:
            if not is_told:
                get_logger("journal").warning("postgresql_awaited", error=str(error))
                is_told = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AGAIN_S):
                await stop.wait()
    return None


async def _make_durable(url: str, timeout_s: float) -> dict[str, str]:
    """Return the settings by which sessions on this server commit durably, and compress bodies with lz4 if it can.

    They belong into the start of a session: what is set later, a reset takes back. Commits wait for a synchronous
    standby as the server says, and no less than until it has them on disk, whatever others change meanwhile. A role
    that bears the name of boathook's schema would find it in front of its own tables, so it gets a search path without.
    """
    # A server may fall silent at any moment, and whoever opens a pool may be what all others wait for.
    connection = await connect(url, timeout=timeout_s, command_timeout=timeout_s)
    try:
        rows = await connection.fetch("""
            select name, case setting when 'remote_apply' then setting else 'on' end as value from pg_settings
            where name = 'synchronous_commit'
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


def _check_replicated(connection: Connection) -> None:
    if getattr(connection, "is_unreplicated", False):
        cut(connection)
        raise JournalUnavailable(
            "a commit was cancelled while it waited for a synchronous standby: it is done, but the standby may lack it"
        )


async def check_safety(database: Database, *, allow_unsafe: bool = False) -> list[str]:
    """Return what is unsafe about the server, in sentences; refuse it unless *allow_unsafe*.

    Raises:
        UnsafeDatabase: the server is too old, or could lose what it said it had committed.
        AddressRefused: it is a standby, or one that is just being promoted; or a pooler is in between that gives each
            transaction another session.
    """
    row = await _read_server(database)
    if row["version_number"] < OLDEST_SERVER:
        raise UnsafeDatabase(
            f"PostgreSQL {row['version']} is too old: boathook needs version 14 or later. Upgrade the server."
        )
    if row["is_standby"]:
        raise AddressRefused("database.url names a standby, which cannot be written to. Use the primary's address.")
    found = judge(row)
    if (found.lossy or found.weak) and not allow_unsafe:
        sentences = " ".join([*found.lossy, *found.weak])
        raise UnsafeDatabase(f"{sentences} To run all the same, set database.allow_unsafe = true.")
    return [*found.lossy, *found.weak]


async def _read_server(database: Database) -> Record:
    """Return what the server gives a session that asks for nothing, as handlers' own sessions do."""
    with dialled():
        connection = await connect(database.url, timeout=_CONNECT_S, command_timeout=_CONNECT_S)
        try:
            looks = [await _look(connection, database) for _ in range(_MOST_LOOKS)]
        finally:
            await connection.close(timeout=_CONNECT_S)
    rows = [row for row in looks if row is not None]
    if len(rows) < _MOST_LOOKS or len({row["pid"] for row in rows}) > 1:
        raise AddressRefused(_SHARED)
    return rows[-1]


async def _look(connection: Connection, database: Database) -> Record | None:
    """Return what the server says; None where it gave another connection, open at the same time, the same session."""
    row = await connection.fetchrow(SQL["read_safety"])
    assert row is not None  # it has no condition
    return None if row["pid"] == await database.fetchval("select pg_backend_pid()") else row


_MOST_LOOKS = 3
"""How often two connections are compared: a pooler that is busy may give them different sessions by chance."""
_SHARED = (
    "database.url leads through a pooler that gives each transaction another session, such as PgBouncer with"
    " pool_mode = transaction. Set pool_mode = session for boathook, or use PostgreSQL's own address."
)
