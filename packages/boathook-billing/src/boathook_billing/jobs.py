"""Periodic jobs."""

from typing import Final

from boathook import Transaction
from boathook_billing import metrics
from boathook_billing.app import hook, settings
from boathook_billing.handlers import resume
from boathook_billing.payload import Status
from boathook_billing.rules import Problem

WAKE_KNOWN: Final = """
    with due as (
        select payment.id from billing.payments as payment
        where payment.problem in ('USER_MISSING', 'UNLINKED_PAYMENT')
            and (payment.user_id is not null
                or exists (select from billing.users where lower(users.email) = lower(payment.email)))
            and payment.wakes < 20
            and (payment.woken_at is null
                or payment.woken_at + least(power(2, payment.wakes), 3600) * interval '1 second' <= now())
        order by payment.woken_at nulls first limit 500
        for update skip locked
    )
    update billing.payments as payment set wakes = wakes + 1, woken_at = now()
    from due where payment.id = due.id
    returning payment.id
"""
COUNT_STATUSES: Final = "select status, count(*) as n from billing.payments group by status"
COUNT_PROBLEMS: Final = """
    select problem, count(*) as n, extract(epoch from now() - min(created_at))::float8 as oldest_s
    from billing.payments where problem is not null group by problem
"""
COUNT_RECEIPTS: Final = """
    select state, count(*) as n, extract(epoch from now() - min(created_at))::float8 as oldest_s
    from billing.receipts group by state
"""
PUT_PLAN: Final = """
    insert into billing.plans as known (id, price, currency, days) values ($1, $2, $3, $4)
    on conflict (id) do update set price = excluded.price, currency = excluded.currency, days = excluded.days,
        is_offered = true, updated_at = now()
    where (known.price, known.currency, known.days, known.is_offered)
        is distinct from (excluded.price, excluded.currency, excluded.days, true)
"""
RETIRE_PLANS: Final = """
    update billing.plans set is_offered = false, updated_at = now() where is_offered and id <> all($1::text[])
"""


@hook.every(2.0)
async def wake_waiting() -> None:
    """Wake the events of payments whose user exists now, however the user was added.

    Failed wake-ups are repeated after increasing pauses: a running attempt cannot be woken, and an error unrelated to
    the user must not be retried every two seconds.
    """
    async with hook.transaction() as tx:
        for payment_id in sorted(row["id"] for row in await tx.fetch(WAKE_KNOWN)):
            await resume(tx, payment_id)


@hook.every(10.0)
async def measure() -> None:
    """Set the gauges of payments and problems."""
    metrics.begin()
    async with hook.transaction() as tx:
        statuses = {row["status"]: row["n"] for row in await tx.fetch(COUNT_STATUSES)}
        problems = {row["problem"]: row for row in await tx.fetch(COUNT_PROBLEMS)}
        receipts = {row["state"]: row for row in await tx.fetch(COUNT_RECEIPTS)}
    for state in ("PENDING", "DONE", "FAILED"):
        metrics.receipts.set(receipts[state]["n"] if state in receipts else 0, state=state)
    metrics.oldest_receipt.set(receipts["PENDING"]["oldest_s"] if "PENDING" in receipts else 0)
    for status in Status:
        metrics.payments.set(statuses.get(status, 0), status=status)
    for problem in Problem:
        row = problems.get(problem)
        metrics.waiting.set(row["n"] if row else 0, problem=problem)
        metrics.oldest_waiting.set(row["oldest_s"] if row else 0, problem=problem)


@hook.every(30.0)
async def copy_plans() -> None:
    """Synchronize the table of plans with the settings."""
    async with hook.transaction() as tx:
        await put_plans(tx)


async def put_plans(tx: Transaction) -> None:
    """Write the plans of the settings to their table."""
    offers = settings().offers
    for plan in offers:
        await tx.execute(PUT_PLAN, plan.id, plan.price, plan.currency, plan.days)
    await tx.execute(RETIRE_PLANS, [plan.id for plan in offers])
