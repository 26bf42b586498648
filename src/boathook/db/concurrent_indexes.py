"""Creates and drops indexes without blocking writers of their table.

A migration whose first line is ``-- concurrently`` is applied statement by statement, outside a transaction. Each
statement is one of two::

    create [unique] index concurrently if not exists NAME on SCHEMA.TABLE ...;
    drop index concurrently if exists SCHEMA.NAME;

No other session waits for them. They wait for every transaction of the database that began before them, whatever it
does. An interrupted migration is completed by applying it again: existing indexes are skipped, and an invalid index
is dropped first.
"""

import asyncio
import re
from typing import Final

import asyncpg

from boathook.db.statements import load
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.observability.log import get_logger

SQL = load(__file__)

_DIRECTIVE: Final = "-- concurrently"
_CREATE: Final = re.compile(
    r"create (?:unique )?index concurrently if not exists (\w+)\s+on (\w+\.\w+)[\s(].*", re.DOTALL
)
_DROP: Final = re.compile(r"drop index concurrently if exists \w+\.\w+")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_END: Final = re.compile(r";\s*$", re.MULTILINE)
LOCK_TIMEOUT: Final = "60s"
"""For each transaction that began before the build."""
LOG_INTERVAL_S: Final = 5.0
"""How often a running statement and the sessions that block it are logged."""
MAX_TRIES: Final = 6

_LOG = get_logger("migrate")


def is_concurrent(sql: str) -> bool:
    """Return whether a migration must be applied outside a transaction."""
    return sql.partition("\n")[0].rstrip() == _DIRECTIVE


async def build(connection: asyncpg.Connection, watcher: asyncpg.Connection, name: str, sql: str) -> None:
    """Execute the statements in *sql* sequentially; *watcher* is a second connection that queries what blocks them.

    Raises:
        DatabaseUnavailable: an earlier transaction stays open; the message names it and says what to do.
        DatabaseError: another kind of statement was found, or a statement failed; the message names it.
    """
    statements = _split(name, sql)
    await connection.execute(SQL["prepare_build"], LOCK_TIMEOUT)
    for statement in statements:
        await _execute_with_retries(connection, watcher, name, statement)
    await connection.execute(SQL["end_build"])


def _split(name: str, sql: str) -> list[str]:
    statements = [part.strip() for part in _END.split(_COMMENT.sub("", sql)) if part.strip()]
    for statement in statements:
        if not _CREATE.fullmatch(statement) and not _DROP.fullmatch(statement):
            raise DatabaseError(
                f"migration {name} is of the kind `{_DIRECTIVE}`, which can be repeated wherever it was cut off: write"
                " `create index concurrently if not exists NAME on SCHEMA.TABLE ...` and"
                " `drop index concurrently if exists SCHEMA.NAME` alone, not"
                f" {statement.partition(chr(10))[0]!r}"
            )
    return statements


async def _execute_with_retries(
    connection: asyncpg.Connection, watcher: asyncpg.Connection, name: str, statement: str
) -> None:
    """Execute one statement; retry it after a deadlock."""
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            await _drop_invalid_index(connection, watcher, name, statement)
            await _execute(connection, watcher, name, statement)
        except asyncpg.DeadlockDetectedError as error:
            if not tries_left:
                raise DatabaseError(f"migration {name} cannot lock its tables: {error}") from error
        except asyncpg.PostgresError as error:
            raise DatabaseError(f"migration {name} was refused: {error}") from error
        else:
            return


async def _drop_invalid_index(
    connection: asyncpg.Connection, watcher: asyncpg.Connection, name: str, statement: str
) -> None:
    index_match = _CREATE.fullmatch(statement)
    remnant = index_match and await connection.fetchval(SQL["find_remnants"], *index_match.groups())
    if remnant:
        _LOG.warning("index_half_built", migration=name, index=remnant, note="it is dropped and built again")
        await _execute(connection, watcher, name, f"drop index concurrently if exists {remnant}")


async def _execute(connection: asyncpg.Connection, watcher: asyncpg.Connection, name: str, statement: str) -> None:
    """Execute one statement, and log its progress while it runs."""
    execution = asyncio.ensure_future(connection.execute(statement))
    holders: list[str] = []
    try:
        while not (await asyncio.wait({execution}, timeout=LOG_INTERVAL_S))[0]:
            holders = await _log_waiting(connection, watcher, name, statement) or holders
        await execution
    except asyncpg.LockNotAvailableError as error:
        raise DatabaseUnavailable(
            f"migration {name} waits for transactions that began before it, {LOCK_TIMEOUT} long:"
            f" {', '.join(holders) or error}."
            " Let them end, or end them by `select pg_terminate_backend(PID)`; then run `boathook migrate` again"
        ) from error
    finally:
        execution.cancel()
        await asyncio.gather(execution, return_exceptions=True)


async def _log_waiting(
    connection: asyncpg.Connection, watcher: asyncpg.Connection, name: str, statement: str
) -> list[str]:
    rows = await watcher.fetch(SQL["list_holders"], connection.get_server_pid())
    holders = [row[0] for row in rows]
    doing = statement.partition("\n")[0]
    if holders:
        _LOG.warning("migration_waits", migration=name, statement=doing, holders="; ".join(holders))
    else:
        _LOG.info("migration_builds", migration=name, statement=doing)
    return holders
