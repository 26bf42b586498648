"""The portal's logo: an image whose content decides its media type."""

import base64
import binascii
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from boathook.config import Settings
from boathook.domain.errors import ConfigError
from boathook_console.settings import console_table
from boathook_pages.static_files import StaticFile

_MAX_LOGO_BYTES: Final = 262_144
_DATA_SCHEME: Final = "data:"
_DATA_URL: Final = re.compile(
    r"data:image/[a-z0-9.+-]+(?:;charset=utf-8|;utf8)?(;base64)?,(.*)", re.IGNORECASE | re.DOTALL
)
_LOGO_SIGNATURES: Final = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<[?!].{0,4096}?)?<svg[\s>]", re.DOTALL), "image/svg+xml"),
)


def find_logo(settings: Settings) -> StaticFile | None:
    """Return the portal's logo; None if there is none.

    Raises:
        ConfigError: the file cannot be read, or is not an image; the message names the key.
    """
    logo, key = console_table(settings).portal_logo, "console.portal_logo"
    if not logo:
        return None
    is_data = logo.startswith(_DATA_SCHEME)
    try:
        return _read_logo(_read_data_url(logo) if is_data else settings.path_of(logo).read_bytes())
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {settings.path_of(logo)}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{key}: {'the data URL' if is_data else logo} {error}") from None


def _read_data_url(url: str) -> bytes:
    """Return the content of a data URL of an image. Raises ValueError."""
    match = _DATA_URL.fullmatch(url)
    if match is None:
        raise ValueError(
            'is not a data URL of an image; use one such as "data:image/png;base64,...", or a file\'s path'
        )
    try:
        return base64.b64decode(match[2], validate=True) if match[1] else unquote_to_bytes(match[2])
    except binascii.Error:
        raise ValueError("is not base64 after the comma") from None


def _read_logo(content: bytes) -> StaticFile:
    """Return the logo with this content. Raises ValueError if it is too large or no image that browsers show."""
    if len(content) > _MAX_LOGO_BYTES:
        raise ValueError(f"has {len(content):,} bytes; a logo has at most {_MAX_LOGO_BYTES:,}")
    for signature, media_type in _LOGO_SIGNATURES:
        if signature.match(content):
            return StaticFile.of(content, media_type)
    raise ValueError("is not an image; use SVG, PNG, JPEG, WebP or GIF")
