"""Searches of a history of any length: look after look, until a page is full or its time is used up."""

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from uuid import UUID

from boathook.db.queries.endpoint_stats import ScanPage as ScanPage  # noqa: PLC0414 - what these functions return

Row = TypeVar("Row")

BUDGET_S: Final = 0.15
"""How long a search goes on before it says how far it has come."""


async def scan_until_full(
    step: Callable[[UUID | None, int], Awaitable[ScanPage[Row]]], place: UUID | None, limit: int
) -> ScanPage[Row]:
    """Take steps from *place* on until so many rows are found, nothing further is there, or time is up."""
    ends, rows = time.monotonic() + BUDGET_S, list[Row]()
    while True:
        page = await step(place, limit - len(rows))
        rows += page.rows
        place = page.place
        if place is None or len(rows) >= limit or time.monotonic() > ends:
            return ScanPage(rows, place)
