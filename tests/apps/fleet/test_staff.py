"""The pages for staff: who sees them, what the timeline of a car and a booking says, and what attacks do."""

import re
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher

from boathook.domain import ids
from boathook.service.access import passwords
from boathook_fleet import hook, timeline
from boathook_fleet.parse import Change, read
from boathook_fleet.records import Arrival, apply_changes, note_change
from boathook_fleet.staff import LIVE_PAGE, PATH, ROLE, sign_in
from boathook_fleet.tables import TABLES
from boathook_fleet.words import Action, Entity
from tests import reality

BASE = "http://fleet.example"
PASSWORD = "correct horse battery"
AT = datetime(2026, 11, 21, 10, tzinfo=UTC)


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


def browser(path: str = PATH, **headers: str) -> httpx.AsyncClient:
    (mount,) = [mount for mount in hook.manifest.mounts if mount.path == path]
    transport = httpx.ASGITransport(app=mount.app, root_path=path, client=("192.0.2.7", 4000))
    return httpx.AsyncClient(transport=transport, base_url=BASE, headers={"origin": BASE, **headers})


@pytest.fixture
async def staff(fleet: None) -> AsyncIterator[httpx.AsyncClient]:
    """A browser in which a member of staff is signed in."""
    async with hook.transaction() as tx:
        await sign_in.add(tx, "anna", password=PASSWORD, roles=[ROLE])
    async with browser() as client:
        await client.post(f"{PATH}/sign-in", data={"name": "anna", "password": PASSWORD})
        yield client


async def send(minute: int, entity: Entity, id: str, action: Action = Action.UPDATE, **change: Any) -> uuid.UUID:
    """Handle a change of an object in this minute; return the id of its event."""
    now = AT + timedelta(minutes=minute)
    arrival = Arrival(event_id=uuid.uuid4(), source="rentprog", type="x", accepted_at=now)
    async with hook.transaction() as tx:
        full = Change(entity=entity, action=action, id=id, description=f"minute {minute}", **change)
        await note_change(tx, arrival, full, now, TABLES[entity].unparsed(full.data, UTC))
        await apply_changes(tx, entity, id)
    return arrival.event_id


async def page(client: httpx.AsyncClient, path: str, status: int = 200) -> str:
    response = await client.get(f"{PATH}{path}")
    assert response.status_code == status, response.text
    return response.text


