"""What browsers may do at a mount: CORS (https://fetch.spec.whatwg.org), and headers that restrict its pages.

Cookies give no access to a mount, so ``access-control-allow-credentials`` is never sent: pages of other origins send
their token in the ``authorization`` header.
"""

import re
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import parse_qsl

from boathook.api.errors import ApiError
from boathook.http.asgi import Send, is_own_origin
from boathook.service.access.keys import PREFIX

Scope = dict[str, Any]
RawHeaders = list[tuple[bytes, bytes]]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that only read (RFC 9110, section 9.2.1)."""
_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED: Final = b"x-request-id, retry-after"
_PREFLIGHT_MAX_AGE_S: Final = b"600"
_HEADER_NAMES: Final = re.compile(rb"[a-z0-9-]+(?:[ \t]*,[ \t]*[a-z0-9-]+)*", re.IGNORECASE)
_MAX_QUERY_FIELDS: Final = 1_000
_TOKEN: Final = re.compile(rf"{PREFIX}|eyJ[\w-]+\.[\w-]+\.")
"""The beginning of an API key or a JSON Web Token."""

_RESTRICTIONS: Final[RawHeaders] = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
]
_OPEN: Final[RawHeaders] = [
    *_RESTRICTIONS,
    (b"content-security-policy", b"base-uri 'self'; frame-ancestors 'none'; object-src 'none'"),
]
_CLOSED: Final[RawHeaders] = [
    *_RESTRICTIONS,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]
"""Browsers show no page of a mount that needs a token."""


class BrowserAccess:
    """The rules for browsers at one mount.

    Args:
        origins: the origins whose pages may call it; empty leaves CORS to the application.
        public_url: the public URL of the server.
        is_open: whether it needs no authentication.
    """

    def __init__(self, origins: Collection[str], public_url: str, *, is_open: bool) -> None:
        self._origins = frozenset(origins)
        self._public_url = public_url
        self._defaults = _OPEN if is_open else _CLOSED

    def may_open_socket(self, scope: Scope) -> bool:
        """Return whether a WebSocket comes from an allowed page, from one of our own, or from no page at all.

        Any website may open a WebSocket here; only the Origin header shows where it comes from.
        """
        origins = _values(scope, b"origin")
        if not origins:
            return True
        if self._is_allowed(origins):
            return True
        host = next(iter(_values(scope, b"host")), b"").decode("latin-1")
        return len(origins) == 1 and is_own_origin(origins[0].decode("latin-1"), host, self._public_url)

    def preflight(self, scope: Scope) -> RawHeaders | None:
        """Return the headers that answer a preflight; None for other requests, and where the application decides.

        Raises:
            ApiError: 403: pages of this origin may not call the mount.
        """
        is_preflight = scope["type"] == "http" and scope["method"] == "OPTIONS"
        if not self._origins or not is_preflight or not _values(scope, b"access-control-request-method"):
            return None
        origins = _values(scope, b"origin")
        if not self._is_allowed(origins):
            raise ApiError(403, "cross_origin", "pages of this origin may not call this path")
        headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", _PREFLIGHT_MAX_AGE_S),
        ]
        names = b", ".join(_values(scope, b"access-control-request-headers"))
        if _HEADER_NAMES.fullmatch(names):
            headers.append((b"access-control-allow-headers", names))
        return headers

    def restrict(self, scope: Scope, send: Send) -> Send:
        """Return a `Send` that adds the headers for browsers to each response."""
        origins = _values(scope, b"origin")

        async def restricted(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = self._with_cors(list(message.get("headers", ())), origins)
                names = {name.lower() for name, _ in headers}
                headers += [header for header in self._defaults if header[0] not in names]
                message = {**message, "headers": headers}
            await send(message)

        return restricted

    def _with_cors(self, headers: RawHeaders, origins: list[bytes]) -> RawHeaders:
        if not self._origins:
            return headers
        # Those of the application are replaced, except what answers a preflight, which only this class does.
        dropped = {
            b"access-control-allow-origin",
            b"access-control-allow-credentials",
            b"access-control-expose-headers",
        }
        headers = [header for header in headers if header[0].lower() not in dropped]
        headers.append((b"vary", b"origin"))
        if self._is_allowed(origins):
            headers += [(b"access-control-allow-origin", origins[0]), (b"access-control-expose-headers", _EXPOSED)]
        return headers

    def _is_allowed(self, origins: list[bytes]) -> bool:
        return len(origins) == 1 and origins[0].decode("latin-1") in self._origins


def check_target(scope: Scope, *, is_open: bool) -> None:
    """Check the path and query of a request to a mount.

    Raises:
        ApiError: 400: the path has dot segments, which could lead an application outside of it; or the query of a
            mount that needs a token contains one, and logs and browser histories would keep it.
    """
    path = scope["path"]
    if not {".", ".."}.isdisjoint(path.split("/")) or "\\" in path or "\0" in path:
        raise ApiError(400, "invalid_path", 'the path must not contain ".", "..", a backslash or NUL as a part')
    if not is_open and _has_token(scope["query_string"]):
        raise ApiError(
            400,
            "token_in_url",
            "a token must not be in the URL, which logs keep; send it as authorization: Bearer TOKEN",
        )


def _has_token(query: bytes) -> bool:
    if not query:
        return False
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError:
        raise ApiError(400, "invalid_query", f"the query has more than {_MAX_QUERY_FIELDS} fields") from None
    return any(name.lower() == "access_token" or _TOKEN.match(value.removeprefix("Bearer ")) for name, value in fields)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header == name]
