"""Saves searches for events under names, for each operator."""

from typing import Final

from boathook.db import operators
from boathook.db.operators import SavedView as SavedView  # noqa: PLC0414 - re-exported
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.service.operators import Operator
from boathook.service.unit_of_work import UnitOfWork

MAX_VIEWS: Final = 50
"""Maximum number of views of one operator."""
_MAX_NAME_LENGTH: Final = 60


async def list_of(work: UnitOfWork, operator: Operator) -> list[SavedView]:
    """Return the views of an operator, ordered by name."""
    return await operators.list_views(work.connection, operator.id)


async def save(work: UnitOfWork, operator: Operator, name: str, query: str) -> SavedView:
    """Save the query string of a search under a name; a view with the same name is replaced.

    Raises:
        InvalidValue: the name is empty, too long or not printable, or the query is empty.
        LimitReached: the operator has too many views.
    """
    name = name.strip()
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidValue(f"write a name of at most {_MAX_NAME_LENGTH} characters", "name")
    if not query:
        raise InvalidValue("choose a filter or a time range first; a view without one shows all events", "name")
    view = SavedView(name, query)
    if not await operators.save_view(work.connection, operator.id, view, limit=MAX_VIEWS):
        raise LimitReached(f"an operator can save {MAX_VIEWS} views; delete one first")
    return view


async def delete(work: UnitOfWork, operator: Operator, name: str) -> None:
    """Delete a view of an operator. Raises NotFound."""
    if not await operators.delete_view(work.connection, operator.id, name):
        raise NotFound(f"there is no saved view {name[:_MAX_NAME_LENGTH]!r}")
