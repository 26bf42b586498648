"""An outage of PostgreSQL: what a server takes in meanwhile, and how fast that is drained afterwards."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.environment import BenchmarkEnvironment, CpuUse, Server, read_cpu
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import LoadResult, run_load, run_own_client
from boathook.db.database import Database
from boathook.domain.errors import ConfigError, DatabaseError
from boathook.spool.inspection import SegmentState, list_folders
from boathook_demo.rabbitmq import RabbitNode

ARRIVALS_PER_S: Final = 500
"""A modest rate at which events go on coming while the spool is drained."""
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
    send: Callable[[Path, int, float], LoadResult] | None = None,
    repeated: float = 0.0,
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
        send: sends the corpus to a port for so many seconds; `drive` if absent.
        repeated: the share of requests that repeat earlier ones.

    Raises:
        ConfigError: a request was refused, or events got lost.
    """
    with environment.postgres_stopped():
        environment.report("  taking in, PostgreSQL being away")
        before = read_cpu(environment, server, nodes)
        taken = (send or drive)(corpus, server.port, seconds)
        taking = read_cpu(environment, server, nodes).since(before, taken.requests)
        others = None if beside is None else beside()
    environment.report("  draining")
    read = partial(read_cpu, environment, server, nodes)
    drained_per_s, draining = asyncio.run(_measure_drain(url, is_drained, int(taken.requests * (1 - repeated)), read))
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
    return check_accepted(run_load(corpus, port, connections=CONNECTIONS, seconds=seconds))


def run_arrivals(corpus: Path, port: int, seconds: float) -> LoadResult:
    """Send a corpus at a modest rate. Raises as `drive`."""
    return check_accepted(run_own_client(corpus, port, connections=CONNECTIONS, seconds=seconds, rate=ARRIVALS_PER_S))


def check_accepted(load: LoadResult) -> LoadResult:
    """Return a result. Raises ConfigError if a request was refused or broke."""
    if load.refused or load.broken:
        raise ConfigError(f"{load.refused} requests of the benchmark were refused, {load.broken} broke")
    return load


async def _measure_drain(
    url: str, is_drained: IsDrained, least: int, read: Callable[[], CpuUse]
) -> tuple[float, CpuUse]:
    """Return events a second and what each costs, from the first that PostgreSQL has until nothing waits."""
    database = await Database.open(url, purpose="benchmark", size=1)
    await wait_until(lambda: database.fetchval("select exists (select from boathook.event)"))
    began, before = time.perf_counter(), read()
    await wait_until(partial(is_drained, database, least))
    took, after = time.perf_counter() - began, read()
    stored = await database.fetchval("select count(*) from boathook.event")
    marks = await database.fetch("select series, sequence, lost from boathook.buffer_mark")
    await database.close()
    if stored < least:
        raise ConfigError(
            f"{least} events were accepted, and PostgreSQL has {stored}; series: {list(map(dict, marks))}"
        )
    return float(stored / took), after.since(before, stored)


async def wait_until(holds: Callable[[], Any]) -> None:
    """Wait until something holds. Raises ConfigError if that takes minutes."""
    deadline = time.monotonic() + _DRAIN_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if await holds():
                return
        except DatabaseError:  # the server has just been started again
            pass
        await asyncio.sleep(_POLL_INTERVAL_S)
    raise ConfigError("what waited for PostgreSQL is not drained")
