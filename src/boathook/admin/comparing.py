"""Compares a conflicting request with the event whose key or body it has."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from boathook.admin import contents
from boathook.admin.contents import View
from boathook.domain import ids
from boathook.domain.differences import Gap, Line, compare, fold
from boathook.domain.documents import is_too_deep
from boathook.domain.errors import NotFound
from boathook.inbound.arrival import hashes_of
from boathook.inbound.items import KEY_PREFIX
from boathook.journal import search, timeline
from boathook.journal.batches import Pieces
from boathook.journal.database import Database
from boathook.journal.ledger import EventRow, StoredRequest
from boathook.journal.timeline import Twin

_MOST_EVENT: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A conflicting request beside the event that came first."""

    twin: Twin
    event: EventRow | None
    """None where retention has dropped it."""
    first: StoredRequest | None
    """The event's headers, and its bytes or those of the item that the conflict is about."""
    item_path: str | None
    """Which item of the event that is; None where it is about the whole."""
    verdict: str
    """What differs, in a sentence."""
    lines: Sequence[Line | Gap] | None
    """Both bodies line by line; None where they are the same, one is missing, or nearly all differs."""
    is_cut: bool
    """Whether one is longer than what was compared."""


async def compare_conflict(database: Database, conflict_id: UUID) -> Comparison:
    """Return a conflict beside its event. Raises NotFound where there is no such conflict."""
    twin = await timeline.get_conflict(database, conflict_id)
    event_id = ids.read(ids.EVENT, twin.row.event_id)
    try:
        event, first = await timeline.read_head(database, event_id, _MOST_EVENT)
    except NotFound:
        return Comparison(
            twin=twin, event=None, first=None, item_path=None, lines=None, is_cut=False,
            verdict="The event that came first is not stored any more, so there is nothing to compare this with.",
        )  # fmt: skip
    item_path = await _item_of(database, twin, event_id)
    body = first.body if item_path is None else Pieces(first.body).cut(item_path)
    # It may take a while, and others wait for the same event loop.
    return await asyncio.to_thread(contrast, twin, event, StoredRequest(first.headers, body), item_path)


def contrast(twin: Twin, event: EventRow, first: StoredRequest, item_path: str | None) -> Comparison:
    """Return the comparison of a conflict with what came first; it takes long where both are large."""
    left, right = first.body, twin.stored.body
    lines, how = (None, "") if event.expunged_at else _compare(left, right)
    return Comparison(
        twin=twin,
        event=event,
        first=first,
        item_path=item_path,
        verdict=_verdict(twin, event, how),
        lines=None if lines is None else fold(lines),
        is_cut=max(len(left), len(right)) > contents.MOST,
    )


def _compare(left: bytes, right: bytes) -> tuple[list[Line] | None, str]:
    """Return both line by line, and in a few words how they differ."""
    if left == right:
        return None, "what is left to compare is equal"
    laid = contents.lines(left), contents.lines(right)
    if laid[0] == laid[1] and max(len(left), len(right)) <= contents.MOST:
        # Alike once they are laid out, they differ in how they were sent.
        return compare(*(contents.lines(one, View.RAW) for one in (left, right))), "only white space differs"
    return compare(*laid), _how_they_differ(left, right)


def unified(comparison: Comparison) -> str:
    """Return both bodies as one text: lines marked with - are of the event alone, with + of the conflict alone."""
    return "\n".join(
        f"… {line.number} equal lines" if isinstance(line, Gap) else f"{line.mark} {line.text}"
        for line in comparison.lines or ()
    )


async def _item_of(database: Database, twin: Twin, event_id: UUID) -> str | None:
    """Return the item whose key the conflict has, as long as it is remembered."""
    key, source = twin.row.dedup_key, twin.row.source
    if source is None or not key.startswith(KEY_PREFIX):
        return None
    known = await search.find_keys(database, hashes_of(source, key))
    return next((one.item_path for one in known if one.event_id == event_id and one.item_path), None)


def _verdict(twin: Twin, event: EventRow, how: str) -> str:
    if event.expunged_at is not None:
        return "The event's content was deleted, so the bodies cannot be compared."
    if twin.row.differs == "key":
        return (
            f"The signed material is the same, the key is not: {twin.row.dedup_key} came with what was accepted as "
            f"{event.dedup_key}. Whoever replays a signed request under another id looks like this."
        )
    fate = "The first one was delivered, this one was kept and not delivered."
    return f"The key is the same, the body is not: {how}. {fate}"


def _how_they_differ(left: bytes, right: bytes) -> str:
    values = _values(left)
    if values is not None and values == _values(right):
        return "the values are the same, only their order is another"
    return f"{len(left):,} bytes came first, {len(right):,} came with the same key later"


def _values(body: bytes) -> Any:
    """Return a JSON body's values without the order of keys; numbers as they are written. None where it is none."""
    if len(body) > contents.MOST or is_too_deep(body):
        return None
    try:
        return json.loads(body, parse_float=_number, parse_int=_number, object_pairs_hook=_sorted)
    except (ValueError, RecursionError):
        return None


def _number(digits: str) -> tuple[str, str]:
    return ("number", digits)


def _sorted(pairs: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    return ("object", sorted(pairs, key=lambda pair: pair[0]))
