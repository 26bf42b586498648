"""Reads the signed parts of a request, their signatures, and the timestamps they cover."""

from datetime import datetime
from typing import Final, NamedTuple, assert_never

from boathook.domain.errors import ConfigError
from boathook.domain.verification import Reason, Rejected, SourceSpec
from boathook.providers.request_reader import Form, Header, Json, Query, RequestReader, Selector
from boathook.providers.schemes import ReadSignedParts, SignatureFormat, SignedPart, SignedTimestamp, TimestampFormat
from boathook.verification.tokens import reject

MAX_TOLERANCE_S: Final = 315_360_000.0
_MAX_LENGTHS: Final = {TimestampFormat.SECONDS: 11, TimestampFormat.MILLISECONDS: 14, TimestampFormat.ISO: 40}
_UNITS: Final = {
    TimestampFormat.SECONDS: "a whole number of seconds since 1970",
    TimestampFormat.MILLISECONDS: "a whole number of milliseconds since 1970",
    TimestampFormat.ISO: "an ISO 8601 time with its zone",
}


def parse_timestamp(text: str, unit: TimestampFormat) -> float | None:
    """Return a timestamp in seconds since 1970; None for signs, exponents and non-ASCII digits."""
    if not text.isascii() or len(text) > _MAX_LENGTHS[unit]:
        return None
    if unit is TimestampFormat.ISO:
        try:
            time = datetime.fromisoformat(text)
            return None if time.tzinfo is None else time.timestamp()
        except (ValueError, OverflowError):
            return None
    if not text.isdigit():
        return None
    return int(text) / 1000 if unit is TimestampFormat.MILLISECONDS else float(int(text))


class TimestampWindow:
    """The time window around this machine's clock in which one source's requests must have been signed.

    Raises:
        ConfigError: the source's tolerance is out of range.
    """

    def __init__(self, spec: SourceSpec, default_s: float, unit: TimestampFormat = TimestampFormat.SECONDS) -> None:
        self.tolerance_s = default_s if spec.tolerance_s is None else spec.tolerance_s
        self._unit = unit
        if not 0 < self.tolerance_s <= MAX_TOLERANCE_S:
            raise ConfigError(
                f"sources.{spec.name}.tolerance_s: {self.tolerance_s:g} would accept no request, or replays forever; "
                f"use seconds above 0 and up to {MAX_TOLERANCE_S:.0f}, such as 300"
            )

    def check(self, text: str, now: float) -> float | Rejected:
        """Return the time in *text*, in seconds since 1970, or a rejection if it is malformed or too far from *now*."""
        sent_at = parse_timestamp(text, self._unit)
        if sent_at is None:
            return reject(Reason.TIMESTAMP_MALFORMED, f"the timestamp {_quote(text)} is not {_UNITS[self._unit]}")
        skew_s = now - sent_at
        if -self.tolerance_s <= skew_s <= self.tolerance_s:
            return sent_at
        return self._off_time(text, skew_s)

    def _off_time(self, text: str, skew_s: float) -> Rejected:
        reason, side = (Reason.TIMESTAMP_TOO_OLD, "before") if skew_s > 0 else (Reason.TIMESTAMP_IN_FUTURE, "after")
        return reject(
            reason,
            f"the timestamp {_quote(text)} is {abs(skew_s):.0f} s {side} this machine's clock, "
            f"more than the tolerance of {self.tolerance_s:g} s",
            may_reverify=True,
        )


def _quote(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")


MAX_SIGNATURE_TEXT: Final = 8_192
"""Maximum characters of a signature field that are read."""


class SignedMessage(NamedTuple):
    """Signed bytes, and the signatures of which one must match."""

    signed: bytes
    signatures: tuple[str, ...]
    alternatives: tuple[bytes, ...] = ()


def read_signed_messages(
    read_signed_parts: ReadSignedParts, form: SignatureFormat, reader: RequestReader, secret: str, *, limit: int
) -> tuple[SignedMessage, ...] | Rejected:
    """Return the signed messages of a request, at least one and each with a signature, or a rejection.

    If the recipe's *read_signed_parts* raises, the request is rejected, so that no request can raise.
    """
    try:
        statements = read_signed_parts(reader, secret)
    except Exception as error:  # noqa: BLE001 - whatever was sent, it is rejected
        return reject(Reason.SIGNATURE_MALFORMED, f"the signed parts cannot be read ({type(error).__name__})")
    if isinstance(statements, str):
        return reject(Reason.SIGNATURE_MISSING, statements)
    if not statements:
        return reject(Reason.SIGNATURE_MISSING, "the request contains none of the signed parts")
    if len(statements) > limit:
        return reject(Reason.SIGNATURE_MALFORMED, f"there are {len(statements)} signed parts; at most {limit} are read")
    claims = []
    for statement in statements:
        claim = _read_signed_message(form, reader, statement)
        if isinstance(claim, Rejected):
            return claim
        claims.append(claim)
    return tuple(claims)


def _read_signed_message(
    form: SignatureFormat, reader: RequestReader, statement: SignedPart
) -> SignedMessage | Rejected:
    location = describe_selector(statement.selector)
    text = reader.text(statement.selector)
    if text is None:
        return reject(Reason.SIGNATURE_MISSING, f"there is no signature in {location}")
    parsed = form.read(text[:MAX_SIGNATURE_TEXT])
    if parsed.problem:
        return reject(Reason.SIGNATURE_MALFORMED, f"the signature in {location} cannot be read: {parsed.problem}")
    if not parsed.signatures:
        there = ", ".join(dict.fromkeys(parsed.seen)) or "nothing"
        detail = f"{location} contains no {form.expected_text}, but {there}"
        return reject(Reason.UNKNOWN_SCHEME, detail, may_reverify=True)
    return SignedMessage(statement.signed, parsed.signatures, statement.alternatives)


def read_signed_timestamp(
    timestamp: SignedTimestamp | None, window: TimestampWindow | None, reader: RequestReader, now: float
) -> float | Rejected | None:
    """Return the signed time of a request, in seconds since 1970, or None if its sender signs none."""
    if timestamp is None or window is None:
        return None
    text = reader.text(timestamp.selector)
    if text is None:
        return reject(Reason.TIMESTAMP_MISSING, f"there is no timestamp in {describe_selector(timestamp.selector)}")
    return window.check(text, now)


def join_signed(claims: tuple[SignedMessage, ...]) -> bytes:
    """Return all signed bytes; they identify the event if its sender never signs the same bytes twice."""
    return b"\x00".join(claim.signed for claim in claims)


def describe_selector(selector: Selector) -> str:
    """Return a human-readable name of a selector, for messages."""
    match selector:
        case Header(name=name):
            return f"header {name}"
        case Query(name=name):
            return f"the query's {name}"
        case Form(name=name) | Json(path=name):
            return f"the body's {name}"
        case _ as never:
            assert_never(never)
