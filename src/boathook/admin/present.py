"""What goes on at this moment, over all hosts: for whoever watches, in the console or at a terminal.

What happens on this host is read off its processes' own counts, no older than a second. What happens on the others is
as they told it last, no older than a quarter of a minute.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from boathook.domain.errors import JournalError
from boathook.journal.database import Database
from boathook.journal.samples import STEP_S, HostSample, read_latest
from boathook.telemetry.exporters import History
from boathook.telemetry.tally import ENDPOINTS, OTHERS, Arrived, Owed, Tally, Worked, host_name, lately, side_by_side

WINDOW_S: Final = float(STEP_S)
"""Seconds that rates and quantiles are about, as far as so much is remembered."""
SHORTEST_S: Final = 2.0
"""Over fewer seconds a rate says nothing."""
_ALIVE_S: Final = 4.0 * STEP_S
"""A host that has told nothing for so long is gone."""
_ASK_S: Final = 3.0
_MOST_SHOWN: Final = 20


class Inflow(msgspec.Struct, frozen=True):
    """What arrives at one source, each second."""

    source: str
    accepted: float
    duplicates: float
    rejected: float
    bad_signatures: float
    faults: float


class Outflow(msgspec.Struct, frozen=True):
    """What one recipient does each second, and what it is owed."""

    recipient: str
    succeeded: float
    failed: float
    owed: Owed


class Host(msgspec.Struct, frozen=True):
    """Processes that share a data directory."""

    name: str
    roles: dict[str, int]
    """How many processes are alive, by role."""
    told_at: datetime


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """One look. Rates are per second, latencies in seconds and None where there was nothing to measure."""

    at: datetime
    accepted: float
    duplicates: float
    rejected: float
    bad_signatures: float
    faults: float
    """Requests answered 5xx."""
    succeeded: float
    """Deliveries that ended well, those to endpoints included."""
    failed: float
    """Attempts that did not end well."""
    sent: float
    """Requests to endpoints."""
    ack_p50: float | None
    ack_p99: float | None
    start_p50: float | None
    """From accepting an event to its first attempt by a handler."""
    start_p99: float | None
    send_p50: float | None
    send_p99: float | None
    backlog: Owed
    oldest_due_s: float
    spool_records: int
    spool_bytes: int
    spool_filled: float
    """Share of `spool.max_bytes`, of the fullest gateway."""
    is_spooling: bool
    """Whether a gateway takes events into its spool, as PostgreSQL does not."""
    breakers_open: int
    failing_endpoints: int
    disabled_endpoints: int
    unhandled: int
    """Events of the last day that no handler matched; 10,000 at most."""
    xmin_age_s: float
    connections: int
    sources: list[Inflow]
    """The busiest ones."""
    recipients: list[Outflow]
    """Those that are owed most, or do most."""
    hosts: list[Host]


class Watch:
    """Looks again and again.

    Args:
        history: what the processes here have counted.
        data_dir: where they share it.
        database: where other hosts tell what they have counted; None: only this one is looked at.
    """

    def __init__(self, history: History, data_dir: Path, database: Database | None) -> None:
        self._history = history
        self._host = host_name(data_dir)
        self._database = database
        self._told: list[HostSample] = []
        self._asked_at = -_ASK_S

    async def look(self) -> Present:
        """Return what goes on; while PostgreSQL is away, what is known without it."""
        tally = await asyncio.to_thread(lately, self._history, WINDOW_S)
        knows_own = tally.span_s >= SHORTEST_S and bool(tally.roles)
        samples = [one for one in await self._others() if one.host != self._host or not knows_own]
        if knows_own:
            samples.append(HostSample(self._host, datetime.now(UTC), tally))
        return present(samples)

    async def _others(self) -> Sequence[HostSample]:
        if self._database is not None and time.monotonic() - self._asked_at >= _ASK_S:
            self._asked_at = time.monotonic()
            try:
                self._told = await read_latest(self._database, within_s=_ALIVE_S)
            except JournalError:
                self._told = []
        return self._told


def present(samples: Sequence[HostSample]) -> Present:
    """Return what goes on by what each host has counted last."""
    whole = side_by_side(one.tally for one in samples)
    inflows, outflows = _inflows(samples), _outflows(samples, whole.owed)
    return Present(
        at=datetime.now(UTC),
        accepted=sum(one.accepted for one in inflows),
        duplicates=sum(one.duplicates for one in inflows),
        rejected=sum(one.rejected for one in inflows),
        bad_signatures=sum(one.bad_signatures for one in inflows),
        faults=sum(one.faults for one in inflows),
        succeeded=sum(one.succeeded for one in outflows),
        failed=sum(one.failed for one in outflows),
        sent=_rate(samples, lambda tally: tally.sends.ended),
        ack_p50=whole.quantile("ack", 0.5),
        ack_p99=whole.quantile("ack", 0.99),
        start_p50=whole.quantile("start", 0.5),
        start_p99=whole.quantile("start", 0.99),
        send_p50=whole.quantile("sending", 0.5),
        send_p99=whole.quantile("sending", 0.99),
        backlog=whole.backlog,
        oldest_due_s=whole.oldest_due_s,
        spool_records=int(whole.spool_records),
        spool_bytes=int(whole.spool_bytes),
        spool_filled=whole.spool_filled,
        is_spooling=whole.journal_away > 0,
        breakers_open=int(whole.breakers_open),
        failing_endpoints=int(whole.failing),
        disabled_endpoints=int(whole.disabled),
        unhandled=int(whole.unhandled),
        xmin_age_s=whole.xmin_age_s,
        connections=int(whole.connections),
        sources=inflows[:_MOST_SHOWN],
        recipients=outflows[:_MOST_SHOWN],
        hosts=[Host(one.host, one.tally.roles, one.at) for one in sorted(samples, key=lambda one: one.host)],
    )


def _inflows(samples: Sequence[HostSample]) -> list[Inflow]:
    """Return each source's rates, the busiest first."""
    fields = ("accepted", "duplicates", "rejected", "bad_signatures", "faults")
    found = [
        Inflow(source, *(_rate_of(samples, lambda t: t.sources, source, Arrived(), field) for field in fields))
        for source in _names(one.tally.sources for one in samples)
    ]
    return sorted(found, key=lambda one: (-one.accepted - one.duplicates - one.rejected - one.faults, one.source))


