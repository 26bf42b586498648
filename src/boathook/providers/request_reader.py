"""Selects and reads parts of a request: headers, query, form and JSON fields; no request makes it raise.

On the hot path only a few fields are needed of a verified request: event id, event type, handshake challenge. A typed
msgspec decoder, compiled once for their selectors, extracts just those values from the body in a third of a
microsecond. If it fails (on another type, a lone surrogate, a huge number), the slower general parser reads the body
again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from boathook.domain.json_document import UNREADABLE, get_path, is_too_deep, parse, scalar_text, split_path
from boathook.domain.verification import Request

_FAST_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
ExtractedFields = Mapping[str, Any]
FieldReader = Callable[[Request, ExtractedFields], Any]
"""Returns the value of one selector from a request and its already extracted JSON values; None if there is none."""
_UNFIT: Final = re.compile(r'[\\"\x00-\x1f]')
"""Characters that msgspec does not allow in a field's name."""
_Tree = dict[str, "_Tree | None"]


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


def form_of(request: Request) -> list[tuple[str, str]]:
    """Return a request's form, in order: its body, or the query of a GET request without one; empty if it is JSON."""
    return read_pairs(request.query) if request.method == "GET" and not request.body else read_form(request.body)


def decode_escapes(url: str, characters: str) -> str:
    """Return *url* with the percent escapes of these ASCII characters decoded, and of no others."""
    escapes = "|".join(f"{ord(char):02x}" for char in characters)
    return re.sub(f"%({escapes})", lambda escape: chr(int(escape[1], 16)), url, flags=re.IGNORECASE)


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
        """As `form_of`."""
        return form_of(self.request)

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


class FieldExtractor:
    """Extracts the values at fixed paths from JSON bodies."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = tuple(dict.fromkeys(paths))
        self._parts = tuple(split_path(path) for path in self.paths)
        self._fast = _compile(self._parts)

    def extract(self, body: bytes) -> ExtractedFields | None:
        """Return the value at each path, None where there is nothing; return None if *body* is not JSON."""
        if self._fast is not None:
            if is_too_deep(body):
                return None
            try:
                return dict(zip(self.paths, self._fast(body), strict=True))
            except _FAST_DECODE_ERRORS:
                pass
        document = parse(body)
        if document is UNREADABLE:
            return None
        return {path: get_path(document, parts) for path, parts in zip(self.paths, self._parts, strict=True)}


def _compile(paths: tuple[tuple[str, ...], ...]) -> Callable[[bytes], tuple[Any, ...]] | None:
    tree = _build_tree(paths)
    if tree is None or any(_UNFIT.search(part) for parts in paths for part in parts):
        return None
    extract = attrgetter(*(_attribute(tree, parts) for parts in paths))
    decode = msgspec.json.Decoder(_struct(tree)).decode
    if len(paths) == 1:
        return lambda body: (extract(decode(body)),)
    return lambda body: extract(decode(body))


def _build_tree(paths: tuple[tuple[str, ...], ...]) -> _Tree | None:
    """Return the paths as one tree; None if there are no paths, or one path is a prefix of another."""
    tree: _Tree = {}
    for *parents, last in paths:
        node = tree
        for part in parents:
            below = node.setdefault(part, {})
            if below is None:
                return None
            node = below
        if node.setdefault(last, None) is not None:
            return None
    return tree or None


def _struct(tree: _Tree) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for position, below in enumerate(tree.values()):
        if below is None:
            fields.append((f"f{position}", str | int | None, None))
        else:
            inner = _struct(below)
            fields.append((f"f{position}", inner, inner()))
    names = {f"f{position}": name for position, name in enumerate(tree)}
    return msgspec.defstruct("ExtractedFields", fields, rename=names, frozen=True, gc=False)


def _attribute(tree: _Tree, parts: tuple[str, ...]) -> str:
    names: list[str] = []
    node: _Tree | None = tree
    for part in parts:
        assert node is not None
        names.append(f"f{list(node).index(part)}")
        node = node[part]
    return ".".join(names)


def make_field_reader(selector: Selector) -> FieldReader:
    """Return the function that reads one selector."""
    match selector:
        case Header(name=name):
            return lambda request, _picked: request.headers.get(name)
        case Json(path=path):
            return lambda _request, extracted: extracted.get(path)
        case Query(name=name):
            return lambda request, _picked: single_value(read_pairs(request.query), name)
        case Form():
            return lambda request, _picked: read_form_field(form_of(request), selector)


def make_name_reader(
    selectors: Iterable[Selector | tuple[Selector, ...]], *, whole: bool, form: str = ""
) -> Callable[[Request, ExtractedFields], str | None]:
    """Return a function that returns the first name found at *selectors*.

    A tuple's parts are formatted with *form*, or joined by dots. With *whole*, all parts are required; otherwise only
    the first. Only non-empty strings and integers are names: with booleans or rounded numbers, different events would
    look the same.
    """
    groups = [
        tuple(map(make_field_reader, selector)) if isinstance(selector, tuple) else (make_field_reader(selector),)
        for selector in selectors
    ]
    beginning = form.partition("{")[0]

    def read(request: Request, extracted: ExtractedFields) -> str | None:
        for readers in groups:
            texts = [_name(reader(request, extracted)) for reader in readers]
            if len(texts) == 1:
                if texts[0]:
                    return f"id:{texts[0]}" if beginning and texts[0].startswith(beginning) else texts[0]
            elif all(texts) if whole else texts[0]:
                return form.format(*texts) if form else ".".join(text for text in texts if text)
        return None

    return read


def _name(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None
