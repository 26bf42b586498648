"""Explains to the operator why a request may have been rejected, by trying common mistakes one by one.

A hint names what would have made the proof valid: another encoding of the secret, the body before a proxy changed it,
or another source. Hints are computed outside the request path, for only some rejections, and for small bodies only, so
that a flood of forged requests costs little.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.redaction import RedactedStruct
from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.domain.verification import HEAD_REASONS, Reason, Request, SourceSpec
from boathook.providers import RECIPES
from boathook.providers.options import CREDENTIAL_HEADERS
from boathook.providers.recipe import Recipe
from boathook.providers.schemes import FieldMac, Hmac, Proof
from boathook.verification.check import Check, NoCheck, make_check, signature_headers
from boathook.verification.keyring import KeyRing
from boathook.verification.signed_content import MAX_TOLERANCE_S
from boathook.verification.tokens import AddressCheck, ValidProof

MAX_BODY: Final = 16_384
MAX_DECODED: Final = 65_536
MAX_SECRETS: Final = 2
MAX_OTHERS: Final = 32

_FORMS: Final = {
    KeyFormat.TEXT: "used as plain text",
    KeyFormat.HEX: "decoded from hexadecimal",
    KeyFormat.BASE64: "decoded from base64",
    KeyFormat.STANDARD: "decoded from base64 after its whsec_",
}
_JSON_STYLES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("without spaces", {"separators": (",", ":")}),
    ("with spaces after commas and colons", {}),
    ("with its keys sorted", {"separators": (",", ":"), "sort_keys": True}),
    ("with its keys sorted and spaces between", {"sort_keys": True}),
    ("indented by two", {"indent": 2}),
)
_COMMON_HEADERS: Final = CREDENTIAL_HEADERS | {"x-signature", "x-token"}
"""Headers that are too common to identify a sender."""
_NOT_FOUND: Final = frozenset({Reason.SIGNATURE_MISSING, Reason.TOKEN_MISSING, Reason.UNKNOWN_SCHEME})
_BODY_REASONS: Final = frozenset(
    {
        Reason.BODY_INVALID,
        Reason.BODY_MALFORMED,
        Reason.CHALLENGE_REFUSED,
        Reason.DECODED_TOO_LARGE,
        Reason.TOO_MANY_DELIVERIES,
    }
)
_TIMESTAMP_REASONS: Final = frozenset({Reason.TIMESTAMP_TOO_OLD, Reason.TIMESTAMP_IN_FUTURE})


class RejectedRequest(RedactedStruct, frozen=True):
    """A source and a request it rejected."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"settings", "request", "decoded"})

    recipe: Recipe
    spec: SourceSpec
    settings: Mapping[str, str]
    ring: KeyRing
    request: Request
    now: float
    """When the request was received, in seconds since 1970."""
    decoded: bytes | None
    """The body after Content-Encoding is decoded; None if there was no encoding or decoding failed."""


