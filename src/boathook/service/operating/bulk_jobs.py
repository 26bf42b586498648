"""What bulk jobs act on, and what has become of it; `catalogue.jobs` lists and stops them.

A job on a group of dead letters covers those that had failed when it started; later ones are not touched.
"""

from uuid import UUID

from boathook.db import dead_letter_groups
from boathook.db.dead_letter_groups import DeadLetterGroup
from boathook.db.delivery_commands import ReplayOutcomes
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.service.unit_of_work import UnitOfWork


def parse_group_id(reference: str) -> UUID:
    """Return the key of a group id. Raises NotFound if it is invalid."""
    try:
        return ids.read(ids.DEAD_GROUP, reference)
    except ValueError as error:
        raise NotFound(str(error)) from None


async def get_group(work: UnitOfWork, reference: str) -> DeadLetterGroup:
    """Return a group of dead letters. Raises NotFound if it has no dead letters left."""
    group = await dead_letter_groups.find_group(work.connection, parse_group_id(reference))
    if group is None:
        raise NotFound(f"no dead letters are left in {reference}: all were replayed, ignored or purged")
    return group


def describe_outcomes(outcomes: ReplayOutcomes) -> str:
    """Return what has become of replayed deliveries as one sentence, without a full stop."""
    cause = ""
    if outcomes.same_cause:
        cause = (
            " with the same cause"
            if outcomes.same_cause == outcomes.dead
            else f" ({outcomes.same_cause} with the same cause)"
        )
    others = (
        (outcomes.ignored, "ignored"),
        (outcomes.dead, f"failed again{cause}"),
        (outcomes.retrying, "failed and will be retried"),
        (outcomes.waiting, "not attempted yet"),
    )
    parts = [f"{outcomes.succeeded} succeeded", *(f"{number} {words}" for number, words in others if number)]
    return f"{outcomes.number} replayed: {', '.join(parts)}"
