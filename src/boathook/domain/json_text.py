"""Formats JSON for display token by token, without parsing numbers, merging keys or limiting depth.

A sender's JSON may contain numbers that no numeric type represents, duplicate keys, or ten thousand brackets. All of it
is shown as it was sent, with only line breaks and indentation added (RFC 8259 calls both insignificant).
"""

import json
import re
from typing import Final

import msgspec

MAX_DEPTH: Final = 32
"""Levels that are indented. Deeper values stay on one line, as their indentation alone could fill gigabytes."""
MAX_LENGTH: Final = 1 << 20
"""Maximum number of characters in the output."""
_MAX_DOUBLED: Final = 20
_MAX_PATH: Final = 200
_INDENT: Final = "  "
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_TOKEN: Final = re.compile(
    r"""
    [ \t\n\r]*+(?:
    (?P<mark>[\[\]{},:])
    | (?P<string>"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*")
    | (?P<plain>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9.eE+-]) | (?:true|false|null)\b)
    )""",
    re.VERBOSE,
)
_MAY_BE_CUT: Final = re.compile(r'"|-|[0-9tfn]')
_CLOSES: Final = {"{": "}", "[": "]"}


class FormattedJson(msgspec.Struct, frozen=True):
    """A formatted JSON text."""

    text: str
    doubled: tuple[str, ...]
    """Paths of keys that occur twice in one object, such as ``data.id``; at most twenty."""
    is_cut: bool
    """Whether the end is missing."""
    is_deep: bool
    """Whether some values are nested so deep that they were left on one line."""


class InvalidJson(msgspec.Struct, frozen=True):
    """The reason why a text is not JSON."""

    reason: str
    at: int
    """The number of characters before the error."""


def format_json(text: str, *, is_whole: bool = True) -> FormattedJson | InvalidJson:
    """Return a JSON text with one value per line, every token unchanged.

    Args:
        is_whole: whether *text* is complete; a truncated text may end anywhere.
    """
    writer = _Writer(text, is_whole)
    try:
        writer.write()
    except _Wrong as wrong:
        return InvalidJson(str(wrong), wrong.at)
    return FormattedJson("".join(writer.parts), tuple(writer.doubled), writer.is_cut, writer.is_deep)


class _Wrong(Exception):
    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


class _Level(msgspec.Struct):
    """One open object or array."""

    opened: str
    keys: set[str] = msgspec.field(default_factory=set)
    key: str = ""
    number: int = 0
    """The number of values that have begun."""


class _Writer:
    """Reads tokens in order and writes each with its indentation."""

    def __init__(self, text: str, is_whole: bool) -> None:
        self.parts: list[str] = []
        self.doubled: list[str] = []
        self.is_cut = False
        self.is_deep = False
        self._text = text
        self._is_whole = is_whole
        self._levels: list[_Level] = []
        self._wanted = "value"
        """The token expected next: value, first (a value or the end of an array), key, first key, colon, comma, end."""
        self._length = 0

    def write(self) -> None:
        at = 0
        while match := _TOKEN.match(self._text, at):
            self._take(match)
            at = match.end()
            if self._length > MAX_LENGTH:
                self.is_cut = self.is_cut or self._skip(at) < len(self._text)
                return None
        at = self._skip(at)
        if at < len(self._text):
            return self._end_within(at)
        if self._wanted != "end":
            if self._is_whole:
                raise _Wrong("unexpected end", len(self._text))
            self.is_cut = True
        return None

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return match.end() if match else at

    def _end_within(self, at: int) -> None:
        if self._is_whole or not _MAY_BE_CUT.match(self._text, at):
            raise _Wrong(f"{self._text[at : at + 20]!r} is not JSON", at)
        self._write(self._before_value() + self._text[at:][:MAX_LENGTH])
        self.is_cut = True

    def _take(self, match: re.Match[str]) -> None:
        kind = match.lastgroup or ""
        word, at = match[kind], match.start(kind)
        if kind == "mark":
            return self._take_mark(word, at)
        if self._wanted in {"key", "first key"}:
            if kind != "string":
                raise _Wrong("a key must be a string", at)
            return self._take_key(word)
        if self._wanted not in {"value", "first"}:
            raise _Wrong(f"{self._wanted} was expected", at)
        self._write(self._before_value() + word)
        self._close_value()
        return None

    def _take_mark(self, word: str, at: int) -> None:
        level = self._levels[-1] if self._levels else None
        if word in "{[" and self._wanted in {"value", "first"}:
            self._write(self._before_value() + word)
            self._levels.append(_Level(word))
            self._wanted = "first key" if word == "{" else "first"
        elif level is not None and word == _CLOSES[level.opened] and self._wanted in {"first", "first key", "comma"}:
            self._close(level, word)
        elif word == ":" and self._wanted == "colon":
            self._write(": ")
            self._wanted = "value"
        elif level is not None and word == "," and self._wanted == "comma":
            self._write(",")
            self._wanted = "key" if level.opened == "{" else "value"
        else:
            raise _Wrong(f"{word} found where {self._wanted} was expected", at)

    def _take_key(self, word: str) -> None:
        level = self._levels[-1]
        key = json.loads(word) if "\\" in word else word[1:-1]
        level.key = key
        if key in level.keys and len(self.doubled) < _MAX_DOUBLED:
            self._note_doubled()
        level.keys.add(key)
        self._write(self._line() + word)
        level.number += 1
        self._wanted = "colon"

    def _note_doubled(self) -> None:
        steps = (level.key if level.opened == "{" else str(level.number - 1) for level in self._levels)
        path = ".".join(steps)
        path = path if len(path) <= _MAX_PATH else f"…{path[-_MAX_PATH:]}"
        if path not in self.doubled:
            self.doubled.append(path)

    def _before_value(self) -> str:
        """Return the line break before an array element; a value after a key continues its line."""
        if not self._levels or self._levels[-1].opened == "{":
            return ""
        self._levels[-1].number += 1
        return self._line()

    def _close(self, level: _Level, word: str) -> None:
        self._levels.pop()
        self._write((self._line() if level.number else "") + word)
        self._close_value()

    def _close_value(self) -> None:
        self._wanted = "comma" if self._levels else "end"

    def _line(self) -> str:
        depth = len(self._levels)
        if depth > MAX_DEPTH:
            self.is_deep = True
            return ""
        return "\n" + _INDENT * depth

    def _write(self, part: str) -> None:
        self.parts.append(part)
        self._length += len(part)
