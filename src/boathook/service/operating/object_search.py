"""Finds what a text names: events, deliveries, conflicts and rejections by id or key, other objects by name."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from boathook.db.queries import endpoint_stats
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.service.access.authorization import Permission
from boathook.service.fields import check
from boathook.service.operating import recipient_stats, search
from boathook.service.operating.event_query import EventQuery
from boathook.service.operating.search import DirectMatch
from boathook.service.sending import applications, endpoints
from boathook.service.unit_of_work import UnitOfWork

MAX_PER_KIND: Final = 5
_MIN_KEY_CHARS: Final = 3
"""Shorter texts are not looked up as keys."""
_NO_MATCH: Final = DirectMatch(named=(), events=())


class ApplicationMatch(msgspec.Struct, frozen=True):
    """An application with its public id and its name."""

    id: str
    name: str
    uid: str | None


class EndpointMatch(msgspec.Struct, frozen=True):
    """An endpoint with its public id and the application that owns it."""

    id: str
    url: str
    application_id: str
    application_name: str


class ObjectMatches(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a text names; at most `MAX_PER_KIND` of each kind."""

    direct: DirectMatch = _NO_MATCH
    """The object with this id or key."""
    sources: Sequence[str] = ()
    handlers: Sequence[str] = ()
    applications: Sequence[ApplicationMatch] = ()
    endpoints: Sequence[EndpointMatch] = ()


async def find_objects(work: UnitOfWork, words: str, may: Callable[[Permission], bool]) -> ObjectMatches:
    """Return the objects that match *words* and that the caller may view.

    Raises:
        InvalidValue: the text is too long or holds characters that no text can hold.
        DatabaseError: PostgreSQL is unavailable.
    """
    check(EventQuery(words=words))
    if not words:
        return ObjectMatches()
    direct = _NO_MATCH
    if may(Permission.EVENT_VIEW) and len(words) >= _MIN_KEY_CHARS:
        direct = await _find_direct(work, words, may)
    handlers = await recipient_stats.read_names(work.connection) if may(Permission.HANDLER_VIEW) else ()
    return ObjectMatches(
        direct=direct,
        sources=choose_names(work.app_context.settings.sources, words) if may(Permission.SOURCE_VIEW) else (),
        handlers=choose_names(handlers, words),
        applications=await _find_applications(work, words) if may(Permission.APPLICATION_VIEW) else (),
        endpoints=await _find_endpoints(work, words) if may(Permission.ENDPOINT_VIEW) else (),
    )


def choose_names(names: Iterable[str], words: str) -> Sequence[str]:
    """Return the first names that contain a text in any letter case; those that begin with it come first."""
    folded = words.casefold()
    ranked = sorted((not name.casefold().startswith(folded), name) for name in names if folded in name.casefold())
    return [name for _, name in ranked[:MAX_PER_KIND]]


async def _find_direct(work: UnitOfWork, words: str, may: Callable[[Permission], bool]) -> DirectMatch:
    direct = await search.find_named(work.connection, EventQuery(words=words), work.app_context.settings.sources)
    if direct is None:
        return _NO_MATCH
    hidden = {
        prefix
        for prefix, permission in (
            (ids.CONFLICT, Permission.CONFLICT_VIEW),
            (ids.REJECTION, Permission.REJECTION_VIEW),
        )
        if not may(permission)
    }
    visible = [id_match for id_match in direct.named if id_match.id.partition("_")[0] not in hidden]
    return DirectMatch(named=visible[:MAX_PER_KIND], events=direct.events)


async def _find_applications(work: UnitOfWork, words: str) -> Sequence[ApplicationMatch]:
    matching = [row.application for row in await applications.search(work, words, after=None, limit=MAX_PER_KIND)]
    if words.startswith(f"{ids.APPLICATION}_"):
        try:
            matching = [await applications.get(work, words)]
        except NotFound:
            matching = []
    return [ApplicationMatch(application.shown_id, application.name, application.uid) for application in matching]


async def _find_endpoints(work: UnitOfWork, words: str) -> Sequence[EndpointMatch]:
    if words.startswith(f"{ids.ENDPOINT}_"):
        try:
            application = await applications.get(work, await endpoints.find_owner(work, words))
            endpoint = await endpoints.get(work, application, words)
        except NotFound:
            return []
        return [EndpointMatch(endpoint.shown_id, endpoint.url, application.shown_id, application.name)]
    rows = await endpoint_stats.search_endpoints(work.connection, work.organization, words, limit=MAX_PER_KIND)
    return [
        EndpointMatch(
            ids.show(ids.ENDPOINT, row.id), row.url, ids.show(ids.APPLICATION, row.application_id), row.application_name
        )
        for row in rows
    ]
