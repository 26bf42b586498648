"""What pages say of an endpoint: how it stands in one sentence, its figures, and its chart."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from boathook.config import Settings
from boathook.journal.endpoint_sights import Health, Stretch
from boathook.journal.endpoints import Endpoint

WIDTH: Final = 600
HEIGHT: Final = 96


@dataclass(frozen=True, slots=True)
class Standing:
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


def standing_of(
    endpoint: Endpoint, health: Health, now: datetime, *, settings: Settings, disabler: str | None = None
) -> Standing:
    """Return how an endpoint stands.

    Args:
        disabler: who disabled it, as they may be named to the reader.
    """
    if endpoint.is_disabled:
        return Standing("disabled", _why_disabled(endpoint, settings, disabler))
    if health.open_until is not None:
        since = "" if health.failing_since is None else f" since {_clock(health.failing_since)}"
        rest = max(0, round((health.open_until - now).total_seconds()))
        next_try = f"the next probe goes out in {rest} s" if rest else "a probe goes out now"
        return Standing("paused", f"{health.failures} failures in a row{since}, so it is given a pause; {next_try}.")
    if health.failing_since is not None:
        return Standing(
            "failing",
            f"The last {_times(health.failures)} failed, since {_clock(health.failing_since)}; it is tried on.",
        )
    return Standing("enabled", "It is sent to, and has not failed since it last succeeded.")


def _why_disabled(endpoint: Endpoint, settings: Settings, disabler: str | None) -> str:
    match endpoint.disabled_because:
        case "gone":
            return "It answered 410 Gone, which asks for nothing more to be sent, so it was disabled."
        case "failing":
            days = settings.outbound.disable_after_days
            return f"Nothing but failures came of it for {days:g} days, so it was disabled."
        case _:
            return f"It was disabled by {disabler or 'hand'}; what it is owed waits."


def name_disabler(actor: str | None, *, is_portal: bool) -> str | None:
    """Return who acted, as they may be named to the reader."""
    where, _, who = (actor or "").partition(":")
    if is_portal:
        return "somebody in this portal" if where == "portal" else "the operator" if actor else None
    names = {
        "console": f"{who}, in the console",
        "cli": f"{who}, on the command line",
        "portal": f"its owner, in the portal ({who})",
        "api": f"the API ({who})",
    }
    return names.get(where, actor)


def _times(number: int) -> str:
    return "attempt" if number == 1 else f"{number} attempts"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def bars_of(stretches: Sequence[Stretch], *, is_daily: bool) -> list[Bar]:
    """Return the bars of a chart, failures on top of successes."""
    most = max((one.succeeded + one.failed for one in stretches), default=0) or 1
    step = WIDTH / max(1, len(stretches))
    return [_bar(one, place * step, step, HEIGHT / most, is_daily=is_daily) for place, one in enumerate(stretches)]


def _bar(one: Stretch, x: float, step: float, unit: float, *, is_daily: bool) -> Bar:
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