def _outflows(samples: Sequence[HostSample], owed: Mapping[str, Owed]) -> list[Outflow]:
    """Return each recipient's rates and what it is owed, those in trouble first."""
    found = []
    for recipient in _names([*(one.tally.recipients for one in samples), owed]):
        rates = [
            _rate_of(samples, lambda t: t.recipients, recipient, Worked(), field)
            for field in ("succeeded", "ignored", "failed")
        ]
        found.append(Outflow(recipient, rates[0] + rates[1], rates[2], owed.get(recipient, Owed())))
    return sorted(
        found, key=lambda one: (-one.owed.pending - one.owed.dead, -one.succeeded - one.failed, one.recipient)
    )


def _names(tables: Iterable[Mapping[str, object]]) -> set[str]:
    return {name for table in tables for name in table}


def _rate_of(
    samples: Sequence[HostSample],
    table: Callable[[Tally], Mapping[str, msgspec.Struct]],
    name: str,
    none: msgspec.Struct,
    field: str,
) -> float:
    return _rate(samples, lambda tally: getattr(table(tally).get(name, none), field))


def _rate(samples: Sequence[HostSample], count: Callable[[Tally], int]) -> float:
    """Return how often something happens each second on all hosts together."""
    return round(sum(count(one.tally) / one.tally.span_s for one in samples if one.tally.span_s > 0), 3)


def recipient_title(recipient: str) -> str:
    """Return what people call a recipient."""
    return {ENDPOINTS: "all endpoints", OTHERS: "others"}.get(recipient, recipient)


def show_rate(value: float) -> str:
    """Write how often something happens in a second."""
    return "0" if value == 0 else "<0.1" if value < 0.1 else f"{value:.1f}" if value < 100 else _grouped(value)


def show_span(seconds: float | None) -> str:
    """Write a length of time, in the unit that suits it."""
    if seconds is None:
        return "\u2013"
    for limit, unit, factor in _UNITS:
        if seconds * factor < limit:
            number = seconds * factor
            return f"{number:.1f} {unit}" if number < 10 and factor != 1 else f"{number:.0f} {unit}"
    return f"{seconds / 86_400:.1f} d"


_UNITS: Final = ((1000, "ms", 1000.0), (120, "s", 1.0), (120, "min", 1 / 60), (48, "h", 1 / 3600))


def show_size(size: float) -> str:
    """Write a number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _grouped(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")
