"""What an event costs with one, two and four gateway hosts on one PostgreSQL: they share nothing else.

Each host is a `boathook serve` with a data folder and senders of its own. They compete for the same processors here, so
the rates say nothing of real hosts; the processor time of an event does.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from benchmarks.environment import BenchmarkEnvironment
from benchmarks.ingest import CONNECTIONS
from benchmarks.load import prepare
from benchmarks.outage import drive

HOSTS: Final = (1, 2, 4)
_PER_SECOND: Final = 20_000
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class _Measured:
    gateway_us: float
    """Processor microseconds of an event, on the median host."""
    postgres_us: float
    rate: float
    """Events a second of all hosts together."""


def gateways(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Drive so many gateways at once, in turn, and return what an event costs each of them and PostgreSQL."""
    rounds: list[dict[int, _Measured]] = []
    for number in range(_ROUNDS):
        environment.report(f"round {number + 1} of {_ROUNDS}")
        hosts = sorted(HOSTS, reverse=number % 2 == 1)
        rounds.append({count: _measure(environment, count, seconds) for count in hosts})
    last = HOSTS[-1]
    figures: dict[str, Any] = {
        f"gateway_us_{last}_to_1": round(median(one[last].gateway_us / one[1].gateway_us for one in rounds), 2),
        f"postgres_us_{last}_to_1": round(median(one[last].postgres_us / one[1].postgres_us for one in rounds), 2),
    }
    for count in HOSTS:
        measured = [one[count] for one in rounds]
        figures[f"gateway_us_{count}"] = round(median(one.gateway_us for one in measured), 1)
        figures[f"postgres_us_{count}"] = round(median(one.postgres_us for one in measured), 1)
        figures[f"events_per_s_{count}"] = round(median(one.rate for one in measured))
    return figures | {"connections_each": CONNECTIONS}


def _measure(environment: BenchmarkEnvironment, hosts: int, seconds: float) -> _Measured:
    environment.report(f"  gateways: {hosts}")
    url, count = environment.new_database(), int(_PER_SECOND * seconds / hosts)
    with ExitStack() as stack:
        corpora = [stack.enter_context(environment.corpus()) for _ in range(hosts)]
        for place, corpus in enumerate(corpora):
            prepare(corpus, count, parts=1, first=place * count)
        servers = [stack.enter_context(environment.serve(url)) for _ in range(hosts)]
        for server in servers:
            server.wait_until_idle()
        used, postgres = [server.cpu_s() for server in servers], environment.postgres_cpu_s() or 0.0
        with ThreadPoolExecutor(hosts) as pool:
            sent = [pool.submit(drive, *pair, seconds) for pair in zip(corpora, (s.port for s in servers), strict=True)]
            loads = [one.result() for one in sent]
        used = [server.cpu_s() - before for server, before in zip(servers, used, strict=True)]
        postgres = (environment.postgres_cpu_s() or 0.0) - postgres
    total = sum(load.requests for load in loads)
    return _Measured(
        gateway_us=median(cpu * 1e6 / load.requests for cpu, load in zip(used, loads, strict=True)),
        postgres_us=postgres * 1e6 / total,
        rate=sum(load.rate for load in loads),
    )
