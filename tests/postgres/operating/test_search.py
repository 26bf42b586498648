"""Looking for events a bounded time at a time, and all there is to know of one, on a real database."""

import asyncio
import hashlib
import itertools
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from benchmarks.history import SOURCES, fill
from boathook.db import delivery_commands, integrity
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.queries import event_history, event_search, listings
from boathook.db.queries.event_search import EventFilter, FoundEvent, SearchPage
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.content_filter import ContentFilter
from boathook.domain.errors import DatabaseUnavailable, InvalidState, InvalidTransition, InvalidValue, NotFound
from boathook.domain.model import Accepted, Duplicate, NewBatchItem, NewEvent, State
from boathook.ingest.event_builder import scoped_hash
from boathook.service.operating import search as searching
from boathook.service.operating.event_query import EventQuery
from boathook.service.operating.search import DirectMatch
from boathook.service.receiving import conflicts
from tests import delivery_actions
from tests.postgres.db.test_integrity import Store, filled, new_event
from tests.postgres.message_factory import MessageFactory, ago, id_at

ACTION = AuditContext(actor="test", note="because")


@pytest.fixture
def store(db: Database) -> Store:
    return Store(db)


def names(found: SearchPage | DirectMatch) -> list[str]:
    return [one.event.dedup_key for one in found.events]


async def put(
    store: Store, key: str, *, at: datetime | None = None, source: str = "stripe", type: str = "payment.paid",
    body: bytes = b"{}", to: tuple[str, ...] = (),
) -> UUID:  # fmt: skip
    """Accept an event at a given time, as the gateway does."""
    made = new_event(key, to=to, body=body)
    made = replace(
        made, id=id_at(at) if at else made.id, source=source, type=type, key_hash=scoped_hash(source, key.encode())
    )
    assert await store.events.append([made]) == [Accepted(made.id)]
    return made.id


async def put_many(db: Database, number: int, **columns: str) -> None:
    """Store so many events of one minute each, the oldest first."""
    await db.execute(
        """
        insert into boathook.event (id, source, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout)
        select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - 60000 * ($1 - n)), 12, '0') || '7'
                || lpad(to_hex(n % 4096), 3, '0') || '8000000000000000')::uuid,
            $2, $3, 'k' || n, 'none', 'received', '{}', '', convert_to('body ' || n, 'UTF8'), sha256(''), 0
        from generate_series(1, $1::integer) as n
        """,
        number, columns.get("source", "stripe"), columns.get("type", "thing"),
    )  # fmt: skip


