"""Reads what the database knows of apps, and ends the handlers of one that no host loads any more."""

from collections.abc import Sequence
from dataclasses import dataclass

from boathook.db import migrations, route_registry
from boathook.db.database import Database
from boathook.domain.errors import ConfigError
from boathook.service.database import Migrations


@dataclass(frozen=True, slots=True)
class KnownApps:
    """What the database knows of apps."""

    pending: Sequence[str]
    """Names of the migrations that it lacks."""
    owners: Sequence[str]
    """Modules that have registered handlers."""

    def pending_of(self, app: str) -> list[str]:
        """Return the migrations that it lacks of one app, without the app's name."""
        return [name.partition("/")[2] for name in self.pending if name.startswith(f"{app}/")]


async def read_known(database: Database, apps: Migrations) -> KnownApps:
    """Return what the database knows. Raises ConfigError if the migrations of an app cannot be read."""
    return KnownApps(await migrations.list_pending(database, apps), await route_registry.list_owners(database))


async def forget(database: Database, module: str) -> None:
    """Remove the handlers of an app: no further event gets a delivery for them. Raises ConfigError if it has none."""
    if module not in await route_registry.list_owners(database):
        raise ConfigError(f"unknown app {module}; see `boathook apps list`")
    await route_registry.register(database, module, [])
