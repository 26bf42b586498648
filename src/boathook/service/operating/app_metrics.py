"""The history of the metrics that apps declare: for the apps, the console and the command line."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from boathook.db.database import Database
from boathook.db.metric_samples import APP_RETENTION_S, APP_STEP_S, read_app_history
from boathook.domain.errors import InvalidValue, NotFound
from boathook.handlers.metric_history import MetricPoint
from boathook.observability.metrics import APP_METRICS, MetricKind

MAX_POINTS: Final = 2_000
_MAX_SERIES: Final = 200
"""Series of an app that are shown."""
QUANTILE: Final = 0.95
"""The quantile that is shown of histograms."""


class AppSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One series of an app's metric over a time."""

    metric: str
    kind: MetricKind
    help: str
    labels: str
    """The values of its labels, such as ``entity=car``; empty without labels."""
    values: Sequence[float | None]
    """Of each point: a counter's increase, a gauge's value, or a histogram's 95th percentile."""

    @property
    def latest(self) -> float | None:
        """The last value that is known."""
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def total(self) -> float:
        """The sum of the values, which is the increase of a counter."""
        return sum(value or 0.0 for value in self.values)


def list_apps() -> list[str]:
    """Return the names of the apps that have declared metrics in this process."""
    return sorted(name for name in APP_METRICS if name)


async def read_history(database: Database, app: str, *, minutes: float, step_s: int = APP_STEP_S) -> list[MetricPoint]:
    """Return the history of an app's metrics, oldest first.

    Raises:
        InvalidValue: an argument is out of range.
        DatabaseUnavailable: PostgreSQL cannot be reached.
    """
    if not 0 < minutes * 60 <= APP_RETENTION_S:
        raise InvalidValue(
            f"must be above 0 and at most {APP_RETENTION_S // 60}: older minutes are not kept", "minutes"
        )
    if step_s < APP_STEP_S or step_s % APP_STEP_S:
        raise InvalidValue(f"must be a multiple of {APP_STEP_S}", "step_s")
    if minutes * 60 / step_s > MAX_POINTS:
        raise InvalidValue(f"must be longer: {minutes:g} minutes have more than {MAX_POINTS} points of it", "step_s")
    metrics = APP_METRICS.get(app, {})
    since = datetime.now(UTC) - timedelta(minutes=minutes)
    samples = await read_app_history(database, since, step_s, metrics.keys())
    return [MetricPoint(sample.at, sample.snapshot, metrics) for sample in samples]


async def read_series(database: Database, app: str, *, minutes: float, step_s: int) -> list[AppSeries]:
    """Return all series of an app by metric and labels, with a value for each step, None where nothing is known.

    Raises:
        NotFound: no loaded app of this name declares metrics.
        InvalidValue, DatabaseUnavailable: as `read_history`.
    """
    if app not in APP_METRICS:
        raise NotFound(f"no loaded app {app!r} declares metrics; those that do are {', '.join(list_apps()) or 'none'}")
    points = await read_history(database, app, minutes=minutes, step_s=step_s)
    by_step = {int(point.at.timestamp()) // step_s: point for point in points}
    last = int(datetime.now(UTC).timestamp()) // step_s
    steps = range(last - round(minutes * 60 / step_s) + 1, last + 1)
    series = []
    for name, metric in sorted(APP_METRICS[app].items()):
        keys = sorted({key for point in points for key in point.series(name)})
        for key in keys[:_MAX_SERIES]:
            labels = dict(zip(metric.labels, key, strict=True))
            values = [_value(by_step[step], name, metric.kind, labels) if step in by_step else None for step in steps]
            label_text = ", ".join(f"{label}={text}" for label, text in labels.items())
            series.append(AppSeries(metric=name, kind=metric.kind, help=metric.help, labels=label_text, values=values))
    return series


def _value(point: MetricPoint, name: str, kind: MetricKind, labels: dict[str, str]) -> float | None:
    is_histogram = kind is MetricKind.HISTOGRAM
    return point.quantile(name, QUANTILE, **labels) if is_histogram else point.value(name, **labels)
