"""A healthy store in every state passes the check; each kind of damage is found by its own rule."""

import asyncio
import hashlib
import itertools
import time
import tracemalloc
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from boathook.db import delivery_commands, integrity, invariants
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, ReplaySchedule, Selection
from boathook.db.events import EventStore
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.model import Accepted, Duplicate, NewDelivery, NewEvent, Origin, ProofStrength
from boathook.handlers.outbox import Outbox
from boathook.service.unit_of_work import new_id
from tests import delivery_actions
from tests.endpoint_factory import add_application, add_endpoint, publish
from tests.support import eventually

ACTOR = AuditContext(actor="test", note="because")


def new_event(key: str, *, to: tuple[str, ...] = (), order_key: str | None = None, body: bytes = b"{}", replay=None):
    return NewEvent(
        id=new_id(),
        source="stripe",
        application=None,
        type="payment.paid",
        dedup_key=key,
        key_hash=UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]),
        replay_hash=replay,
        grade=ProofStrength.BODY,
        origin=Origin.RECEIVED,
        headers="{}",
        content_type="application/json",
        body=body,
        body_sha256=hashlib.sha256(body).digest(),
        deliveries=tuple(NewDelivery(recipient, order_key) for recipient in to),
        routes_version=1,
    )


class Store:
    """A store that is brought into states the way workers do it."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.events = EventStore(db)

    async def accept(self, key: str, *to: str, **more):
        event = new_event(key, to=to, **more)
        assert await self.events.append([event]) == [Accepted(event.id)]
        return event.id

    async def claim(self, event_id, ordinal=0) -> int:
        return await self.db.fetchval(
            """
            update boathook.delivery
            set state = 'leased', attempts = attempts + 1, fence = fence + 1, leased_by = 'w',
                lease_until = now() + interval '1 hour'
            where event_id = $1 and ordinal = $2 and state = 'pending' and not is_blocked returning fence
            """,
            event_id,
            ordinal,
        )

    async def end(self, event_id, ordinal=0, state="succeeded", note=None):
        fence = await self.claim(event_id, ordinal)
        assert fence is not None, "it cannot be claimed"
        sql = "select boathook.settle($1, $2, $3, $4, $5, 'w', now())"
        await self.db.execute(sql, event_id, ordinal, fence, state, note)

    async def fail(self, event_id, ordinal=0, *, is_last=False):
        fence = await self.claim(event_id, ordinal)
        assert fence is not None, "it cannot be claimed"
        due = None if is_last else datetime.now(UTC)
        await self.db.execute(
            "select boathook.record_failure($1, $2, $3, $4, $5, 'BROKEN', 'it broke', 'trace', 'w', now())",
            event_id, ordinal, fence, due, "failed",
        )  # fmt: skip

    async def one(self, sql, *args):
        return await self.db.fetchval(sql, *args)

    async def verify(self, **more) -> integrity.IntegrityReport:
        return await integrity.check_integrity(self.db, dedup_days=30, **more)


@pytest.fixture
async def store(db: Database) -> Store:
    return await filled(db)


async def filled(db: Database) -> Store:
    """Return a store with every state, and the results of all operator actions."""
    made = Store(db)
    await made.accept("nobody")
    await made.end(await made.accept("good", "a"))
    await made.end(await made.accept("ignored", "a"), state="ignored", note="not for us")
    retried = await made.accept("retried", "a", "b")
    await made.fail(retried)
    await made.end(retried)
    await made.accept("pending", "a", "b")
    await made.claim(await made.accept("leased", "a"))
    for key in ("dead", "revived", "waved", "purged"):
        await made.fail(await made.accept(key, "a"), is_last=True)
    pace = ReplaySchedule(await delivery_commands.read_clock(db))
    for key, move in (("waved", delivery_actions.ignore_dead), ("purged", delivery_actions.purge_dead)):
        assert len(await move(db, await dead_of(made, key), ACTOR, limit=10)) == 1
    assert len(await delivery_actions.replay_dead(db, await dead_of(made, "revived"), ACTOR, pace=pace, limit=10)) == 1
    await made.end(await event_of(made, "revived"))
    again = await made.accept("again", "a", "b")
    await made.end(again)
    await made.end(again, 1)
    assert (await delivery_actions.replay_events(db, [again], ACTOR, pace=pace)).added == 2
    await made.end(again, 2)
    for number in range(3):
        await made.accept(f"line{number}", "ordered", order_key="c1")
    await made.end(await event_of(made, "line0"))
    await made.claim(await event_of(made, "line1"))
    conflict = new_event("good", body=b'{"other": true}')
    assert isinstance((await made.events.append([conflict]))[0], Duplicate)
    await db.execute(
        """
        insert into boathook.rejection values
        ($1, 'stripe', 401, 'signature_mismatch', 'x', '127.0.0.1', 'POST', '/in/stripe', '{}', 'text/plain', 'x', 1, $2),
        ($3, 'stripe', 401, 'signature_mismatch', 'x', '127.0.0.1', 'POST', '/in/stripe', '{}', 'text/plain', 'x', 1, null)
        """,
        ids.make(1, 1), again, ids.make(2, 2),
    )  # fmt: skip
    await db.execute(
        "insert into boathook.side_effect (event_id, recipient, name, result) values ($1, 'a', 'mail', '1')", again
    )
    return made


async def sent(store: Store) -> None:
    """Add messages: delivered, resent, expunged, sent to a later endpoint, and one without a recipient."""
    acme = await add_application(store.db, "acme")
    endpoint = await add_endpoint(store.db, acme)
    outbox = Outbox()
    await publish(store.db, outbox, acme, id="waiting")
    resent = (await publish(store.db, outbox, acme, id="resent")).event_id
    await store.fail(resent)
    await insert_delivery(store, resent, endpoint)
    await store.end(resent, 1)
    await store.db.execute(OVERTAKE, resent, endpoint)
    old = (await publish(store.db, outbox, acme, id="old")).event_id
    await store.end(old)
    await store.db.execute("update boathook.event set body = '', expunged_at = now() where id = $1", old)
    later = await add_endpoint(store.db, acme)
    await insert_delivery(store, old, later)
    await store.end(old, 1)
    nobody = await add_application(store.db, "nobody")
    nameless = (await publish(store.db, outbox, nobody, id=None)).event_id
    await store.db.execute("delete from boathook.dedup where event_id = $1", nameless)
    await store.db.execute("update boathook.event set accepted_at = now() - interval '2 days' where id = $1", nameless)


OVERTAKE = """
    with gone as (delete from boathook.delivery where event_id = $1 and ordinal = 0 returning *),
    noted as (
        insert into boathook.audit (actor, action, subject)
        select 'sender', 'delivery.overtake', boathook.show_id('dlv', event_id) || '_0' from gone
    )
    insert into boathook.delivery_archive (event_id, ordinal, recipient, state, is_replay, attempts, replays, note, ended_at)
    select event_id, ordinal, $2, 'ignored', false, attempts, 0, 'resent by hand', now() from gone
