"""Parses a Ruby hash as Ruby prints it, such as ``{"id"=>1, :state=>"active", "note"=>nil}``; nothing is evaluated.

Older versions of RentProg send such a text instead of JSON. Symbols become strings, ``nil`` becomes None, and values
that Ruby prints without quotes (times, ``#<...>``) become strings.
"""

import re
from typing import Any, Final

MAX_DEPTH: Final = 64

_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"[+-]?\d{1,300}(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?(?=[\s,}\]=]|$)")
_MOMENT: Final = re.compile(
    r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4}(?: \d\d:\d\d:\d\d(?:\.\d+)?(?: [\w+:-]+){0,2})?"
)
_OPAQUE: Final = re.compile(r"#<[^<>]*>")
_BARE: Final = re.compile(r"[^,{}\[\]]+")
_SYMBOL: Final = re.compile(r":(\w+[?!]?)")
_LABEL: Final = re.compile(r"(\w+[?!]?):(?!:)")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|(.))", re.DOTALL)
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_WORDS: Final = {"nil": None, "null": None, "true": True, "false": False}
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read_hash(text: str) -> dict[str, Any] | None:
    """Return the hash in *text*, with keys as strings, or None if it is not a hash or is nested too deeply."""
    reader = _Reader(text)
    try:
        value = reader.value(0)
        reader.expect_end()
    except _NotRuby:
        return None
    return value if isinstance(value, dict) else None


class _NotRuby(Exception):
    """The text is not a valid Ruby value."""


class _Reader:
    """Parses a text once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def expect_end(self) -> None:
        """Raise unless only white space is left."""
        self._take(_SPACE)
        if self._at != len(self._text):
            raise _NotRuby

    def value(self, depth: int) -> Any:
        """Parse one value."""
        if depth > MAX_DEPTH:
            raise _NotRuby
        self._take(_SPACE)
        match self._text[self._at : self._at + 1]:
            case "{":
                return self._hash(depth)
            case "[":
                return self._list(depth)
            case '"':
                return self._string()
            case ":":
                return self._required(_SYMBOL)[1]
            case _:
                return self._scalar()

    def _hash(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        self._skip("{")
        while not self._skip("}"):
            key = self._key(depth)
            pairs[key] = self.value(depth + 1)
            self._separate("}")
        return pairs

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        self._skip("[")
        while not self._skip("]"):
            values.append(self.value(depth + 1))
            self._separate("]")
        return values

    def _key(self, depth: int) -> str:
        if label := self._take(_LABEL):
            return label[1]
        key = self.value(depth + 1)
        if isinstance(key, dict | list) or not (self._skip("=>") or self._skip(":")):
            raise _NotRuby
        return str(key)

    def _string(self) -> str:
        return _ESCAPE.sub(_unescaped, self._required(_STRING)[1])

    def _scalar(self) -> Any:
        if number := self._take(_NUMBER):
            return float(number[0]) if set(number[0]) & set(".eE") else int(number[0])
        word = (self._take(_MOMENT) or self._take(_OPAQUE) or self._required(_BARE))[0].strip()
        if not word or "=>" in word:
            raise _NotRuby
        return _WORDS.get(word, word)

    def _separate(self, closing: str) -> None:
        if not self._skip(",") and not self._peek(closing):
            raise _NotRuby

    def _peek(self, mark: str) -> bool:
        self._take(_SPACE)
        return self._text.startswith(mark, self._at)

    def _skip(self, mark: str) -> bool:
        if not self._peek(mark):
            return False
        self._at += len(mark)
        self._take(_SPACE)
        return True

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _required(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = self._take(pattern)
        if match is None:
            raise _NotRuby
        return match


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    if code:
        number = int(code, 16)
        return chr(number) if number <= 0x10FFFF else "\N{REPLACEMENT CHARACTER}"
    return _CONTROLS.get(escape[3], escape[3])
