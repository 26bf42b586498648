"""A feed emits each matching event once, in any order of commits."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from boathook.api import event_feed as api_listening
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.queries.event_feed import FeedFilter
from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable, InvalidValue
from boathook.domain.model import NewEvent
from boathook.service.access import keys as keys_of
from boathook.service.operating import event_feed
from boathook.service.operating.event_feed import (
    OVERLAP,
    RESUME_OVERLAP,
    EventFeed,
    ListenerSlots,
    feed_start,
    to_feed_event,
)
from tests.postgres.api_client import make_context, make_token, open_api_client
from tests.postgres.db.test_events import event

NOW = datetime.now(UTC)


def made(key: str, at: datetime, **more: Any) -> NewEvent:
    """Return an event with an id of this time."""
    kind = more.pop("type", "t")
    new = event(key, **more)
    return replace(new, id=ids.make(int(at.timestamp() * 1000), new.id.int & ((1 << 74) - 1)), type=kind)


async def keys(tail: EventFeed, now: datetime) -> list[str]:
    """Return the dedup keys that the feed emits at this time."""
    heard, has_more = [], True
    while has_more:
        events, has_more = await tail.poll(now)
        heard += [one.dedup_key for one in events]
    return heard


async def test_an_event_is_emitted_once(db: Database):
    store, tail = EventStore(db), EventFeed(db, FeedFilter(), NOW)
    assert await keys(tail, NOW) == []
    await store.append([made("a", NOW + timedelta(seconds=1)), made("b", NOW + timedelta(seconds=2))])
    assert await keys(tail, NOW + timedelta(seconds=3)) == ["a", "b"]
    for later in range(3, 200):
        assert await keys(tail, NOW + timedelta(seconds=later)) == []


async def test_a_late_commit_with_an_older_id_is_emitted(db: Database):
    store, tail = EventStore(db), EventFeed(db, FeedFilter(), NOW)
    await store.append([made("younger", NOW + timedelta(seconds=40))])
    assert await keys(tail, NOW + timedelta(seconds=41)) == ["younger"]
    await store.append([made("older", NOW + timedelta(seconds=5))])
    heard = [key for poll in range(12) for key in await keys(tail, NOW + timedelta(seconds=42 + poll / 2))]
    assert heard == ["older"]


async def test_mutant_without_the_overlap_such_an_event_is_missed(db: Database, monkeypatch):
    monkeypatch.setattr(event_feed, "OVERLAP", timedelta(0))
    monkeypatch.setattr(event_feed, "RECENT_WINDOW", timedelta(0))
    store, tail = EventStore(db), EventFeed(db, FeedFilter(), NOW)
    await store.append([made("younger", NOW + timedelta(seconds=40))])
    assert await keys(tail, NOW + timedelta(seconds=41)) == ["younger"]
    await store.append([made("older", NOW + timedelta(seconds=5))])
    assert not [key for poll in range(12) for key in await keys(tail, NOW + timedelta(seconds=42 + poll / 2))]


async def test_catching_up_gives_everything_in_order_however_much_it_is(db: Database):
    begin = NOW - timedelta(minutes=10)
    wanted = [made(f"k{n:03}", begin + timedelta(seconds=5 * n)) for n in range(119)]
    await EventStore(db).append(wanted)
    tail = EventFeed(db, FeedFilter(), begin)
    assert await keys(tail, NOW) == [one.dedup_key for one in wanted]
    assert await keys(tail, NOW + timedelta(seconds=1)) == []


async def test_a_poll_is_bounded_in_events_and_time(db: Database):
    begin = NOW - timedelta(minutes=10)
    await EventStore(db).append([made(f"k{n}", begin) for n in range(60)] + [made("late", NOW - timedelta(minutes=5))])
    tail = EventFeed(db, FeedFilter(), begin)
    spans = [len((await tail.poll(NOW))[0]) for _ in range(5)]
    assert spans == [25, 25, 10, 0, 0]


async def test_a_busy_minute_is_emitted_completely(db: Database, monkeypatch):
    monkeypatch.setattr(event_feed, "MAX_IDS", 7)
    wanted = [made(f"k{n:02}", NOW + timedelta(milliseconds=10 * n)) for n in range(40)]
    store, tail = EventStore(db), EventFeed(db, FeedFilter(), NOW)
    await store.append(wanted)
    assert await keys(tail, NOW + timedelta(seconds=1)) == [one.dedup_key for one in wanted]
    await store.append([made("late", NOW + timedelta(milliseconds=55))])
    assert [key for poll in range(24) for key in await keys(tail, NOW + timedelta(seconds=2 + poll))] == ["late"]


async def test_a_failed_read_is_retried_by_the_next_poll(db: Database, monkeypatch):
    tail = EventFeed(db, FeedFilter(), NOW)
    await EventStore(db).append([made("kept", NOW)])

    async def fails(*_: Any) -> Any:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(event_feed, "read_events", fails)
        with pytest.raises(DatabaseUnavailable):
            await tail.poll(NOW + timedelta(seconds=1))
    assert await keys(tail, NOW + timedelta(seconds=2)) == ["kept"]


async def test_only_matching_events_are_emitted(db: Database):
    at = NOW + timedelta(seconds=1)
    await EventStore(db).append([
        made("a", at, type="payment.paid"),
        made("b", at, type="payment.failed", source="github"),
        made("c", at, type="refund"),
    ])  # fmt: skip

    async def heard(**wish: Any) -> set[str]:
        return set(await keys(EventFeed(db, FeedFilter(**wish), NOW), at))

    assert await heard() == {"a", "b", "c"}
    assert await heard(source="github") == {"b"}
    assert await heard(type="payment.*") == {"a", "b"}
    assert await heard(type="payment.*", source="stripe") == {"a"}


async def test_an_organization_gets_only_its_own_messages(db: Database):
    context = make_context(db)
    since = datetime.now(UTC) - timedelta(seconds=1)
    await EventStore(db).append([event("received")])
    for organization, uid in (("default", "acme"), ("other", "globex")):
        async with open_api_client(db) as api:
            token = await make_token(context, organization)
            mine = api.as_token(token)
            await mine.ask(201, "POST", "/app", {"name": uid, "uid": uid})
            await mine.ask(202, "POST", f"/app/{uid}/msg", {"eventType": "x", "payload": {"of": uid}, "eventId": uid})
    soon = datetime.now(UTC) + timedelta(seconds=1)
    assert set(await keys(EventFeed(db, FeedFilter(), since), soon)) == {"received", "acme"}
    assert await keys(EventFeed(db, FeedFilter(organization="other"), since), soon) == ["globex"]
    assert await keys(EventFeed(db, FeedFilter(organization="other", application="acme"), since), soon) == []
    assert await keys(EventFeed(db, FeedFilter(application="acme"), since), soon) == ["acme"]


def test_resuming_starts_a_minute_before_the_last_event():
    last = ids.make(int((NOW - timedelta(minutes=10)).timestamp() * 1000), 0)
    begin = NOW - timedelta(hours=1)
    assert feed_start(NOW, begin, last) == ids.created_at(last) - RESUME_OVERLAP
    assert feed_start(NOW, NOW - timedelta(minutes=9), last) == NOW - timedelta(minutes=9)
    assert feed_start(NOW, None, None) == NOW


def test_the_start_is_at_most_a_day_ago():
    with pytest.raises(InvalidValue, match="24 hours") as caught:
        feed_start(NOW, NOW - timedelta(days=3), None)
    assert caught.value.where == ("since",)


async def test_a_feed_event_has_signing_options_but_no_secret(db: Database):
    await EventStore(db).append([event("k", source="own")])
    began = datetime.now(UTC) - timedelta(seconds=9)
    (found,), _ = await EventFeed(db, FeedFilter(), began).poll(datetime.now(UTC))
    context = make_context(
        db,
        sources__own={"provider": "token", "username": "u", "password": "hush-hush", "id_path": "id"},
    )
    heard = to_feed_event(context.settings, found)
    assert (heard.provider, heard.options) == ("token", {"username": "u", "id_path": "id"})
    assert to_feed_event(make_context(db).settings, found).provider is None


def test_places_of_listeners_are_bounded_and_given_back():
    seats = ListenerSlots(1)
    with seats.acquire() as first, seats.acquire() as second:
        assert (first, second) == (True, False)
    with seats.acquire() as again:
        assert again


class TestRoute:
    @pytest.fixture
    async def api(self, db):
        async with open_api_client(db) as client:
            await client.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
            yield client

    async def test_needs_a_token_of_the_organization(self, api):
        assert (await api.as_token("").get("/listen")).status_code == 401
        own = api.as_token(await make_token(api.context, application="acme"))
        await own.ask(403, "GET", "/listen")

    async def test_refuses_a_token_with_fewer_capabilities(self, api, db):
        few = api.as_token(await make_token(api.context))
        found = keys_of.hash_token(few.headers["authorization"].removeprefix("Bearer "))
        await db.execute("update boathook.api_key set capabilities = '{ViewBase}' where token_sha256 = $1", found)
        await few.ask(403, "GET", "/listen")

    @pytest.mark.parametrize(
        ("query", "field"),
        [("since=2020-01-01T00:00:00Z", "since"), ("since=soon", "since"), ("after=evt_no", "after")],
    )
    async def test_names_the_field_that_is_wrong(self, api, query, field):
        error = await api.ask(422, "GET", f"/listen?{query}")
        assert error["detail"][0]["loc"][-1] == field


class _FailingFeed:
    """A feed whose database fails for some polls."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    async def poll(self, _now: datetime) -> tuple[list[Any], bool]:
        self.looks -= 1
        if self.looks >= 0:
            raise DatabaseUnavailable("it is away")
        return [], False


