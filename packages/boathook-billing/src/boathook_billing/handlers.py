"""Handles each event twice: `record` stores its payment, `apply` changes the subscription.

They are two deliveries of one event. While `apply` has to wait, its writes are rolled back, but the payment must be
stored anyway; `record` does that separately. They run in any order.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from boathook import Dead, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook_billing import dunning, metrics, payment_store, receipts
from boathook_billing.app import CONFIRMED, IMPORTED, SOURCE, STAFF, hook, provider_of, read, settings, shop
from boathook_billing.event_log import Attempt
from boathook_billing.payload import Notice, Status
from boathook_billing.payment_store import StoredPayment
from boathook_billing.rules import Blocked, Extend, NoChange, Payment, Problem, Reverse, Verdict

DAY_S: Final = 86_400.0
PAYMENT_RETRY: Final = RetryPolicy(
    first_s=5.0, factor=2.0, max_delay_s=DAY_S / 4, max_attempts=200, max_age_s=30 * DAY_S
)
"""A user may register weeks after paying; a waiting event is also woken as soon as the user exists."""

Outcome = Ignore | Retry | Dead | None


@hook.on(SOURCE, retry=PAYMENT_RETRY)
@hook.on(application=IMPORTED)
@hook.on(application=CONFIRMED)
@hook.on(application=STAFF)
async def record(event: Event, tx: Transaction) -> Ignore | None:
    """Store the payment, even with errors, and wake its other events if this one helps them."""
    try:
        notice = read(event)
    except ValueError as error:
        return Ignore(f"BROKEN_PAYLOAD: {error}")
    stored_payment = await _store(event, tx, notice)
    _count_findings(stored_payment)
    if notice.status is Status.FAILED:
        await dunning.report_failure(tx, stored_payment, notice.external_payment_id)
    await receipts.arrange(tx, event, notice, stored_payment.payment)
    if stored_payment.is_released or notice.status is Status.REFUNDED:
        await wake(tx, stored_payment.payment.id)
    return None


@hook.on(SOURCE, retry=PAYMENT_RETRY)
@hook.on(application=IMPORTED)
@hook.on(application=CONFIRMED)
@hook.on(application=STAFF)
async def apply(event: Event, tx: Transaction) -> Outcome:
    """Extend the subscription once for a successful payment, or revert a refunded one."""
    provider = provider_of(event)
    attempt = Attempt(event=event, started=time.perf_counter())
    async with _measured(attempt, provider):
        try:
            notice = attempt.notice = read(event)
        except ValueError as error:
            attempt.log_failure("refused", "BROKEN_PAYLOAD", str(error))
            return Dead("BROKEN_PAYLOAD", str(error))
        stored_payment = attempt.stored = await _store(event, tx, notice)
        verdict = shop().decide(notice, stored_payment.payment)
        before = attempt.end_before = await payment_store.period_end(tx, stored_payment.payment)
        after = await _carry_out(tx, stored_payment, verdict, before)
        # Of a payment that has become right since it was recorded, and of a refund: for a payment that is stored as
        # refunded and has no receipt of that, a success that comes next would request one of the whole amount.
        if isinstance(verdict, Extend) or notice.status is Status.REFUNDED:
            await receipts.arrange(tx, event, notice, stored_payment.payment)
        attempt.log_verdict(verdict, after)
        return _outcome(event, stored_payment, verdict, provider)


async def wake(tx: Transaction, payment_id: int) -> None:
    """Wake all events that wait for data of a payment or died for want of it, when *tx* commits."""
    for event_id in await payment_store.waiting_events(tx, payment_id):
        await hook.operations.wake(tx, event_id)


async def resume(tx: Transaction, payment_id: int) -> None:
    """Wake the events of a payment whose user exists now; record a problem that is final by the current plans."""
    payment, problem_before = await payment_store.update_problem(tx, payment_id, shop())
    _count_problem(payment, problem_before)
    await wake(tx, payment_id)


async def _store(event: Event, tx: Transaction, notice: Notice) -> StoredPayment:
    late = timedelta(hours=settings().late_after_hours)
    return await payment_store.store(tx, provider_of(event), event, notice, shop(), late)


async def _carry_out(
    tx: Transaction, stored_payment: StoredPayment, verdict: Verdict, before: datetime | None
) -> datetime | None:
    """Carry out the verdict and return the subscription's new end."""
    match verdict:
        case Extend(plan=plan):
            end = await payment_store.extend(tx, stored_payment.payment, plan.days, plan.id)
            assert end is not None, "the payment is locked and was not applied, so the guard cannot be shut"
            await dunning.plan_of_user(tx, stored_payment.payment.user_id)
            if stored_payment.is_released:
                await wake(tx, stored_payment.payment.id)
            return end
        case Reverse():
            end = await payment_store.reverse(tx, stored_payment.payment)
            await dunning.plan_of_user(tx, stored_payment.payment.user_id)
            return end
        case NoChange() | Blocked():
            return before
        case _:
            assert_never(verdict)


def _outcome(event: Event, stored_payment: StoredPayment, verdict: Verdict, provider: str) -> Outcome:
    match verdict:
        case Extend() | Reverse():
            is_applied = isinstance(verdict, Extend)
            _count_end(event, provider, "applied" if is_applied else "reversed")
            if is_applied and (event.attempt > 1 or stored_payment.problem_before is not None):
                metrics.recovered.add(provider=provider)
            return None
        case NoChange(reason=reason):
            _count_end(event, provider, "ignored")
            return Ignore(reason)
        case Blocked(problem=problem) if problem.is_waiting:
            metrics.failed_retryable.add(provider=provider, code=problem)
            return Retry(code=problem)
        case Blocked(problem=problem, note=note):
            return Dead(problem, note)
        case _:
            assert_never(verdict)


def _count_end(event: Event, provider: str, result: str) -> None:
    metrics.processed.add(provider=provider, result=result)
    metrics.lag.observe((datetime.now(UTC) - event.accepted_at).total_seconds(), provider=provider)


def _count_findings(stored_payment: StoredPayment) -> None:
    """Count problems of a payment exactly once; only `record` is certain to commit."""
    if stored_payment.payment.is_late and not stored_payment.was_late:
        metrics.late.add(provider=stored_payment.payment.provider)
    _count_problem(stored_payment.payment, stored_payment.problem_before)


def _count_problem(payment: Payment, before: Problem | None) -> None:
    provider = payment.provider
    if payment.problem is None or payment.problem is before:
        return
    if payment.problem.is_waiting:
        metrics.unlinked.add(provider=provider, problem=payment.problem)
    if payment.problem is Problem.AMOUNT_MISMATCH:
        metrics.mismatched.add(provider=provider)
        hook.log.error("payment_amount_mismatch", provider=provider, payment_id=payment.id, plan_id=payment.plan_id)


@asynccontextmanager
async def _measured(attempt: Attempt, provider: str) -> AsyncIterator[None]:
    try:
        yield
    except Exception as error:
        metrics.failed_retryable.add(provider=provider, code=type(error).__name__)
        attempt.log_failure("failed", type(error).__name__, str(error))
        raise
    finally:
        metrics.duration.observe(attempt.duration_s, provider=provider)
