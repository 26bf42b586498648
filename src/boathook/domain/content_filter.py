"""Conditions of a search that need an event's content: a text, ignoring case, and values at paths of its JSON body."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from boathook.domain import json_document

_CONDITION: Final = re.compile(r"\s*(?:\$\.)?([^\s=.\"']+(?:\.[^\s=.\"']+)*)\s*=\s*(\S.*?)\s*", re.DOTALL)
_ESCAPED: Final = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+")
_ABSENT: Final = object()


class PathCondition(msgspec.Struct, frozen=True):
    """A value at a path of a JSON body, such as ``data.object.customer = cus_123``."""

    path: tuple[str, ...]
    value: str
    """A string, or a number, boolean or null as text."""

    def __str__(self) -> str:
        """Return the condition as it is written."""
        return f"{'.'.join(self.path)} = {self.value}"

    def matches(self, body: bytes) -> bool:
        """Return whether the body is JSON with this value at the path."""
        # Parsing is slow. A body without this text, and without escapes, cannot contain the value.
        if self.value.encode("utf-8", "surrogatepass") not in body and b"\\" not in body:
            return False
        value = json_document.get_path(json_document.parse(body), self.path, _ABSENT)
        return self.value == ("null" if value is None else json_document.scalar_text(value))


def parse_condition(text: str) -> PathCondition | None:
    """Return the condition that a text such as ``data.object.customer = cus_123`` states; None if it states none."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        return None
    value = match[2]
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return PathCondition(json_document.split_path(match[1]), value[1:-1] if is_quoted else value)


class ContentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events by their content; None and empty values match everything."""

    text: str | None = None
    """The body contains this, ignoring case."""
    words: str | None = None
    """The body, the type or the dedup key contains this, ignoring case."""
    word_keys: tuple[str, ...] = ()
    """Other spellings of `words` as a whole dedup key."""
    conditions: tuple[PathCondition, ...] = ()
    """All of these hold."""

    @property
    def is_empty(self) -> bool:
        """Whether it matches every event."""
        return self == EVERYTHING

    def matches(self, type: str, dedup_key: str, body: bytes) -> bool:
        """Return whether an event has this content."""
        return (
            (self.words is None or self._has_words(type, dedup_key, body))
            and (self.text is None or contains(body, self.text))
            and all(condition.matches(body) for condition in self.conditions)
        )

    def _has_words(self, type: str, dedup_key: str, body: bytes) -> bool:
        words = (self.words or "").casefold()
        return (
            words in type.casefold()
            or words in dedup_key.casefold()
            or dedup_key in self.word_keys
            or contains(body, words)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the filter as a JSON object."""
        conditions = [[list(condition.path), condition.value] for condition in self.conditions]
        return {"text": self.text, "words": self.words, "word_keys": self.word_keys, "conditions": conditions}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ContentFilter":
        """Return the filter that `to_json` has written."""
        return cls(
            text=value["text"],
            words=value["words"],
            word_keys=tuple(value["word_keys"]),
            conditions=tuple(PathCondition(tuple(path), text) for path, text in value["conditions"]),
        )


EVERYTHING: Final = ContentFilter()
"""Matches every event."""


def contains(body: bytes, text: str) -> bool:
    """Return whether a body contains a text, ignoring case: as it is written, or as JSON escapes it."""
    if text.isascii():
        lower = text.lower()
        escaped = json.dumps(lower)[1:-1]
        folded = body.lower()
        return lower.encode() in folded or (escaped != lower and escaped.encode() in folded)
    folded_text = text.casefold()
    content = _ESCAPED.sub(_unescape, body).decode("utf-8", "replace").casefold()
    return folded_text in content or json.dumps(folded_text, ensure_ascii=False)[1:-1] in content


def _unescape(match: re.Match[bytes]) -> bytes:
    units = bytes.fromhex(match[0].replace(b"\\u", b"").decode("ascii"))
    return units.decode("utf-16-be", "replace").encode()
