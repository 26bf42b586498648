"""Timestamps that a proof covers: how they are read, and how far they may lie from this machine's clock."""

from datetime import datetime
from typing import Final

from boathook.domain.errors import ConfigError
from boathook.domain.verification import Reason, Rejected, SourceSpec
from boathook.providers.schemes import TimestampFormat
from boathook.verification.tokens import reject

MAX_TOLERANCE_S: Final = 315_360_000.0
_MAX_LENGTHS: Final = {TimestampFormat.SECONDS: 11, TimestampFormat.MILLISECONDS: 14, TimestampFormat.ISO: 40}
_UNITS: Final = {
    TimestampFormat.SECONDS: "a whole number of seconds since 1970",
    TimestampFormat.MILLISECONDS: "a whole number of milliseconds since 1970",
    TimestampFormat.ISO: "an ISO 8601 moment with its zone",
}


def parse_timestamp(text: str, unit: TimestampFormat) -> float | None:
    """Return a timestamp in seconds since 1970; `None` for what no sender writes: signs, exponents, other digits."""
    if not text.isascii() or len(text) > _MAX_LENGTHS[unit]:
        return None
    if unit is TimestampFormat.ISO:
        try:
            moment = datetime.fromisoformat(text)
            return None if moment.tzinfo is None else moment.timestamp()
        except (ValueError, OverflowError):
            return None
    if not text.isdigit():
        return None
    return int(text) / 1000 if unit is TimestampFormat.MILLISECONDS else float(int(text))


class TimestampWindow:
    """The moments around this machine's clock in which one source's requests must have been signed.

    Raises:
        ConfigError: the source's tolerance is impossible.
    """

    def __init__(self, spec: SourceSpec, default_s: float, unit: TimestampFormat = TimestampFormat.SECONDS) -> None:
        self.tolerance_s = default_s if spec.tolerance_s is None else spec.tolerance_s
        self._unit = unit
        if not 0 < self.tolerance_s <= MAX_TOLERANCE_S:
            raise ConfigError(
                f"sources.{spec.name}.tolerance_s: {self.tolerance_s:g} would accept no request or replays for ever; "
                f"write seconds above 0 and up to {MAX_TOLERANCE_S:.0f}, such as 300"
            )

    def judge(self, text: str, now: float) -> float | Rejected:
        """Return the moment that *text* says, in seconds since 1970, unless it is none or too far from *now*."""
        moment = parse_timestamp(text, self._unit)
        if moment is None:
            return reject(Reason.TIMESTAMP_MALFORMED, f"the timestamp {_quote(text)} is not {_UNITS[self._unit]}")
        skew_s = now - moment
        if -self.tolerance_s <= skew_s <= self.tolerance_s:
            return moment
        return self._off_time(text, skew_s)

    def _off_time(self, text: str, skew_s: float) -> Rejected:
        reason, side = (Reason.TIMESTAMP_TOO_OLD, "before") if skew_s > 0 else (Reason.TIMESTAMP_IN_FUTURE, "after")
        return reject(
            reason,
            f"the timestamp {_quote(text)} lies {abs(skew_s):.0f} s {side} this machine's clock, "
            f"more than the tolerance of {self.tolerance_s:g} s",
            may_reverify=True,
        )


def _quote(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")
