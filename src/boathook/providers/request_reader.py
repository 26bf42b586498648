"""Selects and reads parts of a request: headers, query, form and JSON fields; no request makes it raise."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from boathook.domain.json_document import UNREADABLE, get_path, parse, scalar_text, split_path
from boathook.domain.verification import Request


class Header(msgspec.Struct, frozen=True):
    """A header, by its lower-case name."""

    name: str


class Query(msgspec.Struct, frozen=True):
    """A parameter of the URL's query."""

    name: str


class Form(msgspec.Struct, frozen=True):
    """A field of a form-urlencoded body."""

    name: str
    path: str = ""
    """Dotted path into the JSON document in the field; if empty, the field itself."""


class Json(msgspec.Struct, frozen=True):
    """A value in a JSON body, by its dotted path; a number is an array index, ``*`` stands for each element."""

    path: str


class BasicPassword(msgspec.Struct, frozen=True):
    """The password of HTTP Basic authentication (RFC 7617), for one user name."""

    username: str


Selector = Header | Query | Form | Json


_MAX_FIELDS = 1_000
_JSON_OPENS = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*[{\[]").match


def read_pairs(text: str) -> list[tuple[str, str]]:
    """Parse a query or a form into pairs, in order; return no pairs if there are too many."""
    return _read_pairs(text.encode("utf-8", "surrogatepass"))


def read_form(body: bytes) -> list[tuple[str, str]]:
    """Parse a body into a form's pairs, in order; return no pairs if it is JSON."""
    # Only the body decides whether it is a form: Content-Type is not signed, so it must not change an event's id.
    return [] if _JSON_OPENS(body) else _read_pairs(body)


def _read_pairs(raw: bytes) -> list[tuple[str, str]]:
    if raw.count(b"&") >= _MAX_FIELDS:
        return []
    parts = (part.partition(b"=") for part in raw.replace(b"+", b" ").split(b"&") if part)
    return [(_unescape(name), _unescape(value)) for name, _, value in parts]


def _unescape(raw: bytes) -> str:
    # Decode percent escapes to bytes first: the standard library's text decoder is slow on mixed malicious input.
    return (unquote_to_bytes(raw) if b"%" in raw else raw).decode("utf-8", "replace")


def single_value(pairs: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return the value of a name that occurs once."""
    # Programs differ in which value of a repeated name they use, so none is used here.
    values = [value for key, value in pairs if key == name]
    return values[0] if len(values) == 1 else None


class RequestReader(msgspec.Struct, frozen=True, dict=True):
    """A request, its parsed views, created when first used, and the settings of its source."""

    request: Request
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)

    @cached_property
    def document(self) -> Any:
        """The body as JSON; `UNREADABLE` if it is not JSON."""
        return parse(self.request.body)

    @cached_property
    def form(self) -> list[tuple[str, str]]:
        """The body as a form, in order; empty if it is JSON."""
        return read_form(self.request.body)

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """The query, in order."""
        return read_pairs(self.request.query)

    def value(self, selector: Selector) -> Any:
        """Return the value of a selector, or None if it is missing, or repeated in a query or form."""
        match selector:
            case Header(name=name):
                return self.request.headers.get(name)
            case Query(name=name):
                return single_value(self.query, name)
            case Form() as selector:
                return read_form_field(self.form, selector)
            case Json(path=path):
                return None if self.document is UNREADABLE else get_path(self.document, split_path(path))

    def text(self, selector: Selector) -> str | None:
        """Return the string, number or boolean of a selector as text, or None if there is none."""
        return scalar_text(self.value(selector))


def read_form_field(pairs: Sequence[tuple[str, str]], selector: Form) -> Any:
    """Return the value of a selector in a form."""
    text = single_value(pairs, selector.name) if pairs else None
    if text is None or not selector.path:
        return text
    document = parse(text.encode("utf-8", "surrogatepass"))
    return None if document is UNREADABLE else get_path(document, split_path(selector.path))


def expand_path(document: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values at a path in which ``*`` means each element, with their concrete paths, in order.

    If the path leads to nothing, or to an empty array, one None is yielded, so that checks on all elements see that a
    value is missing.
    """
    return _expand(document, "", split_path(path))


def _expand(document: Any, base: str, parts: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if "*" not in parts:
        yield _join(base, parts), get_path(document, parts)
        return
    star = parts.index("*")
    elements = get_path(document, parts[:star])
    base = _join(base, parts[:star])
    if not isinstance(elements, list) or not elements:
        yield _join(base, parts[star:]), None
        return
    for position, element in enumerate(elements):
        yield from _expand(element, _join(base, (str(position),)), parts[star + 1 :])


def _join(base: str, parts: Sequence[str]) -> str:
    return ".".join((base, *parts) if base else parts)
