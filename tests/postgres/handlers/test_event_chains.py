"""Events that handlers publish have a cause: their dead letters show, filter and replay by the first event."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from boathook import Boathook, Dead, Event, SyncTransaction, Transaction
from boathook.db import delivery_commands, integrity, maintenance
from boathook.db.database import Database
from boathook.db.dead_letter_groups import list_groups, search_dead_letters
from boathook.db.delivery_commands import AuditContext, ReplaySchedule, Selection
from boathook.db.queries import event_chain, listings
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.model import Role
from boathook.service.app_platform import AppPlatform, open_platform
from boathook.service.operating import dead_letters
from tests import delivery_actions
from tests.commands import boathook_command
from tests.postgres.api_client import open_api_client
from tests.postgres.portal_client import open_console
from tests.worker_harness import accept_events, delivery_states, running_worker, settings_for, wait_for_states

WANTED = {"source": "shop", "type": "thing.*"}


@pytest.fixture
async def platform(db: Database) -> AsyncIterator[AppPlatform]:
    opened = open_platform(settings_for(db.url)).for_app("fleet")
    yield opened
    await opened.stop()


@pytest.fixture
def hook(platform: AppPlatform) -> Boathook:
    """Return handlers of a chain: a request, the change that it causes, and what that causes, which dies."""
    made = Boathook("fleet")
    made.bind(None, platform)

    @made.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        await made.publish(tx, application="fleet", type="entity.changed", payload={"car": event.json["car"]})

    @made.on(None, "entity.changed", application="fleet")
    def apply(event: Event, tx: SyncTransaction) -> Dead | None:
        if event.json["car"] == "broken":
            return Dead("BROKEN", "it is broken")
        made.publish_sync(tx, application="fleet", type="live.pushed", payload=event.json)
        return None

    @made.on(None, "live.pushed", application="fleet")
    async def push(event: Event, tx: Transaction) -> Dead:
        async with made.transaction() as own:
            await made.publish(own, application="fleet", type="push.failed", payload={})
        return Dead("GONE", "nobody listens")

    @made.on(None, "push.failed", application="fleet")
    async def tell(event: Event) -> None:
        pass

    return made


@pytest.fixture(autouse=True)
async def _sound(db: Database) -> AsyncIterator[None]:
    yield
    assert (await integrity.check_integrity(db, dedup_days=30)).violations == ()


async def die(db: Database, hook: Boathook, car: str = "broken") -> tuple[UUID, Any]:
    """Handle a request about a car until its chain has ended; return the request's event and the dead letter."""
    async with running_worker(db, hook):
        (first,) = await accept_events(db, {"car": car})
        await wait_for_states(db, **({"succeeded": 1} if car == "broken" else {"succeeded": 3}), dead=1)
    (letter,) = await listings.list_dead_letters(db, ListFilter())
    return first, letter


async def test_a_dead_letter_has_the_first_event_of_its_chain_and_is_found_by_it(db, hook):
    first, letter = await die(db, hook, "17")
    assert letter.type == "live.pushed"
    assert (letter.first.id, letter.first.source, letter.first.type) == (
        ids.show(ids.EVENT, first),
        "shop",
        "thing.done",
    )
    for wanted, number in (
        (ListFilter(source="shop"), 1), (ListFilter(type="thing.*"), 1), (ListFilter(**WANTED), 1),
        (ListFilter(source="shop", type="live.pushed"), 1), (ListFilter(type="live.pushed"), 1),
        (ListFilter(source="other"), 0), (ListFilter(type="entity.changed"), 0), (ListFilter(type="other"), 0),
    ):  # fmt: skip
        assert len(await listings.list_dead_letters(db, wanted)) == number
        assert len((await search_dead_letters(db, wanted, before=None)).rows) == number
        groups = await delivery_commands.count_dead(db, Selection(wanted))
        assert sum(group.number for group in groups) == number
    chain = await event_chain.read_chain(db, ids.read_event(letter.event_id))
    assert [(link.source, link.type, link.recipient) for link in chain] == [
        ("shop", "thing.done", "handler:fleet.note"),
        (None, "entity.changed", "handler:fleet.apply"),
        (None, "live.pushed", None),
    ]
    (group,), _ = await list_groups(db)
    (row,) = await dead_letters.list_letters(db, group, limit=5)
    assert row.first == letter.first


async def test_what_a_failed_handler_publishes_in_its_own_transaction_has_a_cause_too(db, hook):
    first, _ = await die(db, hook, "17")
    failed = await db.fetchval("select id from boathook.event where type = 'push.failed'")
    assert [link.type for link in await event_chain.read_chain(db, failed)] == [
        "thing.done", "entity.changed", "live.pushed", "push.failed",
    ]  # fmt: skip
    assert await db.fetchval("select first_id from boathook.event_cause where event_id = $1", failed) == first