"""


async def insert_delivery(store: Store, event_id: UUID, recipient: str) -> None:
    await store.db.execute(
        "insert into boathook.delivery (event_id, ordinal, recipient, is_replay, is_manual) values ($1, 1, $2, true, true)",
        event_id, recipient,
    )  # fmt: skip


async def test_messages_balance_however_they_were_sent(store: Store):
    await sent(store)
    found = await store.verify(is_deep=True)
    assert found.violations == ()
    assert found.balance.published == 4
    assert await store.one("select count(*) from boathook.delivery_archive where is_manual") == 2


async def event_of(store: Store, key: str):
    return await store.one("select id from boathook.event where dedup_key = $1", key)


async def dead_of(store: Store, key: str) -> Selection:
    return Selection(ListFilter(), keys=[(await event_of(store, key), 0)])


async def test_a_healthy_store_in_all_states_balances(store: Store):
    found = await store.verify(is_deep=True)
    assert found.violations == ()
    balance = found.balance
    assert (balance.events, balance.deliveries, balance.replayed, balance.missing) == (14, 16, 2, 0)
    assert (balance.succeeded, balance.ignored, balance.dead, balance.purged) == (7, 2, 1, 1)
    assert (balance.pending, balance.leased) == (5, 2)
    assert balance.dropped == {"dead letter, purged": 1}
    assert (balance.conflicts, balance.rejections) == (1, 2)


async def test_an_empty_store_balances(db: Database):
    assert (await Store(db).verify(is_deep=True)).is_consistent


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every range so small that even the fewest events are many of them."""
    walks = tuple(replace(walk, rows=3, max_rows=3) for walk in invariants.SCANS)
    monkeypatch.setattr(integrity, "SCANS", walks)


