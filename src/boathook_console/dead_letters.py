"""Pages of dead letters: groups, single dead letters, and the actions on them."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.plurals import counted
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import dead_letters as actions
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.selection import Acted
from boathook.service.operating import bulk_jobs, dead_letters, listings
from boathook.service.operating.dead_letters import DeadLetterCursor, DeadLetterGroup, DeadLetterPage, Key
from boathook.service.operating.listings import DeliveryRow, ListFilter
from boathook_console.derived import In, check_typed, read_form
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params
from boathook_console.system import JOBS_PATH

routes = Routes()
DEAD_LETTERS_PATH: Final = f"{BASE}/dead"
_GROUP_PATH: Final = f"{DEAD_LETTERS_PATH}/groups/"
_GROUPS: Final = 50
_LETTERS: Final = 50
_EXAMPLES: Final = 10
_HISTORY: Final = 100
_MAX_SELECTED: Final = 500
_FILTER_FIELDS: Final = ("source", "application", "type", "recipient", "code", "since", "until")


class _DescribedRow(msgspec.Struct, frozen=True):
    """A group or a dead letter with its description."""

    row: DeadLetterGroup | DeliveryRow
    sentence: str
    alerts: Sequence[str]


@routes.get("/dead", Permission.DEAD_LETTER_VIEW)
async def list_groups(context: ConsoleContext) -> Response:
    """Show dead letters in groups by cause."""
    params = query_params.get_texts(context.query, ("recipient", "code", "page"))
    page = int(params["page"]) if params["page"].isdecimal() and len(params["page"]) < 4 else 0
    group_page = await dead_letters.list_groups(
        context.app_context.database,
        recipient=params["recipient"] or None,
        code=params["code"] or None,
        first=page * _GROUPS,
        limit=_GROUPS,
    )
    has_more = group_page.groups > (page + 1) * _GROUPS
    return context.page(
        "dead/groups.html",
        groups=[_describe_group(row) for row in group_page.rows],
        letters=group_page.letters,
        kinds=group_page.groups,
        alerting=group_page.escalated,
        is_cut=group_page.is_cut,
        wishes=params,
        more=query_params.build_url(DEAD_LETTERS_PATH, params, page=page + 1) if has_more else "",
    )


@routes.get("/dead/letters", Permission.DEAD_LETTER_VIEW)
async def list_letters(context: ConsoleContext) -> Response:
    """Show single dead letters."""
    params = query_params.get_texts(context.query, _FILTER_FIELDS)
    letter_page, error = DeadLetterPage([], None, is_full=False), ""
    try:
        letter_page = await _search(context)
    except InvalidValue as problem:
        error = str(problem)
    cursor = (
        letter_page.place and f"{letter_page.place.dead_at.isoformat()}~{ids.show_delivery(*letter_page.place.key)}"
    )
    return context.page(
        "dead/list.html",
        letters=_describe_all(letter_page.rows),
        keys=await listings.find_event_keys(context.app_context.database, letter_page.rows),
        wishes=params,
        more=query_params.build_url(f"{DEAD_LETTERS_PATH}/letters", params, before=cursor) if cursor else "",
        is_full=letter_page.is_full,
        looked_back_to=letter_page.place and letter_page.place.dead_at,
        error=error,
    )


@routes.get("/dead/groups/{group}", Permission.DEAD_LETTER_VIEW)
async def show_group(context: ConsoleContext, status: int = 200, **errors: str) -> Response:
    """Show one group: the cause, the escalation reasons, its dead letters and its audit log."""
    async with context.work() as work:
        group = await bulk_jobs.get_group(work, context.path["group"])
    database, after = context.app_context.database, _read_after(context)
    rows = await dead_letters.list_letters(database, group, after=after, limit=_LETTERS)
    here = f"{_GROUP_PATH}{group.id}"
    return context.page(
        "dead/group.html",
        status,
        traceback=await listings.find_newest_traceback(database, (group.event_id, group.ordinal)),
        keys=await listings.find_event_keys(database, rows),
        group=_describe_group(group),
        newest=ids.show_delivery(group.event_id, group.ordinal),
        advice=dead_letters.advise(group.recipient, group.code),
        letters=_describe_all(rows),
        more=query_params.build_url(here, {}, after=rows[-1].id) if len(rows) == _LETTERS else "",
        history=await listings.list_audit(context.app_context.database, ListFilter(limit=_HISTORY), subject=group.id),
        errors=errors,
        is_ignoring="ignore" in errors or "ignore" in context.query,
        note=query_params.get_text(context.form, "note") or "",
    )


@routes.get("/dead/groups/{group}/replay", Permission.DEAD_LETTER_DECIDE)
async def preview_replay(context: ConsoleContext, status: int = 200, **errors: str) -> Response:
    """Show the effect of replaying a group."""
    async with context.work() as work:
        group = await bulk_jobs.get_group(work, context.path["group"])
        preview = await dead_letters.preview_replay(work.connection, group)
        examples = await dead_letters.list_letters(work.connection, group, limit=_EXAMPLES)
    return context.page(
        "dead/dry_run.html",
        status,
        group=_describe_group(group),
        foreseen=preview,
        examples=_describe_all(examples),
        errors=errors,
        wishes=query_params.get_texts(context.form or context.query, ("rate", "note")),
    )


@routes.post("/dead/groups/{group}/replay", Permission.DEAD_LETTER_DECIDE)
async def replay_group(context: ConsoleContext) -> Response:
    """Replay all dead letters of a group, in the background."""
    try:
        replay_input = read_form(context, actions.replay, "rate", "note", group=_group_of(context))
        return await _start_job(context, actions.replay, replay_input)
    except InvalidValue as error:
        return await preview_replay(context, 400, **{str(error.where[0]): str(error)})


@routes.post("/dead/groups/{group}/ignore", Permission.DEAD_LETTER_DECIDE)
async def ignore_group(context: ConsoleContext) -> Response:
    """Ignore all dead letters of a group, in the background."""
    try:
        ignore_input = read_form(context, actions.ignore, group=_group_of(context), note=context.field("note"))
        return await _start_job(context, actions.ignore, ignore_input)
    except InvalidValue as error:
        return await show_group(context, 400, ignore=str(error))


@routes.post("/dead/groups/{group}/purge", Permission.DEAD_LETTER_PURGE)
async def purge_group(context: ConsoleContext) -> Response:
    """Purge all dead letters of a group, in the background."""
    try:
        check_typed(context, actions.purge)
        purge_input = read_form(context, actions.purge, "note", group=_group_of(context))
        return await _start_job(context, actions.purge, purge_input)
    except InvalidValue as error:
        return await show_group(context, 400, purge=str(error))


def _group_of(context: ConsoleContext) -> str:
    return ids.show(ids.DEAD_GROUP, bulk_jobs.parse_group_id(context.path["group"]))


async def _start_job(context: ConsoleContext, operation: Operation[In, Acted], job_input: In) -> Response:
    """Start the job of an operation, and show it. Raises NotFound if nothing is left to do."""
    async with context.work() as work:
        acted = await operation(work, job_input)
    if acted.job is None:
        raise NotFound(f"{acted.notes[0]}: all were replayed, ignored or purged")
    return context.to(f"{JOBS_PATH}/{acted.job}")


@routes.post("/dead/decide", Permission.DEAD_LETTER_DECIDE)
async def decide(context: ConsoleContext) -> Response:
    """Apply the chosen action to the selected dead letters."""
    keys = _selected_keys(context)
    message, kind = "Select at least one failed delivery.", "bad"
    if keys:
        try:
            message, kind = await _decide(context, keys, context.field("do")), "good"
        except InvalidValue as error:
            message = f"Nothing changed: {error}."
    return context.to(await _return_url(context), message, kind)


@routes.get("/dead/{id}", Permission.DEAD_LETTER_VIEW)
async def show_letter(context: ConsoleContext, status: int = 200, **errors: str) -> Response:
    """Show one dead letter: the failure, every attempt, the audit log and the advice."""
    key = _key(context)
    letter = await listings.get_delivery(context.app_context.database, key)
    row = letter.row
    return context.page(
        "dead/show.html",
        status,
        letter=_describe(row),
        event=letter.event,
        chain=letter.chain,
        first=letter.first,
        group=await dead_letters.group_of(context.app_context, key),
        advice=dead_letters.advise(row.recipient, row.code),
        attempts=letter.attempts[::-1],
        effects=letter.side_effects,
        history=letter.audit[:_HISTORY],
        errors=errors,
        note=query_params.get_text(context.form, "note") or "",
    )


@routes.post("/dead/{id}/replay", Permission.DEAD_LETTER_DECIDE)
async def replay_letter(context: ConsoleContext) -> Response:
    """Replay one dead letter."""
    return context.to(f"{DEAD_LETTERS_PATH}/{context.path['id']}", await _decide(context, [_key(context)], "replay"))


@routes.post("/dead/{id}/replay-first", Permission.DEAD_LETTER_DECIDE)
async def replay_first(context: ConsoleContext) -> Response:
    """Handle the first event of a dead letter's chain again, and mark the dead letter as ignored."""
    async with context.work() as work:
        row = await dead_letters.replay_first(work, _key(context))
    return context.to(
        f"{DEAD_LETTERS_PATH}/{context.path['id']}", f"{row.id} is queued at {row.recipient}; this one is ignored."
    )


