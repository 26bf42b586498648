"""How fast signed webhooks are taken in durably, and how cheaply duplicates are answered."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import history
from benchmarks.environment import BenchmarkEnvironment, Server
from benchmarks.load import LoadResult, prepare, run_load, run_own_client
from boathook.domain.errors import ConfigError

CONNECTIONS = 64
_PER_SECOND = 30_000
_ROUNDS = 3
_AFTER_CHECKPOINT: Final = 50_000
"""Events that the measurement from a checkpoint on takes in, however long that takes."""
_DEADLINE_S: Final = 120.0
"""As long as the signatures of a prepared load hold, with time to prepare it."""


@dataclass(frozen=True, slots=True)
class _FromCheckpoint:
    """What was measured on one database: the first events after a checkpoint, and those that followed."""

    first: LoadResult
    later: LoadResult
    first_postgres_us: float | None
    """Processor time of PostgreSQL for each of the first events; None where it is not the environment's own."""


def ingest(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Compare the durable path with the same server without a database, and with two naive servers.

    With a number of events, compare a database that has stored so many with an empty one instead.
    """
    if environment.events:
        return _compare_history(environment, seconds)
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
                server.wait_until_idle()
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


def _compare_history(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    urls = {"empty": environment.new_database(), "filled": environment.new_database()}
    environment.report(f"storing {environment.events:,} events")
    history.fill(urls["filled"], environment.events)
    rounds: list[dict[str, _FromCheckpoint]] = []
    for number in range(_ROUNDS):
        environment.report(f"round {number + 1} of {_ROUNDS}")
        # In turn forwards and backwards, as the machine changes meanwhile.
        names = sorted(urls, reverse=number % 2 == 1)
        rounds.append({name: _drive_from_checkpoint(environment, urls[name], number, seconds) for name in names})
    figures: dict[str, Any] = {
        "ratio_to_empty_after_checkpoint": round(
            median(one["filled"].first.rate / one["empty"].first.rate for one in rounds), 3
        ),
        "ratio_to_empty_later": round(median(one["filled"].later.rate / one["empty"].later.rate for one in rounds), 3),
    }
    for name in urls:
        measured = [one[name] for one in rounds]
        figures[f"{name}_after_checkpoint_per_s"] = round(median(one.first.rate for one in measured))
        figures[f"{name}_later_per_s"] = round(median(one.later.rate for one in measured))
        spent = [one.first_postgres_us for one in measured if one.first_postgres_us is not None]
        figures |= {f"{name}_after_checkpoint_postgres_us": round(median(spent), 1)} if spent else {}
    loads = [load for one in rounds for measured in one.values() for load in (measured.first, measured.later)]
    return figures | {
        "events": environment.events,
        "events_after_checkpoint": _AFTER_CHECKPOINT,
        "connections": CONNECTIONS,
        "refused": sum(load.refused for load in loads),
        "broken": sum(load.broken for load in loads),
    }


def _drive_from_checkpoint(environment: BenchmarkEnvironment, url: str, number: int, seconds: float) -> _FromCheckpoint:
    count = int(_PER_SECOND * seconds)
    with environment.serve(url) as server, environment.corpus() as first, environment.corpus() as later:
        numbers = number * (_AFTER_CHECKPOINT + count)
        prepare(first, _AFTER_CHECKPOINT, parts=1, first=numbers)
        prepare(later, count, parts=1, first=numbers + _AFTER_CHECKPOINT)
        server.wait_until_idle()
        environment.checkpoint()
        before = environment.postgres_cpu_s()
        load = _drive_all(first, server, _AFTER_CHECKPOINT)
        after = environment.postgres_cpu_s()
        spent = None if before is None or after is None else (after - before) * 1e6 / load.requests
        return _FromCheckpoint(load, _drive(later, server.port, seconds), spent)


def _drive_all(corpus: Path, server: Server, count: int) -> LoadResult:
    """Send a whole corpus.

    Raises:
        ConfigError: the server did not answer all of it in time.
    """
    load = run_own_client(corpus, server.port, connections=CONNECTIONS, seconds=_DEADLINE_S)
    if load.requests < count:
        raise ConfigError(f"the server answered {load.requests:,} of {count:,} requests within {_DEADLINE_S:.0f} s")
    return load


def _naive(environment: BenchmarkEnvironment, kind: str, seconds: float) -> LoadResult:
    environment.report(f"FastAPI with {'SQLAlchemy' if kind == 'orm' else 'asyncpg'}, an insert per request")
    with environment.corpus() as corpus:
        prepare(corpus, int(5_000 * seconds), parts=1)
        with environment.module("plain", kind, environment.new_database()) as server:
            return _drive(corpus, server.port, seconds)


def _drive(corpus: Path, port: int, seconds: float) -> LoadResult:
    return run_load(corpus, port, connections=CONNECTIONS, seconds=seconds)