def cells(html: str) -> list[list[str]]:
    """Return the texts of all table rows."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [[re.sub(r"<[^>]*>", "", cell).strip() for cell in re.split(r"<td[^>]*>", row)[1:]] for row in rows]


async def test_the_pages_need_a_member_of_staff(fleet: None):
    async with hook.transaction() as tx:
        await sign_in.add(tx, "guest", password=PASSWORD, roles=[])
    async with browser() as client:
        for path in ("/", "/car/1"):
            assert (await client.get(f"{PATH}{path}")).status_code == 303
        await client.post(f"{PATH}/sign-in", data={"name": "guest", "password": PASSWORD})
        for path in ("/", "/car/1"):
            assert (await client.get(f"{PATH}{path}")).status_code == 403


async def test_a_timeline_says_what_was_changed_by_whom_with_the_event(staff: httpx.AsyncClient):
    await send(0, Entity.EMPLOYEE, "218", Action.CREATE, data={"id": 218, "name": "Нино"})
    await send(1, Entity.CAR, "5", Action.CREATE, data={"id": 5, "number": "QA 417-AQ", "mileage": 100})
    event = await send(2, Entity.CAR, "5", data={"id": 5, "mileage": 300, "user_id": 218}, before={"mileage": 200})
    await send(3, Entity.CAR, "5", data={"id": 5, "mileage": "many", "state": "free"})
    html = await page(staff, "/car/5")
    assert "<h1>Car QA 417-AQ</h1>" in html
    assert ["mileage", "200", "300"] in cells(html), "the value before is the sender's"
    assert ["state", "\N{EN DASH}", "free"] in cells(html)
    assert ["mileage", "not understood", "many"] in cells(html)
    assert "by Нино" in html
    assert f'href="/console/events/{ids.show(ids.EVENT, event)}"' in html
    assert html.index("minute 3") < html.index("minute 2") < html.index("minute 1"), "newest first"
    assert "fields not understood" in html


async def test_the_value_before_is_that_of_the_change_before_if_the_sender_names_none(staff: httpx.AsyncClient):
    await send(1, Entity.BOOKING, "7", Action.CREATE, data={"id": 7, "total": 310.0, "state": "Новая"})
    await send(2, Entity.BOOKING, "7", data={"id": 7, "total": 295.5, "state": "Новая"})
    rows = cells(await page(staff, "/booking/7"))
    assert ["total", "310.0", "295.5"] in rows
    assert len([row for row in rows if row[0] == "state"]) == 1, "it has not changed"


async def test_a_late_change_is_marked_and_counts_for_nothing(staff: httpx.AsyncClient):
    first = {"data": {"id": 5, "mileage": 2}, "before": {"mileage": 1}}
    await send(1, Entity.CAR, "5", Action.CREATE, data={"id": 5, "mileage": 1})
    await send(2, Entity.CAR, "5", **first)
    await send(3, Entity.CAR, "5", data={"id": 5, "mileage": 3}, before={"mileage": 2})
    await send(4, Entity.CAR, "5", **first)
    await send(5, Entity.CAR, "5", data={"id": 5, "mileage": 4})
    html = await page(staff, "/car/5")
    assert html.count("late, not applied") == 1
    assert ["mileage", "3", "4"] in cells(html)


@pytest.mark.parametrize(("query", "shown"), [
    ("5", ["5", "900"]), ("qa417aq", ["5", "900"]), ("417 aq", ["5", "900"]), ("900", ["900"]), ("nothing", []), ("%", []),
    ("", ["900", "5"]), ("-", []), ("'", []), ("\0", ["900", "5"]), ("x" * 5_000, []),
])  # fmt: skip
async def test_cars_and_bookings_are_found_by_id_or_plate(query: str, shown: list[str], staff: httpx.AsyncClient):
    await send(1, Entity.CAR, "5", Action.CREATE, data={"id": 5, "number": "QA 417-AQ"})
    await send(2, Entity.BOOKING, "900", Action.CREATE, data={"id": 900, "car_id": 5})
    response = await staff.get(f"{PATH}/", params={"q": query})
    assert response.status_code == 200
    assert [row[1] for row in cells(response.text)] == shown


@pytest.mark.parametrize("path", ["/car/404", "/client/1", "/car/%00", "/car/" + "9" * 3_000, "/booking/%27"])
async def test_an_unknown_object_is_404(path: str, staff: httpx.AsyncClient):
    assert "There is no such car or booking." in await page(staff, path, 404)


async def test_what_senders_wrote_is_shown_as_text(staff: httpx.AsyncClient):
    evil = "<script>alert(1)</script>"
    await send(1, Entity.CAR, "5", Action.CREATE, data={"id": 5, "number": evil, "x<y": {"a": evil}}, actor=evil)
    for path in ("/", "/car/5"):
        assert evil not in await page(staff, path)


async def test_the_pages_are_in_russian_too(staff: httpx.AsyncClient):
    await send(1, Entity.CAR, "5", Action.CREATE, data={"id": 5, "number": "QA417AQ"})
    staff.headers["accept-language"] = "ru"
    html = await page(staff, "/car/5")
    assert "<h1>Автомобиль QA417AQ</h1>" in html
    assert "Госномер" in html
    async with browser(LIVE_PAGE, **{"accept-language": "ru"}) as client:
        assert "Подключиться" in (await client.get(f"{LIVE_PAGE}/")).text


async def test_each_documented_request_has_a_timeline(fleet: None):
    for minute, (name, body) in enumerate(reality.examples("rentprog", "[bc][oa][or]*").items()):
        change = read(body)
        if isinstance(change, Change):
            await send(minute, change.entity, change.id, change.action, data=change.data, before=change.before)
            async with hook.transaction() as tx:
                row = await timeline.read_object(tx, change.entity, change.id)
            assert row is not None, name
            assert row["changed"][0]["action"] == change.action


async def test_a_long_timeline_is_cut(staff: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timeline, "MAX_CHANGES", 2)
    for minute in range(3):
        await send(minute, Entity.CAR, "5", data={"id": 5, "mileage": minute})
    html = await page(staff, "/car/5")
    assert "The latest 2 changes are shown." in html
    assert "minute 0" not in html
