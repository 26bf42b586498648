"""Diagnoses the optional packages that the settings use."""

from collections.abc import AsyncIterator, Callable

from boathook.config import Settings
from boathook.config.packages import packages_with_data, refuse_shared_names, resolve
from boathook.db.database import Database
from boathook.service.operating.doctor.handlers import Finding

Examine = Callable[[Settings, Database | None], AsyncIterator[Finding]]
"""Yields the findings of a package: without a database about its set-up, with one about what is stored there."""


def check(settings: Settings) -> None:
    """Check that each key has one owner, and the settings of the packages. Raises ConfigError."""
    refuse_shared_names()
    for package in settings.packages:
        if package.check is not None:
            resolve(package.check)(settings)


async def examine(settings: Settings, database: Database | None) -> AsyncIterator[Finding]:
    """Yield the findings of all packages in use, and of those that have left files; see `Examine`."""
    for package in dict.fromkeys((*settings.packages, *packages_with_data(settings.server.data_dir))):
        if package.doctor is not None:
            run: Examine = resolve(package.doctor)
            async for finding in run(settings, database):
                yield finding
