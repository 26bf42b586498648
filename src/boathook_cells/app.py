"""The app that passes messages on to other cells: one handler for each of them, which posts to its gateways.

A message that is published here to an application of another cell is stored here, with one delivery to the handler of
that cell. So it leaves only if its publisher's transaction commits, and it has the retries, dead letters and replays of
any delivery. Its id is its dedup key in the other cell, so it is stored there once however often it is posted.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import FetchFailed, NotFound, ServedElsewhere, TooManyDeliveries, ValueRejected
from boathook.domain.homes import Assignment
from boathook.domain.messages import Message
from boathook.domain.model import Duplicate, IdempotencyConflict, NewEvent, Publication, Published, Receipt
from boathook.domain.policy import Breaker, Dead, Retry, RetryPolicy
from boathook.handlers.api import Boathook
from boathook.handlers.event import Event
from boathook.handlers.outbox import Outbox, is_application_id
from boathook.handlers.sessions import BeginLate, LateSessions
from boathook.handlers.transaction import connection_of
from boathook_cells import store
from boathook_cells.directory import APP, ApplicationAssignment
from boathook_cells.forwarding import CellStore, CellUnavailable, Post, post_with
from boathook_cells.settings import find_cells, read_secret, require_cells

_MAX_AGE_DAYS: Final = 7
_RETRY: Final = RetryPolicy(first_s=5, max_delay_s=300, max_attempts=10_000, max_age_s=_MAX_AGE_DAYS * 86_400)
"""Outlives an outage of a cell. Its breaker decides how often it is called meanwhile."""
_PAUSE_S: Final = 5.0
_MAX_PAUSE_S: Final = 60.0
_MEMORY_DAYS: Final = _MAX_AGE_DAYS + 1
"""How long the other cell remembers a message at least, as this one may post it again until its last attempt."""
_TIMEOUT_S: Final = 45.0

Outcome = Dead | Retry | None


def open_app(settings: Settings, post: Post | None = None) -> Boathook | None:
    """Return the app, with a handler for each other cell; None if there is no other.

    Args:
        settings: name the cells.
        post: makes the requests; None makes real ones.
    """
    cells = find_cells(settings)
    if cells is None or not cells.others:
        return None
    hook = Boathook(APP)
    passing = _Passing(settings, hook, post or post_with(settings))
    for cell in cells.others:
        register = hook.on(
            # A name that no application can have: deliveries come from `boathook.routes_for` only. The registered route
            # shows that the handler exists, and how it is retried.
            application=f"cell {cell}",
            name=cell,
            retry=_RETRY,
            timeout=_TIMEOUT_S,
            breaker=Breaker(dependency=f"{APP}.{cell}", pause_s=_PAUSE_S, max_pause_s=_MAX_PAUSE_S),
            session=LateSessions(hook.transaction),
        )
        register(passing.handler(cell))
    return hook


class _Passing:
    """Passes messages on to the cells of their applications."""

    def __init__(self, settings: Settings, hook: Boathook, post: Post) -> None:
        self._hook = hook
        self._post = post
        self._cells = require_cells(settings)
        self._secret = read_secret(settings)
        self._outbox = Outbox.of(settings.retention)

    def handler(self, cell: str) -> Callable[[Event, BeginLate], Awaitable[Outcome]]:
        """Return the handler for one cell."""

        async def pass_on(event: Event, begin: BeginLate) -> Outcome:
            return await self._pass_on(event, cell, begin)

        return pass_on

    async def _pass_on(self, event: Event, cell: str, begin: BeginLate) -> Outcome:
        """Post a message to a cell and, if its application has moved on, to the next one.

        Raises:
            ConnectionError: the cell does not accept the message now.
            FetchFailed: a cell that the application has moved on to does not; the breaker is not for that one.
        """
        if not is_application_id(event.application or ""):
            return Dead("NO_APPLICATION", f"{event.application!r} is not an application that belongs to a cell")
        async with self._hook.transaction() as transaction:
            message = await store.read_message(connection_of(transaction), event, min_memory_days=_MEMORY_DAYS)
        if message is None:
            return Dead("EXPUNGED", "its content was deleted before it was passed on")
        tried_cells: set[str] = set()
        while cell not in tried_cells:
            if cell == self._cells.name:
                return await self._take_back(event, message, begin)
            if cell not in self._cells.members:
                raise FetchFailed(f"{event.application} belongs to the cell {cell}, which is not in cells.members")
            try:
                answer = await self._send(cell, message)
            except CellUnavailable as error:
                # Not that error: it would count as a loss of this cell's own database, which is retried for minutes.
                raise (FetchFailed if tried_cells else ConnectionError)(str(error)) from None
            if not isinstance(answer, str):
                return answer if isinstance(answer, Dead) else _judge(answer, f"the cell {cell}")
            tried_cells.add(cell)
            cell = answer
        return Retry(code="MOVING")

    async def _send(self, cell: str, message: NewEvent) -> Receipt | Dead | str:
        """Post a message to a cell; return its receipt, why the cell never stores it, or the cell that it names.

        Raises:
            CellUnavailable: the cell does not accept the message now.
        """
        refusals: list[ApplicationAssignment] = []

        async def on_refusal(assignment: Assignment | ApplicationAssignment) -> None:
            if isinstance(assignment, ApplicationAssignment):
                refusals.append(assignment)

        url = self._cells.members[cell].url
        other = CellStore(cell, url, self._secret, post=self._post, on_refusal=on_refusal)
        try:
            (receipt,) = await other.append([message])
        except CellUnavailable:
            if refusals:
                return refusals[0].home
            raise
        except ValueRejected as error:
            return Dead("REJECTED", str(error))
        return receipt

    async def _take_back(self, event: Event, message: NewEvent, begin: BeginLate) -> Outcome:
        """Deliver a message in this cell, in its delivery's transaction: its application has moved back."""
        publication = message.publication
        assert publication is not None, "only published messages are passed on"
        try:
            published = await self._outbox.publish(
                await begin(), _to_message(event, message, publication), passes_on=False
            )
        except ServedElsewhere:
            return Retry(code="MOVING")
        except (NotFound, TooManyDeliveries) as error:
            return Dead("REJECTED", str(error))
        return _judge(published, "this cell")


def _judge(published: Published, place: str) -> Outcome:
    is_conflict = isinstance(published, Duplicate) and published.conflict
    if not is_conflict and not isinstance(published, IdempotencyConflict):
        return None
    first = ids.show(ids.MESSAGE, published.event_id)
    return Dead("DUPLICATE_MESSAGE", f"{place} has another message with its eventId or idempotency key: {first}")


def _to_message(event: Event, message: NewEvent, publication: Publication) -> Message:
    return Message(
        application=str(message.application),
        type=message.type,
        payload=message.body,
        organization=publication.organization,
        id=None if message.dedup_key == ids.show(ids.EVENT, message.id) else message.dedup_key,
        event_id=message.id,
        channels=publication.channels,
        tags=publication.tags,
        deliver_at=publication.deliver_at,
        content_until=publication.content_until,
        headers=event.headers,
        content_type=message.content_type,
        is_accepted=True,
    )
