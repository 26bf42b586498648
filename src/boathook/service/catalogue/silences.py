"""Operations on silences: for a time, no messages are sent about matching alerts."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from msgspec.structs import asdict

from boathook.db import alerts
from boathook.db.alerts import StoredSilence
from boathook.db.audit import record
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.domain.filters import Pattern
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import PageInput, Result, read_id, read_iterator
from boathook.service.common_fields import RequiredNote
from boathook.service.fields import Input, Rule
from boathook.service.unit_of_work import UnitOfWork, new_id

TAG: Final = "Silence"
MAX_DURATION: Final = timedelta(days=365)
"""To silence a rule permanently, disable it."""


class Silence(Result, frozen=True, kw_only=True):
    """A silence."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.SILENCE)]
    rule: Annotated[str, Rule(help="The rules; * matches any characters.")]
    subject: Annotated[str, Rule(help="The subjects; * matches any characters.")]
    note: str
    actor: Annotated[str, Rule(help="Who created it.")]
    created_at: datetime
    until: Annotated[datetime, Rule(help="When it ends, or has ended.")]
    ended_by: Annotated[str | None, Rule(help="Who ended it early, if anyone has.")]


class CreatedSilence(Silence, frozen=True, kw_only=True):
    """A silence that was just created."""

    notes: Annotated[Sequence[str], Rule(help="What to know about it: no rule may match.")] = ()


class SilencePage(Result, frozen=True, kw_only=True):
    """A page of silences."""

    data: list[Silence]
    iterator: str | None
    done: bool


def _check_pattern(text: str) -> None:
    if not text or not text.isprintable():
        raise ValueError("write a name, or * for all")


def _check_duration(seconds: int) -> None:
    if not 0 < seconds <= MAX_DURATION.total_seconds():
        raise ValueError("must be positive and at most one year")


_Pattern = Annotated[str, Rule(max_length=300, check=_check_pattern)]


class NewSilence(Input, frozen=True, kw_only=True):
    """The alerts to silence, for how long and why."""

    rule: Annotated[_Pattern, Rule(help="Rule name; * matches any characters.")] = "*"
    subject: Annotated[_Pattern, Rule(help="Subject of the alert; * matches any characters.")] = "*"
    duration_seconds: Annotated[
        int,
        Rule(
            help="Duration, at most one year.",
            unit="seconds",
            example=7_200,
            option="--for",
            is_duration=True,
            check=_check_duration,
        ),
    ] = 4 * 3_600
    note: Annotated[RequiredNote, Rule(help="Reason; recorded with your name.")]


class SilenceNamed(Input, frozen=True, kw_only=True):
    """The silence that is meant."""

    id: Annotated[str, Rule(help="The silence's id.", argument="ID", prefix=ids.SILENCE)]


class SilenceFilter(PageInput, frozen=True, kw_only=True):
    """The silences to list."""

    ended: Annotated[bool, Rule(help="Include those that have ended.")] = False


@operation(
    "silence.create",
    Permission.ALERT_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/silence", 201),
    tag=TAG,
    undo="end it",
    says="{id}: silenced until {until}",
    examples=(
        "boathook alerts silence --rule error_rate --subject 'handler:crm' --for 2h --note 'the CRM moves tonight'",
        "boathook alerts silence --end sil_01h455vb4pex5vsknk084sn02q4",
    ),
)
async def create(work: UnitOfWork, new: NewSilence) -> CreatedSilence:
    """Send no messages about matching alerts for a time; they are still listed."""
    note = new.note.strip()
    until = datetime.now(UTC) + timedelta(seconds=new.duration_seconds)
    row = await alerts.insert_silence(
        work.connection, new_id(), rule=new.rule, subject=new.subject, note=note, actor=work.actor, until=until
    )
    await record(work.connection, work.actor, "alert.silence", row.shown_id, f"{new.rule} {new.subject}: {note}")
    rules, notes = work.app_context.settings.notifications.rules, []
    if not any(map(Pattern(new.rule).matches, rules)):
        notes = [f"no rule matches {new.rule!r}, so this silences nothing; the rules are {', '.join(sorted(rules))}"]
    return CreatedSilence(notes=notes, **asdict(_view(row)))


@operation(
    "silence.list",
    Permission.ALERT_VIEW,
    Scope.DEPLOYMENT,
    Http("GET", "/silence"),
    tag=TAG,
    examples=("boathook alerts silences --json",),
)
async def list_silences(work: UnitOfWork, input: SilenceFilter) -> SilencePage:
    """List silences, newest first."""
    before = None if input.iterator is None else read_iterator(ids.SILENCE, input.iterator)
    rows = await alerts.page_silences(work.connection, is_ended=input.ended, before=before, limit=input.limit + 1)
    data = [_view(row) for row in rows[: input.limit]]
    return SilencePage(data=data, iterator=data[-1].id if data else None, done=len(rows) <= input.limit)


@operation(
    "silence.end",
    Permission.ALERT_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/silence/{id}/end"),
    tag=TAG,
    undo="create another one",
    says="{id} has ended",
)
async def end(work: UnitOfWork, reference: SilenceNamed) -> Silence:
    """End a silence early; alerts that still fire are sent again."""
    row = await alerts.end_silence(work.connection, read_id(ids.SILENCE, reference.id), work.actor)
    if row is None:
        raise NotFound(f"unknown or ended silence {reference.id}")
    await record(work.connection, work.actor, "alert.unsilence", row.shown_id)
    return _view(row)


def _view(row: StoredSilence) -> Silence:
    return Silence(
        id=row.shown_id,
        rule=row.rule,
        subject=row.subject,
        note=row.note,
        actor=row.actor,
        created_at=row.created_at,
        until=row.ended_at or row.until,
        ended_by=row.ended_by,
    )
