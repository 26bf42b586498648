"""Reads all sources with their health, also while there is no database: for the command line and the doctor."""

from datetime import UTC, datetime

from boathook.config import Settings
from boathook.db import source_secrets
from boathook.db.database import Database
from boathook.db.live_settings import LiveSettings
from boathook.domain.errors import ConfigError, DatabaseError
from boathook.ingest.secrets_cache import SecretsCache
from boathook.service.database import ProgressCallback, open_database
from boathook.service.operating.recipient_stats import DEFAULT_RANGE, STATS_RANGES, read_source_health
from boathook.service.receiving.sources import KnownSources, read_saved


async def read_known(settings: Settings, *, progress: ProgressCallback | None = None) -> KnownSources:
    """Return all sources; without a database, those that a gateway of this host saved last.

    Args:
        settings: the configured sources, and the database.
        progress: called while an embedded server starts.

    Raises:
        ConfigError: the URL of the database cannot be read.
    """
    settings.database_url()
    try:
        async with open_database(settings, purpose="cli", progress=progress) as database:
            return await read_stored(settings, database)
    except (ConfigError, DatabaseError) as error:
        # ConfigError: there is no database yet, or its schema is not current.
        return read_saved(settings, str(error) if isinstance(error, DatabaseError) else "")


async def read_stored(settings: Settings, database: Database) -> KnownSources:
    """Return all sources, with those of the database. Raises DatabaseError."""
    live = LiveSettings(settings)
    await live.refresh(database)
    health = await read_source_health(database, live.current, STATS_RANGES[DEFAULT_RANGE], datetime.now(UTC))
    return KnownSources(live, SecretsCache(live.current, await source_secrets.list_all(database)), health)
