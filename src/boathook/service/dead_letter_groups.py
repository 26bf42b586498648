"""Groups of dead letters that failed alike: found, looked into, and what would come of a replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from boathook.db import dead_letter_groups
from boathook.db.database import Connection, Database
from boathook.db.dead_letter_groups import DeadLetterGroup as DeadLetterGroup  # noqa: PLC0414 - what these functions return
from boathook.db.dead_letter_groups import ReplayPreview
from boathook.db.delivery_commands import Key
from boathook.db.queries import listings
from boathook.db.queries.listings import DeliveryRow
from boathook.service.failure_causes import escalation_reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """Some of the groups that fit, with their types, and counts over all of them."""

    rows: Sequence[DeadLetterGroup]
    groups: int
    letters: int
    escalated: int
    """Groups that need more than a replay."""
    is_cut: bool
    """Whether there may be more groups than were looked at."""


async def list_groups(
    database: Database, *, recipient: str | None = None, code: str | None = None, first: int = 0, limit: int = 0
) -> GroupPage:
    """Return groups, the largest first.

    Args:
        database: where they are.
        recipient: a pattern; only groups of recipients like it.
        code: only groups with this error code.
        first: how many groups are skipped.
        limit: most groups; 0 means all.
    """
    found, is_cut = await dead_letter_groups.list_groups(database, recipient=recipient, code=code)
    chosen = found[first : first + limit] if limit else found[first:]
    return GroupPage(
        rows=await dead_letter_groups.with_types(database, chosen),
        groups=len(found),
        letters=sum(group.number for group in found),
        escalated=sum(bool(escalation_reasons(group)) for group in found),
        is_cut=is_cut,
    )


async def find_group(database: Database | Connection, key: UUID) -> DeadLetterGroup | None:
    """Return one group with its types; None if no dead letter belongs to it any more."""
    return await dead_letter_groups.find_group(database, key)


async def list_letters(
    database: Database | Connection, group: DeadLetterGroup, *, after: Key | None = None, limit: int
) -> Sequence[DeliveryRow]:
    """Return the letters of a group, those that died last first.

    Args:
        database: where they are.
        group: which group.
        after: the last letter of the page before; one that does not exist any more leads to the first page.
        limit: most letters.
    """
    place = None
    if after is not None:
        found = await listings.list_deliveries_of(database, *after)
        place = found[0] if found else None
    return await dead_letter_groups.list_dead_letters(database, group.key, after=place, limit=limit)


async def preview_replay(database: Database | Connection, group: DeadLetterGroup) -> ReplayPreview:
    """Return what would keep the dead letters of a group from running if they were replayed."""
    return await dead_letter_groups.preview_replay(database, group)
