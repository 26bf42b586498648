"""Events built from verified requests: their dedup keys, and the size limits of batches."""

import asyncio
import hashlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from boathook.config import load
from boathook.domain.errors import TooManyDeliveries
from boathook.domain.filters import Router
from boathook.domain.model import MAX_DELIVERIES, Accepted, NewDelivery, NewEvent, ProofStrength, Route
from boathook.domain.verification import BatchItem, Verified
from boathook.ingest.app import IngestApp
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import ReceiptWaiter
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.sources import compile_sources


def item(place: int, document: Any = None, type: str = "t", key: str | None = None) -> BatchItem:
    return BatchItem(
        path=f"events.{place}",
        type=type,
        dedup_key=key or f"item:{place}",
        digest=hashlib.sha256(repr(document).encode()).digest(),
        document=document,
    )


def verified(*items: BatchItem, key: str = "sha256:x") -> Verified:
    return Verified(
        grade=ProofStrength.BODY,
        type="batch",
        dedup_key=key,
        replay_material=None,
        volatile=(),
        kept_headers={"x-size": "large"},
        timestamp=None,
        items=items,
    )


def route(recipient: str = "one", **changes: Any) -> Route:
    return Route(recipient=recipient, app="test", **changes)


def arrivals(*routes: Route, later: Sequence[Route] = ()) -> EventBuilder:
    async def read() -> Router:
        return Router(later, 2)

    return EventBuilder(Router(routes, 1), read)


def made(by: EventBuilder, found: Verified, body: bytes = b"{}", source: str = "mail") -> NewEvent:
    return by.event(source, found, body, "application/json", 1_700_000_000.0)


def test_items_are_routed_by_type_content_and_headers():
    by = arrivals(
        route(types=("a.*",), order_by="who"),
        route("two", filter={"body": {"n": {"gt": 1}}, "headers": {"x-size": "large"}}),
    )
    event = made(by, verified(item(0, {"who": "ann", "n": 1}, "a.b"), item(1, {"n": 2}, "b"), item(2, {"n": 0}, "b")))
    assert event.deliveries == (NewDelivery("one", "ann", 0), NewDelivery("two", None, 1))
    assert [one.path for one in event.items] == ["events.0", "events.1", "events.2"]


def test_the_type_and_body_of_the_whole_request_route_no_item():
    by = arrivals(route(types=("batch",)), route("two", filter={"body": {"whole": True}}))
    assert made(by, verified(item(0, {})), b'{"whole": true}').deliveries == ()


async def test_items_are_rerouted_when_routes_change():
    by = arrivals(route(), later=[route("new", filter={"body": {"n": 2}})])
    found = verified(item(0, {"n": 1}), item(1, {"n": 2}))
    (again,) = await by.reroute([made(by, found, b'{"events": [{"n": 1}, {"n": 2}]}')])
    assert (again.deliveries, again.routes_version) == ((NewDelivery("new", None, 1),), 2)
    assert again.items == made(by, found).items


def test_keys_of_items_whole_events_batches_and_sources_never_meet():
    by = arrivals()
    body = b"x"
    key = f"sha256:{hashlib.sha256(body).hexdigest()}"
    batch = made(by, verified(item(0, key=key), key=key), body)
    whole = made(by, verified(key=key), body)
    other = made(by, verified(item(0, key=key), key=key), body, source="post")
    replayed = made(by, replace(verified(key="k"), replay_material=key.encode()), body)
    hashes = [batch.key_hash, batch.items[0].key_hash, whole.key_hash, other.key_hash, other.items[0].key_hash]
    assert len({*hashes, replayed.replay_hash}) == 6


def test_a_batchs_key_hash_depends_on_its_verifiers_key():
    by = arrivals()
    first = made(by, verified(item(0), key="sha256:1"), b"one")
    assert made(by, verified(item(0), key="sha256:1"), b"one").key_hash == first.key_hash
    assert made(by, verified(item(0), key="moment:2"), b"one").key_hash != first.key_hash


def test_deliveries_beyond_the_maximum_are_refused():
    by = arrivals(route(), route("two", types=("twice",)))
    items = [item(place) for place in range(MAX_DELIVERIES - 1)]
    assert len(made(by, verified(*items, item(0))).deliveries) == MAX_DELIVERIES
    assert len(made(by, verified(*items[1:], item(0, type="twice"))).deliveries) == MAX_DELIVERIES
    with pytest.raises(TooManyDeliveries, match="32767 deliveries"):
        made(by, verified(*items, item(0, type="twice")))
    with pytest.raises(TooManyDeliveries, match="32768 items"):
        made(arrivals(), verified(*items, item(0), item(1)))


async def test_rerouting_beyond_the_maximum_is_refused():
    by = arrivals(route(), later=[route(), route("two")])
    found = verified(*(item(place) for place in range(MAX_DELIVERIES // 2 + 1)))
    event = made(by, found)
    with pytest.raises(TooManyDeliveries):
        await by.reroute([event])


class Shelf:
    """An intake that records its events."""

    def __init__(self) -> None:
        self.events: list[NewEvent] = []

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        self.events.append(event)
        waiter.set_result(Accepted(event.id, conflict=True))


async def ask(app: IngestApp) -> tuple[int, bytes]:
    scope = {"path": "/in/mail", "raw_path": b"/in/mail", "query_string": b"", "method": "POST", "headers": []}
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    await app({**scope, "client": ("127.0.0.1", 1)}, receive, send)
    return said[0]["status"], said[1]["body"]


@pytest.mark.parametrize(("number", "status"), [(2, 200), (MAX_DELIVERIES + 1, 413)])
async def test_the_gateway_refuses_a_batch_too_large_and_stores_nothing(number: int, status: int):
    found = verified(*(item(place) for place in range(number)))
    sources = {"mail": {"provider": "github", "secrets": ["x"]}}
    compiled_sources = compile_sources(load(None, {"sources": sources}))
    recipe = SimpleNamespace(has_empty_error_body=False)
    stand_in: Any = SimpleNamespace(verify=lambda *_: found, secret_query=None, has_schema=False, recipe=recipe)
    compiled_sources["/in/mail"].verifier = stand_in
    shelf = Shelf()
    pipeline = IngestPipeline(compiled_sources, shelf, arrivals(route()), quarantine=None)
    answered, body = await ask(IngestApp(pipeline, others=None))
    assert answered == status
    assert len(shelf.events) == (status == 200)
    assert (b'"conflict":true' in body) == (status == 200), "a conflict beside what is new is told"
    assert (b"too large" in body) == (status == 413)


async def test_a_read_of_the_routes_that_ends_late_does_not_undo_a_later_one():
    answers = [asyncio.get_running_loop().create_future() for _ in range(2)]
    asked = iter(answers)
    builder = EventBuilder(Router((), -1), lambda: next(asked))
    reads = [asyncio.create_task(builder.refresh()) for _ in answers]
    await asyncio.sleep(0)
    for version, answer in ((2, answers[1]), (1, answers[0])):
        answer.set_result(Router((), version))
        await asyncio.sleep(0)
    await asyncio.gather(*reads)
    assert builder.router.version == 2
