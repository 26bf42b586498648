"""What pages say of an endpoint: how it stands in one sentence, its figures, and its chart."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from boathook.config import Settings
from boathook.service.endpoint_stats import EndpointHealth, TimeBucket
from boathook.service.endpoints import Endpoint

WIDTH: Final = 600
HEIGHT: Final = 96


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """How an endpoint stands."""

    word: str
    """One of enabled, failing, paused and disabled."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of time in a chart, in its units from the upper left."""

    x: float
    width: float
    good_y: float
    good_height: float
    bad_y: float
    bad_height: float
    label: str


def endpoint_status(
    endpoint: Endpoint, health: EndpointHealth, now: datetime, *, settings: Settings, disabler: str | None = None
) -> EndpointStatus:
    """Return how an endpoint stands.

    Args:
        disabler: who disabled it, as they may be named to the reader.
    """
    if endpoint.is_disabled:
        return EndpointStatus("disabled", _why_disabled(endpoint, settings, disabler))
    if health.open_until is not None:
        since = "" if health.failing_since is None else f" since {_format_time(health.failing_since)}"
        rest = max(0, round((health.open_until - now).total_seconds()))
        next_try = f"next probe in {rest} s" if rest else "probing now"
        return EndpointStatus(
            "paused", f"{health.failures} consecutive failures{since}; paused (circuit open), {next_try}."
        )
    if health.failing_since is not None:
        return EndpointStatus(
            "failing",
            f"The last {_format_attempts(health.failures)} failed, since {_format_time(health.failing_since)}; "
            "it is tried on.",
        )
    return EndpointStatus("enabled", "Healthy.")


def _why_disabled(endpoint: Endpoint, settings: Settings, disabler: str | None) -> str:
    match endpoint.disabled_because:
        case "gone":
            return "Disabled: the endpoint responded 410 Gone."
        case "failing":
            days = settings.outbound.disable_after_days
            return f"Disabled: every attempt failed for {days:g} days."
        case _:
            return f"Disabled by {disabler or 'an operator'}. Pending deliveries are kept."


def name_disabler(actor: str | None, *, is_portal: bool) -> str | None:
    """Return who acted, as they may be named to the reader."""
    where, _, who = (actor or "").partition(":")
    if is_portal:
        return "a portal user" if where == "portal" else "the operator" if actor else None
    names = {
        "console": f"{who}, in the console",
        "cli": f"{who}, on the command line",
        "portal": f"a portal user ({who})",
        "api": f"the API ({who})",
    }
    return names.get(where, actor)


def _format_attempts(number: int) -> str:
    return "attempt" if number == 1 else f"{number} attempts"


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def build_bars(stretches: Sequence[TimeBucket], *, is_daily: bool) -> list[Bar]:
    """Return the bars of a chart, failures on top of successes."""
    most = max((one.succeeded + one.failed for one in stretches), default=0) or 1
    step = WIDTH / max(1, len(stretches))
    return [_bar(one, place * step, step, HEIGHT / most, is_daily=is_daily) for place, one in enumerate(stretches)]


def _bar(one: TimeBucket, x: float, step: float, unit: float, *, is_daily: bool) -> Bar:
    good, bad = one.succeeded * unit, one.failed * unit
    when = f"{one.start:%a %d %b %H:%M}" if is_daily else f"{one.start:%H:%M}"
    return Bar(
        x=round(x + step * 0.1, 2),
        width=round(step * 0.8, 2),
        good_y=round(HEIGHT - good, 2),
        good_height=round(good, 2),
        bad_y=round(HEIGHT - good - bad, 2),
        bad_height=round(bad, 2),
        label=f"{when} UTC: {one.succeeded:,} succeeded, {one.failed:,} failed",
    )
