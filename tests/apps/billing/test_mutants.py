"""The payment store's protection against concurrent copies, in one process, and what happens without it."""

import asyncio
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import asyncpg
import pytest

import boathook_billing
from boathook.db.included_migrations import expand
from boathook_billing import payment_store
from boathook_billing.payload import Notice, Status
from boathook_billing.rules import Extend, Shop
from boathook_billing.settings import Plan

MONTH = Plan(id="month", price=Decimal(990), currency="RUB", days=30)
SHOP = Shop((MONTH,), "RUB")
NOTICE = Notice(external_payment_id="p1", status=Status.SUCCEEDED, email="anna@example.com", plan_id="month")
FOLDER = Path(boathook_billing.__file__).parent


@dataclass(frozen=True)
class Fact:
    """The fields of an event that the payment store needs."""

    id: uuid.UUID
    accepted_at: datetime


@pytest.fixture
async def pool(empty_url):
    pool = await asyncpg.create_pool(empty_url, min_size=2, max_size=10)
    for file in sorted((FOLDER / "migrations").glob("*.sql")):
        await pool.execute(expand(file.read_text(), "billing", file.name))
    await pool.execute("insert into billing.users (email) values ('anna@example.com')")
    yield pool
    await pool.close()


async def apply_copies(pool: asyncpg.Pool, copies: int = 8) -> timedelta:
    """Apply copies of one success at the same time; return by how much the subscription was extended."""

    async def one() -> None:
        async with pool.acquire() as connection, connection.transaction():
            fact = Fact(uuid.uuid4(), datetime.now(UTC))
            told = await payment_store.store(connection, "tilda", fact, NOTICE, SHOP, timedelta(hours=24))
            await asyncio.sleep(0.02)
            if isinstance(SHOP.decide(NOTICE, told.payment), Extend):
                await payment_store.extend(connection, told.payment, 30, "month")

    started = datetime.now(UTC)
    await asyncio.gather(*(one() for _ in range(copies)))
    return await pool.fetchval("select current_period_end from billing.subscriptions") - started


async def test_concurrent_copies_extend_once(pool):
    assert await apply_copies(pool) < timedelta(days=31)


async def test_the_guard_alone_is_enough_where_nothing_is_locked(pool, monkeypatch):
    await apply_copies(pool, 1)
    monkeypatch.setitem(payment_store.SQL, "lock_payment", payment_store.SQL["lock_payment"].replace("for update", ""))
    payment = (await store_payment(pool)).payment
    assert await extend(pool, payment) is None


async def test_mutant_without_the_guard_a_payment_is_applied_again(pool, monkeypatch):
    await apply_copies(pool, 1)
    monkeypatch.setitem(
        payment_store.SQL, "extend", payment_store.SQL["extend"].replace("and subscription_applied_at is null", "")
    )
    payment = (await store_payment(pool)).payment
    before = await pool.fetchval("select current_period_end from billing.subscriptions")
    assert await extend(pool, payment) == before + timedelta(days=30)


async def test_mutant_without_guard_and_lock_concurrent_copies_extend_more_than_once(pool, monkeypatch):
    await store_payment(pool)
    monkeypatch.setitem(payment_store.SQL, "lock_payment", payment_store.SQL["lock_payment"].replace("for update", ""))
    monkeypatch.setitem(payment_store.SQL, "save_payment", "select $1::bigint, $2::text, $3::bigint, $4::text, $5::text, $6::numeric,"
                        " $7::text, $8::timestamptz, $9::boolean, $10::text")  # fmt: skip
    monkeypatch.setitem(
        payment_store.SQL, "extend", payment_store.SQL["extend"].replace("and subscription_applied_at is null", "")
    )
    await pool.execute("update billing.payments set user_id = 1")
    assert await apply_copies(pool) > timedelta(days=45)


async def store_payment(pool):
    async with pool.acquire() as connection, connection.transaction():
        fact = Fact(uuid.uuid4(), datetime.now(UTC))
        return await payment_store.store(connection, "tilda", fact, NOTICE, SHOP, timedelta(hours=24))


async def extend(pool, payment):
    async with pool.acquire() as connection, connection.transaction():
        return await payment_store.extend(connection, payment, 30, "month")


async def test_concurrent_refunds_are_reversed_once(pool):
    await apply_copies(pool, 1)
    payment = (await store_payment(pool)).payment
    refund = Notice(external_payment_id="p1", status=Status.REFUNDED)
    async with pool.acquire() as connection, connection.transaction():
        await payment_store.store(
            connection, "tilda", Fact(uuid.uuid4(), datetime.now(UTC)), refund, SHOP, timedelta(hours=24)
        )

    async def reverse():
        async with pool.acquire() as connection, connection.transaction():
            return await payment_store.reverse(connection, payment)

    delivery_state = await asyncio.gather(*(reverse() for _ in range(6)))
    assert [end for end in delivery_state if end is not None] == [
        await pool.fetchval("select current_period_end from billing.subscriptions")
    ]


@pytest.mark.parametrize(
    "row",
    [
        "status = 'PAID'",
        "subscription_applied_at = now()",
        "subscription_applied_at = now(), applied_days = 30, user_id = 1, status = 'FAILED', problem = null",
        "reversed_at = now()",
        "applied_days = 30",
        "subscription_id = subscription.id",
        "problem = 'BORED'",
        "status = 'FAILED', problem = 'USER_MISSING'",
        "amount = -1",
    ],
)
async def test_the_schema_refuses_rows_that_no_rule_leads_to(pool, row):
    await pool.execute(
        "insert into billing.payments (provider, external_payment_id, status, problem) values ('t', 'p', 'SUCCEEDED', 'USER_MISSING')"
    )
    await pool.execute(
        "insert into billing.subscriptions (user_id, current_period_end, active_since) values (1, now(), now())"
    )
    with pytest.raises(asyncpg.CheckViolationError):
        await pool.execute(f"update billing.payments set {row} from billing.subscriptions as subscription")


@pytest.mark.parametrize(
    ("index", "query"),
    [
        ("payments_user", "user_id = 1 order by created_at desc limit 10"),
        ("payments_status", "status = 'FAILED'"),
        ("payments_email", "lower(email) = lower('anna@example.com')"),
    ],
)
async def test_support_finds_payments_by_an_index(pool, index, query):
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("set local enable_seqscan = off; set local enable_sort = off")
        plan = await connection.fetch(f"explain select * from billing.payments where {query}")
    assert any(index in row[0] for row in plan), plan
