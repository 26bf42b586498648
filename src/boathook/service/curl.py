"""Requests as commands that make them again, quoted for the shell that they are pasted into.

Within single quotes POSIX shells take everything as it is but the quote itself; fish also takes a backslash for the
start of an escape. What no shell can hold in an argument, such as NUL or many bytes, curl reads from a file. For any
other shell there is a file that curl itself reads (``curl --config``), whose quoting is the same everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from boathook.service.body_view import is_text, mask

MAX_INLINE_BYTES: Final = 65_536
"""Bytes of a body that are written into a command; systems bound how long one argument may be."""
_CONFIG_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"})


class Shell(StrEnum):
    """Whose quoting a command follows."""

    SH = "sh"
    FISH = "fish"
    CONFIG = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurlRequest:
    """A request that somebody may make again."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    """All of it, or its beginning where it is larger than `MAX_INLINE_BYTES`."""
    file: str
    """The name that the downloaded body has."""


def render_command(request: CurlRequest, shell: Shell = Shell.SH, *, has_secrets: bool = False) -> str:
    """Return the command; without *has_secrets*, headers that may hold one are masked."""
    headers = dict(request.headers) if has_secrets else mask(dict(request.headers))
    body = _body(request)
    # curl takes a header with nothing behind its colon for one to be left out; a semicolon makes it an empty one.
    options = [
        ("request", "POST"),
        ("url", request.url),
        *(("header", f"{name}: {value}" if value else f"{name};") for name, value in headers.items()),
        # A body that begins with an at sign would be taken for a file by the other ways to write it.
        (("data-binary", f"@{request.file}") if body is None else ("data-raw", body)),
    ]
    if shell is Shell.CONFIG:
        return "\n".join(f'{name} = "{value.translate(_CONFIG_ESCAPES)}"' for name, value in options) + "\n"
    quote = _quote_for_fish if shell is Shell.FISH else _quote_for_sh
    return " \\\n  ".join(["curl", *(f"--{name} {quote(value)}" for name, value in options)])


def needs_file(request: CurlRequest) -> bool:
    """Return whether the command reads the body from the downloaded file."""
    return _body(request) is None


def _body(request: CurlRequest) -> str | None:
    is_writable = len(request.body) <= MAX_INLINE_BYTES and is_text(request.body)
    return request.body.decode("utf-8") if is_writable else None


def _quote_for_sh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _quote_for_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
