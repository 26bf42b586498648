"""Accepting a stored conflict: it becomes a new event, once, whoever asks and through whichever interface."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from boathook.db import delivery_commands
from boathook.db.database import Database
from boathook.db.messages import record_conflict
from boathook.db.queries import event_history, listings
from boathook.db.queries.event_history import read_history
from boathook.db.queries.listings import ListFilter
from boathook.db.route_registry import register
from boathook.delivery import tasks as runner
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidValue, NotFound
from boathook.domain.messages import Message
from boathook.domain.model import Duplicate, Origin, Role, Route
from boathook.handlers.outbox import Outbox
from boathook.service.access.authorization import Principal
from boathook.service.caller import HOST
from boathook.service.catalogue import conflicts as actions
from boathook.service.catalogue import jobs, stored_requests
from boathook.service.catalogue.conflicts import Difference
from boathook.service.catalogue.jobs import JobNamed
from boathook.service.catalogue.stored_requests import Outcome
from boathook.service.job_steps import make_service_step
from boathook.service.sending.message_store import to_event
from boathook.service.unit_of_work import AppContext, UnitOfWork
from tests.endpoint_factory import add_application, add_endpoint, publish
from tests.postgres.api_client import KEY, make_context, make_token, open_api_client
from tests.postgres.db.test_integrity import Store, new_event
from tests.postgres.portal_client import open_console
from tests.postgres.receiving.test_batches import Sender, thing, to
from tests.support import LOCK_WAITED_FOR, eventually

LATER = b'{"amount": 900}'


@pytest.fixture
def context(db: Database, tmp_path: Path) -> AppContext:
    return make_context(db, server__data_dir=str(tmp_path), outbound__encryption_keys=[KEY])


@pytest.fixture
async def store(db: Database) -> Store:
    await register(db, "shop", [Route(recipient="handler:mail", app="shop", source="stripe", types=("payment.*",))])
    return Store(db)


async def add_conflict(store: Store, key: str = "k1", **changes: Any) -> UUID:
    """Store an event, then a conflict with it; return the conflict's id."""
    version = await store.one("select version from boathook.route_version")
    first, later = (replace(new_event(key, body=body), routes_version=version) for body in (b'{"amount": 100}', LATER))
    later = replace(later, headers='{"x-shop": "a"}', content_type="application/json; v=2", **changes)
    await store.events.append([first])
    assert await store.events.append([later]) == [Duplicate(first.id, conflict=True)]
    return later.id


async def accept(context: AppContext, conflict_id: UUID, note: str = "") -> Outcome:
    async with context.work(actor="cli:anna", caller=HOST) as work:
        return await accept_in(work, conflict_id, note)


async def accept_in(work: UnitOfWork, conflict_id: UUID, note: str = "") -> Outcome:
    """Return what became of a conflict, as an interface that is about this one alone."""
    acted = await actions.accept(work, actions.Accept(ids=[ids.show(ids.CONFLICT, conflict_id)], note=note))
    (outcome,) = acted.results
    if (error := outcome.error()) is not None:
        raise error
    return outcome


async def events_of(db: Database) -> list[Any]:
    return list(await db.fetch("select * from boathook.event where origin = 'accepted_conflict'"))


async def test_it_becomes_an_event_of_its_own_with_what_was_stored(context: AppContext, store: Store):
    conflict = await add_conflict(store, type="payment.refunded")
    name = ids.show(ids.CONFLICT, conflict)
    done = await accept(context, conflict, note="the second order")
    assert (done.id, done.outcome) == (name, "accepted")
    [event] = await events_of(store.db)
    assert (event["source"], event["type"], event["dedup_key"]) == ("stripe", "payment.refunded", name)
    assert (bytes(event["body"]), event["headers"]) == (LATER, '{"x-shop": "a"}')
    assert (event["content_type"], event["grade"]) == ("application/json; v=2", "body signed")
    rows = await store.db.fetch("select recipient, state from boathook.delivery where event_id = $1", event["id"])
    assert [tuple(row) for row in rows] == [("handler:mail", "pending")]
    [row] = await listings.list_conflicts(store.db, ListFilter())
    assert row.accepted_as == done.event_id == ids.show(ids.EVENT, event["id"])
    [noted] = await listings.list_audit(store.db, ListFilter(), action="conflict.accept")
    assert (noted.actor, noted.subject, noted.note) == ("cli:anna", name, "the second order")
    assert [one.subject for one in (await read_history(store.db, event["id"])).notes] == [name]
    report = await store.verify()
    assert report.violations == ()
    assert (report.balance.accepted_conflicts, report.balance.events) == (1, 2)


