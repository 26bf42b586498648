"""The operations on events: one language of filters, jobs that were stored before, dry runs and runs with a name."""

import json
from typing import Any

import pytest
from msgspec.structs import asdict

from boathook.api.app import openapi_document
from boathook.db.audit import record
from boathook.db.database import Database
from boathook.db.queries.event_search import EventFilter
from boathook.db.route_registry import register
from boathook.delivery import tasks as runner
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.model import Role, Route
from boathook.handlers.outbox import Outbox
from boathook.service import catalogue
from boathook.service.access.authorization import OperatorCaller
from boathook.service.caller import HOST
from boathook.service.catalogue import events, jobs
from boathook.service.catalogue.events import ReplayEvents
from boathook.service.catalogue.jobs import JobNamed
from boathook.service.fields import fields_of
from boathook.service.operating import object_search
from boathook.service.operating.event_query import FILTERS, EventQuery
from boathook.service.unit_of_work import AppContext, new_id
from boathook_mcp.events import FindEvents
from tests.postgres.api_client import make_context
from tests.postgres.db.test_integrity import Store
from tests.postgres.message_factory import ago

PAY = Route(recipient="handler:pay", app="shop", source="stripe", types=("*",))


@pytest.fixture
def store(db: Database) -> Store:
    return Store(db)


@pytest.fixture
def context(db: Database) -> AppContext:
    return make_context(db)


async def act(context: AppContext, operation: Any, **values: Any) -> Any:
    async with context.work(actor="anna", caller=HOST) as work:
        return await operation(work, operation.input(**values))


async def run_jobs(store: Store) -> None:
    while await runner.run_step(store.db, Outbox()):
        pass


async def ended(store: Store, *keys: str, to: str = "handler:a", **more: Any) -> list[Any]:
    made = [await store.accept(key, to, **more) for key in keys]
    for event in made:
        await store.end(event)
    return made


# One language


def test_each_interface_selects_events_by_the_same_fields():
    names = {field.public_name for field in fields_of(EventQuery)}
    assert {field.name for field in fields_of(EventQuery)} == set(FILTERS)
    selecting = [operation for operation in catalogue.load("event") if "{id}" not in operation.http.path]
    assert len(selecting) > 1
    for operation in selecting:
        assert issubclass(operation.input, EventQuery)
    document = openapi_document()
    listed = {parameter["name"] for parameter in document["paths"]["/api/v1/event"]["get"]["parameters"]}
    assert names - {"since", "until"} | {"after", "before"} <= listed
    assert names <= set(document["components"]["schemas"]["ReplayEvents"]["properties"])
    assert issubclass(FindEvents, EventQuery)


@pytest.mark.parametrize(
    "query",
    [
        EventQuery(),
        EventQuery(state="unhandled", source="stripe", application="acme", type="a.*", since=ago(days=2), until=ago()),
        EventQuery(state="dead", key="k", text="café", where="a.b = 1", words="to.id = CUS_1"),
        EventQuery(words="evt_1"),
    ],
)
def test_a_job_keeps_a_filter_whole(query: EventQuery):
    compiled = query.compile(organization="b")
    latest = ago(seconds=-60)
    stored = json.loads(json.dumps(compiled.to_request()))
    read = EventFilter.of_request(stored, latest)
    assert asdict(read) == asdict(compiled) | {"until": compiled.until or latest}


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({}, "ids"),
        ({"ids": ["evt_01h455vb4pex5vsknk084sn02q4"], "source": "stripe"}, "ids"),
        ({"ids": ["nonsense"]}, "ids"),
        ({"ids": ["evt_01h455vb4pex5vsknk084sn02q4"] * 501}, "ids"),
        ({"where": "customer"}, "where"),
        ({"words": "x" * 201}, "q"),
        ({"state": "asleep"}, "state"),
        ({"source": "s", "since": ago(days=1), "until": ago(days=2)}, "until"),
        ({"source": "s", "run": "x", "note": "y"}, "run"),
        ({"source": "s", "run": ""}, "run"),
        ({"source": "s", "rate": 0}, "rate"),
    ],
)
async def test_a_wrong_selection_names_its_field(context: AppContext, values: dict[str, Any], where: str):
    with pytest.raises(InvalidValue) as caught:
        await act(context, events.replay, **values)
    assert caught.value.where == (where,)


# Jobs that were stored before


BEFORE = {"application": None, "type": None, "since": None, "until": None, "is_unhandled": False, "rate": None}


