"""Follows a subscription past the end of its period: reminders, days of grace, and its end, each once at its time.

The next step of a subscription is a scheduled delivery, planned a day ahead at most. A trigger of the table forgets the
plan whenever the period or the status changes, for example by a payment, so that a planned step is superseded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from boathook import Event, Ignore, RetryPolicy, Transaction
from boathook_app_tools.statements import load_statements
from boathook_app_tools.terminal import plain
from boathook_billing.app import STEPS, gettext, hook, settings
from boathook_billing.payload import Status
from boathook_billing.payment_store import StoredPayment
from boathook_billing.settings import DunningSettings

SQL: Final = load_statements(__file__)

HORIZON: Final = timedelta(days=1)
"""How long ahead a step is scheduled."""
STEP_RETRY: Final = RetryPolicy(max_attempts=500, max_age_s=30 * 86_400.0)
EVENT_TYPES: Final = {
    "subscription.reminder": "A subscription ends soon, or its period has ended without another payment.",
    "subscription.ended": "A subscription has ended.",
    "payment.failed": "A payment has failed.",
}

overdue = hook.alert("overdue", "{text}: {value}. {hint}", over_s=3_600.0)


@dataclass(frozen=True, slots=True)
class Step:
    """A reminder, or the end."""

    at: datetime
    days: float
    """After the end of the period; negative before it."""
    is_end: bool = False


def next_step(rules: DunningSettings, row: Mapping[str, Any]) -> Step | None:
    """Return the next step of a subscription; None if it has none, or has ended.

    A step that was due before the period was set is left out, except for the end.
    """
    end: datetime | None = row["current_period_end"]
    if row["status"] == "INACTIVE" or end is None:
        return None
    last = Step(access_until(rules, row), 0.0 if row["status"] == "CANCELED" else rules.grace_days, is_end=True)
    if row["status"] == "CANCELED":
        return last
    reminders = [Step(end + timedelta(days=days), days) for days in sorted(rules.reminder_days)]
    planned_until: datetime | None = row["done_until"]
    return next((step for step in reminders if planned_until is None or step.at > planned_until), last)


def access_until(rules: DunningSettings, row: Mapping[str, Any]) -> datetime:
    """Return until when the user of a subscription that has not ended has access; a canceled one has no grace."""
    end: datetime = row["current_period_end"]
    return end if row["status"] == "CANCELED" else end + timedelta(days=rules.grace_days)


async def plan(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Schedule the next step of a subscription, which is locked, if it is due within `HORIZON`."""
    rules = settings().dunning_rules
    step = next_step(rules, row)
    if step is None:
        await tx.execute(SQL["plan"], row["id"], row["access_until"], None, None)
        return
    is_near = step.at <= row["now"] + HORIZON
    await tx.execute(SQL["plan"], row["id"], access_until(rules, row), step.at, step.at if is_near else None)
    if is_near:
        payload = {"subscription": row["id"], "at": step.at.isoformat()}
        when = step.at if step.at > row["now"] else None
        await hook.publish(tx, application=STEPS, type="subscription.step", payload=payload, deliver_at=when)


async def plan_of_user(tx: Transaction, user_id: int | None) -> None:
    """Plan the subscription of a user, which a payment has changed."""
    if (row := await tx.fetchrow(SQL["lock_of_user"], user_id)) is not None:
        await plan(tx, dict(row))


@hook.every(2.0)
async def plan_changed() -> None:
    """Plan the subscriptions whose next step is near, or that others have changed; all after a change of settings."""
    async with hook.transaction() as tx:
        await tx.execute(SQL["forget_plans"], settings().dunning_rules.model_dump_json())
    while True:
        async with hook.transaction() as tx:
            changed = await tx.fetch(SQL["find_changed"], HORIZON)
            for id in sorted(row["id"] for row in changed):
                await plan(tx, await _lock(tx, id))
        if not changed:
            return


async def _lock(tx: Transaction, id: int) -> Mapping[str, Any]:
    row = await tx.fetchrow(SQL["lock"], id)
    assert row is not None, "subscriptions are never deleted"
    return dict(row)


@hook.on(application=STEPS, retry=STEP_RETRY)
async def follow_up(event: Event, tx: Transaction) -> Ignore | None:
    """Carry out the step that is due, then plan the next one."""
    row = await _lock(tx, event.json["subscription"])
    if row["wake_at"] is None or row["wake_at"] != datetime.fromisoformat(event.json["at"]):
        return Ignore("SUPERSEDED")
    step = next_step(settings().dunning_rules, row)
    if step is None or step.at > row["now"]:
        await plan(tx, row)
        return Ignore("MOVED")
    await tx.execute(SQL["end"] if step.is_end else SQL["remind"], row["id"], step.at)
    row = await _lock(tx, row["id"])
    kind = "subscription.ended" if step.is_end else "subscription.reminder"
    await publish_event(tx, kind, {**_fields_of(row), "days": step.days, "planned_at": step.at})
    if step.days >= 0 and settings().dunning is not None:
        text = gettext("subscriptions are overdue or have ended")
        hint = gettext("The latest is that of %(email)s; see `boathook billing subscriptions`.", email=row["email"])
        await overdue.fire(tx, "subscriptions", text=text, hint=hint)
    await plan(tx, row)
    return None


async def report_failure(tx: Transaction, stored_payment: StoredPayment, external_payment_id: str) -> None:
    """Publish that a payment has failed, with the subscription of its user, if it has just become FAILED."""
    payment = stored_payment.payment
    if payment.status is not Status.FAILED or stored_payment.status_before not in {None, Status.RECEIVED}:
        return
    period = await tx.fetchrow(SQL["find_period"], payment.user_id, payment.email)
    about = {
        "provider": payment.provider,
        "external_payment_id": external_payment_id,
        "amount": None if payment.amount is None else f"{payment.amount:f}",
        "currency": payment.currency,
    }
    await publish_event(
        tx, "payment.failed", {"email": payment.email, **(_fields_of(dict(period)) if period else {}), "payment": about}
    )


def _fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a subscription in an event; those of a user without one are null."""
    names = ("email", "owner_id", "status", "current_period_end", "access_until")
    return {"subscription": row["uid"], **{name: row[name] for name in names}}


async def publish_event(tx: Transaction, type: str, data: Mapping[str, Any]) -> None:
    """Publish an event to the owner's endpoints, if [billing.dunning] is set; times are ISO 8601 in UTC."""
    rules = settings().dunning
    if rules is None:
        return
    await hook.operations.put_application(tx, rules.application, name=rules.application)
    await hook.operations.declare_types(tx, EVENT_TYPES)
    await hook.publish(tx, application=rules.application, type=type, payload={"type": type, "data": plain(data)})
