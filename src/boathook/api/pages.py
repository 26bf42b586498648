"""Paginated lists: the requested page, and the iterators of the adjacent pages.

A route takes `IdPage` (or its own kind, made by `id_page(prefix)`), fetches `page.window()`, which is one row more than
is shown, and returns `page.answer(rows, ...)`. An iterator is the id of a page's last row. An iterator that begins with
``-`` is the id of a first row and leads back. Rows always have the list's own order.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import msgspec
from fastapi import Depends, Query
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from boathook.api.errors import invalid
from boathook.domain import ids
from boathook.domain.endpoints import check_type
from boathook.service.schemas.fields import Output
from boathook.service.sending.applications import PageRequest

Row = TypeVar("Row")
Item = TypeVar("Item")


class Ordering(StrEnum):
    """The order of a list."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


class ListOf(Output, Generic[Item]):
    """A page of a list."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    data: list[Item]
    iterator: str | None
    prev_iterator: str | None = Field(default=None, exclude_if=lambda value: value is None)
    done: bool


class Page(msgspec.Struct, frozen=True):
    """The page that a client requests."""

    limit: int
    place: str | None
    """The row next to the page."""
    is_back: bool
    """Whether the page is before that row."""
    is_ascending: bool

    @property
    def is_upward(self) -> bool:
        """Whether rows are fetched in ascending order."""
        return self.is_ascending is not self.is_back

    def answer(self, rows: Sequence[Row], name: Callable[[Row], str], show: Callable[[Row], Item]) -> ListOf[Item]:
        """Return the response for fetched rows: up to limit + 1 in the direction of travel.

        Args:
            rows: in the order of the query.
            name: returns a row's iterator.
            show: returns a row in the format of the response.
        """
        page_rows = list(rows[: self.limit])
        if self.is_back:
            page_rows.reverse()
        return ListOf(
            data=[show(row) for row in page_rows],
            iterator=name(page_rows[-1]) if page_rows else None,
            prev_iterator=f"-{name(page_rows[0])}" if page_rows else None,
            done=len(rows) <= self.limit,
        )

    def answer_scan(
        self, rows: Sequence[Row], place: str | None, name: Callable[[Row], str], show: Callable[[Row], Item]
    ) -> ListOf[Item]:
        """Return the response for the rows of a scan that may have ended early.

        Args:
            rows: in the order of the query, up to limit.
            place: where the next scan continues; None if there is nothing further.
            name: returns a row's iterator.
            show: returns a row in the format of the response.
        """
        page_rows = list(reversed(rows)) if self.is_back else list(rows)
        first, last = (name(page_rows[0]), name(page_rows[-1])) if page_rows else (None, None)
        onward, back = (last, place or first) if self.is_back else (place or last, first)
        return ListOf(
            data=[show(row) for row in page_rows],
            iterator=onward,
            prev_iterator=None if back is None else f"-{back}",
            done=place is None,
        )


class IdPage(Page, frozen=True):
    """A page of a list in the order of ids."""

    place_id: UUID | None

    def window(self) -> PageRequest:
        """Return the rows to fetch."""
        return PageRequest(self.place_id, self.is_upward, self.limit + 1)


Limit = Annotated[int, Query(ge=1, le=250, description="Maximum rows per page.")]
Iterator = Annotated[
    str | None, Query(description="The iterator of the previous page; with a - prefix, in the other direction.")
]
OnwardIterator = Annotated[str | None, Query(description="The iterator of the previous page.")]
Order = Annotated[Ordering | None, Query(description="The order of the list.")]


def id_page(prefix: str, *, is_ascending: bool = False) -> Any:
    """Return the dependency of a list whose iterators are ids with this prefix, by default newest first."""

    def read(limit: Limit = 50, iterator: Iterator = None, order: Order = None) -> IdPage:
        place, is_back = split_iterator(iterator)
        upward = is_ascending if order is None else order is Ordering.ASCENDING
        return IdPage(limit, place, is_back, upward, None if place is None else parse_iterator_id(prefix, place))

    return Depends(read)


def _place_page(check: Callable[[str], object], advice: str, *, is_ascending: bool) -> Any:
    """Return the dependency of a list whose iterators pass *check*, by default in this order."""

    def read(limit: Limit = 50, iterator: Iterator = None, order: Order = None) -> Page:
        place, is_back = split_iterator(iterator)
        try:
            if place is not None:
                check(place)
        except ValueError:
            raise invalid(f"write an iterator of an earlier page, {advice}", "query", "iterator") from None
        return Page(limit, place, is_back, is_ascending if order is None else order is Ordering.ASCENDING)

    return Depends(read)


def split_iterator(iterator: str | None) -> tuple[str | None, bool]:
    """Return the position in an iterator, and whether it leads back."""
    if not iterator:
        return None, False
    return iterator.removeprefix("-"), iterator.startswith("-")


def parse_iterator_id(prefix: str, place: str) -> UUID:
    """Return the id in an iterator. Raises InvalidValue."""
    try:
        if place.startswith(f"{prefix}_"):
            return ids.read(prefix, place)
    except ValueError:
        pass
    raise invalid(f"write an iterator of an earlier page, such as {prefix}_...", "query", "iterator")


def _event_page(limit: Limit = 50, iterator: OnwardIterator = None) -> IdPage:
    place_id = None if not iterator else parse_iterator_id(ids.EVENT, iterator)
    return IdPage(limit, iterator or None, is_back=False, is_ascending=False, place_id=place_id)


SourcePage = Annotated[Page, _place_page(str, "the name of a source", is_ascending=True)]
NamePage = Annotated[Page, _place_page(check_type, "the name of an event type", is_ascending=True)]
ApplicationPage = Annotated[IdPage, id_page(ids.APPLICATION, is_ascending=True)]
EndpointPage = Annotated[IdPage, id_page(ids.ENDPOINT)]
EventPage = Annotated[IdPage, Depends(_event_page)]
DeliveryPage = Annotated[Page, _place_page(ids.read_delivery, "such as dlv_..._0", is_ascending=False)]
RejectionPage = Annotated[IdPage, id_page(ids.REJECTION)]
ConflictPage = Annotated[IdPage, id_page(ids.CONFLICT)]