async def stored(store: Store, kind: str, request: dict[str, Any]) -> str:
    """Store a task as an earlier version did; return its id."""
    task_id = new_id()
    await store.db.execute(
        "insert into boathook.task (id, organization, kind, request) values ($1, 'default', $2, $3)",
        task_id, kind, json.dumps({"actor": "console:anna", "note": "before", "total": 1, **request}),
    )  # fmt: skip
    return ids.show(ids.TASK, task_id)


async def progress_of(context: AppContext, job: str) -> jobs.Job:
    async with context.work(caller=HOST) as work:
        return await jobs.get(work, JobNamed(id=job))


async def test_a_replay_that_an_earlier_version_stored_is_done(store: Store, context: AppContext):
    await ended(store, "a", "b")
    job = await stored(store, "event.replay-many", {**BEFORE, "source": "stripe"})
    other = await stored(store, "event.replay-many", {**BEFORE, "source": "github"})
    await run_jobs(store)
    done = await progress_of(context, job)
    assert (done.state, done.done, done.added, done.outcome[:10]) == ("finished", 2, 2, "2 replayed")
    assert (await progress_of(context, other)).done == 0


async def test_a_search_that_an_earlier_version_stored_is_done(store: Store, context: AppContext):
    for number in range(3):
        await store.end(await store.accept(f"e{number}", "a", body=b'{"n": %d}' % number))
    content = {"text": None, "words": None, "word_keys": [], "conditions": [[["n"], "1"]]}
    matching = {"key": None, "state": None, "content": content}
    for organization, number in (({}, 1), ({"organization": "b"}, 0), ({"organization": "default"}, 1)):
        request = {**BEFORE, "source": None, "matching": matching | organization}
        job = await stored(store, "event.replay-many", request)
        await run_jobs(store)
        assert (await progress_of(context, job)).done == number


async def test_a_routing_that_an_earlier_version_stored_is_done(store: Store, context: AppContext):
    await ended(store, "a", "b", to="handler:old")
    await register(store.db, "shop", [PAY])
    job = await stored(store, "event.route-many", {**BEFORE, "source": "stripe", "to": "handler:pay"})
    await run_jobs(store)
    done = await progress_of(context, job)
    assert (done.state, done.done, done.added) == ("finished", 2, 2)


# Replays


async def test_events_that_do_not_exist_are_skipped_and_named(store: Store, context: AppContext):
    [event] = await ended(store, "a")
    name, unknown = ids.show(ids.EVENT, event), "evt_01h455vb4pex5vsknk084sn02q4"
    done = await act(context, events.replay, ids=[unknown, name, name])
    assert (done.matching, done.done, done.added) == (1, 1, 1)
    assert [(skipped.id, skipped.code) for skipped in done.skipped] == [(unknown, "not_found")]
    message = name.replace("evt_", "msg_")
    again = await act(context, events.replay, ids=[message])
    assert (again.done, again.added) == (1, 0)
    assert again.reason.startswith("1 delivery still pending; the next attempt is due at ")


async def test_a_dry_run_changes_nothing(store: Store, context: AppContext):
    made = await ended(store, "a", "b", to="handler:old")
    await register(store.db, "shop", [PAY])
    names = [ids.show(ids.EVENT, event) for event in made]
    for way in ({"ids": names}, {"source": "stripe"}, {"text": "{"}, {"all": True}):
        counted = await act(context, events.replay, **way, dry_run=True)
        assert (counted.matching, counted.is_exact, counted.done, counted.job) == (2, True, 0, None)
        tried = await act(context, events.route, **way, dry_run=True)
        assert (tried.matching, tried.routed, tried.added, tried.job) == (2, 2, 2, None)
        assert tried.count("event") == "2 events, 2 routed: 2 deliveries would be added"
    assert await store.one("select count(*) from boathook.delivery") == 0
    assert await store.one("select count(*) from boathook.task") == 0
    assert await store.one("select count(*) from boathook.audit") == 0


async def test_mutant_a_dry_run_that_commits_is_seen(store: Store, context: AppContext, monkeypatch):
    """The test above can fail: the savepoint is released instead."""
    [event] = await ended(store, "a", to="handler:old")
    await register(store.db, "shop", [PAY])
    act_on = events.SelectedEvents._act

    async def commit(self: Any, work: Any, input: Any, *rest: Any) -> Any:
        return await act_on(self, work, events.RouteEvents(**asdict(input) | {"dry_run": False}), *rest)

    monkeypatch.setattr(events.SelectedEvents, "_act", commit)
    await act(context, events.route, ids=[ids.show(ids.EVENT, event)], dry_run=True)
    assert await store.one("select count(*) from boathook.delivery") == 1


