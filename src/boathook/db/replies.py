"""What handlers answer senders who wait: kept with the end of their delivery, read by whoever keeps them waiting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from boathook.db.database import Database
from boathook.db.sql_functions import Arguments
from boathook.db.statements import load
from boathook.domain.model import Claim
from boathook.domain.replies import Reply

SQL = load(__file__)

CHANNEL: Final = "boathook_reply"
"""Carries the id of an event whose attempt has ended, for those that keep its sender waiting."""


@dataclass(frozen=True, slots=True)
class ReplyStatus:
    """How it stands with one event whose sender waits."""

    event_id: UUID
    reply: Reply | None
    """What the first handler that answered said; None where none has yet."""
    is_open: bool
    """Whether a delivery of the event is still pending or leased."""


def reply_arguments(claim: Claim, reply: Reply | None) -> Arguments:
    """Return the arguments of `boathook.db.sql_functions.ANSWER` for the end of *claim*."""
    event_id = str(claim.event_id)
    if reply is None:
        return (event_id, claim.recipient, None, None, None)
    return (event_id, claim.recipient, str(reply.status), reply.content_type, "\\x" + reply.body.hex())


async def find(database: Database, event_ids: Sequence[UUID]) -> list[ReplyStatus]:
    """Return how it stands with each of these events; one that is not stored has no reply and nothing open."""
    rows = await database.fetch(SQL["find_replies"], list(event_ids))
    return [
        ReplyStatus(
            row["id"],
            None
            if row["status"] is None
            else Reply(status=row["status"], body=row["body"], content_type=row["content_type"]),
            row["is_open"],
        )
        for row in rows
    ]
