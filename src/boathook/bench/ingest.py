"""How fast signed webhooks are taken in durably, and how cheaply duplicates are answered."""

import importlib.util
from pathlib import Path
from statistics import median
from typing import Any

from boathook.bench.load import Load, drive, prepare
from boathook.bench.stage import Stage
from boathook.domain.errors import ConfigError

CONNECTIONS = 64
_PER_SECOND = 30_000
_ROUNDS = 3


def ingest(stage: Stage, seconds: float) -> dict[str, Any]:
    """Compare the durable path with the same server without a database, and with two naive servers.

    Raises:
        ConfigError: what the naive servers are made of is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "greenlet")):
        raise ConfigError('the servers to compare with are not installed: pip install "boathook[bench]"')
    durable, ceiling = [], []
    url = stage.new_database()
    for number in range(_ROUNDS):
        with stage.corpus() as corpus:
            stage.report(f"round {number + 1} of {_ROUNDS}: signing requests")
            count = int(_PER_SECOND * seconds)
            prepare(corpus, count, parts=1, first=number * count)
            stage.report("  the same server without a database")
            with stage.module("ceiling") as server:
                ceiling.append(_drive(corpus, server.port, seconds))
            stage.report("  the full durable path")
            with stage.serve(url) as server:
                durable.append(_drive(corpus, server.port, seconds))
    orm = _naive(stage, "orm", seconds)
    plain = _naive(stage, "asyncpg", seconds)
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


def duplicates(stage: Stage, seconds: float) -> dict[str, Any]:
    """Compare a flood of requests that were accepted before with the same server without a database."""
    flood, ceiling = [], []
    url = stage.new_database()
    repeats = max(1, int(_PER_SECOND * seconds * 1.5) // 1000)
    for number in range(_ROUNDS):
        stage.report(f"round {number + 1} of {_ROUNDS}: signing requests")
        with stage.corpus() as first, stage.corpus() as again:
            prepare(first, 1000, parts=1, first=number * 1000)
            prepare(again, 1000, parts=1, first=number * 1000, repeat=repeats)
            stage.report("  the same server without a database")
            with stage.module("ceiling") as server:
                ceiling.append(_drive(again, server.port, seconds))
            stage.report("  duplicates of a thousand events")
            with stage.serve(url) as server:
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


def _naive(stage: Stage, kind: str, seconds: float) -> Load:
    stage.report(f"FastAPI with {'SQLAlchemy' if kind == 'orm' else 'asyncpg'}, an insert per request")
    with stage.corpus() as corpus:
        prepare(corpus, int(5_000 * seconds), parts=1)
        with stage.module("plain", kind, stage.new_database()) as server:
            return _drive(corpus, server.port, seconds)


def _drive(corpus: Path, port: int, seconds: float) -> Load:
    return drive(corpus, port, connections=CONNECTIONS, seconds=seconds)
