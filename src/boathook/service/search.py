"""Finds events by whatever somebody has of them: an id, a key, a text, or what they have in common."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from boathook.db.database import Database
from boathook.db.queries import event_search
from boathook.db.queries.event_search import MAX_SEARCHED_BODY as MAX_SEARCHED_BODY  # noqa: PLC0414 - how far they look
from boathook.db.queries.event_search import DedupKeyMatch, EventFilter, FoundEvent
from boathook.db.queries.event_search import SearchPage as SearchPage  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.domain.json_document import short_key
from boathook.domain.model import State
from boathook.ingest.event_builder import dedup_hashes
from boathook.service.body_view import spellings
from boathook.verification.batch_items import KEY_PREFIX, make_dedup_key

UNHANDLED: Final = "unhandled"
"""In place of a delivery's state: events of sources that no handler matched."""
MAX_TEXT_LENGTH: Final = 200
"""Characters of a text that is looked for."""
_MOST_KNOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What somebody looks for; empty lets everything through."""

    words: str = ""
    """An id or a key of an event, or else a text of its payload."""
    text: str = ""
    """A text of its payload, as it is typed."""
    key: str = ""
    """Its whole key."""
    source: str = ""
    application: str = ""
    type: str = ""
    state: str = ""
    since: datetime | None = None
    until: datetime | None = None
    below: UUID | None = None

    @property
    def is_open(self) -> bool:
        """Whether it lets everything through."""
        return self == SearchQuery(below=self.below)

    @property
    def can_be_routed(self) -> bool:
        """Whether a bulk job can route its events again: part of all events, by no text, key or state of deliveries."""
        is_known = not (self.words or self.text or self.key) and self.state in {"", UNHANDLED}
        return is_known and not self.is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class IdMatch:
    """Something that an id or key names."""

    id: str
    """As people see it: an event, a delivery, a conflict or a rejection."""
    item_path: str | None = None
    """Which item of the event it is, where a key is an item's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectMatch:
    """What was found at once, by its id or key."""

    named: Sequence[IdMatch]
    events: Sequence[FoundEvent]
    """Those of the events that are stored."""


async def find_matches(database: Database, question: SearchQuery, sources: Iterable[str]) -> DirectMatch | SearchPage:
    """Return what fits a question: at once where an id or key is given that is known, else what one look finds.

    Args:
        sources: whose keys are tried, where the question names none.

    Raises:
        InvalidValue: a field of it makes no sense.
        DatabaseUnavailable: PostgreSQL is away or too busy.
    """
    check(question)
    if question.below is None and question.words and (found := await _find_named(database, question, sources)):
        return found
    return await event_search.search(database, _wanted(question))


def read_id(text: str) -> IdMatch | None:
    """Return what an id names, whatever it is an id of; None where *text* is no id."""
    readers: Mapping[str, Callable[[], str]] = {
        ids.EVENT: lambda: ids.show(ids.EVENT, ids.read(ids.EVENT, text)),
        ids.MESSAGE: lambda: ids.show(ids.EVENT, ids.read(ids.MESSAGE, text)),
        ids.DELIVERY: lambda: ids.show_delivery(*ids.read_delivery(text)),
        ids.CONFLICT: lambda: ids.show(ids.CONFLICT, ids.read(ids.CONFLICT, text)),
        ids.REJECTION: lambda: ids.show(ids.REJECTION, ids.read(ids.REJECTION, text)),
    }
    reader = readers.get(text.partition("_")[0], readers[ids.EVENT])
    try:
        return IdMatch(id=reader())
    except ValueError:
        return None


async def _find_named(database: Database, question: SearchQuery, sources: Iterable[str]) -> DirectMatch | None:
    if (named := read_id(question.words)) is not None:
        event_id = _event_of(named.id)
        return DirectMatch(
            named=[named], events=await event_search.read_events(database, [event_id] if event_id else [])
        )
    known = await _find_known(database, question, sources)
    if not known:
        return None
    named_events = [IdMatch(id=ids.show(ids.EVENT, one.event_id), item_path=one.item_path) for one in known]
    events = await event_search.read_events(database, [one.event_id for one in known])
    return DirectMatch(named=named_events, events=events) if events else None


async def _find_known(database: Database, question: SearchQuery, sources: Iterable[str]) -> list[DedupKeyMatch]:
    known: dict[DedupKeyMatch, None] = {}
    if not question.application:
        asked = [question.source] if question.source else list(sources)
        keys = [key for source in asked for name in _key_variants(question.words) for key in dedup_hashes(source, name)]
        known |= dict.fromkeys(await event_search.find_keys(database, keys))
    if not question.source:
        known |= dict.fromkeys(await event_search.find_messages(database, question.words, question.application or None))
    return list(known)[:_MOST_KNOWN]


def _key_variants(words: str) -> list[str]:
    """Return how boathook may have stored a key that a sender gave."""
    spelt = [words, make_dedup_key(words), short_key(words)]
    return list(dict.fromkeys([*spelt, *(KEY_PREFIX + one for one in spelt)]))


def _event_of(name: str) -> UUID | None:
    if name.startswith(f"{ids.DELIVERY}_"):
        return ids.read_delivery(name)[0]
    return ids.read(ids.EVENT, name) if name.startswith(f"{ids.EVENT}_") else None


def check(question: SearchQuery) -> None:
    """Raise InvalidValue where a field makes no sense."""
    texts = {"q": question.words, "text": question.text, "key": question.key}
    for name, text in texts.items():
        if len(text) > MAX_TEXT_LENGTH:
            raise InvalidValue(f"at most {MAX_TEXT_LENGTH} characters are looked for", name)
    named = texts | {"source": question.source, "application": question.application, "type": question.type}
    for name, text in named.items():
        if "\x00" in text or any("\ud800" <= one <= "\udfff" for one in text):
            raise InvalidValue("it holds a character that no text can hold", name)
    if question.state and question.state not in {*State, UNHANDLED}:
        raise InvalidValue(f"write one of {', '.join(State)}, or {UNHANDLED}", "state")
    if question.since and question.until and question.since >= question.until:
        raise InvalidValue("it must be later than the beginning", "until")


def list_filter_of(question: SearchQuery) -> ListFilter:
    """Return the filter by which a bulk job goes through a question's events. Raises InvalidValue where it cannot."""
    if not question.can_be_routed:
        raise InvalidValue("choose a filter, but no text, key or state of deliveries, to route events again", "state")
    check(question)
    return ListFilter(
        source=question.source or None,
        application=question.application or None,
        type=question.type or None,
        since=question.since,
        until=question.until,
        is_unhandled=question.state == UNHANDLED,
    )


def _wanted(question: SearchQuery) -> EventFilter:
    wanted = EventFilter(
        source=question.source or None,
        application=question.application or None,
        type=question.type or None,
        key=question.key or None,
        state=State(question.state) if question.state not in {"", UNHANDLED} else None,
        is_unhandled=question.state == UNHANDLED,
        since=question.since,
        until=question.until,
        below=question.below,
        texts=spellings(question.text) if question.text else (),
    )
    if not question.words:
        return wanted
    return replace(wanted, words=spellings(question.words), word_keys=tuple(_key_variants(question.words)))
