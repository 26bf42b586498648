"""What it looks like when PostgreSQL is away, hangs or is overworked, told from statements that it refuses."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, TypeVar

import asyncpg

from boathook.domain.errors import AddressRefused, JournalError, JournalUnavailable, RowRefused, Taken

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
Result = TypeVar("Result")

LOST: Final = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What the driver itself raises where a connection is lost or cannot be made: a server's last word may come just as
something is being sent, which is its internal error."""
TROUBLE: Final = (*LOST, asyncpg.PostgresError)
"""All that the driver raises."""

_AWAY: Final = ("08", "25006", "25P03", "25P04", "28", "3D000", "40", "53", "55P03", "57", "58")
"""How the SQLSTATEs begin of what is worth trying again later, unchanged: no connection, only reading, a session ended
for its idleness, nobody let in, sacrificed to others, no resources, a lock not to be had, an operator's doing, and a
fault of the system below."""
_REFUSED: Final = ("22", "23", "54")
"""How those begin of a value that can never be stored: of its kind, by a constraint, or for its size."""
_SACRIFICED: Final = "40"
_WRONG_ADDRESS: Final = (
    asyncpg.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_ENDED: Final = re.compile(r"\bconnection (is closed|has been released back)")
"""How the driver refuses to use a connection that was lost."""
_MOST_RUNS: Final = 4
_TICK_S: Final = 0.1


def is_away(error: BaseException) -> bool:
    """Return whether a driver's error says that PostgreSQL is down, hangs, is full, starts, or only reads."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_AWAY) or _is_misrouted(error)
    return isinstance(error, LOST) and not _is_unwritable(error)


def _is_misrouted(error: BaseException | None) -> bool:
    """Return whether a row waited to be written while a partition was made for it; a table's own checks have names."""
    if not isinstance(error, asyncpg.CheckViolationError):
        return False
    return error.schema_name == "boathook" and not error.constraint_name


def _is_sacrificed(error: BaseException | None) -> bool:
    return str(getattr(error, "sqlstate", "")).startswith(_SACRIFICED) or _is_misrouted(error)


def _is_refused(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_REFUSED)
    return _is_unwritable(error)


def _is_unwritable(error: BaseException) -> bool:
    """Return whether the driver could not write a value as the server reads it, which has no error of its own."""
    is_either = isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    return is_either and not isinstance(error, asyncpg.ClientConfigurationError)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into `JournalUnavailable`, `RowRefused` and plain `JournalError`; others pass."""
    try:
        yield
    except TROUBLE as error:
        kind = JournalUnavailable if is_away(error) else RowRefused if _is_refused(error) else JournalError
        raise kind(sentence(error)) from error


@contextlib.contextmanager
def dialled() -> Iterator[None]:
    """Turn what keeps a connection from being made into `JournalUnavailable`, which names the setting and the fix."""
    try:
        with translated():
            yield
    except ValueError as error:
        raise AddressRefused(f"database.url cannot be used: {sentence(error)}") from error
    except JournalUnavailable as error:
        kind = AddressRefused if isinstance(error.__cause__, _WRONG_ADDRESS) else JournalUnavailable
        raise kind(_say_where(error)) from error.__cause__


def _say_where(error: JournalUnavailable) -> str:
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
def unique(message: str, kind: str = "conflict") -> Iterator[None]:
    """Raise `Taken` with *message* where a unique index refuses what is written."""
    try:
        yield
    except asyncpg.UniqueViolationError:
        raise Taken(message, kind) from None


def sentence(error: BaseException) -> str:
    """Return the first line of what an error says."""
    if isinstance(error, asyncpg.ConnectionDoesNotExistError) or _ENDED.search(str(error)):
        return "the connection to PostgreSQL was lost"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def is_gone(connection: Connection) -> bool:
    """Return whether a connection has ended, so that nothing can be done with it."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken back what was lost
        return True


def cut(connection: Connection) -> None:
    """End a connection without a word to the server, which may not be listening; whoever waits for it is told."""
    with contextlib.suppress(asyncpg.InterfaceError):  # lost, and taken back by its pool
        connection.terminate()


async def run_again(do: Callable[[], Awaitable[Result]]) -> Result:
    """Do something whole that may be done twice, a few times where PostgreSQL sacrifices it to others."""
    for _ in range(_MOST_RUNS - 1):
        try:
            return await do()
        except JournalUnavailable as error:
            if not _is_sacrificed(error.__cause__):
                raise
    return await do()


@contextlib.asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[list[Connection]]:
    """Cut the connections that the block puts into the list, and break the block off, when its time is up.

    The cut comes before the breaking off: a statement that is cancelled alone makes the driver ask the server to give
    it up and wait for the answer, and a transaction would be rolled back in the same vain hope. The time is counted by
    turns of the event loop, so that a process which stood still does not blame the server.

    Raises:
        JournalUnavailable: the time was up.
    """
    lent: list[Connection] = []
    if seconds is None:
        yield lent
        return
    fuse = _Fuse(lent, seconds)
    try:
        async with fuse.block:
            yield lent
    except (JournalError, *TROUBLE) as error:
        if not fuse.is_burnt:
            raise
        raise JournalUnavailable(f"PostgreSQL did not answer within {seconds:g} s") from error
    finally:
        fuse.put_out()


class _Fuse:
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
            cut(connection)
        self.block.reschedule(self._loop.time())
