"""Dead letters: found one by one, and replayed, ignored or purged as they were ticked.

What is decided about a whole group is a bulk job, see `boathook.service.bulk_jobs`.
"""

from collections.abc import Sequence

from boathook.db import dead_letter_groups
from boathook.db.dead_letter_groups import DeadLetterCursor as DeadLetterCursor  # noqa: PLC0414 - what these functions are asked for
from boathook.db.dead_letter_groups import DeadLetterPage as DeadLetterPage  # noqa: PLC0414 - what these functions return
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.db.delivery_commands import Key as Key  # noqa: PLC0414 - what these functions are asked for
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.service import bulk_jobs, operations
from boathook.service.unit_of_work import AppContext


async def search(app_context: AppContext, wanted: ListFilter, before: DeadLetterCursor | None = None) -> DeadLetterPage:
    """Return the next dead letters that fit, those that died last first, in a bounded time.

    Args:
        before: where the page before ended.
    """
    return await dead_letter_groups.search_dead_letters(app_context.database, wanted, before=before)


async def group_of(app_context: AppContext, key: Key) -> str | None:
    """Return the id of the group a dead letter belongs to; None where it is not dead any more."""
    group = await dead_letter_groups.group_of(app_context.database, key)
    return None if group is None else ids.show(ids.DEAD_GROUP, group)


async def replay(app_context: AppContext, keys: Sequence[Key], *, actor: str, note: str = "") -> int:
    """Make dead letters pending again; return how many were.

    Raises:
        NotFound: one does not exist.
        InvalidTransition: one has ended well.
        InvalidValue: the note breaks a rule.
    """
    action, chosen = await _prepare(app_context, keys, actor, bulk_jobs.check_note(note))
    done = await operations.replay_dead(app_context.database, chosen, action)
    app_context.notify_due()
    return done


async def ignore(app_context: AppContext, keys: Sequence[Key], *, actor: str, note: str) -> int:
    """End dead letters as ignored, with a note that says why; return how many were. Raises as `replay` does."""
    action, chosen = await _prepare(app_context, keys, actor, bulk_jobs.require_note(note))
    return await operations.ignore_dead(app_context.database, chosen, action)


async def purge(app_context: AppContext, keys: Sequence[Key], *, actor: str, typed: str, note: str = "") -> int:
    """Delete dead letters with their attempts, once *typed* confirms it; return how many. Raises as `replay` does."""
    bulk_jobs.check_confirmation(typed)
    action, chosen = await _prepare(app_context, keys, actor, bulk_jobs.check_note(note))
    return await operations.purge_dead(app_context.database, chosen, action)


async def _prepare(
    app_context: AppContext, keys: Sequence[Key], actor: str, note: str
) -> tuple[AuditContext, Selection]:
    dead = await operations.check_dead(app_context.database, keys)
    return AuditContext(actor=actor, note=note or None), Selection(ListFilter(), dead)
