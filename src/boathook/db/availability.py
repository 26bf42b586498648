"""Detects from a statement's error that PostgreSQL is unavailable, hangs or is overloaded."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, TypeVar

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
_CLOSED_MESSAGE: Final = re.compile(r"\bconnection (is closed|has been released back)")
"""The driver's message for the use of a lost connection."""
_MAX_RUNS: Final = 4
_TICK_S: Final = 0.1


def is_server_unavailable(error: BaseException) -> bool:
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
            if is_server_unavailable(error)
            else ValueRejected
            if _is_invalid_value(error)
            else DatabaseError
        )
        raise kind(first_line(error)) from error


@contextlib.contextmanager
def translate_connect_errors() -> Iterator[None]:
    """Translate connect errors to `DatabaseUnavailable`, with a message that names the setting and the fix."""
    try:
        with translate_errors():
            yield
    except ValueError as error:
        raise DatabaseUrlRejected(f"database.url cannot be used: {first_line(error)}") from error
    except DatabaseUnavailable as error:
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
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


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
        if not deadline.is_burnt:
            raise
        raise DatabaseUnavailable(f"PostgreSQL did not answer within {seconds:g} s") from error
    finally:
        deadline.put_out()


class _Deadline:
    """The deadline of a block and of the connections that it uses."""

    def __init__(self, connections: list[Connection], seconds: float) -> None:
        self.block = asyncio.timeout(None)
        self.is_burnt = False
        self._lent = connections
        self._left_s = seconds
        self._loop = asyncio.get_running_loop()
        self._handle = self._light()

    def put_out(self) -> None:
        self._handle.cancel()

    def _light(self) -> asyncio.TimerHandle:
        step_s = min(_TICK_S, self._left_s)
        self._left_s -= step_s
        return self._loop.call_later(step_s, self._burn)

    def _burn(self) -> None:
        if self._left_s > 0.001:
            self._handle = self._light()
            return
        self.is_burnt = True
        for connection in self._lent:
            terminate(connection)
        self.block.reschedule(self._loop.time())