async def test_a_waiting_listener_is_logged_once_per_outage(db: Database):
    told = []

    class Log:
        def warning(self, event: str, **_: Any) -> None:
            told.append(event)

    tail = _FailingFeed(5)
    telling = api_listening.EventStream(make_context(db), ListenerSlots(), tail, NOW, {}, "127.0.0.1", Log())
    for _ in range(6):
        assert await telling._poll() == ([], False)
    assert told == ["listening_paused"]
    tail.looks = 3
    for _ in range(3):
        await telling._poll()
    assert told == ["listening_paused"] * 2


async def keys_after_a_reconnect(db: Database) -> set[str]:
    """Commit an event 59 seconds after its id was made, and reconnect before it is emitted."""
    store, tail = EventStore(db), EventFeed(db, FeedFilter(), NOW)
    now = NOW + timedelta(seconds=60)
    assert await keys(tail, now) == []
    younger = made("younger", now + timedelta(seconds=4))
    await store.append([made("late", NOW + timedelta(seconds=1)), younger])
    assert await keys(tail, now + timedelta(seconds=4)) == ["younger"]
    again = EventFeed(db, FeedFilter(), feed_start(now + timedelta(seconds=5), NOW, younger.id))
    return set(await keys(again, now + timedelta(seconds=5)))


