"""Connections to PostgreSQL whose settings survive poolers, and whose commits are never cancelled.

A cancel request does not undo a commit that waits for a synchronous standby: PostgreSQL makes it visible although the
standby does not have it, and readers then consider it safe. Instead of cancelling a slow commit, boathook closes the
connection. The server keeps waiting, and makes the commit visible only when the standby has it.

An error of the driver shows whether PostgreSQL is unavailable, hangs or is overloaded, or whether a value is invalid.
It is translated to the class of `DatabaseError` that says so.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg

from boathook.domain.errors import AlreadyExists, DatabaseError, DatabaseUnavailable, DatabaseUrlRejected, ValueRejected

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Result = TypeVar("Result")

CONNECTION_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.ConnectionDoesNotExistError,
)
"""Errors of the driver for a lost connection or a failed connect. If the server closes the connection while the driver
is sending, the driver reports an internal error of its own; while it waits, one that is also a `PostgresError`."""
DRIVER_ERRORS: Final = (*CONNECTION_ERRORS, asyncpg.PostgresError)
"""All errors that the driver raises."""

_UNAVAILABLE_STATES: Final = ("08", "25006", "25P03", "25P04", "28", "3D000", "40", "53", "55P03", "57", "58")
"""SQLSTATE prefixes of errors that are worth a retry without changes: no connection, a read-only server, a session
ended when idle, failed authentication or a missing database, a rollback due to a conflict, exhausted resources, a lock
that is not available, an operator's intervention, and a system error."""
_INVALID_VALUE_STATES: Final = ("22", "23", "54")
"""SQLSTATE prefixes of a value that can never be stored: because of its type, a constraint or its size."""
_ROLLBACK_STATES: Final = "40"
_BAD_URL_ERRORS: Final = (
    asyncpg.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_POOLER_ERRORS: Final = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)
"""Errors of a connection's first statements behind a pooler that gives each transaction another session."""
TRANSACTION_POOLER: Final = (
    "database.url leads through a pooler in transaction mode, which gives each transaction another session, such as"
    " PgBouncer with pool_mode = transaction. Set pool_mode = session for boathook, or use PostgreSQL's own address;"
    " see docs/how-to/scale.md."
)
_CLOSED_MESSAGE: Final = re.compile(r"\bconnection (is closed|has been released back)")
"""The driver's message for the use of a lost connection."""
_MAX_RUNS: Final = 4
_TICK_S: Final = 0.1

_USER_TIMEOUT_MS: Final = 5_000
"""How long sent data may remain unacknowledged before the system closes a connection."""
SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
)
SERVER_KEEPALIVES: Final = {
    "tcp_keepalives_idle": "6",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "12000",
}
"""Session settings by which the server drops a client that has vanished, with the locks it holds. The server does so
later than the client drops the server, so that no lock is granted while its former holder still relies on it."""

_SCHEMA: Final = "boathook"
_COMMIT_STATEMENT: Final = re.compile(r"(?:^|;)\s*(?:commit|end)\b", re.IGNORECASE)
_SYNC_REP_FUNCTION: Final = "SyncRepWaitForLSN"
"""The PostgreSQL function that reports a commit made visible before its standby had it."""
_FIND_UNAPPLIED: Final = "select name from pg_settings where name = any ($1) and source <> 'client'"
_READ_VALUES: Final = "select array_agg(current_setting(name) order by name) from unnest($1::text[]) as name"
_applied_values: Final[dict[frozenset[tuple[str, str]], list[str]]] = {}
"""For settings that were all applied at a session's start: their values there, as the server writes them."""

ARRAY_TYPES: Final = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int2": (1005, 21),
    "int4": (1007, 23),
    "int8": (1016, 20),
    "float8": (1022, 701),
    "timestamptz": (1185, 1184),
    "interval": (1187, 1186),
    "json": (199, 114),
    "uuid": (2951, 2950),
}
"""For types of which boathook's statements use arrays: the ids of the array and of the type, which are the same on all
servers (https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat)."""
ARRAY_CODECS: Final = [
    {
        "oid": array,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
    }
    for name, (array, element) in ARRAY_TYPES.items()
]


