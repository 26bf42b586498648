"""The command line of the benchmarks: ``python -m benchmarks NAME [--seconds S] [--events N] [--json]``."""

import argparse
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import (
    both,
    buffer,
    capacity,
    cells,
    console,
    deliver,
    gateways,
    handle,
    ingest,
    isolation,
    lane,
    latency,
    publish,
    spool,
    start,
)
from benchmarks.environment import BenchmarkEnvironment
from boathook.cli import output
from boathook.config import load
from boathook.domain.errors import BoathookError
from boathook_demo import rabbitmq

BENCHMARKS: Final[dict[str, Callable[[BenchmarkEnvironment, float], dict[str, Any]]]] = {
    "ingest": ingest.ingest,
    "duplicates": ingest.duplicates,
    "publish": publish.publish,
    "handle": handle.handle,
    "latency": latency.latency,
    "deliver": deliver.deliver,
    "fanout": deliver.fanout,
    "burst": deliver.burst,
    "isolation": isolation.isolation,
    "both": both.both,
    "spool": spool.spool,
    "start": start.start,
    "buffer": buffer.buffer,
    "gateways": gateways.gateways,
    "lane": lane.lane,
    "cells": cells.cells,
    "capacity": capacity.capacity,
    "console": console.console,
}
"""Each benchmark takes its environment and the seconds one measurement may last, and returns its figures."""
_NEEDS_ITS_OWN_SERVER: Final = {"spool", "buffer", "burst", "gateways", "capacity", "lane", "cells"}
"""They stop PostgreSQL, or measure its processor time."""
_USES_BROKERS: Final = {"buffer", "capacity", "lane"}
_ONLY_READS: Final = {"console"}
_DEFAULT_EVENTS: Final = {"console": 100_000}
"""How many events are stored before the others are measured; other benchmarks start empty."""
_TAKES_EVENTS: Final = ("console", "ingest")
_MIN_SECONDS: Final = 0.5
_MIN_EVENTS: Final = 2_000
"""A shorter history has no examples of some states."""
_PAGE_COLUMNS: Final = (
    output.Column("page", operator.itemgetter("page"), is_whole=True),
    *(output.Column(title, operator.itemgetter(f"{title}_ms")) for title in ("p50", "p95", "max", "first")),
)


def run(name: str, *, seconds: float, events: int, database_url: str) -> dict[str, Any]:
    """Run one benchmark and return its figures.

    Args:
        name: one of `BENCHMARKS`.
        seconds: how long a single measurement lasts; a benchmark makes up to a dozen.
        events: how many stored events `console` reads, or `ingest` finds; 0 for none.
        database_url: a PostgreSQL whose role may create databases; empty starts an embedded one, as do benchmarks that
            have to stop it or measure its processor time.

    Raises:
        ConfigError: something that the benchmark needs is missing.
        BoathookError: a server of the benchmark does not start.
    """
    if name in _USES_BROKERS:
        rabbitmq.require()
    url = "" if name in _NEEDS_ITS_OWN_SERVER else database_url
    with BenchmarkEnvironment(url, _report, events=events, is_log_filled=name not in _ONLY_READS) as environment:
        return {"benchmark": name, **BENCHMARKS[name](environment, seconds)}


def _report(message: str) -> None:
    print(message, file=sys.stderr)


def _figure(value: object) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"


def _at_least(least: float, kind: Callable[[str], float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        if (value := kind(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def main() -> None:
    """Run the benchmark that the command line names and print its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure boathook against its own ceiling and against the server people write first, in one run.",
        epilog="It makes databases of its own: on database.url, whose role must be allowed to, or on an embedded "
        "PostgreSQL.",
    )
    parser.add_argument("name", choices=BENCHMARKS, metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--seconds", type=_at_least(_MIN_SECONDS, float), default=6.0, help="how long one measurement lasts"
    )
    parser.add_argument(
        "--events",
        type=_at_least(_MIN_EVENTS, int),
        help="how many events are stored: console reads them, ingest is compared with an empty database",
    )
    parser.add_argument("--config", type=Path, help="the configuration file; boathook.toml where there is one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.events and options.name not in _TAKES_EVENTS:
        parser.error(f"--events is for {' and '.join(_TAKES_EVENTS)}")
    events = options.events or _DEFAULT_EVENTS.get(options.name, 0)
    try:
        url = load(options.config).database_url()
        figures = run(options.name, seconds=options.seconds, events=events, database_url=url)
    except BoathookError as error:
        sys.exit(f"benchmarks: {error}")
    if options.json:
        output.print_json(figures)
        return
    if pages := figures.pop("pages", None):
        output.View(_PAGE_COLUMNS).print_rows(pages, as_json=False)
    output.print_fields({key.replace("_", " "): _figure(value) for key, value in figures.items()})


if __name__ == "__main__":
    main()
