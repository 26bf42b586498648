"""Identifiers: UUIDv7 internally, a prefix and 27 characters externally.

An id contains its creation time, so time windows are ranges of ids, and the tables are partitioned by id alone. The 128
bits are written as 27 characters of Crockford's base 32 (https://www.crockford.com/base32.html), so ids sort as text in
the order of time.
"""

import hashlib
from datetime import UTC, datetime, timedelta
from uuid import UUID

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES = {char: value for value, char in enumerate(_ALPHABET)}
_TRIPLES = tuple(a + b + c for a in _ALPHABET for b in _ALPHABET for c in _ALPHABET)
_LENGTH = 27
_MIN_LENGTH = 4
_MAX_ORDINAL = 32_767
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EVENT = "evt"
DELIVERY = "dlv"
REJECTION = "rej"
CONFLICT = "cfl"
APPLICATION = "app"
ENDPOINT = "ep"
MESSAGE = "msg"
"""The API's name for an event: the same id with another prefix."""
ATTEMPT = "atmpt"
TASK = "qtask"
API_KEY = "key"
DEAD_GROUP = "grp"
SOURCE_SECRET = "ssec"
OPERATOR = "opr"
OPERATOR_TOKEN = "otk"
ALERT = "alt"
SILENCE = "sil"
NOUNS = {
    EVENT: "event",
    DELIVERY: "delivery",
    REJECTION: "rejection",
    CONFLICT: "conflict",
    APPLICATION: "application",
    ENDPOINT: "endpoint",
    MESSAGE: "message",
    ATTEMPT: "attempt",
    TASK: "task",
    API_KEY: "API key",
    DEAD_GROUP: "group of dead letters",
    SOURCE_SECRET: "source secret",
    OPERATOR: "operator",
    OPERATOR_TOKEN: "operator token",
    ALERT: "alert",
    SILENCE: "silence",
}
"""The kind of object that ids with each prefix identify."""


def make(now_ms: int, entropy: int) -> UUID:
    """Return the UUIDv7 for a time in milliseconds since 1970 and 74 random bits (RFC 9562, section 5.7)."""
    return UUID(
        int=(now_ms & 0xFFFFFFFFFFFF) << 80
        | 0x7 << 76
        | ((entropy >> 62) & 0xFFF) << 64
        | 0b10 << 62
        | (entropy & 0x3FFFFFFFFFFFFFFF)
    )


def first_of(time: datetime) -> UUID:
    """Return the smallest id with the creation time *time*, as a bound for ranges and partitions."""
    # Integer arithmetic: a float of this many milliseconds can be too small by one.
    return UUID(int=(time - _EPOCH) // timedelta(milliseconds=1) << 80)


def created_at(identifier: UUID) -> datetime:
    """Return the creation time of *identifier*, to the millisecond."""
    return datetime.fromtimestamp((identifier.int >> 80) / 1000, tz=UTC)


def show(prefix: str, identifier: UUID) -> str:
    """Format *identifier* with its prefix, such as ``evt_01h455vb4pex5vsknk084sn02q4``."""
    rest = identifier.int
    words = []
    for _ in range(_LENGTH // 3):
        words.append(_TRIPLES[rest & 0x7FFF])
        rest >>= 15
    words.reverse()
    return f"{prefix}_{''.join(words)}"


def read(prefix: str, text: str) -> UUID:
    """Parse the output of `show`, or a bare UUID.

    Raises:
        ValueError: *text* is not an id of this kind; the message names the expected form.
    """
    expected = f"expected an id like {prefix}_ and {_LENGTH} letters and digits, got {text!r}"
    head, _, tail = text.partition("_")
    if not tail:
        try:
            return UUID(text)
        except ValueError:
            raise ValueError(expected) from None
    if head != prefix or len(tail) != _LENGTH:
        raise ValueError(expected)
    number = 0
    for char in tail.lower():
        if char not in _VALUES:
            raise ValueError(expected)
        number = number << 5 | _VALUES[char]
    if number >> 128:
        raise ValueError(expected)
    return UUID(int=number)


def read_range(prefix: str, text: str) -> tuple[UUID, UUID]:
    """Return the first and the last id that *text* may begin; both are the same if it is a whole id.

    Raises:
        ValueError: *text* is not the beginning of such an id, or too short; the message names the expected form.
    """
    head, _, tail = text.partition("_")
    try:
        if head == prefix and _MIN_LENGTH <= len(tail) < _LENGTH:
            return read(prefix, f"{head}_{tail:0<{_LENGTH}}"), read(prefix, f"{head}_{tail:z<{_LENGTH}}")
        whole = read(prefix, text)
    except ValueError:
        other = f", the id of another kind: {NOUNS[head]}" if head != prefix and tail and head in NOUNS else ""
        expected = f"{prefix}_ and {_LENGTH} letters and digits, or the first {_MIN_LENGTH} or more of them"
        raise ValueError(f"expected an id like {expected}, got {text[:100]!r}{other}") from None
    return whole, whole


def show_delivery(event_id: UUID, ordinal: int) -> str:
    """Format a delivery's id: its event's 27 characters and its ordinal, such as ``dlv_01h4…_0``."""
    return f"{show(DELIVERY, event_id)}_{ordinal}"


def read_event(text: str) -> UUID:
    """Parse an event's id; a message id is accepted too. Raises ValueError as `read` does."""
    return read(MESSAGE if text.startswith(f"{MESSAGE}_") else EVENT, text)


def read_delivery(text: str) -> tuple[UUID, int]:
    """Parse the output of `show_delivery`.

    Raises:
        ValueError: *text* is not the id of a delivery.
    """
    head, _, ordinal = text.rpartition("_")
    if not ordinal.isascii() or not ordinal.isdigit() or len(ordinal) > 5 or "_" not in head:
        shape = f"dlv_ and {_LENGTH} letters and digits, _ and a number"
        raise ValueError(f"expected a delivery's id like {shape}, got {text[:100]!r}")
    if int(ordinal) > _MAX_ORDINAL:
        raise ValueError(f"no delivery has a number as high as {ordinal}")
    return read(DELIVERY, head), int(ordinal)


def message_key(application: str, uid: str) -> UUID:
    """Return the dedup key of an application's message, a hash, from the id that its publisher gave it."""
    return UUID(bytes=hashlib.sha256(f"application\x00{application}\x00{uid}".encode()).digest()[:16])
