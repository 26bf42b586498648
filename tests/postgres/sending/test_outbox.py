"""Publishing: recipients, also while routes change, and duplicate messages."""

import asyncio
import contextlib
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from boathook.config import load
from boathook.db.database import Database
from boathook.db.queries.event_search import EventFilter
from boathook.db.rerouting import count_unhandled
from boathook.db.route_registry import decode_routing, register
from boathook.domain import ids
from boathook.domain.errors import ApplicationNotFound, DuplicateMessage, InvalidMessage, NotFound, RoutesChanged
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, Duplicate, IdempotencyConflict, IdempotencyKey, IdempotentReplay, Route
from boathook.handlers import outbox as outbox_module
from boathook.handlers.api import Boathook
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import Outbox
from boathook.server.loading import bind
from tests.endpoint_factory import (
    add_application,
    add_endpoint,
    add_endpoint_in,
    bump_routes_version,
    digest_of,
    publish,
    recipients_of,
)
from tests.postgres.operating.event_actions import list_events
from tests.support import eventually

DAY = timedelta(days=1)
EAST, WEST = timezone(timedelta(hours=5)), timezone(-timedelta(hours=5))


async def test_ids_are_formatted_and_parsed_alike_in_sql_and_python(db: Database) -> None:
    for number in (0, 1, (1 << 128) - 1, 0x0192F0C1_2345_7ABC_8DEF_0123456789AB):
        identifier = UUID(int=number)
        shown = ids.show("app", identifier)
        assert await db.fetchval("select boathook.show_id('app', $1)", identifier) == shown
        assert await db.fetchval("select boathook.read_id('app', $1)", shown) == identifier
        assert await db.fetchval("select boathook.read_id('app', $1)", "app_" + shown[4:].upper()) == identifier
    for wrong in ("", "app_", "ep_" + "0" * 27, "app_" + "0" * 26, "app_" + "u" * 27, "app_" + "z" * 27, "acme"):
        assert await db.fetchval("select boathook.read_id('app', $1)", wrong) is None


async def test_a_message_reaches_the_matching_endpoints(db: Database) -> None:
    acme, other = await add_application(db, "acme"), await add_application(db, "other")
    everything = await add_endpoint(db, acme)
    invoices = await add_endpoint(db, acme, event_types=["invoice.*", "exact"])
    eu = await add_endpoint(db, acme, channels=["eu", "vip"])
    large = await add_endpoint(db, acme, filter={"body": {"n": {"gt": 10}}})
    await add_endpoint(db, other)
    gone = {"is_disabled": True, "disabled_because": "manual", "disabled_at": datetime.now(UTC)}
    await add_endpoint(db, acme, **gone)
    await add_endpoint(db, acme, deleted_at=datetime.now(UTC))
    outbox = Outbox()

    async def reached(**fields: Any) -> list[str]:
        return await recipients_of(db, (await publish(db, outbox, "acme", **fields)).event_id)

    assert await reached() == [everything, invoices]
    assert await reached(type="exact") == [everything, invoices]
    assert await reached(type="exactly") == [everything]
    assert await reached(type="charge", channels=["eu"]) == [everything, eu]
    assert await reached(type="charge", channels=["us", "vip"]) == [everything, eu]
    assert await reached(type="charge", channels=["us"]) == [everything]
    assert await reached(type="charge", payload={"n": 11}) == [everything, large]
    assert await reached(type="charge", payload=b"no json") == [everything]


