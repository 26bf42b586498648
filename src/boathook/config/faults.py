"""Describes what is wrong with a setting in plain words, and how to write it instead."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

_SECRET: Final = re.compile(r"(?i)(^|[._])(secret|token|password|passphrase|key)s?$")
_INDEX: Final = re.compile(r"\[\d+\]")


def is_secret(key: str) -> bool:
    """Return whether the value of a dotted key is a secret, judging by the key's name."""
    return bool(_SECRET.search(_INDEX.sub("", key)))


def describe_error(
    error: ValidationError, origin_of: Callable[[str], str], table: str = "", *, hidden: Collection[str] = ()
) -> str:
    """Return one line about the first error in *table*, such as ``boathook.toml: server.bind: ...``.

    Args:
        origin_of: returns where a dotted key was set.
        hidden: the keys of *table* whose values are secrets.
    """
    first = error.errors(include_url=False)[0]
    names = [part for part in (table, *first["loc"]) if part != "" and not (isinstance(part, str) and "[" in part)]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
    origin = origin_of(key.partition("[")[0])
    # The value of an unknown key may be a secret with a misspelled name.
    is_unknown = first["type"] == "extra_forbidden"
    is_hidden = is_unknown or is_secret(key) or _has_password(first["input"]) or _is_table(first["input"])
    is_hidden = is_hidden or key == "database.url" or key.removeprefix(f"{table}.") in hidden
    message = _describe(first["type"], first["msg"], first.get("ctx", {}))
    if not key:
        return f"{origin}: {message}"
    input_text = repr(first["input"])
    suffix = "" if is_hidden or input_text in message else f" (it is {input_text})"
    fix = _fix(key, first["type"], first["input"], is_hidden=is_hidden)
    return f"{origin}: {key}: {message}{suffix}{fix}"


def _describe(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """Return what pydantic reports, in the words of the file's format."""
    if kind == "union_tag_invalid":
        return f"{str(context['discriminator']).strip(chr(39))} must be one of {context['expected_tags']}"
    if words := _WORDS.get(kind):
        return words
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    return message[:1].lower() + message[1:]


def _fix(key: str, kind: str, value: object, *, is_hidden: bool) -> str:
    """Return how to write a value of another type; empty if that is not known."""
    if kind in {"tuple_type", "list_type"} and isinstance(value, str):
        example = '"env:NAME"' if is_hidden else json.dumps(value or "...", ensure_ascii=False)
        return f"; write [{example}]"
    if is_hidden:
        return ""
    if kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        return f'; write "{value}"'
    return _number_without_unit(key, kind, value)


def _number_without_unit(key: str, kind: str, value: object) -> str:
    """Return how to write a quantity such as ``30s`` as the number that a key expects; empty if it is none."""
    quantity = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) and kind in _NUMBER_ERRORS else None
    if quantity is None:
        return ""
    number, unit = float(quantity[1].replace("_", "")), quantity[2].lower()
    own = next((own for own in _KEY_UNITS if key.endswith((f"_{own}", f".{own}"))), None)
    if own is not None and unit in _SECONDS:
        number *= _SECONDS[unit] / _KEY_UNITS[own]
    elif own is None and unit in _BYTES:
        number *= _BYTES[unit]
    elif own is not None:
        return "; write a number without a unit"
    return f"; write {number:g}" if number != int(number) else f"; write {int(number)}"


def _has_password(value: object) -> bool:
    """Return whether an invalid value may be a URL that contains a password."""
    return isinstance(value, str) and "@" in value


def _is_table(value: object) -> bool:
    """Return whether an invalid value is or contains a table, whose keys may be secrets."""
    if isinstance(value, list | tuple):
        return any(map(_is_table, value))
    return isinstance(value, Mapping | BaseModel)


_QUANTITY: Final = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_NUMBER_ERRORS: Final = frozenset({"float_parsing", "int_parsing", "int_from_float", "float_type", "int_type"})
_KEY_UNITS: Final = {"s": 1.0, "h": 3_600.0, "hours": 3_600.0, "days": 86_400.0}
"""Seconds in the unit that ends a key's name."""
_SECONDS: Final = {
    **dict.fromkeys(("ms", "msec"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}
_BYTES: Final = {
    "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "g": 1 << 30,
    "gb": 1 << 30, "gib": 1 << 30,
}  # fmt: skip

_WORDS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is not a setting",
    "string_type": "must be text in quotes",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float", "int_parsing_size"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "mapping_type", "model_attributes_type"), "must be a table"),
}
"""By the type of an error of pydantic, its message where pydantic's own speaks of Python."""


def toml_fix(path: Path, fault: str, text: str) -> str:
    """Return the likely fix of a fault that the parser reports; empty if none is likely."""
    place = _TOML_PLACE.search(fault)
    lines = text.splitlines()
    line = lines[int(place[1]) - 1] if place is not None and int(place[1]) <= len(lines) else ""
    if path.suffix in {".yaml", ".yml", ".json"} or re.match(r"\s*[{]|---|[A-Za-z_]\w*:(\s|$)", line):
        return '; settings are TOML: write a section such as [server], below it bind = "127.0.0.1:8080"'
    value = line.partition("=")[2].strip()
    if "Invalid value" in fault:
        return _value_fix(value)
    if "Invalid statement" in fault and line.lstrip().startswith(("//", "--", ";")):
        return "; a comment begins with #"
    return next((f"; {fix}" for part, fix in _TOML_FIXES.items() if part in fault), "")


def _value_fix(value: str) -> str:
    """Return how to write a value that is none in TOML."""
    if value[:1] in _CURLY and value:
        return f'; write straight quotes, such as "{value.strip(_CURLY)}"'
    if value.lower() in {"true", "false", "yes", "no", "on", "off"}:
        return f"; write {'true' if value.lower() in {'true', 'yes', 'on'} else 'false'}"
    if value.lower() in {"none", "null", "nil", ""}:
        return "; write a value, or remove the line"
    return '; write text in quotes, such as app = "shop:hook"'


_CURLY: Final = "\u201c\u201d\u2018\u2019\u00ab\u00bb\u201e"
_TOML_FIXES: Final[Mapping[str, str]] = {
    "Illegal character": "close the quotes on that line",
    "Unterminated string": "close the quotes on that line",
    "Cannot declare": "it is written twice: merge the two",
    "Cannot overwrite": "it is written twice: merge the two",
    "Invalid hex value": r"write \\ for each backslash, or the text in single quotes",
    "Unescaped": r"write \\ for each backslash, or the text in single quotes",
    "Unclosed array": "close the list before that line with ]",
    "at the end of a table declaration": "close the section's name with ], such as [server]",
    "Invalid statement": "write KEY = VALUE below a section such as [server]",
    "Expected '=' after a key": "write KEY = VALUE",
    "Expected newline": "write one KEY = VALUE on each line",
}
"""By a part of the parser's message: the fix."""
_TOML_PLACE: Final = re.compile(r"at line (\d+)")
