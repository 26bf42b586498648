"""How long a branch has sent no webhook, in its hours of operation."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from boathook_fleet import hook
from boathook_fleet.alerts import find_silent
from boathook_fleet.branches import MAX_DAYS, open_seconds, read_branches, watch_branches
from boathook_fleet.parse import Change
from boathook_fleet.records import Arrival, apply_changes, note_change
from boathook_fleet.settings import BranchSettings, FleetSettings
from boathook_fleet.words import Action, Entity
from tests.apps.fleet.test_mutants import transaction, url  # noqa: F401 - url is a fixture

TBILISI = ZoneInfo("Asia/Tbilisi")
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: Any = TBILISI) -> datetime:
    return datetime.fromisoformat(f"2026-{text}").replace(tzinfo=zone)


@pytest.mark.parametrize(
    ("hours", "since", "until", "hours_open"),
    [
        ("00:00-24:00", "11-21 10:00", "11-21 13:30", 3.5),
        ("00:00-24:00", "11-21 23:00", "11-23 01:00", 26),
        ("09:00-21:00", "11-21 20:00", "11-22 10:00", 2),
        ("09:00-21:00", "11-21 21:00", "11-22 09:00", 0),
        ("09:00-21:00", "11-20 12:00", "11-22 12:00", 24),
        ("20:00-04:00", "11-21 19:00", "11-22 05:00", 8),
        ("20:00-04:00", "11-22 01:00", "11-22 02:00", 1),
        ("20:00-04:00", "11-22 10:00", "11-22 12:00", 0),
        ("09:00-21:00", "11-21 10:00", "11-21 10:00", 0),
        ("09:00-21:00", "11-21 12:00", "11-21 10:00", 0),
    ],
)
def test_only_hours_of_operation_count(hours: str, since: str, until: str, hours_open: float):
    minutes = BranchSettings(hours=hours).open_minutes
    assert open_seconds(minutes, at(since), at(until), TBILISI) == hours_open * 3_600
    assert open_seconds(minutes, at(since).astimezone(UTC), at(until).astimezone(UTC), TBILISI) == hours_open * 3_600


@pytest.mark.parametrize(("day", "hours_open"), [("10-25", 25), ("03-29", 23), ("11-21", 24)])
def test_days_on_which_the_clock_changes(day: str, hours_open: int):
    since = at(f"{day} 00:00", BERLIN)
    until = datetime.combine(since.date() + timedelta(days=1), since.time(), BERLIN)
    assert open_seconds((0, 24 * 60), since, until, BERLIN) == hours_open * 3_600


def test_a_silence_of_years_takes_no_longer():
    assert (
        open_seconds((0, 24 * 60), datetime(1990, 1, 1, tzinfo=UTC), at("11-21 00:00", UTC), UTC) == MAX_DAYS * 86_400
    )


@pytest.mark.parametrize(
    "hours", ["9:00-21:00", "09:00", "24:00-04:00", "09:00-25:00", "09:60-10:00", "09:00-21:00\n", ""]
)
def test_invalid_hours_are_refused(hours: str):
    with pytest.raises(ValidationError, match="hours"):
        FleetSettings.model_validate({"branches": {"1": {"hours": hours}}})


def settings(**branch: Any) -> FleetSettings:
    return FleetSettings.model_validate({"branches": {"1": {"silence_h": 3.0, **branch}}})


async def send(tx: Any, hours_ago: float, entity: Entity, id: str, **data: Any) -> None:
    accepted_at = datetime.now(UTC) - timedelta(hours=hours_ago)
    arrival = Arrival(event_id=uuid.uuid4(), source="rentprog", type="x", accepted_at=accepted_at)
    await note_change(tx, arrival, Change(entity=entity, action=Action.UPDATE, id=id, data=data), accepted_at)
    await apply_changes(tx, entity, id)


async def test_a_branch_is_silent_until_its_next_webhook(url: str):  # noqa: F811
    async with transaction(url) as tx:
        assert (await read_branches(tx, settings()))["1"]["is_silent"] is False, "it is not watched yet"
        await watch_branches(tx, settings())
        assert (await read_branches(tx, settings()))["1"]["is_silent"] is False
        await tx.execute("update fleet.branch_watch set since = now() - interval '4 hours'")
        await watch_branches(tx, settings())
        assert (await read_branches(tx, settings()))["1"]["is_silent"] is True
        await send(tx, 3.5, Entity.BOOKING, "7", company_id=1)
        assert (await read_branches(tx, settings()))["1"]["is_silent"] is True
        await send(tx, 1, Entity.BOOKING, "8", company_id=2)
        assert (await read_branches(tx, settings()))["1"]["is_silent"] is True, "another branch is not silent"
        await send(tx, 1, Entity.BOOKING, "7", state="x")
        state = (await read_branches(tx, settings()))["1"]
        assert (state["is_silent"], state["silent_h"]) == (False, 1.0), "a webhook counts for the branch of its object"


@pytest.mark.parametrize(("silence_h", "is_silent"), [(0.0, False), (4.9, True), (5.1, False)])
async def test_the_time_is_a_setting_and_zero_means_never(silence_h: float, is_silent: bool, url: str):  # noqa: F811
    async with transaction(url) as tx:
        await send(tx, 5, Entity.CAR, "7", company_id=1)
        assert (await read_branches(tx, settings(silence_h=silence_h)))["1"]["is_silent"] is is_silent


async def test_mutant_that_reads_the_webhook_alone_misses_the_branch_of_its_object(url: str, monkeypatch):  # noqa: F811
    from boathook_fleet import records

    monkeypatch.setitem(records.SQL, "note", records.SQL["note"].replace("{known_branch}", "null"))
    async with transaction(url) as tx:
        await send(tx, 5, Entity.BOOKING, "7", company_id=1)
        await send(tx, 1, Entity.BOOKING, "7", state="x")
        assert (await read_branches(tx, settings()))["1"]["is_silent"] is True


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("auto", "No webhook of branch Tbilisi for 4 hours of operation"),
        ("ru", "Нет вебхуков филиала Tbilisi: часов работы — 4"),
    ],
)
async def test_the_alert_ends_with_the_next_webhook(language: str, text: str, fleet: None):
    hook.settings.__dict__["language"] = language
    async with hook.transaction() as tx:
        assert await find_silent(tx) == []
        await tx.execute("update fleet.branch_watch set since = now() - interval '4 hours'")
        (reading,) = await find_silent(tx)
        assert (reading.subject, reading.value, reading.details["text"]) == ("4310", 4.0, text)
        await send(tx, 0, Entity.CAR, "7", company_id=4310)
        assert await find_silent(tx) == []
