"""Operations on messages: delete their content permanently."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

from boathook.db import attempts as stored_attempts
from boathook.db import messages as stored
from boathook.db.applications import Application
from boathook.db.audit import record
from boathook.db.tasks import TaskOperation
from boathook.domain import ids
from boathook.domain.plurals import counted
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import Result
from boathook.service.fields import Input, Problem, Rule
from boathook.service.operating import tasks
from boathook.service.sending import applications
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Message"
MAX_NAMED: Final = 250
MAX_COUNTED: Final = 100_000
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A field of the name `ids` hides the module in the body of a class.
_APPLICATION: Final = ids.APPLICATION
_TASK: Final = ids.TASK


class Expunge(Input, frozen=True, kw_only=True):
    """The messages whose content is deleted."""

    application: Annotated[str, Rule(help="The application's id or uid.", argument="APPLICATION", prefix=_APPLICATION)]
    ids: Annotated[
        list[str] | None, Rule(help="Ids or eventIds of messages.", max_length=MAX_NAMED, argument="MESSAGE")
    ] = None
    all: Annotated[bool, Rule(help="All messages of the application, in the background.")] = False
    dry_run: Annotated[bool, Rule(help="Only count.")] = False

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with the ways to select together: exactly one is needed."""
        if bool(self.ids) is not self.all:
            return []
        return [Problem(("ids",), "give ids or `all`, not both" if self.all else "nothing selected: give ids or `all`")]


class Expunged(Result, frozen=True, kw_only=True):
    """What was deleted, or would be."""

    dry_run: bool
    matching: Annotated[int, Rule(help="How many messages are selected; at most 100,000 are counted.")]
    done: Annotated[int, Rule(help="The contents of how many messages were deleted by this request.")] = 0
    task: Annotated[str | None, Rule(help="The background task that deletes the others.", prefix=_TASK)] = None
    missing: Annotated[Sequence[str], Rule(help="The named messages that do not exist.")] = ()
    message: Annotated[str, Rule(help="The same in a sentence.")] = ""


class AttemptNamed(Input, frozen=True, kw_only=True):
    """The attempt whose response is deleted."""

    application: Annotated[str, Rule(help="The application's id or uid.", argument="APPLICATION", prefix=_APPLICATION)]
    message: Annotated[str, Rule(help="The message's id or eventId.", argument="MESSAGE")]
    attempt: Annotated[str, Rule(help="The attempt's id.", argument="ATTEMPT")]


class AttemptExpunged(Result, frozen=True, kw_only=True):
    """An attempt without the response to it."""

    id: str


@operation(
    "message.expunge",
    Permission.MESSAGE_EXPUNGE,
    Scope.ORGANIZATION,
    Http("POST", "/app/{application}/msg/expunge", 202),
    tag=TAG,
    undo=None,
    says="{message}",
    warns="delete the content of these messages of {application} permanently",
    must_confirm=True,
    must_type="expunge",
    examples=(
        "boathook applications expunge acme order-17 --yes",
        "boathook applications expunge acme --all --dry-run",
    ),
)
async def expunge(work: UnitOfWork, input: Expunge) -> Expunged:
    """Permanently delete the contents of messages; pending deliveries of them become dead letters.

    The messages stay, and cannot be sent again.
    """
    application = await applications.get(work, input.application)
    if input.all:
        return await _expunge_all(work, application, is_dry_run=input.dry_run)
    references = list(dict.fromkeys(input.ids or ()))
    identifiers = await stored.find_ids(work.connection, application.shown_id, references)
    missing = [reference for reference in references if reference not in identifiers]
    words = counted(len(set(identifiers.values())), "message")
    if not input.dry_run:
        await stored.expunge(work.connection, application.shown_id, list(identifiers.values()))
        for identifier in identifiers.values():
            await record(work.connection, work.actor, "message.expunge", ids.show(ids.MESSAGE, identifier))
    text = f"it would delete the content of {words}" if input.dry_run else f"deleted the content of {words}"
    lost = f"; there is no message {', '.join(missing)}" if missing else ""
    deleted = 0 if input.dry_run else len(identifiers)
    return Expunged(
        dry_run=input.dry_run, matching=len(identifiers), done=deleted, missing=missing, message=text + lost
    )


async def _expunge_all(work: UnitOfWork, application: Application, *, is_dry_run: bool) -> Expunged:
    number = await stored.count_contents(work.connection, application.shown_id, limit=MAX_COUNTED)
    words = f"{counted(number, 'message')}{' or more' if number == MAX_COUNTED else ''}"
    if is_dry_run:
        return Expunged(dry_run=True, matching=number, message=f"it would delete the content of {words}")
    span = {"since": _BEGINNING.isoformat(), "until": datetime.now(UTC).isoformat()}
    task = await tasks.start(work, TaskOperation.PURGE_CONTENT, span, application, subject=application.shown_id)
    text = f"{task.shown_id} deletes the content of {words} in the background"
    return Expunged(dry_run=False, matching=number, task=task.shown_id, message=text)


@operation(
    "message.expunge_response",
    Permission.MESSAGE_EXPUNGE,
    Scope.ORGANIZATION,
    Http("DELETE", "/app/{application}/msg/{message}/attempt/{attempt}/content", 204, is_derived=False),
    tag=TAG,
    undo=None,
    must_type="expunge",
)
async def expunge_response(work: UnitOfWork, reference: AttemptNamed) -> AttemptExpunged:
    """Permanently delete the stored response to an attempt."""
    # Imported only here, as it imports the endpoints, and their checks.
    from boathook.service.sending import attempts

    application = await applications.get(work, reference.application)
    row = await attempts.get(work, application, reference.message, reference.attempt)
    await stored_attempts.expunge(work.connection, application.shown_id, row.message.id, row.id)
    await record(work.connection, work.actor, "attempt.expunge", ids.show(ids.ATTEMPT, row.id))
    return AttemptExpunged(id=ids.show(ids.ATTEMPT, row.id))