class TestSearch:
    async def test_is_by_source_type_key_and_time(self, store: Store):
        now = datetime.now(UTC)
        for days, source, type in ((1, "stripe", "payment.paid"), (2, "github", "push"), (3, "stripe", "invoice.paid")):
            await put(store, f"{source}{days}", at=now - timedelta(days=days), source=source, type=type)

        async def found(**wanted) -> list[str]:
            return names(await event_search.search(store.db, EventFilter(**wanted)))

        assert await found() == ["stripe1", "github2", "stripe3"]
        assert await found(source="stripe") == ["stripe1", "stripe3"]
        assert await found(type="*.paid") == ["stripe1", "stripe3"]
        assert await found(key="github2") == ["github2"]
        assert await found(since=now - timedelta(days=2, hours=1)) == ["stripe1", "github2"]
        assert await found(until=now - timedelta(days=1, hours=1)) == ["github2", "stripe3"]
        assert await found(source="github", type="payment.*") == []

    @pytest.mark.parametrize("state", list(State))
    async def test_by_state_finds_events_with_a_delivery_in_it(self, db: Database, state: State):
        await filled(db)
        found = await event_search.search(db, EventFilter(state=state))
        rows = await db.fetch(
            "select event_id from boathook.delivery where state = $1"
            " union select event_id from boathook.delivery_archive where state = $1",
            state,
        )
        assert {one.event.id for one in found.events} == {ids.show("evt", row["event_id"]) for row in rows}
        assert all(state in one.states for one in found.events)
        assert found.place is None

    async def test_by_application_takes_its_id_or_uid(self, db: Database):
        factory = await MessageFactory(db).open("acme")
        message = await factory.message(ago(hours=1))
        other = await MessageFactory(db).open("other")
        await other.message(ago(hours=2))
        for name in (factory.name, "acme"):
            found = await event_search.search(db, EventFilter(application=name))
            assert [one.event.id for one in found.events] == [ids.show("evt", message)]

    async def test_by_text_is_case_insensitive(self, store: Store):
        await put(store, "lower", body=b'{"note":"needle"}')
        await put(store, "upper", body=b'{"note":"Needle"}')
        await put(store, "binary", body=b"\x00needle\xff")

        async def found(text: str) -> list[str]:
            look = await searching.find_matches(store.db, EventQuery(text=text), [])
            return sorted(names(look))

        assert await found("needle") == ["binary", "lower", "upper"]
        assert await found("NEEDLE") == ["binary", "lower", "upper"]
        assert await found("%eedle") == []

    async def test_by_text_finds_json_escapes(self, store: Store):
        await put(store, "shy", body=b'{"note":"caf\\u00e9"}')
        await put(store, "plain", body='{"note":"café"}'.encode())
        found = await searching.find_matches(store.db, EventQuery(text="café"), [])
        assert sorted(names(found)) == ["plain", "shy"]

    async def test_by_words_finds_types_keys_and_values_at_a_path(self, store: Store):
        await put(store, "KEY-1", type="Refund.made", body=b'{"to":{"id":"cus_1"}}')
        await put(store, "key-2", body=b'{"to":{"id":"cus_2"},"note":"cus_1"}')

        async def found(**wanted: str) -> list[str]:
            return sorted(names(await searching.find_matches(store.db, EventQuery(**wanted), [])))

        assert await found(words="refund") == ["KEY-1"]
        assert await found(words="key-") == ["KEY-1", "key-2"]
        assert await found(words="cus_1") == ["KEY-1", "key-2"]
        assert await found(words="to.id = cus_1") == ["KEY-1"]
        assert await found(where="$.to.id=cus_2", words="note = cus_1") == ["key-2"]
        assert await found(where="to.id = cus_2", type="Refund.*") == []

    async def test_for_a_listing_scans_to_the_end(self, db: Database):
        await put_many(db, 1_000)
        rows = await searching.list_events(db, EventQuery(text="BODY 7"), limit=111)
        assert [row.dedup_key for row in rows] == [f"k{n}" for n in (*range(799, 699, -1), *range(79, 69, -1), 7)]
        rows = await searching.list_events(db, EventQuery(), limit=3)
        assert [row.dedup_key for row in rows] == ["k1000", "k999", "k998"]

    async def test_of_the_newest_includes_late_commits(self, db: Database):
        await put_many(db, 5)
        found = await searching.find_newer(db, EventQuery(type="thing"), ago(minutes=2))
        assert names(found) == ["k5", "k4", "k3"]
        found = await searching.find_newer(db, EventQuery(since=ago(seconds=90)), ago(minutes=2))
        assert names(found) == ["k5", "k4"]

    async def test_suggests_types_of_the_catalog_and_of_new_events(self, store: Store):
        await put(store, "one", type="Payment.paid")
        await store.db.execute(
            "insert into boathook.event_type (organization, name, description) values ('default', 'payment.lost', '')"
        )
        assert await searching.suggest_types(store.db, "PAYMENT") == ["Payment.paid", "payment.lost"]
        assert await searching.suggest_types(store.db, "lost") == ["payment.lost"]

    async def test_resumes_at_the_cursor_and_misses_nothing(self, db: Database):
        await put_many(db, 1_234)
        seen: list[str] = []
        below = None
        for _ in range(100):
            found = await event_search.search(db, EventFilter(below=below), limit=50)
            seen += names(found)
            below = found.place
            if below is None:
                break
        assert seen == [f"k{number}" for number in range(1_234, 0, -1)]

    @pytest.mark.parametrize(
        "wanted", [EventFilter(source="rare"), EventFilter(content=ContentFilter(text="body 777"))]
    )
    async def test_stops_at_its_time_budget_with_a_cursor(self, db: Database, wanted: EventFilter):
        await put_many(db, 2_000)
        first = await event_search.search(db, wanted, budget_s=0)
        assert (first.events, first.is_full) == ([], False)
        assert first.looked_at == 200
        assert first.place is not None
        assert first.reached == ids.created_at(first.place)
        second = await event_search.search(db, replace(wanted, below=first.place), budget_s=0)
        assert second.place is not None
        assert second.place < first.place

    async def test_repeated_finds_old_events(self, db: Database):
        await put_many(db, 3_000)
        looks = itertools.count()
        below = None
        found: list[FoundEvent] = []
        while not found:
            assert next(looks) < 20
            look = await event_search.search(db, EventFilter(key="k5", below=below), budget_s=0)
            found, below = list(look.events), look.place
        assert found[0].event.dedup_key == "k5"

    async def test_repeated_finds_every_text_despite_short_steps(self, store: Store, monkeypatch):
        monkeypatch.setattr(event_search, "MAX_BYTES", 64)
        await put_many(store.db, 700)
        below, found = None, []
        for _ in range(1_000):
            look = await event_search.search(
                store.db, EventFilter(content=ContentFilter(text="body 5"), below=below), limit=3, budget_s=0
            )
            found += names(look)
            below = look.place
            if below is None:
                break
        assert found == [f"k{number}" for number in range(700, 0, -1) if str(number).startswith("5")]

    async def test_skips_and_counts_too_large_bodies(self, store: Store, monkeypatch):
        monkeypatch.setattr(event_search, "MAX_SEARCHED_BODY", 1_000)
        monkeypatch.setattr(event_search, "MAX_BYTES", 500)
        await put(store, "large", body=b"needle" + b"x" * 2_000)
        await put(store, "small", body=b"needle")
        found = await event_search.search(store.db, EventFilter(content=ContentFilter(text="needle")), budget_s=60)
        assert names(found) == ["small"]
        assert found.too_large == 1

    async def test_leaves_no_statement_timeout_on_the_session(self, db: Database):
        async with db.acquire() as connection:
            before = await connection.fetchval("show statement_timeout")
        await event_search.search(db, EventFilter())
        async with db.acquire() as connection:
            assert await connection.fetchval("show statement_timeout") == before

    async def test_times_out_on_a_lock(self, db: Database, monkeypatch):
        monkeypatch.setattr(event_search, "TIMEOUT_S", 0.2)
        async with db.transaction() as other:
            await other.execute("lock table boathook.event in access exclusive mode")
            with pytest.raises(DatabaseUnavailable, match="statement timeout"):
                await event_search.search(db, EventFilter())

    async def test_would_wait_without_its_limit(self, db: Database, monkeypatch):
        monkeypatch.setattr(event_search, "TIMEOUT_S", 0.2)
        monkeypatch.setitem(event_search.SQL, "limit_statement", "select $1::text")
        async with db.transaction() as other:
            await other.execute("lock table boathook.event in access exclusive mode")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await event_search.search(db, EventFilter())

    async def test_of_an_event_with_many_deliveries_counts_some(self, store: Store):
        await put(store, "many", to=tuple(f"r{number}" for number in range(1_500)))
        (found,) = (await event_search.search(store.db, EventFilter(state=State.PENDING))).events
        assert found.states == {State.PENDING: 1_000}


