"""A signed body that comes again under another id, and attempts that differ: from the request to the store, on PostgreSQL."""

import json
import re
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from boathook.config import load
from boathook.db.database import Database
from boathook.db.events import SQL, EventStore
from boathook.db.route_registry import read_router
from boathook.delivery.keeper import Keeper
from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.domain.verification import SourceSpec, Verified
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter, Stored
from boathook.ingest.intake import Intake
from boathook.ingest.sources import follow_sources
from boathook.ingest.spool_records import UNROUTED, decode, encode
from boathook.observability.meters import gauge_handle
from boathook.spool.segment import Record
from boathook.verification.verifier import Verifier
from boathook_cells import keys
from tests.alert_harness import open_harness, settings_of
from tests.databases import Pool
from tests.postgres.cells.cells_without_gateways import open_cells
from tests.postgres.db.test_events import conflicts, event, same_bodies
from tests.postgres.db.test_integrity import Store
from tests.postgres.portal_client import open_console
from tests.unit.verifier_factory import NOW, SECRETS, request, signed, verifier

BODY = b'{"ref":"refs/heads/main"}'


class Gateway:
    """Verifies requests of one source and stores their events, as a gateway does."""

    def __init__(self, db: Database, source: Verifier) -> None:
        self.db = db
        self.source = source
        self.store = EventStore(db)
        self._clock = count(int(time.time()))

    async def event(self, body: bytes, **headers: str) -> NewEvent:
        """Return the event of a request with a valid signature; ``_`` stands for a dash in names of headers."""
        added = {name.replace("_", "-"): text for name, text in headers.items()}
        sent = signed(self.source.recipe.name, body, id=None)
        verdict = self.source.verify(replace(sent, headers={**sent.headers, **added}), NOW)
        assert isinstance(verdict, Verified), verdict
        builder = EventBuilder(await read_router(self.db), self._never)
        return builder.event("shop", verdict, body, "application/json", next(self._clock))

    async def _never(self) -> Router:
        raise AssertionError

    async def take(self, body: bytes, **headers: str) -> Receipt:
        (receipt,) = await self.store.append([await self.event(body, **headers)])
        return receipt


ID_HEADERS = {
    "github": "x_github_delivery",
    "bitbucket": "x_request_uuid",
    "jira": "x_atlassian_webhook_identifier",
    "shopify": "x_shopify_webhook_id",
    "razorpay": "x_razorpay_event_id",
    "woocommerce": "x_wc_webhook_delivery_id",
    "zendesk": "x_zendesk_webhook_invocation_id",
    "suno-sunoapi": "x_delivery_id",
}


@pytest.mark.parametrize("provider", ID_HEADERS)
async def test_a_new_id_in_an_unsigned_header_is_a_new_event(
    db: Database, provider: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(SECRETS, provider, "a secret of this sender")
    gateway = Gateway(db, verifier(provider))
    header = ID_HEADERS[provider]
    body = b'{"id":7,"arg":"x"}'
    first = await gateway.take(body, **{header: "one"})
    second = await gateway.take(body, **{header: "two"})
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    assert await gateway.take(body, **{header: "two"}) == Duplicate(second.event_id)
    assert await db.fetchval("select same_body_as from boathook.event where id = $1", second.event_id) == first.event_id
    assert await conflicts(db) == []


async def test_a_custom_header_may_hold_the_id(db: Database):
    gateway = Gateway(db, verifier("hmac", id_header="X-Event-Id", type_path="type"))
    receipts = [await gateway.take(b'{"type":"doorbell.pressed"}', x_event_id=name) for name in ("h1", "h2")]
    assert [type(one) for one in receipts] == [Accepted, Accepted]


async def test_another_type_with_an_equal_body_is_another_event(db: Database):
    gateway = Gateway(db, verifier("hmac", type_header="X-Type"))
    created, paid = [await gateway.take(BODY, x_type=name) for name in ("created", "paid")]
    assert isinstance(created, Accepted)
    assert isinstance(paid, Accepted)
    assert await gateway.take(BODY, x_type="paid") == Duplicate(paid.event_id)


async def test_a_retry_of_sentry_is_a_duplicate_though_its_id_is_new(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SECRETS, "sentry", "a secret of this sender")
    gateway = Gateway(db, verifier("sentry"))
    body = b'{"action":"created","data":{"issue":{"id":"1"}}}'
    first = await gateway.take(body, request_id="a1", sentry_hook_resource="issue")
    assert isinstance(first, Accepted)
    assert await gateway.take(body, request_id="a2", sentry_hook_resource="issue") == Duplicate(first.event_id)
    headers = await db.fetchval("select headers from boathook.event")
    assert json.loads(headers)["request-id"] == "a1"
    assert await conflicts(db) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"dedup_fields": ("event", "payload.id"), "volatile": ("createdAt", "payload.tries.*.at")},
        {"volatile": ("$.createdAt", "payload.tries.*.at")},
        {"id_path": "payload.id", "volatile": ("createdAt", "payload.tries.*.at")},
    ],
    ids=["fields", "bytes", "id"],
)
async def test_attempts_that_differ_in_volatile_paths_are_one_event(db: Database, settings: dict[str, Any]):
    gateway = Gateway(db, verifier("hmac", **settings))

    def attempt(number: int, status: str = "signed") -> bytes:
        payload = {"id": 5, "status": status, "tries": [{"at": number, "n": 1}]}
        return json.dumps({"event": "document.signed", "payload": payload, "createdAt": f"0{number}Z"}).encode()

    first = await gateway.take(attempt(1))
    assert isinstance(first, Accepted)
    made = [await gateway.event(attempt(number)) for number in (2, 3)]
    assert await gateway.store.append(made) == [Duplicate(first.event_id)] * 2
    other = await gateway.take(attempt(4, "refused"))
    assert other != Duplicate(first.event_id), "what is not volatile still counts"
    assert isinstance(other, Accepted) == ("id_path" not in settings and "dedup_fields" not in settings)


