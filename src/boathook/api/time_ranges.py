"""Lists in time windows: messages and attempts, newest first, and their common filters.

The position of a page is an id, and ids contain their time; `boathook.domain.windows` computes the ids on a page. A
list with only `after` is read from there towards newer rows, and its iterators begin with ``~``. A reader that passes
the iterators on gets every row. A reader that stores the last iterator can continue from it later.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

import msgspec
from fastapi import Depends, Query, Request
from pydantic import AfterValidator
from starlette.responses import Response

from boathook.api.errors import answer_json, invalid
from boathook.api.pages import Limit, parse_iterator_id, split_iterator
from boathook.domain import ids
from boathook.domain.endpoints import check_channels, check_tags, check_type
from boathook.domain.windows import Cursor, Window, first_from, open_window, resume_at
from boathook.service.schemas.fields import Timestamp
from boathook.service.sending.messages import MessageFilter, Page

Row = TypeVar("Row")
_FORWARD_PREFIX: Final = "~"
_LOWEST: Final = UUID(int=0)
_TYPES: Final = re.compile(r"event_types(\[\d*\])?")


class _ForwardCursor(msgspec.Struct, frozen=True):
    """The position in a list that is read towards newer rows, from its first page on."""

    prefix: str
    now: datetime
    first: UUID
    """The lower bound of the list."""
    place: UUID
    """The id after which this page begins."""

    def iterator(self, page: Page[Row], name: Callable[[Row], str]) -> str:
        """Return the next position: after the newest row or, at the end, before rows that may still be committed."""
        newest = parse_iterator_id(self.prefix, name(page.rows[0])) if page.rows else self.place
        goes_on = max(self.first, resume_at(newest, self.now)) if page.is_last else newest
        return f"{_FORWARD_PREFIX}{ids.show(self.prefix, goes_on)}"


class TimePage(msgspec.Struct, frozen=True):
    """The page that a client requests."""

    limit: int
    window: Window
    walk: _ForwardCursor | None = None

    def answer(self, page: Page[Row], name: Callable[[Row], str], show: Callable[[Row], Any]) -> Response:
        """Return a page as the API shows it; *name* returns a row's iterator."""
        document = _page(page, name, show)
        return answer_json(
            200, document if self.walk is None else document | {"iterator": self.walk.iterator(page, name)}
        )


def answer_page(page: Page[Row], name: Callable[[Row], str], show: Callable[[Row], Any]) -> Response:
    """Return a page as the API shows it; *name* returns a row's iterator."""
    return answer_json(200, _page(page, name, show))


def _page(page: Page[Row], name: Callable[[Row], str], show: Callable[[Row], Any]) -> dict[str, Any]:
    document: dict[str, Any] = {"data": [show(row) for row in page.rows], "iterator": None, "done": page.is_last}
    if page.rows:
        document |= {"iterator": name(page.rows[-1]), "prevIterator": f"-{name(page.rows[0])}"}
    return document


Before = Annotated[Timestamp | None, Query(description="Only rows created before this time.")]
After = Annotated[
    Timestamp | None,
    Query(description="Only rows created at this time or later; without before, oldest first."),
]
TimeIterator = Annotated[
    str | None, Query(description="The iterator of the previous page, or its prevIterator to go back.")
]


def _time_page(prefix: str) -> Any:
    def read(limit: Limit = 50, iterator: TimeIterator = None, before: Before = None, after: After = None) -> TimePage:
        is_walk = iterator.startswith(_FORWARD_PREFIX) if iterator else after is not None and before is None
        cursor = read_cursor(prefix, f"-{iterator[1:]}" if iterator and is_walk else iterator)
        now = datetime.now(UTC)
        window = open_window(now, cursor=cursor, before=before, after=after)
        if not is_walk:
            return TimePage(limit, window)
        first = _LOWEST if after is None else first_from(after)
        return TimePage(limit, window, _ForwardCursor(prefix, now, first, first if cursor is None else cursor.id))

    return Depends(read)


def read_cursor(prefix: str, iterator: str | None) -> Cursor | None:
    """Return the cursor in an iterator; None if there is none. Raises InvalidValue."""
    place, is_back = split_iterator(iterator)
    return None if place is None else Cursor(parse_iterator_id(prefix, place), is_back)


MessagePage = Annotated[TimePage, _time_page(ids.MESSAGE)]
AttemptPage = Annotated[TimePage, _time_page(ids.ATTEMPT)]

Channel = Annotated[str | None, Query(description="Only messages of this channel.")]
Tag = Annotated[str | None, Query(description="Only messages with this tag.")]
EventTypes = Annotated[
    list[str] | None,
    Query(
        alias="event_types", description="Only messages of these types; separated by commas, or the parameter repeated."
    ),
]


def _filters(request: Request, channel: Channel = None, tag: Tag = None, _types: EventTypes = None) -> MessageFilter:
    # FastAPI supports one notation for lists, but clients use four.
    type_texts = [value for name, value in request.query_params.multi_items() if _TYPES.fullmatch(name)]
    types = [part for value in type_texts for part in value.split(",") if part]
    try:
        for word, check in ((channel, check_channels), (tag, check_tags)):
            if word is not None:
                check([word])
        return MessageFilter(types=[check_type(name) for name in types] or None, channel=channel, tag=tag)
    except ValueError as error:
        raise invalid(str(error), "query") from None


Filters = Annotated[MessageFilter, Depends(_filters)]


def check_status_class(number: int) -> int:
    """Return *number* if it is the lowest status of its class, or 0. Raises ValueError."""
    if number not in {0, 100, 200, 300, 400, 500}:
        raise ValueError("write 0, 100, 200, 300, 400 or 500")
    return number


StatusParam = Annotated[
    int | None, Query(ge=0, le=4, description="0 success, 1 pending, 2 failed, 3 being sent, 4 canceled.")
]
StatusClassParam = Annotated[
    Annotated[int, AfterValidator(check_status_class)] | None,
    Query(description="Only attempts with such a response status; 0: without a response."),
]
WithContent = Annotated[bool, Query(description="Whether to include contents; otherwise they are {}.")]


class MessageQuery(msgspec.Struct, frozen=True):
    """The parameters of a list of messages."""

    page: MessagePage
    filters: Filters
    with_content: WithContent = True


Messages = Annotated[MessageQuery, Depends()]