@pytest.mark.extended("needs thousands of rows, objects or connections")
async def test_a_long_history_made_for_tests_balances_and_is_found(pg_url: str, db: Database):
    await asyncio.to_thread(fill, pg_url, 12_000)
    assert (await integrity.check_integrity(db, dedup_days=30)).violations == ()
    for key, application in (("evt-9999", ""), ("evt-10000", "")):
        found = await searching.find_matches(db, EventQuery(words=key, application=application), SOURCES)
        assert isinstance(found, DirectMatch)
        assert names(found) == [key]
    rare = await event_search.search(db, EventFilter(source="rare"), budget_s=10)
    assert [one.event.dedup_key for one in rare.events] == ["evt-10001", "evt-1"]


class TestSearchById:
    async def test_of_an_event_message_or_delivery_is_found_at_once(self, store: Store):
        event = await put(store, "one", to=("a",))
        for name in (ids.show("evt", event), ids.show("msg", event), str(event), ids.show_delivery(event, 0)):
            found = await searching.find_matches(store.db, EventQuery(words=name), [])
            assert isinstance(found, DirectMatch)
            assert names(found) == ["one"]

    async def test_of_a_conflict_or_rejection_is_named(self, store: Store):
        for prefix in ("cfl", "rej"):
            name = ids.show(prefix, id_at(ago(hours=1)))
            found = await searching.find_matches(store.db, EventQuery(words=name), [])
            assert isinstance(found, DirectMatch)
            assert [one.id for one in found.named] == [name]

    async def test_that_nothing_has_is_named_without_an_event(self, store: Store):
        found = await searching.find_matches(store.db, EventQuery(words=ids.show("evt", id_at(ago(hours=1)))), [])
        assert isinstance(found, DirectMatch)
        assert found.events == []


