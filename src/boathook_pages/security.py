"""Protects pages: security headers, forms with limits, and checks that a form comes from one of our own pages."""

import hmac
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from boathook.http.asgi import is_own_origin

_MAX_FORM_BYTES: Final = 1_048_576
_MAX_FORM_FIELDS: Final = 2_000

Headers = Mapping[str, str]


class CsrfError(HTTPException):
    """A form from another site or another session."""

    def __init__(self) -> None:
        super().__init__(403, "this form belongs to another session; go back, reload the page and try again")


def security_headers(embed_origins: tuple[str, ...] = (), report_path: str = "") -> Headers:
    """Return the headers of every page.

    Args:
        embed_origins: origins that may embed the pages.
        report_path: where browsers report violations of the policy; empty for nowhere.
    """
    # Pages show untrusted data. If markup in it were not escaped, the policy would still block scripts.
    ancestors = " ".join(embed_origins) or "'none'"
    report = f"; report-uri {report_path}" if report_path else ""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}{report}"
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        "cache-control": "no-store",
    }
    return headers if embed_origins else headers | {"x-frame-options": "DENY"}


def complete_headers(headers: Iterable[tuple[bytes, bytes]], security: Headers) -> list[tuple[bytes, bytes]]:
    """Return ASGI headers, with missing security headers added."""
    present = list(headers)
    if any(name == b"content-security-policy" for name, _ in present):
        return present
    names = {name for name, _ in present}
    missing = ((name.encode(), value.encode()) for name, value in security.items())
    return [*present, *(header for header in missing if header[0] not in names)]


def with_headers(response: Response, headers: Headers) -> Response:
    """Return a response with these headers, unless it has them already."""
    for name, value in headers.items():
        response.headers.setdefault(name, value)
    return response


async def read_form(request: Request) -> FormData:
    """Return the fields of a form.

    Raises:
        HTTPException: the body is too large, or not a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413, f"the form is larger than {_MAX_FORM_BYTES:,} bytes")
    if body and kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "invalid form: the content type must be application/x-www-form-urlencoded")
    try:
        fields = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
        return FormData([(name, value) for name, value in fields])
    except (UnicodeDecodeError, ValueError):
        raise HTTPException(400, "invalid form: it must be UTF-8 with at most 2,000 fields") from None


def check_origin(request: Request, public_url: str, *, is_only_url: bool = False) -> None:
    """Check that a request comes from a page of this server, or only of its public URL. Raises CsrfError.

    Browsers send `Origin` with each POST, and also `Sec-Fetch-Site`. A browser that sends neither does not support
    SameSite cookies either, so its request is rejected.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None and site not in {"same-origin", "none"}:
        raise CsrfError
    if origin is None:
        if site is None:
            raise CsrfError
        return
    if not is_own_origin(origin, "" if is_only_url else request.headers.get("host", ""), public_url):
        raise CsrfError


def csrf_token(session: str) -> str:
    """Return the CSRF token of a session, which each of its forms contains."""
    return hmac.digest(session.encode("utf-8", "surrogatepass"), b"boathook form", "sha256").hex()


def check_csrf_token(session: str, token: str) -> None:
    """Check the CSRF token of a form. Raises CsrfError."""
    if not hmac.compare_digest(csrf_token(session).encode(), token.encode("utf-8", "surrogatepass")):
        raise CsrfError
