"""Parses JSON from untrusted bytes, returning `UNREADABLE` instead of raising, and encodes values of handlers.

Bodies are stored unchanged, and the parsed value is only a view. What RFC 8259 does not allow, such as ``NaN``, is
unreadable. If a key is repeated, the last one counts, as in Python's own parser.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

import msgspec

MAX_DEPTH: Final = 128
"""Objects and arrays nested deeper than this are unreadable."""
MAX_DIGITS: Final = 4_300
"""Integers with more digits are read as text: Python refuses to convert them because that takes quadratic time."""

MAX_KEY: Final = 300
_FLOAT_DIGITS: Final = 15
"""Every decimal number of as many digits is equal to a float's shortest text."""
PIECE: Final = 131_072

_MAX_SHOWN: Final = 40
_SURROGATES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""An escape; its group is an unpaired surrogate."""
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_REST_OF_ESCAPE: Final = re.compile(rb"\\*[^\\]?")
_STRING: Final = re.compile(rb'"[^"]*"')
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


class Unreadable:
    """The type of `UNREADABLE`, which `parse` returns for bytes that are not JSON."""

    def __repr__(self) -> str:
        return "UNREADABLE"


UNREADABLE: Final = Unreadable()


def is_too_deep(body: bytes) -> bool:
    """Return whether *body*, if it is JSON, nests deeper than `MAX_DEPTH`."""
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return False
    depth, is_in_string = 0, False
    # In pieces, so that a thread which checks a large body lets others run between them.
    for piece in _pieces(body):
        unescaped = _ESCAPE.sub(b"", piece) if b"\\" in piece else piece
        opened = b'"' + unescaped if is_in_string else unescaped
        is_in_string = opened.count(b'"') % 2 == 1
        # Removing two adjacent quotes does not change which other characters are inside strings, and it is cheap.
        quoted = opened.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
        structure = _STRING.sub(b"", quoted + b'"' if is_in_string else quoted)
        for step in memoryview(structure.translate(_STEPS)).cast("b"):
            depth += step
            if depth > MAX_DEPTH:
                return True
    return False


def _pieces(body: bytes) -> Iterator[bytes]:
    """Yield *body* in pieces that separate no backslash from the character it escapes."""
    start = 0
    while start < len(body):
        end = start + PIECE
        if body[end - 1 : end] == b"\\" and (escaped := _REST_OF_ESCAPE.match(body, end)) is not None:
            end = escaped.end()
        yield body[start:end]
        start = end


def parse(body: bytes) -> Any:
    """Parse *body* as JSON; return `UNREADABLE` if it is not JSON or nests too deep."""
    return _parse(body, None)


def parse_with_exact(body: bytes) -> tuple[Any, Any]:
    """Return what `parse` returns, and the same for comparisons: with its text for a number that a float cannot hold.

    As floats, ``1e309`` and ``1e310`` are equal, and so are two amounts that differ in their twentieth digit.
    """
    is_exact = True

    def read_float(digits: str) -> float:
        nonlocal is_exact
        number = float(digits)
        is_exact = is_exact and _is_exact(digits, number)
        return number

    document = _parse(body, read_float)
    return document, document if is_exact else _parse(body, _read_exactly)


def parse_exactly(body: bytes) -> Any:
    """Parse *body* for comparisons; see `parse_with_exact`."""
    return _parse(body, _read_exactly)


def _parse(body: bytes, read_float: Callable[[str], Any] | None) -> Any:
    if is_too_deep(body):
        return UNREADABLE
    try:
        # UTF-8 as RFC 8259 requires. Python would guess the encoding, and the check above does not count UTF-16.
        text = body.decode("utf-8-sig", "surrogatepass")
        return json.loads(text, parse_constant=_refuse, parse_int=_read_integer, parse_float=read_float)
    except (ValueError, RecursionError):
        return UNREADABLE


def _read_exactly(digits: str) -> float | str:
    number = float(digits)
    return number if _is_exact(digits, number) else digits


def _is_exact(digits: str, number: float) -> bool:
    """Return whether a float has the value of the text that it was read from."""
    if len(digits) <= _FLOAT_DIGITS and "e" not in digits and "E" not in digits:
        return True
    try:
        return Decimal(digits) == Decimal(repr(number))
    except ArithmeticError:
        return False


def encode(value: Any) -> bytes:
    """Encode a value of a handler or publisher as JSON.

    Raises:
        TypeError: a value has a type that JSON cannot hold.
        ValueError: a number is infinite or NaN, which would be written as null; the message names its path.
    """
    body = msgspec.json.encode(value)
    if b"null" in body:
        # The hook is called for `msgspec.Raw` alone: whatever else is unsupported failed above.
        _check_finite(msgspec.to_builtins(value, enc_hook=lambda _raw: None))
    return body


def _check_finite(value: Any) -> None:
    parts: list[tuple[str, Any]] = [("", value)]
    while parts:
        path, part = parts.pop()
        match part:
            case float() if not math.isfinite(part):
                raise ValueError(f"{path.removeprefix('.') or 'it'} is {part}, a number that JSON does not have")
            case dict():
                parts += [(f"{path}.{name}", inner) for name, inner in part.items()]
            case list() | tuple():
                parts += [(f"{path}.{index}", inner) for index, inner in enumerate(part)]


def describe_fault(body: bytes) -> str:
    """Return why a body that is to be sent is rejected, although `parse` may read it."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 at byte {error.start}"
    if is_too_deep(body):
        return f"it nests deeper than {MAX_DEPTH} levels"
    numbers: list[str] = []

    def read_float(digits: str) -> float:
        if math.isinf(number := float(digits)):
            numbers.append(digits)
        return number

    def read_integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            numbers.append(digits)
        return 0

    try:
        json.loads(text, parse_constant=_refuse, parse_float=read_float, parse_int=read_integer)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    surrogate = next(filter(None, (escape[1] for escape in _SURROGATES.finditer(body))), None)
    if surrogate is not None:
        return f"the escape \\{surrogate.decode()} is half of a surrogate pair, so it is not a character"
    if numbers:
        number_text = numbers[0] if len(numbers[0]) <= _MAX_SHOWN else f"{numbers[0][:_MAX_SHOWN]}…"
        return f"the number {number_text} is out of the range that receivers can read; send it as a string"
    return "it is not JSON that every receiver can read"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _read_integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_DIGITS else digits


