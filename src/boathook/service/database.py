"""Opens the configured database, migrates its schema, and reads the state of apps in it."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from boathook.config import Settings
from boathook.config.data_dir import prepare_data_dir
from boathook.db import health, migrations, route_registry
from boathook.db.database import Connection
from boathook.db.database import Database as Database  # noqa: PLC0414 - re-exported
from boathook.db.live_settings import LiveSettings
from boathook.domain.errors import ConfigError, DatabaseError

Migrations = Sequence[tuple[str, Path]]
"""The name of each app with its own tables, and the folder of its migrations."""
ProgressCallback = Callable[[str], None]
"""Called with each step of starting an embedded PostgreSQL."""


@contextlib.asynccontextmanager
async def server_url(
    settings: Settings, *, may_create: bool = False, progress: ProgressCallback | None = None
) -> AsyncIterator[str]:
    """Yield the URL of the database server; an embedded one runs at least as long as the block.

    Raises:
        ConfigError: no server is configured and there is no embedded one yet, unless *may_create*.
    """
    if url := settings.database_url():
        yield url
        return
    home = settings.server.data_dir
    if not may_create and not (home / "postgres").exists():
        raise ConfigError(
            f"no database: database.url is not set and {home} has no embedded database;"
            " set database.url, or run `boathook serve` or `boathook migrate`"
        )
    # Not needed if a server is configured.
    from boathook.db.embedded import start_embedded

    prepare_data_dir(home)
    server = await start_embedded(home, progress=progress)
    try:
        yield server.url
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def open_database(
    settings: Settings,
    *,
    purpose: str,
    statement_timeout_s: float | None = None,
    progress: ProgressCallback | None = None,
) -> AsyncIterator[Database]:
    """Yield the database, for the functions of this package.

    Args:
        settings: contain the database URL.
        purpose: shown by PostgreSQL as the name of its sessions.
        statement_timeout_s: overrides the settings.
        progress: called while an embedded server starts.

    Raises:
        ConfigError: there is no database yet, or an error shows that its schema is not current.
        DatabaseError: it cannot be reached.
    """
    async with server_url(settings, progress=progress) as url:
        database = await Database.open(
            url,
            purpose=purpose,
            size=4,
            connect_timeout_s=settings.database.connect_timeout_s,
            statement_timeout_s=statement_timeout_s or settings.database.statement_timeout_s,
            # A gateway has to notice an outage before its senders give up; a command may wait for a busy server.
            min_timeout_s=settings.database.connect_timeout_s,
        )
        try:
            yield database
        except DatabaseError as error:
            with contextlib.suppress(DatabaseError):
                await require_current(database, cause=error)
            raise
        finally:
            await database.close()


async def with_stored_sources(settings: Settings, database: Database | Connection) -> Settings:
    """Return the settings with the sources that are stored in the database. Raises DatabaseError."""
    live = LiveSettings(settings)
    await live.refresh(database)
    return live.current


async def migrate(
    settings: Settings,
    apps: Migrations = (),
    *,
    only_pre: bool = False,
    progress: ProgressCallback | None = None,
) -> list[str]:
    """Apply the pending migrations and return their names; create an embedded server if needed.

    Args:
        settings: contain the database URL.
        apps: apps whose tables are migrated too.
        only_pre: stop before the first migration that is incompatible with an older boathook; skip the apps' tables.
        progress: called while an embedded server starts.

    Raises:
        ConfigError: the migrations of an app cannot be read.
        DatabaseError: the server cannot be reached, or refuses a migration; the message names it.
    """
    async with server_url(settings, may_create=True, progress=progress) as url:
        return await migrations.migrate(url, apps, only_pre=only_pre)


async def list_pending(
    settings: Settings, apps: Migrations = (), *, progress: ProgressCallback | None = None
) -> list[str]:
    """Return the names of the pending migrations. Raises as `migrate`, and as `server_url`."""
    async with server_url(settings, progress=progress) as url:
        return await migrations.list_pending(url, apps)


async def require_current(
    database: Database | str, apps: Migrations = (), *, cause: BaseException | None = None
) -> None:
    """Raise ConfigError, caused by *cause*, if a database has pending migrations; it may be passed as a URL."""
    if pending := await migrations.list_pending(database, apps):
        raise ConfigError(f"database migrations are missing: {', '.join(pending)}; run `boathook migrate`") from cause


def with_url(settings: Settings, url: str) -> Settings:
    """Return the settings with the URL of the server that runs, which may be an embedded one."""
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})


class ConnectionNeed(msgspec.Struct, frozen=True):
    """The connections to PostgreSQL that the processes of this host open, as listed in docs/how-to/scale.md."""

    least: int
    """Without work."""
    most: int


def count_connections(settings: Settings) -> ConnectionNeed:
    """Return the connections that the processes of these settings open."""
    needs = connections_by_role(settings).values()
    return ConnectionNeed(sum(need.least for need in needs), sum(need.most for need in needs))


def connections_by_role(settings: Settings) -> dict[str, ConnectionNeed]:
    """Return the connections of all processes of each role: the sizes of their pools, and one to watch each server.

    Apps that are loaded have two more pools in each process that runs them. Chores of apps are not known here.
    """
    server, database = settings.server, settings.database
    apps = 11 if settings.apps.load else 0
    needs = {"supervisor": ConnectionNeed(2, 6)}
    if "gateway" in server.roles:
        gateway = database.ingest_connections + 8 + 2 * settings.has_package_buffer + apps
        needs["gateway"] = ConnectionNeed(3 * server.gateways, gateway * server.gateways)
        if "console" in server.roles:
            needs["console"] = ConnectionNeed(3 * server.gateways, 9 * server.gateways)
    if "worker" in server.roles:
        has_handlers = bool(server.app or settings.apps.load or settings.has_package_apps)
        workers = server.workers + 1  # and the one for suspects
        needs["worker"] = ConnectionNeed(3 * workers * has_handlers, (database.worker_connections + 3 + apps) * workers)
        needs["sender"] = ConnectionNeed(2 * server.senders, 6 * server.senders)
    if "keeper" in server.roles:
        needs["keeper"] = ConnectionNeed(6, 8 + apps)
    return needs


async def check_connections(settings: Settings) -> str | None:
    """Return why PostgreSQL may have too few connections for this host under load; None if it has enough.

    Raises:
        ConfigError: it has too few for the processes to start.
        DatabaseUnavailable: it cannot be reached.
    """
    need, limit = count_connections(settings), await health.read_connection_limit(settings.database_url())
    text = f"{limit.name} allows {limit.number} connections; the processes of this host open"
    fix = f"Raise it to {need.most} or more, or lower server.workers, server.gateways or database.worker_connections."
    if limit.number < need.least:
        raise ConfigError(f"{text} at least {need.least}, and up to {need.most}. {fix}")
    return f"{text} up to {need.most}. {fix}" if limit.number < need.most else None


class KnownApps(msgspec.Struct, frozen=True):
    """The state of apps in the database."""

    pending: Sequence[str]
    """Names of the pending migrations."""
    owners: Sequence[str]
    """Modules that have registered handlers."""

    def pending_of(self, app: str) -> list[str]:
        """Return the pending migrations of one app, without the app's name."""
        return [name.partition("/")[2] for name in self.pending if name.startswith(f"{app}/")]


async def read_known(database: Database, apps: Migrations) -> KnownApps:
    """Return the state of apps in the database. Raises ConfigError if the migrations of an app cannot be read."""
    return KnownApps(await migrations.list_pending(database, apps), await route_registry.list_owners(database))


async def forget(database: Database, module: str) -> None:
    """Remove the handlers of an app; new events get no deliveries to them. Raises ConfigError if it has none."""
    if module not in await route_registry.list_owners(database):
        raise ConfigError(f"unknown app {module}; see `boathook apps list`")
    await route_registry.register(database, module, [])
