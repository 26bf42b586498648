"""Detects the types of files by their first bytes: audio and images.

A server's Content-Type is ignored: an HTML page is a page, whatever its declared type.
"""

from typing import Final

HEAD: Final = 64
"""Bytes that are read to detect a type."""
AUDIO: Final = {
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "m4a": "audio/mp4",
}
"""Content types by extension, as `IMAGES`."""
IMAGES: Final = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif"}
_BEGINNINGS: Final = (
    (b"ID3", "mp3"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
)


def extension_of(head: bytes) -> str:
    """Return the extension of a file that begins with *head*; empty if the type is none of these."""
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
