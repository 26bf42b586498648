"""Moving applications between cells: copied data, refused requests, and interruptions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from boathook.db.database import Database
from boathook.domain import ids
from boathook.domain.errors import AlreadyExists, DatabaseError, InvalidState, NotFound, ServedElsewhere
from boathook.domain.ids import message_key
from boathook.domain.messages import Message
from boathook.handlers.outbox import Outbox
from boathook.service.sending import applications, endpoints
from boathook.service.unit_of_work import AppContext
from boathook_cells import keys, moves, store
from boathook_cells.store import ADDED, REPLACED
from tests.databases import Pool
from tests.postgres.api_client import make_token
from tests.postgres.cells.cells_without_gateways import PAID, Cell, Cells, make_application, move, open_cells
from tests.support import eventually


@pytest.fixture
async def pair(databases: Pool) -> AsyncIterator[Cells]:
    async with open_cells(databases) as made:
        yield made


async def test_after_a_move_only_the_new_cell_accepts_messages(pair: Cells) -> None:
    one, two, _ = pair.values()
    application = await make_application(one)
    await one.publish("acme", "before")
    done = await move(pair, application)
    assert (done.origin, done.target, done.keys, done.open_deliveries) == ("c1", "c2", 1, 1)
    assert (done.copied["application"], done.copied["endpoint"], done.copied["endpoint_secret"]) == (1, 1, 1)
    refused = await one.publish("acme", "after", expect=421)
    assert refused == {
        "code": "wrong_cell",
        "detail": f"the application {application} belongs to the cell c2; do this there: https://c2.example",
        "cell": "c2",
        "url": "https://c2.example",
    }
    await two.publish("acme", "after")
    await two.publish("acme", "before", expect=409)
    assert (await one.stored(), await two.stored()) == (["before"], ["after"])
    assert await two.db.fetchval("select count(*) from boathook.delivery") == 1


SECRETS = "/endpoint/main/secret/rotate"
CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/msg", PAID),
    ("POST", "/msg", PAID | {"deliverAt": None, "tags": ["t"]}),
    ("POST", "/msg/precheck/active", {"eventType": "invoice.paid"}),
    ("PUT", "", {"name": "Other", "uid": "acme"}),
    ("PATCH", "", {"name": "Other"}),
    ("DELETE", "", None),
    ("POST", "/endpoint", {"url": "http://127.0.0.1:18080/more"}),
    ("PUT", "/endpoint/main", {"url": "http://127.0.0.1:18080/more"}),
    ("PATCH", "/endpoint/main", {"description": "x"}),
    ("DELETE", "/endpoint/main", None),
    ("POST", SECRETS, {}),
    ("PUT", "/endpoint/main/headers", {"headers": {"x-a": "b"}}),
    ("PATCH", "/endpoint/main/headers", {"headers": {"x-a": "b"}}),
    ("POST", "/endpoint/main/send-example", {"eventType": "svix.ping"}),
]


async def test_a_moved_application_is_read_only_in_the_old_cell(pair: Cells) -> None:
    one = pair["c1"]
    application = await make_application(one)
    await one.publish("acme", "before")
    await move(pair, application)
    before = {table: await one.rows(table) for table in (*REPLACED, *ADDED)}
    for reference in ("acme", application):
        for method, path, body in CHANGES:
            refused = await one.api.ask(421, method, f"/app/{reference}{path}", body)
            assert refused["url"] == "https://c2.example", path
    await one.api.ask(421, "POST", "/auth/app-portal-access/acme", {})
    assert {table: await one.rows(table) for table in before} == before
    for path in ("", "/msg", "/msg/before", "/endpoint", "/endpoint/main", "/endpoint/main/secret"):
        await one.api.ask(200, "GET", f"/app/acme{path}")
    await one.api.ask(202, "POST", "/app/acme/msg/before/endpoint/main/resend")
    await one.api.ask(204, "POST", "/auth/app/acme/expire-all", {})
    assert await one.db.fetchval("select count(*) from boathook.delivery") == 2


async def test_all_that_belongs_to_it_is_copied(pair: Cells) -> None:
    one, two, _ = pair.values()
    application = await make_application(one)
    await one.api.ask(200, "POST", "/auth/app-portal-access/acme", {"sessionId": "s", "capabilities": ["ViewBase"]})
    await one.api.ask(201, "POST", "/event-type", {"name": "invoice.paid", "description": "x"})
    await one.api.ask(200, "POST", f"/app/acme{SECRETS}", {})
    await one.db.execute("""
        update boathook.application set imported_id = 'app_2a', throttle_rate = 7, metadata = '{"b": 1, "a": 2}';
        insert into boathook.endpoint select (json_populate_record(e, '{"id": "01890000-0000-7000-8000-000000000001",
            "uid": "gone", "deleted_at": "2026-01-02T03:04:05.678901+02:00"}')).* from boathook.endpoint e limit 1;
        update boathook.endpoint set event_types = '{a.b}', channels = '{"ä, \\"b\\""}', filter = '{"b": [1.50]}',
            imported_id = 'ep_2a', order_by = 'id', throttle_rate = 3, concurrency = 2, retry_name = 'short',
            retry = '[1, 0.1]', timeout_s = 0.1, metadata = '{"z": 1}', encrypted_headers = '\\x00ff', encrypted_auth = '\\x01',
            destination = 'file', destination_fields = '{"path": "a"}', encrypted_destination = '\\x02', is_disabled = true,
            disabled_because = 'failing', disabled_at = now(), revision = 9;
        insert into boathook.endpoint_health select id, 3, now(), now(), now(), 2, now() from boathook.endpoint;
        update boathook.api_key set name = 'n', expires_at = now(), revoked_at = now(), feature_flags = '{f}';
        update boathook.event_type set schemas = '{"1": {"type": "object"}}', feature_flags = '{f}', group_name = 'g'
    """)
    await move(pair, application)
    changed = {"application": {"home", "routes_version", "updated_at"}, "endpoint_secret": {"id"}}
    never_set = {"application": {"deleted_at"}, "api_key": {"mount", "mount_role"}}
    for table in (*REPLACED, *ADDED):
        rows = {}
        for name, cell in pair.items():
            whole = await cell.rows(table)
            rows[name] = [row for row in whole if table != "api_key" or row["application_id"] is not None]
        assert rows["c1"]
        assert not rows["c3"]
        unset = {key for key in rows["c1"][0] if all(row[key] is None for row in rows["c1"])}
        assert unset <= never_set.get(table, set()), f"give {table} a value of {unset} here"

        ignored = changed.get(table, set())
        shown = {
            name: sorted(str(sorted((key, row[key]) for key in row.keys() - ignored)) for row in rows[name])
            for name in rows
        }
        assert shown["c2"] == shown["c1"]
    assert await two.db.fetchval("select metadata::text from boathook.application") == '{"b": 1, "a": 2}'


async def test_every_table_with_rows_of_an_application_is_known(db: Database) -> None:
    rows = await db.fetch("""
        select distinct c.conrelid::regclass::text as name from pg_constraint c
        where c.contype = 'f' and c.confrelid in ('boathook.application'::regclass, 'boathook.endpoint'::regclass)
    """)
    stays = {"boathook.task"}
    moves = {f"boathook.{table}" for table in (*REPLACED, *ADDED)} - {"boathook.application", "boathook.event_type"}
    assert {row["name"] for row in rows} == stays | moves


async def begin_publishing(cell: Cell, key: str, isolation: str = "read_committed") -> tuple[Any, Any]:
    """Publish in a transaction that is not committed yet; return its connection and itself."""
    connection = await asyncpg.connect(cell.db.url)
    transaction = connection.transaction(isolation=isolation)
    await transaction.start()
    if isolation == "read_committed":
        await Outbox().publish(connection, Message(application="acme", type="invoice.paid", payload={}, id=key))
    else:
        await connection.fetch("select from boathook.application")
    return connection, transaction


async def move_meanwhile(pair: Cells, application: str) -> tuple[bool, bool]:
    """Move while a publisher has not committed; return whether the move waited, and whether the new cell knows the key."""
    one, two, _ = pair.values()
    connection, transaction = await begin_publishing(one, "late")
    moving = asyncio.create_task(move(pair, application))
    waiting = (
        "select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )

    async def is_settled() -> bool:
        return moving.done() or bool(await one.db.fetchval(waiting))

    await eventually(is_settled)
    has_waited = not moving.done()
    await transaction.commit()
    await connection.close()
    await moving
    key = message_key(application, "late")
    return has_waited, await two.db.fetchval("select count(*) > 0 from boathook.dedup where key = $1", key)


async def test_a_move_waits_for_publishers_that_have_not_committed(pair: Cells) -> None:
    application = await make_application(pair["c1"])
    assert await move_meanwhile(pair, application) == (True, True)
    await pair["c2"].publish("acme", "late", expect=409)


async def test_mutant_without_the_lock_their_messages_are_unknown_in_the_new_cell(pair: Cells) -> None:
    application = await make_application(pair["c1"])
    await pair["c1"].db.execute("delete from boathook.installation")
    assert await move_meanwhile(pair, application) == (False, False)
    await pair["c2"].publish("acme", "late")


async def test_a_change_that_has_not_committed_moves_too(pair: Cells) -> None:
    one, two, _ = pair.values()
    application = await make_application(one)
    async with one.api.context.work("default", "test") as work:
        found = await applications.get(work, "acme")
        await endpoints.update(work, found, "main", {"description": "late"})
        moving = asyncio.create_task(move(pair, application))
        await asyncio.sleep(0.3)
        assert not moving.done()
    await moving
    assert (await two.api.ask(200, "GET", "/app/acme/endpoint/main"))["description"] == "late"


async def test_mutant_without_the_keys_a_repeated_message_is_stored_again(
    pair: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def copy_none(*_: object, **__: object) -> int:
        return 0

    monkeypatch.setattr(keys, "copy_message_keys", copy_none)
    application = await make_application(pair["c1"])
    await pair["c1"].publish("acme", "before")
    await move(pair, application)
    await pair["c2"].publish("acme", "before")


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_publisher_with_an_older_snapshot_fails(pair: Cells, isolation: str) -> None:
    one = pair["c1"]
    application = await make_application(one)
    connection, transaction = await begin_publishing(one, "late", isolation)
    await move(pair, application)
    with pytest.raises(asyncpg.SerializationError):
        await Outbox().publish(connection, Message(application="acme", type="invoice.paid", payload={}, id="late"))
    await transaction.rollback()
    await connection.close()
    message = Message(application="acme", type="invoice.paid", payload={})
    with pytest.raises(ServedElsewhere) as error:
        async with one.db.transaction() as later:
            await Outbox().publish(later, message, passes_on=False)
    assert (error.value.application, error.value.home) == ("acme", "c2")


def failing(_error: Exception) -> Callable[..., Any]:
    async def fail(*_: object, **__: object) -> Any:
        raise _error

    return fail


@pytest.mark.parametrize("step", ["close_application", "copy_message_keys", "add_rows"])
async def test_an_interrupted_move_is_completed_by_repeating_it(
    pair: Cells, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = pair.values()
    application = await make_application(one)
    await one.publish("acme", "before")
    with monkeypatch.context() as patch:
        if step == "add_rows":
            patch.setitem(store.SQL, "add_rows", "select 1 / 0 where $1::text <> ''")
        elif step == "close_application":
            patch.setattr(store, step, failing(DatabaseError("cut off")))
        else:
            patch.setattr(keys, step, failing(DatabaseError("cut off")))
        with pytest.raises(DatabaseError):
            await move(pair, application)
    is_open = step == "close_application"
    await one.publish("acme", "meanwhile", expect=202 if is_open else 421)
    await two.publish("acme", "meanwhile", expect=421)
    (home,) = await moves.list_moved_applications(one.settings)
    assert (home.application, home.cell, home.is_moving) == (application, "c1" if is_open else "c2", not is_open)
    assert (await move(pair, application)).origin == "c1"
    assert (await move(pair, application)).copied == {}
    await two.publish("acme", "before", expect=409)
    await two.publish("acme", "meanwhile", expect=409 if is_open else 202)
    await one.publish("acme", "after", expect=421)
    assert sorted([*await one.stored(), *await two.stored()]) == ["before", "meanwhile"]
    (home,) = await moves.list_moved_applications(two.settings)
    assert (home.cell, home.left, home.is_moving) == ("c2", ("c1",), False)


async def test_an_aborted_move_does_not_block_another(pair: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = pair.values()
    application = await make_application(one)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "copy_message_keys", failing(DatabaseError("cut off")))
        for _ in range(2):
            with pytest.raises(DatabaseError):
                await move(pair, application, "c3")
        patch.setattr(store, "close_application", failing(DatabaseError("cut off")))
        with pytest.raises(DatabaseError):
            await move(pair, application, "c3")
    done = await move(pair, application, "c2")
    assert (done.origin, done.copied["endpoint"]) == ("c1", 1)
    await two.publish("acme", "on")
    assert await two.db.fetchval("select count(*) from boathook.delivery") == 1
    for cell in (one, three):
        await cell.publish("acme", "on", expect=421)
    done = await move(pair, application, "c3")
    assert (done.origin, done.copied["endpoint"]) == ("c2", 1)
    await three.publish("acme", "on", expect=409)


async def test_an_application_returns_with_all_changes_and_keys(pair: Cells) -> None:
    one, two, three = pair.values()
    application = await make_application(one)
    await one.api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/b", "uid": "b"})
    await one.publish("acme", "first")
    await move(pair, application, "c2")
    await two.publish("acme", "second")
    await two.api.ask(204, "DELETE", "/app/acme/endpoint/main")
    await two.api.ask(200, "PATCH", "/app/acme/endpoint/b", {"uid": "main"})
    await two.api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/c", "uid": "b"})
    await two.api.ask(200, "PATCH", "/app/acme", {"uid": "acme-2"})
    await move(pair, application, "c3")
    for cell in (one, two):
        await cell.api.ask(421, "PATCH", f"/app/{application}", {"name": "x"})
    await three.publish("acme-2", "second", expect=409)
    await three.publish("acme-2", "first", expect=409)
    await three.publish("acme-2", "third")
    await move(pair, application, "c1")
    for key in ("first", "second", "third"):
        await one.publish("acme-2", key, expect=409)
    await one.publish("acme-2", "fourth")
    shown = await one.api.ask(200, "GET", "/app/acme-2/endpoint")
    assert {(row["uid"], row["url"]) for row in shown["data"]} == {
        ("main", "http://127.0.0.1:18080/b"),
        ("b", "http://127.0.0.1:18080/c"),
    }
    assert await one.db.fetchval("select count(*) from boathook.endpoint_secret") == 3
    (home,) = await moves.list_moved_applications(one.settings)
    assert (home.cell, home.left, home.is_moving) == ("c1", ("c2", "c3"), False)


async def test_a_uid_taken_in_the_new_cell_aborts_the_move_early(pair: Cells) -> None:
    one, two, _ = pair.values()
    application = await make_application(one)
    await make_application(two)
    with pytest.raises(AlreadyExists, match="another application of the new cell has its uid"):
        await move(pair, application)
    await one.publish("acme", "on")
    assert await moves.list_moved_applications(one.settings) == []


async def test_two_commands_do_not_move_the_same_application(pair: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    application = await make_application(pair["c1"])
    real, holding, going = store.close_application, asyncio.Event(), asyncio.Event()

    async def wait(*arguments: Any) -> int:
        holding.set()
        await going.wait()
        return await real(*arguments)

    monkeypatch.setattr(store, "close_application", wait)
    moving = asyncio.create_task(move(pair, application, "c2"))
    await holding.wait()
    with pytest.raises(InvalidState, match="another command is moving"):
        await move(pair, application, "c3")
    going.set()
    assert (await moving).target == "c2"
    assert (await move(pair, application, "c3")).origin == "c2"


async def test_a_restored_cell_can_move_the_application_again(pair: Cells) -> None:
    """The old cell has forgotten the move, and has accepted another message since."""
    one, two, _ = pair.values()
    application = await make_application(one)
    await move(pair, application)
    await two.api.ask(200, "PATCH", "/app/acme/endpoint/main", {"description": "new"})
    await one.db.execute("update boathook.application set home = null, routes_version = 1")
    await one.publish("acme", "restored")
    with pytest.raises(InvalidState, match=r"c1 and c2 accept messages for it.*move it to c2"):
        await move(pair, application, "c1")
    assert (await move(pair, application)).origin == "c1"
    await one.publish("acme", "after", expect=421)
    await two.publish("acme", "restored", expect=409)
    assert (await two.api.ask(200, "GET", "/app/acme/endpoint/main"))["description"] == "new"


async def test_moves_to_nowhere_of_nothing(pair: Cells) -> None:
    application = await make_application(pair["c1"])
    with pytest.raises(NotFound, match="there is no cell c9"):
        await move(pair, application, "c9")
    with pytest.raises(NotFound, match="in any cell"):
        await move(pair, ids.show(ids.APPLICATION, ids.make(1, 1)))
    assert (await move(pair, application, "c1")).copied == {}


async def test_cells_of_different_versions_move_nothing(pair: Cells) -> None:
    application = await make_application(pair["c1"])
    await pair["c2"].db.execute("alter table boathook.endpoint add column later text")
    with pytest.raises(InvalidState, match="run the same version in both"):
        await move(pair, application)
    await pair["c1"].publish("acme", "on")


async def test_dedup_keys_outliving_their_message_are_copied(pair: Cells) -> None:
    one, two, _ = pair.values()
    application = await make_application(one)
    await one.publish("acme", "gone")
    await one.db.execute("delete from boathook.event")
    retention = one.settings.retention.model_copy(update={"dedup_days": 30, "events_days": 7})
    longer = one.settings.model_copy(update={"retention": retention})
    assert (await moves.move_application(longer, application, "c2")).keys == 1
    await two.publish("acme", "gone", expect=409)


@pytest.fixture
def context(pair: Cells) -> AppContext:
    return pair["c1"].api.context


async def test_an_unknown_application_is_looked_up_in_other_cells(
    pair: Cells, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    async def find(organization: str, reference: str) -> str | None:
        asked.append((organization, reference))
        return "c2" if reference == "acme" else None

    monkeypatch.setattr(context.elsewhere, "find_application", find)
    one = pair["c1"]
    for method, path, body in CHANGES:
        if method != "PUT" or path:
            assert (await one.api.ask(421, method, f"/app/acme{path}", body))["url"] == "https://c2.example"
    await one.api.ask(421, "GET", "/app/acme/msg")
    await one.api.ask(404, "GET", "/app/other/msg")
    assert set(asked) == {("default", "acme"), ("default", "other")}
    asked.clear()
    await make_application(one, "here")
    await one.api.ask(404, "GET", "/app/here/msg/msg-1")
    await one.api.ask(404, "GET", "/app/here/endpoint/ep-1")
    bound = one.api.as_token(await make_token(context, application="here"))
    await bound.ask(404, "GET", "/app/acme/endpoint")
    await one.api.as_token("bhk_wrong").ask(401, "GET", "/app/acme")
    assert asked == []
