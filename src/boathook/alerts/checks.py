"""Runs the checks of apps' alerts, and keeps the latest result of each for the evaluation of the rules."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from boathook.domain.alerts import AlertReading, storable_details, storable_subject
from boathook.observability import meters
from boathook.observability.log import get_logger

TIMEOUT_S: Final = 10.0
"""How long one run of a check may take."""
_LOG = get_logger("alerts")

AlertCheck = Callable[[], Awaitable[Iterable[AlertReading]]]
"""Returns the subjects of an app's alert that are not as they should be."""


class _Result(msgspec.Struct, frozen=True):
    readings: Sequence[AlertReading]
    at_s: float
    """When it was read, by the monotonic clock."""


class AlertChecks:
    """The checks of all apps of a process by rule, each in a task of its own: a slow one delays no other rule.

    A check that fails changes no alert: its last result counts until it is too old, then the alerts stay as they are.
    """

    def __init__(self, checks: Mapping[str, AlertCheck]) -> None:
        self._checks = checks
        self._results: dict[str, _Result] = {}

    def latest(self, rule: str, max_age_s: float) -> Sequence[AlertReading] | None:
        """Return the latest result of a rule's check; None if there is none that is at most *max_age_s* old."""
        result = self._results.get(rule)
        return None if result is None or time.monotonic() - result.at_s > max_age_s else result.readings

    @asynccontextmanager
    async def run_in_background(self, interval_s: float) -> AsyncIterator[None]:
        """Run each check every *interval_s* seconds while the block runs."""
        tasks = [
            asyncio.create_task(self._repeat(rule, interval_s), name=f"alert-check:{rule}") for rule in self._checks
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, rule: str, interval_s: float) -> None:
        while True:
            started_s = time.monotonic()
            await self.run_once(rule)
            spent_s = time.monotonic() - started_s
            await asyncio.sleep(max(interval_s - spent_s, 4 * spent_s))

    async def run_once(self, rule: str) -> None:
        """Run the check of a rule; an error is logged and counted, not raised."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                readings = _validated(await self._checks[rule]())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the check is the app's own code
            meters.count("boathook_alert_checks_failed_total", rule=rule)
            _LOG.error("alert_check_failed", rule=rule, exc_info=error)
        else:
            self._results[rule] = _Result(readings, time.monotonic())


def _validated(returned: Any) -> list[AlertReading]:
    """Return what a check returned, the last reading of each subject. Raises TypeError, ValueError."""
    by_subject: dict[str, AlertReading] = {}
    for reading in returned:
        if not isinstance(reading, AlertReading):
            raise TypeError(f"the check of an alert returns AlertReading objects, not {type(reading).__name__}")
        if not math.isfinite(reading.value):
            raise ValueError(f"the value of {reading.subject!r} is {reading.value}; return a finite number")
        subject = storable_subject(reading.subject)
        by_subject[subject] = AlertReading(subject, reading.value, storable_details(reading.details))
    return list(by_subject.values())