@pytest.fixture
def arrive(pg_url: str):
    """Accept an event with a delivery between two queries."""
    connection = psycopg.connect(pg_url, autocommit=True)
    numbers = itertools.count()

    def step(_step: object = None) -> None:
        number = next(numbers)
        name = ids.make(time.time_ns() // 1_000_000, number)
        if number < 50:
            with connection.transaction():
                for statement in ARRIVAL:
                    connection.execute(statement, {"id": name})

    yield step
    connection.close()


ARRIVAL = (
    """
    insert into boathook.event (id, source, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout)
    values (%(id)s, 'stripe', 'x', %(id)s::text, 'none', 'received', '{}', '', '', sha256(''), 1)
    """,
    "insert into boathook.dedup values (%(id)s, null, %(id)s, sha256(''), now() + interval '30 days')",
    "insert into boathook.delivery (event_id, ordinal, recipient) values (%(id)s, 0, 'a')",
)


@pytest.mark.usefixtures("tiny")
async def test_sums_agree_while_events_arrive_between_queries(store: Store, arrive):
    found = await store.verify(progress=arrive)
    assert found.violations == ()
    assert found.looks > 10
    assert found.balance.missing == 0
    assert found.balance.events > 14


async def test_without_one_query_per_range_the_sums_disagree(store: Store, arrive, monkeypatch: pytest.MonkeyPatch):
    take = integrity.Check.collect_row
    is_late = False

    def torn(self, row, totals):
        if not is_late or row["expected"] not in {"events", "deliveries"}:
            take(self, row, totals)

    look = integrity.Check.run_query

    async def twice(self, sql, arguments):
        nonlocal is_late
        is_late = False
        before = Counter(self._figures)
        await look(self, sql, arguments)
        arrive()
        early, self._figures, is_late = self._figures, before, True
        await look(self, sql, arguments)
        self._figures.update({name: early[name] - before[name] for name in ("events", "deliveries")})

    monkeypatch.setattr(integrity.Check, "collect_row", torn)
    monkeypatch.setattr(integrity.Check, "run_query", twice)
    assert (await store.verify()).balance.missing != 0
    monkeypatch.undo()
    assert (await store.verify()).balance.missing == 0


ADVANCE = """
    select null::uuid as id, null::integer as ordinal, nextval('boathook.audit_id_seq')::text as expected, '' as found
"""


async def test_the_check_can_write_nothing(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(integrity.SQL, "find_double_leases", ADVANCE)
    with pytest.raises(DatabaseError, match="read-only"):
        await store.verify()


@pytest.mark.usefixtures("tiny")
async def test_progress_is_reported_per_query_and_monotonic(store: Store):
    steps: list[integrity.CheckProgress] = []
    await store.verify(progress=steps.append, is_deep=True)
    assert [step.number for step in steps] == sorted(step.number for step in steps)
    assert steps[-1].number == steps[-1].of
    for _, of_one in itertools.groupby(steps, key=lambda step: step.title):
        shares = [step.share for step in of_one]
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] <= 1


async def test_a_window_checks_its_events_and_the_global_rules(store: Store):
    middle = ids.created_at(await event_of(store, "pending"))
    early, late = await store.verify(until=middle), await store.verify(since=middle)
    whole = await store.verify()
    assert (early.violations, late.violations) == ((), ())
    assert 0 < early.balance.events < whole.balance.events
    assert early.balance.events + late.balance.events == whole.balance.events
    assert early.balance.deliveries + late.balance.deliveries == whole.balance.deliveries
    await store.db.execute(f"delete from boathook.delivery_archive where event_id = {GOOD}")
    await store.db.execute("drop index boathook.dedup_replay_key")
    assert {one.check for one in (await store.verify(since=middle)).violations} == {"the schema's constraints exist"}
    assert "every delivery exists" in {one.check for one in (await store.verify(until=middle)).violations}


async def test_a_query_that_times_out_is_retried_smaller(store: Store, monkeypatch: pytest.MonkeyPatch):
    look, sizes, cuts = integrity.Check.run_query, [], iter([True, True])
    bound = integrity.Check.bound

    async def noted(self, walk, low, rows):
        sizes.append(rows)
        return await bound(self, walk, low, rows)

    async def cut_twice(self, sql, arguments):
        if next(cuts, False):
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
        await look(self, sql, arguments)

    monkeypatch.setattr(integrity.Check, "bound", noted)
    monkeypatch.setattr(integrity.Check, "run_query", cut_twice)
    monkeypatch.setattr(integrity, "RETRY_S", 0.0)
    found = await store.verify()
    assert sizes[:3] == [4_000, 2_000, 1_000]
    assert found.is_consistent
    assert found.balance.events == 14


async def test_a_query_that_always_times_out_raises(store: Store, monkeypatch: pytest.MonkeyPatch):
    async def cut(*_: object) -> None:
        raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")

    monkeypatch.setattr(integrity.Check, "run_query", cut)
    monkeypatch.setattr(integrity, "RETRY_S", 0.0)
    with pytest.raises(DatabaseUnavailable, match="statement timeout"):
        await store.verify()


@pytest.mark.usefixtures("tiny")
async def test_it_rests_after_each_query_as_configured(store: Store, monkeypatch: pytest.MonkeyPatch):
    rests: list[float] = []

    async def noted(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("boathook.db.integrity.sleep", noted)
    assert (await store.verify()).is_consistent
    assert set(rests) == {0.0}
    rests.clear()
    found = await store.verify(rest=3.0)
    assert len(rests) > 10
    assert min(rests) > 0
    assert max(rests) >= 3 * found.longest_query_s


async def emptied(store: Store, pg_url: str) -> integrity.IntegrityReport:
    """Check while retention empties a week, so that a query waits for it."""
    event = await event_of(store, "nobody")
    key = "delete from boathook.dedup where event_id <> $1"
    for table in ("event where id <> $1", "conflict where event_id <> $1", "rejection where event_id is not null"):
        await store.db.execute(f"delete from boathook.{table}", *([event] if "$1" in table else []))
    for table in ("delivery", "attempt", "delivery_archive", "side_effect"):
        await store.db.execute(f"delete from boathook.{table}")
    await store.db.execute("delete from boathook.audit")
    await store.db.execute("delete from boathook.purge_log")
    await store.db.execute(key, event)
    assert (await store.verify()).violations == ()
    week = await store.one("select tableoid::regclass::text from boathook.event")
    async with await psycopg.AsyncConnection.connect(pg_url) as keeper:
        await keeper.execute(f"lock table {week} in access exclusive mode")
        checking = asyncio.create_task(store.verify())
        waiting = "select exists (select from pg_locks where not granted and relation = $1::regclass)"

        async def is_waited_for() -> bool:
            return bool(await store.one(waiting, week))

        await eventually(is_waited_for)
        await keeper.execute("insert into boathook.purge_log (kind, reason, dropped) values ('event', 'age', 1)")
        await keeper.execute(f"truncate {week}")
        await keeper.commit()
        return await checking


@pytest.fixture
def memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the dedup memory only, so that this query waits."""
    monkeypatch.setattr(integrity, "SCANS", (invariants.DEDUP_MEMORY,))
    monkeypatch.setitem(integrity.SQL, "find_extent", "select null::uuid as first, null::uuid as last, now() as now")
    monkeypatch.setitem(
        integrity.SQL, "find_memory_bound", "select null::uuid where $1::uuid is null and $2::bigint = 0"
    )


@pytest.mark.usefixtures("memory_only")
async def test_a_week_dropped_during_a_query_is_no_violation(store: Store, pg_url: str):
    assert (await emptied(store, pg_url)).violations == ()


@pytest.mark.usefixtures("memory_only")
async def test_with_a_snapshot_from_before_the_wait_it_would_be(
    store: Store, pg_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(integrity, "ISOLATION", "repeatable_read")
    found = await emptied(store, pg_url)
    assert [one.check for one in found.violations] == ["every dedup key has its event"]


async def test_each_imbalance_is_explained_by_examples(store: Store):
    event = await event_of(store, "pending")
    await store.db.execute("delete from boathook.delivery where event_id = $1 and ordinal = 1", event)
    (found,) = (await store.verify()).violations
    name = ids.show("evt", event)
    assert found.check == "every delivery exists"
    assert str(found.examples[0]) == f"{name}: expected 2 deliveries, as when it was accepted; found 1 are there"
    assert found.examples[0].look == f"boathook events show {name}"
    assert "boathook events replay" in found.remedy


async def break_many(store: Store, number: int) -> None:
    """Store this many events with a lost delivery, each with an orphaned key."""
    await store.db.execute(
        """
        with made as materialized (
            select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0') || '7000' || '8000'
                || lpad(to_hex(n), 12, '0'))::uuid as id from generate_series(1, $1::integer) as n
        ),
        keys as (
            insert into boathook.dedup
            select gen_random_uuid(), null, id, sha256(''), now() + interval '30 days' from made
        )
        insert into boathook.event (
            id, source, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout)
        select id, 'stripe', 'x', id::text, 'none', 'received', '{}', '', '', sha256('x'), 2 from made
        """,
        number,
    )


@pytest.mark.extended("needs thousands of rows, objects or connections")
async def test_memory_grows_neither_with_events_nor_violations(db: Database, monkeypatch):
    monkeypatch.setattr(integrity, "SCANS", tuple(replace(walk, rows=200, max_rows=200) for walk in invariants.SCANS))
    store, peaks = Store(db), []
    for number in (1_000, 10_000):
        await db.execute("truncate boathook.event, boathook.dedup")
        await break_many(store, number)
        await store.verify(is_deep=True)
        tracemalloc.start()
        found = await store.verify(is_deep=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        counts = {one.check: (one.count, len(one.examples)) for one in found.violations}
        assert counts["every delivery exists"] == (number, 5)
        assert counts["bodies match their hashes"] == (number, 5)
    assert peaks[1] < 1.5 * peaks[0]


OLD = datetime.now(UTC) - timedelta(days=1)
EVENT = "(select id from boathook.event where dedup_key = '{}')"
PENDING, LEASED, GOOD, DEAD = (EVENT.format(key) for key in ("pending", "leased", "good", "dead"))
WAVED, AGAIN, RETRIED, PURGED = (EVENT.format(key) for key in ("waved", "again", "retried", "purged"))
NOWHERE = f"'{ids.make(1_700_000_000_000, 7)}'::uuid"
UNCHECKED = """
    do $$ declare c record; begin
        for c in select conname, conrelid::regclass as t from pg_constraint
            where connamespace = 'boathook'::regnamespace and contype = 'c' and conislocal loop
            begin execute format('alter table %s drop constraint %I', c.t, c.conname);
            exception when invalid_table_definition then null; end;
        end loop;
    end $$;
"""

SEALED = "select boathook.seal_audit(1000);"
BREAKAGES = {
    "a delivery lost": ("every delivery exists", f"delete from boathook.delivery where event_id = {PENDING} and ordinal = 1"),
    "all deliveries lost": ("every delivery exists", f"delete from boathook.delivery where event_id = {PENDING}"),
    "an outcome lost": ("every delivery exists", f"delete from boathook.delivery_archive where event_id = {GOOD}"),
    "a delivery too many": ("every delivery exists", f"insert into boathook.delivery (event_id, ordinal, recipient) values ({PENDING}, 2, 'c')"),
    "a purge without its record": ("every delivery exists", "delete from boathook.audit where action = 'dead.purge'"),
    "an event lost": ("no record without its event", f"delete from boathook.event where id = {PENDING}"),
    "a delivery of nothing": ("no record without its event", f"insert into boathook.delivery (event_id, ordinal, recipient) values ({NOWHERE}, 0, 'c')"),
    "an attempt of nothing": ("no record without its event", f"insert into boathook.attempt values ({NOWHERE}, 0, 1, 'failed', null, null, null, 'w', now(), now())"),
    "an effect of nothing": ("no record without its event", f"insert into boathook.side_effect values ({NOWHERE}, 'a', 'mail', '1')"),
    "a reply to nobody": ("no record without its event", f"insert into boathook.reply values ({NOWHERE}, 'a', 200, 'text/plain', 'yes')"),
    "open and ended": ("no delivery both open and ended", f"insert into boathook.delivery (event_id, ordinal, recipient) values ({GOOD}, 0, 'a')"),
    "owed twice": ("one original delivery per recipient", f"update boathook.delivery set recipient = 'a' where event_id = {PENDING}"),
    "a first delivery that is no replay": ("replays are numbered after original deliveries", f"update boathook.delivery_archive set is_replay = true where event_id = {GOOD}"),
    "a replay that is no first": ("replays are numbered after original deliveries", f"update boathook.delivery set is_replay = false where event_id = {AGAIN}"),
    "attempts not recorded": ("attempts of open deliveries are recorded", f"delete from boathook.attempt where event_id = {DEAD}"),
    "attempts not counted": ("attempts of open deliveries are recorded", f"update boathook.delivery set attempts = 0 where event_id = {DEAD}"),
    "a leased attempt recorded early": ("attempts of open deliveries are recorded", f"insert into boathook.attempt values ({LEASED}, 0, 1, 'failed', null, null, null, 'w', now(), now())"),
    "attempts with a gap": ("attempts of open deliveries are recorded", f"update boathook.attempt set number = 2 where event_id = {DEAD}"),
    "ended attempts not recorded": ("attempts of ended deliveries are recorded", f"delete from boathook.attempt where event_id = {RETRIED} and number = 1"),
    "ended attempts miscounted": ("attempts of ended deliveries are recorded", f"update boathook.delivery_archive set attempts = 5 where event_id = {GOOD}"),
    "a stray attempt": ("no attempt without its delivery", f"insert into boathook.attempt values ({GOOD}, 9, 1, 'failed', null, null, null, 'w', now(), now())"),
    "a false success": ("successes have a succeeded attempt", f"update boathook.attempt set outcome = 'failed' where event_id = {GOOD}"),
    "a doubled effect": ("no attempt after the final one", f"update boathook.attempt set outcome = 'succeeded' where event_id = {RETRIED} and number = 1"),
    "a success that is dead": ("no attempt after the final one", f"update boathook.attempt set outcome = 'succeeded' where event_id = {DEAD}"),
    "ignored by nobody": ("ignored deliveries have a decision", "delete from boathook.audit where action = 'dead.ignore'"),
    "a false ignored": ("ignored deliveries have a decision", f"update boathook.delivery_archive set state = 'ignored', note = 'x' where event_id = {GOOD}"),
    "a state that is none": ("open deliveries are in a valid state", UNCHECKED + f"update boathook.delivery set state = 'lost' where event_id = {PENDING}"),
    "a lease without holder": ("open deliveries are in a valid state", UNCHECKED + f"update boathook.delivery set leased_by = null where event_id = {LEASED}"),
    "a lease without attempt": ("open deliveries are in a valid state", UNCHECKED + f"update boathook.delivery set attempts = 0 where event_id = {LEASED}"),
    "dead without a code": ("open deliveries are in a valid state", UNCHECKED + f"update boathook.delivery set code = null where event_id = {DEAD}"),
    "an outcome that is none": ("ended deliveries are in a valid state", UNCHECKED + f"update boathook.delivery_archive set state = 'done' where event_id = {GOOD}"),
    "an attempt that is none": ("ended deliveries are in a valid state", UNCHECKED + f"update boathook.attempt set outcome = 'odd' where event_id = {DEAD}"),
    "two leases of one order key": ("one lease per order key", """
        drop index boathook.delivery_one_lease_per_order_key;
        update boathook.delivery set state = 'leased', is_blocked = false, attempts = 1, fence = 1, leased_by = 'w', lease_until = now()
        where order_key = 'c1'"""),
    "a line without head": ("every order key has an unblocked delivery", """
        update boathook.delivery set state = 'pending', is_blocked = true, leased_by = null, lease_until = null,
            enqueued_at = now() - interval '1 hour'
        where order_key = 'c1'"""),
    "a forgotten event": ("every event has its dedup key", f"delete from boathook.dedup where event_id = {PENDING}"),
    "all forgotten": ("every event has its dedup key", "truncate boathook.dedup"),
    "a key of nothing": ("every dedup key has its event", f"insert into boathook.dedup values (gen_random_uuid(), null, {NOWHERE}, sha256(''), now())"),
    "an event with two keys": ("one dedup key per event", f"insert into boathook.dedup values (gen_random_uuid(), null, {GOOD}, sha256('{{}}'), now())"),
    "a key of another body": ("dedup keys match the body", f"update boathook.dedup set body_sha256 = sha256('x') where event_id = {GOOD}"),
    "a replay of what was never owed": ("replays refer to original deliveries", f"update boathook.delivery set recipient = 'z', is_replay = true, ordinal = 7 where event_id = {PENDING} and ordinal = 1"),
    "an item of a whole event": ("deliveries refer to items of their event", f"update boathook.delivery set item_path = 'a', item_type = 't' where event_id = {PENDING}"),
    "the whole of an event of items": ("deliveries refer to items of their event", f"update boathook.dedup set item_path = 'a' where event_id = {PENDING}"),
    "all attempts lost": ("attempts of ended deliveries are recorded", "truncate boathook.attempt"),
    "all outcomes lost": ("every delivery exists", "truncate boathook.delivery_archive"),
    "all events lost": ("no record without its event", "truncate boathook.event"),
    "a purge that was none": ("every delivery exists", "update boathook.audit set subject = 'dlv_x' where action = 'dead.purge'"),
    "a decision for another": ("ignored deliveries have a decision", "update boathook.audit set subject = 'dlv_x' where action = 'dead.ignore'"),
    "a key that another event bears": ("every event has its dedup key", f"update boathook.dedup set event_id = {PENDING} where event_id = {GOOD}"),
    "a conflict with nothing": ("conflicts differ from their event", f"update boathook.conflict set event_id = {NOWHERE}"),
    "a conflict that is none": ("conflicts differ from their event", "update boathook.conflict set body_sha256 = sha256('{}')"),
    "a conflict accepted as nothing": ("accepted conflicts have their event", f"update boathook.conflict set accepted_as = {NOWHERE}"),
    "a rejection accepted as nothing": ("accepted rejections have their event", f"update boathook.rejection set event_id = {NOWHERE}"),
    "a rejection of another source": ("accepted rejections have their event", "update boathook.rejection set source = 'github'"),
    "a row of the audit changed": ("the audit log is unchanged", SEALED + "update boathook.audit set actor = 'nobody' where id = (select min(id) from boathook.audit)"),
    "a row of the audit taken out": ("the audit log is unchanged", SEALED + "delete from boathook.audit where sealed_as = 2"),
    "a row of the audit put in": ("the audit log is unchanged", SEALED + """
        insert into boathook.audit (actor, action, subject, sealed_as, seal)
        select 'nobody', 'event.replay', 'evt_x', max(sealed_as) + 1, sha256('x') from boathook.audit"""),
    "the first row of the audit taken out": ("the audit log is unchanged", SEALED + "delete from boathook.audit where sealed_as = 1"),
    "a purge not counted": ("purges are counted", "delete from boathook.purge_log"),
    "a purge counted twice": ("purges are counted", "insert into boathook.purge_log (kind, reason, dropped) values ('dead letter', 'purged', 1)"),
    "a constraint dropped": ("the schema's constraints exist", "alter table boathook.delivery drop constraint delivery_lease_complete"),
    "an index dropped": ("the schema's constraints exist", "drop index boathook.dedup_replay_key"),
    "a trigger switched off": ("the schema's constraints exist", "alter table boathook.route disable trigger route_changed"),
    "a body changed": ("bodies match their hashes", f"update boathook.event set body = 'x' where id = {GOOD}"),
    "a conflicting body changed": ("conflicting bodies match their hashes", "update boathook.conflict set body = 'x'"),
}  # fmt: skip

WAITING, RESENT, OLD_ONE = (EVENT.format(key) for key in ("waiting", "resent", "old"))
MESSAGES = {
    "another's endpoint": ("endpoints get their own application's events", f"update boathook.event set application = 'nobody' where id = {WAITING}"),
    "another's endpoint, long ago": ("endpoints get their own application's events", f"update boathook.event set application = 'nobody' where id = {RESENT}"),
    "an endpoint that never was": ("endpoints get their own application's events", "delete from boathook.endpoint"),
    "an application that never was": ("every event's application exists", f"update boathook.event set application = 'app_{'0' * 27}' where id = {WAITING}"),
    "content that is still there": ("expunged content is empty", f"update boathook.event set body = 'x' where id = {OLD_ONE}"),
    "a body lost without a mark": ("bodies match their hashes", f"update boathook.event set body = '' where id = {WAITING}"),
    "a message of its own id forgotten": ("every event has its dedup key", f"delete from boathook.dedup where event_id = {WAITING}"),
    "overtaken by nothing": ("ignored deliveries have a decision", "delete from boathook.audit where action = 'delivery.overtake'"),
    "two of one uid": ("the schema's constraints exist", "drop index boathook.application_uid"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
async def test_every_breakage_of_messages_is_found(store: Store, name: str):
    await sent(store)
    check, sql = MESSAGES[name]
    await store.db.execute(sql)
    assert check in {imbalance.check for imbalance in (await store.verify(is_deep=True)).violations}


@pytest.mark.parametrize("name", BREAKAGES)
@pytest.mark.usefixtures("tiny")
async def test_every_breakage_is_found(store: Store, name: str):
    check, sql = BREAKAGES[name]
    await store.db.execute(sql)
    found = await store.verify(is_deep=True)
    broken = {imbalance.check: imbalance for imbalance in found.violations}
    assert check in broken, f"found only {list(broken)}"
    assert broken[check].count >= 1
    assert 1 <= len(broken[check].examples) <= 5
    assert all(example.expected and example.found for example in broken[check].examples)
    assert broken[check].meaning.endswith(".")
    assert broken[check].remedy.endswith(".")


def test_every_rule_is_broken_in_more_than_forty_ways_in_all():
    ways = [*BREAKAGES.values(), *MESSAGES.values()]
    assert len(ways) > 40
    assert {check for check, _ in ways} == {rule.title for rule in invariants.INVARIANTS}
    assert len({rule.title for rule in invariants.INVARIANTS}) == len(invariants.INVARIANTS)


async def test_a_key_may_outlive_its_event_after_retention(store: Store):
    event = await event_of(store, "good")
    for table in (
        "event where id",
        "delivery_archive where event_id",
        "attempt where event_id",
        "conflict where event_id",
    ):
        await store.db.execute(f"delete from boathook.{table} = $1", event)
    assert {found.check for found in (await store.verify()).violations} == {"every dedup key has its event"}
    await store.db.execute("insert into boathook.purge_log (kind, reason, dropped) values ('event', 'age', 1)")
    assert (await store.verify()).is_consistent


async def test_an_expired_key_may_be_missing(store: Store):
    event = await event_of(store, "nobody")
    await store.db.execute("delete from boathook.dedup where event_id = $1", event)
    await store.db.execute("update boathook.event set accepted_at = now() - interval '31 days' where id = $1", event)
    assert (await store.verify()).is_consistent
    assert not (await integrity.check_integrity(store.db, dedup_days=60)).is_consistent
    await store.db.execute("insert into boathook.purge_log (kind, reason, dropped) values ('dedup', 'age', 1)")
    assert (await integrity.check_integrity(store.db, dedup_days=60)).is_consistent, (
        "raising the days revives no dropped key"
    )
    assert (await integrity.check_integrity(store.db, dedup_days=60, dedup_days_of={"stripe": 2.0})).is_consistent
