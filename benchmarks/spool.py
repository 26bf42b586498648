"""How fast the spool takes events in while PostgreSQL is away, how fast it is drained, and what memory that takes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.environment import BenchmarkEnvironment, CpuUse, Server, read_cpu
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import LoadResult, prepare, run_load, run_own_client
from benchmarks.spool_append import append_rates
from boathook.db.database import Database
from boathook.demo.rabbitmq import RabbitNode
from boathook.domain.errors import ConfigError, DatabaseError
from boathook.spool.inspection import SegmentState, list_folders

ARRIVALS_PER_S: Final = 500
"""A modest rate at which events go on coming while the spool is drained."""
_PER_SECOND: Final = 20_000
_ROUNDS: Final = 3
_MANY: Final = 150_000
"""More than a gateway remembers the keys of, so that more would take no more memory."""
_MANY_S: Final = 120
_LINGER_S: Final = 3
_DRAIN_DEADLINE_S: Final = 300
_POLL_INTERVAL_S: Final = 0.01


IsDrained = Callable[[Database, int], Awaitable[bool]]
"""Whether PostgreSQL has everything that waited, given how many events a server took in while it was stopped."""


@dataclass(frozen=True, slots=True)
class OutageResult:
    """What a server took in while PostgreSQL was stopped, and how that got there afterwards."""

    taken: LoadResult
    taking: CpuUse
    """Of each event, in microseconds."""
    drained_per_s: float
    draining: CpuUse


@dataclass(frozen=True, slots=True)
class _Round:
    """One round's events a second."""

    ceiling: float
    spooled: LoadResult
    drained: float
    direct: float


