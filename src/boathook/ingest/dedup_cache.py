"""Caches recently accepted events, so that floods of duplicates cause no database writes."""

from uuid import UUID

from boathook.domain.model import NewEvent


class DedupCache:
    """The keys of the events accepted last, in two generations; when the newer one is full, the older one is dropped.

    Keys and values are plain bytes, which the garbage collector need not traverse.

    Args:
        size: maximum number of keys in each generation; 0 caches none.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def clear(self) -> None:
        """Remove all keys."""
        self._young, self._old = {}, {}

    def find(self, event: NewEvent) -> UUID | None:
        """Return the id of the original if *event* is an exact duplicate of it."""
        key = event.key_hash.bytes
        seen = self._young.get(key) or self._old.get(key)
        return UUID(bytes=seen[:16]) if seen is not None and seen[16:] == event.body_sha256 else None

    def remember(self, event: NewEvent, first: UUID) -> None:
        """Record *first* as the event with this key and body."""
        if not self._size:
            return
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[event.key_hash.bytes] = first.bytes + event.body_sha256
