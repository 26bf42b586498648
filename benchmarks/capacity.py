"""What one event costs each part of an installation: the measured inputs of the capacity table in the docs.

``python -m benchmarks capacity --json > benchmarks/capacity.json`` and `make docs` write that table anew.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import buffer
from benchmarks.bare_clients import SINK_ADDRESSES, urls
from benchmarks.delivery_setup import (
    SETTINGS,
    DeliverySetup,
    create_setup,
    enable_endpoints,
    measure_drain,
    route_to_endpoints,
    wait_for_sender,
)
from benchmarks.environment import BenchmarkEnvironment, Server, read_cpu
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import TYPES, prepare
from benchmarks.outage import drive, play_outage
from boathook.db.database import Database
from boathook_demo.rabbitmq import RabbitNode

_PER_SECOND: Final = 20_000
_BODY_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes that PostgreSQL has written so far."""

    log: int
    stored: int


def capacity(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Take events in, deliver each to one endpoint, and take others in with brokers while PostgreSQL is stopped.

    Raises:
        ConfigError: RabbitMQ is not installed, or events got lost.
        BoathookError: no broker starts.
    """
    with environment.brokers() as nodes:
        return {
            "measured_on": datetime.now(UTC).date().isoformat(),
            "body_bytes": _BODY_BYTES,
            "connections": CONNECTIONS,
            **_in_and_out(environment, seconds),
            **_buffered(environment, nodes, seconds),
        }


def _in_and_out(environment: BenchmarkEnvironment, seconds: float) -> dict[str, float]:
    with environment.module("sink", str(SINK_ADDRESSES)) as sink, environment.corpus() as corpus:
        prepare(corpus, int(_PER_SECOND * seconds), parts=1, size=_BODY_BYTES)
        setup = create_setup(environment, urls(sink.port, len(TYPES)), is_disabled=True)
        route_to_endpoints(setup, "stripe", TYPES)
        environment.report("taking in")
        with environment.serve(setup.database_url, app="", more=SETTINGS) as server:
            server.wait_until_idle()
            meter = _Meter(environment, server, setup)
            count = drive(corpus, server.port, seconds).requests
            taken_in = meter.figures("in", "gateway_us", count)
        environment.report("delivering")
        with environment.serve(setup.database_url, roles="worker,keeper", app="", more=SETTINGS) as server:
            asyncio.run(wait_for_sender(setup))
            server.wait_until_idle()
            meter = _Meter(environment, server, setup)
            asyncio.run(enable_endpoints(setup))
            asyncio.run(measure_drain(setup, count))
            return taken_in | meter.figures("out", "sender_us", count)


def _buffered(environment: BenchmarkEnvironment, nodes: list[RabbitNode], seconds: float) -> dict[str, float]:
    url = environment.new_database()
    with environment.corpus() as corpus, environment.serve(url, more=buffer.settings(nodes)) as server:
        prepare(corpus, int(_PER_SECOND * seconds), parts=1, size=_BODY_BYTES)
        server.wait_until_idle()
        written = sum(map(_written, nodes))
        outage = play_outage(environment, server, url, corpus, seconds, is_drained=buffer.has_arrived, nodes=nodes)
        written = sum(map(_written, nodes)) - written
    return {
        "brokers": len(nodes),
        "buffered_gateway_us": round(outage.taking.gateway, 1),
        "buffered_brokers_us": round(outage.taking.brokers, 1),
        "buffered_bytes_per_broker": round(written / len(nodes) / outage.taken.requests),
    }


class _Meter:
    """Tells what each event has cost since it was made."""

    def __init__(self, environment: BenchmarkEnvironment, server: Server, setup: DeliverySetup) -> None:
        self._environment = environment
        self._server = server
        self._url = setup.database_url
        self._cpu, self._sizes = read_cpu(environment, server), asyncio.run(_read_sizes(self._url))

    def figures(self, name: str, product: str, events: int) -> dict[str, float]:
        """Return them by name; *product* is the name of boathook's own processor time."""
        cpu = read_cpu(self._environment, self._server).since(self._cpu, events)
        sizes = asyncio.run(_read_sizes(self._url))
        assert cpu.postgres is not None
        return {
            f"{name}_{product}": round(cpu.gateway, 1),
            f"{name}_postgres_us": round(cpu.postgres, 1),
            f"{name}_log_bytes": round((sizes.log - self._sizes.log) / events),
            f"{name}_stored_bytes": round((sizes.stored - self._sizes.stored) / events),
        }


async def _read_sizes(url: str) -> _Sizes:
    database = await Database.open(url, purpose="benchmark", size=1)
    try:
        row = await database.fetchrow(
            "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint as log,"
            " pg_database_size(current_database()) as stored"
        )
    finally:
        await database.close()
    assert row is not None
    return _Sizes(row["log"], row["stored"])


def _written(node: RabbitNode) -> int:
    """Return the bytes that a broker has written to its disk; 0 where /proc does not tell."""
    pid_file = node.folder / "pid"
    try:
        lines = Path(f"/proc/{int(pid_file.read_text())}/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)
