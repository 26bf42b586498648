"""The portal's logo: a file or a data URL, whose content decides its type."""

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

MAX_LOGO_BYTES: Final = 262_144
DATA_SCHEME: Final = "data:"
_DATA: Final = re.compile(r"data:image/[a-z0-9.+-]+(?:;charset=utf-8|;utf8)?(;base64)?,(.*)", re.IGNORECASE | re.DOTALL)
_SIGNATURES: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<[?!].{0,4096}?)?<svg[\s>]", re.DOTALL), "image/svg+xml"),
)


@dataclass(frozen=True, slots=True)
class Logo:
    """An image with its media type."""

    content: bytes = field(repr=False)
    media_type: str


def read_data_url(url: str) -> bytes:
    """Return the content of a data URL of an image. Raises ValueError."""
    found = _DATA.fullmatch(url)
    if found is None:
        raise ValueError(
            'is not a data URL of an image; use one such as "data:image/png;base64,...", or a file\'s path'
        )
    try:
        return base64.b64decode(found[2], validate=True) if found[1] else unquote_to_bytes(found[2])
    except binascii.Error:
        raise ValueError("is not base64 after the comma") from None


def read_logo(content: bytes) -> Logo:
    """Return the logo with this content. Raises ValueError if it is too large or no image that browsers show."""
    if len(content) > MAX_LOGO_BYTES:
        raise ValueError(f"has {len(content):,} bytes; a logo has at most {MAX_LOGO_BYTES:,}")
    for signature, media_type in _SIGNATURES:
        if signature.match(content):
            return Logo(content, media_type)
    raise ValueError("is not an image; use SVG, PNG, JPEG, WebP or GIF")
