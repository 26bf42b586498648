"""Tools that list what has failed by cause, and replay it after a preview."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidValue, NotFound
from boathook.domain.model import State
from boathook.service.access.authorization import Permission
from boathook.service.common_fields import Note, Pace
from boathook.service.fields import Input, Rule
from boathook.service.operating import bulk_jobs, dead_letters, listings, operations
from boathook.service.operating.dead_letters import DeadLetterGroup
from boathook.service.operating.listings import DeliveryRow, ListFilter
from boathook.service.sending import endpoints, messages
from boathook.service.sending.applications import Application, PageRequest
from boathook_mcp import inputs, previews
from boathook_mcp.outside import outside
from boathook_mcp.previews import LIFETIME, Preview, ReplayResult
from boathook_mcp.session import Reach, Session
from boathook_mcp.tool import compact, tool

MAX_FROZEN: Final = 500
"""Maximum of dead letters in one preview: they are replayed in one transaction."""
_MAX_NAMED: Final = 50
_PAGE: Final = 200
_SEARCH_S: Final = 3.0
_MAX_ENDPOINTS: Final = 250
_MAX_CAUSES: Final = 20


class ListFailures(Input, frozen=True, kw_only=True):
    """The failures to list."""

    application: inputs.Application = ""
    recipient: inputs.Recipient = ""
    code: inputs.Code = ""
    since: Annotated[inputs.Since, Rule(help="With a failure from this time on, such as 2h or 2026-01-31T12:00Z.")] = (
        None
    )
    limit: inputs.Limit = 20


@tool(Permission.DEAD_LETTER_VIEW, of_application=Permission.MESSAGE_VIEW)
async def list_failures(session: Session, request: ListFailures) -> dict[str, Any]:
    """List dead letters (deliveries whose attempts have all failed), grouped by cause.

    A cause is a recipient, an error code and similar errors. Largest group first, each with its number, times, advice,
    and reasons not to replay it once more.
    """
    async with session.reading() as reach:
        application = await reach.find_application(request.application)
        page = await dead_letters.list_groups(
            reach.work.connection,
            recipient=request.recipient or None,
            code=request.code or None,
            organization=reach.tenant,
        )
        recipients = None if application is None else await _recipients_of(reach, application)
        groups = [
            group
            for group in page.rows
            if (recipients is None or group.recipient in recipients)
            and (request.since is None or group.newest >= request.since)
        ]
        return {
            "groups": [
                _show_group(group, is_for_application=reach.application is not None)
                for group in groups[: request.limit]
            ],
            **compact(
                further_groups=max(0, len(groups) - request.limit) or None, may_be_incomplete=page.is_cut or None
            ),
        }


async def _recipients_of(reach: Reach, application: Application) -> set[str]:
    page = await endpoints.list_page(
        reach.work, application, PageRequest(None, is_ascending=False, limit=_MAX_ENDPOINTS)
    )
    return {endpoint.recipient for endpoint in page}


def _show_group(group: DeadLetterGroup, *, is_for_application: bool) -> dict[str, Any]:
    return compact(
        group=group.id,
        recipient=group.recipient,
        code=group.code,
        number=group.number,
        failed_again_after_replay=group.again or None,
        oldest=group.oldest,
        newest=group.newest,
        in_last_hour=group.hourly[-1] if group.hourly else None,
        latest_event=ids.show(ids.EVENT, group.event_id),
        advice=dead_letters.advise(group.recipient, group.code),
        do_not_replay_again_because=None if is_for_application else dead_letters.escalation_reasons(group),
        untrusted=outside(error=group.error, types=group.types),
    )


class PreviewReplay(Input, frozen=True, kw_only=True):
    """The dead letters to replay: by ids, by group, or by filters; times are those of the failure."""

    deliveries: Annotated[tuple[str, ...], Rule(help="Delivery ids (dlv_...).", max_length=_MAX_NAMED)] = ()
    group: Annotated[inputs.Name, Rule(help="Group id (grp_...) of list_failures.")] = ""
    application: inputs.Application = ""
    source: inputs.Source = ""
    type: inputs.EventType = ""
    recipient: inputs.Recipient = ""
    code: inputs.Code = ""
    since: inputs.Since = None
    until: inputs.Until = None

    @property
    def has_filter(self) -> bool:
        """Whether any filter is set."""
        names = ("application", "source", "type", "recipient", "code", "since", "until")
        return any(getattr(self, name) for name in names)


@tool(Permission.DEAD_LETTER_DECIDE, of_application=Permission.MESSAGE_RESEND, needs_writes=True)
async def preview_replay(session: Session, request: PreviewReplay) -> dict[str, Any]:
    """Find the dead letters that a replay would deliver again, and freeze them for 15 minutes; replays nothing.

    Give ids, a group, or filters. Show the user the number and the causes, and call replay only with their consent.
    """
    if sum((bool(request.deliveries), bool(request.group), request.has_filter)) != 1:
        raise InvalidValue("give deliveries, or a group, or filters: exactly one of the three", "deliveries")
    async with session.writing() as reach:
        rows, has_more = await _select(reach, request)
        if not rows:
            raise NotFound("no dead letters match; list_failures shows what has failed")
        now = await operations.read_clock(reach.work.connection)
        reference = await previews.save(reach.work, Preview(created_at=now, deliveries=tuple(row.id for row in rows)))
    causes = Counter((row.recipient, row.code) for row in rows)
    died = [row.ended_at for row in rows if row.ended_at is not None]
    return compact(
        preview=reference,
        number=len(rows),
        causes=[
            compact(recipient=recipient, code=code, number=number)
            for (recipient, code), number in causes.most_common(_MAX_CAUSES)
        ],
        oldest_failure=min(died),
        newest_failure=max(died),
        more_match=f"more match than the {MAX_FROZEN} of one preview; replay it, then preview again"
        if has_more
        else None,
        first_deliveries=[row.id for row in rows[:5]],
        expires_at=now + LIFETIME,
    )


async def _select(reach: Reach, request: PreviewReplay) -> tuple[list[DeliveryRow], bool]:
    """Return the selected dead letters in reach, most recent failure first, and whether more match."""
    if request.deliveries:
        return [await _find_dead(reach, text) for text in dict.fromkeys(request.deliveries)], False
    if request.group:
        key = bulk_jobs.parse_group_id(request.group)
        group = await dead_letters.find_group(reach.work.connection, key, organization=reach.tenant)
        if group is None:
            raise NotFound(f"no dead letters are left in {request.group}")
        rows = await dead_letters.list_letters(reach.work.connection, group, limit=MAX_FROZEN + 1)
        visible = [row for row in rows if await _is_in_reach(reach, row)]
        return visible[:MAX_FROZEN], len(rows) > MAX_FROZEN
    return await _search(reach, request)


async def _find_dead(reach: Reach, text: str) -> DeliveryRow:
    try:
        event_id, ordinal = ids.read_delivery(text)
    except ValueError as error:
        raise InvalidValue(str(error), "deliveries") from None
    rows = await listings.list_deliveries_of(reach.work.connection, event_id, ordinal)
    if not rows or not await _is_in_reach(reach, rows[0]):
        raise NotFound(f"there is no delivery {text}; it may have been purged or dropped")
    if rows[0].state != State.DEAD:
        raise InvalidState(f"{text} is {rows[0].state}, not a dead letter", "not_dead")
    return rows[0]


async def _search(reach: Reach, request: PreviewReplay) -> tuple[list[DeliveryRow], bool]:
    application = await reach.find_application(request.application)
    query = ListFilter(
        source=request.source or None,
        application=None if application is None else application.shown_id,
        type=request.type or None,
        recipient=request.recipient or None,
        code=request.code or None,
        since=request.since,
        until=request.until,
        limit=_PAGE,
    )
    rows: list[DeliveryRow] = []
    place, ends = None, time.monotonic() + _SEARCH_S
    while True:
        page = await dead_letters.search(reach.work.connection, query, before=place, organization=reach.tenant)
        rows += [row for row in page.rows if await _is_in_reach(reach, row)]
        place = page.place
        if place is None or len(rows) >= MAX_FROZEN or time.monotonic() > ends:
            return rows[:MAX_FROZEN], place is not None or len(rows) > MAX_FROZEN


async def _is_in_reach(reach: Reach, row: DeliveryRow) -> bool:
    """Return whether a caller may replay a dead letter; a token of one application only what goes to its endpoints."""
    is_visible = reach.application is None or row.recipient.startswith("endpoint:")
    return is_visible and await reach.owns(row.application)


class Replay(Input, frozen=True, kw_only=True):
    """The preview to replay."""

    preview: Annotated[str, Rule(help="The preview of preview_replay (prv_...).", max_length=64)]
    rate: Annotated[Pace | None, Rule(help="Maximum deliveries per second; default: no limit.")] = None
    note: Note = ""


@tool(Permission.DEAD_LETTER_DECIDE, of_application=Permission.MESSAGE_RESEND, needs_writes=True, is_read_only=False)
async def replay(session: Session, request: Replay) -> dict[str, Any]:
    """Deliver the dead letters of a preview again, each with its full number of attempts, to the same recipients.

    Those that have changed since the preview are skipped. Calling it again with the same preview returns the first
    result.
    """
    async with session.writing() as reach:
        result = await previews.claim_result(reach.work, request.preview)
        is_repeated = result is not None
        if result is None:
            preview = await previews.load(reach.work, request.preview)
            note = f"MCP preview {request.preview}: {request.note}".rstrip(": ")
            number = await _replay(reach, preview, note, request.rate)
            result = ReplayResult(replayed=number, skipped=len(preview.deliveries) - number)
            await previews.save_result(reach.work, request.preview, result)
    skipped = "they changed since the preview, or their recipient is deleted, disabled or their content is gone"
    return compact(
        replayed=result.replayed,
        skipped=result.skipped,
        skipped_because=skipped if result.skipped else None,
        is_repeated=is_repeated,
        next="explain_event or list_failures shows whether they succeed now" if result.replayed else None,
    )


async def _replay(reach: Reach, preview: Preview, note: str, rate: float | None) -> int:
    keys = [ids.read_delivery(text) for text in preview.deliveries]
    if reach.application is None:
        return len(
            await dead_letters.replay_selected(reach.work, keys, died_before=preview.created_at, note=note, rate=rate)
        )
    return await _resend(reach, reach.application, keys)


async def _resend(reach: Reach, application: Application, keys: Sequence[dead_letters.Key]) -> int:
    """Send messages again to the endpoints where they failed, once, as the users of an application may."""
    number = 0
    for event_id, ordinal in keys:
        (row,) = await listings.list_deliveries_of(reach.work.connection, event_id, ordinal) or (None,)
        if row is None or row.state != State.DEAD:
            continue
        try:
            message, endpoint = ids.show(ids.MESSAGE, event_id), row.recipient.removeprefix("endpoint:")
            await messages.resend(reach.work, application, message, endpoint)
        except (InvalidState, NotFound):  # the endpoint is deleted or disabled, or the content is gone
            continue
        number += 1
    return number