def split_path(path: str) -> tuple[str, ...]:
    """Split a dotted path such as ``data.object.id``; a leading ``$.`` is allowed.

    Raises:
        ValueError: a part is empty.
    """
    parts = tuple(path.removeprefix("$.").split("."))
    if not all(parts):
        raise ValueError(f"{path!r} is not a dotted path such as data.object.id")
    return parts


def get_path(document: Any, parts: Sequence[str], absent: Any = None) -> Any:
    """Return the value at a path, or *absent*; a number is an index into an array."""
    for part in parts:
        if isinstance(document, dict):
            document = document.get(part, absent)
        elif isinstance(document, list) and part.isascii() and part.isdigit() and len(part) < 10:
            index = int(part)
            document = document[index] if index < len(document) else absent
        else:
            return absent
    return document


def without(document: Any, parts: Sequence[str]) -> Any:
    """Return a document without the value at a path; ``*`` stands for each element of an array.

    Copies what it changes, and leaves the given document as it is.
    """
    name, *rest = parts
    if isinstance(document, dict) and name in document:
        if rest:
            return {**document, name: without(document[name], rest)}
        return {key: value for key, value in document.items() if key != name}
    if isinstance(document, list):
        is_named = [name in {"*", str(index)} for index in range(len(document))]
        if rest:
            return [
                without(element, rest) if has_name else element
                for element, has_name in zip(document, is_named, strict=True)
            ]
        return [element for element, has_name in zip(document, is_named, strict=True) if not has_name]
    return document


def scalar_text(value: Any) -> str | None:
    """Return a string, number or boolean as text; `None` for null, objects and arrays."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return None


def short_key(text: str) -> str:
    """Return *text* if it is a valid key, else ``sha256:`` and its hash.

    A key has at most `MAX_KEY` characters, all printable: PostgreSQL stores neither NUL nor lone surrogates, and
    control characters break log lines.
    """
    if len(text) <= MAX_KEY and text.isprintable():
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
