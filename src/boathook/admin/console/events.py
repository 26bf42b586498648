"""Looking for events."""

import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from starlette.datastructures import FormData, QueryParams
from starlette.responses import Response

from boathook.admin import bulk, searching
from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.jobs import JOBS
from boathook.admin.console.one_event import routes
from boathook.admin.console.pages import BASE, Visit
from boathook.admin.searching import UNHANDLED, Direct, Question
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.domain.model import State
from boathook.journal.ledger import Filter
from boathook.journal.search import LARGEST_BODY, Look

__all__ = ["list_events", "routes"]

_EVENTS: Final = f"{BASE}/events"
_MOST_LOOKS: Final = 100
"""How often a page that keeps looking looks again by itself."""
_FIELDS: Final = ("q", "text", "key", "source", "application", "type", "state", "since", "until")


@routes.get("/events", Permission.EVENT_VIEW)
async def list_events(visit: Visit) -> Response:
    """Show what fits a question."""
    fields = {name: visit.query.get(name, "").strip() for name in _FIELDS}
    try:
        question = _question(visit.query, fields)
        found = await searching.answer(visit.desk.database, question, visit.desk.settings.sources)
    except InvalidValue as error:
        return _list(visit, 400, fields, None, {str(error.where[0]): str(error)})
    if isinstance(found, Direct) and len(found.named) == 1 and (place := _place_of(found)) is not None:
        return visit.to(place)
    return _list(visit, 200, fields, found, {})


def _question(form: QueryParams | FormData, fields: Mapping[str, str]) -> Question:
    return Question(
        words=fields["q"],
        text=fields["text"],
        key=fields["key"],
        source=fields["source"],
        application=fields["application"],
        type=fields["type"],
        state=fields["state"],
        since=asking.moment(form, "since"),
        until=asking.moment(form, "until"),
        below=_below(str(form.get("below", ""))),
    )


def _below(text: str) -> UUID | None:
    try:
        return ids.read_event(text) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "q") from None


def _list(
    visit: Visit, status: int, fields: Mapping[str, str], found: Direct | Look | None, errors: Mapping[str, str]
) -> Response:
    look = found if isinstance(found, Look) else None
    further = None
    if look is not None and look.place is not None:
        further = asking.link(_EVENTS, fields, below=ids.show(ids.EVENT, look.place))
    return visit.page(
        "events/list.html",
        status,
        fields=fields,
        errors=errors,
        states=[
            ("", "any"),
            *((str(state), str(state)) for state in State),
            (UNHANDLED, "unhandled: no handler matched"),
        ],
        can_route=_can_route(fields),
        sources=asking.sources(visit.desk.settings.sources, fields["source"]),
        look=look,
        direct=found if isinstance(found, Direct) else None,
        events=[] if found is None else found.events,
        further=further,
        keep=_keep(visit.query.get("keep", "")),
        most_looks=_MOST_LOOKS,
        largest=LARGEST_BODY,
        has_filters=any(text for name, text in fields.items() if name != "q"),
        text_url=asking.link(_EVENTS, {}, text=fields["q"]),
    )


def _can_route(fields: Mapping[str, str]) -> bool:
    """Return whether a bulk decision can be about what is shown: part of all events, by no text, key or delivery."""
    is_known = not any(fields[name] for name in ("q", "text", "key")) and fields["state"] in {"", UNHANDLED}
    return is_known and any(fields.values())


@routes.post("/events/route", Permission.EVENT_REPLAY)
async def route(visit: Visit) -> Response:
    """Begin to route the events of a filter again, by today's handlers."""
    fields = {name: str(visit.form.get(name, "")).strip() for name in _FIELDS}
    try:
        if not _can_route(fields):
            raise InvalidValue(
                "choose a filter, but no text, key or state of deliveries, to route events again", "state"
            )
        searching.check(_question(visit.form, fields))
        wanted = Filter(
            source=fields["source"] or None,
            application=fields["application"] or None,
            type=fields["type"] or None,
            since=asking.moment(visit.form, "since"),
            until=asking.moment(visit.form, "until"),
            is_unhandled=fields["state"] == UNHANDLED,
        )
        async with visit.work() as work:
            to = str(visit.form.get("to", "")).strip() or None
            task = await bulk.route_events(work, wanted, to=to, note=str(visit.form.get("note", "")))
    except (InvalidValue, LimitReached, NotFound) as error:
        return visit.to(asking.link(_EVENTS, fields), str(error), kind="bad")
    return visit.to(f"{JOBS}/{task.shown_id}")


def _keep(text: str) -> int:
    return min(int(text), _MOST_LOOKS) if re.fullmatch(r"[0-9]{1,3}", text) else 0


def _place_of(found: Direct) -> str | None:
    """Return the page of the one thing that was named; None where it is not stored."""
    (named,) = found.named
    kind = named.id.partition("_")[0]
    if kind == ids.CONFLICT:
        return f"{BASE}/conflicts/{named.id}"
    if kind == ids.REJECTION:
        return f"{BASE}/rejections/{named.id}"
    if not found.events:
        return None
    event = found.events[0].event.id
    if kind == ids.DELIVERY:
        return f"{_EVENTS}/{event}?delivery={ids.read_delivery(named.id)[1]}"
    return asking.link(f"{_EVENTS}/{event}", {}, item=named.item_path)
