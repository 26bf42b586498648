"""Operations on one delivery: retry it now, or deliver its event to its recipient again."""

from typing import Annotated, assert_never

from boathook.db import delivery_commands
from boathook.db.delivery_commands import AuditContext, Key
from boathook.db.queries import listings
from boathook.db.queries.listings import DeliveryRow
from boathook.domain import ids
from boathook.domain.errors import InvalidTransition
from boathook.domain.model import State
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import dead_letters
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.selection import Note
from boathook.service.catalogue.values import Result
from boathook.service.fields import Input, Rule
from boathook.service.operating.operations import describe_replay
from boathook.service.unit_of_work import UnitOfWork, check_owner

TAG = "Delivery"


class DeliveryNamed(Input, frozen=True, kw_only=True):
    """The delivery that is meant, and why."""

    id: Annotated[str, Rule(help="The delivery's id.", argument="ID", prefix=ids.DELIVERY)]
    note: Note = ""


class DeliveredAgain(Result, frozen=True, kw_only=True):
    """What became of a delivery that is to be sent again."""

    delivery: Annotated[str, Rule(help="The delivery that was named.", prefix=ids.DELIVERY)]
    pending: Annotated[
        str | None,
        Rule(help="The delivery that is pending now: a new one if it had ended.", prefix=ids.DELIVERY),
    ]
    is_due: Annotated[bool, Rule(help="False if an attempt is running, and nothing changed.")]
    message: Annotated[str, Rule(help="What was done, and what the next attempt waits for.")]


@operation(
    "delivery.retry",
    Permission.EVENT_REPLAY,
    Scope.ORGANIZATION,
    Http("POST", "/delivery/{id}/retry"),
    tag=TAG,
    undo=None,
    says="{message}",
    examples=("boathook deliveries retry dlv_01h455vb4pex5vsknk084sn02q4_0",),
)
async def retry(work: UnitOfWork, input: DeliveryNamed) -> DeliveredAgain:
    """Retry a delivery now, instead of at its next attempt; a dead letter gets its full number of attempts again.

    To deliver an event again that a recipient has handled, use events replay.
    """
    row = await _find(work, input)
    if State(row.state) in {State.SUCCEEDED, State.IGNORED}:
        raise InvalidTransition(f"{row.id} is {row.state}; to run it again, replay its event {row.event_id}")
    return await _describe(work, row, await _send_again(work, row, input))


@operation(
    "delivery.replay",
    Permission.EVENT_REPLAY,
    Scope.ORGANIZATION,
    Http("POST", "/delivery/{id}/replay"),
    tag=TAG,
    undo=None,
    says="{message}",
    examples=("boathook deliveries replay dlv_01h455vb4pex5vsknk084sn02q4_0",),
)
async def replay(work: UnitOfWork, input: DeliveryNamed) -> DeliveredAgain:
    """Deliver the event of a delivery to its recipient again, in whatever state it is.

    One that has ended gets a new delivery; a dead letter, and one that waits for its next attempt, are due now.
    """
    row = await _find(work, input)
    return await _describe(work, row, await _send_again(work, row, input))


async def _find(work: UnitOfWork, input: DeliveryNamed) -> DeliveryRow:
    """Return the delivery, for a key of an organization one of its own. Raises NotFound."""
    row = await listings.get_delivery(work.connection, *ids.read_delivery(input.id))
    if work.caller.tenant is not None:
        await check_owner(work, row.id, row.application)
    return row


async def _send_again(work: UnitOfWork, row: DeliveryRow, input: DeliveryNamed) -> Key | None:
    """Return the delivery that is pending now; None if an attempt is running."""
    key, audit = ids.read_delivery(row.id), AuditContext(actor=work.actor, note=input.note.strip() or None)
    match State(row.state):
        case State.DEAD:
            acted = await dead_letters.replay(work, dead_letters.Replay(ids=[row.id], note=input.note))
            for skipped in acted.skipped:
                raise skipped.error()
            return key
        case State.SUCCEEDED | State.IGNORED:
            return await delivery_commands.replay_delivery(work.connection, key, audit)
        case State.PENDING | State.LEASED:
            return key if await delivery_commands.retry_delivery(work.connection, key, audit) else None
        case _ as never:
            assert_never(never)


async def _describe(work: UnitOfWork, row: DeliveryRow, pending: Key | None) -> DeliveredAgain:
    return DeliveredAgain(
        delivery=row.id,
        pending=None if pending is None else ids.show_delivery(*pending),
        is_due=pending is not None,
        message=await describe_replay(work.connection, row, pending),
    )
