"""What an event is called: the key that tells its copies, and its type."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from boathook.domain.errors import ConfigError
from boathook.domain.json_document import is_too_deep, parse, scalar_text, short_key, split_path
from boathook.domain.verification import UNKNOWN_TYPE, Request, SourceSpec
from boathook.providers.extractor import ExtractedFields, make_name_reader
from boathook.providers.recipe import EventType, Recipe
from boathook.providers.request_reader import RequestReader
from boathook.providers.selectors import Json, Selector

MAX_TYPE: Final = 200
_OWN_PREFIXES: Final = ("sha256:", "fields:", "item:", "moment:", "id:", "id-sha256:", "id-fields:")
"""An id that starts like one of boathook's own keys is set apart, so that nobody can choose another event's key."""
_TOP_LEVEL_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class DedupKeyExtractor:
    """Reads what the requests of one source are called; compiled once.

    Raises:
        ConfigError: one of the source's ``dedup_fields`` is no path.
    """

    def __init__(self, recipe: Recipe, spec: SourceSpec, settings: dict[str, str]) -> None:
        self._recipe = recipe
        self._settings = settings
        self._id_of = make_name_reader(recipe.id.selectors, whole=True, form=recipe.id.form)
        self._type_of = make_name_reader(recipe.type.selectors, whole=False)
        self._fields = tuple(_split(spec, path) for path in spec.dedup_fields)
        self.paths = (*json_paths(recipe.id.selectors), *json_paths(recipe.type.selectors), *self._fields)
        """JSON paths that must be picked."""

    def from_request(self, request: Request, extracted: ExtractedFields) -> str | None:
        """Return the dedup key by what the request itself is named; None where it has no name."""
        identifier = self._id_of(request, extracted)
        if identifier is not None:
            return make_dedup_key(identifier)
        values = [scalar_text(extracted.get(path)) for path in self._fields]
        if any(value is not None for value in values):
            return make_dedup_key(json.dumps(values), "fields:")
        return None

    def made(self, body: bytes, type: str, now: float) -> str:
        """Return the dedup key of a request without a name, received at *now*, in seconds since 1970."""
        if self._recipe.id.is_repeatable:
            # The same bytes will tell of something else next time: only the moment tells them apart.
            return f"moment:{now!r}:{hashlib.sha256(body).hexdigest()}"
        return "sha256:" + hashlib.sha256(self.replayed(body, type)).hexdigest()

    def replayed(self, body: bytes, type: str) -> bytes:
        """Return what a request of this body must not be taken for twice."""
        if not self._recipe.type.is_part_of_replay_key:
            return body
        return b"%s\x00%s" % (type.encode("utf-8", "surrogatepass"), body)

    def type(self, request: Request, extracted: ExtractedFields) -> str:
        """Return the request's type."""
        name = self._type_of(request, extracted)
        type = self._recipe.type
        if name is None and type.first_key_except is not None:
            name = first_key_not_in(type.first_key_except, _keys(request.body))
        if name is None and type.read is not None:
            name = _read(type, RequestReader(request, self._settings))
        return printable_type(name)


def make_dedup_key(text: str, prefix: str = "") -> str:
    """Return the dedup key of a name, set apart from boathook's own keys; *prefix* says what the name is made of."""
    key = short_key(text)
    if key is not text:
        return f"id-{prefix}{key}"
    if not prefix and text.startswith(_OWN_PREFIXES):
        return "id:" + text
    return prefix + text


def printable_type(name: str | None) -> str:
    """Return an event's type as it may be stored and shown."""
    if name is None:
        return UNKNOWN_TYPE
    if name.isprintable():
        return name[:MAX_TYPE]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:MAX_TYPE])


def first_key_not_in(besides: tuple[str, ...], keys: Iterable[str]) -> str | None:
    """Return the first key that is none of *besides*, nor empty."""
    return next((key for key in keys if key and key not in besides), None)


def json_paths(selectors: Iterable[Selector | tuple[Selector, ...]]) -> Iterator[str]:
    """Yield the JSON paths among places."""
    for selector in selectors:
        for one in selector if isinstance(selector, tuple) else (selector,):
            if isinstance(one, Json):
                yield one.path


def _keys(body: bytes) -> Iterable[str]:
    if not is_too_deep(body):
        try:
            return _TOP_LEVEL_DECODER.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass
    document: Any = parse(body)
    return document if isinstance(document, dict) else ()


def _read(type: EventType, reader: RequestReader) -> str | None:
    try:
        return type.read(reader) if type.read is not None else None
    except Exception:  # noqa: BLE001 - whatever a stranger sent, it is at worst an event without a type
        return None


def _split(spec: SourceSpec, path: str) -> str:
    try:
        return ".".join(split_path(path))
    except ValueError as error:
        raise ConfigError(f"sources.{spec.name}.dedup_fields: {error}") from None
