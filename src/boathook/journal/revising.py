"""How revisions are applied, boathook's own and those of apps: by one process at a time, each wholly or not at all."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import asyncpg

from boathook.domain.errors import JournalError
from boathook.journal.database import dialled, translated
from boathook.journal.pulse import connect

_CONNECT_TIMEOUT_S: Final = 10.0
_TURN_TIMEOUT: Final = "300s"
"""How long to wait while another process migrates the same database."""
_LOCK_TIMEOUT: Final = "5s"
"""How long a revision may wait for a table, and so hold up those who queue for it behind the revision."""
_TRIES: Final = 6
_TAKE_TURN: Final = "select pg_advisory_lock(hashtextextended('boathook.migrate', 0))"


@contextlib.asynccontextmanager
async def connected(url: str, **server_settings: str) -> AsyncIterator[asyncpg.Connection]:
    """Lend a connection of its own. Raises JournalUnavailable where the server cannot be reached."""
    with dialled():
        connection = await connect(url, timeout=_CONNECT_TIMEOUT_S, server_settings=server_settings)
    try:
        yield connection
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


@contextlib.asynccontextmanager
async def turn(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Lend a connection while no other process migrates this database.

    Raises:
        JournalUnavailable: the server cannot be reached.
        JournalError: another process has been at it for too long.
    """
    async with connected(url, application_name="boathook:migrate", lock_timeout=_TURN_TIMEOUT) as connection:
        with translated():
            await connection.execute(_TAKE_TURN)
            await connection.execute(f"set lock_timeout = '{_LOCK_TIMEOUT}'; set client_min_messages = warning")
        yield connection


@contextlib.asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Lend a connection for one revision of others, who may leave its session as they like."""
    settings = {"lock_timeout": _LOCK_TIMEOUT, "client_min_messages": "warning"}
    async with connected(url, application_name="boathook:migrate", **settings) as connection:
        yield connection


async def apply(connection: asyncpg.Connection, name: str, sql: str, note: Callable[[], Awaitable[None]]) -> None:
    """Execute the statements in *sql*, and *note* that it was done, in one transaction.

    Raises:
        JournalError: it was refused, its tables stayed locked, or it ends the transaction; the message names it.
    """
    for left in reversed(range(_TRIES)):
        try:
            async with connection.transaction():
                # Without arguments the driver sends the text whole, so that it may hold many statements.
                await connection.execute(sql)
                if not connection.is_in_transaction():
                    raise JournalError(
                        f"migration {name} ends the transaction that it is applied in, so nothing takes back the half"
                        " of it that may stand: look what does, and leave out commit and rollback"
                    )
                await note()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if not left:
                raise JournalError(f"migration {name} cannot lock its tables: {error}") from error
        except asyncpg.PostgresError as error:
            raise JournalError(f"migration {name} was refused: {error}") from error
        else:
            return
