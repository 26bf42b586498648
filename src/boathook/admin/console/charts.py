"""The charts of the last hour, day and week: rows of numbers, shown as tables, and as charts where scripts run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from boathook.journal.samples import Sample
from boathook.telemetry.tally import Tally

Number = float | None


@dataclass(frozen=True, slots=True)
class Span:
    """How far back charts go, and in which steps."""

    name: str
    reach: timedelta
    step_s: int
    fresh_s: float
    """How long charts of it are good for."""


class SpanName(StrEnum):
    """The spans there are."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"


SPANS: Final = {
    SpanName.HOUR: Span("hour", timedelta(hours=1), 30, 10.0),
    SpanName.DAY: Span("day", timedelta(days=1), 600, 60.0),
    SpanName.WEEK: Span("week", timedelta(days=7), 3600, 300.0),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    title: str
    of: Callable[[Tally], Number]


@dataclass(frozen=True, slots=True)
class Drawing:
    """What one chart shows."""

    key: str
    title: str
    unit: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its numbers."""

    drawing: Drawing
    rows: tuple[tuple[datetime, tuple[Number, ...]], ...]
    """When a step begins, and a number of each line; None where nothing is known."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return all(number is None for _, numbers in self.rows for number in numbers)


def _each_second(count: Callable[[Tally], int]) -> Callable[[Tally], Number]:
    return lambda tally: round(count(tally) / tally.span_s, 3) if tally.span_s else None


def _each_minute(count: Callable[[Tally], int]) -> Callable[[Tally], Number]:
    return lambda tally: round(60 * count(tally) / tally.span_s, 2) if tally.span_s else None


def _ms(share: float) -> Callable[[Tally], Number]:
    def of(tally: Tally) -> Number:
        seconds = tally.quantile("ack", share)
        return None if seconds is None else round(seconds * 1000, 2)

    return of


DRAWINGS: Final = (
    Drawing("throughput", "Throughput", "each second", (
        Line("accepted", _each_second(lambda tally: tally.arrived.accepted)),
        Line("deliveries done", _each_second(lambda tally: tally.worked.succeeded + tally.worked.ignored)),
        Line("requests to endpoints", _each_second(lambda tally: tally.sends.ended)),
    )),
    Drawing("ack", "Acknowledgement", "milliseconds", (
        Line("half are faster than", _ms(0.5)),
        Line("99 % are faster than", _ms(0.99)),
    )),
    Drawing("backlog", "Backlog", "deliveries, the most in each step", (
        Line("due", lambda tally: tally.backlog.due),
        Line("later", lambda tally: tally.backlog.later),
        Line("dead", lambda tally: tally.backlog.dead),
        Line("in the spool", lambda tally: tally.spool_records),
    )),
    Drawing("trouble", "Trouble", "each minute", (
        Line("attempts failed", _each_minute(lambda tally: tally.worked.failed)),
        Line("requests rejected", _each_minute(lambda tally: tally.arrived.rejected)),
        Line("answered 5xx", _each_minute(lambda tally: tally.arrived.faults)),
    )),
)  # fmt: skip


def draw(samples: Sequence[Sample], span: Span, now: datetime) -> list[Chart]:
    """Return all charts of a span, with a row for each of its steps."""
    tallies = {sample.at: sample.tally for sample in samples}
    ats = list(_steps(span, now))
    return [Chart(drawing, tuple((at, _numbers(drawing, tallies.get(at))) for at in ats)) for drawing in DRAWINGS]


def _steps(span: Span, now: datetime) -> Iterable[datetime]:
    """Yield when each step began that lies in the span; the one under way is left out, as its numbers still move."""
    last = int(now.timestamp()) // span.step_s * span.step_s
    for second in range(last - int(span.reach.total_seconds()), last, span.step_s):
        yield datetime.fromtimestamp(second, UTC)


def _numbers(drawing: Drawing, tally: Tally | None) -> tuple[Number, ...]:
    return tuple(None if tally is None else line.of(tally) for line in drawing.lines)
