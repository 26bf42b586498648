"""Finds a value in a text that holds an object: as JSON, or as Ruby prints a hash (``{"id"=>1, :state=>"new"}``).

Some senders put the object that an event is about into their JSON as such a text.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from boathook.domain.json_document import UNREADABLE, get_path, parse, scalar_text

# A string without an end takes the rest, so that no text is read more than once from each of its quotes on.
_TOKEN: Final = re.compile(
    r'"(?P<string>(?:[^"\\]|\\.)*)(?:"|\\?\Z)|(?P<open>[{\[])|(?P<close>[}\]])|(?P<arrow>=>)|(?P<comma>,)'
    r"|(?P<opaque>#<[^<>]*>)"
    r"|(?P<label>\w+):(?!:)|:?(?P<word>[^\s\"{}\[\],=]+)",
    re.DOTALL,
)


def find_scalar(document: Any, parts: Sequence[str]) -> str | None:
    """Return the string or number at a path as text; a path may go on inside a text that holds an object."""
    for position in range(len(parts) + 1):
        value = get_path(document, parts[:position])
        if isinstance(value, str) and position < len(parts):
            return _find_in_text(value, tuple(parts[position:]))
    return scalar_text(get_path(document, parts))


def _find_in_text(text: str, parts: tuple[str, ...]) -> str | None:
    if not text.lstrip().startswith("{"):
        return None
    document = parse(text.encode("utf-8", "surrogatepass"))
    if document is not UNREADABLE:
        return scalar_text(get_path(document, parts))
    return _find_in_hash(text, parts)


def _find_in_hash(text: str, parts: tuple[str, ...]) -> str | None:
    """Return the value at a path of a Ruby hash, whatever the other values are; arrays have no path."""
    keys: list[str | None] = []
    last: str | None = None
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "open":
                keys.append(None)
                last = None
            case "arrow" if keys:
                keys[-1], last = last, None
            case "label" if keys:
                keys[-1], last = token["label"], None
            case "comma" | "close":
                if last is not None and len(keys) == len(parts) and tuple(keys) == parts:
                    return None if last == "nil" else last
                if keys and token.lastgroup == "close":
                    keys.pop()
                elif keys:
                    keys[-1] = None
                last = None
            case "string" | "opaque" | "word":
                last = token[token.lastgroup]
    return None
