"""A stand-in for a fiscal drive, the sealed device that signs receipts: slow, sometimes away, and deterministic."""

import asyncio
import hashlib
import hmac
from typing import TypedDict

from boathook.apps.cashdesk.entities import Object
from boathook.apps.cashdesk.settings import DriveSettings


class DriveBusy(Exception):
    """The drive did not answer; asking again is safe, as it knows what it has done by the key."""


class Verdict(TypedDict):
    """What the drive says of a receipt: one of the two is None. It is remembered as JSON."""

    sign: str | None
    """The fiscal sign, where the receipt is recorded."""
    declined: str | None
    """Why it never will be."""


class SimulatedDrive:
    """Signs a receipt by the key it is asked under, so that a second time under one key is no second document."""

    def __init__(self, settings: DriveSettings) -> None:
        self._settings = settings

    async def fiscalise(self, receipt: Object, attempt: int, *, idempotency_key: str) -> Verdict:
        """Record a receipt.

        Raises:
            DriveBusy: it did not answer this time.
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