def spool(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Take events in with PostgreSQL stopped, drain them once it is back, and compare both with doing without.

    Raises:
        ConfigError: events got lost.
    """
    rounds = [_round(environment, seconds, number) for number in range(_ROUNDS)]
    drained, direct = median(one.drained for one in rounds), median(one.direct for one in rounds)
    return {
        "ratio_to_ceiling": round(median(one.spooled.rate / one.ceiling for one in rounds), 3),
        "spooled_per_s": round(median(one.spooled.rate for one in rounds)),
        "ceiling_per_s": round(median(one.ceiling for one in rounds)),
        "p50_ms": round(median(one.spooled.p50_ms for one in rounds), 2),
        "p99_ms": round(median(one.spooled.p99_ms for one in rounds), 2),
        "drain_to_arrivals": round(drained / ARRIVALS_PER_S, 1),
        "drain_to_direct": round(median(one.drained / one.direct for one in rounds), 2),
        "drained_per_s": round(drained),
        "arrivals_per_s": ARRIVALS_PER_S,
        "direct_per_s": round(direct),
        **append_rates(environment.folder, seconds / 6, environment.report),
        **_memory(environment),
        "connections": CONNECTIONS,
    }


def _round(environment: BenchmarkEnvironment, seconds: float, number: int) -> _Round:
    environment.report(f"round {number + 1} of {_ROUNDS}: signing requests")
    url, count = environment.new_database(), int(_PER_SECOND * seconds)
    with environment.corpus() as first, environment.corpus() as second, environment.corpus() as modest:
        prepare(first, count, parts=1)
        prepare(second, count, parts=1, first=count)
        prepare(modest, int(ARRIVALS_PER_S * (seconds + _LINGER_S)), parts=1, first=2 * count)
        environment.report("  the same server without a disk")
        with environment.module("ceiling") as bare:
            ceiling = drive(first, bare.port, seconds)
        with environment.serve(url) as server, ThreadPoolExecutor(1) as beside:
            arrive = partial(beside.submit, run_arrivals, modest, server.port, seconds + _LINGER_S)
            is_drained = spool_is_empty(environment.data_dir(server.port) / "spool")
            outage = play_outage(environment, server, url, first, seconds, is_drained=is_drained, beside=arrive)
            environment.report("  straight into PostgreSQL")
            direct = drive(second, server.port, seconds)
    return _Round(ceiling.rate, outage.taken, outage.drained_per_s, direct.rate)


def play_outage(
    environment: BenchmarkEnvironment,
    server: Server,
    url: str,
    corpus: Path,
    seconds: float,
    *,
    is_drained: IsDrained,
    nodes: Sequence[RabbitNode] = (),
    beside: Callable[[], Future[LoadResult]] | None = None,
) -> OutageResult:
    """Take a corpus in with PostgreSQL stopped, start it, and wait until it has all of it.

    Args:
        environment: whose PostgreSQL is stopped.
        server: takes the corpus in.
        url: its database.
        corpus: signed requests.
        seconds: for how long they are sent at most.
        is_drained: whether PostgreSQL has all.
        nodes: the brokers, if events wait there.
        beside: sends more requests before PostgreSQL is started, and goes on with it.

    Raises:
        ConfigError: a request was refused, or events got lost.
    """
    with environment.postgres_stopped():
        environment.report("  taking in, PostgreSQL being away")
        before = read_cpu(environment, server, nodes)
        taken = drive(corpus, server.port, seconds)
        taking = read_cpu(environment, server, nodes).since(before, taken.requests)
        others = None if beside is None else beside()
    environment.report("  draining")
    read = partial(read_cpu, environment, server, nodes)
    drained_per_s, draining = asyncio.run(_measure_drain(url, is_drained, taken.requests, read))
    if others is not None:
        others.result()
    return OutageResult(taken, taking, drained_per_s, draining)


def spool_is_empty(root: Path) -> IsDrained:
    """Return what tells whether nothing is left in the spools below *root*."""

    async def is_empty(_database: Database, _events: int) -> bool:
        return not any(one.state is SegmentState.WAITING for folder in list_folders(root) for one in folder.segments)

    return is_empty


def drive(corpus: Path, port: int, seconds: float) -> LoadResult:
    """Send a corpus as fast as it is answered. Raises ConfigError if a request was refused or broke."""
    return _check_accepted(run_load(corpus, port, connections=CONNECTIONS, seconds=seconds))


def run_arrivals(corpus: Path, port: int, seconds: float) -> LoadResult:
    """Send a corpus at a modest rate. Raises as `drive`."""
    return _check_accepted(run_own_client(corpus, port, connections=CONNECTIONS, seconds=seconds, rate=ARRIVALS_PER_S))


def _check_accepted(load: LoadResult) -> LoadResult:
    if load.refused or load.broken:
        raise ConfigError(f"{load.refused} requests of the benchmark were refused, {load.broken} broke")
    return load


async def _measure_drain(
    url: str, is_drained: IsDrained, least: int, read: Callable[[], CpuUse]
) -> tuple[float, CpuUse]:
    """Return events a second and what each costs, from the first that PostgreSQL has until nothing waits."""
    database = await Database.open(url, purpose="benchmark", size=1)
    await _wait_until(lambda: database.fetchval("select exists (select from boathook.event)"))
    began, before = time.perf_counter(), read()
    await _wait_until(partial(is_drained, database, least))
    took, after = time.perf_counter() - began, read()
    stored = await database.fetchval("select count(*) from boathook.event")
    await database.close()
    if stored < least:
        raise ConfigError(f"{least} events were accepted, and PostgreSQL has {stored}")
    return float(stored / took), after.since(before, stored)


async def _wait_until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _DRAIN_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if await holds():
                return
        except DatabaseError:  # the server has just been started again
            pass
        await asyncio.sleep(_POLL_INTERVAL_S)
    raise ConfigError("what waited for PostgreSQL is not drained")


def _memory(environment: BenchmarkEnvironment) -> dict[str, Any]:
    """Compare what a gateway takes with many events in its spool with what it takes when it has done nothing yet."""
    environment.report(f"signing {_MANY} requests")
    with environment.corpus() as corpus:
        prepare(corpus, _MANY, parts=1)
        with environment.serve(environment.new_database()) as server:
            idle = server.resident_bytes()
            with environment.postgres_stopped():
                environment.report("  into the spool, all of them")
                load = drive(corpus, server.port, _MANY_S)
                full = server.resident_bytes()
    if not idle:
        return {}
    return {
        "memory_ratio": round(full / idle, 2),
        "memory_events": load.requests,
        "idle_mb": round(idle / 1e6, 1),
        "spooling_mb": round(full / 1e6, 1),
    }