async def test_without_volatile_an_attempt_that_differs_is_a_conflict(db: Database):
    """Mutant of the test above."""
    gateway = Gateway(db, verifier("hmac", dedup_fields=("event",)))
    first = await gateway.take(b'{"event":"e","made":1}')
    assert await gateway.take(b'{"event":"e","made":2}') == Duplicate(first.event_id, conflict=True)


@pytest.mark.parametrize("field", ["createdAt", "attempts", "timestamp", "retry_count"])
async def test_with_named_fields_the_usual_fields_of_an_attempt_may_differ(db: Database, field: str):
    gateway = Gateway(db, verifier("hmac", dedup_fields=("event",)))
    bodies = [json.dumps({"event": "e", "sum": 1, field: number}).encode() for number in (1, 2)]
    first = await gateway.take(bodies[0])
    assert await gateway.take(bodies[1]) == Duplicate(first.event_id)
    other = json.dumps({"event": "e", "sum": 2, field: 1}).encode()
    assert await gateway.take(other) == Duplicate(first.event_id, conflict=True), "another sum is no attempt"
    strict = Gateway(db, verifier("hmac", dedup_fields=("event",), volatile=("none",)))
    assert await strict.take(bodies[1]) == Duplicate(first.event_id, conflict=True), "the owner's own list counts alone"


async def test_the_setting_of_a_source_decides_and_may_change(db: Database):
    def settings(policy: str) -> Any:
        return load(None, {"sources": {"shop": {"provider": "github", "secrets": ["x"], "repeated_body": policy}}})

    gateway = Gateway(db, verifier("github"))
    for policy, expected in (("refuse", [Accepted, Duplicate]), ("accept", [Accepted]), ("refuse", [Duplicate])):
        follow_sources(gateway.store, settings(policy))
        names = [f"{policy}-{number}-{time.monotonic_ns()}" for number in range(len(expected))]
        assert [type(await gateway.take(BODY, x_github_delivery=name)) for name in names] == expected
    assert [(differs, seen) for _, differs, seen in await conflicts(db)] == [("key", 1), ("key", 1)]
    assert sorted(one is None for one in (await same_bodies(db)).values()) == [False, True]


# What lies outside PostgreSQL.

OLD_RECORDS = tuple(
    bytes.fromhex(line) for line in (Path(__file__).parent / "records_of_format_1.txt").read_text().split()
)
"""Two records of one signed body under the ids d1 and d2, as `encode` wrote them when the second was a conflict."""


def test_records_of_received_events_still_have_their_format():
    """A spool, a quorum queue and a sealed copy hold these bytes."""
    assert [decode(one).dedup_key for one in OLD_RECORDS] == ["d1", "d2"]
    assert tuple(encode(decode(one)) for one in OLD_RECORDS) == OLD_RECORDS


async def bring_old_records(db: Database) -> list[Receipt]:
    builder = EventBuilder(Router((), UNROUTED), lambda: read_router(db))
    writer = EventWriter(EventStore(db), builder.reroute)
    records = [Record(number, payload) for number, payload in enumerate(OLD_RECORDS)]
    results = [one async for one in writer.bring(records)]
    return [one.receipt for one in results if isinstance(one, Stored)]


async def test_a_spool_with_one_body_under_two_ids_is_drained_into_two_events(db: Database):
    first, second = map(decode, OLD_RECORDS)
    assert await bring_old_records(db) == [Accepted(first.id), Accepted(second.id)]
    assert await same_bodies(db) == {"d1": None, "d2": first.id}
    assert [type(one) for one in await bring_old_records(db)] == [Accepted, Accepted], (
        "drained again, as after a restore"
    )
    assert await db.fetchval("select count(*) from boathook.event") == 2