async def test_a_message_is_stored_with_all_its_fields(db: Database) -> None:
    acme = await add_application(db, "acme")
    ordered = await add_endpoint(db, acme, order_by="*")
    soon = datetime.now(UTC) + timedelta(hours=3)
    receipt = await publish(
        db, Outbox(), acme, id="inv-1", channels=["eu", "eu"], tags=["a/b"], deliver_at=soon,
        content_until=soon + DAY, headers={"X-Trace": "t"}, payload=b'{"n": 1.50}', content_type="application/json",
    )  # fmt: skip
    row = dict(await db.fetchrow("select * from boathook.event where id = $1", receipt.event_id))
    wanted = {
        "source": None, "application": acme, "type": "invoice.paid", "dedup_key": "inv-1", "origin": "published",
        "channels": ["eu"], "tags": ["a/b"], "content_until": soon + DAY, "deliver_at": soon, "expunged_at": None, "fanout": 1,
        "headers": '{"x-trace":"t"}', "body": b'{"n": 1.50}', "content_type": "application/json",
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted
    delivery = await db.fetchrow("select * from boathook.delivery where event_id = $1", receipt.event_id)
    assert (delivery["recipient"], delivery["order_key"]) == (ordered, "*")
    assert delivery["enqueued_at"] == delivery["due_at"] == soon
    assert not delivery["is_blocked"]
    second = await publish(db, Outbox(), acme)
    assert await db.fetchval("select is_blocked from boathook.delivery where event_id = $1", second.event_id)


async def test_memory_is_long_for_messages_with_an_id_of_their_own(db: Database) -> None:
    acme, outbox = await add_application(db), Outbox(memory_days=50)
    named, nameless = await publish(db, outbox, acme, id="a"), await publish(db, outbox, acme)
    left = "select expires_at - now() from boathook.dedup where event_id = $1"
    assert 49 * DAY < await db.fetchval(left, named.event_id) <= 50 * DAY
    assert 0 * DAY < await db.fetchval(left, nameless.event_id) <= DAY


async def test_dedup_keys_of_an_apps_messages_last_as_long_as_events(db: Database) -> None:
    acme, hook = await add_application(db), Boathook("shop")
    settings = load(None, {"server.app": "shop:hook", "retention.events_days": 400, "database.url": db.url})
    platform = bind(settings, [hook])
    async with db.transaction() as connection:
        receipt = await hook.publish(connection, application=acme, type="invoice.paid", payload={}, id="a")
    left = await db.fetchval("select expires_at - now() from boathook.dedup where event_id = $1", receipt.event_id)
    assert 399 * DAY < left <= 400 * DAY
    await platform.stop()


async def test_handlers_name_an_application_by_id_uid_or_unknown_name(db: Database) -> None:
    acme, elsewhere = await add_application(db, "acme"), await add_application(db, "acme", "elsewhere")
    endpoint = await add_endpoint(db, acme)
    await register(db, "tests", [
        Route(recipient="handler:by-id", app="tests", application=acme),
        Route(recipient="handler:by-uid", app="tests", application="acme"),
        Route(recipient="handler:unknown", app="tests", application="nobody"),
        Route(recipient="handler:elsewhere", app="tests", application=elsewhere),
    ])  # fmt: skip
    outbox = Outbox()
    for name in ("acme", acme):
        receipt = await publish(db, outbox, name)
        assert await recipients_of(db, receipt.event_id) == ["handler:by-id", "handler:by-uid", endpoint]
        assert await db.fetchval("select application from boathook.event where id = $1", receipt.event_id) == acme
    receipt = await publish(db, outbox, "nobody")
    assert await recipients_of(db, receipt.event_id) == ["handler:unknown"]
    assert await db.fetchval("select application from boathook.event where id = $1", receipt.event_id) == "nobody"
    # Another organization's uid is its own affair: only the id names its application for a handler.
    receipt = await publish(db, outbox, "acme", organization="elsewhere")
    assert await recipients_of(db, receipt.event_id) == ["handler:elsewhere"]


async def test_an_id_that_is_no_applications_is_refused(db: Database) -> None:
    acme, elsewhere = await add_application(db, "acme"), await add_application(db, None, "elsewhere")
    outbox = Outbox()
    await publish(db, outbox, acme)
    for name in ("app_" + "0" * 27, elsewhere):
        with pytest.raises(NotFound, match=f"no application {name}"):
            await publish(db, outbox, name)
    await db.execute("update boathook.application set deleted_at = now() where uid = 'acme'")
    with pytest.raises(NotFound, match="it may have been deleted"):
        await publish(db, outbox, acme)
    assert await db.fetchval("select count(*) from boathook.event") == 1


async def test_a_uid_leads_to_the_application_that_has_it_now(db: Database) -> None:
    outbox = Outbox()
    with pytest.raises(ApplicationNotFound):
        await publish(db, outbox, "acme")
    first = await add_application(db, "acme")
    one = await add_endpoint(db, first)
    assert await recipients_of(db, (await publish(db, outbox, "acme")).event_id) == [one]
    await db.execute("update boathook.application set uid = 'former' where uid = 'acme'")
    second = await add_application(db, "acme")
    two = await add_endpoint(db, second)
    assert await recipients_of(db, (await publish(db, outbox, "acme")).event_id) == [two]
    await db.execute("update boathook.application set deleted_at = now() where uid = 'acme'")
    with pytest.raises(ApplicationNotFound):
        await publish(db, outbox, "acme")


async def test_a_message_for_nobody_is_refused_and_leaves_the_transaction_usable(db: Database) -> None:
    outbox = Outbox()
    async with db.transaction() as connection:
        with pytest.raises(ApplicationNotFound, match=r"no application 'acmee'.*boathook applications create"):
            await outbox.publish(connection, Message(application="acmee", type="x", payload={}))
        acme = await add_application(connection, "acmee")
        receipt = await outbox.publish(connection, Message(application="acmee", type="x", payload={}))
    assert await db.fetchval("select array_agg(application) from boathook.event") == [acme]
    assert await db.fetchval("select fanout from boathook.event where id = $1", receipt.event_id) == 0
    assert await db.fetchval("select count(*) from boathook.unhandled") == 0, "an application needs no endpoint"


async def test_a_name_that_a_route_has_may_be_published_to_until_the_route_is_retired(db: Database) -> None:
    outbox = Outbox()
    await register(db, "tests", [Route(recipient="handler:a", app="tests", application="nobody", types=("a",))])
    assert await recipients_of(db, (await publish(db, outbox, "nobody", type="a")).event_id) == ["handler:a"]
    missed = await publish(db, outbox, "nobody", type="b")
    rows = await db.fetch("select event_id, subject from boathook.unhandled")
    assert [tuple(row) for row in rows] == [(missed.event_id, "nobody")]
    assert await count_unhandled(db, datetime.now(UTC) - DAY) == {"nobody": 1}
    (listed,) = await list_events(db, EventFilter(is_unhandled=True))
    assert listed.id == ids.show(ids.EVENT, missed.event_id)
    await register(db, "tests", [])
    with pytest.raises(ApplicationNotFound):
        await publish(db, outbox, "nobody", type="a")


async def test_a_name_that_a_route_has_may_become_an_application(db: Database) -> None:
    outbox = Outbox()
    await register(db, "tests", [Route(recipient="handler:a", app="tests", application="acme")])
    assert await recipients_of(db, (await publish(db, outbox, "acme")).event_id) == ["handler:a"]
    endpoint = await add_endpoint(db, await add_application(db, "acme"))
    assert await recipients_of(db, (await publish(db, outbox, "acme")).event_id) == ["handler:a", endpoint]


async def _endpoints_added_meanwhile(db: Database, rounds: int) -> list[str]:
    """Publish while endpoints are being added; say which were there before a call and did not get its message."""
    acme, outbox = await add_application(db, "acme"), Outbox()
    lost: list[str] = []
    known: list[str] = []
    is_over = False
    await publish(db, outbox, "acme")

    async def add() -> None:
        for _ in range(rounds):
            known.append(await add_endpoint(db, acme))
            await asyncio.sleep(0)

    async def keep_publishing() -> None:
        is_last = False
        while not is_last:
            is_last, before = is_over, set(known)
            with contextlib.suppress(RoutesChanged):  # so quick a change is no loss: the publisher is told
                receipt = await publish(db, outbox, "acme")
                lost.extend(before.difference(await recipients_of(db, receipt.event_id)))

    publishers = [asyncio.create_task(keep_publishing()) for _ in range(3)]
    await add()
    is_over = True
    await asyncio.gather(*publishers)
    return lost


async def test_an_endpoint_added_before_the_call_gets_the_message(db: Database) -> None:
    assert await _endpoints_added_meanwhile(db, 40) == []


async def test_without_the_versions_check_endpoints_miss_messages(db: Database) -> None:
    """The mutant: the stored function without its comparison of the application's version."""
    source = await db.fetchval("select pg_get_functiondef('boathook.publish_messages'::regproc)")
    mutated = source.replace("a.routes_version || '.' || a.xmin::text is distinct from t.routes", "false")
    assert mutated != source
    await db.execute(mutated)
    assert await _endpoints_added_meanwhile(db, 3) != []


async def test_a_handler_added_after_the_routes_were_read_gets_the_message(db: Database) -> None:
    acme, outbox = await add_application(db, "acme"), Outbox()
    assert await recipients_of(db, (await publish(db, outbox, acme)).event_id) == []
    await register(db, "tests", [Route(recipient="handler:a", app="tests", application="acme")])
    assert await recipients_of(db, (await publish(db, outbox, acme)).event_id) == ["handler:a"]


class _Undone(Exception):
    pass


async def _publish_and_undo(db: Database, outbox: Outbox, application: str) -> None:
    async with db.transaction() as connection:
        ghost = await add_endpoint_in(connection, application)
        await outbox.publish(connection, Message(application=application, type="x", payload={}))
        assert ghost in [row[0] for row in await connection.fetch("select recipient from boathook.delivery")]
        raise _Undone


async def _after_a_rollback(db: Database) -> tuple[list[str], str]:
    """Publish after reading a version that was rolled back; return the recipients and the real endpoint."""
    acme, outbox = await add_application(db), Outbox()
    await publish(db, outbox, acme)
    with pytest.raises(_Undone):
        await _publish_and_undo(db, outbox, acme)
    real = await add_endpoint(db, acme)
    receipt = await publish(db, outbox, acme)
    return await recipients_of(db, receipt.event_id), real


async def test_a_rolled_back_version_is_not_mistaken_for_the_next(db: Database) -> None:
    reached, real = await _after_a_rollback(db)
    assert reached == [real]


async def test_without_the_transaction_mark_versions_are_confused(db: Database) -> None:
    """The mutant: versions that are numbers alone."""
    for function in ("routes_for", "publish_messages"):
        source = await db.fetchval("select pg_get_functiondef($1::regproc)", f"boathook.{function}")
        mutated = re.sub(r"\|\| '\.' \|\| (a\.)?xmin::text", "|| '.'", source)
        assert mutated != source
        await db.execute(mutated)
    reached, real = await _after_a_rollback(db)
    assert len(reached) == 1
    assert reached != [real]


async def test_routes_that_never_hold_still_are_an_error(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    acme = await add_application(db)

    def stale(document: Any) -> Any:
        found = decode_routing(document)
        return type(found)(registry="0.0", application=found.application, routes=found.routes)

    monkeypatch.setattr(outbox_module, "decode_routing", stale)
    with pytest.raises(RoutesChanged, match="try again"):
        await publish(db, Outbox(), acme)


async def test_a_long_transaction_of_a_publisher_holds_up_no_change_of_routes(db: Database) -> None:
    acme, outbox = await add_application(db), Outbox()
    async with db.transaction() as connection:
        await outbox.publish(connection, Message(application=acme, type="x", payload={}))
        await asyncio.wait_for(add_endpoint(db, acme), 300)
        await asyncio.wait_for(register(db, "t", [Route(recipient="handler:a", app="t", application="b")]), 300)


async def test_the_same_id(db: Database) -> None:
    acme, other, outbox = await add_application(db, "acme"), await add_application(db), Outbox()
    first = await publish(db, outbox, acme, id="inv-1")
    assert await publish(db, outbox, "acme", id="inv-1") == Duplicate(first.event_id)
    assert await publish(db, outbox, acme, id="inv-1", payload={"n": 2}) == Duplicate(first.event_id, conflict=True)
    assert isinstance(await publish(db, outbox, other, id="inv-1"), Accepted)
    await db.execute("update boathook.dedup set expires_at = now() - interval '1 s'")
    assert isinstance(await publish(db, outbox, acme, id="inv-1"), Accepted)


def key_of(word: str, *, request: str = "request") -> IdempotencyKey:
    return IdempotencyKey(digest_of(word), digest_of(request))


async def test_the_same_idempotency_key(db: Database) -> None:
    acme, outbox = await add_application(db), Outbox()
    first = await publish(db, outbox, acme, idempotency=key_of("key"))
    assert await publish(db, outbox, acme, idempotency=key_of("key")) == IdempotentReplay(first.event_id)
    other = key_of("key", request="other")
    assert await publish(db, outbox, acme, idempotency=other) == IdempotencyConflict(first.event_id)
    assert isinstance(await publish(db, outbox, acme, idempotency=key_of("key 2")), Accepted)
    named = await publish(db, outbox, acme, id="a", idempotency=key_of("key 3"))
    again = await publish(db, outbox, acme, id="a", idempotency=key_of("key 3"))
    assert again == IdempotentReplay(named.event_id)
    assert await publish(db, outbox, acme, id="a", idempotency=key_of("key 4")) == Duplicate(named.event_id)
    unnamed = key_of("key 3", request="other")
    assert await publish(db, outbox, acme, id="b", idempotency=unnamed) == IdempotencyConflict(named.event_id)
    await db.execute("update boathook.dedup set expires_at = now() - interval '1 s'")
    assert isinstance(await publish(db, outbox, acme, idempotency=key_of("key")), Accepted)


async def _two_at_once(db: Database, **fields: Any) -> tuple[Any, Any, bool]:
    """Publish twice, the second before the first has committed; return also whether the second waited for the first."""
    acme, outbox = await add_application(db), Outbox()
    message = Message(application=acme, type="x", payload={}, **fields)
    async with db.acquire() as later:
        later_pid = await later.fetchval("select pg_backend_pid()")

        async def second() -> Any:
            async with later.transaction():
                return await Outbox().publish(later, message)

        async with db.transaction() as connection:
            first = await outbox.publish(connection, message)
            pids = await connection.fetchval("select pg_backend_pid()"), later_pid
            waiting = asyncio.create_task(second())

            async def is_settled() -> bool:
                return waiting.done() or await db.fetchval("select $1::int = any (pg_blocking_pids($2::int))", *pids)

            await eventually(is_settled)
            has_waited = not waiting.done()
        return first, await waiting, has_waited


async def test_the_same_key_in_flight_waits_for_the_first(db: Database) -> None:
    first, second, has_waited = await _two_at_once(db, idempotency=key_of("k"))
    assert (second, has_waited) == (IdempotentReplay(first.event_id), True)
    first, second, has_waited = await _two_at_once(db, id="a")
    assert (second, has_waited) == (Duplicate(first.event_id), True)


@pytest.mark.parametrize(
    ("removal", "fields"),
    [
        ("alter table boathook.dedup drop constraint dedup_pkey", {"id": "a"}),
        ("drop index boathook.dedup_replay_key", {"idempotency": key_of("k")}),
    ],
    ids=["id", "idempotency"],
)
async def test_mutant_without_its_unique_index_a_key_is_not_waited_for(
    db: Database, removal: str, fields: dict[str, Any]
) -> None:
    await db.execute(removal)
    first, second, has_waited = await _two_at_once(db, **fields)
    assert (isinstance(second, Accepted), has_waited) == (True, False)
    assert second.event_id != first.event_id


async def test_without_a_stored_key_a_repeated_request_is_a_new_message(db: Database) -> None:
    """The mutant: the stored function that forgets the idempotency key."""
    source = await db.fetchval("select pg_get_functiondef('boathook.publish_messages'::regproc)")
    mutated = source.replace("select m.key, m.replay_key, ", "select m.key, null, ")
    assert mutated != source
    await db.execute(mutated)
    first, second, _ = await _two_at_once(db, idempotency=key_of("k"))
    assert isinstance(second, Accepted)
    assert second.event_id != first.event_id


async def test_a_key_is_free_again_if_the_first_rolls_back(db: Database) -> None:
    acme, outbox = await add_application(db), Outbox()
    key = key_of("k")
    async with db.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await outbox.publish(connection, Message(application=acme, type="x", payload={}, idempotency=key))
        waiting = asyncio.create_task(publish(db, outbox, acme, idempotency=key))
        await transaction.rollback()
    assert isinstance(await waiting, Accepted)


async def test_publish_raises_on_another_payload_with_the_same_id(db: Database) -> None:
    await add_application(db, "acme")
    hook = Boathook()
    async with db.acquire() as connection:
        first = await hook.publish(
            connection, application="acme", type="x", payload={"n": 1}, id="a", channels=("c",), tags=("t",),
            deliver_at=datetime.now(UTC) + DAY,
        )  # fmt: skip
        assert isinstance(first, Accepted)
        assert await hook.publish(connection, application="acme", type="x", payload={"n": 1}, id="a") == Duplicate(
            first.event_id
        )
        with pytest.raises(DuplicateMessage, match="already has the id 'a'"):
            await hook.publish(connection, application="acme", type="x", payload={"n": 2}, id="a")
    assert hook.published == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type": ""}, "type"),
        ({"type": "a\x00b"}, "type"),
        ({"id": "a\nb"}, "id"),
        ({"id": ""}, "id"),
        ({"channels": ["no spaces"]}, "channels"),
        ({"channels": [str(n) for n in range(11)]}, "channels"),
        ({"tags": ["ü"]}, "tags"),
        ({"headers": {"a": 1}}, "headers"),
        ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at"),  # noqa: DTZ001 - that is what is wrong with it
        ({"deliver_at": datetime.max.replace(tzinfo=WEST)}, "deliver_at"),
        ({"content_until": datetime.min.replace(tzinfo=EAST)}, "content_until"),
        ({"headers": {"a": "\x00"}}, "headers"),
        ({"headers": {"\ud800": "a"}}, "headers"),
        ({"payload": {"a": object()}}, "payload"),
        ({"payload": {"a": "\ud800"}}, "payload"),
    ],
    ids=lambda value: value if isinstance(value, str) else "with",
)
async def test_a_wrong_field_is_named(db: Database, fields: dict[str, Any], field: str) -> None:
    acme = await add_application(db)
    with pytest.raises(InvalidMessage, match=f"^{field}: "):
        await publish(db, Outbox(), acme, **fields)


