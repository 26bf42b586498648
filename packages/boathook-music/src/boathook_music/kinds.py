"""Detects the formats of files by their first bytes, and names their objects."""

import hashlib
import re
from enum import StrEnum
from typing import Final, NamedTuple

PREFIX: Final = "tracks/"
"""Prefix of all objects of the app; other objects in the bucket are never touched."""
HEAD: Final = 64
"""Bytes that are read to detect a format."""
_SAFE: Final = re.compile(r"(?!x-)[A-Za-z0-9_-]{1,100}")
_OWN: Final = re.compile(r"tracks/[A-Za-z0-9_-]{1,100}/[A-Za-z0-9_-]{1,100}\.[a-z0-9]{1,5}")


class Kind(StrEnum):
    """The files of a clip."""

    AUDIO = "audio"
    COVER = "cover"


class Format(NamedTuple):
    """The format of a file."""

    extension: str
    content_type: str


_FORMATS: Final = {
    Kind.AUDIO: {
        "mp3": "audio/mpeg",
        "wav": "audio/wav",
        "flac": "audio/flac",
        "ogg": "audio/ogg",
        "m4a": "audio/mp4",
    },
    Kind.COVER: {
        "jpg": "image/jpeg",
        "png": "image/png",
        "webp": "image/webp",
        "gif": "image/gif",
    },
}
_EXTENSIONS: Final = {name: kind for kind, formats in _FORMATS.items() for name in formats}
_BEGINNINGS: Final = (
    (b"ID3", "mp3"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
)


def format_of(kind: Kind, head: bytes) -> Format | None:
    """Return the format of a file that begins with *head*, or None if this kind does not allow it.

    The server's Content-Type is ignored: an HTML page is a page, whatever its declared type.
    """
    extension = _extension(head)
    content_type = _FORMATS[kind].get(extension)
    return None if content_type is None else Format(extension, content_type)


def _extension(head: bytes) -> str:
    for beginning, extension in _BEGINNINGS:
        if head.startswith(beginning):
            return extension
    if head[:4] == b"RIFF":
        return {b"WAVE": "wav", b"WEBP": "webp"}.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return "m4a" if head[8:11] in {b"M4A", b"mp4", b"iso"} else ""
    # A frame of MPEG audio: eleven set bits, then version and layer, each with one reserved value.
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "mp3" if head[1] & 0x18 != 0x08 and head[1] & 0x06 == 0x02 else ""
    return ""


def stem_of(task_id: str, clip_id: str) -> str:
    """Return the name of a clip's objects without extension: the same at every attempt, with safe characters only."""
    return f"{PREFIX}{_safe(task_id)}/{_safe(clip_id)}"


def is_own(key: str) -> bool:
    """Return whether an object may belong to this app."""
    return _OWN.fullmatch(key) is not None and key.rpartition(".")[2] in _EXTENSIONS


def split_key(key: str) -> tuple[str, Kind]:
    """Return stem and kind of an object that `is_own`."""
    stem, _, extension = key.rpartition(".")
    return stem, _EXTENSIONS[extension]


def _safe(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    return "x-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