async def test_an_event_that_repeats_a_body_and_is_missing_is_found_missing(db: Database):
    store = EventStore(db)
    first, second = event("g1", BODY, replay=BODY), event("g2", BODY, replay=BODY)
    await store.append([first])
    assert await store.find_unstored([first, second]) == {second.id}
    store.set_refusing(["stripe"])
    assert await store.find_unstored([first, second]) == set()


async def test_the_memory_of_a_gateway_keeps_ids_apart(db: Database):
    intake = Intake(EventStore(db))
    await intake.start()
    try:
        first, second = event("g1", BODY, replay=BODY), event("g2", BODY, replay=BODY)
        assert [await intake.accept(one) for one in (first, second)] == [Accepted(first.id), Accepted(second.id)]
        again = [event("g1", BODY, replay=BODY), event("g2", BODY, replay=BODY)]
        assert [await intake.accept(one) for one in again] == [Duplicate(first.id), Duplicate(second.id)]
    finally:
        await intake.drain()


# Cells.


async def moved_keys_are_known(pair: Any) -> bool:
    one, two, _ = pair.values()
    here, there = EventStore(one.db), EventStore(two.db)
    old, body = event("g1", BODY, replay=BODY), hash_of_body()
    await here.append([old, event("g2", BODY, replay=BODY)])
    # The other cell has the body already, under an id of its own, since an earlier stay of the source.
    await there.append([event("g0", BODY, replay=BODY)])
    assert await two.db.fetchval("select count(*) from boathook.dedup where replay_key = $1", body) == 1
    await keys.copy_keys(one.db, two.db, "stripe", "c1")
    receipts = await there.append([event(key, BODY, replay=BODY) for key in ("g1", "g2", "g3")])
    assert isinstance(receipts[2], Accepted)
    return receipts[0] == Duplicate(old.id) and isinstance(receipts[1], Duplicate)


def hash_of_body() -> UUID | None:
    return event("g1", BODY, replay=BODY).replay_hash


@pytest.fixture
async def pair(databases: Pool) -> AsyncIterator[Any]:
    async with open_cells(databases) as made:
        yield made


async def test_a_moved_source_keeps_its_keys_where_the_body_is_known(pair: Any):
    assert await moved_keys_are_known(pair)


async def test_mutant_copied_as_a_whole_a_key_would_be_left_out(pair: Any, monkeypatch: pytest.MonkeyPatch):
    whole = re.sub(r"case when .*? end,", "k.replay_key,", keys.SQL["insert_keys"], flags=re.DOTALL)
    assert whole != keys.SQL["insert_keys"]
    monkeypatch.setitem(keys.SQL, "insert_keys", whole)
    assert not await moved_keys_are_known(pair)


# What operators see.


async def test_a_body_that_comes_again_and_again_alerts_by_source(db: Database):
    store = EventStore(db)
    async with open_harness(db, settings_of(channels={}, own=True)) as harness:
        await store.append([event(f"g{number}", BODY, replay=BODY) for number in range(10)])
        await store.append([event(f"h{number}", b"%d" % number, replay=b"%d" % number) for number in range(9)])
        await harness.evaluate()
        assert await harness.open_alerts() == []
        await store.append([event("g10", BODY, replay=BODY)])
        await harness.evaluate()
        alerts = [(one.rule, one.subject, one.value) for one in await harness.open_alerts()]
        assert alerts == [("repeated_body", "stripe", 11.0)]


async def test_the_keeper_counts_the_events_of_a_body_for_prometheus(db: Database):
    store = EventStore(db)
    await store.append([event(f"g{number}", BODY, replay=BODY) for number in range(3)])
    keeper = Keeper(db, load(None))
    gauge = gauge_handle("boathook_repeated_bodies", source="stripe")
    await keeper.count()
    assert gauge.value == 3
    await db.execute("update boathook.event set same_body_as = null")
    await keeper.count()
    assert gauge.value == 0


async def test_the_page_of_an_event_names_the_first_with_its_body(db: Database):
    made = [event(key, BODY, replay=BODY) for key in ("g1", "g2")]
    await Store(db).events.append(made)
    async with open_console(db) as console:
        anna = await console.operator()
        first, second = (ids.show(ids.EVENT, one.id) for one in made)
        assert f'<a href="/console/events/{first}">{first}</a>' in await anna.get_page(f"/console/events/{second}")
        assert "Same body as" not in await anna.get_page(f"/console/events/{first}")


def test_a_volatile_path_must_be_a_path():
    with pytest.raises(Exception, match=r"sources\.test\.volatile: 'a\.\.b' is not a dotted path"):
        Verifier(SourceSpec(name="test", provider="hmac", secrets=("x" * 20,), volatile=("a..b",)))


def test_requests_of_this_file_are_signed():
    """The helper would otherwise prove nothing."""
    assert not isinstance(verifier("github").verify(request(BODY, {}), NOW), Verified)
    assert "same_body_as" in SQL["append_events"]
