"""How fast the spool takes events in while PostgreSQL is away, how fast it is drained, and what memory that takes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.environment import BenchmarkEnvironment
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import LoadResult, prepare
from benchmarks.mixed import MixedOutage, mixed_figures, play_mixed_outage
from benchmarks.outage import ARRIVALS_PER_S, drive, play_outage, run_arrivals, spool_is_empty
from benchmarks.spool_append import append_rates

_PER_SECOND: Final = 20_000
_ROUNDS: Final = 3
_MANY: Final = 150_000
"""More than a gateway remembers the keys of, so that more would take no more memory."""
_MANY_S: Final = 120
_LINGER_S: Final = 3


@dataclass(frozen=True, slots=True)
class _Round:
    """One round's events a second."""

    ceiling: float
    spooled: LoadResult
    drained: float
    direct: float
    mixed: MixedOutage


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
        **mixed_figures("mixed", [one.mixed for one in rounds]),
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
    mixed = play_mixed_outage(environment, seconds)
    return _Round(ceiling.rate, outage.taken, outage.drained_per_s, direct.rate, mixed)


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