class TestSearchByKey:
    async def test_is_found_at_once_in_every_source(self, store: Store):
        await put(store, "evt_1", source="github")
        await put(store, "evt_1", source="stripe")
        both = await searching.find_matches(store.db, EventQuery(words="evt_1"), ["stripe", "github", "other"])
        assert isinstance(both, DirectMatch)
        assert sorted(one.event.source or "" for one in both.events) == ["github", "stripe"]
        one = await searching.find_matches(store.db, EventQuery(words="evt_1", source="github"), ["stripe", "github"])
        assert [found.event.source for found in one.events] == ["github"]

    async def test_of_a_message_is_found_with_and_without_its_application(self, db: Database):
        factory = await MessageFactory(db).open("acme")
        message = await factory.message(ago(hours=1), dedup_key="order-7")
        for application in ("", "acme", factory.name):
            found = await searching.find_matches(db, EventQuery(words="order-7", application=application), ["stripe"])
            assert isinstance(found, DirectMatch), application
            assert [one.event.id for one in found.events] == [ids.show("evt", message)]

    async def test_of_an_item_names_the_item(self, store: Store):
        made = batch(("a", b"1"), ("b", b"2"))
        await store.events.append([made])
        found = await searching.find_matches(store.db, EventQuery(words="b"), ["stripe"])
        assert isinstance(found, DirectMatch)
        assert [(one.id, one.item_path) for one in found.named] == [(ids.show("evt", made.id), "events.1")]

    async def test_with_an_expired_key_falls_back_to_text_search(self, store: Store):
        await put(store, "forgotten")
        await put(store, "mentions it", body=b'{"ref":"forgotten"}')
        await store.db.execute("delete from boathook.dedup")
        found = await searching.find_matches(store.db, EventQuery(words="forgotten"), ["stripe"])
        assert isinstance(found, SearchPage)
        assert sorted(names(found)) == ["forgotten", "mentions it"]


@pytest.mark.parametrize(
    ("question", "field"),
    [
        (EventQuery(state="asleep"), "state"), (EventQuery(text="x" * 201), "text"), (EventQuery(words="a\x00b"), "q"),
        (EventQuery(type="\ud800"), "type"), (EventQuery(where="customer"), "where"), (EventQuery(since=ago(days=1), until=ago(days=2)), "until"),
    ],
)  # fmt: skip
async def test_an_invalid_query_names_its_field(db: Database, question: EventQuery, field: str):
    with pytest.raises(InvalidValue) as raised:
        await searching.find_matches(db, question, [])
    assert raised.value.where == (field,)


def batch(*items: tuple[str, bytes], source: str = "stripe") -> NewEvent:
    body = b'{"events":[' + b",".join(b'{"id":"%s","v":%s}' % (key.encode(), value) for key, value in items) + b"]}"
    made = new_event(f"batch {items}", body=body)
    return replace(
        made,
        items=tuple(
            NewBatchItem(
                path=f"events.{place}",
                type="thing",
                dedup_key=f"item:{key}",
                key_hash=scoped_hash(f"{source}\x00item", f"item:{key}".encode()),
                digest=hashlib.sha256(value).digest(),
            )
            for place, (key, value) in enumerate(items)
        ),
    )


