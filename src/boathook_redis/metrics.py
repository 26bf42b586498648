"""The metrics of the shared rate store."""

from typing import Final

from boathook.observability.metrics import Merge, Metric, MetricKind, register

METRICS: Final = (
    Metric("boathook_redis_unavailable", MetricKind.GAUGE,
           "1 while a gateway cannot use shared.redis; absent without it.", merge=Merge.MAX),
)  # fmt: skip

for _metric in METRICS:
    register(_metric)
