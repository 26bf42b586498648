"""Reads the state of all cells from their gateways."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.domain.errors import FetchFailed
from boathook.domain.homes import Assignment
from boathook.service.remote import RemoteClient
from boathook_cells.directory import ApplicationAssignment
from boathook_cells.forwarding import CellStore, post_with
from boathook_cells.settings import CellSettings, read_secret, require_cells

_READ_TIMEOUT_S: Final = 3.0
_MAX_METRICS: Final = 8 << 20
_ACCEPTED: Final = ("boathook_events_accepted_total", "boathook_cell_events_received_total")


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cell, as its gateways report it."""

    name: str
    url: str
    is_own: bool
    accepts_new: bool
    problem: str = ""
    """Why it does not work or cannot be reached; empty if it works."""
    accepted_per_s: float = 0.0
    """Events that its gateways accepted per second lately, from senders and from other cells."""
    oldest_due_s: float = 0.0
    """How long the oldest due delivery has been waiting."""
    dead: int = 0
    """Failed deliveries."""
    waiting: int = 0
    """Events that wait in its spools, for its PostgreSQL or for another cell."""


async def read_statuses(settings: Settings) -> list[CellStatus]:
    """Read the state of all cells from their gateways, each within a few seconds."""
    cells = require_cells(settings)
    reading = (_read_status(settings, name, cell, is_own=name == cells.name) for name, cell in cells.members.items())
    return await asyncio.gather(*reading)


async def _read_status(settings: Settings, name: str, cell: CellSettings, *, is_own: bool) -> CellStatus:
    base = cell.url.rstrip("/")
    plain = CellStatus(name=name, url=base, is_own=is_own, accepts_new=cell.accepts_new)
    client = RemoteClient(settings)
    try:
        ready, metrics = await asyncio.gather(
            client.request("GET", f"{base}/readyz", timeout_s=_READ_TIMEOUT_S, max_bytes=_MAX_METRICS),
            client.request("GET", f"{base}/metrics.json", timeout_s=_READ_TIMEOUT_S, max_bytes=_MAX_METRICS),
        )
        problems = [*json.loads(ready.body)["problems"]]
        figures = json.loads(metrics.body)["metrics"]
        return replace(
            plain,
            problem="; ".join(problems),
            accepted_per_s=sum(
                series.get("per_second", 0.0) for name in _ACCEPTED for series in _series(figures, name)
            ),
            oldest_due_s=max(
                (series["value"] for series in _series(figures, "boathook_oldest_due_seconds")), default=0.0
            ),
            dead=int(_total(figures, "boathook_backlog", state="dead")),
            waiting=int(_total(figures, "boathook_spool_events") + _total(figures, "boathook_cell_events_waiting")),
        )
    except FetchFailed as error:
        return replace(plain, problem=f"its gateways do not answer: {error}")
    except (ValueError, KeyError, TypeError):
        return replace(plain, problem="its URL answers, but not as a gateway of boathook does")


def _series(figures: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    series: list[dict[str, Any]] = figures.get(name, {}).get("series", [])
    return series


def _total(figures: Mapping[str, Any], name: str, **labels: str) -> float:
    return sum(
        float(series["value"])
        for series in _series(figures, name)
        if all(series.get("labels", {}).get(label) == value for label, value in labels.items())
    )


async def probe(settings: Settings, name: str) -> None:
    """Post no events to a cell, as a gateway would post some: this proves that secret, clock and URL are right.

    Raises:
        HomeUnavailable: the cell does not accept posts of this one; the message says why.
    """

    async def ignore(_assignment: Assignment | ApplicationAssignment) -> None:
        return

    url = require_cells(settings).members[name].url
    store = CellStore(name, url, read_secret(settings), post=post_with(settings), on_refusal=ignore)
    await store.append((), within_s=_READ_TIMEOUT_S)