async def test_it_is_routed_by_the_routes_of_today(context: AppContext, store: Store):
    conflict = await add_conflict(store)
    await register(store.db, "shop", [Route(recipient="handler:crm", app="shop", source="stripe")])
    await accept(context, conflict)
    rows = await store.db.fetch(
        "select recipient from boathook.delivery d join boathook.event e on e.id = d.event_id"
        " where e.origin = 'accepted_conflict'"
    )
    assert [row["recipient"] for row in rows] == ["handler:crm"]


async def test_without_a_route_it_is_unhandled(context: AppContext, store: Store):
    conflict = await add_conflict(store, type="invoice.paid")
    await accept(context, conflict)
    assert await store.one("select e.source from boathook.unhandled u join boathook.event e on e.id = u.event_id"
                           " where e.origin = 'accepted_conflict'") == "stripe"  # fmt: skip


async def test_a_second_time_names_the_event_and_creates_none(context: AppContext, store: Store):
    conflict = await add_conflict(store)
    first = await accept(context, conflict)
    again = await accept(context, conflict)
    assert (again.event_id, again.outcome) == (first.event_id, "duplicate")
    assert len(await events_of(store.db)) == 1
    assert len(await listings.list_audit(store.db, ListFilter(), action="conflict.accept")) == 1


async def race(context: AppContext, store: Store) -> list[Any]:
    """Let two operators accept one conflict: the second asks while the first has not committed yet."""
    conflict = await add_conflict(store)
    async with context.work(actor="console:anna", caller=HOST) as work:
        first = await accept_in(work, conflict)
        second = asyncio.create_task(accept(context, conflict))
        await eventually(lambda: store.db.fetchval(LOCK_WAITED_FOR))
    return [first, *await asyncio.gather(second, return_exceptions=True)]


async def test_two_operators_at_once_create_one_event(context: AppContext, store: Store):
    first, second = await race(context, store)
    assert (first.outcome, second.outcome) == ("accepted", "duplicate")
    assert first.event_id == second.event_id
    assert len(await events_of(store.db)) == 1


async def test_mutant_without_the_lock_the_second_operator_fails(
    context: AppContext, store: Store, monkeypatch: pytest.MonkeyPatch
):
    unlocked = delivery_commands.SQL["lock_conflict"].replace("for update", "")
    monkeypatch.setitem(delivery_commands.SQL, "lock_conflict", unlocked)
    _, second = await race(context, store)
    assert isinstance(second, InvalidState)


async def test_what_fails_leaves_neither_event_nor_mark(
    context: AppContext, store: Store, monkeypatch: pytest.MonkeyPatch
):
    conflict = await add_conflict(store)

    async def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(delivery_commands, "mark_conflict_accepted", fail)
    with pytest.raises(RuntimeError):
        await accept(context, conflict)
    assert await events_of(store.db) == []
    monkeypatch.undo()
    assert (await accept(context, conflict)).outcome == "accepted"


async def test_it_collides_with_no_key_of_the_sender(context: AppContext, store: Store):
    conflict = await add_conflict(store)
    name = ids.show(ids.CONFLICT, conflict)
    version = await store.one("select version from boathook.route_version")
    await store.events.append([replace(new_event(name, body=b"planted"), routes_version=version)])
    assert (await accept(context, conflict)).outcome == "accepted"
    other = await add_conflict(store, "k2")
    assert (await accept(context, other)).outcome == "accepted"
    assert len(await events_of(store.db)) == 2
    assert (await store.verify()).violations == ()


