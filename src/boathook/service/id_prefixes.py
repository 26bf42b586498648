"""Looks up ids that users give by their beginning, such as ``evt_01h455vb4p``; the API takes whole ids only.

All functions raise InvalidValue if a text is not an id of the kind or begins several, and NotFound if it is that
of none. A whole id is returned as it is, without a look at the database. With *organization*, only its objects are
found, and named as candidates; None finds those of all, as operators may.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import Key
from boathook.db.queries import id_prefixes
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.endpoints import is_imported_id
from boathook.domain.errors import InvalidValue, NotFound

MAX_CANDIDATES: Final = 5


async def find_ids(
    database: Database | Connection, prefix: str, words: Sequence[str], organization: str | None = None
) -> list[UUID]:
    """Return the ids of one kind that *words* begin; an event may be given by its message id."""
    return [await _find_id(database, prefix, word, organization) for word in words]


async def find_deliveries(
    database: Database | Connection, words: Sequence[str], organization: str | None = None
) -> list[Key]:
    """Return the keys of the deliveries whose ids *words* begin; the number at the end may be missing."""
    return [await _find_delivery(database, word, organization) for word in words]


async def complete(
    database: Database | Connection, prefix: str, reference: str, organization: str | None = None
) -> str:
    """Return the whole id that *reference* begins; a uid, which never begins like an id, or an imported id as it is."""
    if prefix == ids.DELIVERY:
        return ids.show_delivery(*await _find_delivery(database, reference, organization))
    if prefix == ids.EVENT:
        return ids.show(ids.EVENT, await _find_id(database, prefix, reference, organization))
    if not reference.startswith(f"{prefix}_") or is_imported_id(prefix, reference):
        return reference
    return ids.show(prefix, await _find_id(database, prefix, reference, organization))


async def complete_filter(database: Database | Connection, prefix: str, filters: ListFilter) -> ListFilter:
    """Return a filter of rows of one kind with whole ids of its application and of the row it continues after."""
    application, after = filters.application, filters.after
    if application is not None:
        application = await complete(database, ids.APPLICATION, application)
    if after is not None and prefix == ids.DELIVERY:
        after = ids.show_delivery(*await _find_delivery(database, after, None))
    elif after is not None:
        after = ids.show(prefix, await _find_id(database, prefix, after, None))
    return replace(filters, application=application, after=after)


async def _find_id(database: Database | Connection, prefix: str, text: str, organization: str | None) -> UUID:
    if prefix == ids.EVENT and text.startswith(f"{ids.MESSAGE}_"):
        prefix = ids.MESSAGE
    first, last = read_range(prefix, text)
    if first == last:
        return first
    matching_ids = await id_prefixes.find_ids(
        database, prefix, first, last, limit=MAX_CANDIDATES + 1, organization=organization
    )
    check_unique(text, [ids.show(prefix, row_id) for row_id in matching_ids])
    if not matching_ids:
        raise NotFound(f"there is no {ids.NOUNS[prefix]} whose id begins with {text}")
    return matching_ids[0]


async def _find_delivery(database: Database | Connection, text: str, organization: str | None) -> Key:
    try:
        return ids.read_delivery(text)
    except ValueError:
        first, last = read_range(ids.DELIVERY, text.removesuffix("_"))
    keys = await id_prefixes.find_deliveries(database, first, last, limit=MAX_CANDIDATES + 1, organization=organization)
    check_unique(text, [ids.show_delivery(*key) for key in keys])
    if not keys:
        raise NotFound(f"there is no delivery whose id begins with {text}")
    return keys[0]


def read_range(prefix: str, text: str) -> tuple[UUID, UUID]:
    """Return the first and the last id that *text* may begin. Raises InvalidValue."""
    try:
        return ids.read_range(prefix, text)
    except ValueError as error:
        raise InvalidValue(str(error)) from None


def check_unique(text: str, matching_ids: Sequence[str]) -> None:
    """Raise InvalidValue if *text* begins several ids; the message lists the first of them."""
    if len(matching_ids) > 1:
        candidates = ", ".join(matching_ids[:MAX_CANDIDATES]) + (
            " and more" if len(matching_ids) > MAX_CANDIDATES else ""
        )
        raise InvalidValue(f"{text} is the beginning of several ids; use a longer one: {candidates}")
