"""What is compared with the corpus: for each sender, the apps that produce its bodies, and how to get all of them."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple


class Producer(NamedTuple):
    """An app's simulator, as far as it sends what one sender does."""

    sender: str
    app: str
    bodies: Callable[[], Iterable[bytes]]


def _fleet(path: str) -> Callable[[], Iterable[bytes]]:
    def bodies() -> Iterable[bytes]:
        from boathook.apps.fleet.simulator import Sender, Simulation

        for seed in range(3):
            requests = Simulation(Sender(token="t", umnico_token="u"), histories=60, seed=seed).requests
            yield from (request.body for request in requests if path in request.path)

    return bodies


def _billing() -> Iterable[bytes]:
    from decimal import Decimal

    from boathook.apps.billing.settings import Plan
    from boathook.apps.billing.simulator import Sender, Simulation
    from boathook.apps.simulation import SimulatedRequest

    plan = Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30)
    for seed in range(3):
        steps = Simulation(Sender(secret="s"), [plan], payments=60, seed=seed).steps
        yield from (step.body for step in steps if isinstance(step, SimulatedRequest))


def _music() -> Iterable[bytes]:
    from boathook.apps.music.simulator import Reseller, Simulator
    from boathook.apps.simulation import SimulatedRequest

    reseller = Reseller(secret="s", files="http://127.0.0.1:9000", at=1_700_000_000)
    for seed in range(3):
        steps = Simulator(reseller, songs=60, seed=seed).steps
        yield from (step.body for step in steps if isinstance(step, SimulatedRequest))


PRODUCERS: Final = (
    Producer("payments", "billing", _billing),
    Producer("rentprog", "fleet", _fleet("rentprog")),
    Producer("umnico", "fleet", _fleet("umnico")),
    Producer("suno", "music", _music),
)
WITHOUT: Final[frozenset[str]] = frozenset({"cashdesk"})
"""Apps whose simulators are not compared yet."""
