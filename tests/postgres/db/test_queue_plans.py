"""Plans of the queue's statements stay cheap in a burst, whatever PostgreSQL believes about the size of the queue.

Nothing here is timed: the rows that plans touch are counted, as PostgreSQL's `auto_explain` reports them.
"""

import contextlib
import importlib
import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import boathook.db
from boathook.db import deliveries
from boathook.db.connection import SafeConnection
from boathook.db.database import Database
from boathook.db.deliveries import ClaimLimit, DeliveryStore, FailedAttempt
from boathook.db.endpoint_deliveries import (
    ClaimedEndpointDelivery,
    EndpointClaimLimit,
    EndpointDeliveryStore,
    FinishedEndpointDelivery,
    dead_letter_undeliverable,
)
from boathook.db.sql_functions import SETTLE
from boathook.domain.policy import Complete, RetryAt, RetryDefaults
from boathook.service.unit_of_work import new_id
from tests.sender_harness import StoredEndpoint, add_deliveries, add_endpoint

STATES: Final = {
    "never analyzed": "",
    "emptied": "vacuum analyze boathook.delivery",
    "analyzed full": "{fill}; vacuum analyze boathook.delivery; delete from boathook.delivery",
    "pages without rows": "{fill}; delete from boathook.delivery; vacuum (truncate false, analyze) boathook.delivery",
}
_FILL: Final = """insert into boathook.delivery (event_id, ordinal, recipient)
    select gen_random_uuid(), 0, 'endpoint:' || n % 20 from generate_series(1, 5000) as n"""
BURST: Final = 400
ENDPOINTS: Final = 20
MAX_ROWS: Final = 150
"""Rows that a statement may touch for each delivery. A failed one is looked up among the failures of its batch."""

QUEUE: Final = ("deliveries", "endpoint_deliveries")
"""Modules whose statements senders, workers and the keeper run; each statement is measured."""
WHOLE: Final = {
    "deliveries.count_backlog": "counts the whole queue by intent",
    "maintenance.is_week_pending": "a range of a week",
    "maintenance.pick_old_events": "one event after the other, each with a lookup by key",
    "maintenance.delete_events": "as above",
    "maintenance.pick_expired_content": "as above",
    "maintenance.expunge_content": "as above",
    "alerts.count_causes": "bounded by its own limits",
    "alerts.count_dead": "as above",
    "alerts.list_open": "one lookup in an index for each alert about a cause",
    "alerts.list_ended": "as above",
    "alerts.take_notices": "as above",
}
"""Further statements of the keeper."""
OPERATORS: Final = {
    "attempts", "cells", "dead_letter_groups", "delivery_commands", "endpoints", "health", "integrity", "messages",
    "replies", "rerouting", "resends", "endpoint_stats", "event_chain", "event_feed", "event_history", "event_search", "id_prefixes",
    "listings", "summaries",
}  # fmt: skip
"""Modules whose statements operators, the API and the integrity check run."""
_TABLE: Final = re.compile(r"\bboathook\.delivery\b(?!_)")


def statements() -> dict[str, str]:
    """Return every statement of boathook that names the table of deliveries."""
    found = {}
    root = Path(boathook.db.__file__).parent
    for path in sorted(root.rglob("*.sql")):
        if path.parent.name in {"migrations", "functions"} or not _TABLE.search(path.read_text()):
            continue
        name = ".".join(["boathook.db", *path.relative_to(root).with_suffix("").parts])
        for key, sql in importlib.import_module(name).SQL.items():
            if _TABLE.search(sql):
                found[f"{path.stem}.{key}"] = sql
    return found


class Touched:
    """Counts the rows that the plans of statements have touched, by the lines of `auto_explain`."""

    def __init__(self) -> None:
        self.rows = 0.0
        self.seen: set[str] = set()
        """The texts of all statements."""
        self.worst: dict[str, float] = {}
        """Rows for each delivery, by step."""

    def read(self, message: str) -> None:
        """Take one line of PostgreSQL's log."""
        _, marked, plan = message.partition("plan:\n")
        if marked:
            explained = json.loads(plan)
            self.seen.add(explained["Query Text"])
            self.rows += rows_of(explained["Plan"])

    @contextlib.contextmanager
    def step(self, name: str, number: int) -> Iterator[None]:
        """Count the rows of one step with *number* deliveries."""
        before = self.rows
        yield
        self.worst[name] = max(self.worst.get(name, 0), (self.rows - before) / number)


