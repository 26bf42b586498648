"""The filters of events: one table for the command line, the API, the console, MCP and bulk jobs."""

from datetime import datetime
from typing import Annotated, Final

from boathook.db.queries.event_search import EventFilter
from boathook.domain import ids
from boathook.domain.content_filter import ContentFilter, parse_condition
from boathook.domain.json_document import short_key
from boathook.domain.model import State
from boathook.service.fields import Input, Problem, Rule
from boathook.verification.dedup_keys import KEY_PREFIX, make_dedup_key

UNHANDLED: Final = "unhandled"
"""Used instead of a delivery's state: events of sources that no handler matched."""
MAX_TEXT_LENGTH: Final = 200
"""Maximum characters of a search text."""
FILTERS: Final = ("words", "source", "application", "type", "state", "key", "text", "where", "since", "until")
_APPLICATION: Final = ids.APPLICATION


def _check_condition(text: str) -> None:
    if parse_condition(text) is None:
        raise ValueError("write a path and a value, such as data.object.customer = cus_123")


Name = Annotated[str, Rule(max_length=256)]
SearchText = Annotated[str, Rule(max_length=MAX_TEXT_LENGTH)]


class EventQuery(Input, frozen=True, kw_only=True):
    """The filters of events; those that are not set match every event."""

    words: Annotated[
        SearchText | None,
        Rule(
            help="Only with this id or key, text in the body, type or key, or value as in `where`.",
            name="q", option="--search",
        ),
    ] = None  # fmt: skip
    source: Annotated[Name | None, Rule(help="Only of this source.", example="stripe")] = None
    application: Annotated[
        Name | None, Rule(help="Only of this application: its id or uid.", prefix=_APPLICATION, accepts_names=True)
    ] = None
    type: Annotated[
        Name | None,
        Rule(help="Only with a type, or an item's type, that fits; `*` matches any characters.", example="invoice.*"),
    ] = None
    state: Annotated[
        str | None,
        Rule(
            help="Only with a delivery in this state; `unhandled`: only those that no handler matched.",
            choices=(*State, UNHANDLED),
        ),
    ] = None  # fmt: skip
    key: Annotated[SearchText | None, Rule(help="Exact dedup key.")] = None
    text: Annotated[SearchText | None, Rule(help="Only with this text in the body, ignoring case.")] = None
    where: Annotated[
        SearchText | None,
        Rule(
            help="Only with this value in the JSON body, by dotted path.", check=_check_condition,
            example="data.object.customer = cus_123", metavar="PATH=VALUE",
        ),
    ] = None  # fmt: skip
    since: Annotated[datetime | None, Rule(help="Received then or later: 2h, 7d or ISO 8601.", former_name="after")] = (
        None
    )
    until: Annotated[datetime | None, Rule(help="Received before: 2h, 7d or ISO 8601.", former_name="before")] = None

    @property
    def is_open(self) -> bool:
        """Whether it matches every event."""
        return not any(getattr(self, name) for name in FILTERS)

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with the filters together."""
        if self.since and self.until and self.since >= self.until:
            return [Problem(("until",), "it must be later than the beginning")]
        return []

    def compile(self, *, organization: str | None = None) -> EventFilter:
        """Return the filter as the database takes it, of one organization or of all."""
        return EventFilter(
            source=self.source or None,
            application=self.application or None,
            type=self.type or None,
            key=self.key or None,
            state=State(self.state) if self.state and self.state != UNHANDLED else None,
            is_unhandled=self.state == UNHANDLED,
            since=self.since,
            until=self.until,
            content=self._content(),
            organization=organization,
        )

    def _content(self) -> ContentFilter:
        stated = parse_condition(self.words) if self.words else None
        words = None if stated else self.words or None
        required = parse_condition(self.where) if self.where else None
        return ContentFilter(
            text=self.text or None,
            words=words,
            word_keys=tuple(key_variants(words)) if words else (),
            conditions=tuple(condition for condition in (stated, required) if condition is not None),
        )


def key_variants(key: str) -> list[str]:
    """Return the forms in which boathook may have stored a sender's key."""
    variants = [key, make_dedup_key(key), short_key(key)]
    return list(dict.fromkeys([*variants, *(KEY_PREFIX + variant for variant in variants)]))
