"""Why a signature may not fit: the usual mistakes, tried one by one for the operator's eyes only.

A hint is looked for only after a mismatch, only for bodies small enough that a flood of forgeries costs little.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from boathook.domain import signing
from boathook.domain.signing import WRITERS, KeyForm, Mac, read_key
from boathook.inbound.providers.proofs import Hmac
from boathook.inbound.template import Template
from boathook.inbound.verdict import Request

MAX_BODY: Final = 16_384
MAX_SECRETS: Final = 2

_FORMS: Final = {
    KeyForm.TEXT: "used as plain text",
    KeyForm.HEX: "decoded from hexadecimal",
    KeyForm.BASE64: "decoded from base64",
    KeyForm.STANDARD: "decoded from base64 after its whsec_",
}


def explain_mismatch(
    proof: Hmac,
    template: Template,
    secrets: Sequence[str],
    request: Request,
    signatures: Sequence[str],
    stamp: str,
    identifier: str,
) -> str | None:
    """Return what would make one of *signatures* fit; `None` where no usual mistake explains it."""
    if len(request.body) > MAX_BODY:
        return None
    write = WRITERS[proof.encoding]
    for secret in secrets[:MAX_SECRETS]:
        for key, body, hint in _mistakes(proof, secret, request.body):
            chunks = template.fill(replace(request, body=body), stamp, identifier)
            expected = write(Mac(key, proof.algorithm).digest(chunks))
            if any(signing.same(expected, signature) for signature in signatures):
                return hint
    return None


def _mistakes(proof: Hmac, secret: str, body: bytes) -> Iterator[tuple[bytes, bytes, str]]:
    own = read_key(secret, proof.key_form)
    stripped = body.rstrip(b"\r\n")
    if stripped != body:
        yield own, stripped, "it would fit without the newline at the body's end: something added one on the way"
    yield own, body + b"\n", "it would fit with a newline at the body's end: something removed one on the way"
    for form, words in _FORMS.items():
        for candidate, aside in ((secret, ""), (secret.strip(), ", without the spaces around it")):
            try:
                key = read_key(candidate, form)
            except ValueError:
                continue
            if key != own:
                yield key, body, f"it would fit if the secret were {words}{aside}"
