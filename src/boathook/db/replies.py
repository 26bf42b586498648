"""Stores the replies of handlers to waiting senders, with the end of their delivery, and reads them for gateways."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Database
from boathook.db.sql_functions import Arguments
from boathook.db.statements import load
from boathook.domain.model import Claim
from boathook.domain.replies import Reply

SQL = load(__file__)

CHANNEL: Final = "boathook_reply"
"""Announces the id of an event whose attempt has ended, to gateways with a waiting sender."""


class ReplyStatus(msgspec.Struct, frozen=True):
    """The reply status of one event with a waiting sender."""

    event_id: UUID
    reply: Reply | None
    """The first handler's reply; None if there is none yet."""
    is_open: bool
    """Whether the event has a pending or leased delivery."""


def reply_arguments(claim: Claim, reply: Reply | None) -> Arguments:
    """Return the arguments of `boathook.db.sql_functions.ANSWER` at the end of *claim*."""
    event_id = str(claim.event_id)
    if reply is None:
        return (event_id, claim.recipient, None, None, None)
    return (event_id, claim.recipient, str(reply.status), reply.content_type, "\\x" + reply.body.hex())


async def find(database: Database, event_ids: Sequence[UUID]) -> list[ReplyStatus]:
    """Return the status of each of these events; one that is not stored has no reply and no open delivery."""
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
