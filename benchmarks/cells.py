"""What an event costs that another cell has to store, and whether a cell that hangs slows another."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count as count_up
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.environment import BenchmarkEnvironment, CpuUse, Server, free_port, read_cpu
from benchmarks.load import LoadResult, prepare
from benchmarks.outage import ARRIVALS_PER_S, drive, run_arrivals
from boathook.db.database import Database
from boathook.domain.homes import Assignment
from boathook_cells import store as assignments

_ROUNDS: Final = 3
_PER_SECOND: Final = 15_000
_OWN, _FOREIGN = "stripe", "foreign"
"""The sources of the first and of the second cell."""
_KEY: Final = "whsec_YSBzZWNyZXQgdGhhdCBwcm92ZXMgbm90aGluZw=="
_TABLE: Final = """
[sources.foreign]
provider = "stripe"
secrets = ["whsec_benchmark"]
[cells]
name = "{name}"
secret = "{secret}"
[cells.members.c1]
url = "http://127.0.0.1:{ports[0]}"
accepts_new = true
[cells.members.c2]
url = "http://127.0.0.1:{ports[1]}"
"""


@dataclass(frozen=True, slots=True)
class _Round:
    direct: LoadResult
    direct_use: CpuUse
    forwarded: LoadResult
    forwarded_use: CpuUse
    spooled: float
    """Share of the forwarded events that were not in the other cell's database when they were answered."""
    alone: LoadResult
    """The first cell's own events at a modest rate, beside as many of the other cell's."""
    beside_hanging: LoadResult
    """The same while the other cell hangs."""


def cells(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Send events of its own source and of the other cell's to the first cell, and hang the other one; in turns."""
    rounds = [_round(environment, seconds, number) for number in range(_ROUNDS)]
    return {
        "spooled_share": round(median(one.spooled for one in rounds), 3),
        "forwarded_to_direct": round(median(one.forwarded.rate / one.direct.rate for one in rounds), 2),
        "gateways_us_direct": round(median(one.direct_use.gateway for one in rounds), 1),
        "gateways_us_forwarded": round(median(one.forwarded_use.gateway for one in rounds), 1),
        "postgres_us_direct": round(median(one.direct_use.postgres or 0.0 for one in rounds), 1),
        "postgres_us_forwarded": round(median(one.forwarded_use.postgres or 0.0 for one in rounds), 1),
        "forwarded_p50_ms": round(median(one.forwarded.p50_ms for one in rounds), 2),
        "own_p99_to_alone_beside_hanging": round(
            median(one.beside_hanging.p99_ms / one.alone.p99_ms for one in rounds), 2
        ),
        "own_p99_ms_alone": round(median(one.alone.p99_ms for one in rounds), 2),
        "own_p99_ms_beside_hanging": round(median(one.beside_hanging.p99_ms for one in rounds), 2),
        "arrivals_per_s_each": ARRIVALS_PER_S,
    }


def _round(environment: BenchmarkEnvironment, seconds: float, number: int) -> _Round:
    environment.report(f"round {number + 1} of {_ROUNDS}")
    count, few = int(_PER_SECOND * seconds), int(ARRIVALS_PER_S * (seconds + 1))
    with environment.corpus() as folder, _serve(environment) as (first, second, url):
        numbers = count_up()

        def corpus(source: str, size: int) -> Path:
            part = next(numbers)
            prepare(Path(f"{folder}.{part}"), size, parts=1, first=count * part, source=source)
            return Path(f"{folder}.{part}")

        def arrive_at_both() -> LoadResult:
            own, foreign = corpus(_OWN, few), corpus(_FOREIGN, few)
            with ThreadPoolExecutor(1) as beside:
                others = beside.submit(run_arrivals, foreign, first.port, seconds)
                found = run_arrivals(own, first.port, seconds)
                others.result()
            return found

        measured: dict[str, tuple[LoadResult, CpuUse]] = {}
        spooled = 0.0
        for source in sorted((_OWN, _FOREIGN), reverse=number % 2 == 1):
            sent, before = corpus(source, count), _read_cpu(environment, first, second)
            load = drive(sent, first.port, seconds)
            if source == _FOREIGN:
                spooled = 1 - asyncio.run(_count_events(url)) / load.requests
            measured[source] = load, _read_cpu(environment, first, second).since(before, load.requests)
        alone = arrive_at_both()
        with second.paused():
            hanging = arrive_at_both()
    return _Round(*measured[_OWN], *measured[_FOREIGN], spooled, alone, hanging)


@contextmanager
def _serve(environment: BenchmarkEnvironment) -> Iterator[tuple[Server, Server, str]]:
    ports, urls = (free_port(), free_port()), (environment.new_database(), environment.new_database())
    asyncio.run(_assign(urls))
    tables = [_TABLE.format(name=name, secret=_KEY, ports=ports) for name in ("c1", "c2")]
    with (
        environment.serve(urls[0], more=tables[0], port=ports[0]) as first,
        environment.serve(urls[1], more=tables[1], port=ports[1]) as second,
    ):
        first.wait_until_idle()
        yield first, second, urls[1]


async def _assign(urls: tuple[str, str]) -> None:
    for url in urls:
        database = await Database.open(url, purpose="benchmark", size=1)
        try:
            homes = {_OWN: "c1", _FOREIGN: "c2"}
            await assignments.assign(
                database, [Assignment(source=source, home=cell, revision=1) for source, cell in homes.items()]
            )
        finally:
            await database.close()


async def _count_events(url: str) -> int:
    database = await Database.open(url, purpose="benchmark", size=1)
    try:
        found: int = await database.fetchval("select count(*) from boathook.event")
        return found
    finally:
        await database.close()


def _read_cpu(environment: BenchmarkEnvironment, first: Server, second: Server) -> CpuUse:
    """Return what both cells and PostgreSQL have used so far."""
    used = read_cpu(environment, first)
    return replace(used, gateway=used.gateway + second.cpu_s())
