"""Looking for events."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from starlette.responses import Response

from boathook.admin import searching
from boathook.admin.console.one_event import routes
from boathook.admin.console.pages import Visit
from boathook.admin.searching import Direct, Question
from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.domain.model import State
from boathook.journal.search import LARGEST_BODY, Look

__all__ = ["list_events", "read_moment", "routes", "source_choices"]

_MOST_LOOKS: Final = 100
"""How often a page that keeps looking looks again by itself."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS: Final = ("q", "text", "key", "source", "application", "type", "state", "since", "until")


@routes.get("/events")
async def list_events(visit: Visit) -> Response:
    """Show what fits a question."""
    fields = {name: visit.query.get(name, "").strip() for name in _FIELDS}
    try:
        question = _question(fields, visit.query.get("below", ""))
        found = await searching.answer(visit.desk.database, question, visit.desk.settings.sources)
    except InvalidValue as error:
        return _list(visit, 400, fields, None, {str(error.where[0]): str(error)})
    if isinstance(found, Direct) and len(found.named) == 1 and (place := _place_of(found)) is not None:
        return visit.to(place)
    return _list(visit, 200, fields, found, {})


def read_moment(text: str, field: str) -> datetime | None:
    """Read what people write into a field: ``2h``, ``7d`` or ISO 8601, UTC if it does not say; None where empty."""
    if not text:
        return None
    now = datetime.now(UTC)
    if match := re.fullmatch(r"(\d{1,6})([smhdw])", text):
        return now - timedelta(seconds=min(int(match[1]) * _UNITS[match[2]], 50 * 365 * 86_400))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue("write 2h, 7d or 2026-01-31T12:00", field) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not 1970 <= moment.year <= now.year + 10:
        raise InvalidValue("write a year between 1970 and ten years ahead", field)
    return max(moment, _BEGINNING)


def source_choices(visit: Visit, chosen: str) -> list[tuple[str, str]]:
    """Return the sources that can be chosen, with the one that was, even if it is configured no more."""
    names = dict.fromkeys([*visit.desk.settings.sources, *([chosen] if chosen else [])])
    return [("", "any"), *((name, name) for name in names)]


def _question(fields: Mapping[str, str], below: str) -> Question:
    return Question(
        words=fields["q"],
        text=fields["text"],
        key=fields["key"],
        source=fields["source"],
        application=fields["application"],
        type=fields["type"],
        state=fields["state"],
        since=read_moment(fields["since"], "since"),
        until=read_moment(fields["until"], "until"),
        below=_below(below),
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
        asked = {name: text for name, text in fields.items() if text}
        further = f"/console/events?{urlencode(asked | {'below': ids.show(ids.EVENT, look.place)})}"
    return visit.page(
        "events/list.html",
        status,
        fields=fields,
        errors=errors,
        states=[("", "any"), *((str(state), str(state)) for state in State)],
        sources=source_choices(visit, fields["source"]),
        look=look,
        direct=found if isinstance(found, Direct) else None,
        events=[] if found is None else found.events,
        further=further,
        keep=_keep(visit.query.get("keep", "")),
        most_looks=_MOST_LOOKS,
        largest=LARGEST_BODY,
        has_filters=any(text for name, text in fields.items() if name != "q"),
        text_url=f"/console/events?{urlencode({'text': fields['q']})}",
    )


def _keep(text: str) -> int:
    return min(int(text), _MOST_LOOKS) if re.fullmatch(r"[0-9]{1,3}", text) else 0


def _place_of(found: Direct) -> str | None:
    """Return the page of the one thing that was named; None where it is not stored."""
    (named,) = found.named
    kind = named.id.partition("_")[0]
    if kind == ids.CONFLICT:
        return f"/console/conflicts/{named.id}"
    if kind == ids.REJECTION:
        return f"/console/rejections/{named.id}"
    if not found.events:
        return None
    event = found.events[0].event.id
    if kind == ids.DELIVERY:
        return f"/console/events/{event}?delivery={ids.read_delivery(named.id)[1]}"
    return f"/console/events/{event}" + (f"?{urlencode({'item': named.item_path})}" if named.item_path else "")
