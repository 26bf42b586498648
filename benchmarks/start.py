"""How long `boathook serve` takes until it is ready, and its memory when idle, against a bare uvicorn server."""

from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.delivery_setup import SETTINGS
from benchmarks.environment import BenchmarkEnvironment, Server

ROLES: Final = "gateway,worker,console,keeper"
_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class _Started:
    ready_s: float
    cpu_s: float
    """Processor seconds until it was idle."""
    memory_bytes: int


def start(environment: BenchmarkEnvironment, _seconds: float) -> dict[str, Any]:
    """Start all roles on a migrated database, and FastAPI with asyncpg on uvicorn, in turn.

    The memory is that of all processes when idle, without PostgreSQL; pages that they share are counted once.
    """
    url, bare_url = environment.new_database(), environment.new_database()
    product, bare = [], []
    for number in range(_ROUNDS):
        environment.report(f"round {number + 1} of {_ROUNDS}")
        bare.append(_measure(environment.module("plain", "asyncpg", bare_url)))
        product.append(_measure(environment.serve(url, roles=ROLES, more=SETTINGS)))
    ratios = [one.ready_s / other.ready_s for one, other in zip(product, bare, strict=True)]
    return {"ratio_to_naive": round(median(ratios), 2), **_figures("", product), **_figures("naive_", bare)}


def _measure(server: Server) -> _Started:
    with server:
        server.wait_until_idle()
        return _Started(server.ready_s, server.cpu_s(), server.memory_bytes())


def _figures(prefix: str, rounds: list[_Started]) -> dict[str, Any]:
    return {
        f"{prefix}ready_s": round(median(one.ready_s for one in rounds), 2),
        f"{prefix}cpu_s": round(median(one.cpu_s for one in rounds), 2),
        f"{prefix}memory_mb": round(median(one.memory_bytes for one in rounds) / 1e6),
    }
