"""Taking in and delivering at once, against taking in alone: every event that comes in goes out to an endpoint."""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.bare_clients import SINK_ADDRESSES, urls
from benchmarks.delivery_setup import (
    SETTINGS,
    DeliverySetup,
    create_setup,
    route_to_endpoints,
    wait_until_delivered,
)
from benchmarks.environment import BenchmarkEnvironment
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import TYPES, LoadResult, prepare, run_load
from boathook.domain.errors import ConfigError

_PER_SECOND: Final = 30_000
_ROUNDS: Final = 3


def both(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Take requests in as fast as they come, with a sender beside and without, in turn.

    With a sender beside, time runs until the last of the events is delivered, so that no backlog flatters the figure.
    """
    alone, beside = [], []
    for number in range(_ROUNDS):
        with environment.corpus() as corpus:
            environment.report(f"round {number + 1} of {_ROUNDS}: signing requests")
            prepare(corpus, int(_PER_SECOND * seconds), parts=1)
            environment.report("  taking in alone")
            alone.append(_take_in(environment, corpus, seconds, roles="gateway,keeper"))
            environment.report("  taking in and delivering")
            beside.append(_take_in(environment, corpus, seconds, roles="gateway,worker,keeper"))
    return {
        "ratio_to_ceiling": round(median(b / a for b, a in zip(beside, alone, strict=True)), 3),
        "both_per_s": round(median(beside)),
        "ingest_alone_per_s": round(median(alone)),
        "connections": CONNECTIONS,
    }


def _take_in(environment: BenchmarkEnvironment, corpus: Path, seconds: float, *, roles: str) -> float:
    """Return events a second: taken in, and where there is a sender, delivered too."""
    with environment.module("sink", str(SINK_ADDRESSES)) as sink:
        setup = create_setup(environment, urls(sink.port, len(TYPES)))
        route_to_endpoints(setup, "stripe", TYPES)
        with environment.serve(setup.database_url, roles=roles, app="", more=SETTINGS) as server:
            load = run_load(corpus, server.port, connections=CONNECTIONS, seconds=seconds)
            if load.refused or load.broken:
                raise ConfigError(f"{load.refused} requests of the benchmark were refused, {load.broken} broke")
            tail_s = _wait(setup, load) if "worker" in roles else 0.0
    return load.requests / (load.seconds + tail_s)


def _wait(setup: DeliverySetup, load: LoadResult) -> float:
    """Return the seconds until all that was taken in is delivered."""
    began = time.perf_counter()
    asyncio.run(wait_until_delivered(setup, load.requests))
    return time.perf_counter() - began
