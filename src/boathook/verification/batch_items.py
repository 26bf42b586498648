"""What a batch is made of: items, each with its own key, type and digest.

An item's key has a prefix of its own, so that it never equals the key of a whole request by accident.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from boathook.domain.json_document import get_path, split_path
from boathook.domain.verification import BatchItem, Reason, Rejected, Request
from boathook.providers.extractor import ExtractedFields, make_name_reader
from boathook.providers.recipe import BatchItems, Recipe
from boathook.providers.request_reader import expand_path
from boathook.verification.dedup_key import first_key_not_in, json_paths, make_dedup_key, printable_type

MAX_ITEMS: Final = 10_000
"""Items of one request; the largest batch a known sender makes holds a tenth of it."""
KEY_PREFIX: Final = "item:"
BATCH_TYPE: Final = "batch"
"""The type of a request whose items are of several."""


class _Found(NamedTuple):
    rule: "_Rule"
    path: str
    value: Any


class _Rule(NamedTuple):
    """One path of a recipe's items."""

    path: str
    volatile: tuple[tuple[str, ...], ...]
    """What may differ between two sendings of an item, as seen from it."""
    holder: int | None
    """How many parts of an item's path lead to the object whose array holds it."""
    around: tuple[str, ...]
    """Keys of that object that count as the item's content."""


class BatchSplitter:
    """Takes one source's requests apart; compiled once."""

    def __init__(self, recipe: Recipe, items: BatchItems) -> None:
        self._items = items
        self._rules = tuple(_rule(path, recipe.volatile, items.around.get(path, ())) for path in items.paths)
        self._fields = {path: split_path(path) for path in json_paths((*items.id.selectors, *items.type.selectors))}
        self._id_of = make_name_reader(items.id.selectors, whole=True)
        self._type_of = make_name_reader(items.type.selectors, whole=False)

    def items(self, request: Request, document: Any, type: str, now: float) -> tuple[BatchItem, ...] | Rejected:
        """Return the items of a request whose body holds *document*; identical ones count once.

        Two of one key and different content are both returned: which of them is right is not for a verifier to say.

        Args:
            request: as it came.
            document: its body, parsed.
            type: the request's own type, for items that have none.
            now: when it was received, in seconds since 1970.
        """
        found = list(islice(self._find(document), MAX_ITEMS + 1))
        if len(found) > MAX_ITEMS:
            return _too_many()
        items: dict[tuple[str, bytes], BatchItem] = {}
        for one in found:
            item = self._item(request, document, one, type, now)
            items.setdefault((item.dedup_key, item.digest), item)
        return tuple(items.values())

    def _find(self, document: Any) -> Iterator[_Found]:
        for rule in self._rules:
            for path, value in expand_path(document, rule.path):
                if value is not None:
                    yield _Found(rule, path, value)

    def _item(self, request: Request, document: Any, found: _Found, type: str, now: float) -> BatchItem:
        content = _canonical(found.value, found.rule.volatile)
        extracted = {path: get_path(found.value, parts) for path, parts in self._fields.items()}
        name = self._id_of(request, extracted)
        return BatchItem(
            path=found.path,
            type=self._type_in(request, extracted, found.value) or type,
            dedup_key=KEY_PREFIX
            + (self._made(document, found, content, now) if name is None else make_dedup_key(name)),
            digest=hashlib.sha256(content).digest(),
            document=found.value,
        )

    def _type_in(self, request: Request, extracted: ExtractedFields, value: Any) -> str | None:
        name = self._type_of(request, extracted)
        besides = self._items.type.first_key_except
        if name is None and besides is not None and isinstance(value, dict):
            name = first_key_not_in(besides, value)
        return None if name is None else printable_type(name)

    def _made(self, document: Any, found: _Found, content: bytes, now: float) -> str:
        """Return the key of an item without a name."""
        if found.rule.around and found.rule.holder is not None:
            holder = get_path(document, found.path.split(".")[: found.rule.holder])
            if isinstance(holder, dict):
                content += _canonical([holder.get(key) for key in found.rule.around], ())
        made = f"sha256:{hashlib.sha256(content).hexdigest()}"
        # Where the same content will tell of something else next time, only place and moment tell items apart.
        return f"moment:{now!r}:{found.path}:{made}" if self._items.id.is_repeatable else made


def batch_type(items: tuple[BatchItem, ...]) -> str:
    """Return the type of the request that brings *items*: theirs, if they have but one."""
    types = {item.type for item in items}
    return types.pop() if len(types) == 1 else BATCH_TYPE


def _rule(path: str, volatile: tuple[str, ...], around: tuple[str, ...]) -> _Rule:
    parts = split_path(path)
    stars = [place for place, part in enumerate(parts) if part == "*"]
    inside = tuple(split_path(one.removeprefix(path + ".")) for one in volatile if one.startswith(path + "."))
    return _Rule(path, inside, stars[-1] - 1 if stars and stars[-1] > 0 else None, around)


def _canonical(value: Any, volatile: tuple[tuple[str, ...], ...]) -> bytes:
    """Write an item such that equal ones are equal bytes, whatever their spacing and order; volatile parts left out."""
    for parts in volatile:
        value = _without(value, parts)
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _without(value: Any, parts: tuple[str, ...]) -> Any:
    if not isinstance(value, dict) or parts[0] not in value:
        return value
    if len(parts) == 1:
        return {key: inner for key, inner in value.items() if key != parts[0]}
    return {**value, parts[0]: _without(value[parts[0]], parts[1:])}


def _too_many() -> Rejected:
    return Rejected(
        status=413,
        reason=Reason.BODY_TOO_LARGE,
        detail=f"the proof is right, but the request holds more than {MAX_ITEMS} items",
        may_reverify=False,
    )
