"""Messages published while PostgreSQL is away: answered once they are durable here, stored once it is back, each once."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from boathook.api import build_api
from boathook.config import Settings
from boathook.db import applications, integrity
from boathook.db.database import Database, UnreachedDatabase
from boathook.db.events import EventStore
from boathook.db.message_group import NewMessageRow, insert_group
from boathook.db.route_registry import read_router, read_routing
from boathook.db.secret_box import SecretBox
from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable, ServedElsewhere, SpoolUnavailable
from boathook.domain.filters import Router
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, Duplicate, NewEvent
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import Outbox
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter, Refused
from boathook.ingest.intake import Intake, Mode
from boathook.ingest.spool_importer import SpoolImporter
from boathook.ingest.spool_records import UNROUTED, UnreadableRecord, decode, encode
from boathook.observability import meters
from boathook.service.access.keys import hash_token
from boathook.service.sending import group_publisher, message_store
from boathook.service.sending.message_store import MessageStore
from boathook.spool.segment import Record
from boathook.spool.segment_store import SegmentStore, SpoolLimits
from boathook.spool.spool import Spool
from boathook_outage_publishing import access_copy, store
from boathook_outage_publishing import publisher as outage_publisher
from boathook_outage_publishing.access_copy import FILE_NAME, AccessCopy
from boathook_outage_publishing.publisher import OutagePublisher
from boathook_outage_publishing.store import PublishingKey
from tests.acceptance.test_start_during_outage import target_of, through
from tests.faults.rig.proxy import Proxy
from tests.postgres.api_client import KEY, ApiClient, make_context, make_token
from tests.postgres.db.test_events import event
from tests.support import eventually

PLAIN: dict[str, Any] = {"eventType": "invoice.paid", "payload": {"n": 1}}
PATH = "/app/acme/msg"
HOUR_S = 3600.0


def in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


@dataclass
class Gateway:
    """The publishing parts of a gateway, with a PostgreSQL that can be cut off."""

    db: Database
    wire: Proxy
    settings: Settings
    intake: Intake
    access: AccessCopy
    buffered: OutagePublisher
    api: ApiClient

    async def cut(self) -> None:
        """Let PostgreSQL be away for this gateway."""
        self.wire.set(is_refusing=True)
        self.wire.reset()

    async def heal(self) -> None:
        """Let PostgreSQL be back, and wait until everything is stored."""
        self.wire.heal()
        await eventually(lambda: self.intake.mode is Mode.DIRECT)

    async def publish(self, body: Any = None, *, expect: int = 202, **headers: str) -> dict[str, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.api.ask(expect, "POST", PATH, PLAIN if body is None else body, headers=named)

    async def stored(self) -> list[str]:
        """Return the ids of the messages in PostgreSQL, oldest first."""
        rows = await self.db.fetch("select id from boathook.event where application = $1 order by ctid", self.name)
        return [ids.show(ids.MESSAGE, row["id"]) for row in rows]

    @property
    def name(self) -> str:
        return ids.show(ids.APPLICATION, self.access.targets.by_name["default", "acme"].id)

    async def reports(self) -> list[dict[str, Any]]:
        """Return the operational webhooks about messages that were not stored."""
        rows = await self.db.fetch("select body from boathook.event where type = 'message.duplicate' order by id")
        return [json.loads(row["body"])["data"] for row in rows]

    async def balances(self) -> bool:
        return (await integrity.check_integrity(self.db, dedup_days=30, is_deep=True)).violations == ()


LIMITS = SpoolLimits(segment_bytes=65_536, max_disk_used=1.0)


@pytest.fixture
def wire(pg_url: str) -> Iterator[Proxy]:
    """The network between the gateway and PostgreSQL."""
    with Proxy(target_of(pg_url)) as one:
        yield one


@asynccontextmanager
async def opened(
    db: Database, wire: Proxy, folder: Path, limits: SpoolLimits = LIMITS, **overrides: Any
) -> AsyncIterator[Gateway]:
    wired = await Database.open(through(db.url, wire.port), purpose="wired", size=10)
    context = make_context(wired, server__data_dir=str(folder), **overrides)
    builder = EventBuilder(Router((), UNROUTED), lambda: read_router(wired))
    intake = Intake(
        EventStore(wired),
        reroute=builder.reroute,
        messages=MessageStore(lambda: wired, Outbox()),
        buffer=Spool.at(folder / "spool", limits),
        within_s=1.0,
    )
    access = AccessCopy.load(context.settings, SecretBox([KEY]))
    buffered = OutagePublisher(intake, access, context.outbox)
    api = ApiClient(context, await make_token(context), build_api(context, buffered))
    await intake.start()
    gateway = Gateway(db, wire, context.settings, intake, access, buffered, api)
    access._database = buffered.database = wired
    try:
        yield gateway
    finally:
        wire.heal()
        await intake.drain()
        await api.aclose()
        await wired.close()


@pytest.fixture
async def gateway(db: Database, wire: Proxy, tmp_path: Path) -> AsyncIterator[Gateway]:
    await db.execute("truncate boathook.event")  # rows are in the order of their storing only if no page has room
    async with opened(db, wire, tmp_path) as one:
        await one.api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        await one.api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/hook"})
        await one.api.ask(201, "POST", "/operational-webhook/endpoint", {"url": "http://127.0.0.1:18080/ops"})
        assert await one.access.read()
        yield one


UNUSUAL: dict[str, Any] = PLAIN | {"deliverAt": None, "transformationsParams": {"rawPayload": "x"}}


async def test_messages_are_accepted_in_an_outage_and_stored_once_in_order(gateway: Gateway) -> None:
    before = await gateway.publish()
    await gateway.cut()
    made = [await gateway.publish(PLAIN | {"payload": {"n": n}} if n % 5 else UNUSUAL) for n in range(20)]
    assert gateway.intake.mode is Mode.SPOOLING
    assert await gateway.stored() == [before["id"]]
    await gateway.heal()
    expected = [before["id"], *(one["id"] for one in made)]
    assert await gateway.stored() == expected
    after = await gateway.publish()
    assert await gateway.stored() == [*expected, after["id"]]
    rows = await gateway.db.fetch("select count(*) as n from boathook.delivery group by recipient")
    assert [row["n"] for row in rows] == [22]
    assert await gateway.balances()


async def test_the_answer_is_that_of_a_stored_message(gateway: Gateway) -> None:
    bodies = [PLAIN, PLAIN | {"eventId": "a", "channels": ["eu"], "tags": ["t"]}, UNUSUAL]
    direct = [await gateway.publish(body) for body in bodies]
    await gateway.cut()
    buffered = [await gateway.publish(body if "eventId" not in body else body | {"eventId": "b"}) for body in bodies]
    changing = {"id", "timestamp", "eventId"}
    for one, other in zip(direct, buffered, strict=True):
        assert list(one) == list(other)
        assert {key: one[key] for key in one if key not in changing} == {
            key: other[key] for key in other if key not in changing
        }
    await gateway.heal()
    columns = """select source, type, grade, origin, headers::text as headers, content_type, body, body_sha256, fanout,
        channels, tags, deliver_at, content_until, items from boathook.event order by id"""
    rows = [dict(row) for row in await gateway.db.fetch(columns)]
    assert rows[:3] == rows[3:]
    for made in buffered:
        assert (await gateway.api.ask(200, "GET", f"{PATH}/{made['id']}"))["payload"] == made["payload"]


async def test_every_field_survives_the_buffer(gateway: Gateway) -> None:
    body = PLAIN | {
        "eventId": "inv-1", "channels": ["eu", "us"], "tags": ["t"], "deliverAt": in_an_hour(),
        "payloadRetentionPeriod": 5,
    }  # fmt: skip
    await gateway.cut()
    made = await gateway.publish(body, idempotency_key="k")
    await gateway.heal()
    row = await gateway.db.fetchrow("select * from boathook.event where id = $1", ids.read(ids.MESSAGE, made["id"]))
    assert row is not None
    assert (row["dedup_key"], row["channels"], row["tags"]) == ("inv-1", ["eu", "us"], ["t"])
    assert row["deliver_at"] > datetime.now(UTC) + timedelta(minutes=30)
    assert row["content_until"] is not None
    assert await gateway.db.fetchval("select due_at = deliver_at from boathook.delivery, boathook.event") is True
    again = await gateway.publish(body, idempotency_key="k")
    assert again["id"] == made["id"]


async def test_recipients_are_those_at_the_time_of_storing(gateway: Gateway) -> None:
    await gateway.cut()
    made = await gateway.publish()
    other = ApiClient(make_context(gateway.db), gateway.api.headers["authorization"].removeprefix("Bearer "))
    await other.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/later"})
    await gateway.heal()
    event_id = ids.read(ids.MESSAGE, made["id"])
    assert await gateway.db.fetchval("select count(*) from boathook.delivery where event_id = $1", event_id) == 2


async def test_messages_queue_behind_earlier_accepted_ones(gateway: Gateway) -> None:
    await gateway.cut()
    made = []
    for number in range(200):
        made.append((await gateway.publish())["id"])
        await gateway.intake.accept(event(f"evt-{number}", owed=()))
    gateway.wire.heal()
    while gateway.intake.mode is not Mode.DIRECT:
        made.append((await gateway.publish())["id"])
    made.append((await gateway.publish())["id"])
    assert await gateway.stored() == made
    assert await gateway.db.fetchval("select count(*) from boathook.event where source = 'stripe'") == 200
    assert await gateway.balances()


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_mutant_without_that_they_overtake(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutagePublisher, "is_needed", False)
    await gateway.cut()
    made = [(await gateway.publish())["id"] for _ in range(300)]
    gateway.wire.heal()
    while gateway.intake.mode is not Mode.DIRECT:
        made.append((await gateway.publish())["id"])
    assert sorted(await gateway.stored()) == sorted(made)
    assert await gateway.stored() != made


class LostAnswers:
    """Lets commits of messages succeed, and loses the responses."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def __call__(self, *args: Any, **options: Any) -> Any:
        verdicts = await insert_group(*args, **options)
        if self.times:
            self.times -= 1
            raise DatabaseUnavailable("the connection was lost during the commit")
        return verdicts


