"""Periodic jobs."""

from typing import Final

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_billing import metrics
from boathook_billing.app import hook, settings
from boathook_billing.handlers import resume
from boathook_billing.payload import Status
from boathook_billing.rules import Problem

SQL: Final = load_statements(__file__)


@hook.every(2.0)
async def wake_waiting() -> None:
    """Wake the events of payments whose user exists now, however the user was added.

    Failed wake-ups are repeated after increasing pauses: a running attempt cannot be woken, and an error unrelated to
    the user must not be retried every two seconds.
    """
    async with hook.transaction() as tx:
        for payment_id in sorted(row["id"] for row in await tx.fetch(SQL["wake_known"])):
            await resume(tx, payment_id)


@hook.every(10.0)
async def measure() -> None:
    """Set the gauges of payments and problems."""
    metrics.begin()
    async with hook.transaction() as tx:
        statuses = {row["status"]: row["n"] for row in await tx.fetch(SQL["count_statuses"])}
        problems = {row["problem"]: row for row in await tx.fetch(SQL["count_problems"])}
        receipts = {row["state"]: row for row in await tx.fetch(SQL["count_receipts"])}
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
        await tx.execute(SQL["put_plan"], plan.id, plan.price, plan.currency, plan.days)
    await tx.execute(SQL["retire_plans"], [plan.id for plan in offers])