async def test_a_dry_run_of_a_routing_tries_a_bounded_number(store: Store, context: AppContext, monkeypatch):
    monkeypatch.setattr(events, "BATCH", 1)
    monkeypatch.setattr(events, "MAX_TRIED", 2)
    await ended(store, "a", "b", "c", to="handler:old")
    await register(store.db, "shop", [PAY])
    tried = await act(context, events.route, source="stripe", dry_run=True)
    assert (tried.matching, tried.done, tried.added) == (3, 2, 2)
    assert tried.notes == ["the first 2 events were tried"]


async def test_a_count_that_stops_early_says_so(store: Store, context: AppContext, monkeypatch):
    monkeypatch.setattr(events, "MAX_SEARCHED", 1)
    await ended(store, "a", "b")
    counted = await act(context, events.replay, state="succeeded", dry_run=True)
    assert (counted.matching, counted.is_exact, counted.count("event")) == (1, False, "at least 1 event")
    job = (await act(context, events.replay, state="succeeded")).job
    await run_jobs(store)
    assert (await progress_of(context, job)).done == 2


async def test_a_run_is_done_once_whether_named_or_in_the_background(store: Store, context: AppContext):
    made = await ended(store, "a", "b")
    first = await act(context, events.replay, ids=[ids.show(ids.EVENT, made[0])], run="the fix")
    assert (first.done, first.added) == (1, 1)
    job = (await act(context, events.replay, source="stripe", run="the fix")).job
    await run_jobs(store)
    done = await progress_of(context, job)
    assert (done.done, done.added) == (1, 1)
    for event in made:
        await store.end(event, 1)
    again = await act(context, events.replay, ids=[ids.show(ids.EVENT, event) for event in made], run="the fix")
    assert (again.matching, again.done, again.added) == (2, 0, 0)


async def test_a_routing_selects_by_content_too(store: Store, context: AppContext):
    for number in range(2):
        await store.end(await store.accept(f"e{number}", "handler:old", body=b'{"n": %d}' % number))
    await register(store.db, "shop", [PAY])
    with pytest.raises(NotFound, match="did you mean handler:pay"):
        await act(context, events.route, where="n = 1", to="pai")
    job = (await act(context, events.route, where="n = 1", to="pay")).job
    await run_jobs(store)
    done = await progress_of(context, job)
    assert (done.done, done.routed, done.added) == (1, 1, 1)


async def test_a_job_keeps_its_caller_and_permission(store: Store, context: AppContext):
    await ended(store, "a")
    caller = OperatorCaller(Role.OPERATOR, new_id())
    async with context.work(actor="operator:anna", caller=caller) as work:
        await events.replay(work, ReplayEvents(source="stripe"))
        await events.route(work, events.RouteEvents(source="stripe"))
    permissions = {"event.replay-many": "event.replay", "event.route-many": "event.route"}
    jobs = await store.db.fetch("select kind, request from boathook.task")
    assert {row["kind"] for row in jobs} == permissions.keys()
    for row in jobs:
        request = json.loads(row["request"])
        kept = {name: request[name] for name in ("actor", "tenant", "caller", "permission", "role")}
        assert kept == {
            "actor": "operator:anna", "tenant": None, "caller": {"operator": str(caller.id)},
            "permission": permissions[row["kind"]], "role": "operator",
        }  # fmt: skip


# Search


async def test_a_search_for_objects_takes_one_connection(store: Store, context: AppContext, monkeypatch):
    """A second one, taken while the first is held, waits for ever once the pool is used up."""
    [event] = await ended(store, "order-7")
    await register(store.db, "shop", [PAY])

    def refuse(*_arguments: object, **_named: object) -> None:
        raise AssertionError("a second connection was taken")

    async with context.work(caller=HOST) as work:
        await record(work.connection, "test", "test", "the transaction has begun")
        for name in ("acquire", "transaction"):
            monkeypatch.setattr(type(store.db), name, refuse)
        found = await object_search.find_objects(work, "pay", HOST.may)
        assert found.handlers == ["pay"]
        found = await object_search.find_objects(work, ids.show(ids.EVENT, event), HOST.may)
        assert [match.event.id for match in found.direct.events] == [ids.show(ids.EVENT, event)]
        monkeypatch.undo()