async def test_a_commit_with_a_lost_response_makes_one_message(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt and the intake's commit succeed; the spool holds a third copy."""
    await gateway.publish()
    await gateway.db.execute("delete from boathook.delivery")
    await gateway.db.execute("truncate boathook.event, boathook.dedup")
    monkeypatch.setattr("boathook.service.sending.group_publisher.insert_group", LostAnswers(1))
    lost = LostAnswers(3)
    monkeypatch.setattr(message_store, "insert_group", lost)
    made = await gateway.publish()
    await eventually(lambda: gateway.intake.mode is Mode.DIRECT)
    assert lost.times == 0
    assert await gateway.stored() == [made["id"]]
    assert await gateway.reports() == []
    assert await gateway.balances()


async def test_mutant_with_a_new_id_for_each_attempt_it_is_stored_twice(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = gateway.api.context.outbox.draft
    monkeypatch.setattr(
        type(gateway.api.context.outbox), "draft", lambda _self, message: draft(structs.replace(message, event_id=None))
    )
    monkeypatch.setattr("boathook.service.sending.group_publisher.insert_group", LostAnswers(1))
    await gateway.publish()
    assert len(await gateway.stored()) == 2


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_request_repeated_across_the_beginning_of_an_outage_has_one_answer(
    gateway: Gateway, *, is_plain: bool
) -> None:
    body = PLAIN if is_plain else UNUSUAL
    first = await gateway.publish(body, idempotency_key="k")
    repeated = await gateway.publish(body, idempotency_key="k")
    await gateway.cut()
    late = await gateway.publish(body, idempotency_key="k")
    assert {repeated["id"], late["id"]} == {first["id"]}
    clash = await gateway.publish(PLAIN | {"payload": {}}, expect=409, idempotency_key="k")
    assert clash["code"] == "idempotency_key_reused"
    await gateway.heal()
    assert await gateway.stored() == [first["id"]]
    assert await gateway.reports() == []


async def test_mutant_without_the_memory_of_stored_messages_it_has_two(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OutagePublisher, "remember", lambda *_arguments: None)
    first = await gateway.publish(idempotency_key="k")
    await gateway.cut()
    assert (await gateway.publish(idempotency_key="k"))["id"] != first["id"]


async def test_a_request_repeated_at_another_gateway_in_the_outage_is_one_message_reported(gateway: Gateway) -> None:
    first = await gateway.publish(idempotency_key="k", body=PLAIN | {"eventId": "inv-1"})
    await gateway.cut()
    gateway.buffered._remembered.clear()  # as at another gateway
    late = await gateway.publish(idempotency_key="k", body=PLAIN | {"eventId": "inv-1"})
    assert late["id"] != first["id"]
    await gateway.heal()
    assert await gateway.stored() == [first["id"]]
    (report,) = await gateway.reports()
    assert report == {
        "appId": gateway.name,
        "msgId": late["id"],
        "originalMsgId": first["id"],
        "reason": "idempotency_key",
        "isConflict": False,
        "msgEventId": "inv-1",
    }
    owed = "select count(*) from boathook.delivery d join boathook.event e on e.id = d.event_id where e.type = $1"
    assert await gateway.db.fetchval(owed, "message.duplicate") == 1
    assert await gateway.db.fetchval("select count(*) from boathook.conflict") == 0
    assert await gateway.balances()


async def test_a_key_that_postgresql_has_is_answered_with_its_message_while_others_wait(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await gateway.publish(idempotency_key="k")
    monkeypatch.setattr(type(gateway.intake), "is_direct", False)  # as while older messages are drained
    again = await gateway.publish(idempotency_key="k")
    assert again["id"] == first["id"]
    clash = await gateway.publish(PLAIN | {"payload": {}}, expect=409, idempotency_key="k")
    assert clash["code"] == "idempotency_key_reused"
    gateway.buffered.database = None
    mutant = await gateway.publish(idempotency_key="k2")
    assert mutant["id"] != first["id"]


async def test_requests_with_one_key_at_the_same_time_get_one_id(gateway: Gateway) -> None:
    await gateway.cut()
    answers = await asyncio.gather(*(gateway.publish(idempotency_key="k") for _ in range(5)))
    assert len({answer["id"] for answer in answers}) == 1
    await gateway.heal()
    assert await gateway.stored() == [answers[0]["id"]]
    assert await gateway.reports() == []


async def test_a_request_repeated_during_a_commit_of_unknown_fate_gets_the_id_that_is_stored(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is committed and its answer is lost; the other must not take the key to the buffer before it."""
    await gateway.publish()
    repeated: list[asyncio.Task[dict[str, Any]]] = []

    async def lose_answer(*args: Any, **options: Any) -> Any:
        if not repeated:
            repeated.append(asyncio.create_task(gateway.publish(idempotency_key="k")))
            await insert_group(*args, **options)
            await gateway.cut()
            await asyncio.wait(repeated, timeout=1)
        raise DatabaseUnavailable("the connection was lost during the commit")

    monkeypatch.setattr("boathook.service.sending.group_publisher.insert_group", lose_answer)
    first = await gateway.publish(idempotency_key="k")
    assert (await repeated[0])["id"] == first["id"]
    await gateway.heal()
    assert first["id"] in await gateway.stored()
    assert await gateway.reports() == []


@pytest.mark.parametrize("is_conflict", [False, True])
async def test_two_gateways_give_one_key_two_ids_and_the_message_that_is_not_stored_is_reported(
    gateway: Gateway, wire: Proxy, tmp_path: Path, is_conflict: bool
) -> None:
    (tmp_path / "other").mkdir()
    async with opened(gateway.db, wire, tmp_path / "other") as other:
        assert await other.access.read()
        other.api.headers["authorization"] = gateway.api.headers["authorization"]
        bodies = [PLAIN, PLAIN | {"payload": {"n": 2}} if is_conflict else PLAIN]
        await gateway.cut()
        pairs = list(zip((gateway, other), bodies, strict=True))
        answers = [(await each.publish(body, idempotency_key="k"))["id"] for each, body in pairs]
        assert [(await each.publish(body, idempotency_key="k"))["id"] for each, body in pairs] == answers
        await gateway.heal()
        await other.heal()
        (stored,) = await gateway.stored()
        (report,) = await gateway.reports()
        assert {stored, report["msgId"]} == set(answers)
        assert (report["originalMsgId"], report["isConflict"]) == (stored, is_conflict)
        assert await gateway.db.fetchval("select count(*) from boathook.conflict") == is_conflict
        winner = bodies[answers.index(stored)]
        for each in (gateway, other):
            assert (await each.publish(winner, idempotency_key="k"))["id"] == stored
    assert await gateway.balances()


@pytest.mark.parametrize(
    ("more", "headers", "reason", "differs"),
    [
        ({"eventId": "inv-1"}, {}, "event_id", "body"),
        ({}, {"idempotency_key": "k"}, "idempotency_key", "body"),
    ],
)
async def test_a_late_message_with_other_content_is_kept_as_a_conflict(
    gateway: Gateway, more: dict[str, Any], headers: dict[str, str], reason: str, differs: str
) -> None:
    first = await gateway.publish(PLAIN | more, **headers)
    await gateway.cut()
    gateway.buffered._remembered.clear()  # as at another gateway
    late = await gateway.publish(PLAIN | more | {"payload": {"n": 2}}, **headers)
    await gateway.heal()
    assert await gateway.stored() == [first["id"]]
    (report,) = await gateway.reports()
    assert (report["msgId"], report["reason"], report["isConflict"]) == (late["id"], reason, True)
    (kept,) = await gateway.db.fetch("select id, event_id, differs, body from boathook.conflict")
    assert ids.show(ids.MESSAGE, kept["id"]) == late["id"]
    assert ids.show(ids.MESSAGE, kept["event_id"]) == first["id"]
    assert (kept["differs"], json.loads(kept["body"])) == (differs, {"n": 2})
    assert await gateway.balances()


async def test_late_duplicates_are_reported_together_and_one_that_fails_hides_no_other(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions: list[int] = []
    store = MessageStore._store_reports

    async def noted(self: MessageStore, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        transactions.append(len(messages))
        await store(self, messages)

    monkeypatch.setattr(MessageStore, "_store_reports", noted)
    for key in "abcd":
        await gateway.publish(PLAIN | {"eventId": key})
    await gateway.cut()
    late = [(await gateway.publish(PLAIN | {"eventId": key}))["id"] for key in "abcd"]
    await gateway.heal()
    assert transactions == [4]
    assert [report["msgId"] for report in await gateway.reports()] == late

    async def fail_for_one(*args: Any, data: Any, **more: Any) -> Any:
        if data["msgEventId"] == "b":
            raise RuntimeError("this one cannot be reported")
        return await publish_operational_event(*args, data=data, **more)

    monkeypatch.setattr(message_store, "publish_operational_event", fail_for_one)
    await gateway.cut()
    late += [(await gateway.publish(PLAIN | {"eventId": key}))["id"] for key in "abcd"]
    await gateway.heal()
    del late[5]
    assert [report["msgId"] for report in await gateway.reports()] == late


async def test_mutant_without_a_report_a_late_duplicate_vanishes(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(MessageStore, "report_duplicates", say_nothing)
    await gateway.publish(idempotency_key="k")
    await gateway.cut()
    await gateway.publish(idempotency_key="k")
    await gateway.heal()
    assert await gateway.reports() == []


async def test_an_idempotency_key_is_forgotten_after_a_day_in_an_outage_too(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.cut()
    first = await gateway.publish(idempotency_key="k")
    tomorrow = SimpleNamespace(time=lambda: time.time() + 86_401)
    monkeypatch.setattr(outage_publisher, "time", tomorrow, raising=False)
    later = await gateway.publish(idempotency_key="k")
    assert later["id"] != first["id"]


async def test_idempotency_keys_are_forgotten_once_the_buffer_has_lost_messages(gateway: Gateway) -> None:
    await gateway.cut()
    first = await gateway.publish(idempotency_key="k")
    buffer = gateway.intake.buffer
    assert isinstance(buffer, Spool)
    buffer.losses += 1  # as after a segment that cannot be read: the message may have been in it
    gateway.intake._look_for_losses(buffer)
    again = await gateway.publish(idempotency_key="k")
    assert again["id"] != first["id"]


async def test_a_request_repeated_in_the_outage_gets_the_same_response(gateway: Gateway) -> None:
    await gateway.cut()
    first = await gateway.publish(idempotency_key="k")
    again = await gateway.api.post(PATH, json=PLAIN, headers={"idempotency-key": "k"})
    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    assert again.headers["idempotent-replayed"] == "true"
    for other in (PLAIN | {"payload": {}}, UNUSUAL):
        clash = await gateway.publish(other, expect=409, idempotency_key="k")
        assert clash["code"] == "idempotency_key_reused"
    await gateway.heal()
    assert await gateway.stored() == [first["id"]]
    assert await gateway.reports() == []


async def test_of_equal_ids_in_one_outage_the_first_is_stored(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    async def note(database: Database, rows: Sequence[NewMessageRow], **options: Any) -> list[str | None]:
        sizes.append(len(rows))
        return await insert_group(database, rows, **options)

    monkeypatch.setattr(message_store, "insert_group", note)
    await gateway.cut()
    made = [await gateway.publish(PLAIN | {"eventId": "inv-1", "payload": {"n": n}}) for n in range(5)]
    await gateway.heal()
    assert sizes == [1, 4], "of equal keys in one statement, PostgreSQL may store any"
    assert await gateway.stored() == [made[0]["id"]]
    assert [one["msgId"] for one in await gateway.reports()] == [one["id"] for one in made[1:]]
    assert await gateway.db.fetchval("select count(*) from boathook.conflict") == 4


async def test_a_batch_with_many_deliveries_is_stored_in_several_commits(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "MAX_DELIVERIES", 4)
    for _ in range(2):
        await gateway.api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/hook"})
    await gateway.cut()
    made = [(await gateway.publish())["id"] for _ in range(7)]
    await gateway.heal()
    assert await gateway.stored() == made
    commits = "select count(distinct e.xmin::text), count(*) from boathook.event e join boathook.delivery d on d.event_id = e.id"
    found = await gateway.db.fetchrow(f"{commits} where e.application = $1", gateway.name)
    assert found is not None
    assert tuple(found) == (7, 21)


async def test_draining_again_changes_nothing(gateway: Gateway, tmp_path: Path) -> None:
    """A drain that dies between commit and finishing its segment, and an import of drained segments days later."""
    await gateway.publish(PLAIN | {"eventId": "old"})
    await gateway.cut()
    made = [(await gateway.publish())["id"] for _ in range(3)]
    await gateway.publish(PLAIN | {"eventId": "old", "payload": {}})
    await gateway.heal()
    stored, reports = await gateway.stored(), await gateway.reports()
    assert stored[1:] == made
    for is_forgotten in (False, True):
        if is_forgotten:
            forgotten = [ids.read(ids.MESSAGE, one) for one in made]
            await gateway.db.execute("delete from boathook.dedup where event_id = any ($1)", forgotten)
        importer = SpoolImporter(
            tmp_path / "spool", EventWriter(EventStore(gateway.db), messages=MessageStore(lambda: gateway.db, Outbox()))
        )
        report = await importer.reimport_drained()
        assert (report.there, report.conflict, report.refused) == (3, 1, 0)
        assert await gateway.stored() == stored
        assert await gateway.reports() == reports


async def test_a_message_of_a_deleted_application_is_kept_and_counted(gateway: Gateway, tmp_path: Path) -> None:
    await gateway.api.ask(201, "POST", "/app", {"name": "Gone", "uid": "gone"})
    gateway.access.targets_read_at = -HOUR_S
    assert await gateway.access.read()
    await gateway.cut()
    kept = await gateway.publish()
    lost = await gateway.api.ask(202, "POST", "/app/gone/msg", PLAIN)
    refused = counted("boathook_spool_drained_total", "refused")
    await gateway.db.execute("update boathook.application set deleted_at = now() where uid = 'gone'")
    await gateway.heal()
    assert await gateway.stored() == [kept["id"]]
    assert counted("boathook_spool_drained_total", "refused") == refused + 1
    (file,) = (tmp_path / "spool" / "refused").iterdir()
    assert ids.read(ids.MESSAGE, lost["id"]).bytes in file.read_bytes()
    await gateway.db.execute("update boathook.application set deleted_at = null where uid = 'gone'")
    writer = EventWriter(EventStore(gateway.db), messages=MessageStore(lambda: gateway.db, Outbox()))
    report = await SpoolImporter(tmp_path / "spool", writer).retry_refused()
    assert (report.accepted, report.refused) == (1, 0)
    assert await gateway.balances()


def counted(name: str, *labels: str) -> float:
    found = meters._counters[name].get(labels)
    return 0 if found is None else found.value


async def test_a_wrong_value_is_refused_in_an_outage_as_before(gateway: Gateway) -> None:
    wrong: list[dict[str, Any]] = [
        {"eventType": "a b"}, {"eventId": "msg_1"}, {"channels": ["a/b"]}, {"tags": ["ü"]}, {"payload": [1]},
    ]  # fmt: skip
    before = [await gateway.publish(PLAIN | body, expect=422) for body in wrong]
    await gateway.cut()
    accepted = await gateway.publish()  # from now on the gateway does not try PostgreSQL first
    assert gateway.intake.mode is Mode.SPOOLING
    assert [await gateway.publish(PLAIN | body, expect=422) for body in wrong] == before
    await gateway.heal()
    assert await gateway.stored() == [accepted["id"]]


async def test_undecidable_requests_are_refused(gateway: Gateway) -> None:
    other = gateway.api.as_token("bhk_nobody")
    await gateway.cut()
    before = await gateway.publish()
    for client, path in (
        (gateway.api, "/app/unknown/msg"),
        (gateway.api, f"/app/{unknown_application()}/msg"),
        (other, PATH),
    ):
        for body in (PLAIN, UNUSUAL):
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.headers["retry-after"]
            assert "PostgreSQL is unavailable" in answer.json()["detail"]
    for status, body in ((422, PLAIN | {"eventType": "a b"}), (422, PLAIN | {"payload": 1})):
        await gateway.publish(body, expect=status)
    await gateway.api.ask(422, "POST", "/app/a b/msg", PLAIN)
    answer = await gateway.api.post(PATH, json=PLAIN, headers={"authorization": "Basic eDp5"})
    assert answer.status_code == 401
    await gateway.api.ask(503, "GET", "/app/acme/msg")
    await gateway.heal()
    assert await gateway.stored() == [before["id"]]


def unknown_application() -> str:
    return ids.show(ids.APPLICATION, ids.make(1_700_000_000_000, 5))


def let_pass(monkeypatch: pytest.MonkeyPatch, *, wall: float = 0.0, monotonic: float = 0.0) -> None:
    """Let so many seconds pass from now on by one of the copy's clocks."""

    def now() -> Any:
        return access_copy.Moment(time.time() + wall, time.monotonic() + monotonic)

    monkeypatch.setattr(access_copy.Moment, "now", staticmethod(now))


async def revoke(gateway: Gateway) -> None:
    """Revoke the gateway's key where the gateway cannot see it."""
    await gateway.db.execute("update boathook.api_key set revoked_at = now()")


@pytest.mark.parametrize("clock", ["wall", "monotonic"])
async def test_a_revoked_key_is_refused_after_its_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    await gateway.cut()
    await revoke(gateway)
    await gateway.publish()
    let_pass(monkeypatch, **{clock: HOUR_S - 60})
    await gateway.publish()
    let_pass(monkeypatch, **{clock: HOUR_S + 1})
    for body in (PLAIN, UNUSUAL):
        assert "key_max_age_h" in (await gateway.publish(body, expect=503))["detail"]


async def test_mutant_without_a_max_age_a_revoked_key_keeps_publishing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.access, "_max_age_s", float("inf"))
    await gateway.cut()
    await revoke(gateway)
    let_pass(monkeypatch, wall=1000 * HOUR_S)
    await gateway.publish()


async def test_a_key_expiring_in_the_outage_is_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await gateway.db.execute("update boathook.api_key set expires_at = now() + interval '10 minutes'")
    assert await gateway.access.read()
    await gateway.cut()
    await gateway.publish()
    let_pass(monkeypatch, wall=601)
    await gateway.publish(expect=503)


async def test_keys_of_applications_and_portals_are_not_in_the_copy(gateway: Gateway) -> None:
    own = await make_token(gateway.api.context, application="acme")
    assert await gateway.access.read()
    await gateway.cut()
    await gateway.publish()
    answer = await gateway.api.as_token(own).post(PATH, json=PLAIN)
    assert answer.status_code == 503


async def test_the_copy_keeps_organizations_apart(gateway: Gateway) -> None:
    foreign = gateway.api.as_token(await make_token(gateway.api.context, "elsewhere"))
    assert await gateway.access.read()
    await gateway.cut()
    for reference in ("acme", gateway.name):
        for body in (PLAIN, UNUSUAL):
            await foreign.ask(503, "POST", f"/app/{reference}/msg", body)
    await gateway.heal()
    assert await gateway.stored() == []


async def test_a_recently_used_application_is_known_without_the_copy(gateway: Gateway) -> None:
    await gateway.api.ask(201, "POST", "/app", {"name": "New", "uid": "new"})
    await gateway.api.ask(202, "POST", "/app/new/msg", PLAIN)
    await gateway.cut()
    made = await gateway.api.ask(202, "POST", "/app/new/msg", PLAIN)
    await gateway.heal()
    event_id = ids.read(ids.MESSAGE, made["id"])
    assert await gateway.db.fetchval("select count(*) from boathook.event where id = $1", event_id) == 1


async def test_a_moved_application_is_refused_without_the_copy_too(gateway: Gateway) -> None:
    await gateway.api.ask(201, "POST", "/app", {"name": "New", "uid": "new"})
    await gateway.db.execute("update boathook.application set home = 'west' where uid = 'new'")
    async with gateway.db.acquire() as connection:
        routing = await read_routing(connection, "default", "new")
    gateway.api.context.outbox.cache_routes("default", "new", routing)
    await gateway.cut()
    with pytest.raises(ServedElsewhere):
        await gateway.buffered.publish(Message(application="new", type="x", payload=b"{}"))


async def test_an_inline_application_is_created_only_with_the_database(gateway: Gateway) -> None:
    await gateway.cut()
    known = await gateway.publish(PLAIN | {"application": {"name": "Acme", "uid": "acme"}})
    body = PLAIN | {"application": {"name": "New", "uid": "new"}}
    await gateway.api.ask(503, "POST", "/app/new/msg", body)
    await gateway.heal()
    assert await gateway.stored() == [known["id"]]
    await gateway.api.ask(202, "POST", "/app/new/msg", body)


async def test_the_operational_application_takes_no_messages(gateway: Gateway) -> None:
    found = await gateway.db.fetchval("select id from boathook.application where is_operational")
    await gateway.cut()
    await gateway.api.ask(503, "POST", f"/app/{ids.show(ids.APPLICATION, found)}/msg", PLAIN)


async def test_a_message_stays_with_the_application_that_had_the_uid(gateway: Gateway) -> None:
    await gateway.cut()
    made = await gateway.publish()
    await gateway.db.execute("update boathook.application set uid = 'moved', updated_at = now() where uid = 'acme'")
    await gateway.db.execute(
        "insert into boathook.application (id, organization, name, uid) values ($1, 'default', 'Other', 'acme')",
        ids.read(ids.APPLICATION, unknown_application()),
    )
    await gateway.heal()
    assert await gateway.stored() == [made["id"]]


def wait_in_buffer(gateway: Gateway) -> None:
    """Let the intake put events into the buffer until the next drain."""
    gateway.intake.mode = Mode.SPOOLING


async def test_while_events_wait_new_keys_work_and_revoked_ones_do_not(
    gateway: Gateway,
) -> None:
    """PostgreSQL is available, but the intake has to put new messages behind older ones."""
    await gateway.publish()
    context = make_context(gateway.db)
    token = await make_token(context)
    other = ApiClient(context, token)
    await other.ask(201, "POST", "/app", {"name": "New", "uid": "new"})
    wait_in_buffer(gateway)
    assert await gateway.access.read()  # of the keys alone
    await gateway.api.as_token(token).ask(202, "POST", "/app/new/msg", PLAIN)
    await revoke(gateway)
    assert await gateway.access.read()
    wait_in_buffer(gateway)
    await gateway.publish(expect=503)
    await gateway.heal()


SMALL = SpoolLimits(segment_bytes=4096, max_bytes=8192, max_disk_used=1.0)


async def fill(gateway: Gateway) -> tuple[list[str], httpx.Response]:
    """Publish until the spool is full; return the accepted ids and the last response."""
    await gateway.api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
    assert await gateway.access.read()
    await gateway.cut()
    made: list[str] = []
    answer = httpx.Response(202)
    for number in range(40):
        body = PLAIN | {"payload": {"text": "x" * 1000}} if number % 2 else UNUSUAL
        answer = await gateway.api.post(PATH, json=body)
        if answer.status_code != 202:
            break
        made.append(answer.json()["id"])
    return made, answer


async def test_a_full_spool_is_answered_503(db: Database, wire: Proxy, tmp_path: Path) -> None:
    async with opened(db, wire, tmp_path, SMALL) as gateway:
        made, answer = await fill(gateway)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "5"
        assert made
        await gateway.heal()
        assert await gateway.stored() == made


async def test_mutant_that_hides_a_full_spool_loses_messages(db: Database, wire: Proxy, tmp_path: Path) -> None:
    async with opened(db, wire, tmp_path, SMALL) as gateway:
        accept = gateway.intake.accept

        async def hide(one: NewEvent) -> Any:
            try:
                return await accept(one)
            except SpoolUnavailable:
                return Accepted(one.id, is_spooled=True)

        gateway.intake.accept = hide  # type: ignore[method-assign, assignment]
        made, answer = await fill(gateway)
        assert answer.status_code == 202
        await gateway.heal()
        assert set(await gateway.stored()) < set(made)


async def test_without_a_buffer_publishing_needs_the_database(db: Database, wire: Proxy, tmp_path: Path) -> None:
    async with opened(db, wire, tmp_path) as gateway:
        await gateway.api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        api = ApiClient(gateway.api.context, "", build_api(gateway.api.context))
        api.headers["authorization"] = gateway.api.headers["authorization"]
        await api.ask(202, "POST", PATH, PLAIN)
        await gateway.cut()
        for body in (PLAIN, UNUSUAL):
            await api.ask(503, "POST", PATH, body)


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_hanging_database_delays_a_message_no_longer_than_an_event(gateway: Gateway) -> None:
    await gateway.publish()
    gateway.wire.set(is_stalled=True)
    made = await gateway.publish()
    await gateway.heal()
    assert made["id"] in await gateway.stored()


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_messages_behind_a_stuck_commit_share_its_timeout(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    async def count(*args: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return await insert_group(*args, **options)

    await gateway.publish()
    monkeypatch.setattr(group_publisher, "insert_group", count)
    gateway.wire.set(is_stalled=True)
    made = await asyncio.gather(*[gateway.publish(PLAIN | {"payload": {"n": n}}) for n in range(900)])
    assert attempts <= 3
    await gateway.heal()
    assert set(await gateway.stored()) >= {one["id"] for one in made}
    assert len(await gateway.stored()) == 901


class HeldDisk:
    """Holds up every write of the spool until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        self.waiting = threading.Event()
        write = SegmentStore.write

        def held(store: SegmentStore, payloads: Sequence[bytes]) -> None:
            self.waiting.set()
            assert self.released.wait(300)
            write(store, payloads)

        monkeypatch.setattr(SegmentStore, "write", held)


async def is_answered_before_it_is_durable(gateway: Gateway, disk: HeldDisk) -> bool:
    asking = [asyncio.create_task(gateway.publish(body)) for body in (PLAIN, UNUSUAL)]
    await eventually(disk.waiting.is_set)
    for _ in range(1_000):
        await asyncio.sleep(0)  # whatever can go on without the disk goes on
    is_answered = any(one.done() for one in asking)
    disk.released.set()
    await asyncio.gather(*asking)
    return is_answered


async def test_nothing_is_answered_before_it_is_durable(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await gateway.cut()
    await gateway.publish()
    assert not await is_answered_before_it_is_durable(gateway, HeldDisk(monkeypatch))


async def test_mutant_responding_before_durability_is_detected(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.cut()
    await gateway.publish()
    accept = gateway.intake.accept
    taking = []

    async def answer_at_once(one: NewEvent) -> Accepted:
        taking.append(asyncio.ensure_future(accept(one)))
        return Accepted(one.id, is_spooled=True)

    gateway.intake.accept = answer_at_once  # type: ignore[method-assign, assignment]
    assert await is_answered_before_it_is_durable(gateway, HeldDisk(monkeypatch))
    await asyncio.gather(*taking)


class TestFile:
    """The copy's file, for a start without PostgreSQL."""

    async def test_a_gateway_that_starts_without_the_database_publishes(self, gateway: Gateway) -> None:
        await gateway.access.save()
        await gateway.cut()
        wait_in_buffer(gateway)
        access = AccessCopy.load(gateway.settings, SecretBox([KEY]))
        buffered = OutagePublisher(gateway.intake, access, gateway.api.context.outbox)
        context = replace_database(gateway, UnreachedDatabase())
        token = gateway.api.headers["authorization"].removeprefix("Bearer ")
        api = ApiClient(context, token, build_api(context, buffered))
        made = [await api.ask(202, "POST", PATH, body) for body in (PLAIN, UNUSUAL)]
        for path in ("/app", "/health"):
            assert (await api.get(path)).status_code == 503
        await gateway.heal()
        assert await gateway.stored() == [one["id"] for one in made]

    async def test_the_copys_age_counts_from_its_last_refresh(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await gateway.access.save()
        await gateway.cut()
        for shift_s, is_accepted in ((HOUR_S - 60, True), (HOUR_S + 1, False), (-HOUR_S, False)):
            let_pass(monkeypatch, wall=shift_s)
            gateway.buffered.access = AccessCopy.load(gateway.settings, SecretBox([KEY]))
            await gateway.publish(expect=202 if is_accepted else 503)

    async def test_it_is_sealed(self, gateway: Gateway, tmp_path: Path) -> None:
        await gateway.access.save()
        file = tmp_path / FILE_NAME
        content = file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
        assert b"acme" not in content
        for spoiled in (content[:-1] + bytes([content[-1] ^ 1]), b"", b"{}", content[:20]):
            file.write_bytes(spoiled)
            assert AccessCopy.load(gateway.settings, SecretBox([KEY])).keys == {}
        file.write_bytes(content)
        assert AccessCopy.load(gateway.settings, SecretBox(["another key of sixteen characters"])).keys == {}
        assert AccessCopy.load(gateway.settings, SecretBox([KEY])).keys.keys() == gateway.access.keys.keys()

    async def test_a_key_added_with_a_foreign_secret_key_cannot_publish(self, gateway: Gateway, tmp_path: Path) -> None:
        assert await plant(gateway, tmp_path, SecretBox(["a key that another user has made"])) == 503

    async def test_mutant_with_the_right_encryption_key_it_does(self, gateway: Gateway, tmp_path: Path) -> None:
        assert await plant(gateway, tmp_path, SecretBox([KEY])) == 202

    async def test_only_what_has_changed_is_read(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        full: list[int] = []
        pages = store.list_targets

        async def noted(connection: Any, below: UUID, *, limit: int) -> Any:
            full.append(limit)
            return await pages(connection, below, limit=limit)

        async def names() -> set[str]:
            gateway.access.targets_read_at = -access_copy.TARGETS_INTERVAL_S
            assert await gateway.access.read()
            return {name for _, name in gateway.access.targets.by_name if not name.startswith("app_")}

        monkeypatch.setattr(store, "list_targets", noted)
        for uid in ("a", "b"):
            await gateway.api.ask(201, "POST", "/app", {"name": uid, "uid": uid})
        assert await names() == {"acme", "a", "b"}
        await gateway.api.ask(200, "PATCH", "/app/a", {"uid": "c"})
        await gateway.api.ask(200, "PATCH", "/app/b", {"uid": "a"})
        assert await names() == {"acme", "a", "c"}
        await gateway.api.ask(204, "DELETE", "/app/c")
        assert await names() == {"acme", "a"}
        assert len(gateway.access.targets.by_name) == 4
        assert full == [], "all are read only at first"
        # A transaction that commits long after its change.
        await gateway.db.execute(
            "insert into boathook.application (id, organization, uid, name, updated_at)"
            " values (gen_random_uuid(), 'default', 'late', 'L', now() - interval '1 hour')"
        )
        assert await names() == {"acme", "a", "late"}
        assert full
        assert max(full) <= 500, "in steps, as the event loop has other work"

    async def test_the_newest_are_kept(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access_copy, "MAX_TARGETS", 3)
        for uid in "abcd":
            await gateway.api.ask(201, "POST", "/app", {"name": uid, "uid": uid})
        gateway.access.targets_read_at = -access_copy.TARGETS_INTERVAL_S
        assert await gateway.access.read()
        assert {one.target.uid for one in gateway.access.targets.by_id.values()} == {"b", "c", "d"}

    async def test_it_is_encoded_in_steps_outside_the_event_loop(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: list[int] = []
        encode_copy = access_copy.encode

        def noted(*args: Any) -> str:
            threads.append(threading.get_ident())
            return encode_copy(*args)

        monkeypatch.setattr(access_copy, "encode", noted)
        monkeypatch.setattr(access_copy, "PAGE", 2)
        for uid in "abcde":
            await gateway.api.ask(201, "POST", "/app", {"name": uid, "uid": uid})
        gateway.access.targets_read_at = -access_copy.TARGETS_INTERVAL_S
        assert await gateway.access.read()
        await gateway.access.save()
        assert threads
        assert threading.get_ident() not in threads
        loaded = AccessCopy.load(gateway.settings, SecretBox([KEY]))
        assert loaded.targets.by_name.keys() == gateway.access.targets.by_name.keys()
        assert loaded.keys == gateway.access.keys

    async def test_a_file_of_an_earlier_boathook_is_read(self, gateway: Gateway) -> None:
        app, key = ids.read(ids.APPLICATION, gateway.name), next(iter(gateway.access.keys.values()))
        token = base64.b64encode(key.token_sha256).decode()
        content = (
            f'{{"confirmed_at":{time.time()},"keys":[["{token}","{key.id}","default",null]],'
            f'"targets":[["{app}","default","acme",null],["{UUID(int=7)}","default",null,"c2"]]}}'
        )
        file = gateway.settings.server.data_dir / FILE_NAME
        file.write_bytes(SecretBox([KEY]).encrypt(content, "publishing-access"))
        loaded = AccessCopy.load(gateway.settings, SecretBox([KEY]))
        assert await loaded.find_application("default", "acme") == app
        with pytest.raises(ServedElsewhere):
            await loaded.find_application("default", ids.show(ids.APPLICATION, UUID(int=7)))
        assert list(loaded.keys) == [key.token_sha256]

    async def test_it_has_imported_ids(self, gateway: Gateway) -> None:
        app, name = ids.read(ids.APPLICATION, gateway.name), "app_1srOrx2ZWZBpBUvZwXKQmoEYga2"
        async with gateway.db.transaction() as connection:
            await applications.set_imported_id(connection, app, name)
        await gateway.access.read_all()
        await gateway.access.save()
        gateway.buffered.access = AccessCopy.load(gateway.settings, SecretBox([KEY]))
        assert await gateway.buffered.access.find_application("default", name) == app
        await gateway.cut()
        message = await gateway.api.ask(202, "POST", f"/app/{name}/msg", PLAIN)
        await gateway.heal()
        assert await gateway.stored() == [message["id"]]

    async def test_it_follows_changes(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access_copy, "KEYS_INTERVAL_S", 0.01)
        monkeypatch.setattr(access_copy, "TARGETS_INTERVAL_S", 0.0)
        following = asyncio.create_task(gateway.access.follow(gateway.api.context.database))
        await gateway.api.ask(201, "POST", "/app", {"name": "New", "uid": "new"})

        def saved() -> AccessCopy:
            return AccessCopy.load(gateway.settings, SecretBox([KEY]))

        await eventually(lambda: ("default", "new") in saved().targets.by_name)
        await gateway.api.ask(200, "PATCH", "/app/new", {"uid": "newer"})
        await eventually(lambda: ("default", "newer") in saved().targets.by_name)
        assert ("default", "new") not in saved().targets.by_name
        await gateway.api.ask(204, "DELETE", "/app/newer")
        await eventually(lambda: ("default", "newer") not in saved().targets.by_name)
        await revoke(gateway)
        await eventually(lambda: saved().keys == {})
        following.cancel()


async def plant(gateway: Gateway, folder: Path, box: SecretBox) -> int:
    """Add a key to the file, encrypted by *box*; return the status of a message that is published with it."""
    written = AccessCopy(folder / FILE_NAME, box, HOUR_S)
    written.targets, written.confirmed = gateway.access.targets, access_copy.Moment.now()
    sha256 = hash_token("bhk_planted")
    written.keys = {sha256: PublishingKey(sha256, ids.make(1, 1), "default", None)}
    written._is_changed = True
    await written.save()
    await gateway.cut()
    gateway.buffered.access = AccessCopy.load(gateway.settings, SecretBox([KEY]))
    return (await gateway.api.as_token("bhk_planted").post(PATH, json=PLAIN)).status_code


def replace_database(gateway: Gateway, other: Database) -> Any:
    context = gateway.api.context
    return type(context)(context.settings, other, SecretBox([KEY]), context.outbox)


class TestRecords:
    async def test_a_record_of_a_message_is_read_as_it_was_written_or_kept(self, gateway: Gateway) -> None:
        taken: list[NewEvent] = []

        async def accept(one: NewEvent) -> Accepted:
            taken.append(one)
            return Accepted(one.id)

        gateway.intake.accept = accept  # type: ignore[method-assign, assignment]
        await gateway.cut()
        await gateway.publish(PLAIN | {"eventId": "a", "channels": ["c"], "deliverAt": in_an_hour()})
        (one,) = taken
        assert decode(encode(one)) == one
        found = [one async for one in EventWriter(EventStore(gateway.db)).bring([Record(1, encode(one))])]
        assert [type(one) for one in found] == [Refused]

    def test_records_of_other_formats_are_unreadable(self) -> None:
        record = encode(event("a"))
        assert record[:1] == b"\x01"
        for spoiled in (b"\x02" + record[1:], b"\x03" + record[1:], b""):
            with pytest.raises(UnreadableRecord):
                decode(spoiled)


def test_duplicates_by_key_and_by_id_differ() -> None:
    first = ids.make(1, 1)
    assert Duplicate(first) != Duplicate(first, by_idempotency_key=True)
