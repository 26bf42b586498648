"""Renders stored requests for display.

A body is shown as indented JSON, as text or in hex, and a request also as the curl command that repeats it.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from boathook.domain.json_text import FormattedJson, InvalidJson, format_json

MAX_BYTES: Final = 262_144
"""Maximum displayed bytes of a body; the whole body can be downloaded."""
MAX_HEX_BYTES: Final = 16_384
_ROW: Final = 16
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SECRETIVE: Final = re.compile(r"auth|cookie|credential|key|passw|secret|signature|token", re.IGNORECASE)
MASK: Final = "••••••"
MAX_INLINE_BYTES: Final = 65_536
"""Maximum bytes of a body inside a command; operating systems limit the length of an argument."""
_CONFIG_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"})


class BodyFormat(StrEnum):
    """A way to display bytes."""

    PRETTY = "pretty"
    RAW = "raw"
    HEX = "hex"


class BodyView(msgspec.Struct, frozen=True, kw_only=True):
    """The displayed beginning of a body."""

    view: BodyFormat
    views: tuple[BodyFormat, ...]
    """The formats that these bytes can be displayed in."""
    text: str
    is_cut: bool
    """Whether the body is longer than the displayed part."""
    doubled: tuple[str, ...] = ()
    """Keys that occur twice in their object."""
    is_deep: bool = False
    """Whether parts are nested too deep to be indented."""
    problem: str | None = None
    """Why a body that should be JSON is invalid."""


def render(head: bytes, size: int, view: str | None = None, *, content_type: str = "") -> BodyView:
    """Return the beginning of a body in a readable format.

    Args:
        head: its first bytes.
        size: its total size in bytes.
        view: the format; None or one that does not fit selects the best.
        content_type: the Content-Type header; invalid JSON is reported if it says JSON.
    """
    is_whole = len(head) >= size
    text = _text_of(head, is_whole=is_whole)
    if text is None:
        return _raw_or_hex(head, size, view)
    formatted = format_json(text, is_whole=is_whole)
    views = (
        (BodyFormat.PRETTY, BodyFormat.RAW, BodyFormat.HEX)
        if isinstance(formatted, FormattedJson)
        else (BodyFormat.RAW, BodyFormat.HEX)
    )
    body_format = next((candidate for candidate in views if candidate == view), views[0])
    if body_format is BodyFormat.HEX:
        return _hex(head, size, views)
    if body_format is BodyFormat.PRETTY and isinstance(formatted, FormattedJson):
        is_cut = formatted.is_cut or not is_whole
        return BodyView(
            view=body_format,
            views=views,
            text=formatted.text,
            is_cut=is_cut,
            doubled=formatted.doubled,
            is_deep=formatted.is_deep,
        )
    problem = None
    if isinstance(formatted, InvalidJson) and head and "json" in content_type.lower():
        problem = f"Invalid JSON: {formatted.reason}, after {formatted.at:,} characters."
    return BodyView(view=body_format, views=views, text=text, is_cut=not is_whole, problem=problem)


def snippet(head: bytes, size: int) -> BodyView:
    """Return the beginning of a response as raw text, or in hex if it is binary."""
    text = _text_of(head, is_whole=len(head) >= size)
    if text is None:
        return _hex(head, size, (BodyFormat.HEX,))
    return BodyView(view=BodyFormat.RAW, views=(BodyFormat.RAW,), text=text, is_cut=len(head) < size)


def to_lines(body: bytes, view: BodyFormat | None = None) -> list[str]:
    """Return a body as lines for comparison: indented JSON, text, or rows in hex."""
    return render(body[:MAX_BYTES], min(len(body), MAX_BYTES), view).text.split("\n")


def mask(headers: dict[str, str]) -> dict[str, str]:
    """Return headers with the values masked that may hold a secret."""
    return {name: MASK if is_sensitive(name) else value for name, value in headers.items()}


def is_sensitive(name: str) -> bool:
    """Return whether a header of this name may hold a secret."""
    return _SECRETIVE.search(name) is not None


def is_text(body: bytes) -> bool:
    """Return whether a body is text: UTF-8 without control characters except tabs and line breaks."""
    return _text_of(body, is_whole=True) is not None


def hex_dump(body: bytes) -> str:
    """Return bytes as a hex dump: sixteen per row, with offsets and printable characters."""
    return "\n".join(
        f"{at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {_readable(row)}"
        for at in range(0, len(body), _ROW)
        if (row := body[at : at + _ROW])
    )


def _text_of(head: bytes, *, is_whole: bool) -> str | None:
    """Return bytes as text, or None if they are binary. The last character may be truncated."""
    cuts = (0,) if is_whole else (0, 1, 2, 3)
    for cut in cuts:
        try:
            text = head[: len(head) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
        return None if _CONTROL.search(text) else text
    return None


def _raw_or_hex(head: bytes, size: int, view: str | None) -> BodyView:
    views = (BodyFormat.HEX, BodyFormat.RAW)
    if view != BodyFormat.RAW:
        return _hex(head, size, views)
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", head.decode("utf-8", "backslashreplace"))
    return BodyView(view=BodyFormat.RAW, views=views, text=text, is_cut=len(head) < size)


def _hex(head: bytes, size: int, views: tuple[BodyFormat, ...]) -> BodyView:
    return BodyView(
        view=BodyFormat.HEX,
        views=views,
        text=hex_dump(head[:MAX_HEX_BYTES]),
        is_cut=size > min(len(head), MAX_HEX_BYTES),
    )


def _readable(row: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)


class Shell(StrEnum):
    """The quoting rules of a command."""

    SH = "sh"
    FISH = "fish"
    CONFIG = "config"


class CurlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be repeated."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    """The whole body, or its beginning if it is larger than `MAX_INLINE_BYTES`."""
    file: str
    """File name of the downloaded body."""


def render_command(request: CurlRequest, shell: Shell = Shell.SH, *, has_secrets: bool = False) -> str:
    """Return the command; without *has_secrets*, headers that may hold a secret are masked."""
    headers = dict(request.headers) if has_secrets else mask(dict(request.headers))
    body = _inline_body(request)
    # curl omits a header with nothing after its colon; a semicolon instead sends it empty.
    options = [
        ("request", "POST"),
        ("url", request.url),
        *(("header", f"{name}: {value}" if value else f"{name};") for name, value in headers.items()),
        # Other options would read a file for a body that starts with an at sign.
        (("data-binary", f"@{request.file}") if body is None else ("data-raw", body)),
    ]
    if shell is Shell.CONFIG:
        return "\n".join(f'{name} = "{value.translate(_CONFIG_ESCAPES)}"' for name, value in options) + "\n"
    quote = _quote_for_fish if shell is Shell.FISH else _quote_for_sh
    return " \\\n  ".join(["curl", *(f"--{name} {quote(value)}" for name, value in options)])


def needs_file(request: CurlRequest) -> bool:
    """Return whether the command reads the body from the downloaded file."""
    return _inline_body(request) is None


def _inline_body(request: CurlRequest) -> str | None:
    is_inline = len(request.body) <= MAX_INLINE_BYTES and is_text(request.body)
    return request.body.decode("utf-8") if is_inline else None


def _quote_for_sh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _quote_for_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