class _Variation(RedactedStruct, frozen=True):
    """One variation to try, and the hint to show if it explains the rejection."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secrets", "body"})

    hint: str
    proof: Proof
    secrets: tuple[str, ...]
    body: bytes


def explain(case: RejectedRequest, reason: Reason, others: Mapping[str, Check]) -> str | None:
    """Return the change that would have made the proof valid, or None if no common mistake explains the rejection.

    Args:
        case: the source and the request.
        reason: why it was rejected.
        others: the checks of other sources, by name.
    """
    if reason in _BODY_REASONS or reason in HEAD_REASONS or len(case.request.body) > MAX_BODY or case.spec.unsigned:
        return None
    if reason in _TIMESTAMP_REASONS:
        return _explain_time(case)
    hint = _explain_mismatch(case) if reason is Reason.SIGNATURE_MISMATCH else None
    return hint or _find_other(case, others) or (_find_scheme(case) if reason in _NOT_FOUND else None)


def _explain_time(case: RejectedRequest) -> str:
    if _proof_holds(case, case.recipe.proof, replace(case.spec, tolerance_s=MAX_TOLERANCE_S), case.request):
        return "its signature is valid: it is a late copy of a valid request, or the clocks differ"
    return "its signature would not have been valid either"


def _explain_mismatch(case: RejectedRequest) -> str | None:
    for attempt in _variations(case):
        spec = replace(case.spec, secrets=attempt.secrets)
        if _proof_holds(case, attempt.proof, spec, replace(case.request, body=attempt.body)):
            return attempt.hint
    return None


def _proof_holds(case: RejectedRequest, proof: Proof, spec: SourceSpec, request: Request) -> bool:
    try:
        check = make_check(replace(case.recipe, proof=proof), spec, case.settings, case.ring)
    except ConfigError:
        return False
    return isinstance(check.check(request, case.now), ValidProof)


def _variations(case: RejectedRequest) -> Iterator[_Variation]:
    proof, secrets = case.recipe.proof, case.spec.secrets[:MAX_SECRETS]
    if not isinstance(proof, Hmac | FieldMac):
        return
    for hint, body in _bodies(case):
        yield _Variation(hint, proof, secrets, body)
    stripped = tuple(secret.strip() for secret in secrets)
    for candidates, aside in ((secrets, ""), (stripped, ", without the spaces around it")):
        for form, words in _FORMS.items():
            if form is not proof.key_form or candidates != secrets:
                hint = f"it would match if the secret were {words}{aside}"
                yield _Variation(hint, replace(proof, key_form=form), candidates, case.request.body)
    for algorithm in Algorithm:
        for encoding in Encoding:
            if (algorithm, encoding) != (proof.algorithm, proof.encoding):
                hint = f"it would match as {algorithm.value} written in {encoding.value}"
                yield _Variation(
                    hint, replace(proof, algorithm=algorithm, encoding=encoding), secrets, case.request.body
                )


def _bodies(case: RejectedRequest) -> Iterator[tuple[str, bytes]]:
    body = case.request.body
    stripped = body.rstrip(b"\r\n")
    if stripped != body:
        yield "it would match without the newline at the body's end: a proxy added one", stripped
    yield "it would match with a newline at the body's end: a proxy removed one", body + b"\n"
    if case.decoded is not None and len(case.decoded) <= MAX_DECODED:
        yield "it would match the body without its Content-Encoding: a proxy compressed it", case.decoded
    document = parse(body)
    if document is UNREADABLE:
        return
    for words, style in _JSON_STYLES:
        for is_ascii in (True, False):
            text = json.dumps(document, ensure_ascii=is_ascii, **style)
            hint = f"it would match the body's JSON written {words}: a proxy parsed and rewrote it"
            yield hint, text.encode("utf-8", "surrogatepass")


def _find_other(case: RejectedRequest, others: Mapping[str, Check]) -> str | None:
    # Sources that are unsigned or checked by address only would accept the request anyway, so they prove nothing.
    sources = [name for name in sorted(others) if not isinstance(others[name], NoCheck | AddressCheck)]
    for name in sources[:MAX_OTHERS]:
        if isinstance(others[name].check(case.request, case.now), ValidProof):
            return f"the source {name!r} would have accepted it: it was sent to the wrong URL, or secrets were swapped"
    return None


def _find_scheme(case: RejectedRequest) -> str | None:
    """Return a hint that names the scheme, of this or another provider, that a request header belongs to."""
    own = signature_headers(case.recipe.proof)
    for recipe, scheme in _schemes(case):
        for name in sorted(signature_headers(recipe.proof) - own):
            if name in case.request.headers:
                return f"there is a header {name}, as for {scheme}"
    senders = _SENDERS.keys() & case.request.headers.keys() - own
    if not senders:
        return None
    name = min(senders)
    return f"this looks like a request of {_SENDERS[name]}: there is a header {name}"


def _schemes(case: RejectedRequest) -> Iterator[tuple[Recipe, str]]:
    registered = next(
        (recipe for recipe in RECIPES if case.spec.provider.strip().lower() in (recipe.name, *recipe.aliases)), None
    )
    if registered is None:
        return
    yield registered, f"{registered.title} without the setting scheme"
    for word, recipe in registered.schemes.items():
        yield recipe, f'{registered.title} with scheme = "{word}"'


def _senders() -> dict[str, str]:
    """Return provider titles by header name, for headers that few providers use."""
    titles: dict[str, list[str]] = {}
    for recipe in RECIPES:
        for recipe_or_scheme in (recipe, *recipe.schemes.values()):
            for name in signature_headers(recipe_or_scheme.proof) - _COMMON_HEADERS:
                titles.setdefault(name, []).append(recipe.title)
    return {name: " or ".join(list(dict.fromkeys(those))[:3]) for name, those in titles.items()}


_SENDERS: Final = _senders()
