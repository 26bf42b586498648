"""What is compared with the corpus: for each sender, the apps that produce its bodies, and how to get all of them."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple


class Producer(NamedTuple):
    """An app's simulator, as far as it sends what one sender does."""

    sender: str
    app: str
    bodies: Callable[[], Iterable[bytes]]


PRODUCERS: Final[tuple[Producer, ...]] = ()
WITHOUT: Final = frozenset({"billing", "cashdesk", "fleet", "music"})
"""Apps whose simulators are not compared yet."""