class SafeConnection(asyncpg.Connection):
    """A connection that is closed where the driver would cancel a commit."""

    __slots__ = ("_sent", "is_unreplicated", "restore")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sent = ""
        self.is_unreplicated = False
        """Whether a commit on this connection was cancelled while it waited for a synchronous standby."""
        self.restore = ""
        """Statement that applies settings again after a reset; for settings that were not applied at session start."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109
        """Execute as in the base class, and remember the statement."""
        self._sent = query
        return str(await super().execute(query, *args, timeout=timeout))

    def get_reset_query(self) -> str:
        """Return the statements that undo the settings of a user of the connection."""
        return "\n".join(filter(None, (super().get_reset_query(), self.restore)))

    def _cancel_current_command(self, *waiters: Any) -> None:
        # In a transaction only its end commits. Any other statement may be a transaction of its own.
        if self.is_in_transaction() and not _COMMIT_STATEMENT.search(self._sent):
            super()._cancel_current_command(*waiters)  # type: ignore[misc]
        else:
            # After the driver has notified the waiting callers.
            asyncio.get_running_loop().call_soon(self.terminate)

    def _process_log_message(self, fields: Mapping[str, str], last_query: str) -> None:
        self.is_unreplicated |= fields.get("R") == _SYNC_REP_FUNCTION
        super()._process_log_message(fields, last_query)  # type: ignore[misc]

    async def settle(self, settings: Mapping[str, str], timeout_s: float | None) -> None:
        """Apply those of *settings* that were not applied at session start, because a pooler drops most of them."""
        names, requested = list(settings), frozenset(settings.items())
        values = await self.fetchval(_READ_VALUES, names, timeout=timeout_s)
        if values == _applied_values.get(requested):
            return
        # It reads all settings of the server, so each new connection would spend a third of its start on it.
        rows = await self.fetch(_FIND_UNAPPLIED, names, timeout=timeout_s)
        dropped = {row["name"]: settings[row["name"]] for row in rows}
        if dropped:
            self.restore = _set_config_statement(dropped)
            await self.execute(self.restore, timeout=timeout_s)
        else:
            _applied_values[requested] = values


def _set_config_statement(settings: Mapping[str, str]) -> str:
    calls = (f"set_config({_quoted(name)}, {_quoted(value)}, false)" for name, value in settings.items())
    return f"select {', '.join(calls)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def reset_statements(connection: Any) -> Iterable[str]:
    """Return the statements that undo the settings of a session, except those of boathook."""
    restore: str = getattr(connection, "restore", "")
    return ("reset all", restore) if restore else ("reset all",)


async def connect(*args: Any, **options: Any) -> asyncpg.Connection:
    """Connect like `asyncpg.connect`, but to a `SafeConnection`, and with keep-alive over TCP.

    The settings in ``server_settings`` also apply behind a pooler, if it gives each client its own session.
    """
    options["connection_class"] = SafeConnection
    settings = options.get("server_settings") or {}
    try:
        connection: asyncpg.Connection = await asyncpg.connect(*args, **options)
    except asyncpg.ProtocolViolationError as error:
        if "startup parameter" not in str(error):
            raise
        # PgBouncer rejects startup parameters that it is not configured to ignore.
        accepted_settings = {name: value for name, value in settings.items() if name == "application_name"}
        connection = await asyncpg.connect(*args, **options | {"server_settings": accepted_settings})
    except socket.gaierror as error:
        hosts = urlsplit(str(args[0])).netloc.rpartition("@")[2] if args else ""
        raise OSError(f"its host {hosts!r} is unknown ({error.strerror})") from error
    try:
        _set_socket_options(connection)
        _register_array_types(connection)
        if settings and isinstance(connection, SafeConnection):
            await connection.settle(settings, options.get("timeout"))
    except BaseException:
        connection.terminate()
        raise
    return connection


def _register_array_types(connection: asyncpg.Connection) -> None:
    # Otherwise the driver queries them on each connection, which takes twice as long as opening it.
    connection._protocol.get_settings().register_data_types(ARRAY_CODECS)  # type: ignore[attr-defined]  # noqa: SLF001


def _set_socket_options(connection: asyncpg.Connection) -> None:
    # The driver has no public access to its socket or socket options.
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]  # noqa: SLF001
    wire = transport.get_extra_info("socket")
    if wire is not None and wire.family in {socket.AF_INET, socket.AF_INET6}:
        for level, name, value in SOCKET_OPTIONS:
            if hasattr(socket, name):
                wire.setsockopt(level, getattr(socket, name), value)


async def read_session_settings(url: str, timeout_s: float) -> dict[str, str]:
    """Return session settings for durable commits on this server, and for lz4 compression if it is available.

    They must be set at session start, because a reset undoes later settings. Commits wait for a synchronous standby as
    configured on the server, and at least until it has them on disk, even if other settings change. A role with the
    name of boathook's schema would find that schema before its own tables, so it gets a search path without it.
    """
    # The server may hang at any time, and other work may wait for this pool, so every step has a timeout.
    connection = await connect(url, timeout=timeout_s, command_timeout=timeout_s)
    try:
        rows = await connection.fetch("""
            select 'synchronous_commit' as name, case level when 'remote_apply' then level else 'on' end as value
            from current_setting('synchronous_commit') as level
            union all
            select name, 'lz4' from pg_settings where name = 'default_toast_compression' and 'lz4' = any (enumvals)
            union all
            select 'search_path', 'public'
            where current_setting('search_path') = '"$user", public' and current_user = 'boathook'
        """)
        return {row["name"]: row["value"] for row in rows}
    finally:
        await connection.close(timeout=timeout_s)


def _is_server_unavailable(error: BaseException) -> bool:
    """Return whether an error means that PostgreSQL is down, hanging, full, starting up or read-only."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_UNAVAILABLE_STATES) or _lacks_partition(error)
    return isinstance(error, CONNECTION_ERRORS) and not _is_encoding_error(error)


