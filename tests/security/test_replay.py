"""Captured requests sent again, to the real dedup memory: one event each, and none of the attacker's choosing."""

import json
import time

import pytest
from msgspec.structs import replace

from boathook.config import load
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.events import EventStore
from boathook.db.route_registry import read_routes
from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Duplicate, Receipt
from boathook.domain.verification import Request, Verified
from boathook.ingest.event_builder import EventBuilder
from boathook.service.receiving.reverification import reverify
from boathook.verification.verifier import Verifier
from tests.postgres.db.test_events import conflicts, count
from tests.providers.source_factory import NOW
from tests.security.test_verification import REWRITES, SAFE, SOURCES_BY_LABEL, cloudpayments, genuine


class Gateway:
    """Verifies requests of one source and stores their events."""

    def __init__(self, db: Database, label: str, *, refuses: bool = False) -> None:
        self.db = db
        self.label = label
        self.verifier: Verifier = SOURCES_BY_LABEL[label].verifier()
        self.store = EventStore(db)
        self.store.set_refusing([label] if refuses else [])

    async def take(self, request: Request) -> Receipt | None:
        verdict = self.verifier.verify(request, NOW)
        return await self.keep(verdict, request.body) if isinstance(verdict, Verified) else None

    async def keep(self, verified: Verified, body: bytes) -> Receipt:
        routes = await read_routes(self.db)
        arrivals = EventBuilder(Router(routes.routes, routes.version), self._never)
        event = arrivals.event(self.label, verified, body, "", time.time())
        (receipt,) = await self.store.append([event])
        return receipt

    async def _never(self) -> Router:
        raise AssertionError


async def test_rewritten_requests_are_stored_once_where_repeated_bodies_are_refused(db: Database):
    for stored, label in enumerate(SAFE, 1):
        gateway = Gateway(db, label, refuses=True)
        _, request = genuine(label)
        assert isinstance(await gateway.take(request), Accepted), label
        for name, rewrite in REWRITES.items():
            receipt = await gateway.take(rewrite(request))
            assert receipt is None or isinstance(receipt, Duplicate), (label, name)
        assert await count(db, "event") == stored, label


async def test_a_rewritten_request_that_is_stored_again_names_the_first(db: Database):
    """Unless repeated bodies are refused, whoever has one signed body can send it under new ids; each is noted."""
    for label in SAFE:
        gateway = Gateway(db, label)
        _, request = genuine(label)
        first = await gateway.take(request)
        assert isinstance(first, Accepted), label
        for name, rewrite in REWRITES.items():
            receipt = await gateway.take(rewrite(request))
            if isinstance(receipt, Accepted):
                noted = await db.fetchval("select same_body_as from boathook.event where id = $1", receipt.event_id)
                assert noted == first.event_id, (label, name)
                assert not gateway.verifier.recipe.signs_id, (label, name)


HEADERS = {
    "resend": ("svix-id", "svix-id"),
    "github": ("x-github-delivery", "x-github-delivery"),
    "razorpay": ("x-razorpay-event-id", "x-razorpay-event-id"),
    "linear": ("linear-delivery", "linear-delivery"),
}


@pytest.mark.parametrize("label", HEADERS)
async def test_a_captured_request_cannot_occupy_a_later_events_id_where_repeated_bodies_are_refused(
    db: Database, label: str
):
    """Otherwise a later event with a guessable id would be a conflict."""
    gateway = Gateway(db, label, refuses=True)
    own, added = HEADERS[label]
    _, first = genuine(label)
    _, later = genuine(label, "later")
    assert isinstance(await gateway.take(first), Accepted)
    poison = {name.replace("svix-", "webhook-") if added == "svix-id" else name: text
              for name, text in first.headers.items()}  # fmt: skip
    await gateway.take(replace(first, headers=poison | {added: later.headers[own]}))
    assert isinstance(await gateway.take(later), Accepted)
    assert await count(db, "event") == 2


async def test_the_id_that_is_signed_counts_under_either_name(db: Database):
    gateway = Gateway(db, "resend")
    _, first = genuine("resend")
    moved = {name.replace("svix-", "webhook-"): text for name, text in first.headers.items()}
    receipt = await gateway.take(first)
    assert isinstance(receipt, Accepted)
    for chosen in ("msg_1", "msg_2"):
        again = await gateway.take(replace(first, headers=moved | {"svix-id": chosen}))
        assert again == Duplicate(receipt.event_id)


async def test_differently_split_values_are_a_conflict_not_an_event(db: Database):
    gateway = Gateway(db, "t-bank")
    _, request = genuine("t-bank")
    receipt = await gateway.take(request)
    assert isinstance(receipt, Accepted)
    renamed = replace(request, body=request.body.replace(b'"Status"', b'"Statut"'))
    assert await gateway.take(renamed) == Duplicate(receipt.event_id, conflict=True)
    assert [differs for _, differs, _ in await conflicts(db)] == ["body"]


async def test_events_by_get_are_stored_with_their_query(db: Database):
    gateway = Gateway(db, "cloudpayments-get")
    queries = ["TransactionId=1&Amount=5", "TransactionId=2&Amount=5"]
    for query in (*queries, *queries):
        await gateway.keep(cloudpayments(query), b"")
    rows = await db.fetch("select body from boathook.event order by id")
    assert [row["body"].decode() for row in rows] == queries


async def test_an_invalid_stored_host_does_not_stop_reverification(db: Database):
    """An attacker chooses the header Host, and events of a source without its own URL are stored with it."""
    names = []
    for number, host in enumerate(("[", "h", "a]b:c:d", "x?y")):
        name = ids.make(time.time_ns() // 1_000_000, number)
        names.append(name)
        await db.execute(
            "insert into boathook.rejection values ($1, 'shop', 401, 'x', '', '::1', 'POST', $2, $3, '', $4, 2)",
            name, f"http://{host}/in/shop", json.dumps({}), b"{}",
        )  # fmt: skip
    settings = load(None, {"sources": {"shop": {"provider": "github", "secrets": ["right"]}}})
    async with db.transaction() as connection:
        results = await reverify(connection, settings, names, AuditContext(actor="test", note="because"))
    assert [result.outcome for result in results] == ["refused"] * 4
