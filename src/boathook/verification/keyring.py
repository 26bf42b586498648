"""Caches fetched public keys of senders in the memory of one process, with a bounded size."""

from typing import Final

import msgspec

MAX_KEYS: Final = 64
MAX_BYTES: Final = 1_048_576
"""Maximum bytes of one certificate or key set; Google's largest has a hundredth of that."""
FRESH_S: Final = 3_600.0
STALE_S: Final = 86_400.0
RETRY_S: Final = 60.0


class _Entry(msgspec.Struct):
    content: bytes
    fetched_at: float
    good_until: float


class KeyRing:
    """Caches content fetched from senders' key URLs; verifiers read it, the gateway fills it.

    Args:
        fresh_s: how long content is used without a new fetch.
        stale_s: how long after its fetch content may still be used while its URL is unreachable.
    """

    def __init__(self, *, fresh_s: float = FRESH_S, stale_s: float = STALE_S) -> None:
        self._fresh_s = fresh_s
        self._stale_s = stale_s
        self._entries: dict[str, _Entry] = {}

    def get(self, url: str, now: float) -> bytes | None:
        """Return the content fetched from *url*, or None if it is missing or must be fetched again."""
        entry = self._entries.get(url)
        return entry.content if entry is not None and now < entry.good_until else None

    def put(self, url: str, content: bytes, now: float) -> None:
        """Store content fetched from *url* at *now*, in seconds since 1970; the oldest entry is evicted if full.

        Raises:
            ValueError: it is larger than `MAX_BYTES`.
        """
        if len(content) > MAX_BYTES:
            raise ValueError(f"{len(content)} bytes are too many for a key; the maximum is {MAX_BYTES}")
        entry = self._entries.pop(url, None)
        # Identical bytes keep the same object, so that the cache of parsed keys still matches.
        content = entry.content if entry is not None and entry.content == content else content
        if len(self._entries) >= MAX_KEYS:
            # Iterate over a copy and ignore missing entries: as a library this runs in many threads.
            oldest, _ = min(list(self._entries.items()), key=lambda item: item[1].fetched_at)
            self._entries.pop(oldest, None)
        self._entries[url] = _Entry(content, now, now + self._fresh_s)

    def extend(self, url: str, now: float) -> bool:
        """Use expired content for another minute because fetching it failed; return whether there is any.

        A key that was valid for hours is better than none, but only until `stale_s`: its owner may have revoked it.
        """
        entry = self._entries.get(url)
        if entry is None or now - entry.fetched_at > self._stale_s:
            return False
        entry.good_until = max(entry.good_until, now + RETRY_S)
        return True

    def has(self, url: str) -> bool:
        """Return whether there is content from *url*, of any age."""
        return url in self._entries

    def is_older(self, url: str, age_s: float, now: float) -> bool:
        """Return whether *url* was fetched more than *age_s* ago, or never."""
        entry = self._entries.get(url)
        return entry is None or now - entry.fetched_at > age_s
