"""What a request states under signatures, with those signatures, read from wherever its sender writes them."""

from typing import Final, NamedTuple, assert_never

from boathook.inbound.facts import Facts
from boathook.inbound.places import Form, Header, Json, Place, Query
from boathook.inbound.providers.forms import SignatureForm
from boathook.inbound.providers.proofs import Stamp, State, Statement
from boathook.inbound.proving.stamps import Window
from boathook.inbound.proving.tokens import refuse
from boathook.inbound.verdict import Reason, Rejected

MAX_SIGNATURE_TEXT: Final = 8_192
"""Characters of a signature field that are looked at."""


class Claim(NamedTuple):
    """Bytes, and the signatures of which one must fit them."""

    signed: bytes
    signatures: tuple[str, ...]
    or_signed: tuple[bytes, ...] = ()


def read_claims(
    state: State, form: SignatureForm, facts: Facts, secret: str, *, most: int
) -> tuple[Claim, ...] | Rejected:
    """Return what a request states, at least one claim and each with a signature; a refusal where it cannot be read.

    A recipe's *state* that stumbles over a stranger's request refuses it, so that no request can raise.
    """
    try:
        statements = state(facts, secret)
    except Exception as error:  # noqa: BLE001 - whatever a stranger sent, it is refused and never a fault of ours
        return refuse(Reason.SIGNATURE_MALFORMED, f"what is signed cannot be read ({type(error).__name__})")
    if isinstance(statements, str):
        return refuse(Reason.SIGNATURE_MISSING, statements)
    if not statements:
        return refuse(Reason.SIGNATURE_MISSING, "the request states nothing that is signed")
    if len(statements) > most:
        return refuse(Reason.SIGNATURE_MALFORMED, f"there are {len(statements)} signed parts; at most {most} are read")
    claims = []
    for statement in statements:
        claim = _read_claim(form, facts, statement)
        if isinstance(claim, Rejected):
            return claim
        claims.append(claim)
    return tuple(claims)


def _read_claim(form: SignatureForm, facts: Facts, statement: Statement) -> Claim | Rejected:
    where = name_place(statement.place)
    text = facts.text(statement.place)
    if text is None:
        return refuse(Reason.SIGNATURE_MISSING, f"there is no signature in {where}")
    parsed = form.read(text[:MAX_SIGNATURE_TEXT])
    if parsed.problem:
        return refuse(Reason.SIGNATURE_MALFORMED, f"the signature in {where} cannot be read: {parsed.problem}")
    if not parsed.signatures:
        there = ", ".join(dict.fromkeys(parsed.seen)) or "nothing"
        detail = f"{where} holds no {form.sought}, but {there}"
        return refuse(Reason.UNKNOWN_SCHEME, detail, may_reverify=True)
    return Claim(statement.signed, parsed.signatures, statement.or_signed)


def read_stamp(stamp: Stamp | None, window: Window | None, facts: Facts, now: float) -> float | Rejected | None:
    """Return the signed moment of a request, in seconds since 1970; None where its sender signs none."""
    if stamp is None or window is None:
        return None
    text = facts.text(stamp.place)
    if text is None:
        return refuse(Reason.TIMESTAMP_MISSING, f"there is no timestamp in {name_place(stamp.place)}")
    return window.judge(text, now)


def once(claims: tuple[Claim, ...]) -> bytes:
    """Return all that is signed, to stand for an event whose sender never signs the same twice."""
    return b"\x00".join(claim.signed for claim in claims)


def name_place(place: Place) -> str:
    """Return how to call a place in front of people."""
    match place:
        case Header(name=name):
            return f"header {name}"
        case Query(name=name):
            return f"the query's {name}"
        case Form(name=name) | Json(path=name):
            return f"the body's {name}"
        case _ as never:
            assert_never(never)
