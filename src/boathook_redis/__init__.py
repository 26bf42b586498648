"""Redis or Valkey: leases the tokens of rates that several gateways share.

This module declares the package and imports none of it; docs/how-to/redis.md shows how to use it.
"""

from typing import Final

from boathook.config.packages import Package

package: Final = Package(
    name="redis",
    requires=("redis",),
    tables="boathook_redis.settings:TABLES",
    metrics="boathook_redis.metrics:METRICS",
    check="boathook_redis.settings:check",
    gateway="boathook_redis.gateway:open_gateway_part",
    doctor="boathook_redis.doctor:examine",
)
