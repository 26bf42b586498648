"""What notifying senders of due deliveries through RabbitMQ costs, against PostgreSQL's notifications."""

from statistics import median
from typing import Any, Final

from benchmarks import buffer
from benchmarks.environment import BenchmarkEnvironment
from benchmarks.latency import arrived

_RATES: Final = (20, 200)
_ROUNDS: Final = 3
_AHEAD_S: Final = 1.0
"""How far ahead the `deliverAt` of a message is that is due soon."""
_LANES: Final = ("postgresql", "rabbitmq")


def lane(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Publish messages at each rate with each lane in turn, and report when they arrived and what they cost.

    The figures `later` are of messages that are due a second after they are published, from that time on.

    Raises:
        ConfigError: RabbitMQ is not installed, or messages got lost.
        BoathookError: no broker starts.
    """
    figures: dict[str, Any] = {}
    with environment.brokers() as nodes:
        table = buffer.settings(nodes).replace('kind = "rabbitmq"\nthen = "refuse"\n', "")
        settings = {"postgresql": "", "rabbitmq": f'[delivery]\nlane = "rabbitmq"\n{table}'}
        for rate in _RATES:
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in _LANES}
            for number in range(_ROUNDS):
                for name in sorted(_LANES, reverse=number % 2 == 1):
                    environment.report(f"round {number + 1} of {_ROUNDS}, {name}")
                    rounds[name].append(
                        arrived(environment, rate, seconds, more=settings[name], nodes=nodes, ahead_s=_AHEAD_S)
                    )
            for name, found in rounds.items():
                keys = ("p50_ms", "p99_ms", "later_p50_ms", "later_p99_ms", "product_us", "postgres_us", "brokers_us")
                figures |= {f"{name}_{rate}_{key}": round(median(one[key] for one in found), 2) for key in keys}
        return figures | {"brokers": len(nodes)}
