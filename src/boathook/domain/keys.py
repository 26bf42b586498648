"""What makes two requests the same event: hashes that stand for dedup keys in dedup memory.

A key belongs to its source, or to the application it was published for, so the same id from two senders is two events.
Whoever stores an event hashes its key here, or it would not be known as a duplicate elsewhere.
"""

import hashlib
from uuid import UUID


def key_hash(source: str | None, application: str | None, dedup_key: str) -> UUID:
    """Return the identity of a dedup key in dedup memory: the first 128 bits of SHA-256 over scope and key."""
    return _hash("key", source, application, dedup_key.encode("utf-8", "surrogatepass"))


def replay_hash(source: str, material: bytes) -> UUID:
    """Return the same over the signed material of a request whose id is not itself signed."""
    return _hash("replay", source, None, material)


def _hash(kind: str, source: str | None, application: str | None, content: bytes) -> UUID:
    # No part holds NUL, so two different scopes never run together into one text.
    scope = "\0".join((kind, source or "", application or "", "")).encode()
    return UUID(bytes=hashlib.sha256(scope + content).digest()[:16])
