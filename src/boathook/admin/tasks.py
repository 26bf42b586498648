"""What can be asked to be done in the background, and how far it has come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from boathook.admin.desk import Work, new_id
from boathook.admin.messages import get_live_endpoint
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.domain.windows import LONGEST
from boathook.journal import applications, tasks
from boathook.journal.applications import Application
from boathook.journal.audit import note as note_down
from boathook.journal.tasks import Kind, Task

_GRACE: Final = timedelta(minutes=5)
_LONGEST_RECOVERY: Final = timedelta(days=14) + _GRACE
MOST_OF_APPLICATION: Final = 20
MOST_OF_ORGANIZATION: Final = 500
"""Tasks that run at once; all take turns, so those of one tenant hold up everybody else's."""
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """From when, inclusive, until when, exclusive; None is now."""

    since: datetime
    until: datetime | None = None


async def recover(work: Work, application: Application, endpoint: str, span: Span) -> Task:
    """Let each of an endpoint's failed messages of a span have one attempt.

    Raises:
        NotFound: there is no such endpoint.
        NotPossible: it is disabled.
        LimitReached: too many tasks are running.
        InvalidValue: the span is longer than 14 days, or ends before it begins.
    """
    return await _about_endpoint(work, application, endpoint, Kind.RECOVER, _request(span, _LONGEST_RECOVERY))


async def replay_missing(work: Work, application: Application, endpoint: str, span: Span) -> Task:
    """Let an endpoint have the messages of a span that it listens to and was never owed. Raises as `recover` does."""
    return await _about_endpoint(work, application, endpoint, Kind.REPLAY_MISSING, _request(span, LONGEST + _GRACE))


async def bulk_replay(
    work: Work, application: Application, endpoint: str, span: Span, filters: Mapping[str, Any]
) -> Task:
    """Let each message of a span have one attempt at an endpoint, those that succeeded and those that failed alike.

    Args:
        filters: any of types, channel, tag, status, status_class, as `boathook.journal.resends.Choice` has them.

    Raises:
        NotFound, NotPossible, InvalidValue: as `recover` does.
    """
    request = _request(span, LONGEST + _GRACE) | {name: value for name, value in filters.items() if value is not None}
    return await _about_endpoint(work, application, endpoint, Kind.BULK_REPLAY, request)


async def purge_contents(work: Work, application: Application) -> Task:
    """Let the contents of all of an application's messages be forgotten for good."""
    request = {"since": _BEGINNING.isoformat(), "until": datetime.now(UTC).isoformat()}
    return await begin(work, Kind.PURGE_CONTENT, request, application, subject=application.shown_id)


async def aggregate_types(work: Work) -> Task:
    """Let it be told which event types each application's endpoints name."""
    return await begin(work, Kind.AGGREGATE_TYPES, {}, subject=work.organization)


async def count_usage(work: Work, span: Span, names: Sequence[str] | None) -> tuple[Task, list[str]]:
    """Let the deliveries of each application's messages of a span be counted.

    Args:
        names: ids or uids of the applications; None is all.

    Returns:
        The task, and those of *names* that belong to no application.

    Raises:
        InvalidValue: none of *names* is known, or the span ends before it begins.
    """
    request = _request(span, LONGEST + _GRACE)
    if names is None:
        return await begin(work, Kind.COUNT_USAGE, request, subject=work.organization), []
    found = {name: await applications.find(work.connection, work.organization, name) for name in dict.fromkeys(names)}
    known = [one for one in found.values() if one is not None]
    if not known:
        raise InvalidValue("no application has any of these ids or uids", "appIds")
    request |= {"application_ids": [str(one.id) for one in known]}
    task = await begin(work, Kind.COUNT_USAGE, request, subject=work.organization)
    return task, [name for name, one in found.items() if one is None]


async def get(work: Work, reference: str) -> Task:
    """Return a task of the organization. Raises NotFound."""
    try:
        identifier = ids.read(ids.TASK, reference) if reference.startswith(f"{ids.TASK}_") else None
    except ValueError:
        identifier = None
    found = await tasks.find(work.connection, work.organization, identifier) if identifier else None
    if found is None:
        raise NotFound(f"there is no task {reference}")
    return found


async def _about_endpoint(
    work: Work, application: Application, reference: str, kind: Kind, request: Mapping[str, Any]
) -> Task:
    endpoint = await get_live_endpoint(work, application, reference)
    return await begin(work, kind, request, application, endpoint_id=endpoint.id, subject=endpoint.shown_id)


async def begin(
    work: Work,
    kind: Kind,
    request: Mapping[str, Any],
    application: Application | None = None,
    *,
    endpoint_id: UUID | None = None,
    subject: str,
    note: str = "",
) -> Task:
    """Let something be done in the background, and record who asked for it, about what, and why.

    Raises:
        LimitReached: too many tasks are running.
    """
    application_id = None if application is None else application.id
    of_organization, of_application = await tasks.count_running(work.connection, work.organization, application_id)
    if of_organization >= MOST_OF_ORGANIZATION or of_application >= MOST_OF_APPLICATION:
        raise LimitReached(f"{of_application or of_organization} tasks are running; wait until one of them has ended")
    task = await tasks.insert(
        work.connection,
        new_id(),
        kind,
        organization=work.organization,
        application_id=application_id,
        endpoint_id=endpoint_id,
        request=request,
    )
    said = f"{task.shown_id}: {note}" if note else task.shown_id
    await note_down(work.connection, work.actor, kind.value, subject, said)
    return task


def _request(span: Span, longest: timedelta) -> dict[str, Any]:
    now = datetime.now(UTC)
    until = min(span.until or now, now)
    if span.until is not None and span.until < span.since:
        raise InvalidValue("it lies before since", "until")
    if until - span.since > longest:
        raise InvalidValue(f"it lies more than {longest.days} days back", "since")
    return {"since": span.since.isoformat(), "until": until.isoformat()}