async def test_a_reconnect_misses_nothing_within_the_overlap(db: Database):
    assert await keys_after_a_reconnect(db) == {"late", "younger"}


async def test_mutant_with_a_shorter_overlap_an_event_is_missed(db: Database, monkeypatch):
    monkeypatch.setattr(event_feed, "RESUME_OVERLAP", OVERLAP)
    assert await keys_after_a_reconnect(db) == {"younger"}


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_the_caught_up_time_advances_without_events(db: Database):
    tail, now = EventFeed(db, FeedFilter(), NOW), NOW + timedelta(days=2)
    assert await keys(tail, now) == []
    assert tail.caught_up_to == now - OVERLAP
    assert feed_start(now + timedelta(seconds=9), tail.caught_up_to, None) == tail.caught_up_to
    with pytest.raises(InvalidValue):
        feed_start(now, NOW, None)
    await EventStore(db).append([made(f"k{n:02}", now) for n in range(40)])
    events, has_more = await tail.poll(now + timedelta(seconds=1))
    assert (len(events), has_more) == (25, True)
    assert tail.caught_up_to <= now, "those that wait were not told of"


async def test_a_multi_query_sweep_misses_no_late_commit(db: Database, monkeypatch):
    monkeypatch.setattr(event_feed, "MAX_IDS", 30)
    store, tail = EventStore(db), EventFeed(db, FeedFilter(), NOW)
    await store.append([made(f"k{n:02}", NOW + timedelta(milliseconds=n)) for n in range(40)])
    events, _ = await tail.poll(NOW + timedelta(seconds=1))
    assert len(events) == 25
    # Where it has passed already, and its reader takes an hour for the rest.
    await store.append([made("late", NOW + timedelta(milliseconds=3))])
    heard = await keys(tail, NOW + timedelta(seconds=50))
    heard += [key for poll in range(60) for key in await keys(tail, NOW + timedelta(seconds=100 + 60 * poll))]
    assert sorted(heard) == ["k25", *(f"k{n}" for n in range(26, 40)), "late"]


async def test_a_delayed_reader_gets_missed_events_at_the_next_poll(db: Database):
    store, tail = EventStore(db), EventFeed(db, FeedFilter(), NOW)
    assert await keys(tail, NOW) == []
    await store.append([made("a", NOW + timedelta(seconds=1)), made("b", NOW + timedelta(seconds=20))])
    assert await keys(tail, NOW + timedelta(seconds=21)) == ["a", "b"]


async def test_large_events_are_read_a_few_at_a_time(db: Database):
    await EventStore(db).append([made(f"k{n}", NOW, body=b"x" * 5_000_000) for n in range(5)])
    tail, pages = EventFeed(db, FeedFilter(), NOW), []
    for _ in range(5):
        events, has_more = await tail.poll(NOW + timedelta(seconds=1))
        pages.append(sum(len(one.body) for one in events))
        if not has_more:
            break
    assert sum(pages) == 25_000_000
    assert max(pages) <= 10_000_000


def test_a_fast_clock_does_not_start_a_feed_in_the_future():
    ahead = ids.make(int((NOW + timedelta(hours=1)).timestamp() * 1000), 0)
    assert feed_start(NOW, None, ahead) <= NOW - OVERLAP
