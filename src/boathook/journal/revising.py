"""How revisions are applied, boathook's own and those of apps: by one process at a time, each wholly or not at all.

One that begins with the line ``-- concurrently`` is the exception: it builds indexes outside a transaction, and can be
repeated wherever it was cut off (`building`).
"""

import contextlib
import itertools
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import asyncpg

from boathook.domain.errors import JournalError, JournalUnavailable
from boathook.journal.building import build, is_concurrent
from boathook.journal.connection import connect
from boathook.journal.database import dialled, translated
from boathook.telemetry.log import get_logger

_CONNECT_TIMEOUT_S: Final = 10.0
_TURN_S: Final = 300.0
"""How long to wait while another process migrates the same database."""
_ASK_S: Final = 0.2
_TELL_S: Final = 10.0
"""How often it is told that another process is waited for."""
_LOCK_TIMEOUT: Final = "5s"
"""How long a revision may wait for a table, and so hold up those who queue for it behind the revision."""
_TRIES: Final = 6
_TAKE_TURN: Final = "select pg_try_advisory_lock(hashtextextended('boathook.migrate', 0))"
"""Asked again and again: who waited within the statement would have a snapshot, for which a build of the one whose turn
it is would wait in its turn."""

_LOG = get_logger("migrate")


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
        JournalUnavailable: the server cannot be reached, or another process has been at it for too long.
    """
    async with session(url) as connection:
        with translated():
            await _take_turn(connection)
        yield connection


async def _take_turn(connection: asyncpg.Connection) -> None:
    for asked in itertools.count(1):
        if await connection.fetchval(_TAKE_TURN):
            return
        if asked * _ASK_S >= _TURN_S:
            raise JournalUnavailable(
                f"another process has been migrating this database for {_TURN_S:.0f} s: look what it waits for in its"
                " log, or at `boathook:migrate` in pg_stat_activity, and try again once it is done"
            )
        if asked % round(_TELL_S / _ASK_S) == 0:
            _LOG.info("migration_turn", note="another process migrates this database; waiting for it to be done")
        await sleep(_ASK_S)


@contextlib.asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Lend a connection with the bounds of a revision; what apps' revisions leave of its session is theirs alone."""
    settings = {"lock_timeout": _LOCK_TIMEOUT, "client_min_messages": "warning"}
    async with connected(url, application_name="boathook:migrate", **settings) as connection:
        yield connection


Note = Callable[[], Awaitable[None]]
"""Remembers that a revision was applied."""


async def apply(url: str, connection: asyncpg.Connection, name: str, sql: str, note: Note) -> None:
    """Execute the statements in *sql* and *note* that it was done: in one transaction, unless it is concurrent.

    Raises:
        JournalUnavailable: it is concurrent, and transactions that began before stay open; the message names them.
        JournalError: it was refused, its tables stayed locked, or it ends the transaction; the message names it.
    """
    if not is_concurrent(sql):
        await _apply_whole(connection, name, sql, note)
        return
    async with session(url) as watcher:
        await build(connection, watcher, name, sql)
    async with connection.transaction():
        await note()


async def _apply_whole(connection: asyncpg.Connection, name: str, sql: str, note: Note) -> None:
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
        except asyncpg.ActiveSQLTransactionError as error:
            raise JournalError(
                f"migration {name} was refused: {error}; one that builds or drops indexes `concurrently` has the first"
                " line `-- concurrently`, and holds nothing else"
            ) from error
        except asyncpg.PostgresError as error:
            raise JournalError(f"migration {name} was refused: {error}") from error
        else:
            return