def _lacks_partition(error: BaseException | None) -> bool:
    """Return whether a row had no partition yet; violations of a table's own checks name a constraint."""
    if not isinstance(error, asyncpg.CheckViolationError):
        return False
    return error.schema_name == "boathook" and not error.constraint_name


def _is_rolled_back(error: BaseException | None) -> bool:
    return str(getattr(error, "sqlstate", "")).startswith(_ROLLBACK_STATES) or _lacks_partition(error)


def _is_invalid_value(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_INVALID_VALUE_STATES)
    return _is_encoding_error(error)


def _is_encoding_error(error: BaseException) -> bool:
    """Return whether the driver could not encode a value; it has no error class for that."""
    is_either = isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    return is_either and not isinstance(error, asyncpg.ClientConfigurationError)


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Translate driver errors to `DatabaseUnavailable`, `ValueRejected` or plain `DatabaseError`; others pass."""
    try:
        yield
    except DRIVER_ERRORS as error:
        kind = (
            DatabaseUnavailable
            if _is_server_unavailable(error)
            else ValueRejected
            if _is_invalid_value(error)
            else DatabaseError
        )
        raise kind(_describe(error)) from error


def _describe(error: BaseException) -> str:
    """Return the first line of a driver's error, with the fix where the line alone does not say it."""
    line = first_line(error)
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return f"{line}: the database is read-only, as a standby is, or by default_transaction_read_only"
    if isinstance(error, asyncpg.InsufficientPrivilegeError) and line.endswith(f"schema {_SCHEMA}"):
        return f"{line}; as the owner of the schema run: grant usage on schema {_SCHEMA} to the role of database.url"
    return line


@contextlib.contextmanager
def translate_connect_errors() -> Iterator[None]:
    """Translate connect errors to `DatabaseUnavailable`, with a message that names the setting and the fix."""
    try:
        with translate_errors():
            yield
    except ValueError as error:
        raise DatabaseUrlRejected(f"database.url cannot be used: {first_line(error)}") from error
    except DatabaseError as error:
        if isinstance(error.__cause__, _POOLER_ERRORS):
            raise DatabaseUrlRejected(TRANSACTION_POOLER) from error.__cause__
        if isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError) and "for database" in str(error):
            fix = "as the owner of the database run: grant connect on database NAME to the role of database.url"
            raise DatabaseUrlRejected(f"PostgreSQL rejects database.url: {error}; {fix}") from error.__cause__
        if isinstance(error, DatabaseUrlRejected) or not isinstance(error, DatabaseUnavailable):
            raise
        kind = DatabaseUrlRejected if isinstance(error.__cause__, _BAD_URL_ERRORS) else DatabaseUnavailable
        raise kind(_describe_connect_error(error)) from error.__cause__


