"""Notices: the result of a form, carried to the next page by a cookie."""

from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request

_MAX_CHARS: Final = 600
"""In Cyrillic, each takes six bytes of the 4,096 of a cookie."""


def write_notice(text: str, kind: str) -> str:
    """Return the value of a cookie that carries a notice to the next page."""
    return quote(f"{kind}:{text[:_MAX_CHARS]}", safe="")


def read_notice(request: Request, cookie: str) -> tuple[str, str]:
    """Return the text and kind of the notice in this cookie; both are empty if there is none."""
    kind, _, text = unquote(request.cookies.get(cookie, "")).partition(":")
    return (text, kind) if kind in {"good", "bad"} else ("", "")