async def test_the_conflict_of_an_item_becomes_an_event_with_the_item(context: AppContext, db: Database):
    await register(db, "test", [to("a")])
    sender = Sender(db)
    await sender.send(thing("1", amount=1))
    await sender.send(thing("1", amount=2))
    [row] = await listings.list_conflicts(db, ListFilter())
    done = await accept(context, ids.read(ids.CONFLICT, row.id))
    [event] = await events_of(db)
    stored = await event_history.get_conflict(db, ids.read(ids.CONFLICT, row.id))
    assert bytes(event["body"]) == stored.stored.body
    assert event["type"] == row.type == await db.fetchval("select max(item_type) from boathook.delivery")
    assert done.event_id == ids.show(ids.EVENT, event["id"])
    assert await db.fetchval("select recipient from boathook.delivery where event_id = $1", event["id"]) == "a"


async def test_the_conflict_of_a_message_becomes_a_message(context: AppContext, db: Database):
    application = await add_application(db, "acme", "acme-org")
    endpoint = await add_endpoint(db, application, channels=["eu"])
    await add_endpoint(db, application, channels=["us"])
    first = await publish(db, Outbox(), application, organization="acme-org", id="m1", channels=["eu"])
    message = context.outbox.draft(
        Message(application=application, type="invoice.paid", payload={"n": 2}, organization="acme-org",
                          id="m1", channels=["eu"], tags=["t"])
    )  # fmt: skip
    draft = to_event(message, ids.read(ids.APPLICATION, application))
    async with db.transaction() as connection:
        await record_conflict(connection, draft, first.event_id)
    with pytest.raises(NotFound):
        async with context.work("default", "api:other", Principal(key_id=draft.id, organization="default")) as work:
            await accept_in(work, draft.id)
    done = await accept(context, draft.id)
    [event] = await events_of(db)
    assert (event["application"], event["channels"], event["tags"]) == (application, ["eu"], ["t"])
    assert bytes(event["body"]) == b'{"n":2}'
    assert await db.fetchval("select recipient from boathook.delivery where event_id = $1", event["id"]) == endpoint
    assert (await Store(db).verify()).violations == ()
    async with open_api_client(db) as api:
        own = api.as_token(await make_token(api.context, "acme-org"))
        listed = await own.ask(200, "GET", f"/app/{application}/msg")
        assert done.event_id.removeprefix("evt_") in {one["id"].removeprefix("msg_") for one in listed["data"]}


async def test_a_damaged_body_is_refused(context: AppContext, store: Store):
    conflict = await add_conflict(store)
    await store.db.execute("update boathook.conflict set body = 'x'")
    with pytest.raises(InvalidState, match="ask the sender for it"):
        await accept(context, conflict)
    assert await events_of(store.db) == []


async def test_a_payload_past_its_retention_is_refused(context: AppContext, store: Store):
    conflict = await add_conflict(store)
    await store.db.execute("update boathook.conflict set content_until = now() - interval '1 day'")
    with pytest.raises(InvalidState, match="was to be kept until"):
        await accept(context, conflict)


async def test_a_long_note_and_an_unknown_conflict_are_refused(context: AppContext, store: Store):
    conflict = await add_conflict(store)
    with pytest.raises(InvalidValue, match="characters at most"):
        await accept(context, conflict, note="x" * 2_001)
    with pytest.raises(NotFound, match="retention may have dropped it"):
        await accept(context, UUID(int=conflict.int ^ 1))


@pytest.mark.parametrize(
    "damage",
    [
        "update boathook.conflict set accepted_as = event_id",
        "delete from boathook.event where origin = 'accepted_conflict'",
        "update boathook.event set dedup_key = 'x' where origin = 'accepted_conflict'",
    ],
)
async def test_the_check_finds_a_conflict_that_became_something_else(context: AppContext, store: Store, damage: str):
    await accept(context, await add_conflict(store))
    await store.db.execute(damage)
    assert "accepted conflicts have their event" in {one.check for one in (await store.verify()).violations}


