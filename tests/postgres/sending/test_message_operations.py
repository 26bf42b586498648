"""Operator commands on messages: replays reach endpoints, and only those that can be sent to."""

import pytest

from boathook.db import delivery_commands
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.db.queries import event_search, listings
from boathook.db.queries.event_search import EventFilter
from boathook.db.queries.listings import ListFilter
from boathook.db.route_registry import register
from boathook.domain import ids
from boathook.domain.model import Route
from boathook.handlers.outbox import Outbox
from boathook.service.operating.event_query import EventQuery
from tests.endpoint_factory import add_application, add_endpoint, publish
from tests.postgres.db.test_integrity import Store
from tests.postgres.operating.dead_letter_actions import ignore_dead, replay_dead
from tests.postgres.operating.event_actions import list_events, replay_events
from tests.support import sampled

ACTION = AuditContext(actor="test", note="because")
GONE = {
    "disabled": "update boathook.endpoint set is_disabled = true, disabled_because = 'manual', disabled_at = now()",
    "deleted": "update boathook.endpoint set deleted_at = now()",
    "of a deleted application": "update boathook.application set deleted_at = now()",
    "without content": "update boathook.event set body = '', expunged_at = now()",
}


@pytest.fixture
def store(db: Database) -> Store:
    return Store(db)


async def test_replays_reach_endpoints(store: Store):
    acme = await add_application(store.db, "acme")
    endpoint = await add_endpoint(store.db, acme)
    sent, dead = [(await publish(store.db, Outbox(), acme)).event_id for _ in range(2)]
    await store.end(sent)
    await store.fail(dead, is_last=True)
    replayed = await replay_events(store.db, EventQuery(application="acme"), ACTION)
    assert (replayed.events, replayed.added, replayed.revived) == (2, 1, 1)
    rows = await listings.list_deliveries(store.db, ListFilter(state="pending", application=acme))
    assert [(row.recipient, row.is_replay, row.is_manual) for row in rows] == [
        (endpoint, False, False),
        (endpoint, True, False),
    ]
    assert (await store.verify()).is_consistent


@pytest.mark.parametrize("reason", sampled(GONE, keep=2))
async def test_unsendable_messages_are_not_replayed(store: Store, reason: str):
    acme = await add_application(store.db, "acme")
    await add_endpoint(store.db, acme)
    sent, dead = [(await publish(store.db, Outbox(), acme)).event_id for _ in range(2)]
    await store.end(sent)
    await store.fail(dead, is_last=True)
    await store.db.execute(GONE[reason])
    replayed = await replay_events(store.db, [sent, dead], ACTION)
    assert (replayed.added, replayed.revived) == (0, 0)
    assert await replay_dead(store.db, Selection(ListFilter()), ACTION) == 0
    # To decide that it stays undone is still possible.
    assert await ignore_dead(store.db, Selection(ListFilter()), ACTION) == 1
    assert (await store.verify(is_deep=True)).is_consistent


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("reason", GONE)
async def test_without_the_endpoint_check_unsendable_messages_are_replayed(
    store: Store, reason: str, monkeypatch: pytest.MonkeyPatch
):
    """The mutant: dead letters are revived without a check."""
    honest = delivery_commands.SQL["lock_dead"]
    look = "(not $12::boolean or (e.expunged_at is null and boathook.accepts_deliveries(d.recipient)))"
    assert look in honest
    monkeypatch.setitem(delivery_commands.SQL, "lock_dead", honest.replace(look, "$12::boolean is not null"))
    acme = await add_application(store.db, "acme")
    await add_endpoint(store.db, acme)
    await store.fail((await publish(store.db, Outbox(), acme)).event_id, is_last=True)
    await store.db.execute(GONE[reason])
    assert await replay_dead(store.db, Selection(ListFilter()), ACTION) == 1


async def test_manual_deliveries_stay_marked_as_manual(store: Store):
    acme = await add_application(store.db, "acme")
    await add_endpoint(store.db, acme)
    by_hand = "update boathook.delivery set is_manual = true, is_replay = true"
    settled, ignored = [(await publish(store.db, Outbox(), acme)).event_id for _ in range(2)]
    await store.db.execute(by_hand)
    await store.end(settled)
    await store.fail(ignored, is_last=True)
    assert await ignore_dead(store.db, Selection(ListFilter()), ACTION) == 1
    assert await store.one("select bool_and(is_manual) from boathook.delivery_archive") is True
    assert await store.one("select count(*) from boathook.delivery_archive") == 2


async def test_listings_filter_applications_by_id_uid_or_earlier_name(store: Store):
    await register(store.db, "tests", [Route(recipient="handler:a", app="tests", application="acme")])
    before = (await publish(store.db, Outbox(), "acme", tags=["t"], channels=["c"])).event_id
    acme = await add_application(store.db, "acme")
    after = (await publish(store.db, Outbox(), "acme")).event_id
    other = (await publish(store.db, Outbox(), await add_application(store.db, "other"))).event_id

    async def found(name: str) -> list[str]:
        return [row.id for row in await list_events(store.db, EventFilter(application=name))]

    shown = [ids.show(ids.EVENT, one) for one in (before, after, other)]
    assert await found("acme") == [shown[1], shown[0]]
    assert await found(acme) == [shown[1]]
    assert await found("other") == [shown[2]]
    assert await found("nobody") == []
    assert await event_search.count_events(store.db, EventFilter(application="acme")) == 2
    (row, _request) = await listings.get_event(store.db, before)
    assert (row.channels, row.tags, row.expunged_at) == (["c"], ["t"], None)
