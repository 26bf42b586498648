"""Applies numbered SQL migrations to a database: boathook's own, in `migrations/`, then those of apps in their folders.

A migration is a file ``NNNN_what.sql``. It is applied once, in one transaction, by one process at a time. The table
``boathook.migration`` stores its name with the hash of its text: a released file is never changed, a change goes into a
new one. One of boathook's own files may be named ``NNNN_post_what.sql``: it is safe only when no older boathook runs. A
rolling upgrade therefore runs ``migrate(url, only_pre=True)``, replaces the processes, and runs ``migrate(url)``.

A file with the first line ``-- concurrently`` builds indexes of tables in use. It is applied outside a transaction, and
can be repeated after any interruption (`concurrent_indexes`). A line ``-- function: ...`` in boathook's own files
stands for an SQL function, and ``-- include: ...`` in an app's for tables that apps share (`included_migrations`).
"""

import contextlib
import functools
import hashlib
import itertools
import re
from asyncio import sleep
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import asyncpg
import msgspec

from boathook.db.concurrent_indexes import build, is_concurrent
from boathook.db.connection import connect
from boathook.db.database import Database, check_usable, translate_connect_errors, translate_errors
from boathook.db.included_migrations import expand, expand_functions
from boathook.db.statements import load
from boathook.domain.errors import ConfigError, DatabaseError, DatabaseUnavailable
from boathook.observability.log import get_logger

SQL = load(__file__)
MIGRATIONS = Path(__file__).with_name("migrations")
CORE: Final = "boathook"
_FILE: Final = re.compile(r"(\d{4})_\w+\.sql")
_CONNECT_TIMEOUT_S: Final = 10.0
_MAX_WAIT_S: Final = 300.0
"""How long to wait while another process migrates the same database."""
_POLL_INTERVAL_S: Final = 0.2
_LOG_INTERVAL_S: Final = 10.0
LOCK_TIMEOUT: Final = "5s"
"""How long a migration may wait for a table, and so block the sessions that queue behind it."""
_MAX_TRIES: Final = 6
TRY_LOCK: Final = "select pg_try_advisory_lock(hashtextextended('boathook.migrate', 0))"
"""Polled: a process that waited in the statement would hold a snapshot, for which a concurrent build would wait."""

_LOG = get_logger("migrate")


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One migration file."""

    app: str
    """The app's name, or `CORE`."""
    name: str
    """The file name without its suffix."""
    sql: str

    @property
    def title(self) -> str:
        """The displayed name, such as ``0001_initial`` or ``billing/0001_first``."""
        return self.name if self.app == CORE else f"{self.app}/{self.name}"

    @property
    def sha256(self) -> bytes:
        """The hash of its text."""
        return hashlib.sha256(self.sql.encode()).digest()

    @property
    def is_post(self) -> bool:
        """Whether it may be applied only when no older boathook runs."""
        return self.app == CORE and "_post_" in self.name


async def migrate(url: str, apps: Sequence[tuple[str, Path]] = (), *, only_pre: bool = False) -> list[str]:
    """Apply the pending migrations and return their titles.

    Processes that start concurrently may all call it. Applied migrations that are unknown here, such as those of a
    newer boathook, are ignored.

    Args:
        apps: the name of each app with the folder of its migrations.
        only_pre: stop before the first *post* migration; those of apps are skipped too.

    Raises:
        ConfigError: an app's folder does not exist, or a file in it has an invalid name or cannot be read.
        UnsafeDatabase: the server is too old, or the database's encoding is not UTF8.
        DatabaseUnavailable: the server cannot be reached or written to, another process has been migrating for too
            long, or an index waits for earlier transactions. Completed work is kept, and the next call continues.
        DatabaseError: a migration failed, or was changed after it had been applied; the message names it.
    """
    migrations = _read(apps, only_pre=only_pre)
    await check_usable(url)
    async with _lock(url) as connection:
        pending = _select_pending(migrations, await _applied(connection))
        for migration in pending:
            # A new session for each migration, so that settings of one do not affect the next.
            async with _session(url) as session:
                await _apply(url, session, migration)
    return [migration.title for migration in pending]


async def list_pending(database: Database | str, apps: Sequence[tuple[str, Path]] = ()) -> list[str]:
    """Return the titles of the pending migrations of a database, or of the one at a URL. Raises as `migrate`."""
    migrations = _read(apps)
    if isinstance(database, Database):
        pending = _select_pending(migrations, await _applied(database))
    else:
        async with connected(database) as connection:
            pending = _select_pending(migrations, await _applied(connection))
    return [migration.title for migration in pending]


def _read(apps: Sequence[tuple[str, Path]], *, only_pre: bool = False) -> list[Migration]:
    own = read_own(MIGRATIONS)
    if only_pre:
        return list(itertools.takewhile(lambda migration: not migration.is_post, own))
    return [*own, *(migration for app, folder in apps for migration in _read_folder(app, folder))]


@functools.cache
def read_own(folder: Path) -> Sequence[Migration]:
    """Return boathook's own migrations, read once, because each health check of a gateway needs them."""
    return _read_folder(CORE, folder)


