"""Routes of dead letters: lists, single ones with their attempts and what to do about them, replaying and ignoring."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec
from fastapi import Depends
from pydantic import Field

from boathook.api.errors import invalid
from boathook.api.events import (
    ContentOut,
    DeliveryOut,
    DeliveryQuery,
    DeliveryRef,
    DeliveryWithAttemptsOut,
    show_attempts,
    show_content,
)
from boathook.api.pages import Limit, ListOf, OnwardIterator
from boathook.api.route import AnyCall, Call, read_path_id, router
from boathook.domain import ids
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import dead_letters as actions
from boathook.service.catalogue.selection import Acted
from boathook.service.operating import dead_letters, listings
from boathook.service.operating.dead_letters import DeadLetterCursor, Key
from boathook.service.schemas.fields import Input, Output, Text, Timestamp

routes = router("Dead Letter")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS: Final = re.compile(r"[0-9]{1,17}", re.ASCII)
"""Those since 1970, up to the year 5138."""


class ReplayDeadLetterIn(Input):
    """Why the dead letter is replayed, and from where."""

    first: bool = Field(
        default=False,
        description="Handle the first event of its chain again instead, and mark the dead letter as ignored.",
    )
    note: Text = Field(default="", description="Kept in the audit.", examples=["the receiver is back"])


class IgnoreDeadLetterIn(Input):
    """Why nothing more is needed."""

    note: Text = Field(
        description="Kept in the audit and as the outcome of the delivery.", examples=["refunded by hand"]
    )


class ChainLinkOut(Output):
    """One event of the chain that led to a dead letter."""

    event_id: str
    source: str | None
    application: str | None
    type: str | None = Field(description="Null if retention has dropped the event.")
    accepted_at: Timestamp | None
    delivery_id: str | None = Field(description="The delivery whose handler published the next event.")
    recipient: str | None = Field(examples=["handler:invoice"])


class DeadLetterOut(DeliveryWithAttemptsOut):
    """A dead letter with its attempts, its cause, and the events that led to it."""

    chain: list[ChainLinkOut] = Field(description="The first event first; the last one is that of the dead letter.")
    first_content: ContentOut | None = Field(description="The content of the first event, if it is another one.")

    sentence: str = Field(description="What failed.", examples=["handler:invoice failed 5 times, last with a timeout"])
    advice: str = Field(description="What to do about it.")


class _Page(msgspec.Struct, frozen=True):
    """The page that a client requests; the position of a list is a dead letter with the time of its failure."""

    limit: int
    place: DeadLetterCursor | None


def _page(limit: Limit = 50, iterator: OnwardIterator = None) -> _Page:
    return _Page(limit, _read_cursor(iterator) if iterator else None)


def _read_cursor(iterator: str) -> DeadLetterCursor:
    name, _, microseconds = iterator.rpartition(".")
    try:
        if _MICROSECONDS.fullmatch(microseconds):
            return DeadLetterCursor(_EPOCH + timedelta(microseconds=int(microseconds)), ids.read_delivery(name))
    except ValueError:
        pass
    raise invalid("write an iterator of an earlier page, such as dlv_..._0.1769860800000000", "query", "iterator")


def _show_cursor(cursor: DeadLetterCursor) -> str:
    return f"{ids.show_delivery(*cursor.key)}.{(cursor.dead_at - _EPOCH) // timedelta(microseconds=1)}"


@routes.get("/dead-letter", operation_id="v1.dead-letter.list", summary="List dead letters")
@requires(Permission.DEAD_LETTER_VIEW)
async def list_dead_letters(
    call: AnyCall, page: Annotated[_Page, Depends(_page)], query: Annotated[DeliveryQuery, Depends()]
) -> ListOf[DeliveryOut]:
    """List dead letters, latest failure first; before and after are times of failure.

    A request searches for a short time only, as the list of events does.
    """
    letter_page = await dead_letters.search_own(call.work, query.value(page.limit), page.place)
    place = letter_page.place or page.place
    return ListOf(
        data=[DeliveryOut.of(row) for row in letter_page.rows],
        iterator=None if place is None else _show_cursor(place),
        done=letter_page.place is None,
    )


@routes.get("/dead-letter/{delivery_id}", operation_id="v1.dead-letter.get", summary="Get a dead letter")
@requires(Permission.DEAD_LETTER_VIEW)
async def get_dead_letter(call: AnyCall, delivery_id: DeliveryRef) -> DeadLetterOut:
    """Return a dead letter with its attempts; 404 for a delivery in another state."""
    letter = await listings.read_dead_letter(call.work, read_path_id(ids.read_delivery, delivery_id))
    row = letter.row
    return DeadLetterOut.of(
        row,
        attempts_made=show_attempts(letter.attempts),
        chain=[ChainLinkOut.of(link) for link in letter.chain],
        first_content=None if letter.first is None else ContentOut(**show_content(letter.first)),
        sentence=dead_letters.describe_failure(row.recipient, row.attempts, row.code, row.note),
        advice=dead_letters.advise(row.recipient, row.code),
    )


@routes.post(
    "/dead-letter/{delivery_id}/replay",
    status_code=202,
    operation_id="v1.dead-letter.replay",
    summary="Replay a dead letter",
)
@requires(Permission.DEAD_LETTER_DECIDE)
async def replay_dead_letter(
    call: AnyCall, delivery_id: DeliveryRef, body: ReplayDeadLetterIn | None = None
) -> DeliveryOut:
    """Make a dead letter pending again, with its full number of attempts.

    With `first`, the handler of the first event of its chain gets that event again, and publishes again what it now
    should. The dead letter is then ignored, with a note. The response is the delivery that is pending now.
    """
    body = body or ReplayDeadLetterIn()
    key = read_path_id(ids.read_delivery, delivery_id)
    if body.first:
        return DeliveryOut.of(await dead_letters.replay_first(call.work, key, note=body.note))
    replay_input = actions.Replay(ids=[ids.show_delivery(*key)], note=body.note)
    return await _show_one(call, key, await actions.replay(call.work, replay_input))


@routes.post("/dead-letter/{delivery_id}/ignore", operation_id="v1.dead-letter.ignore", summary="Ignore a dead letter")
@requires(Permission.DEAD_LETTER_DECIDE)
async def ignore_dead_letter(call: AnyCall, delivery_id: DeliveryRef, body: IgnoreDeadLetterIn) -> DeliveryOut:
    """Mark a dead letter as ignored, with a note that says why."""
    key = read_path_id(ids.read_delivery, delivery_id)
    ignore_input = actions.Ignore(ids=[ids.show_delivery(*key)], note=body.note)
    return await _show_one(call, key, await actions.ignore(call.work, ignore_input))


async def _show_one(call: Call, key: Key, acted: Acted) -> DeliveryOut:
    """Return the delivery that an operation on it alone has changed. Raises why it was skipped."""
    for skipped in acted.skipped:
        raise skipped.error()
    return DeliveryOut.of(await listings.find_delivery(call.work, key))