def _describe_connect_error(error: DatabaseUnavailable) -> str:
    match error.__cause__:
        case asyncpg.ClientConfigurationError():
            return f"database.url cannot be used: {error}"
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidCatalogNameError():
            return f"PostgreSQL rejects database.url: {error}; correct its user, password or database"
        case asyncpg.PostgresError() as refusal if not isinstance(refusal, CONNECTION_ERRORS):
            return f"PostgreSQL at database.url accepts no connections: {error}"
        case TimeoutError():
            return (
                "PostgreSQL at database.url cannot be reached: it does not respond; check whether it hangs or the"
                " network is down, start the server, or correct database.url"
            )
        case _:
            return f"PostgreSQL at database.url cannot be reached: {error}; start the server, or correct database.url"


@contextlib.contextmanager
def translate_unique_violation(message: str, kind: str = "conflict") -> Iterator[None]:
    """Raise `AlreadyExists` with *message* if a unique index rejects a write."""
    try:
        yield
    except asyncpg.UniqueViolationError:
        raise AlreadyExists(message, kind) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    if isinstance(error, asyncpg.ConnectionDoesNotExistError) or _CLOSED_MESSAGE.search(str(error)):
        return "the connection to PostgreSQL was lost"
    text = str(error).strip()
    if not text and isinstance(error, TimeoutError):
        return "PostgreSQL did not answer in time"
    return text.splitlines()[0] if text else type(error).__name__


def is_connection_closed(connection: Connection) -> bool:
    """Return whether a connection is closed and can no longer be used."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken back the lost connection
        return True


def terminate(connection: Connection) -> None:
    """Close a connection without notifying the server, which may hang; pending calls on it raise."""
    with contextlib.suppress(asyncpg.InterfaceError):  # lost and taken back by its pool
        connection.terminate()


async def retry_on_conflict(do: Callable[[], Awaitable[Result]]) -> Result:
    """Run *do*, which must be repeatable as a whole, up to four times if PostgreSQL rolls it back in a conflict."""
    for _ in range(_MAX_RUNS - 1):
        try:
            return await do()
        except DatabaseUnavailable as error:
            if not _is_rolled_back(error.__cause__):
                raise
    return await do()


@contextlib.asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[list[Connection]]:
    """Limit the time of a block: terminate the connections in the yielded list and cancel the block when time is up.

    The connections are terminated before the block is cancelled. When only a statement is cancelled, the driver asks
    the server to cancel it and waits for the answer. A rollback would wait in vain too. Time is counted in short
    steps of the event loop, so that a process that was frozen does not blame the server.

    Raises:
        DatabaseUnavailable: the time is up.
    """
    connections: list[Connection] = []
    if seconds is None:
        yield connections
        return
    deadline = _Deadline(connections, seconds)
    try:
        async with deadline.block:
            yield connections
    except (DatabaseError, *DRIVER_ERRORS) as error:
        if not deadline.is_over:
            raise
        raise DatabaseUnavailable(f"PostgreSQL did not answer within {seconds:g} s") from error
    finally:
        deadline.timer.cancel()


class _Deadline:
    """The deadline of a block and of the connections that it uses."""

    def __init__(self, connections: list[Connection], seconds: float) -> None:
        self.block = asyncio.timeout(None)
        self.is_over = False
        self._connections = connections
        self._left_s = seconds
        self._loop = asyncio.get_running_loop()
        self.timer = self._start_timer()

    def _start_timer(self) -> asyncio.TimerHandle:
        step_s = min(_TICK_S, self._left_s)
        self._left_s -= step_s
        return self._loop.call_later(step_s, self._tick)

    def _tick(self) -> None:
        if self._left_s > 0.001:
            self.timer = self._start_timer()
            return
        self.is_over = True
        for connection in self._connections:
            terminate(connection)
        self.block.reschedule(self._loop.time())