async def test_an_attempt_that_is_rolled_back_leaves_no_cause_and_other_publishers_have_none(db, hook):
    @hook.on("studio")
    async def fail(event: Event, tx: Transaction) -> Dead:
        await hook.publish(tx, application="fleet", type="push.failed", payload={})
        return Dead("NO")

    async with running_worker(db, hook):
        await accept_events(db, {}, source="studio")
        await wait_for_states(db, dead=1)
        async with hook.transaction() as tx:
            await hook.publish(tx, application="fleet", type="push.failed", payload={})
        await wait_for_states(db, dead=1, succeeded=1)
    assert await db.fetchval("select count(*) from boathook.event_cause") == 0
    (letter,) = await listings.list_dead_letters(db, ListFilter())
    assert letter.first is None
    assert [link.type for link in await event_chain.read_chain(db, ids.read_event(letter.event_id))] == ["thing.done"]


async def test_a_selection_by_the_first_event_replays_the_last_link(db, hook):
    await die(db, hook)
    action, pace = AuditContext(actor="test"), ReplaySchedule(datetime.now(UTC))
    other = Selection(ListFilter(source="other"))
    assert await delivery_actions.replay_dead(db, other, action, pace=pace, limit=9) == []
    assert len(await delivery_actions.replay_dead(db, Selection(ListFilter(**WANTED)), action, pace=pace, limit=9)) == 1
    assert await delivery_states(db) == {"succeeded": 1, "pending": 1}


async def test_replaying_the_first_event_handles_it_again_and_ignores_the_dead_letter(db, hook, platform):
    first, letter = await die(db, hook)
    assert await platform.operations.replay([letter.id], first=True, note="the car is repaired") == [letter.id]
    note = await db.fetchval("select note from boathook.delivery_archive where state = 'ignored'")
    assert (
        note
        == f"replayed from its first event {ids.show(ids.EVENT, first)} as {ids.show_delivery(first, 1)}: the car is repaired"
    )
    async with running_worker(db, hook):
        await wait_for_states(db, ignored=1, succeeded=2, dead=1)  # it is still broken
    (again,) = await listings.list_dead_letters(db, ListFilter())
    assert again.id != letter.id
    assert again.first == letter.first
    audit = await db.fetch("select action, actor from boathook.audit order by id")
    assert [tuple(row) for row in audit] == [("delivery.replay", "app:fleet"), ("dead.ignore", "app:fleet")]
    assert await platform.operations.replay([letter.id], first=True) == []  # it is dead no more


async def test_the_first_event_is_not_replayed_twice_at_once(db, hook, platform):
    first, letter = await die(db, hook)
    await db.execute("update boathook.delivery set attempts = attempts where event_id = $1", first)
    async with running_worker(db, hook):
        await accept_events(db, {"car": "broken"})
        await wait_for_states(db, succeeded=2, dead=2)
    assert await platform.operations.replay([letter.id], first=True) == [letter.id]
    # Another dead letter of the same chain, whose first event is pending now.
    event_id = ids.read_event(letter.event_id)
    other = (await listings.list_dead_letters(db, ListFilter()))[0]
    await db.execute(
        "update boathook.event_cause set cause_id = $1, first_id = $1 where event_id = $2",
        first,
        ids.read_event(other.event_id),
    )
    assert event_id != ids.read_event(other.event_id)
    assert await platform.operations.replay([other.id], first=True) == []
    assert {row.id for row in await listings.list_dead_letters(db, ListFilter())} == {other.id}


async def test_a_dead_letter_of_a_request_itself_has_no_other_first_event(db, hook, platform):
    @hook.on("studio")
    async def fail(event: Event) -> Dead:
        return Dead("NO")

    async with running_worker(db, hook):
        await accept_events(db, {}, source="studio")
        await wait_for_states(db, dead=1)
    (letter,) = await platform.operations.dead_letters(source="studio")
    assert letter.first is None
    assert await platform.operations.replay([letter.id], first=True) == []
    assert await platform.operations.replay([letter.id]) == [letter.id]


async def test_apps_read_the_first_event_with_its_payload(db, hook, platform):
    first, letter = await die(db, hook)
    assert [row.id for row in await platform.operations.dead_letters(**WANTED)] == [letter.id]
    assert await platform.operations.dead_letters(source="other") == []
    shown = await platform.operations.delivery(letter.id)
    assert json.loads(shown["first_body"]) == {"car": "broken"}
    assert json.loads(shown["body"]) == {"car": "broken"}
    assert [link.event_id for link in shown["chain"]] == [ids.show(ids.EVENT, first), letter.event_id]
    assert shown["delivery"].first == letter.first


