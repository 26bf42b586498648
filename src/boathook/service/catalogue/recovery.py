"""Operations that send an endpoint messages of a time range again, in the background."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from msgspec.structs import force_setattr

from boathook.db.tasks import Task, TaskOperation
from boathook.delivery.tasks import count_resends
from boathook.domain import ids
from boathook.domain.endpoints import check_channels, check_tags
from boathook.domain.plurals import counted
from boathook.domain.windows import MAX_WINDOW
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import Result
from boathook.service.fields import Input, Rule
from boathook.service.operating import tasks
from boathook.service.sending import applications
from boathook.service.sending.messages import get_enabled_endpoint
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Endpoint"
_GRACE: Final = timedelta(minutes=5)
_MAX_RECOVERY_AGE: Final = timedelta(days=14) + _GRACE
_APPLICATION: Final = ids.APPLICATION
_ENDPOINT: Final = ids.ENDPOINT


class Span(Input, frozen=True, kw_only=True):
    """An endpoint, and when its messages were published."""

    application: Annotated[str, Rule(help="The application's id or uid.", argument="APPLICATION", prefix=_APPLICATION)]
    endpoint: Annotated[str, Rule(help="The endpoint's id or uid.", argument="ENDPOINT", prefix=_ENDPOINT)]
    since: Annotated[datetime, Rule(help="Published from this time on: 2h, 7d or ISO 8601.")]
    until: Annotated[datetime | None, Rule(help="Published before this time: 2h, 7d or ISO 8601; by default now.")] = (
        None
    )
    dry_run: Annotated[bool, Rule(help="Only count.")] = False


def _check_channel(channel: str) -> None:
    check_channels([channel])


def _check_tag(tag: str) -> None:
    check_tags([tag])


def _check_status_class(number: int) -> None:
    if number not in {0, 100, 200, 300, 400, 500}:
        raise ValueError("write 0, 100, 200, 300, 400 or 500")


class Resend(Span, frozen=True, kw_only=True):
    """The messages that an endpoint gets again."""

    types: Annotated[list[str] | None, Rule(help="Only these event types.", name="eventTypes", option="--type")] = None
    channel: Annotated[str | None, Rule(help="Only messages with this channel.", check=_check_channel)] = None
    tag: Annotated[str | None, Rule(help="Only messages with this tag.", check=_check_tag)] = None
    status: Annotated[
        int | None, Rule(help="Only messages in this state: 0 succeeded, 2 failed, 4 cancelled.", minimum=0, maximum=4)
    ] = None
    status_class: Annotated[
        int | None,
        Rule(
            help="Only messages whose last attempt had such a status, such as 500; 0: no response.",
            name="statusCodeClass",
            check=_check_status_class,
        ),
    ] = None


_DOES: Final[Mapping[str, tuple[str, str]]] = {
    TaskOperation.RECOVER: ("attempts the failed messages once more in the background", "attempt {} once more"),
    TaskOperation.REPLAY_MISSING: (
        "sends the messages that the endpoint was never sent in the background",
        "send {} that the endpoint was never sent",
    ),
    TaskOperation.BULK_REPLAY: ("attempts the messages once more in the background", "attempt {} once more"),
}
"""What each kind of task does, and would do."""


class StartedTask(Result, frozen=True, kw_only=True):
    """A background task, or how many messages it would send."""

    id: Annotated[str | None, Rule(help="Its id; null if the messages were only counted.", prefix=ids.TASK)] = None
    status: Annotated[str | None, Rule(help="running, finished or failed.")] = None
    task: Annotated[str, Rule(help="What it does.")]
    updated_at: datetime | None = None
    dry_run: bool = False
    matching: Annotated[int | None, Rule(help="How many messages it would send, if they were only counted.")] = None
    has_more: Annotated[bool, Rule(help="Whether there may be more: counting ends after 2 s.")] = False
    message: Annotated[str, Rule(help="The same in a sentence.")] = ""

    def __post_init__(self) -> None:
        # The answers of the Svix wire do not have it.
        force_setattr(self, "message", self._describe())

    def _describe(self) -> str:
        does, would = _DOES.get(self.task, (self.task, self.task))
        if not self.dry_run:
            return f"{self.id} {does}"
        words = counted(self.matching or 0, "message") + (" or more" if self.has_more else "")
        return f"it would {would.format(words)}"


@operation(
    "recovery.recover",
    Permission.MESSAGE_RESEND,
    Scope.APPLICATION,
    Http("POST", "/app/{application}/endpoint/{endpoint}/recover", 202, is_derived=False),
    tag=TAG,
    undo=None,
    says="{message}",
    examples=(
        "boathook endpoints recover acme crm --since 2h --dry-run",
        "boathook endpoints recover acme crm --since 2h",
    ),
)
async def recover(work: UnitOfWork, span: Span) -> StartedTask:
    """Attempt each failed message of an endpoint in a time range once, in the background; at most 14 days back."""
    return await _start(work, span, TaskOperation.RECOVER, _MAX_RECOVERY_AGE)


@operation(
    "recovery.replay_missing",
    Permission.MESSAGE_RESEND,
    Scope.APPLICATION,
    Http("POST", "/app/{application}/endpoint/{endpoint}/replay-missing", 202, is_derived=False),
    tag=TAG,
    undo=None,
    says="{message}",
    examples=("boathook endpoints replay-missing acme crm --since 7d",),
)
async def replay_missing(work: UnitOfWork, span: Span) -> StartedTask:
    """Send an endpoint the matching messages of a time range that it was never sent, in the background."""
    return await _start(work, span, TaskOperation.REPLAY_MISSING, MAX_WINDOW + _GRACE)


@operation(
    "recovery.resend",
    Permission.MESSAGE_RESEND,
    Scope.APPLICATION,
    Http("POST", "/app/{application}/endpoint/{endpoint}/bulk-replay", 202, is_derived=False),
    tag=TAG,
    undo=None,
    says="{message}",
    examples=("boathook endpoints resend acme crm --since 2h --status 0",),
)
async def resend(work: UnitOfWork, span: Resend) -> StartedTask:
    """Attempt each message of an endpoint in a time range once, in the background, whether it succeeded or failed."""
    values = {name: getattr(span, name) for name in ("types", "channel", "tag", "status", "status_class")}
    filters = {name: value for name, value in values.items() if value is not None and value != []}
    return await _start(work, span, TaskOperation.BULK_REPLAY, MAX_WINDOW + _GRACE, filters)


async def _start(
    work: UnitOfWork, span: Span, kind: TaskOperation, max_length: timedelta, filters: Mapping[str, Any] | None = None
) -> StartedTask:
    application = await applications.get(work, span.application)
    request = tasks.request_of(span.since, span.until, max_length) | dict(filters or {})
    endpoint = await get_enabled_endpoint(work, application, span.endpoint)
    if span.dry_run:
        matching, is_whole = await count_resends(work.connection, kind, application.id, endpoint.id, request)
        return StartedTask(task=kind.value, dry_run=True, matching=matching, has_more=not is_whole)
    return _view(
        await tasks.start(work, kind, request, application, endpoint_id=endpoint.id, subject=endpoint.shown_id)
    )


def _view(task: Task) -> StartedTask:
    return StartedTask(id=task.shown_id, status=task.state.value, task=task.kind.value, updated_at=task.updated_at)
