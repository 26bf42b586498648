"""Events for the owner's endpoints, ``booking.late`` and ``booking.price_changed``: when, once each, with what."""

import asyncio
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema_rs
import pytest
from pydantic import ValidationError

from boathook_fleet import hook, owner_events
from boathook_fleet.parse import Change
from boathook_fleet.records import Arrival, apply_changes, note_change
from boathook_fleet.settings import FleetSettings
from boathook_fleet.words import Action, Entity
from tests.apps.fleet.conftest import FLEET
from tests.apps.fleet.server import FleetServer, new_id, started
from tests.support import until


async def update(action: Action = Action.UPDATE, *, fails: bool = False, **data: Any) -> None:
    """Change the booking 7 as a handler does; a failing one rolls back."""
    now = datetime.now(UTC)
    arrival = Arrival(event_id=uuid.uuid4(), source="rentprog", type="x", accepted_at=now)
    async with hook.transaction() as tx:
        change = Change(entity=Entity.BOOKING, action=action, id="7", data={"id": 7, **data})
        await note_change(tx, arrival, change, now)
        entry, _ = await apply_changes(tx, Entity.BOOKING, "7")
        assert entry is not None
        await owner_events.publish_price(hook, tx, entry)
        if fails:
            raise RuntimeError


async def find_late() -> int:
    async with hook.transaction() as tx:
        return await owner_events.publish_late(hook, tx)


async def published() -> list[dict[str, Any]]:
    """Return the messages, each valid according to the schema of its type."""
    async with hook.transaction() as tx:
        rows = await tx.fetch(
            "select type, body from boathook.event where type like 'booking.%' order by accepted_at, id"
        )
    messages: list[dict[str, Any]] = [json.loads(row["body"]) for row in rows]
    for row, message in zip(rows, messages, strict=True):
        assert row["type"] == message["type"]
        assert problems(message) == []
    return messages


def problems(message: dict[str, Any]) -> list[str]:
    validator = jsonschema_rs.validator_for(owner_events.schemas()[message["type"]], validate_formats=True)
    return [str(error) for error in validator.iter_errors(message)]


def test_the_examples_of_the_schemas_are_valid_and_a_missing_field_is_not():
    for name, schema in owner_events.schemas().items():
        assert schema["examples"], name
        for example in schema["examples"]:
            assert problems(example) == []
            for field in schema["properties"]["data"]["required"]:
                rest = {key: value for key, value in example["data"].items() if key != field}
                assert problems({**example, "data": rest}), field


async def test_a_change_of_price_is_published_once(fleet: None):
    await update(Action.CREATE, total=310.0, car_id=5)
    await update(state="Активная")
    await update(total=310)
    assert await published() == [], "the price has not changed"
    await update(total=295.5)
    await update(total="295,50")
    await update(total=None)
    await update(total="free")
    (message,) = await published()
    data = message["data"]
    assert (data["booking_id"], data["price_before"], data["price"], data["car_id"]) == ("7", "310.00", "295.50", "5")


async def test_an_event_is_part_of_the_transaction_that_writes_the_price(fleet: None):
    await update(Action.CREATE, total=310.0)
    with pytest.raises(RuntimeError):
        await update(total=1, fails=True)
    assert await published() == []


def ending(minutes_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes_ago)).isoformat()


async def test_a_late_booking_is_published_once_for_each_end(fleet: None):
    await update(Action.CREATE, state="Активная", end_date=ending(5))
    assert await find_late() == 0, "ten minutes are allowed"
    await update(end_date=ending(11))
    assert sorted(await asyncio.gather(find_late(), find_late())) == [0, 1]
    assert await find_late() == 0
    await update(end_date=ending(-60))
    assert await find_late() == 0
    await update(end_date=ending(12))
    assert await find_late() == 1, "it was prolonged, and is late again"
    first, second = await published()
    assert first["data"]["ends_at"] != second["data"]["ends_at"]


@pytest.mark.parametrize(
    "change", [{"state": "Завершена"}, {"action": Action.DELETE}, {"end_date": ending(60 * 24 * 8)}]
)
async def test_what_has_ended_long_ago_is_closed_or_is_deleted_is_not_late(fleet: None, change: dict[str, Any]):
    await update(Action.CREATE, state="Активная", end_date=ending(11))
    await update(**change)
    assert await find_late() == 0


async def test_mutant_without_the_mark_a_booking_is_late_again_and_again(fleet: None, monkeypatch):
    monkeypatch.setitem(
        owner_events.SQL,
        "take_late",
        owner_events.SQL["take_late"].replace("late_reported_for is distinct from ends_at", "true"),
    )
    await update(Action.CREATE, state="Активная", end_date=ending(11))
    assert [await find_late(), await find_late()] == [1, 1]


async def test_without_an_application_nothing_is_published(fleet: None):
    hook.settings.__dict__["application"] = ""
    await update(Action.CREATE, state="Активная", end_date=ending(11), total=1)
    await update(total=2)
    assert await find_late() == 0
    assert await published() == []


@pytest.mark.parametrize("uid", ["fleet", "a b", "x" * 257])
def test_an_application_that_cannot_be_is_refused(uid: str):
    with pytest.raises(ValidationError, match="application"):
        FleetSettings.model_validate({"application": uid})


def test_the_types_have_schemas_and_a_price_reaches_the_application(tmp_path, admin_url, pg_template):
    with started(tmp_path, admin_url, pg_template, fleet=FLEET) as server:
        until(lambda: {"booking.late", "booking.price_changed"} <= {row["name"] for row in _types(server)})
        booking = new_id()
        server.send_event("booking_create", {"id": booking, "total": 100})
        server.known("bookings", booking)
        server.send_event("booking_update", {"id": booking, "total": [100, 120]})
        (event,) = until(lambda: server.rows("select * from boathook.event where type = 'booking.price_changed'"))
        assert json.loads(event["body"])["data"]["booking_id"] == str(booking)
        (type,) = [row for row in _types(server) if row["name"] == "booking.price_changed"]
        assert type["schemas"]["1"]["examples"]


def _types(server: FleetServer) -> list[dict[str, Any]]:
    types: list[dict[str, Any]] = server.client.get("/api/v1/event-type", params={"with_content": True}).json()["data"]
    return types
