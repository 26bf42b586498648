"""The health of everything that the overview and `boathook top` show."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.db.database import Database
from boathook.domain.health import Health
from boathook.service.operating.live_stats import LiveStats
from boathook.service.operating.recipient_stats import (
    DEFAULT_RANGE,
    HANDLER_RANGE,
    STATS_RANGES,
    read_recipient_health,
    read_source_health,
)


class ActivityHealth(msgspec.Struct, frozen=True):
    """The health of all recipients and sources, each in the range of the overview."""

    recipients: Mapping[str, Health] = msgspec.field(default_factory=dict)
    sources: Mapping[str, Health] = msgspec.field(default_factory=dict)

    def add_to(self, stats: LiveStats) -> LiveStats:
        """Return live statistics with the health of the sources and recipients in them."""
        return replace(
            stats,
            sources=[replace(source, health=_word(self.sources.get(source.source))) for source in stats.sources],
            recipients=[
                replace(recipient, health=_word(health), paused_until=health and health.paused_until)
                for recipient in stats.recipients
                for health in (self.recipients.get(recipient.recipient),)
            ],
        )


def _word(health: Health | None) -> str | None:
    return None if health is None else health.state.value


async def read_activity_health(database: Database, settings: Settings) -> ActivityHealth:
    """Return the health of all recipients and sources, those that are stored too. Raises DatabaseError."""
    now = datetime.now(UTC)
    return ActivityHealth(
        await read_recipient_health(database, settings, STATS_RANGES[HANDLER_RANGE], now),
        await read_source_health(database, settings, STATS_RANGES[DEFAULT_RANGE], now),
    )
