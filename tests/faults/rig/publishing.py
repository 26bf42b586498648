"""Messages that a load publishes by the API, one after each of its events.

Some have an idempotency key, and some of these are repeated, at the same time or later, as a client does that lost the
answer. Each has a payload of its own. What is published follows from the load's seed alone.
"""

import hashlib
import random
from collections.abc import Iterator

import msgspec

TYPE = "unit.noted"
_DELAYS_S = (0.0, 0.0, 0.2, 1.0, 3.0)


class Publishing(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how messages are published."""

    application: str
    token: str
    keyed: float = 0.6
    """Share of messages with an idempotency key."""
    repeated: float = 0.4
    """Share of those whose request is sent once more."""


class PublishRequest(msgspec.Struct, frozen=True):
    """One request to publish a message."""

    payload: bytes
    key: str = ""
    """Its idempotency key, if any."""

    @property
    def sha(self) -> str:
        """SHA-256 of the payload in hex."""
        return hashlib.sha256(self.payload).hexdigest()

    @property
    def body(self) -> bytes:
        """The body of the request."""
        return b'{"eventType":"%s","payload":%s}' % (TYPE.encode(), self.payload)

    def headers(self, publishing: Publishing) -> dict[str, str]:
        """Return the request's own headers."""
        return {
            "authorization": f"Bearer {publishing.token}",
            **({"idempotency-key": self.key} if self.key else {}),
        }


def path(publishing: Publishing) -> str:
    """Return the path of requests to publish."""
    return f"/api/v1/app/{publishing.application}/msg"


def requests_beside(publishing: Publishing, event: str, dice: random.Random) -> Iterator[tuple[PublishRequest, float]]:
    """Yield the requests that follow an event, with their delays in seconds."""
    payload = msgspec.json.encode({"beside": event})
    if dice.random() >= publishing.keyed:
        yield PublishRequest(payload), 0.0
        return
    yield (request := PublishRequest(payload, f"key-{event}")), 0.0
    if dice.random() < publishing.repeated:
        yield request, dice.choice(_DELAYS_S)


def message_id(answer: bytes) -> str:
    """Return the id in the answer to a request that published a message."""
    return str(msgspec.json.decode(answer)["id"])
