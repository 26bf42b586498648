"""Extracts the dedup key and type of a request, and of each item of a batch.

Keys of items have their own prefix, so that they never collide with the key of a whole request.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from boathook.domain.embedded_text import find_scalar
from boathook.domain.errors import ConfigError
from boathook.domain.json_document import (
    UNREADABLE,
    get_path,
    is_too_deep,
    parse,
    parse_exactly,
    parse_with_exact,
    scalar_text,
    short_key,
    split_path,
    without,
)
from boathook.domain.verification import UNKNOWN_TYPE, BatchItem, Reason, Rejected, Request, SourceSpec
from boathook.providers.recipe import BatchItems, EventType, Recipe
from boathook.providers.request_reader import (
    ExtractedFields,
    Json,
    RequestReader,
    Selector,
    expand_path,
    make_name_reader,
)

MAX_TYPE: Final = 200
_OWN_PREFIXES: Final = ("sha256:", "fields:", "item:", "moment:", "id:", "id-sha256:", "id-fields:")
"""Prefixes of boathook's own keys; an id that starts with one gets a prefix, so that no sender can choose another
event's key."""
_TOP_LEVEL_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class DedupKeyExtractor:
    """Extracts the dedup key and type of one source's requests; compiled once.

    Raises:
        ConfigError: an entry of the source's ``dedup_fields``, or its ``dedup_object``, is not a valid path.
    """

    def __init__(self, recipe: Recipe, spec: SourceSpec, settings: dict[str, str]) -> None:
        self._recipe = recipe
        self._settings = settings
        is_key = recipe.id.is_kept_in_retries is not False
        self._id_of = make_name_reader(recipe.id.selectors if is_key else (), whole=True, form=recipe.id.form)
        self._type_of = make_name_reader(recipe.type.selectors, whole=False)
        self._fields = tuple(_split(spec, "dedup_fields", path) for path in spec.dedup_fields)
        self._headers = spec.dedup_headers
        self._object = split_path(_split(spec, "dedup_object", spec.dedup_object)) if spec.dedup_object else ()
        self._volatile = tuple(map(split_path, recipe.volatile))
        self.paths = (*json_paths(recipe.id.selectors), *json_paths(recipe.type.selectors), *self._fields)
        """JSON paths that must be extracted from the body."""

    def from_request(self, request: Request, extracted: ExtractedFields) -> str | None:
        """Return the dedup key from the request's id or configured fields, or None if it has neither."""
        identifier = self._id_of(request, extracted)
        if identifier is not None:
            return make_dedup_key(identifier)
        fields = [extracted.get(path) for path in self._fields]
        if any(isinstance(field, float) for field in fields):
            # Numbers that are equal only as floats are different keys.
            document = parse_exactly(request.body)
            fields = [get_path(document, split_path(path)) for path in self._fields]
        values = [scalar_text(field) for field in fields]
        if any(value is not None for value in values):
            return make_dedup_key(json.dumps(values), "fields:")
        return None

    def stable_content(self, body: bytes) -> bytes:
        """Return a body without its volatile parts; all of it if it has none, or is not JSON."""
        document = parse_exactly(body) if self._volatile else UNREADABLE
        return body if document is UNREADABLE else _canonical(document, self._volatile)

    def object_of(self, request: Request) -> str | None:
        """Return the object that a request is about, or None if it names none."""
        if not self._object:
            return None
        document = parse(request.body)
        return None if document is UNREADABLE else find_scalar(document, self._object)

    def made(self, request: Request, content: bytes, type: str, now: float) -> str:
        """Return the dedup key of a request without an id, received at *now*, in seconds since 1970."""
        if self._recipe.id.is_repeatable:
            # The same bytes can mean a different event next time; only the time of receipt distinguishes them.
            return f"moment:{now!r}:{hashlib.sha256(content).hexdigest()}"
        pairs = [(name, request.headers[name]) for name in self._headers if name in request.headers]
        told_apart = json.dumps(pairs).encode() + content if pairs else content
        return "sha256:" + hashlib.sha256(_with_type(type, told_apart)).hexdigest()

    def replayed(self, body: bytes, type: str) -> bytes:
        """Return the bytes by which a repeated body is recognized."""
        return _with_type(type, body) if self._recipe.type.is_part_of_replay_key else body

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
    """Return the dedup key for an id, kept apart from boathook's own keys; *prefix* says what the id is made of."""
    key = short_key(text)
    if key is not text:
        return f"id-{prefix}{key}"
    if not prefix and text.startswith(_OWN_PREFIXES):
        return "id:" + text
    return prefix + text


def printable_type(name: str | None) -> str:
    """Return an event type in the form that is stored and shown."""
    if name is None:
        return UNKNOWN_TYPE
    if name.isprintable():
        return name[:MAX_TYPE]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:MAX_TYPE])


def first_key_not_in(besides: tuple[str, ...], keys: Iterable[str]) -> str | None:
    """Return the first non-empty key that is not in *besides*."""
    return next((key for key in keys if key and key not in besides), None)


def json_paths(selectors: Iterable[Selector | tuple[Selector, ...]]) -> Iterator[str]:
    """Yield the JSON paths among the selectors."""
    for selector in selectors:
        for selector_part in selector if isinstance(selector, tuple) else (selector,):
            if isinstance(selector_part, Json):
                yield selector_part.path


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
    except Exception:  # noqa: BLE001 - whatever the request contains, at worst the event has no type
        return None