async def test_retention_of_the_first_event_leaves_its_id(db, hook):
    first, letter = await die(db, hook)
    for table, column in (
        ("event", "id"),
        ("delivery_archive", "event_id"),
        ("attempt", "event_id"),
        ("dedup", "event_id"),
    ):
        await db.execute(f"delete from boathook.{table} where {column} = $1", first)
    (letter,) = await listings.list_dead_letters(db, ListFilter())
    assert (letter.first.id, letter.first.type) == (ids.show(ids.EVENT, first), None)
    chain = await event_chain.read_chain(db, ids.read_event(letter.event_id))
    assert [(link.type, link.recipient) for link in chain] == [(None, None), ("entity.changed", None)]


async def test_retention_drops_causes_with_their_events(db, hook):
    await die(db, hook, "17")
    assert "event_cause" in maintenance.TIME_COLUMNS
    names = await db.fetch("select relname from pg_class where relname like 'event_cause_2%' and relkind = 'r'")
    assert len(names) >= 4
    assert await db.fetchval("select count(*) from boathook.event_cause_default") == 0


async def test_the_api_shows_filters_and_replays_by_the_first_event(db, hook):
    first, letter = await die(db, hook)
    async with open_api_client(db) as api:
        page = await api.ask(200, "GET", "/dead-letter?source=shop&type=thing.done")
        assert page["data"][0]["first"] == {
            "id": ids.show(ids.EVENT, first), "source": "shop", "application": None, "type": "thing.done",
        }  # fmt: skip
        shown = await api.ask(200, "GET", f"/dead-letter/{letter.id}")
        assert json.loads(shown["firstContent"]["body"]) == {"car": "broken"}
        assert [link["type"] for link in shown["chain"]] == ["thing.done", "entity.changed"]
        assert shown["chain"][0]["recipient"] == "handler:fleet.note"
        assert shown["first"] == page["data"][0]["first"]
        added = await api.ask(202, "POST", f"/dead-letter/{letter.id}/replay", {"first": True})
        assert (added["recipient"], added["state"]) == ("handler:fleet.note", "pending")
        await api.ask(404, "GET", f"/dead-letter/{letter.id}")


async def test_the_console_shows_the_chain_and_replays_the_first_event(db, hook):
    first, letter = await die(db, hook)
    async with open_console(db) as console:
        olga = await console.operator("olga", Role.OPERATOR)
        page = await olga.get_page("/console/dead/letters?source=shop&type=thing.done")
        assert f"/console/dead/{letter.id}" in page
        assert "of shop thing.done" in page
        assert f"/console/dead/{letter.id}" not in await olga.get_page("/console/dead/letters?source=other")
        page = await olga.get_page(f"/console/dead/{letter.id}")
        assert f"/console/events/{ids.show(ids.EVENT, first)}" in page
        assert "handler:fleet.note published the next one" in page
        assert "&#34;car&#34;" in page
        await olga.submit_form(f"/console/dead/{letter.id}/replay-first", on=f"/console/dead/{letter.id}")
        assert await delivery_states(db) == {"pending": 1, "ignored": 1, "succeeded": 1}
        assert "published the next one" in await olga.get_page(f"/console/dead/{letter.id}")


async def test_the_commands_show_filter_and_replay_by_the_first_event(db, hook, tmp_path):
    first, letter = await die(db, hook)
    (tmp_path / "boathook.toml").write_text(f'[database]\nurl = "{db.url}"\n')

    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(
            boathook_command, "dead", *arguments, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (row,) = map(json.loads, (await run("list", "--source", "shop", "--type", "thing.*", "--json")).splitlines())
    assert (row["id"], row["first"]["id"], row["first"]["type"]) == (
        letter.id,
        ids.show(ids.EVENT, first),
        "thing.done",
    )
    assert await run("list", "--source", "other", "--json") == ""
    assert "shop thing.done" in await run("list")
    shown = json.loads(await run("show", letter.id, "--json"))
    assert [link["type"] for link in shown["chain"]] == ["thing.done", "entity.changed"]
    assert "first_request" in shown
    text = await run("show", letter.id)
    assert f"{ids.show(ids.EVENT, first)}  shop thing.done  handler:fleet.note published:" in text
    assert text.count('"broken"') == 2
    assert json.loads(await run("replay", "--source", "shop", "--dry-run", "--json"))["matching"] == 1
    done = json.loads(await run("replay", "--first", letter.id, "--note", "repaired", "--json"))
    assert done["deliveries"] == [ids.show_delivery(first, 1)]
    assert await delivery_states(db) == {"pending": 1, "ignored": 1, "succeeded": 1}
