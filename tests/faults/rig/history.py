"""The history: facts observed from outside boathook, in the order of observation, one JSON line each.

The order of the lines is the only clock that judgements use: a request is written down before its first byte is sent, and
its answer after the last byte came, so "answered before the other was sent" is read off the positions of two lines.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec


class _Fact(msgspec.Struct, frozen=True, tag_field="fact", kw_only=True):
    at: float = 0.0
    """Seconds since 1970, for readers of timelines."""


class Sent(_Fact, frozen=True, tag="sent"):
    """A request is about to be sent."""

    number: int
    """Its own: a retry has another."""
    key: str
    """The event's id as its sender gives it, which is the dedup key."""
    sha: str
    """SHA-256 of the body in hex."""
    line: str = ""
    """What it is ordered by; empty where order does not matter."""
    lane: str = "load"
    """Which stream of requests it belongs to."""
    kind: str = ""
    """The event's type."""
    is_signed: bool = True
    """False for a forgery."""
    host: str = ""
    """The gateway it is sent to."""


class Answered(_Fact, frozen=True, tag="answered"):
    """A request got a whole answer."""

    number: int
    status: int
    seconds: float = 0.0


class Silent(_Fact, frozen=True, tag="silent"):
    """A request got no response, so its result is unknown."""

    number: int
    why: str = ""


class Published(_Fact, frozen=True, tag="published"):
    """A request to publish a message is about to be sent."""

    number: int
    """Its own, among those of `Sent`."""
    sha: str
    """SHA-256 of the payload in hex."""
    key: str = ""
    """Its idempotency key, if any."""
    host: str = ""
    """The gateway it is sent to."""


class Confirmed(_Fact, frozen=True, tag="confirmed"):
    """A request to publish a message got a whole answer."""

    number: int
    status: int
    message: str = ""
    """The message's id in the answer, if it is 2xx."""
    seconds: float = 0.0


class Arrived(_Fact, frozen=True, tag="arrived"):
    """A message was received by a receiver."""

    message: str
    """Its webhook-id."""
    place: str
    """The receiver's path."""
    sha: str = ""
    """SHA-256 of the body in hex."""
    status: int = 0
    """What it was answered; 0 for nothing."""


class Marked(_Fact, frozen=True, tag="marked"):
    """Something the scenario did, such as a fault."""

    what: str


Fact = Sent | Answered | Silent | Published | Confirmed | Arrived | Marked
History = list[Fact]

FAULT, HEALED, QUIET = "fault: ", "healed", "quiet"
"""How marks of a fault begin, and the marks of its end and of the moment at which nothing was open any more."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(Fact)


def to_line(fact: Fact) -> bytes:
    """Return a fact as one line."""
    return _encoder.encode(fact) + b"\n"


def read_lines(lines: Iterable[bytes]) -> History:
    """Return the facts of whole lines."""
    return [_decoder.decode(line) for line in lines if line.endswith(b"\n")]


def read(path: Path) -> History:
    """Return the history kept in a file."""
    with path.open("rb") as file:
        return read_lines(file)
