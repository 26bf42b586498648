"""Simulates a fiscal drive, the device that signs receipts: slow, sometimes unavailable, and deterministic."""

import asyncio
import hashlib
import hmac
from typing import TypedDict

from boathook.apps.cashdesk.entities import Object
from boathook.apps.cashdesk.settings import DriveSettings


class DriveBusy(Exception):
    """The drive did not respond; a retry is safe, because it identifies requests by their key."""


class Verdict(TypedDict):
    """The drive's verdict on a receipt: one of the two fields is None. It is stored as JSON."""

    sign: str | None
    """The fiscal sign, if the receipt is recorded."""
    declined: str | None
    """Why it will never be recorded."""


class SimulatedDrive:
    """Signs a receipt by its idempotency key, so that a second request with the same key makes no second document."""

    def __init__(self, settings: DriveSettings) -> None:
        self._settings = settings

    async def fiscalise(self, receipt: Object, attempt: int, *, idempotency_key: str) -> Verdict:
        """Record a receipt.

        Raises:
            DriveBusy: it did not respond this time.
        """
        await asyncio.sleep(self._settings.seconds)
        if receipt["total"] > self._settings.largest:
            return {"sign": None, "declined": f"TOTAL_TOO_LARGE: the drive takes at most {self._settings.largest}"}
        if self._luck(f"{idempotency_key}/{attempt}") < self._settings.busy:
            raise DriveBusy("the drive does not answer")
        return {"sign": str(self._number(idempotency_key) % 10**10).zfill(10), "declined": None}

    def _luck(self, text: str) -> float:
        return self._number(text) / 2**64

    def _number(self, text: str) -> int:
        return int.from_bytes(hmac.digest(self._settings.seed.encode(), text.encode(), hashlib.sha256)[:8])