@routes.post("/dead/{id}/ignore", Permission.DEAD_LETTER_DECIDE)
async def ignore_letter(context: ConsoleContext) -> Response:
    """Ignore one dead letter."""
    try:
        return context.to(
            f"{DEAD_LETTERS_PATH}/{context.path['id']}", await _decide(context, [_key(context)], "ignore")
        )
    except InvalidValue as error:
        return await show_letter(context, 400, ignore=str(error))


@routes.post("/dead/{id}/purge", Permission.DEAD_LETTER_PURGE)
async def purge_letter(context: ConsoleContext) -> Response:
    """Delete one dead letter with its attempts."""
    try:
        return context.to(DEAD_LETTERS_PATH, await _decide(context, [_key(context)], "purge"))
    except InvalidValue as error:
        return await show_letter(context, 400, purge=str(error))


async def _decide(context: ConsoleContext, keys: Sequence[Key], decision: str) -> str:
    """Apply the chosen action to these dead letters, and return a message about the result."""
    names = [ids.show_delivery(*key) for key in keys]
    acted, verb = await _act(context, names, decision)
    if (error := acted.first_error()) is not None:
        raise error
    message = f"{_count(acted.done)} {verb}."
    if not acted.skipped:
        return message
    skipped = _count(len(acted.skipped))
    return f"{message} {skipped} skipped: purged, already pending, or no longer deliverable."