async def test_the_api_accepts_it_once(store: Store):
    name = ids.show(ids.CONFLICT, await add_conflict(store))
    async with open_api_client(store.db) as api:
        done = await api.ask(200, "POST", f"/conflict/{name}/accept", {"note": "genuine"})
        assert done == {"id": name, "eventId": done["eventId"], "isNew": True}
        again = await api.ask(200, "POST", f"/conflict/{name}/accept", {})
        assert again == {"id": name, "eventId": done["eventId"], "isNew": False}
        assert (await api.ask(200, "GET", f"/conflict/{name}"))["acceptedAs"] == done["eventId"]
        assert (await api.ask(200, "GET", f"/event/{done['eventId']}"))["origin"] == Origin.ACCEPTED_CONFLICT
        await api.ask(404, "POST", "/conflict/nonsense/accept", {})
        await api.ask(422, "POST", f"/conflict/{name}/accept", {"note": "x" * 2_001})


async def test_the_console_accepts_it_once_and_links_both(store: Store):
    name = ids.show(ids.CONFLICT, await add_conflict(store))
    async with open_console(store.db) as console:
        viewer, anna = await console.operator("eve", Role.VIEWER), await console.operator("anna", Role.OPERATOR)
        assert "Accept as a new event" not in (await viewer.get(f"/console/conflicts/{name}")).text
        url = f"/console/conflicts/{name}"
        await viewer.submit_form(f"{url}/accept", on=url, status=403)
        assert "Accept as a new event" in await anna.get_page(url)
        await anna.submit_form(f"{url}/accept", {"note": "genuine"}, on=url)
        await anna.submit_form(f"{url}/accept", on=url)
        [event] = await events_of(store.db)
        page = (await anna.get(f"/console/conflicts/{name}")).text
        shown = ids.show(ids.EVENT, event["id"])
        assert f"/console/events/{shown}" in page
        assert "Accept as a new event" not in page
        assert f"/console/conflicts/{name}" in (await anna.get(f"/console/events/{shown}")).text
        assert f"/console/events/{shown}" in (await anna.get("/console/conflicts/requests")).text


async def test_the_key_hash_is_of_a_scope_of_its_own(context: AppContext, store: Store):
    conflict = await add_conflict(store)
    done = await accept(context, conflict)
    name = ids.show(ids.CONFLICT, conflict)
    key = await store.one("select key from boathook.dedup where event_id = $1", ids.read(ids.EVENT, str(done.event_id)))
    assert key == UUID(bytes=hashlib.sha256(f"stripe\0conflict\0{name}".encode()).digest()[:16])


# Many at once


async def add_three(store: Store) -> list[str]:
    return [ids.show(ids.CONFLICT, await add_conflict(store, f"k{number}")) for number in range(3)]


async def run_jobs(context: AppContext) -> None:
    """Run all jobs to their end, as a keeper does."""
    step = make_service_step(context.settings, context.database)
    while await runner.run_step(context.database, Outbox(), step):
        pass


async def test_a_dry_run_counts_and_changes_nothing(context: AppContext, store: Store):
    names = await add_three(store)
    async with context.work(caller=HOST) as work:
        named = await actions.accept(work, actions.Accept(ids=names, dry_run=True))
        counted = await actions.accept(work, actions.Accept(source="stripe", differs=Difference.BODY, dry_run=True))
        none = await actions.accept(work, actions.Accept(differs=Difference.KEY, dry_run=True))
    assert (named.matching, counted.matching, none.matching) == (3, 3, 0)
    assert [(count.number, count.source, count.cause) for count in counted.counts] == [(3, "stripe", "body")]
    assert await events_of(store.db) == []
    assert await store.one("select count(*) from boathook.task") == 0


