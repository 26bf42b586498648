"""Extracts the few fields that are needed of a verified request: event id, event type, handshake challenge.

On the hot path, a typed msgspec decoder extracts just those values from the body in a third of a microsecond. If it
fails (on another type, a lone surrogate, a huge number), the slower general parser reads the body again.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

import msgspec

from boathook.domain.json_document import UNREADABLE, get_path, is_too_deep, parse, split_path
from boathook.domain.verification import Request
from boathook.providers.request_reader import (
    Form,
    Header,
    Json,
    Query,
    Selector,
    read_form,
    read_form_field,
    read_pairs,
    single_value,
)

ExtractedFields = Mapping[str, Any]
FieldReader = Callable[[Request, ExtractedFields], Any]
"""Returns the value of one selector from a request and its already extracted JSON values; None if there is none."""

_FAST_DECODE_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

_Tree = dict[str, "_Tree | None"]


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
    if tree is None:
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
            return lambda request, _picked: read_form_field(read_form(request.body), selector)


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