class TestAComparison:
    async def conflict(self, db: Database) -> conflicts.Comparison:
        (row,) = await listings.list_conflicts(db, ListFilter())
        return await conflicts.compare_conflict(db, ids.read("cfl", row.id))

    async def test_of_another_body_shows_the_lines_that_differ(self, store: Store):
        first = new_event("one", body=b'{"amount":100,"to":"anna"}')
        later = new_event("one", body=b'{"amount":900,"to":"anna"}')
        assert [type(one) for one in await store.events.append([first])] == [Accepted]
        assert await store.events.append([later]) == [Duplicate(first.id, conflict=True)]
        found = await self.conflict(store.db)
        assert conflicts.unified_diff(found).splitlines() == [
            "  {", '-   "amount": 100,', '+   "amount": 900,', '    "to": "anna"', "  }",
        ]  # fmt: skip
        assert "The key is the same, the body is not" in found.verdict

    @pytest.mark.parametrize(
        ("left", "right", "says"),
        [
            (b'{"a":1}', b'{"a": 1}', "only white space differs"),
            (b'{"a":1,"b":{"c":2.50}}', b'{"b":{"c":2.50},"a":1}', "the values are the same, only their order"),
            (b'{"a":1}', b'{"a":"1"}', "the event has"),
            (b'{"a":10000000000000000000001}', b'{"a":10000000000000000000002}', "the event has"),
            (b"\x00\x01", b"\x00\x02", "the event has 2 bytes"),
        ],
    )
    async def test_shows_how_bodies_differ(self, store: Store, left: bytes, right: bytes, says: str):
        await store.events.append([new_event("one", body=left)])
        await store.events.append([new_event("one", body=right)])
        found = await self.conflict(store.db)
        assert says in found.verdict
        assert any(line.mark == "-" for line in found.lines or () if hasattr(line, "mark"))

    async def test_of_another_key_is_explained(self, store: Store):
        replay = UUID(int=7)
        store.events.set_refusing(["stripe"])
        first = new_event("real", body=b"{}", replay=replay)
        await store.events.append([first])
        await store.events.append([new_event("forged", body=b"{}", replay=replay)])
        found = await self.conflict(store.db)
        assert found.conflict.row.differs == "key"
        assert "forged arrived with the content that was accepted as real" in found.verdict
        assert found.lines is None

    async def test_of_an_item_is_compared_with_the_first_item(self, store: Store):
        first = batch(("a", b"1"), ("b", b"2"))
        await store.events.append([first])
        await store.events.append([batch(("b", b"3"), ("c", b"4"))])
        found = await self.conflict(store.db)
        assert found.item_path == "events.1"
        assert found.first is not None
        assert found.first.body == b'{"id":"b","v":2}'
        assert conflicts.unified_diff(found).splitlines() == [
            "  {",
            '    "id": "b",',
            '-   "v": 2',
            '+   "v": 3',
            "  }",
        ]

    async def test_with_a_deleted_event_shows_the_rest(self, store: Store):
        await store.events.append([new_event("one", body=b"1")])
        await store.events.append([new_event("one", body=b"2")])
        await store.db.execute("delete from boathook.event")
        found = await self.conflict(store.db)
        assert (found.event, found.first, found.lines) == (None, None, None)
        assert found.conflict.stored.body == b"2"

    async def test_with_an_unknown_id_is_not_found(self, db: Database):
        with pytest.raises(NotFound):
            await conflicts.compare_conflict(db, id_at(ago(hours=1)))


class TestEventHistory:
    async def test_has_deliveries_attempts_effects_reply_notes_and_conflicts(self, store: Store):
        event = await put(store, "good", to=("a", "b"), body=b'{"n":1}')
        await store.fail(event)
        await store.end(event)
        await store.db.execute(
            "insert into boathook.side_effect (event_id, recipient, name, result) values ($1, 'a', 'mail', '1')", event
        )
        await store.db.execute(
            "insert into boathook.reply (event_id, recipient, status, content_type, body)"
            " values ($1, 'a', 200, 'text/plain', 'fine')",
            event,
        )
        added = await delivery_actions.replay_delivery(store.db, (event, 0), ACTION)
        duplicate = replace(new_event("good", body=b'{"n":2}'), key_hash=scoped_hash("stripe", b"good"))
        await store.events.append([duplicate])
        story = await event_history.read_history(store.db, event)
        assert [(one.recipient, one.state) for one in story.deliveries] == [
            ("a", "succeeded"), ("b", "pending"), ("a", "pending"),
        ]  # fmt: skip
        assert [(one.ordinal, one.number, one.outcome) for one in story.attempts] == [
            (0, 2, "succeeded"),
            (0, 1, "failed"),
        ]
        assert [one.name for one in story.effects] == ["mail"]
        assert story.answer is not None
        assert story.answer.body == b"fine"
        assert [(one.action, one.note) for one in story.notes] == [("delivery.replay", "because")]
        assert [one.differs for one in story.conflicts] == ["body"]
        only = await event_history.read_history(store.db, event, only=added[1])
        assert [one.is_replay for one in only.deliveries] == [True]
        assert (await event_history.read_history(store.db, event, only=9)).deliveries == []

    async def test_shows_the_headers_that_an_endpoint_was_sent(self, store: Store):
        event = await put(store, "one", to=("a",))
        await store.end(event)
        pairs = '[["webhook-id","msg_1"],["authorization","[redacted]"]]'
        await store.db.execute("update boathook.attempt set request_headers = $1", pairs)
        (one,) = (await event_history.read_history(store.db, event)).attempts
        assert one.request_headers == {"webhook-id": "msg_1", "authorization": "[redacted]"}

    async def test_with_many_deliveries_is_paged(self, store: Store):
        event = await put(store, "many", to=tuple(f"r{number}" for number in range(230)))
        first: int | None = 0
        seen: list[str] = []
        while first is not None:
            story = await event_history.read_history(store.db, event, first=first)
            seen += [one.recipient for one in story.deliveries]
            first = story.next_ordinal
        assert seen == [f"r{number}" for number in range(230)]

    async def test_reads_only_the_requested_part_of_a_body(self, store: Store):
        event = await put(store, "big", body=b"x" * 500_000)
        row, stored = await event_history.read_event_preview(store.db, event, 1_000)
        assert (row.size, len(stored.body)) == (500_000, 1_000)