def _read_folder(app: str, folder: Path) -> list[Migration]:
    if not folder.is_dir():
        raise ConfigError(f"{app}: there is no folder {folder} with its migrations")
    numbers: dict[str, str] = {}
    migrations = []
    for path in sorted(folder.glob("*.sql")):
        file_match = _FILE.fullmatch(path.name)
        if file_match is None:
            raise ConfigError(f"{path}: call it NNNN_what.sql, such as 0001_first.sql")
        if (other := numbers.setdefault(file_match[1], path.name)) != path.name:
            raise ConfigError(f"{path} has the number of {other}; give the later one the next number")
        sql = _read_file(path)
        expanded = expand_functions(sql) if app == CORE else expand(sql, app, str(path))
        migrations.append(Migration(app=app, name=path.stem, sql=expanded))
    return migrations


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


async def _applied(database: Database | asyncpg.Connection) -> dict[tuple[str, str], bytes]:
    with translate_errors():
        if not await database.fetchval(SQL["find_migrations"]):
            return {}
        rows = await database.fetch(SQL["read_migrations"])
    return {(row["app"], row["name"]): row["sha256"] for row in rows}


def _select_pending(migrations: Sequence[Migration], applied: Mapping[tuple[str, str], bytes]) -> list[Migration]:
    for migration in migrations:
        before = applied.get((migration.app, migration.name))
        if before is not None and before != migration.sha256:
            raise DatabaseError(
                f"migration {migration.title} was changed after it had been applied to this database:"
                " give the file its former text, and put the change into a new one"
            )
    return [migration for migration in migrations if (migration.app, migration.name) not in applied]


async def _apply(url: str, connection: asyncpg.Connection, migration: Migration) -> None:
    """Execute a migration and record it: in one transaction, unless it is concurrent."""
    if not is_concurrent(migration.sql):
        await _apply_in_transaction(connection, migration)
        return
    async with _session(url) as watcher:
        await build(connection, watcher, migration.title, migration.sql)
    async with connection.transaction():
        await _record_applied(connection, migration)


async def _apply_in_transaction(connection: asyncpg.Connection, migration: Migration) -> None:
    title = migration.title
    for tries_left in reversed(range(_MAX_TRIES)):
        try:
            async with connection.transaction():
                # Without arguments the driver sends the text unchanged, so it may contain several statements.
                await connection.execute(migration.sql)
                if not connection.is_in_transaction():
                    raise DatabaseError(
                        f"migration {title} ends the transaction that it is applied in, so a part of it may be"
                        " committed; find out which, and remove commit and rollback from the file"
                    )
                await _record_applied(connection, migration)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if not tries_left:
                raise DatabaseError(f"migration {title} cannot lock its tables: {error}") from error
        except asyncpg.ActiveSQLTransactionError as error:
            raise DatabaseError(
                f"migration {title} was refused: {error}; one that builds or drops indexes `concurrently` has the first"
                " line `-- concurrently`, and contains nothing else"
            ) from error
        except asyncpg.InsufficientPrivilegeError as error:
            fix = await read_missing_grant(connection) or "use a role that owns what the migration changes"
            raise DatabaseError(f"migration {title} was refused: {error}; {fix}") from error
        except asyncpg.PostgresError as error:
            raise DatabaseError(f"migration {title} was refused: {error}") from error
        else:
            return


async def read_missing_grant(database: Database | asyncpg.Connection) -> str | None:
    """Return the statement that gives this role a privilege to migrate which it lacks; None if it lacks none."""
    row = await database.fetchrow(SQL["read_privileges"])
    assert row is not None  # the query has no condition
    if not row["may_create"]:
        grant = f'grant create on database "{row["database"]}" to "{row["role"]}"'
    elif row["owner"] is not None and not row["is_owner"]:
        grant = f'grant "{row["owner"]}" to "{row["role"]}"'
    else:
        return None
    return f"as the database's owner or a superuser run: {grant}"


async def _record_applied(connection: asyncpg.Connection, migration: Migration) -> None:
    await connection.execute(SQL["note_migration"], migration.app, migration.name, migration.sha256)


@contextlib.asynccontextmanager
async def connected(url: str, **server_settings: str) -> AsyncIterator[asyncpg.Connection]:
    """Open a separate connection. Raises DatabaseUnavailable if the server cannot be reached."""
    with translate_connect_errors():
        connection = await connect(url, timeout=_CONNECT_TIMEOUT_S, server_settings=server_settings)
    try:
        yield connection
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


@contextlib.asynccontextmanager
async def _session(url: str) -> AsyncIterator[asyncpg.Connection]:
    settings = {"lock_timeout": LOCK_TIMEOUT, "client_min_messages": "warning"}
    async with connected(url, application_name="boathook:migrate", **settings) as connection:
        yield connection


@contextlib.asynccontextmanager
async def _lock(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection that holds the migration lock of this database."""
    async with _session(url) as connection:
        with translate_errors():
            await _take_lock(connection)
        yield connection


async def _take_lock(connection: asyncpg.Connection) -> None:
    for polls in itertools.count(1):
        if await connection.fetchval(TRY_LOCK):
            return
        if polls * _POLL_INTERVAL_S >= _MAX_WAIT_S:
            raise DatabaseUnavailable(
                f"another process has been migrating this database for {_MAX_WAIT_S:.0f} s: check its log or"
                " `boathook:migrate` in pg_stat_activity for what it is waiting on, and retry when it is done"
            )
        if polls % round(_LOG_INTERVAL_S / _POLL_INTERVAL_S) == 0:
            _LOG.info("migration_lock_wait", note="another process migrates this database; waiting for it to be done")
        await sleep(_POLL_INTERVAL_S)
