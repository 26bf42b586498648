"""What it looks like when PostgreSQL is away, hangs or is overworked, told from statements that it refuses."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, TypeVar

import asyncpg

from boathook.domain.errors import AlreadyExists, DatabaseError, DatabaseUnavailable, DatabaseUrlRejected, ValueRejected

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Result = TypeVar("Result")

CONNECTION_ERRORS: Final = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the driver itself raises where a connection is lost or cannot be made: a server's last word may come just as
something is being sent, which is its internal error."""
DRIVER_ERRORS: Final = (*CONNECTION_ERRORS, asyncpg.PostgresError)
"""All that the driver raises."""

_UNAVAILABLE_STATES: Final = ("08", "25006", "25P03", "25P04", "28", "3D000", "40", "53", "55P03", "57", "58")
"""How the SQLSTATEs begin of what is worth trying again later, unchanged: no connection, only reading, a session ended
for its idleness, nobody let in, sacrificed to others, no resources, a lock not to be had, an operator's doing, and a
fault of the system below."""
_INVALID_VALUE_STATES: Final = ("22", "23", "54")
"""How those begin of a value that can never be stored: of its kind, by a constraint, or for its size."""
_ROLLBACK_STATES: Final = "40"
_BAD_URL_ERRORS: Final = (
    asyncpg.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_CLOSED_MESSAGE: Final = re.compile(r"\bconnection (is closed|has been released back)")
"""How the driver refuses to use a connection that was lost."""
_MAX_RUNS: Final = 4
_TICK_S: Final = 0.1


def is_server_unavailable(error: BaseException) -> bool:
    """Return whether a driver's error says that PostgreSQL is down, hangs, is full, starts, or only reads."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_UNAVAILABLE_STATES) or _lacks_partition(error)
    return isinstance(error, CONNECTION_ERRORS) and not _is_encoding_error(error)


def _lacks_partition(error: BaseException | None) -> bool:
    """Return whether a row waited to be written while a partition was made for it; a table's own checks have names."""
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
    """Return whether the driver could not write a value as the server reads it, which has no error of its own."""
    is_either = isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    return is_either and not isinstance(error, asyncpg.ClientConfigurationError)


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Turn the driver's errors into `DatabaseUnavailable`, `ValueRejected` and plain `DatabaseError`; others pass."""
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
    """Turn what keeps a connection from being made into `DatabaseUnavailable`, which names the setting and the fix."""
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
            return f"PostgreSQL refuses database.url: {error}; correct its user, password or database"
        case asyncpg.PostgresError():
            return f"PostgreSQL at database.url takes no connection: {error}"
        case TimeoutError():
            return (
                "PostgreSQL at database.url cannot be reached: it does not answer; look whether it hangs or the network"
                " is cut, start the server, or correct database.url"
            )
        case _:
            return f"PostgreSQL at database.url cannot be reached: {error}; start the server, or correct database.url"


@contextlib.contextmanager
def translate_unique_violation(message: str, kind: str = "conflict") -> Iterator[None]:
    """Raise `AlreadyExists` with *message* where a unique index refuses what is written."""
    try:
        yield
    except asyncpg.UniqueViolationError:
        raise AlreadyExists(message, kind) from None


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    if isinstance(error, asyncpg.ConnectionDoesNotExistError) or _CLOSED_MESSAGE.search(str(error)):
        return "the connection to PostgreSQL was lost"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def is_connection_closed(connection: Connection) -> bool:
    """Return whether a connection has ended, so that nothing can be done with it."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken back what was lost
        return True


def terminate(connection: Connection) -> None:
    """End a connection without a word to the server, which may not be listening; whoever waits for it is told."""
    with contextlib.suppress(asyncpg.InterfaceError):  # lost, and taken back by its pool
        connection.terminate()


async def retry_on_conflict(do: Callable[[], Awaitable[Result]]) -> Result:
    """Do something whole that may be done twice, a few times where PostgreSQL sacrifices it to others."""
    for _ in range(_MAX_RUNS - 1):
        try:
            return await do()
        except DatabaseUnavailable as error:
            if not _is_rolled_back(error.__cause__):
                raise
    return await do()


@contextlib.asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[list[Connection]]:
    """Cut the connections that the block puts into the list, and break the block off, when its time is up.

    The cut comes before the breaking off: a statement that is cancelled alone makes the driver ask the server to give
    it up and wait for the answer, and a transaction would be rolled back in the same vain hope. The time is counted by
    turns of the event loop, so that a process which stood still does not blame the server.

    Raises:
        DatabaseUnavailable: the time was up.
    """
    lent: list[Connection] = []
    if seconds is None:
        yield lent
        return
    fuse = _Deadline(lent, seconds)
    try:
        async with fuse.block:
            yield lent
    except (DatabaseError, *DRIVER_ERRORS) as error:
        if not fuse.is_burnt:
            raise
        raise DatabaseUnavailable(f"PostgreSQL did not answer within {seconds:g} s") from error
    finally:
        fuse.put_out()


class _Deadline:
    """Time that runs out for a block and for the connections it uses."""

    def __init__(self, lent: list[Connection], seconds: float) -> None:
        self.block = asyncio.timeout(None)
        self.is_burnt = False
        self._lent = lent
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
