"""How fast signed webhooks are taken in durably, and how cheaply duplicates are answered."""

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import BenchmarkEnvironment
from benchmarks.load import LoadResult, prepare, run_load

CONNECTIONS = 64
_PER_SECOND = 30_000
_ROUNDS = 3


def ingest(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Compare the durable path with the same server without a database, and with two naive servers."""
    durable, ceiling = [], []
    url = environment.new_database()
    for number in range(_ROUNDS):
        with environment.corpus() as corpus:
            environment.report(f"round {number + 1} of {_ROUNDS}: signing requests")
            count = int(_PER_SECOND * seconds)
            prepare(corpus, count, parts=1, first=number * count)
            environment.report("  the same server without a database")
            with environment.module("ceiling") as server:
                ceiling.append(_drive(corpus, server.port, seconds))
            environment.report("  the full durable path")
            with environment.serve(url) as server:
                durable.append(_drive(corpus, server.port, seconds))
    orm = _naive(environment, "orm", seconds)
    plain = _naive(environment, "asyncpg", seconds)
    rate = median(load.rate for load in durable)
    return {
        "ratio_to_ceiling": round(median(d.rate / c.rate for d, c in zip(durable, ceiling, strict=True)), 3),
        "ratio_to_naive": round(rate / orm.rate, 1),
        "ratio_to_asyncpg": round(rate / plain.rate, 2),
        "events_per_s": round(rate),
        "ceiling_per_s": round(median(load.rate for load in ceiling)),
        "naive_orm_per_s": round(orm.rate),
        "naive_asyncpg_per_s": round(plain.rate),
        "p50_ms": round(median(load.p50_ms for load in durable), 2),
        "p99_ms": round(median(load.p99_ms for load in durable), 2),
        "naive_orm_p99_ms": round(orm.p99_ms, 1),
        "naive_asyncpg_p99_ms": round(plain.p99_ms, 1),
        "connections": CONNECTIONS,
        "refused": sum(load.refused for load in durable),
        "broken": sum(load.broken for load in durable),
    }


def duplicates(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Compare a flood of requests that were accepted before with the same server without a database."""
    flood, ceiling = [], []
    url = environment.new_database()
    repeats = max(1, int(_PER_SECOND * seconds * 1.5) // 1000)
    for number in range(_ROUNDS):
        environment.report(f"round {number + 1} of {_ROUNDS}: signing requests")
        with environment.corpus() as first, environment.corpus() as again:
            prepare(first, 1000, parts=1, first=number * 1000)
            prepare(again, 1000, parts=1, first=number * 1000, repeat=repeats)
            environment.report("  the same server without a database")
            with environment.module("ceiling") as server:
                ceiling.append(_drive(again, server.port, seconds))
            environment.report("  duplicates of a thousand events")
            with environment.serve(url) as server:
                _drive(first, server.port, seconds)
                flood.append(_drive(again, server.port, seconds))
    return {
        "ratio_to_ceiling": round(median(d.rate / c.rate for d, c in zip(flood, ceiling, strict=True)), 3),
        "duplicates_per_s": round(median(load.rate for load in flood)),
        "ceiling_per_s": round(median(load.rate for load in ceiling)),
        "p50_ms": round(median(load.p50_ms for load in flood), 2),
        "p99_ms": round(median(load.p99_ms for load in flood), 2),
        "connections": CONNECTIONS,
        "refused": sum(load.refused for load in flood),
        "broken": sum(load.broken for load in flood),
    }


def _naive(environment: BenchmarkEnvironment, kind: str, seconds: float) -> LoadResult:
    environment.report(f"FastAPI with {'SQLAlchemy' if kind == 'orm' else 'asyncpg'}, an insert per request")
    with environment.corpus() as corpus:
        prepare(corpus, int(5_000 * seconds), parts=1)
        with environment.module("plain", kind, environment.new_database()) as server:
            return _drive(corpus, server.port, seconds)


def _drive(corpus: Path, port: int, seconds: float) -> LoadResult:
    return run_load(corpus, port, connections=CONNECTIONS, seconds=seconds)
