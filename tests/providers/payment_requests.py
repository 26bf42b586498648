"""Builds sources and requests of payment providers, and asserts the verdict on them."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from boathook.domain.verification import Reason, Rejected, Request, SourceSpec, Verified
from boathook.testing import Signed
from boathook.verification.keyring import KeyRing
from boathook.verification.verifier import Verifier

URL = "https://hooks.example.com/in/test?shop=1"
FORM = "application/x-www-form-urlencoded"


def source(
    provider: str, *secrets: str, ring: KeyRing | None = None, unsigned: bool = False, **options: Any
) -> Verifier:
    """Return the verifier of a source; unknown keywords are the provider's own settings."""
    spec = SourceSpec(
        name="test", provider=provider, secrets=secrets, unsigned=unsigned, options=options, public_url=URL
    )
    return Verifier(spec, ring)


def make_request(
    body: bytes, headers: Mapping[str, str], *, url: str = URL, method: str = "POST", client: str = "192.0.2.1"
) -> Request:
    """Return a request with this body and these headers."""
    parts = urlsplit(url)
    headers = {"host": parts.netloc} | {name.lower(): value for name, value in headers.items()}
    return Request(
        method=method, url=url, path=parts.path, query=parts.query, headers=headers, body=body, client=client
    )


def from_signed(signed: Signed) -> Request:
    """Return the request for what `boathook.testing` signed."""
    return make_request(signed.body, signed.headers, url=signed.url, method=signed.method)


def altered(request: Request, count: int = 24) -> Iterator[Request]:
    """Yield the request with one byte of its body changed, at positions spread over the body."""
    length = len(request.body)
    for place in sorted({round(step * (length - 1) / (count - 1)) for step in range(count)}):
        body = request.body[:place] + bytes([request.body[place] ^ 1]) + request.body[place + 1 :]
        yield replace(request, body=body)


def verified(verifier: Verifier, request: Request, now: float) -> Verified:
    """Assert that the request is verified and return the verdict."""
    verdict = verifier.verify(request, now)
    assert isinstance(verdict, Verified), verdict
    return verdict


def rejection_reason(verifier: Verifier, request: Request, now: float) -> Reason:
    """Assert that the request is rejected and return the reason."""
    verdict = verifier.verify(request, now)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.status == 401
    return verdict.reason
