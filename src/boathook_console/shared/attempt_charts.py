"""Prepares the figures and charts of a recipient's attempts, for the pages of endpoints and handlers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.datastructures import QueryParams

from boathook.service.operating.live_stats import format_duration, format_rate
from boathook.service.operating.recipient_stats import (
    LATENCY_BOUNDS_MS,
    MAX_BACKLOG,
    STATS_RANGES,
    AttemptStats,
    RangeName,
    TimeBucket,
)

WIDTH: Final = 600
HEIGHT: Final = 96


class Bar(msgspec.Struct, frozen=True):
    """One time bucket of a chart, in chart units from the upper left corner."""

    x: float
    width: float
    good_y: float
    good_height: float
    bad_y: float
    bad_height: float
    at: datetime
    label: str
    """With the time in UTC, which a script shows in the reader's zone."""


class LatencyRow(msgspec.Struct, frozen=True):
    """One bucket of a latency histogram."""

    label: str
    attempts: int
    percent: float
    """Its share of all attempts."""
    width: float
    """The width of its bar, in percent of the longest."""


def read_range(params: QueryParams, default: RangeName) -> RangeName:
    """Return the range that the query parameter ``span`` names; the default for any other text."""
    name = params.get("span", "")
    return RangeName(name) if name in STATS_RANGES else default


def range_values(range_name: RangeName) -> Mapping[str, Any]:
    """Return the template values of the links to the ranges."""
    return {"span": range_name, "spans": STATS_RANGES}


def attempt_values(attempts: AttemptStats, range_name: RangeName) -> Mapping[str, Any]:
    """Return the template values of a recipient's attempts in a range."""
    return {
        "attempts": attempts,
        "bars": build_bars(attempts.stretches, is_weekly=range_name is RangeName.WEEK),
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "latencies": build_latencies(attempts.latencies),
        "most_counted": MAX_BACKLOG,
        "format_rate": format_rate,
        "took": format_ms,
        **range_values(range_name),
    }


def format_ms(milliseconds: float | None) -> str:
    """Format a duration in milliseconds in a suitable unit."""
    return format_duration(None if milliseconds is None else milliseconds / 1000)


def build_bars(buckets: Sequence[TimeBucket], *, is_weekly: bool) -> list[Bar]:
    """Return the bars of a chart, with failures on top of successes."""
    highest = max((bucket.succeeded + bucket.failed for bucket in buckets), default=0) or 1
    step = WIDTH / max(1, len(buckets))
    return [
        _bar(bucket, index * step, step, HEIGHT / highest, is_weekly=is_weekly) for index, bucket in enumerate(buckets)
    ]


def _bar(bucket: TimeBucket, x: float, step: float, unit: float, *, is_weekly: bool) -> Bar:
    good, bad = bucket.succeeded * unit, bucket.failed * unit
    when = f"{bucket.start:%a %d %b %H:%M}" if is_weekly else f"{bucket.start:%H:%M}"
    return Bar(
        x=round(x + step * 0.1, 2),
        width=round(step * 0.8, 2),
        good_y=round(HEIGHT - good, 2),
        good_height=round(good, 2),
        bad_y=round(HEIGHT - good - bad, 2),
        bad_height=round(bad, 2),
        at=bucket.start,
        label=f"{when} UTC: {bucket.succeeded:,} succeeded, {bucket.failed:,} failed",
    )


def build_latencies(counts: Sequence[int]) -> list[LatencyRow]:
    """Return the rows of a latency histogram, from the first to the last bucket with attempts."""
    used = [index for index, number in enumerate(counts) if number]
    if not used:
        return []
    total, highest = sum(counts), max(counts)
    return [
        LatencyRow(_latency_label(index), counts[index], 100 * counts[index] / total, 100 * counts[index] / highest)
        for index in range(used[0], used[-1] + 1)
    ]


def _latency_label(index: int) -> str:
    if index == len(LATENCY_BOUNDS_MS):
        return f"over {_bound(LATENCY_BOUNDS_MS[-1])}"
    return f"up to {_bound(LATENCY_BOUNDS_MS[index])}"


def _bound(milliseconds: float) -> str:
    return f"{milliseconds:g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:g} s"
