"""Functions that the API and the pages share: request parsing and response headers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from boathook_cashdesk.cabinet_errors import BadField, TooLarge

MOUNT: Final = "/cabinet"
_MAX_BODY: Final = 262_144
_MAX_FIELDS: Final = 50
_SAFE: Final[Mapping[str, str]] = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
"""Default ports, which a URL may omit."""

Handle = Callable[[Request], Awaitable[Response]]


class IdConvertor(IntegerConvertor):
    """An id in a path: at most as many digits as a bigint can have."""

    regex = "[0-9]{1,19}"


register_url_convertor("cashdesk_id", IdConvertor())


def guarded(response: Response) -> Response:
    """Return *response* with security headers for browsers."""
    for name, value in _SAFE.items():
        response.headers.setdefault(name, value)
    return response


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises TooLarge."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > _MAX_BODY:
            raise TooLarge(f"a body has at most {_MAX_BODY:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a page's form; of repeated names the last. Raises TooLarge, BadField."""
    body = await read_body(request)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"))
    except ValueError:
        raise BadField("", "the body is not a form") from None


def read_number(request: Request, name: str, *, usual: int, maximum: int) -> int:
    """Return a number of the query, such as ``?limit=50``. Raises BadField."""
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > maximum:
        raise BadField(name, f"write a number from 0 to {maximum}")
    return int(text)


def read_origin(text: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of an origin such as ``https://cabinet.example``, or None if it is invalid."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    is_more = "@" in parts.netloc or parts.path or parts.query or parts.fragment
    if parts.scheme not in _PORTS or not parts.hostname or is_more:
        return None
    return parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port


def path_id(request: Request) -> int:
    """Return the id in the path."""
    id: Any = request.path_params["id"]
    return int(id)
