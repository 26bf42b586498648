"""The charts of the last hour, day and week: rows of numbers, shown as tables, and as charts where scripts run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from boathook.observability.metric_snapshot import MetricSnapshot
from boathook.service.dashboard import Sample

Number = float | None


@dataclass(frozen=True, slots=True)
class ChartRange:
    """How far back charts go, and in which steps."""

    name: str
    duration: timedelta
    step_s: int
    cache_s: float
    """How long charts of it are good for."""


class ChartRangeName(StrEnum):
    """The spans there are."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


CHART_RANGES: Final = {
    ChartRangeName.HOUR: ChartRange("hour", timedelta(hours=1), 30, 10.0),
    ChartRangeName.DAY: ChartRange("day", timedelta(days=1), 600, 60.0),
    ChartRangeName.WEEK: ChartRange("week", timedelta(days=7), 3600, 300.0),
}


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One line of a chart."""

    title: str
    value_of: Callable[[MetricSnapshot], Number]


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """What one chart shows."""

    key: str
    title: str
    unit: str
    lines: tuple[ChartSeries, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its numbers."""

    drawing: ChartSpec
    rows: tuple[tuple[datetime, tuple[Number, ...]], ...]
    """When a step begins, and a number of each line; None where nothing is known."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return all(number is None for _, numbers in self.rows for number in numbers)


def _each_second(count: Callable[[MetricSnapshot], float]) -> Callable[[MetricSnapshot], Number]:
    return lambda snapshot: round(count(snapshot) / snapshot.span_s, 3) if snapshot.span_s else None


def _each_minute(count: Callable[[MetricSnapshot], float]) -> Callable[[MetricSnapshot], Number]:
    return lambda snapshot: round(60 * count(snapshot) / snapshot.span_s, 2) if snapshot.span_s else None


def _ack_quantile_ms(share: float) -> Callable[[MetricSnapshot], Number]:
    def value_of(snapshot: MetricSnapshot) -> Number:
        seconds = snapshot.quantile("boathook_ack_seconds", share)
        return None if seconds is None else round(seconds * 1000, 2)

    return value_of


CHART_SPECS: Final = (
    ChartSpec("throughput", "Throughput", "per second", (
        ChartSeries("accepted", _each_second(lambda snapshot: snapshot.arrived.accepted)),
        ChartSeries("deliveries done", _each_second(lambda one: one.worked.succeeded + one.worked.ignored)),
        ChartSeries("requests to endpoints", _each_second(lambda snapshot: snapshot.sends.ended)),
    )),
    ChartSpec("ack", "Acknowledgement", "milliseconds", (
        ChartSeries("p50", _ack_quantile_ms(0.5)),
        ChartSeries("p99", _ack_quantile_ms(0.99)),
    )),
    ChartSpec("backlog", "Backlog", "deliveries, maximum per step", (
        ChartSeries("due", lambda snapshot: snapshot.backlog.due),
        ChartSeries("later", lambda snapshot: snapshot.backlog.later),
        ChartSeries("dead", lambda snapshot: snapshot.backlog.dead),
        ChartSeries("in the spool", lambda snapshot: snapshot.gauge("boathook_spool_records")),
    )),
    ChartSpec("trouble", "Trouble", "per minute", (
        ChartSeries("attempts failed", _each_minute(lambda snapshot: snapshot.worked.failed)),
        ChartSeries("requests rejected", _each_minute(lambda snapshot: snapshot.arrived.rejected)),
        ChartSeries("answered 5xx", _each_minute(lambda snapshot: snapshot.arrived.faults)),
    )),
)  # fmt: skip


def build_charts(samples: Sequence[Sample], span: ChartRange, now: datetime) -> list[Chart]:
    """Return all charts of a span, with a row for each of its steps."""
    by_step = {sample.at: sample.snapshot for sample in samples}
    ats = list(_steps(span, now))
    return [Chart(drawing, tuple((at, _numbers(drawing, by_step.get(at))) for at in ats)) for drawing in CHART_SPECS]


def _steps(span: ChartRange, now: datetime) -> Iterable[datetime]:
    """Yield when each step began that lies in the span; the one under way is left out, as its numbers still move."""
    last = int(now.timestamp()) // span.step_s * span.step_s
    for second in range(last - int(span.duration.total_seconds()), last, span.step_s):
        yield datetime.fromtimestamp(second, UTC)


def _numbers(drawing: ChartSpec, snapshot: MetricSnapshot | None) -> tuple[Number, ...]:
    return tuple(None if snapshot is None else line.value_of(snapshot) for line in drawing.lines)
