"""Writes the tables of the page on capacity: the measured cost of one event, multiplied.

The costs are `benchmarks/capacity.json`, which ``python -m benchmarks capacity --json`` prints.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
MEASURED: Final = ROOT / "benchmarks/capacity.json"
BEGIN: Final = "<!-- Tables: written by `make docs` from benchmarks/capacity.json. -->\n"
END: Final = "<!-- End of the tables. -->\n"
RATES: Final = (10_000, 100_000, 1_000_000)

DISK_BYTES: Final = 8_000_000_000_000
LOG_BYTES_PER_S: Final = 200_000_000
CORES: Final = 16
LOAD: Final = 0.6
"""Share of the processor that is used; more leaves nothing for peaks."""
RETENTION_DAYS: Final = (30, 3, 1)
_DAY_S: Final = 86_400

Costs = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Resource:
    """What an event uses of one thing."""

    name: str
    per_event: float
    unit: str
    """`us` of a processor, or `B` written or sent."""
    is_per_day: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """What one PostgreSQL takes before one thing is used up."""

    name: str
    events_per_s: float


def resources(costs: Costs) -> list[Resource]:
    """Return what an event uses that comes in, and goes out to one endpoint."""
    log = costs["in_log_bytes"] + costs["out_log_bytes"]
    return [
        Resource("gateways: processor", costs["in_gateway_us"], "us"),
        Resource("PostgreSQL: processor", costs["in_postgres_us"] + costs["out_postgres_us"], "us"),
        Resource("senders: processor", costs["out_sender_us"], "us"),
        Resource("PostgreSQL: log (WAL), and as much to each standby and archive", log, "B"),
        Resource(
            "PostgreSQL: stored a day", costs["in_stored_bytes"] + costs["out_stored_bytes"], "B", is_per_day=True
        ),
        Resource("gateways while PostgreSQL is away: processor", costs["buffered_gateway_us"], "us"),
        Resource(f"{costs['brokers']:.0f} brokers together, then: processor", costs["buffered_brokers_us"], "us"),
        Resource("each broker, then: disk", costs["buffered_bytes_per_broker"], "B"),
        Resource("network: request, delivery, log to one standby", 2 * costs["body_bytes"] + log, "B"),
    ]


def limits(costs: Costs) -> list[Limit]:
    """Return what limits one PostgreSQL, the tightest limit first."""
    stored = costs["in_stored_bytes"] + costs["out_stored_bytes"]
    log = costs["in_log_bytes"] + costs["out_log_bytes"]
    processor_us = costs["in_postgres_us"] + costs["out_postgres_us"]
    found = [
        *(
            Limit(f"{days} day{'s' * (days > 1)} of history on 8 TB", DISK_BYTES / (stored * _DAY_S * days))
            for days in RETENTION_DAYS
        ),
        Limit("200 MB/s of log, written, sent to a standby and archived", LOG_BYTES_PER_S / log),
        Limit(f"{CORES} cores, {LOAD:.0%} used", CORES * LOAD * 1e6 / processor_us),
    ]
    return sorted(found, key=lambda limit: limit.events_per_s)


def tables(costs: Mapping[str, Any]) -> str:
    """Return both tables, with when they were measured."""
    head = "| resource | an event | " + " | ".join(f"{rate:,} events/s" for rate in RATES)
    lines = [head + " |", "|---|---|" + "---|" * len(RATES), *map(_row, resources(costs))]
    lines += ["", f"Measured on {costs['measured_on']}, with bodies of {costs['body_bytes']:,} bytes.", ""]
    lines += ["| one PostgreSQL is full at | events/s, mean |", "|---|---|"]
    lines += [f"| {limit.name} | {_two_digits(limit.events_per_s)} |" for limit in limits(costs)]
    return "\n".join(lines) + "\n"


def _row(resource: Resource) -> str:
    unit = "µs" if resource.unit == "us" else "B"
    amounts = [_amount(resource, rate) for rate in RATES]
    return f"| {resource.name} | {resource.per_event:,.0f} {unit} | {' | '.join(amounts)} |"


def _amount(resource: Resource, rate: int) -> str:
    total = resource.per_event * rate
    if resource.unit == "us":
        cores = _two_digits(total / 1e6)
        return f"{cores} core{'s' * (cores != '1')}"
    return _bytes(total * _DAY_S) if resource.is_per_day else f"{_bytes(total)}/s"


def _bytes(number: float) -> str:
    units: Sequence[str] = ("B", "kB", "MB", "GB", "TB", "PB")
    place = 0
    while number >= 1_000 and place < len(units) - 1:
        number, place = number / 1_000, place + 1
    return f"{_two_digits(number)} {units[place]}"


def _two_digits(number: float) -> str:
    """Return a number with two significant digits: more would claim to be exact."""
    if number < 10:
        return f"{number:.2g}"
    digits = len(str(int(number))) - 2
    return f"{round(number / 10**digits) * 10**digits:,}"


def page(written: str) -> str:
    """Return the page: what is *written* by hand around the tables, and the tables.

    Raises:
        ValueError: it has no marks around the tables.
    """
    head, begin, rest = written.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError("the page on capacity has lost the marks around its tables")
    return head + BEGIN + "\n" + tables(json.loads(MEASURED.read_text(encoding="utf-8"))) + "\n" + END + tail