def rows_of(node: Mapping[str, Any]) -> float:
    """Return the rows that a plan's nodes returned or removed."""
    removed = sum(value for key, value in node.items() if key.startswith("Rows Removed"))
    return node["Actual Loops"] * (node["Actual Rows"] + removed) + sum(map(rows_of, node.get("Plans", ())))


@contextlib.asynccontextmanager
async def explained(database: Database) -> AsyncIterator[Database]:
    """Let a pool's only connection explain each statement to its client."""
    async with database.acquire() as connection:
        await connection.execute("""
            load 'auto_explain';
            set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on; set auto_explain.log_timing = off;
            set auto_explain.log_format = json; set auto_explain.log_nested_statements = on; set client_min_messages = log
        """)
    try:
        yield database
    finally:
        await database.close()


class Burst:
    """The queue of one database, and all that is done with its deliveries."""

    def __init__(self, db: Database, queue: Database, keeper: Database, touched: Touched) -> None:
        self.db, self.queue, self.keeper, self.touched = db, queue, keeper, touched
        self.sending = EndpointDeliveryStore(queue, worker="w")
        retries = RetryDefaults()
        self.handling, self.keeping = DeliveryStore(queue, retries), DeliveryStore(keeper, retries)
        self.endpoints: list[StoredEndpoint] = []

    async def run(self, number: int) -> None:
        """Do everything once with *number* deliveries."""
        await self.send(number)
        await self.handle(number)
        await self.keep(number)
        await self.db.execute("delete from boathook.delivery")

    async def store(self, number: int) -> list[uuid.UUID]:
        """Store at least *number* due deliveries to each kind of recipient, in turn to each of twenty."""
        chosen = self.endpoints[: min(number, ENDPOINTS)]
        return await add_deliveries(self.db, chosen, max(1, number // ENDPOINTS), is_announced=False)

    async def claim(self, number: int) -> list[ClaimedEndpointDelivery]:
        each = max(1, number // ENDPOINTS)
        limits = [EndpointClaimLimit(one.recipient, each, endpoint_id=one.id) for one in self.endpoints]
        return await self.sending.claim(limits, lease_s=60.0)

    async def send(self, number: int) -> None:
        for _ in range(5 if number > 1 else 1):
            await self.store(number)
        step = self.touched.step
        with step("find due of", number):
            await self.sending.find_due_of([one.recipient for one in self.endpoints])
        with step("find due", number):
            await self.sending.find_due("", 500)
        with step("claim", number):
            claimed = await self.claim(number)
        assert len(claimed) == number
        with step("renew", number):
            assert not await self.handling.renew(claimed, lease_s=60.0)
        with step("release", number):
            await self.handling.release_claims(claimed)
        claimed = await self.claim(number)
        with step("settle", number):
            assert all(await self.sending.settle([finish(one, place) for place, one in enumerate(claimed)]))
        by_hand = [finish(one, 0, is_manual=True) for one in await self.claim(number)]
        # Each message has other deliveries to the same endpoint, which it overtakes.
        await self.db.execute("""
            insert into boathook.delivery (event_id, ordinal, recipient)
            select event_id, ordinal + 200, recipient from boathook.delivery where state = 'leased'
        """)
        if by_hand:
            with step("settle by hand", number):
                assert all(await self.sending.settle(by_hand))

    async def handle(self, number: int) -> None:
        """Run handlers, half of whose deliveries are ordered."""
        events = await self.store(number)
        await self.db.execute(
            "insert into boathook.delivery (event_id, ordinal, recipient, order_key)"
            " select event_id, ordinal + 400, 'handler:h' || ordinal % 20, case when ordinal % 2 = 0 then event_id::text end"
            " from boathook.delivery where event_id = any ($1::uuid[])",
            events,
        )
        limits = [ClaimLimit(f"handler:h{n}", max(1, number // ENDPOINTS)) for n in range(ENDPOINTS)]
        limits.append(ClaimLimit("handler:limited", 1, maximum=1))
        step = self.touched.step
        with step("claim for handlers", number):
            claims = [one.claim for one in await self.handling.claim(limits, worker="w", lease_s=60.0)]
        assert len(claims) == number
        with step("effects", number):
            await self.handling.find_side_effect(claims[0], "mail")
            await self.handling.commit_outcome(claims[0])
        half = (number + 1) // 2
        with step("record failures", number):
            decision = RetryAt(datetime.now(UTC), "E", "error")
            ended = [FailedAttempt(one, decision, "retry", None, "w", datetime.now(UTC)) for one in claims[:half]]
            assert all(await self.handling.record_failed_attempts(ended))
        with step("settle in a handler's transaction", number):
            for one in claims[half:]:
                arguments = deliveries.settle_arguments(
                    one, Complete(), worker="w", started_at=datetime.now(UTC), mark="m"
                )
                async with self.keeper.transaction() as connection:
                    await connection.execute("set local boathook.mark = 'm'")
                    await connection.execute(SETTLE.sql(lambda place: f"${place}"), *arguments)

    async def keep(self, number: int) -> None:
        """Do what the keeper does."""
        await self.store(number)
        await self.claim(number)
        step = self.touched.step
        with step("reap", number):
            await self.keeping.reap(dead_workers=["w"])
        with step("unblock", number):
            await self.keeping.unblock()
        await self.wait(number)
        await self.db.execute(
            "update boathook.endpoint set is_disabled = true, disabled_because = 'manual', disabled_at = now()"
        )
        with step("dead-letter", number):
            assert await dead_letter_undeliverable(self.keeper, max_age_s=-1.0, limit=number) >= number
        await self.db.execute(
            "update boathook.endpoint set is_disabled = false, disabled_because = null, disabled_at = null"
        )

    async def wait(self, number: int) -> None:
        """Signal what deliveries have begun to wait for meanwhile."""
        await self.db.execute("truncate boathook.delivery_wait, boathook.wait_signal")
        await self.db.execute(
            "insert into boathook.delivery_wait (event_id, ordinal, key, attempts, snapshot)"
            " select event_id, ordinal, event_id::text || ordinal, attempts, pg_current_snapshot()"
            " from boathook.delivery where state = 'pending' order by seq limit $1",
            number,
        )
        await self.db.execute("update boathook.delivery set due_at = now() + interval '1 day' where state = 'pending'")
        await self.db.execute("insert into boathook.wait_signal (key) select key from boathook.delivery_wait")
        with self.touched.step("match signals", number):
            assert await self.keeping.match_signals() == number
        with self.touched.step("drop signals", number):
            await self.keeping.drop_signals()


def finish(delivery: ClaimedEndpointDelivery, place: int, *, is_manual: bool = False) -> FinishedEndpointDelivery:
    """End an attempt: three of four succeed."""
    decisions = (RetryAt(datetime.now(UTC) + timedelta(hours=1), "E", "error"), Complete(), Complete(), Complete())
    decision = Complete() if is_manual else decisions[place % 4]
    if is_manual:
        delivery = ClaimedEndpointDelivery(
            **{name: getattr(delivery, name) for name in delivery.__struct_fields__} | {"is_manual": True}
        )
    return FinishedEndpointDelivery(
        delivery, decision, new_id(), "https://example.com", 204, 1, None, None, datetime.now(UTC)
    )


@pytest.fixture
async def burst(db: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Burst]:
    """A queue whose statements are explained."""
    touched = Touched()
    monkeypatch.setattr(
        SafeConnection, "_process_log_message", lambda _self, fields, _query: touched.read(fields.get("M", ""))
    )
    queue = await Database.open(db.url, purpose="sender", size=1, is_reset=False, is_queue=True)
    keeper = await Database.open(db.url, purpose="keeper", size=1, is_reset=False)
    async with explained(queue), explained(keeper):
        one = Burst(db, queue, keeper, touched)
        for _ in range(ENDPOINTS):
            one.endpoints.append(await add_endpoint(db, "https://example.com", retry=None))
        yield one


async def _set_state(db: Database, state: str) -> None:
    await db.execute("truncate boathook.delivery")
    for sql in filter(None, STATES[state].format(fill=_FILL).split("; ")):
        await db.execute(sql)


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("state", STATES)
async def test_no_statement_touches_many_rows_for_one_delivery(burst: Burst, state: str, is_warm: bool):
    await _set_state(burst.db, state)
    if is_warm:
        for _ in range(8):
            await burst.run(1)
        burst.touched.worst.clear()
    await burst.run(BURST)
    assert {step: rows for step, rows in burst.touched.worst.items() if rows > MAX_ROWS} == {}
    ours = {name: sql for name, sql in statements().items() if name.split(".")[0] in QUEUE and name not in WHOLE}
    assert {name for name, sql in ours.items() if sql not in burst.touched.seen} == set()


@pytest.mark.parametrize("state", STATES)
async def test_renewing_ten_thousand_leases_touches_few_rows_of_each(burst: Burst, state: str):
    await _set_state(burst.db, state)
    leases = [(new_id(), 0, 1) for _ in range(10_000)]
    await burst.handling.renew([_Lease(*leases[0])], lease_s=60.0)  # the plan is made now, and kept
    await burst.db.execute(
        "insert into boathook.delivery (event_id, ordinal, recipient, state, attempts, fence, leased_by, lease_until)"
        " select id, 0, 'endpoint:e', 'leased', 1, 1, 'w', now() from unnest($1::uuid[]) as u (id)",
        [event for event, _, _ in leases],
    )
    with burst.touched.step("renew", len(leases)):
        assert not await burst.handling.renew([_Lease(*one) for one in leases], lease_s=60.0)
    assert burst.touched.worst["renew"] <= MAX_ROWS


class _Lease:
    def __init__(self, event_id: uuid.UUID, ordinal: int, fence: int) -> None:
        self.event_id, self.ordinal, self.fence = event_id, ordinal, fence


def test_every_statement_on_deliveries_is_measured_or_belongs_to_operators():
    owners = Counter(name.split(".")[0] for name in statements() if name not in WHOLE)
    assert owners.keys() - {*QUEUE, *OPERATORS} == set()
    assert WHOLE.keys() <= statements().keys()


def test_deliveries_are_changed_without_a_join(pg_url: str):
    """The planner would choose the method of a join for the size that it believes the queue to have."""
    changed = {
        name: sql for name, sql in statements().items() if re.search(r"(update|delete from) boathook\.delivery\b", sql)
    }
    assert len(changed) > 10
    with psycopg.connect(pg_url, autocommit=True) as connection:
        assert {name: kinds for name, sql in changed.items() if (kinds := _joins(connection, name, sql))} == {}


def _joins(connection: psycopg.Connection[Any], name: str, sql: str) -> set[str]:
    """Return the joins from which a statement takes the deliveries that it changes."""
    plan_name = name.replace(".", "_")
    connection.execute(f"prepare {plan_name} as {sql}".encode(), prepare=False)
    connection.execute("set plan_cache_mode = force_generic_plan")
    row = connection.execute(
        "select cardinality(parameter_types) from pg_prepared_statements where name = %s", [plan_name]
    ).fetchone()
    assert row is not None
    arguments = f"({', '.join(['null'] * row[0])})" if row[0] else ""
    plan = connection.execute(f"explain (format json) execute {plan_name}{arguments}".encode()).fetchone()
    assert plan is not None
    return {
        node["Node Type"]
        for change in _nodes(plan[0][0]["Plan"])
        if change["Node Type"] == "ModifyTable"
        and change["Relation Name"] == "delivery"
        and change["Operation"] != "Insert"
        for source in change["Plans"]
        if source.get("Parent Relationship") == "Outer"
        for node in _own_nodes(source)
        if "Join" in node["Node Type"] or node["Node Type"] == "Nested Loop"
    }


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _own_nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a plan except those of its subqueries."""
    yield node
    for child in node.get("Plans", ()):
        if child.get("Parent Relationship") not in {"InitPlan", "SubPlan"}:
            yield from _own_nodes(child)
