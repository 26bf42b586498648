"""Makes many POSTs at once, in a thread of its own around libcurl's multi interface."""

from collections.abc import Callable, Sequence

from boathook.config.tables import OutboundSettings
from boathook.outbound.outgoing import Answer, Outgoing, Trouble

__all__ = ["Answer", "Courier", "Outgoing", "Trouble"]


class Courier:
    """Makes many POSTs at once; one for a process.

    Args:
        settings: limits, proxies and what may be dialled.
        done: told the answers, many at a time, in the asyncio loop that made the courier.
    """

    def __init__(self, settings: OutboundSettings, *, done: Callable[[list[Answer]], None]) -> None:
        raise NotImplementedError

    def send(self, batch: Sequence[Outgoing]) -> None:
        """Begin these requests; each is answered once."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up what is under way."""
        raise NotImplementedError