async def _act(context: ConsoleContext, names: list[str], decision: str) -> tuple[Acted, str]:
    async with context.work() as work:
        match decision:
            case "replay":
                replay = read_form(context, actions.replay, "note", ids=names)
                return await actions.replay(work, replay), "queued for replay"
            case "ignore":
                ignore = read_form(context, actions.ignore, ids=names, note=context.field("note"))
                return await actions.ignore(work, ignore), "ignored"
            case "purge" if context.may(Permission.DEAD_LETTER_PURGE):
                check_typed(context, actions.purge)
                return await actions.purge(work, read_form(context, actions.purge, "note", ids=names)), "purged"
            case _:
                raise InvalidValue("choose replay, ignore or purge", "do")


def _count(number: int) -> str:
    return counted(number, "failed delivery")


def _selected_keys(context: ConsoleContext) -> list[Key]:
    try:
        keys = [ids.read_delivery(str(value)) for value in context.form.getlist("id")]
    except ValueError as error:
        raise NotFound(str(error)) from None
    return list(dict.fromkeys(keys))[:_MAX_SELECTED]


async def _return_url(context: ConsoleContext) -> str:
    """Return the page that contained the form; the list of groups if that was the page of a group that is gone."""
    back = context.field("back")
    if back.startswith(_GROUP_PATH):
        key = bulk_jobs.parse_group_id(back.removeprefix(_GROUP_PATH))
        return back if await dead_letters.find_group(context.app_context.database, key) else DEAD_LETTERS_PATH
    return back if back.startswith((f"{DEAD_LETTERS_PATH}/", f"{DEAD_LETTERS_PATH}?")) else DEAD_LETTERS_PATH


def _key(context: ConsoleContext) -> Key:
    try:
        return ids.read_delivery(context.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None


def _read_after(context: ConsoleContext) -> Key | None:
    try:
        return ids.read_delivery(query_params.get_text(context.query, "after") or "")
    except ValueError:
        return None


def _read_cursor(context: ConsoleContext) -> DeadLetterCursor | None:
    at, _, reference = (query_params.get_text(context.query, "before") or "").partition("~")
    if not reference:
        return None
    try:
        return DeadLetterCursor(datetime.fromisoformat(at), ids.read_delivery(reference))
    except ValueError:
        raise InvalidValue("invalid page position; use the links on the page", "before") from None


async def _search(context: ConsoleContext) -> DeadLetterPage:
    read = partial(query_params.get_text, context.query)
    filters = ListFilter(
        source=read("source"),
        application=read("application"),
        type=read("type"),
        recipient=read("recipient"),
        code=read("code"),
        since=query_params.get_time(context.query, "since"),
        until=query_params.get_time(context.query, "until"),
        limit=_LETTERS,
    )
    return await dead_letters.search(context.app_context.database, filters, before=_read_cursor(context))


def _describe_group(group: DeadLetterGroup) -> _DescribedRow:
    return _DescribedRow(group, dead_letters.describe_group(group), dead_letters.escalation_reasons(group))


def _describe_all(rows: Sequence[DeliveryRow]) -> list[_DescribedRow]:
    return [_describe(row) for row in rows]


def _describe(row: DeliveryRow) -> _DescribedRow:
    alert = dead_letters.delivery_escalation_reason(row.replays) if row.state == "dead" else ""
    return _DescribedRow(
        row, dead_letters.describe_failure(row.recipient, row.attempts, row.code, row.note), [alert] if alert else []
    )
