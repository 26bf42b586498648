"""How fast messages are sent and recorded, against bare loops that only POST to the same sink."""

import asyncio
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.bare_clients import SINK_ADDRESSES, post, urls
from benchmarks.delivery_setup import (
    SETTINGS,
    create_setup,
    enable_endpoints,
    measure_drain,
    publish_one,
    publish_steadily,
    read_waits,
    store_messages,
    vacuum_queue,
    wait_for_sender,
    wait_until_delivered,
)
from benchmarks.environment import BenchmarkEnvironment
from benchmarks.sink import read_count
from boathook.delivery.endpoint_queues import CONCURRENCY_SHARE
from boathook.domain.errors import ConfigError

SIZE: Final = 1_024
CONCURRENCY: Final = 64
_PER_SECOND: Final = 3_000
_ROUNDS: Final = 3
_MANY: Final = 200
_FANOUT: Final = (100, 1_000)
_FANOUT_ROUNDS: Final = 5
_BURST: Final = 10_000
_BURST_ENDPOINTS: Final = 20
_QUIET_RATE: Final = 25.0
_QUIET_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class _Round:
    """One round's requests a second."""

    sent: float
    libcurl: float
    aiohttp: float


def deliver(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Let a sender drain a prepared backlog, and the bare loops post as many bodies, in turn."""
    count = max(2_000, int(_PER_SECOND * seconds))
    one = [_round(environment, 1, count, number) for number in range(_ROUNDS)]
    many = [_round(environment, _MANY, count, number) for number in range(_ROUNDS)]
    return {
        **_figures(one, ""),
        **_figures(many, f"_{_MANY}"),
        "concurrency": CONCURRENCY,
        "messages": count,
        "body_bytes": SIZE,
    }


def _limits(endpoints: int) -> str:
    """Return settings that let as many requests be under way as the bare loops have; one endpoint gets but a share."""
    places = CONCURRENCY * CONCURRENCY_SHARE if endpoints == 1 else CONCURRENCY
    return f"concurrency = {places}\nendpoint_concurrency = {CONCURRENCY}\n"


def _figures(rounds: list[_Round], suffix: str) -> dict[str, Any]:
    return {
        f"ratio_to_ceiling{suffix}": round(median(one.sent / one.libcurl for one in rounds), 3),
        f"ratio_to_naive{suffix}": round(median(one.sent / one.aiohttp for one in rounds), 2),
        f"delivered_per_s{suffix}": round(median(one.sent for one in rounds)),
        f"libcurl_per_s{suffix}": round(median(one.libcurl for one in rounds)),
        f"aiohttp_per_s{suffix}": round(median(one.aiohttp for one in rounds)),
    }


def _round(environment: BenchmarkEnvironment, endpoints: int, count: int, number: int) -> _Round:
    environment.report(f"round {number + 1} of {_ROUNDS}, endpoints: {endpoints}")
    with environment.module("sink", str(SINK_ADDRESSES)) as sink:
        bare = {
            kind: post(kind, sink.port, endpoints=endpoints, count=count, concurrency=CONCURRENCY, size=SIZE)
            for kind in ("libcurl", "aiohttp")
        }
        before = read_count(sink.port)
        environment.report(f"  publishing {count} messages")
        setup = create_setup(environment, urls(sink.port, endpoints), is_disabled=True)
        asyncio.run(store_messages(setup, count, SIZE))
        asyncio.run(vacuum_queue(setup))
        environment.report("  boathook's sender")
        more = SETTINGS + _limits(endpoints)
        with environment.serve(setup.database_url, roles="worker,keeper", app="", more=more) as server:
            # Processes that start use as much of the processor as sending does, so the sender waits for them.
            asyncio.run(wait_for_sender(setup))
            server.wait_until_idle()
            asyncio.run(enable_endpoints(setup))
            sent = asyncio.run(measure_drain(setup, count))
        if (got := read_count(sink.port) - before) != count:
            raise ConfigError(f"the sink got {got} requests for {count} messages")
    return _Round(sent, **bare)


def fanout(environment: BenchmarkEnvironment, _seconds: float) -> dict[str, Any]:
    """Publish single messages that many endpoints want, and time each from its publishing to its last delivery.

    Raises:
        ConfigError: messages got lost, or came twice.
    """
    few, many = (_fan_out(environment, endpoints) for endpoints in _FANOUT)
    return many | {f"few_{name}": few[name] for name in ("endpoints", "all_delivered_s", "accepted_s", "rows_per_s")}


def _fan_out(environment: BenchmarkEnvironment, endpoints: int) -> dict[str, Any]:
    with environment.module("sink", str(SINK_ADDRESSES)) as sink:
        setup = create_setup(environment, urls(sink.port, endpoints))
        with environment.serve(setup.database_url, roles="worker,keeper", app="", more=SETTINGS + _limits(endpoints)):
            environment.report(f"warming up {endpoints} endpoints")
            asyncio.run(publish_one(setup, SIZE))
            times, accepts = [], []
            for number in range(_FANOUT_ROUNDS):
                environment.report(f"message {number + 1} of {_FANOUT_ROUNDS}")
                accept_s, total_s = asyncio.run(publish_one(setup, SIZE))
                accepts.append(accept_s)
                times.append(total_s)
        expected = (_FANOUT_ROUNDS + 1) * endpoints
        if (received := read_count(sink.port)) != expected:
            raise ConfigError(f"the sink got {received} requests for {expected} deliveries")
        environment.report("the bare libcurl loop")
        bare = post("libcurl", sink.port, endpoints=endpoints, count=endpoints, concurrency=CONCURRENCY, size=SIZE)
    return {
        "ratio_to_ceiling": round(endpoints / median(times) / bare, 3),
        "all_delivered_s": round(median(times), 3),
        "accepted_s": round(median(accepts), 3),
        "rows_per_s": round(endpoints / median(times)),
        "libcurl_per_s": round(bare),
        "endpoints": endpoints,
        "concurrency": CONCURRENCY,
    }


def burst(environment: BenchmarkEnvironment, _seconds: float) -> dict[str, Any]:
    """Deliver a burst after quiet traffic on a queue that was vacuumed empty, and quiet traffic after it.

    PostgreSQL plans the statements of the quiet traffic for an empty queue; the burst runs with these plans.
    """
    rounds = [_burst_round(environment, number) for number in range(_ROUNDS)]
    return {
        **{name: median(one[name] for one in rounds) for name in rounds[0]},
        "slowest_burst_per_s": min(one["burst_per_s"] for one in rounds),
        "worst_quiet_p99_ms": max(one["quiet_p99_ms"] for one in rounds),
        "messages": _BURST,
        "endpoints": _BURST_ENDPOINTS,
        "quiet_deliveries": int(_QUIET_RATE * _QUIET_S) * _BURST_ENDPOINTS,
    }


def _burst_round(environment: BenchmarkEnvironment, number: int) -> dict[str, float]:
    environment.report(f"round {number + 1} of {_ROUNDS}")
    quiet = int(_QUIET_RATE * _QUIET_S) * _BURST_ENDPOINTS
    with environment.module("sink", str(SINK_ADDRESSES)) as sink:
        setup = create_setup(environment, urls(sink.port, _BURST_ENDPOINTS))
        with environment.serve(setup.database_url, roles="worker,keeper", app="", more=SETTINGS) as server:
            asyncio.run(wait_for_sender(setup))
            server.wait_until_idle()
            asyncio.run(vacuum_queue(setup))
            first_at = time.perf_counter()
            asyncio.run(publish_steadily(setup, _QUIET_RATE, _QUIET_S, SIZE))
            asyncio.run(wait_until_delivered(setup, quiet))
            asyncio.run(enable_endpoints(setup, is_disabled=True))
            asyncio.run(store_messages(setup, _BURST, SIZE))
            asyncio.run(enable_endpoints(setup))
            began, used = time.perf_counter(), environment.postgres_cpu_s() or 0.0
            asyncio.run(wait_until_delivered(setup, quiet + _BURST))
            took_s, burst_s = time.perf_counter() - began, (environment.postgres_cpu_s() or 0.0) - used
            quiet_at, used = time.perf_counter(), environment.postgres_cpu_s() or 0.0
            asyncio.run(publish_steadily(setup, _QUIET_RATE, _QUIET_S, SIZE))
            waits = sorted(asyncio.run(read_waits(setup, quiet_at - first_at, setup.recipients)))
            quiet_s = (environment.postgres_cpu_s() or 0.0) - used
    return {
        "burst_per_s": round(_BURST / took_s),
        "burst_postgresql_us": round(burst_s * 1e6 / _BURST),
        "quiet_p50_ms": round(median(waits), 1),
        "quiet_p99_ms": round(waits[int(len(waits) * 0.99)], 1),
        "quiet_postgresql_us": round(quiet_s * 1e6 / quiet),
    }
