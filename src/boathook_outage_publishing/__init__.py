"""Publishes messages of the API while PostgreSQL is unavailable.

This module declares the package and imports none of it; docs/how-to/sending.md says what is accepted meanwhile.

settings        the key of [buffer] about it, and whether messages are accepted
publisher       publishes messages through a gateway's intake, or into a host's spool
access_copy     decides about API keys and applications without PostgreSQL; store: reads them from it
metrics         counts what was accepted
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="outage_publishing",
    tables="boathook_outage_publishing.settings:TABLES",
    metrics="boathook_outage_publishing.metrics:METRICS",
    preload={"console": ("boathook_outage_publishing.publisher",)},
    buffered_publisher="boathook_outage_publishing.publisher:open_publisher",
    send_buffered="boathook_outage_publishing.publisher:send_without_database",
)