@pytest.mark.parametrize("application", ["a\x00b", "\ud800", 5])
async def test_an_application_that_cannot_be_stored_leaves_the_transaction_usable(
    db: Database, application: Any
) -> None:
    async with db.transaction() as connection:
        with pytest.raises(InvalidMessage, match=r"^application: "):
            await Outbox().publish(connection, Message(application=application, type="a", payload=1))
        assert await connection.fetchval("select 1") == 1


async def test_compiled_routes_take_bounded_memory(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_ROUTES", 100)
    acme, outbox = await add_application(db, "acme"), Outbox()
    endpoint = await add_endpoint(db, acme)
    for number in range(30):
        await add_application(db, f"nobody-{number}")
        await publish(db, outbox, f"nobody-{number}")
        assert await recipients_of(db, (await publish(db, outbox, "acme")).event_id) == [endpoint]
    kept = outbox._route_cache._kept
    assert ("default", "acme") in kept
    assert sum(10 + len(one.routing.routes) for one in kept.values()) == outbox._route_cache._lines <= 100


async def test_operational_events_go_to_the_organizations_own_application(db: Database) -> None:
    outbox = Outbox()

    async def publish_operational(organization: str) -> Any:
        async with db.transaction() as connection:
            return await publish_operational_event(
                outbox, connection, organization=organization, type="endpoint.disabled", data={"appId": "app_1"}
            )

    assert await publish_operational("default") is None
    operations = await add_application(db, None, is_operational=True)
    assert await publish_operational("default") is None
    listener = await add_endpoint(db, operations, event_types=["endpoint.*"])
    receipt = await publish_operational("default")
    assert await recipients_of(db, receipt.event_id) == [listener]
    body = await db.fetchval("select body from boathook.event where id = $1", receipt.event_id)
    assert body == b'{"type":"endpoint.disabled","data":{"appId":"app_1"}}'
    assert await publish_operational("elsewhere") is None
    await db.execute(
        "update boathook.endpoint set is_disabled = true, disabled_because = 'manual', disabled_at = now()"
    )
    await bump_routes_version(db, operations)
    assert await publish_operational("default") is None
    async with db.transaction() as connection:
        with pytest.raises(ValueError, match="not a type of operational"):
            await publish_operational_event(outbox, connection, organization="default", type="invoice.paid", data={})
