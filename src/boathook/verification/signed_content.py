"""What a request states under signatures, with those signatures, read from wherever its sender writes them."""

from typing import Final, NamedTuple, assert_never

from boathook.domain.verification import Reason, Rejected
from boathook.providers.request_reader import RequestReader
from boathook.providers.schemes import ReadSignedParts, SignedPart, SignedTimestamp
from boathook.providers.selectors import Form, Header, Json, Query, Selector
from boathook.providers.signature_formats import SignatureFormat
from boathook.verification.timestamps import TimestampWindow
from boathook.verification.tokens import reject

MAX_SIGNATURE_TEXT: Final = 8_192
"""Characters of a signature field that are looked at."""


class SignedMessage(NamedTuple):
    """Bytes, and the signatures of which one must fit them."""

    signed: bytes
    signatures: tuple[str, ...]
    alternatives: tuple[bytes, ...] = ()


def read_signed_messages(
    read_signed_parts: ReadSignedParts, form: SignatureFormat, reader: RequestReader, secret: str, *, most: int
) -> tuple[SignedMessage, ...] | Rejected:
    """Return what a request states, at least one claim and each with a signature; a refusal where it cannot be read.

    A recipe's *state* that stumbles over a stranger's request refuses it, so that no request can raise.
    """
    try:
        statements = read_signed_parts(reader, secret)
    except Exception as error:  # noqa: BLE001 - whatever a stranger sent, it is refused and never a fault of ours
        return reject(Reason.SIGNATURE_MALFORMED, f"what is signed cannot be read ({type(error).__name__})")
    if isinstance(statements, str):
        return reject(Reason.SIGNATURE_MISSING, statements)
    if not statements:
        return reject(Reason.SIGNATURE_MISSING, "the request states nothing that is signed")
    if len(statements) > most:
        return reject(Reason.SIGNATURE_MALFORMED, f"there are {len(statements)} signed parts; at most {most} are read")
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
    where = describe_selector(statement.selector)
    text = reader.text(statement.selector)
    if text is None:
        return reject(Reason.SIGNATURE_MISSING, f"there is no signature in {where}")
    parsed = form.read(text[:MAX_SIGNATURE_TEXT])
    if parsed.problem:
        return reject(Reason.SIGNATURE_MALFORMED, f"the signature in {where} cannot be read: {parsed.problem}")
    if not parsed.signatures:
        there = ", ".join(dict.fromkeys(parsed.seen)) or "nothing"
        detail = f"{where} holds no {form.expected_text}, but {there}"
        return reject(Reason.UNKNOWN_SCHEME, detail, may_reverify=True)
    return SignedMessage(statement.signed, parsed.signatures, statement.alternatives)


def read_signed_timestamp(
    timestamp: SignedTimestamp | None, window: TimestampWindow | None, reader: RequestReader, now: float
) -> float | Rejected | None:
    """Return the signed moment of a request, in seconds since 1970; None where its sender signs none."""
    if timestamp is None or window is None:
        return None
    text = reader.text(timestamp.selector)
    if text is None:
        return reject(Reason.TIMESTAMP_MISSING, f"there is no timestamp in {describe_selector(timestamp.selector)}")
    return window.judge(text, now)


def join_signed(claims: tuple[SignedMessage, ...]) -> bytes:
    """Return all that is signed, to stand for an event whose sender never signs the same twice."""
    return b"\x00".join(claim.signed for claim in claims)


def describe_selector(selector: Selector) -> str:
    """Return how to call a place in front of people."""
    match selector:
        case Header(name=name):
            return f"header {name}"
        case Query(name=name):
            return f"the query's {name}"
        case Form(name=name) | Json(path=name):
            return f"the body's {name}"
        case _ as never:
            assert_never(never)