class TestReplayDelivery:
    async def test_adds_a_delivery_for_it_alone(self, store: Store):
        event = await put(store, "one", to=("a", "b"))
        await store.end(event)
        await store.end(event, 1)
        assert await delivery_actions.replay_delivery(store.db, (event, 0), ACTION) == (event, 2)
        assert await store.db.fetchval("select recipient from boathook.delivery") == "a"
        await store.end(event, 2)
        assert (await store.verify()).violations == ()

    async def test_adds_none_while_one_is_pending_or_dead(self, store: Store):
        event = await put(store, "one", to=("a",))
        await store.end(event)
        await delivery_actions.replay_delivery(store.db, (event, 0), ACTION)
        with pytest.raises(InvalidTransition, match="already has a pending delivery"):
            await delivery_actions.replay_delivery(store.db, (event, 0), ACTION)
        await store.fail(event, 1, is_last=True)
        with pytest.raises(InvalidTransition, match="dead letter"):
            await delivery_actions.replay_delivery(store.db, (event, 0), ACTION)
        assert await store.db.fetchval("select count(*) from boathook.delivery") == 1

    async def test_adds_another_without_the_check_for_open_deliveries(self, store: Store, monkeypatch):
        event = await put(store, "one", to=("a",))
        await store.end(event)
        statement = delivery_commands.SQL["owe_again"]
        monkeypatch.setitem(delivery_commands.SQL, "owe_again", statement.replace("and not is_open", ""))
        assert delivery_commands.SQL["owe_again"] != statement
        for _ in range(2):
            await delivery_actions.replay_delivery(store.db, (event, 0), ACTION)
        assert await store.db.fetchval("select count(*) from boathook.delivery") == 2

    async def test_replays_each_item_separately(self, store: Store):
        made = batch(("a", b"1"), ("b", b"2"))
        await store.events.append([made])
        await store.db.execute(
            "insert into boathook.delivery_archive (event_id, ordinal, recipient, state, is_replay, attempts, replays, ended_at,"
            " item_path, item_type) select $1, n, 'h', 'succeeded', false, 1, 0, now(), 'events.' || n, 'thing'"
            " from generate_series(0, 1) as n",
            made.id,
        )
        await delivery_actions.replay_delivery(store.db, (made.id, 0), ACTION)
        await delivery_actions.replay_delivery(store.db, (made.id, 1), ACTION)
        rows = await store.db.fetch("select item_path from boathook.delivery order by ordinal")
        assert [row["item_path"] for row in rows] == ["events.0", "events.1"]

    async def test_waits_in_the_line_of_its_order_key(self, store: Store):
        made = new_event("one", to=("a",), order_key="c1")
        await store.events.append([made])
        await store.end(made.id)
        await store.accept("two", "a", order_key="c1")
        await delivery_actions.replay_delivery(store.db, (made.id, 0), ACTION)
        rows = await store.db.fetch("select is_blocked from boathook.delivery order by seq")
        assert [row["is_blocked"] for row in rows] == [False, True]

    async def test_refuses_expunged_and_unfinished_deliveries(self, store: Store):
        event = await put(store, "one", to=("a", "b"))
        await store.end(event)
        with pytest.raises(NotFound):
            await delivery_actions.replay_delivery(store.db, (event, 1), ACTION)
        await store.db.execute("update boathook.event set body = '', expunged_at = now()")
        with pytest.raises(InvalidState, match="deleted"):
            await delivery_actions.replay_delivery(store.db, (event, 0), ACTION)

    async def test_leaves_a_note_with_who_and_why(self, store: Store):
        event = await put(store, "one", to=("a",))
        await store.end(event)
        await delivery_actions.replay_delivery(store.db, (event, 0), ACTION)
        (row,) = await listings.list_audit(store.db, ListFilter(), subject=ids.show_delivery(event, 0))
        assert (row.actor, row.action, row.note) == ("test", "delivery.replay", "because")
