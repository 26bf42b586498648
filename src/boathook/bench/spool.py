"""How fast the spool takes events in while PostgreSQL is away, how fast it is drained, and what memory that takes."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from boathook.bench.groups import append_rates
from boathook.bench.ingest import CONNECTIONS
from boathook.bench.load import Load, drive, drive_own, prepare
from boathook.bench.stage import Stage
from boathook.domain.errors import ConfigError, JournalError
from boathook.journal.database import Database
from boathook.spool.survey import State, look

ARRIVALS_PER_S: Final = 500
"""A modest rate at which events go on coming while the spool is drained."""
_PER_SECOND: Final = 20_000
_ROUNDS: Final = 3
_MANY: Final = 150_000
"""More than a gateway remembers the keys of, so that more would take no more memory."""
_MANY_S: Final = 120
_LINGER_S: Final = 3
_DRAIN_DEADLINE_S: Final = 300
_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class _Round:
    """One round's events a second."""

    ceiling: float
    spooled: Load
    drained: float
    direct: float


def spool(stage: Stage, seconds: float) -> dict[str, Any]:
    """Take events in with PostgreSQL stopped, drain them once it is back, and compare both with doing without.

    Raises:
        ConfigError: events got lost.
    """
    rounds = [_round(stage, seconds, number) for number in range(_ROUNDS)]
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
        **append_rates(stage.folder, seconds / 6, stage.report),
        **_memory(stage),
        "connections": CONNECTIONS,
    }


def _round(stage: Stage, seconds: float, number: int) -> _Round:
    stage.report(f"round {number + 1} of {_ROUNDS}: signing requests")
    url, count = stage.new_database(), int(_PER_SECOND * seconds)
    with stage.corpus() as first, stage.corpus() as second, stage.corpus() as modest:
        prepare(first, count, parts=1)
        prepare(second, count, parts=1, first=count)
        prepare(modest, int(ARRIVALS_PER_S * (seconds + _LINGER_S)), parts=1, first=2 * count)
        stage.report("  the same server without a disk")
        with stage.module("ceiling") as bare:
            ceiling = _drive(first, bare.port, seconds)
        with stage.serve(url) as server, ThreadPoolExecutor(1) as beside:
            with stage.away():
                stage.report("  into the spool, PostgreSQL being away")
                spooled = _drive(first, server.port, seconds)
                arriving = beside.submit(_arrive, modest, server.port, seconds + _LINGER_S)
            stage.report("  draining the spool")
            drained = asyncio.run(_drained(url, stage.data_dir(server.port) / "spool", spooled.requests))
            arriving.result()
            stage.report("  straight into PostgreSQL")
            direct = _drive(second, server.port, seconds)
    return _Round(ceiling.rate, spooled, drained, direct.rate)


def _drive(corpus: Path, port: int, seconds: float) -> Load:
    return _unrefused(drive(corpus, port, connections=CONNECTIONS, seconds=seconds))


def _arrive(corpus: Path, port: int, seconds: float) -> Load:
    return _unrefused(drive_own(corpus, port, connections=CONNECTIONS, seconds=seconds, rate=ARRIVALS_PER_S))


def _unrefused(load: Load) -> Load:
    if load.refused or load.broken:
        raise ConfigError(f"{load.refused} requests of the bench were refused, {load.broken} broke")
    return load


async def _drained(url: str, root: Path, least: int) -> float:
    """Return events a second, from the first that PostgreSQL has until nothing is left in the spool."""
    database = await Database.open(url, purpose="bench", size=1)
    await _until(lambda: database.fetchval("select exists (select from boathook.event)"))
    began = time.perf_counter()

    async def is_empty() -> bool:
        return not any(one.state is State.WAITING for folder in look(root) for one in folder.segments)

    await _until(is_empty)
    took = time.perf_counter() - began
    stored = await database.fetchval("select count(*) from boathook.event")
    await database.close()
    if stored < least:
        raise ConfigError(f"the spool was given {least} events, and PostgreSQL has {stored}")
    return float(stored / took)


async def _until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _DRAIN_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if await holds():
                return
        except JournalError:  # the server has just been started again
            pass
        await asyncio.sleep(_LOOK_S)
    raise ConfigError("the spool of the bench is not drained")


def _memory(stage: Stage) -> dict[str, Any]:
    """Compare what a gateway takes with many events in its spool with what it takes when it has done nothing yet."""
    stage.report(f"signing {_MANY} requests")
    with stage.corpus() as corpus:
        prepare(corpus, _MANY, parts=1)
        with stage.serve(stage.new_database()) as server:
            idle = server.resident_bytes()
            with stage.away():
                stage.report("  into the spool, all of them")
                load = _drive(corpus, server.port, _MANY_S)
                full = server.resident_bytes()
    if not idle:
        return {}
    return {
        "memory_ratio": round(full / idle, 2),
        "memory_events": load.requests,
        "idle_mb": round(idle / 1e6, 1),
        "spooling_mb": round(full / 1e6, 1),
    }
