"""The key of [buffer] about publishing while PostgreSQL is unavailable."""

from collections.abc import Mapping
from typing import Final

from boathook.config import Settings
from boathook.config.packages import PackageTable
from boathook.config.types import HoursOrZero


class PublishingTable(PackageTable):
    """How long API keys are good without PostgreSQL."""

    key_max_age_h: HoursOrZero
    """How long ago PostgreSQL may have confirmed an API key that publishes while PostgreSQL is unavailable."""


TABLES: Final[Mapping[str, type[PackageTable]]] = {"buffer": PublishingTable}


def max_age_s(settings: Settings) -> float:
    """Return how many seconds a key is good; 0 if it never is."""
    table = settings.table(PublishingTable)
    return 0.0 if table is None else table.key_max_age_h * 3600


def publishes_without_database(settings: Settings) -> bool:
    """Return whether messages are accepted while PostgreSQL is unavailable, which has the schemas of payloads."""
    has_copy = max_age_s(settings) > 0 and not settings.outbound.validate_payloads
    return settings.accepts_without_database and has_copy
