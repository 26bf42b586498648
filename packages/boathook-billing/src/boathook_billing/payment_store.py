"""Stores payments and subscriptions; each function runs in its caller's transaction.

Rows are always locked in one order, to avoid deadlocks: a payment before its related rows, and payments by id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from boathook import Event, Transaction
from boathook_app_tools.statements import load_statements
from boathook_billing.payload import Notice, Status
from boathook_billing.rules import Payment, Problem, Shop

SQL: Final = load_statements(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPayment:
    """A payment after a notice of it was stored."""

    payment: Payment
    status_before: Status | None
    """The status before this event, however often the event is handled; None if the payment was unknown."""
    problem_before: Problem | None
    was_late: bool

    @property
    def is_released(self) -> bool:
        """Whether it had a problem until this event, and can be applied now."""
        return self.problem_before is not None and self.payment.problem is None


async def store(
    tx: Transaction, provider: str, event: Event, notice: Notice, shop: Shop, late: timedelta
) -> StoredPayment:
    """Store a notice and return its payment, which stays locked; repeated calls change nothing."""
    row, is_new = await _lock(tx, provider, notice)
    former_status = None if is_new else Status(row["status"])
    await tx.execute(SQL["add_event"], event.id, row["id"], notice.status, former_status, event.accepted_at)
    before = _payment(row)
    is_newer = former_status is None or notice.status.rank > former_status.rank
    facts = combine(
        row, notice, is_newer=is_newer, is_correction=former_status is notice.status and not shop.can_apply(before)
    )
    is_late = facts.is_newer and notice.is_late(event.accepted_at, late)
    payment = replace(before, **facts.changes, is_late=before.is_late or is_late)
    # Only a payment that is paid and fits is linked; before that the e-mail may still change.
    is_final = payment.status.rank >= Status.SUCCEEDED.rank and shop.can_apply(payment)
    if payment.user_id is None and payment.email is not None and is_final:
        payment = replace(payment, user_id=await tx.fetchval(SQL["find_user"], payment.email))
    payment = replace(payment, problem=shop.problem_of(payment))
    paid_at = facts.paid_at
    if paid_at is None and payment.status is Status.SUCCEEDED:
        paid_at = event.accepted_at
    await _save(tx, payment, paid_at)
    status_before = await tx.fetchval(SQL["status_before"], event.id)
    return StoredPayment(
        payment=payment,
        status_before=status_before and Status(status_before),
        problem_before=before.problem,
        was_late=before.is_late,
    )


async def _lock(tx: Transaction, provider: str, notice: Notice) -> tuple[Mapping[str, Any], bool]:
    """Return the payment's row, locked, and whether it was just created."""
    if row := await tx.fetchrow(SQL["lock_payment"], provider, notice.external_payment_id):
        return dict(row), False
    is_new = await tx.fetchval(SQL["add_payment"], provider, notice.external_payment_id, notice.status) is not None
    row = await tx.fetchrow(SQL["lock_payment"], provider, notice.external_payment_id)
    assert row is not None, "a payment that was just inserted or found must exist"
    return dict(row), is_new


@dataclass(frozen=True, slots=True)
class PaymentChanges:
    """The changes of a payment by a notice."""

    is_newer: bool
    changes: Mapping[str, Any]
    paid_at: datetime | None


def combine(row: Mapping[str, Any], notice: Notice, *, is_newer: bool, is_correction: bool = False) -> PaymentChanges:
    """Merge a notice into a payment: a new success overrides known values, other notices fill only missing ones.

    Args:
        row: the payment.
        notice: the notice.
        is_newer: whether its status is a later one than the payment's.
        is_correction: whether it repeats the status of a payment that fits no plan. One that fits is not overridden,
            so that the result does not depend on the order of the events.
    """
    wins = (is_newer or is_correction) and notice.status is Status.SUCCEEDED
    reported = {name: getattr(notice, name) for name in ("email", "plan_id", "amount", "currency", "paid_at")}
    # A link made by hand is kept.
    wins_email = wins and row["user_id"] is None
    merged = {
        name: _first(value, row[name]) if (wins_email if name == "email" else wins) else _first(row[name], value)
        for name, value in reported.items()
    }
    paid_at = merged.pop("paid_at")
    return PaymentChanges(is_newer, {**merged, **({"status": notice.status} if is_newer else {})}, paid_at)


def _first(value: Any, other: Any) -> Any:
    return other if value is None else value


def _payment(row: Mapping[str, Any]) -> Payment:
    names = (
        "id", "provider", "user_id", "email", "plan_id", "amount", "currency", "is_late", "is_applied", "is_reversed",
    )  # fmt: skip
    problem = row["problem"]
    return Payment(
        **{name: row[name] for name in names}, status=Status(row["status"]), problem=problem and Problem(problem)
    )


async def _save(tx: Transaction, payment: Payment, paid_at: datetime | None) -> None:
    await tx.execute(
        SQL["save_payment"], payment.id, payment.status, payment.user_id, payment.email, payment.plan_id,
        payment.amount, payment.currency, paid_at, payment.is_late, payment.problem,
    )  # fmt: skip


async def update_problem(tx: Transaction, payment_id: int, shop: Shop) -> tuple[Payment, Problem | None]:
    """Store why a payment is not applied, by the current plans; return it, locked, and the previous problem.

    The handler that detects a final problem dead-letters its delivery, which rolls back everything it wrote.
    """
    row = await tx.fetchrow(SQL["lock_known"], payment_id)
    assert row is not None, "payments are never deleted"
    before = _payment(dict(row))
    problem = shop.problem_of(before)
    if problem is None or problem.is_waiting:
        return before, before.problem
    await tx.execute(SQL["save_problem"], payment_id, problem)
    return replace(before, problem=problem), before.problem


async def period_end(tx: Transaction, payment: Payment) -> datetime | None:
    """Return when the subscription of a payment's user ends, and leave it locked."""
    end: datetime | None = await tx.fetchval(SQL["lock_period"], payment.user_id)
    return end


async def extend(tx: Transaction, payment: Payment, days: int, plan_id: str) -> datetime | None:
    """Apply a payment to its user's subscription and return its new end; None if it was already applied."""
    row = await tx.fetchrow(SQL["extend"], payment.id, days, plan_id)
    if row is None:
        return None
    await tx.execute(SQL["note_subscription"], payment.id, row["id"], row["active_since"])
    end: datetime = row["current_period_end"]
    return end


async def reverse(tx: Transaction, payment: Payment) -> datetime | None:
    """Revert what a payment added and return the subscription's new end; None if there is nothing to revert.

    Days that were used up before the current uninterrupted period began are not deducted from later payments.
    """
    end: datetime | None = await tx.fetchval(SQL["reverse"], payment.id)
    return end


async def waiting_events(tx: Transaction, payment_id: int) -> list[UUID]:
    """Return the events whose deliveries may wait for data that a payment lacks."""
    rows = await tx.fetch(
        "select event_id from billing.payment_events where payment_id = $1 and status = 'SUCCEEDED' order by event_id",
        payment_id,
    )
    return [row["event_id"] for row in rows]
