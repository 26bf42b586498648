"""What was accepted lately, so that a flood of copies reaches no disk."""

from uuid import UUID

from boathook.domain.model import NewEvent


class DedupCache:
    """The keys accepted last: two generations, the older dropped when the younger is full.

    Keys and values are plain bytes, which the garbage collector need not walk through.

    Args:
        size: how many each generation holds.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def clear(self) -> None:
        """Forget all of them."""
        self._young, self._old = {}, {}

    def find(self, event: NewEvent) -> UUID | None:
        """Return the event that came first, if *event* is an exact copy of it."""
        key = event.key_hash.bytes
        seen = self._young.get(key) or self._old.get(key)
        return UUID(bytes=seen[:16]) if seen is not None and seen[16:] == event.body_sha256 else None

    def remember(self, event: NewEvent, first: UUID) -> None:
        """Keep in mind that *first* is the event of this key and body."""
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[event.key_hash.bytes] = first.bytes + event.body_sha256
