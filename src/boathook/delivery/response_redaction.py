"""Redacts the secrets of an endpoint in what its destination answers."""

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote_plus

from boathook.domain.endpoints import REDACTED

_MIN_LENGTH: Final = 4
"""A shorter text is not treated as a secret; redacting it would garble responses."""
_MIN_PART: Final = 8
_MAX_PLACES: Final = 64


def secret_forms(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Return what `redact` looks for: each secret in every form, longest first; compute it once per endpoint."""
    forms = {form.encode("utf-8", "replace") for text in texts for form in _forms(text)}
    return tuple(sorted((form for form in forms if len(form) >= _MIN_LENGTH), key=len, reverse=True))


def _forms(text: str) -> tuple[str, ...]:
    """Return the forms of a text in a response: plain, in JSON, in a form, and with its HTML escaped."""
    return text, json.dumps(text)[1:-1], text.replace("/", "\\/"), quote_plus(text), text.replace("+", "&#43;")


def redact(response: bytes, secrets: Iterable[bytes]) -> bytes:
    """Redact the secrets in *response*, including one that is cut off at its end."""
    for secret in secrets:
        if secret in response:
            response = response.replace(secret, REDACTED.encode())
        cut_at = _cut_off(response, secret)
        if cut_at is not None:
            response = response[:cut_at] + REDACTED.encode()
    return response


def _cut_off(response: bytes, secret: bytes) -> int | None:
    """Return the offset of a secret that is cut off at the end of the response, or None.

    A receiver that has the secret can repeat its first bytes many times. After `_MAX_PLACES` matches, the first
    match is returned, which redacts too much.
    """
    first = offset = response.find(secret[:_MIN_PART], max(0, len(response) - len(secret) + 1))
    for _ in range(_MAX_PLACES):
        if offset < 0 or secret.startswith(response[offset:]):
            return offset if offset >= 0 else None
        offset = response.find(secret[:_MIN_PART], offset + 1)
    return first
