"""Fiscal drives, the devices that sign receipts: what a plug-in provides, and a simulation.

A plug-in is a package with an entry point in the group ``boathook.cashdesk.drives``: a function that takes the table
``[cashdesk.drive.options]`` and returns a `Drive`.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final, NotRequired, Protocol, TypedDict

from boathook import ConfigError
from boathook_cashdesk.entities import Object
from boathook_cashdesk.settings import SIMULATED, DriveSettings

GROUP: Final = "boathook.cashdesk.drives"
SIMULATED_NUMBER: Final = "SIMULATED"
"""Stands on receipts in place of the number of a fiscal drive."""


class DriveBusy(Exception):
    """The drive did not respond; a retry is safe, because it identifies requests by their key."""


class Verdict(TypedDict):
    """The drive's verdict on a receipt: `sign` or `declined` is None. It is stored as JSON."""

    sign: str | None
    """The fiscal sign, if the receipt is recorded."""
    declined: str | None
    """Why it will never be recorded: ``CODE: text``."""
    drive: NotRequired[str]
    """The number of the fiscal drive, as on the receipt."""


class Drive(Protocol):
    """Records receipts."""

    async def fiscalise(self, receipt: Object, attempt: int, *, idempotency_key: str) -> Verdict:
        """Record a receipt, as the API shows it, once for each key.

        Raises:
            DriveBusy: it did not respond; this is retried with the same key.
        """
        ...


_opened: Final[dict[str, tuple[Mapping[str, Any], Drive]]] = {}
"""The plug-ins of this process by name, with their options."""


def open_drive(settings: DriveSettings) -> Drive:
    """Return the drive of the settings; it is made once in a process.

    Raises:
        ConfigError: there is no such drive, or it cannot be made.
    """
    if settings.is_simulated:
        return SimulatedDrive(settings)
    options, drive = _opened.get(settings.name, (None, None))
    if drive is None or options != settings.options:
        drive = _plug_in(settings.name, settings.options)
        _opened[settings.name] = settings.options, drive
    return drive


def _plug_in(name: str, options: Mapping[str, Any]) -> Drive:
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        names = ", ".join([SIMULATED, *sorted(points)])
        raise ConfigError(f"cashdesk.drive.name: no installed package has the drive {name!r}; there are: {names}")
    try:
        drive: Drive = points[name].load()(options)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"cashdesk.drive: {name!r} ({points[name].value}) fails: {error!r}") from error
    return drive


class SimulatedDrive:
    """Slow, sometimes unavailable, and deterministic; a second request with the same key makes no second document."""

    def __init__(self, settings: DriveSettings) -> None:
        self._settings = settings

    async def fiscalise(self, receipt: Object, attempt: int, *, idempotency_key: str) -> Verdict:
        """Sign a receipt by its idempotency key.

        Raises:
            DriveBusy: it did not respond this time.
        """
        await asyncio.sleep(self._settings.seconds)
        if receipt["total"] > self._settings.largest:
            return {"sign": None, "declined": f"TOTAL_TOO_LARGE: the drive takes at most {self._settings.largest}"}
        if self._luck(f"{idempotency_key}/{attempt}") < self._settings.busy:
            raise DriveBusy("the drive does not answer")
        sign = str(self._number(idempotency_key) % 10**10).zfill(10)
        return {"sign": sign, "declined": None, "drive": SIMULATED_NUMBER}

    def _luck(self, text: str) -> float:
        return self._number(text) / 2**64

    def _number(self, text: str) -> int:
        return int.from_bytes(hmac.digest(self._settings.seed.encode(), text.encode(), hashlib.sha256)[:8])
