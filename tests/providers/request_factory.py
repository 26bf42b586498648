"""Builds requests from the providers' documentation without boathook's own code, and returns the verdict on them."""

import base64
import hmac
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from boathook.domain.verification import Request, SourceSpec, Verdict
from boathook.verification.verifier import Verifier

NOW = float(int(time.time()))
URL = "https://hooks.example.com/in/test"


def hex_mac(secret: str, *parts: str | bytes, algorithm: str = "sha256") -> str:
    """Return the HMAC over the concatenated parts as hexadecimal."""
    return _mac(secret, parts, algorithm).hex()


def base64_mac(secret: str, *parts: str | bytes, algorithm: str = "sha256") -> str:
    """Return the HMAC over the concatenated parts as base64."""
    return base64.b64encode(_mac(secret, parts, algorithm)).decode()


def _mac(secret: str, parts: tuple[str | bytes, ...], algorithm: str) -> bytes:
    whole = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return hmac.new(secret.encode(), whole, algorithm).digest()


def verifier(provider: str, *secrets: str, **options: Any) -> Verifier:
    """Return the verifier of a source of this provider with its own settings."""
    home = "https://hooks.example.com"
    return Verifier(SourceSpec(name="test", provider=provider, secrets=secrets, public_url=home, options=options))


def request(headers: Mapping[str, str], body: bytes = b"", *, method: str = "POST", url: str = URL) -> Request:
    """Return a request as the gateway reads it."""
    parts = urlsplit(url)
    return Request(
        method=method,
        url=url,
        path=parts.path,
        query=parts.query,
        headers={name.lower(): value for name, value in headers.items()},
        body=body,
        client="192.0.2.1",
    )


def verdict_of(provider: str, secret: str, headers: Mapping[str, str], body: bytes, **options: Any) -> Verdict:
    """Return the verdict of a source with one secret on a request received at `NOW`."""
    return verifier(provider, secret, **options).verify(request(headers, body), NOW)


def altered(body: bytes) -> bytes:
    """Return the bytes with one bit in the middle changed."""
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