async def test_of_named_ones_each_has_its_own_outcome(context: AppContext, store: Store):
    names = await add_three(store)
    await store.db.execute("update boathook.conflict set body = 'x' where id = $1", ids.read(ids.CONFLICT, names[1]))
    unknown = ids.show(ids.CONFLICT, UUID(int=7))
    async with context.work(caller=HOST) as work:
        acted = await actions.accept(work, actions.Accept(ids=[*names, unknown]))
    outcomes = [(result.id, result.outcome, result.code) for result in acted.results]
    assert outcomes == [
        (names[0], "accepted", ""),
        (names[1], "impossible", "damaged"),
        (names[2], "accepted", ""),
        (unknown, "missing", ""),
    ]
    assert (acted.matching, acted.done, acted.failed) == (3, 4, 2)
    assert len(await events_of(store.db)) == 2


async def test_a_filter_starts_a_job_that_accepts_what_it_selected(
    context: AppContext, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stored_requests, "BATCH", 2)
    names = await add_three(store)
    await store.db.execute("update boathook.conflict set body = 'x' where id = $1", ids.read(ids.CONFLICT, names[1]))
    async with context.work(actor="api:key_x", caller=HOST) as work:
        acted = await actions.accept(work, actions.Accept(all=True, note="an outage"))
    assert (acted.matching, acted.done, acted.results) == (3, 0, ())
    later = await add_conflict(store, "later")
    await run_jobs(context)
    async with context.work(caller=HOST) as work:
        job = await jobs.get(work, JobNamed(id=str(acted.job)))
    assert (job.title, job.state, job.done, job.skipped, job.total) == ("Accept conflicts", "finished", 3, 1, 3)
    accepted = await store.db.fetch("select id from boathook.conflict where accepted_as is not null order by id")
    assert [ids.show(ids.CONFLICT, row["id"]) for row in accepted] == [names[0], names[2]]
    assert later not in {row["id"] for row in accepted}
    notes = await listings.list_audit(store.db, ListFilter(), action="conflict.accept")
    assert {(row.actor, row.note) for row in notes} == {("api:key_x", "an outage")}


async def test_a_job_ends_when_its_key_is_revoked(context: AppContext, store: Store):
    await add_three(store)
    key = Principal(key_id=UUID(int=9), organization="default")
    async with context.work(caller=key) as work:
        acted = await actions.accept(work, actions.Accept(all=True))
    await run_jobs(context)
    async with context.work(caller=HOST) as work:
        job = await jobs.get(work, JobNamed(id=str(acted.job)))
    assert (job.state, "is not valid any more" in job.error, job.done) == ("failed", True, 0)
    assert await events_of(store.db) == []


async def test_a_process_without_the_service_layer_fails_the_job(context: AppContext, store: Store):
    await add_three(store)
    async with context.work(caller=HOST) as work:
        await actions.accept(work, actions.Accept(all=True))
    await runner.run_step(store.db, Outbox())
    assert "start a keeper" in await store.one("select data ->> 'error' from boathook.task")


async def test_the_api_accepts_many(store: Store):
    names = await add_three(store)
    async with open_api_client(store.db) as api:
        for body, where in (({}, "ids"), ({"ids": names, "all": True}, "ids"), ({"differs": "x"}, "differs")):
            [problem] = (await api.ask(422, "POST", "/conflict/bulk-accept", body))["detail"]
            assert problem["loc"] == ["body", where]
        counted = await api.ask(202, "POST", "/conflict/bulk-accept", {"all": True, "dryRun": True})
        assert (counted["matching"], counted["job"]) == (3, None)
        done = await api.ask(202, "POST", "/conflict/bulk-accept", {"ids": names[:2]})
        assert [result["outcome"] for result in done["results"]] == ["accepted"] * 2
        started = await api.ask(202, "POST", "/conflict/bulk-accept", {"source": "stripe"})
        assert (await api.ask(200, "GET", f"/bulk-job/{started['job']}"))["total"] == 1
