"""What the tests of payment senders share: sources, requests as a gateway sees them, and what verdicts must be."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from boathook.inbound.proving.keyring import KeyRing
from boathook.inbound.verdict import Reason, Rejected, Request, SourceSpec, Verified
from boathook.inbound.verify import Verifier
from boathook.testing import Signed

URL = "https://hooks.example.com/in/test?shop=1"
FORM = "application/x-www-form-urlencoded"


def source(
    provider: str, *secrets: str, ring: KeyRing | None = None, unsigned: bool = False, **options: Any
) -> Verifier:
    """A source of one provider; unknown keywords are its own settings."""
    spec = SourceSpec(
        name="test", provider=provider, secrets=secrets, unsigned=unsigned, options=options, public_url=URL
    )
    return Verifier(spec, ring)


def sent(
    body: bytes, headers: Mapping[str, str], *, url: str = URL, method: str = "POST", client: str = "192.0.2.1"
) -> Request:
    """A request built by hand."""
    parts = urlsplit(url)
    headers = {"host": parts.netloc} | {name.lower(): value for name, value in headers.items()}
    return Request(
        method=method, url=url, path=parts.path, query=parts.query, headers=headers, body=body, client=client
    )


def arrived(signed: Signed) -> Request:
    """A request that boathook's own signing side made."""
    return sent(signed.body, signed.headers, url=signed.url, method=signed.method)


def altered(request: Request, count: int = 24) -> Iterator[Request]:
    """The request with one byte of its body changed, at places spread over all of it."""
    length = len(request.body)
    for place in sorted({round(step * (length - 1) / (count - 1)) for step in range(count)}):
        body = request.body[:place] + bytes([request.body[place] ^ 1]) + request.body[place + 1 :]
        yield replace(request, body=body)


def taken(verifier: Verifier, request: Request, now: float) -> Verified:
    """The verdict, which must be that the request is genuine."""
    verdict = verifier.verify(request, now)
    assert isinstance(verdict, Verified), verdict
    return verdict


def refused(verifier: Verifier, request: Request, now: float) -> Reason:
    """Why the request is refused, as it must be."""
    verdict = verifier.verify(request, now)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.status == 401
    return verdict.reason