def _split(spec: SourceSpec, key: str, path: str) -> str:
    try:
        return ".".join(split_path(path))
    except ValueError as error:
        raise ConfigError(f"sources.{spec.name}.{key}: {error}") from None


MAX_ITEMS: Final = 10_000
"""Maximum items of one request; ten times the largest batch of any known sender."""
KEY_PREFIX: Final = "item:"
BATCH_TYPE: Final = "batch"
"""The type of a request whose items have several types."""


class _Found(NamedTuple):
    rule: "_Rule"
    path: str
    value: Any


class _Rule(NamedTuple):
    """One item path of a recipe."""

    path: str
    volatile: tuple[tuple[str, ...], ...]
    """Paths inside an item that may differ between two copies of it."""
    holder: int | None
    """Number of leading path parts that identify the object whose array holds the item."""
    around: tuple[str, ...]
    """Keys of that object that count as part of the item's content."""


class BatchSplitter:
    """Splits one source's requests into items; compiled once."""

    def __init__(self, recipe: Recipe, items: BatchItems) -> None:
        self._items = items
        self._rules = tuple(_rule(path, recipe.volatile, items.around.get(path, ())) for path in items.paths)
        self._fields = {path: split_path(path) for path in json_paths((*items.id.selectors, *items.type.selectors))}
        self._id_of = make_name_reader(items.id.selectors, whole=True)
        self._type_of = make_name_reader(items.type.selectors, whole=False)

    def items(self, request: Request, type: str, now: float) -> tuple[BatchItem, ...] | Rejected:
        """Return the items of a request; identical items count once.

        Items with the same key but different content are all returned; the caller handles the conflict.

        Args:
            request: the request as received, with a decoded body.
            type: the request's own type, for items that have none.
            now: when it was received, in seconds since 1970.
        """
        document, exact = parse_with_exact(request.body)
        matches = list(islice(self._find(exact), MAX_ITEMS + 1))
        if len(matches) > MAX_ITEMS:
            return _too_many()
        items: dict[tuple[str, bytes], BatchItem] = {}
        for match in matches:
            value = match.value if exact is document else get_path(document, match.path.split("."))
            item = self._item(request, exact, match, value, type, now)
            items.setdefault((item.dedup_key, item.digest), item)
        return tuple(items.values())

    def _find(self, document: Any) -> Iterator[_Found]:
        for rule in self._rules:
            for path, value in expand_path(document, rule.path):
                if value is not None:
                    yield _Found(rule, path, value)

    def _item(self, request: Request, exact: Any, match: _Found, value: Any, type: str, now: float) -> BatchItem:
        """Return an item with the parsed *value*; its content is that of the document with *exact* numbers."""
        content = _canonical(match.value, match.rule.volatile)
        extracted = {path: get_path(value, parts) for path, parts in self._fields.items()}
        name = self._id_of(request, extracted)
        type = self._type_in(request, extracted, value) or type
        key = self._made(exact, match, type, content, now) if name is None else make_dedup_key(name)
        return BatchItem(
            path=match.path,
            type=type,
            dedup_key=KEY_PREFIX + key,
            digest=hashlib.sha256(content).digest(),
            document=value,
        )

    def _type_in(self, request: Request, extracted: ExtractedFields, value: Any) -> str | None:
        name = self._type_of(request, extracted)
        besides = self._items.type.first_key_except
        if name is None and besides is not None and isinstance(value, dict):
            name = first_key_not_in(besides, value)
        return None if name is None else printable_type(name)

    def _made(self, document: Any, match: _Found, type: str, content: bytes, now: float) -> str:
        """Return the key of an item without an id."""
        if match.rule.around and match.rule.holder is not None:
            holder = get_path(document, match.path.split(".")[: match.rule.holder])
            if isinstance(holder, dict):
                content += _canonical([holder.get(key) for key in match.rule.around], ())
        digest = f"sha256:{hashlib.sha256(_with_type(type, content)).hexdigest()}"
        # If the same content can mean a different event next time, only path and time distinguish items.
        return f"moment:{now!r}:{match.path}:{digest}" if self._items.id.is_repeatable else digest


def batch_type(items: tuple[BatchItem, ...]) -> str:
    """Return the type of a request with *items*: their common type, or `BATCH_TYPE`."""
    types = {item.type for item in items}
    return types.pop() if len(types) == 1 else BATCH_TYPE


def _rule(path: str, volatile: tuple[str, ...], around: tuple[str, ...]) -> _Rule:
    parts = split_path(path)
    stars = [position for position, part in enumerate(parts) if part == "*"]
    inside = tuple(
        split_path(volatile_path.removeprefix(path + "."))
        for volatile_path in volatile
        if volatile_path.startswith(path + ".")
    )
    return _Rule(path, inside, stars[-1] - 1 if stars and stars[-1] > 0 else None, around)


def _canonical(value: Any, volatile: tuple[tuple[str, ...], ...]) -> bytes:
    """Serialize a value without its volatile parts; equal values give equal bytes, in any spacing and key order."""
    for parts in volatile:
        value = without(value, parts)
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _with_type(type: str, content: bytes) -> bytes:
    """Return what a key is made of: equal content under another type is another event."""
    return b"%s\x00%s" % (type.encode("utf-8", "surrogatepass"), content)


def _too_many() -> Rejected:
    return Rejected(
        status=413,
        reason=Reason.BODY_TOO_LARGE,
        detail=f"the signature is valid, but the request contains more than {MAX_ITEMS} items",
        may_reverify=False,
    )
