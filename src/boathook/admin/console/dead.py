"""Dead letters: what failed, in groups and one by one, and what is decided about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from starlette.responses import Response

from boathook.admin import bulk, failures, operations
from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.journal import dead_groups, ledger
from boathook.journal.dead_groups import FoundLetters, Group, Place
from boathook.journal.ledger import DeliveryRow, Filter
from boathook.journal.moves import Action, Key, Selection

routes = Routes()
DEAD: Final = f"{BASE}/dead"
_GROUPS: Final = 50
_LETTERS: Final = 50
_EXAMPLES: Final = 10
_HISTORY: Final = 100
_MOST_TICKED: Final = 500
_WISHES: Final = ("source", "application", "type", "recipient", "code", "since", "until")


@dataclass(frozen=True, slots=True)
class _Told:
    """A group or a letter with what people are told of it."""

    row: Group | DeliveryRow
    sentence: str
    alarms: Sequence[str]


@routes.get("/dead", Permission.DEAD_LETTER_VIEW)
async def list_groups(visit: Visit) -> Response:
    """Show what failed, in groups."""
    wishes = asking.words(visit.query, ("recipient", "code", "page"))
    page = int(wishes["page"]) if wishes["page"].isdecimal() and len(wishes["page"]) < 4 else 0
    recipient, code = wishes["recipient"] or None, wishes["code"] or None
    groups, is_cut = await dead_groups.list_groups(visit.desk.database, recipient=recipient, code=code)
    shown = groups[page * _GROUPS : (page + 1) * _GROUPS]
    more = asking.link(DEAD, wishes, page=page + 1) if len(groups) > (page + 1) * _GROUPS else ""
    return visit.page(
        "dead/groups.html",
        groups=[_tell_group(one) for one in await dead_groups.with_types(visit.desk.database, shown)],
        letters=sum(group.number for group in groups),
        kinds=len(groups),
        alarming=sum(bool(failures.escalate(group)) for group in groups),
        is_cut=is_cut,
        wishes=wishes,
        more=more,
    )


@routes.get("/dead/letters", Permission.DEAD_LETTER_VIEW)
async def list_letters(visit: Visit) -> Response:
    """Show dead letters one by one."""
    wishes = asking.words(visit.query, _WISHES)
    found, error = FoundLetters([], None, is_full=False), ""
    try:
        found = await dead_groups.search_letters(visit.desk.database, _filter(visit), before=_place(visit))
    except InvalidValue as problem:
        error = str(problem)
    place = found.place and f"{found.place.died_at.isoformat()}~{ids.show_delivery(*found.place.key)}"
    return visit.page(
        "dead/letters.html",
        letters=_tell_all(found.rows),
        wishes=wishes,
        more=asking.link(f"{DEAD}/letters", wishes, before=place) if place else "",
        is_full=found.is_full,
        looked_back_to=found.place and found.place.died_at,
        error=error,
    )


@routes.get("/dead/groups/{group}", Permission.DEAD_LETTER_VIEW)
async def show_group(visit: Visit) -> Response:
    """Show one group: what failed, why it needs more than a replay, its letters, and who did what."""
    return await _show_group(visit)


async def _show_group(visit: Visit, status: int = 200, **errors: str) -> Response:
    async with visit.work() as work:
        group = await bulk.get_group(work, visit.path["group"])
    database = visit.desk.database
    after = await _last_letter(visit)
    rows = await dead_groups.page_letters(database, group.key, after=after, limit=_LETTERS)
    here = f"{DEAD}/groups/{group.id}"
    return visit.page(
        "dead/group.html",
        status,
        group=_tell_group(group),
        newest=ids.show_delivery(group.event_id, group.ordinal),
        advice=failures.advise(group.recipient, group.code),
        letters=_tell_all(rows),
        more=asking.link(here, {}, after=rows[-1].id) if len(rows) == _LETTERS else "",
        history=await ledger.list_audit(database, Filter(limit=_HISTORY), subject=group.id),
        errors=errors,
        note=asking.word(visit.form, "note") or "",
    )


@routes.get("/dead/groups/{group}/replay", Permission.DEAD_LETTER_DECIDE)
async def rehearse_replay(visit: Visit) -> Response:
    """Show what a replay of all of a group would do."""
    return await _rehearse(visit)


async def _rehearse(visit: Visit, status: int = 200, **errors: str) -> Response:
    async with visit.work() as work:
        group = await bulk.get_group(work, visit.path["group"])
        foreseen = await dead_groups.foresee(work.connection, group)
        examples = await dead_groups.page_letters(work.connection, group.key, limit=_EXAMPLES)
    return visit.page(
        "dead/rehearsal.html",
        status,
        group=_tell_group(group),
        foreseen=foreseen,
        examples=_tell_all(examples),
        errors=errors,
        wishes=asking.words(visit.form or visit.query, ("rate", "note")),
    )


@routes.post("/dead/groups/{group}/replay", Permission.DEAD_LETTER_DECIDE)
async def replay_group(visit: Visit) -> Response:
    """Let all of a group run again, in the background."""
    try:
        rate = asking.number(visit.form, "rate")
        async with visit.work() as work:
            note = asking.word(visit.form, "note") or ""
            task = await bulk.replay_group(work, visit.path["group"], rate=rate, note=note)
    except InvalidValue as error:
        return await _rehearse(visit, 400, **{str(error.where[0]): str(error)})
    return visit.to(f"{BASE}/jobs/{task.shown_id}")


@routes.post("/dead/groups/{group}/ignore", Permission.DEAD_LETTER_DECIDE)
async def ignore_group(visit: Visit) -> Response:
    """End all of a group as ignored, in the background."""
    try:
        async with visit.work() as work:
            task = await bulk.ignore_group(work, visit.path["group"], note=str(visit.form.get("note", "")))
    except InvalidValue as error:
        return await _show_group(visit, 400, ignore=str(error))
    return visit.to(f"{BASE}/jobs/{task.shown_id}")


@routes.post("/dead/groups/{group}/purge", Permission.DEAD_LETTER_PURGE)
async def purge_group(visit: Visit) -> Response:
    """Delete all of a group, in the background."""
    typed, note = (str(visit.form.get(name, "")) for name in ("typed", "note"))
    try:
        async with visit.work() as work:
            task = await bulk.purge_group(work, visit.path["group"], typed=typed, note=note)
    except InvalidValue as error:
        return await _show_group(visit, 400, purge=str(error))
    return visit.to(f"{BASE}/jobs/{task.shown_id}")


@routes.post("/dead/decide", Permission.DEAD_LETTER_DECIDE)
async def decide(visit: Visit) -> Response:
    """Do what was chosen with the letters that were ticked."""
    keys = _ticked(visit)
    back = _way_back(visit)
    if not keys:
        return visit.to(back, "Tick at least one letter.", "bad")
    try:
        return visit.to(back, await _decide(visit, keys, str(visit.form.get("do", ""))))
    except InvalidValue as error:
        return visit.to(back, f"Nothing was done: {error}.", "bad")


@routes.get("/dead/{id}", Permission.DEAD_LETTER_VIEW)
async def show_letter(visit: Visit) -> Response:
    """Show one dead letter: what failed, every attempt, who did what, and what to do next."""
    return await _show_letter(visit)


async def _show_letter(visit: Visit, status: int = 200, **errors: str) -> Response:
    database = visit.desk.database
    key = _key(visit)
    row = await ledger.get_delivery(database, *key)
    event, _ = await ledger.get_event(database, key[0])
    group = await dead_groups.group_of(database, key)
    return visit.page(
        "dead/letter.html",
        status,
        letter=_tell(row),
        event=event,
        group=group and ids.show(ids.DEAD_GROUP, group),
        advice=failures.advise(row.recipient, row.code),
        attempts=list(reversed(await ledger.list_attempts(database, *key))),
        effects=await ledger.list_effects(database, key[0], row.recipient, row.item_path),
        history=await ledger.list_audit(database, Filter(limit=_HISTORY), subject=row.id),
        errors=errors,
        note=asking.word(visit.form, "note") or "",
    )


@routes.post("/dead/{id}/replay", Permission.DEAD_LETTER_DECIDE)
async def replay_letter(visit: Visit) -> Response:
    """Let one letter run again."""
    return visit.to(f"{DEAD}/{visit.path['id']}", await _decide(visit, [_key(visit)], "replay"))


@routes.post("/dead/{id}/ignore", Permission.DEAD_LETTER_DECIDE)
async def ignore_letter(visit: Visit) -> Response:
    """End one letter as ignored."""
    try:
        return visit.to(f"{DEAD}/{visit.path['id']}", await _decide(visit, [_key(visit)], "ignore"))
    except InvalidValue as error:
        return await _show_letter(visit, 400, ignore=str(error))


@routes.post("/dead/{id}/purge", Permission.DEAD_LETTER_PURGE)
async def purge_letter(visit: Visit) -> Response:
    """Delete one letter with its attempts."""
    try:
        return visit.to(DEAD, await _decide(visit, [_key(visit)], "purge"))
    except InvalidValue as error:
        return await _show_letter(visit, 400, purge=str(error))


async def _decide(visit: Visit, keys: Sequence[Key], what: str) -> str:
    """Do what was chosen with these letters, and tell what was done."""
    database = visit.desk.database
    note = bulk.check_note(str(visit.form.get("note", "")))
    action = Action(actor=visit.actor, note=note or None)
    dead = await operations.check_dead(database, keys)
    chosen = Selection(Filter(), dead)
    match what:
        case "replay":
            done, verb = await operations.replay_dead(database, chosen, action), "will run again"
            visit.desk.rouse()
        case "ignore":
            bulk.require_note(note)
            done, verb = await operations.ignore_dead(database, chosen, action), "ignored"
        case "purge" if visit.may(Permission.DEAD_LETTER_PURGE):
            bulk.check_typed(str(visit.form.get("typed", "")))
            done, verb = await operations.purge_dead(database, chosen, action), "purged"
        case _:
            raise InvalidValue("choose what to do with them", "do")
    left = len(keys) - done
    told = f"{_count(done)} {verb}."
    return (
        told if not left else f"{told} {_count(left)} left: gone, on the way already, or not to be delivered any more."
    )


def _count(number: int) -> str:
    return "1 dead letter" if number == 1 else f"{number} dead letters"


def _ticked(visit: Visit) -> list[Key]:
    try:
        keys = [ids.read_delivery(str(value)) for value in visit.form.getlist("id")]
    except ValueError as error:
        raise NotFound(str(error)) from None
    return list(dict.fromkeys(keys))[:_MOST_TICKED]


def _way_back(visit: Visit) -> str:
    """Return the page of ours that the form stood on."""
    back = str(visit.form.get("back", ""))
    return back if back == DEAD or back.startswith((f"{DEAD}/", f"{DEAD}?")) else DEAD


def _key(visit: Visit) -> Key:
    try:
        return ids.read_delivery(visit.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None


async def _last_letter(visit: Visit) -> DeliveryRow | None:
    after = asking.word(visit.query, "after")
    if after is None:
        return None
    try:
        return await ledger.get_delivery(visit.desk.database, *ids.read_delivery(after))
    except (ValueError, NotFound):
        return None


def _place(visit: Visit) -> Place | None:
    at, _, letter = (asking.word(visit.query, "before") or "").partition("~")
    if not letter:
        return None
    try:
        return Place(datetime.fromisoformat(at), ids.read_delivery(letter))
    except ValueError:
        raise InvalidValue("this is no place among the dead letters", "before") from None


def _filter(visit: Visit) -> Filter:
    read = partial(asking.word, visit.query)
    return Filter(
        source=read("source"),
        application=read("application"),
        type=read("type"),
        recipient=read("recipient"),
        code=read("code"),
        since=asking.moment(visit.query, "since"),
        until=asking.moment(visit.query, "until"),
        limit=_LETTERS,
    )


def _tell_group(group: Group) -> _Told:
    return _Told(group, failures.tell_group(group), failures.escalate(group))


def _tell_all(rows: Sequence[DeliveryRow]) -> list[_Told]:
    return [_tell(row) for row in rows]


def _tell(row: DeliveryRow) -> _Told:
    alarm = failures.escalate_letter(row.replays) if row.state == "dead" else ""
    return _Told(row, failures.tell(row.recipient, row.attempts, row.code, row.note), [alarm] if alarm else [])
