"""AWS Signature Version 4 in headers and in URLs, as S3 requires it.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html, and for S3, which
encodes paths once, https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlsplit

EMPTY: Final = hashlib.sha256(b"").hexdigest()
"""The digest of a request without a body."""
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_USUAL_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of the signer."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    """The session token of temporary credentials."""


def encode_path(path: str) -> str:
    """Return a path encoded as in the URL and the signature."""
    return quote(path, safe="/-_.~")


def encode_query(pairs: Mapping[str, str]) -> str:
    """Return a query encoded as in the URL and the signature: sorted, with every value encoded."""
    return "&".join(f"{name}={value}" for name, value in sorted((_quote(k), _quote(v)) for k, v in pairs.items()))


def sign(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    body_sha256: str,
    credentials: Credentials,
    region: str,
    at: datetime,
) -> dict[str, str]:
    """Return *headers* with those of the signature: time, body digest and authorization.

    The URL must be encoded with `encode_path` and `encode_query`. *body_sha256* is in hexadecimal digits.
    """
    timestamp = at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    token = {"x-amz-security-token": credentials.token} if credentials.token else {}
    own = {"x-amz-date": timestamp, "x-amz-content-sha256": body_sha256, **token}
    signed = {name.lower(): " ".join(value.split()) for name, value in {**headers, "host": _host(url), **own}.items()}
    names = ";".join(sorted(signed))
    scope = f"{timestamp[:8]}/{region}/s3/aws4_request"
    canonical = _canonical(method, url, signed, names, body_sha256)
    signature = _signature(canonical, credentials, region, timestamp)
    proof = f"{_ALGORITHM} Credential={credentials.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, **own, "authorization": proof}


def presign(method: str, url: str, *, credentials: Credentials, region: str, at: datetime, expires_s: int) -> str:
    """Return *url* with a signature in its query, valid for *expires_s* seconds; the URL must have no query yet.

    Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html.
    """
    timestamp = at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{timestamp[:8]}/{region}/s3/aws4_request"
    query = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.key_id}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.token:
        query["X-Amz-Security-Token"] = credentials.token
    named = f"{url}?{encode_query(query)}"
    canonical = _canonical(method, named, {"host": _host(url)}, "host", "UNSIGNED-PAYLOAD")
    return f"{named}&X-Amz-Signature={_signature(canonical, credentials, region, timestamp)}"


def _signature(canonical: str, credentials: Credentials, region: str, timestamp: str) -> str:
    scope = f"{timestamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join((_ALGORITHM, timestamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    return hmac.new(_key(credentials.secret, timestamp[:8], region), text.encode(), "sha256").hexdigest()


def _canonical(method: str, url: str, signed: Mapping[str, str], names: str, body_sha256: str) -> str:
    parts = urlsplit(url)
    lines = "".join(f"{name}:{signed[name]}\n" for name in names.split(";"))
    return "\n".join((method, parts.path or "/", parts.query, lines, names, body_sha256))


def _key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _host(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return host if parts.port in {None, _USUAL_PORTS[parts.scheme]} else f"{host}:{parts.port}"


def _quote(text: str) -> str:
    return quote(text, safe="-_.~")
