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


PRODUCERS: Final = (
    Producer("rentprog", "fleet", _fleet("rentprog")),
    Producer("umnico", "fleet", _fleet("umnico")),
)
WITHOUT: Final = frozenset({"billing", "cashdesk", "music"})
"""Apps whose simulators are not compared yet."""
