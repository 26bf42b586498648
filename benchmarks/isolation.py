"""Whether a receiver that never responds delays the others: their latency beside it, against their latency alone."""

import asyncio
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.bare_clients import SINK_ADDRESSES, urls
from benchmarks.delivery_setup import SETTINGS, create_setup, publish_steadily, read_waits, wait_for_sender
from benchmarks.environment import BenchmarkEnvironment, Server
from benchmarks.sink import NO_ANSWER_PATH

RATE: Final = 25
"""Messages a second, each for all healthy endpoints."""
_HEALTHY: Final = 20
_SIZE: Final = 1_024
_ROUNDS: Final = 2
_WARM_UP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Waits:
    """Milliseconds from a message's acceptance to its delivery."""

    p50: float
    p99: float


def isolation(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Send at a steady rate to twenty healthy endpoints, in turn alone and beside one that never answers."""
    alone, beside = [], []
    for number in range(_ROUNDS):
        environment.report(f"round {number + 1} of {_ROUNDS}: {_HEALTHY} endpoints alone")
        alone.append(_measure(environment, seconds, is_beside=False))
        environment.report("  beside one that never answers")
        beside.append(_measure(environment, seconds, is_beside=True))
    return {
        "ratio_of_p99": round(median(b.p99 / a.p99 for a, b in zip(alone, beside, strict=True)), 2),
        "alone_p50_ms": round(median(one.p50 for one in alone), 2),
        "alone_p99_ms": round(median(one.p99 for one in alone), 2),
        "beside_p50_ms": round(median(one.p50 for one in beside), 2),
        "beside_p99_ms": round(median(one.p99 for one in beside), 2),
        "endpoints": _HEALTHY,
        "deliveries_per_s": RATE * _HEALTHY,
    }


def _measure(environment: BenchmarkEnvironment, seconds: float, *, is_beside: bool) -> _Waits:
    with environment.module("sink", str(SINK_ADDRESSES)) as sink:
        setup = create_setup(
            environment, [*urls(sink.port, _HEALTHY), *([_unresponsive_url(sink)] if is_beside else [])]
        )
        with environment.serve(setup.database_url, roles="worker,keeper", app="", more=SETTINGS):
            asyncio.run(wait_for_sender(setup))
            asyncio.run(publish_steadily(setup, RATE, _WARM_UP_S + seconds, _SIZE))
            waits = sorted(asyncio.run(read_waits(setup, _WARM_UP_S, setup.recipients[:_HEALTHY])))
    return _Waits(waits[len(waits) // 2], waits[len(waits) * 99 // 100])


def _unresponsive_url(sink: Server) -> str:
    return f"http://127.0.0.1:{sink.port}{NO_ANSWER_PATH}"
