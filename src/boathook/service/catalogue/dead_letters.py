"""Operations on dead letters."""

from typing import Annotated

from boathook.db import delivery_commands
from boathook.db.tasks import TaskOperation
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope
from boathook.service.catalogue.selection import Batch, DeadLetters, Note, Rate, on_dead_letters
from boathook.service.common_fields import RequiredNote
from boathook.service.fields import Rule


class Replay(DeadLetters, frozen=True, kw_only=True):
    """The dead letters to replay."""

    rate: Rate = None
    note: Note = ""


class Ignore(DeadLetters, frozen=True, kw_only=True):
    """The dead letters to ignore, and why."""

    note: Annotated[
        RequiredNote, Rule(help="Reason; stored as the outcome of the delivery.", example="refunded by hand")
    ]


class Purge(DeadLetters, frozen=True, kw_only=True):
    """The dead letters to delete."""

    note: Note = ""


@on_dead_letters(
    "dead_letter.replay",
    Permission.DEAD_LETTER_DECIDE,
    Scope.ORGANIZATION,
    Http("POST", "/dead-letter/bulk-replay", 202, "v1.dead-letter.bulk-replay"),
    jobs=(TaskOperation.REPLAY_GROUP, TaskOperation.REPLAY_DEAD),
    revives=True,
    undo=None,
    says="replayed",
    examples=(
        "boathook dead replay dlv_01h455vb4pex5vsknk084sn02q4_0",
        "boathook dead replay --source stripe --code TIMEOUT --since 2h --rate 20 --yes",
        "boathook dead replay --group grp_01h455vb4pex5vsknk084sn02q4 --dry-run",
        "boathook dead replay --group grp_01h455vb4pex5vsknk084sn02q4 --yes --follow",
        "boathook dead replay --first dlv_01h455vb4pex5vsknk084sn02q4_0",
    ),
)
async def replay(batch: Batch, input: Replay) -> None:
    """Replay dead letters, each with its full number of attempts."""
    await delivery_commands.replay_locked(batch.connection, batch.keys, batch.audit, pace=batch.pace(input.rate))


@on_dead_letters(
    "dead_letter.ignore",
    Permission.DEAD_LETTER_DECIDE,
    Scope.ORGANIZATION,
    Http("POST", "/dead-letter/bulk-ignore", 202, "v1.dead-letter.bulk-ignore"),
    jobs=(TaskOperation.IGNORE_GROUP, TaskOperation.IGNORE_DEAD),
    undo="replay the event",
    says="ignored",
    examples=(
        "boathook dead ignore dlv_01h455vb4pex5vsknk084sn02q4_0 --note 'refunded by hand'",
        "boathook dead ignore --recipient handler:crm --note 'the old CRM is gone' --yes",
    ),
)
async def ignore(batch: Batch, input: Ignore) -> None:  # noqa: ARG001 - its note is in the audit
    """Mark dead letters as ignored, with a note."""
    await delivery_commands.ignore_locked(batch.connection, batch.keys, batch.audit)


@on_dead_letters(
    "dead_letter.purge",
    Permission.DEAD_LETTER_PURGE,
    Scope.DEPLOYMENT,
    Http("POST", "/dead-letter/bulk-purge", 202, "v1.dead-letter.bulk-purge"),
    jobs=(TaskOperation.PURGE_GROUP, TaskOperation.PURGE_DEAD),
    undo=None,
    says="purged",
    must_type="purge",
    examples=("boathook dead purge --source test --since 7d --yes",),
)
async def purge(batch: Batch, input: Purge) -> None:  # noqa: ARG001 - its note is in the audit
    """Permanently delete dead letters and their attempts; they are counted as dropped. Their events are kept."""
    await delivery_commands.purge_locked(batch.connection, batch.keys, batch.audit)
