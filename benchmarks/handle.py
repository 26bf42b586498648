"""How many handler transactions a worker settles, against the same user SQL in bare asyncpg transactions.

The bare loop takes a connection from a pool for each transaction, as applications do; the lean one keeps it, which
saves the reset. Run as a module it is one measured process: ``python -m benchmarks.handle worker|bare|lean URL COUNT``.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any
from uuid import UUID

import asyncpg
import uvloop

from benchmarks.environment import BenchmarkEnvironment
from benchmarks.handlers import INSERT, TABLE, hook, waits_ms
from boathook.config import load
from boathook.db import route_registry
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.delivery.handler_executor import run_worker
from boathook.domain import ids
from boathook.domain.errors import ConfigError
from boathook.domain.model import NewDelivery, NewEvent, Origin, ProofStrength

CONCURRENCY = 16
_PER_SECOND = 4_000
_ROUNDS = 3
_BODY = json.dumps({"object": "event", "type": "invoice.paid", "data": {"object": {"text": "x" * 900}}}).encode()


def handle(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Let a worker settle a prepared backlog, and the two loops do the same effects, in turn."""
    count = max(1_000, int(_PER_SECOND * seconds))
    handled, bare, lean = [], [], []
    url = environment.new_database()
    make_table(url)
    for number in range(_ROUNDS):
        environment.report(f"round {number + 1} of {_ROUNDS}: bare asyncpg transactions")
        bare.append(_measure("bare", url, count))
        environment.report("  the same on kept connections")
        lean.append(_measure("lean", url, count))
        environment.report(f"  storing {count} events")
        asyncio.run(_store_backlog(url, number * count, count))
        environment.report("  boathook's worker")
        handled.append(_measure("worker", url, count))
    return {
        "ratio_to_ceiling": round(median(h / b for h, b in zip(handled, bare, strict=True)), 3),
        "ratio_to_lean": round(median(h / b for h, b in zip(handled, lean, strict=True)), 3),
        "handled_per_s": round(median(handled)),
        "bare_per_s": round(median(bare)),
        "lean_per_s": round(median(lean)),
        "concurrency": CONCURRENCY,
        "transactions": count,
    }


def make_table(url: str) -> None:
    """Make the table that the benchmark's handler writes to."""

    async def make() -> None:
        database = await Database.open(url, purpose="benchmark", size=1)
        await database.execute(TABLE)
        await database.close()

    asyncio.run(make())


def _measure(kind: str, url: str, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.handle", kind, url, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(f"the {kind} process of the benchmark failed: {done.stderr.strip()[-1000:]}")
    return float(done.stdout.split()[-1])


async def _store_backlog(url: str, first: int, count: int) -> None:
    database = await Database.open(url, purpose="benchmark", size=2)
    await route_registry.register(database, "benchmark", hook.routes("benchmark"))
    routes = await route_registry.read_routes(database)
    (recipient,) = {route.recipient for route in routes.routes}
    store = EventStore(database)
    for start in range(first, first + count, 128):
        numbers = range(start, min(start + 128, first + count))
        await store.append([_event(number, recipient, routes.version) for number in numbers])
    await database.execute("vacuum analyze boathook.delivery")
    await database.close()


def _event(number: int, recipient: str, version: int) -> NewEvent:
    key = f"evt_{number}"
    return NewEvent(
        id=ids.make(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big")),
        source="stripe",
        application=None,
        type="invoice.paid",
        dedup_key=key,
        key_hash=UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]),
        replay_hash=None,
        grade=ProofStrength.BODY,
        origin=Origin.RECEIVED,
        headers="{}",
        content_type="application/json",
        body=_BODY,
        body_sha256=hashlib.sha256(_BODY).digest(),
        deliveries=(NewDelivery(recipient),),
        routes_version=version,
    )


async def _bare(url: str, count: int) -> float:
    pool = await asyncpg.create_pool(url, min_size=CONCURRENCY, max_size=CONCURRENCY)
    left = iter(range(count))

    async def work() -> None:
        for number in left:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(INSERT, f"bare_{number}")

    try:
        return await _measure_rate(work, count)
    finally:
        await pool.close()


async def _lean(url: str, count: int) -> float:
    connections = [await asyncpg.connect(url) for _ in range(CONCURRENCY)]
    free = list(connections)
    left = iter(range(count))

    async def work() -> None:
        connection = free.pop()
        for number in left:
            async with connection.transaction():
                await connection.execute(INSERT, f"lean_{number}")

    try:
        return await _measure_rate(work, count)
    finally:
        for connection in connections:
            await connection.close()


async def _measure_rate(work: Callable[[], Coroutine[Any, Any, None]], count: int) -> float:
    """Run *work* as often as there are connections; return the transactions a second if it makes *count* in all."""
    began = time.perf_counter()
    await asyncio.gather(*[work() for _ in range(CONCURRENCY)])
    return count / (time.perf_counter() - began)


async def _worker(url: str, count: int) -> float:
    settings = load(None, {"database.url": url, "worker.concurrency": CONCURRENCY, "log.level": "warning"})
    database = await Database.open(url, purpose="benchmark", size=1)
    stop = asyncio.Event()
    worker = asyncio.create_task(
        run_worker(settings, hook, worker_id="benchmark", only_suspects=False, stop=stop, beat=_nothing)
    )
    while not waits_ms:
        await asyncio.sleep(0.001)
    # Connecting is left out, as for the bare loop. The handler tells when it has begun its last event; asking the
    # queue until then would be work of its own.
    began = time.perf_counter()
    while len(waits_ms) < count or await database.fetchval("select exists (select from boathook.delivery)"):
        await asyncio.sleep(0.002)
    took = time.perf_counter() - began
    stop.set()
    await worker
    await database.close()
    return count / took


def _nothing() -> None:
    """Accept a heartbeat and ignore it."""


def main() -> None:
    """Measure one kind and print the transactions a second."""
    kind, url, count = sys.argv[1:]
    measure: Callable[[str, int], Any] = {"bare": _bare, "lean": _lean, "worker": _worker}[kind]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(measure(url, int(count))))


if __name__ == "__main__":
    main()
