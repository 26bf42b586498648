"""How soon after acceptance a handler starts, at a steady thousand events a second."""

import os
from array import array
from pathlib import Path
from typing import Any

from benchmarks.environment import BenchmarkEnvironment
from benchmarks.load import prepare, run_own_client

RATE = 1_000
_CONNECTIONS = 32


def latency(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Send at a fixed rate to a whole boathook, and report the waits its handler saw."""
    from benchmarks.handle import make_table

    url = environment.new_database()
    make_table(url)
    starts = environment.folder / "starts"
    os.environ["BOATHOOK_BENCHMARK_STARTS"] = str(starts)
    try:
        with (
            environment.corpus() as warm,
            environment.corpus() as corpus,
            environment.serve(url, roles="gateway,worker,keeper") as server,
        ):
            prepare(warm, RATE, parts=1)
            prepare(corpus, int(RATE * seconds * 2), parts=1, first=RATE)
            environment.report("warming up")
            run_own_client(warm, server.port, connections=_CONNECTIONS, seconds=5, rate=RATE)
            environment.report(f"{RATE} events a second")
            load = run_own_client(corpus, server.port, connections=_CONNECTIONS, seconds=seconds * 2 + 5, rate=RATE)
    finally:
        del os.environ["BOATHOOK_BENCHMARK_STARTS"]
    waits = sorted(_read(starts))
    if not waits:
        raise RuntimeError("no handler ran")
    return {
        "p50_ms": round(waits[len(waits) // 2], 2),
        "p99_ms": round(waits[len(waits) * 99 // 100], 2),
        "longest_ms": round(waits[-1], 1),
        "handled": len(waits),
        "events_per_s": round(load.rate),
        "ack_p50_ms": round(load.p50_ms, 2),
        "ack_p99_ms": round(load.p99_ms, 2),
        "refused": load.refused,
        "broken": load.broken,
    }


def _read(starts: Path) -> list[float]:
    """Return the waits of all worker processes, those of the warm-up's first second left out."""
    waits = array("d")
    for file in starts.parent.glob(f"{starts.name}.*"):
        part = array("d")
        part.frombytes(file.read_bytes())
        waits.extend(part[RATE:] if len(part) > RATE else part)
    return list(waits)
