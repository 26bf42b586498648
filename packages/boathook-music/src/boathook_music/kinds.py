"""The files of a clip: which formats they may have, and how their objects are named."""

import hashlib
import re
from enum import StrEnum
from typing import Final

from boathook_app_tools.file_types import AUDIO, IMAGES

PREFIX: Final = "tracks/"
"""Prefix of all objects of the app; other objects in the bucket are never touched."""
_SAFE: Final = re.compile(r"(?!x-)[A-Za-z0-9_-]{1,100}")
_OWN: Final = re.compile(r"tracks/[A-Za-z0-9_-]{1,100}/[A-Za-z0-9_-]{1,100}\.[a-z0-9]{1,5}")


class Kind(StrEnum):
    """The files of a clip."""

    AUDIO = "audio"
    COVER = "cover"


FORMATS: Final = {Kind.AUDIO: AUDIO, Kind.COVER: IMAGES}
"""The content types of each kind, by extension."""
_EXTENSIONS: Final = {name: kind for kind, formats in FORMATS.items() for name in formats}


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
