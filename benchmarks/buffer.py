"""How fast events are taken in with RabbitMQ while PostgreSQL is away, and drained, against the spool."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.environment import BenchmarkEnvironment, CpuUse, read_cpu
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import LoadResult, prepare
from benchmarks.mixed import MixedOutage, mixed_figures, play_mixed_outage
from benchmarks.outage import OutageResult, drive, play_outage, spool_is_empty
from boathook.db.database import Database
from boathook_demo.rabbitmq import PASSWORD, USER, VHOST, RabbitNode

_PER_SECOND: Final = 20_000
_ROUNDS: Final = 3
_CONFIRM_S: Final = 30.0
"""So long that nothing is refused on a slow disk."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """One server: with PostgreSQL stopped, then draining, then storing straight."""

    outage: OutageResult
    straight: LoadResult
    storing: CpuUse
    """Of each event, in microseconds."""
    mixed: MixedOutage


def buffer(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Take events in with PostgreSQL stopped and drain them, with brokers and with the spool, in turn.

    Raises:
        ConfigError: RabbitMQ is not installed, or events got lost.
        BoathookError: no broker starts.
    """
    with environment.brokers() as nodes:
        rounds = [_round(environment, nodes, seconds, number) for number in range(_ROUNDS)]
        figures = _ratios(rounds)
        for kind in ("rabbitmq", "spool"):
            figures |= _figures(kind, [one[kind] for one in rounds])
        return figures | {"brokers": len(nodes), "connections": CONNECTIONS}


def settings(nodes: list[RabbitNode]) -> str:
    """Return what `boathook serve` needs to buffer with brokers alone."""
    hosts = ", ".join(f'"{node.host[0]}:{node.host[1]}"' for node in nodes)
    return (
        f'[buffer]\nkind = "rabbitmq"\nthen = "refuse"\nhosts = [{hosts}]\nvhost = "{VHOST}"\n'
        f'user = "{USER}"\npassword = "{PASSWORD}"\nconfirm_s = {_CONFIRM_S}\n'
    )


async def has_arrived(database: Database, events: int) -> bool:
    """Return whether as many events have come from the brokers: gateways number them from one.

    The brokers may still have a checkpoint of the server before, whose events another database has.
    """
    arrived: int = await database.fetchval("select coalesce(sum(sequence - lost), 0) from boathook.buffer_mark")
    return arrived >= events


def _round(
    environment: BenchmarkEnvironment, nodes: list[RabbitNode], seconds: float, number: int
) -> dict[str, _Measured]:
    environment.report(f"round {number + 1} of {_ROUNDS}: signing requests")
    count = int(_PER_SECOND * seconds)
    with environment.corpus() as first, environment.corpus() as second:
        prepare(first, count, parts=1)
        prepare(second, count, parts=1, first=count)
        # In turn forwards and backwards, as the machine changes meanwhile.
        kinds = sorted(("rabbitmq", "spool"), reverse=number % 2 == 1)
        return {
            kind: _measure(environment, nodes if kind == "rabbitmq" else [], first, second, seconds) for kind in kinds
        }


def _measure(
    environment: BenchmarkEnvironment, nodes: list[RabbitNode], first: Path, second: Path, seconds: float
) -> _Measured:
    environment.report(f" {'RabbitMQ' if nodes else 'the spool'}")
    url = environment.new_database()
    with environment.serve(url, more=settings(nodes) if nodes else "") as server:
        server.wait_until_idle()
        is_drained = has_arrived if nodes else spool_is_empty(environment.data_dir(server.port) / "spool")
        outage = play_outage(environment, server, url, first, seconds, is_drained=is_drained, nodes=nodes)
        server.wait_until_idle()  # a moment passes until it stores directly again
        environment.report("  straight into PostgreSQL")
        before = read_cpu(environment, server, nodes)
        straight = drive(second, server.port, seconds)
        storing = read_cpu(environment, server, nodes).since(before, straight.requests)
    mixed = play_mixed_outage(
        environment,
        seconds,
        nodes=nodes,
        more=settings(nodes) if nodes else "",
        is_drained=has_arrived if nodes else None,
    )
    return _Measured(outage, straight, storing, mixed)


def _ratios(rounds: list[dict[str, _Measured]]) -> dict[str, Any]:
    pairs = [(one["rabbitmq"], one["spool"]) for one in rounds]
    return {
        "ratio_to_spool": round(median(r.outage.taken.rate / s.outage.taken.rate for r, s in pairs), 2),
        "drain_to_spool": round(median(r.outage.drained_per_s / s.outage.drained_per_s for r, s in pairs), 2),
        "drain_to_straight": round(median(r.outage.drained_per_s / r.straight.rate for r, _ in pairs), 2),
    }


def _figures(kind: str, measured: list[_Measured]) -> dict[str, Any]:
    return {
        f"{kind}_per_s": round(median(one.outage.taken.rate for one in measured)),
        f"{kind}_p50_ms": round(median(one.outage.taken.p50_ms for one in measured), 2),
        f"{kind}_p99_ms": round(median(one.outage.taken.p99_ms for one in measured), 2),
        f"{kind}_drained_per_s": round(median(one.outage.drained_per_s for one in measured)),
        f"{kind}_straight_per_s": round(median(one.straight.rate for one in measured)),
        **mixed_figures(f"{kind}_mixed", [one.mixed for one in measured]),
        **cpu_figures(kind, [one.outage.taking for one in measured]),
        **cpu_figures(f"{kind}_drain", [one.outage.draining for one in measured]),
        **cpu_figures(f"{kind}_straight", [one.storing for one in measured]),
    }


def cpu_figures(name: str, measured: list[CpuUse]) -> dict[str, float]:
    """Return the medians of what was used, without those that were not."""
    figures = {
        f"{name}_gateway_us": median(one.gateway for one in measured),
        f"{name}_brokers_us": median(one.brokers for one in measured),
        f"{name}_postgres_us": median(one.postgres or 0.0 for one in measured),
    }
    return {name: round(value, 1) for name, value in figures.items() if value}
