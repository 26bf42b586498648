"""Operations on behalf of operators: add users, link payments, cancel subscriptions, and list."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from boathook import BoathookError, Transaction
from boathook_billing.app import settings
from boathook_billing.handlers import wake
from boathook_billing.payload import Status

ADD_USER: Final = "insert into billing.users (email) values ($1) on conflict (lower(email)) do nothing returning id"
FIND_USER: Final = "select id, email from billing.users where lower(email) = lower($1)"
WAITING_FOR: Final = """
    select id from billing.payments
    where problem in ('USER_MISSING', 'UNLINKED_PAYMENT') and lower(email) = lower($1)
    order by id
"""
FIND_PAYMENTS: Final = """
    select id, provider, external_payment_id, status, problem, user_id,
        subscription_applied_at is not null as is_applied
    from billing.payments
    where external_payment_id = $1 or id::text = $1 or provider || '/' || external_payment_id = $1
    order by id for update
"""
LINK: Final = """
    update billing.payments set user_id = $2, email = $3, wakes = 0, woken_at = null, updated_at = now() where id = $1
"""
CANCEL: Final = """
    update billing.subscriptions set status = 'CANCELED', updated_at = now()
    where user_id = $1 and status = 'ACTIVE' and coalesce(access_until, current_period_end) > now()
    returning current_period_end
"""
LIST_USERS: Final = "select id, email, created_at from billing.users order by id"
LIST_SUBSCRIPTIONS: Final = """
    select users.email, coalesce(subscription.status, 'INACTIVE') as status, subscription.current_period_end,
        subscription.access_until,
        (select count(*) from billing.payments as payment
         where payment.user_id = users.id and payment.subscription_applied_at is not null
            and payment.reversed_at is null) as payments_applied
    from billing.users left join billing.subscriptions as subscription on subscription.user_id = users.id
    order by users.id
"""
LIST_PAYMENTS: Final = """
    select payment.id, payment.provider, payment.external_payment_id, payment.status, payment.problem,
        coalesce(users.email, payment.email) as email, payment.user_id, payment.plan_id, payment.amount,
        payment.currency, payment.paid_at, payment.is_late, payment.subscription_applied_at, payment.reversed_at,
        payment.created_at
    from billing.payments as payment left join billing.users on users.id = payment.user_id
    where ($1::text is null or payment.status = $1) and ($2::text is null or payment.problem = $2)
        and (not $3::boolean or payment.problem in ('USER_MISSING', 'UNLINKED_PAYMENT'))
    order by payment.id desc limit $4
"""
LIST_RECEIPTS: Final = """
    select receipt.id, payment.provider, payment.external_payment_id, receipt.kind, receipt.refund_id, receipt.amount,
        receipt.state, receipt.operation, receipt.error, receipt.external_id, receipt.created_at
    from billing.receipts as receipt join billing.payments as payment on payment.id = receipt.payment_id
    where $1::text is null or receipt.state = $1 order by receipt.id desc limit $2
"""
LIST_PLANS: Final = "select id, price, currency, days, is_offered from billing.plans order by not is_offered, id"


async def add_user(tx: Transaction, email: str) -> Mapping[str, Any]:
    """Create a user, if there is none with this e-mail, and wake the payments that wait for it.

    Raises:
        BoathookError: *email* is invalid.
    """
    email = check_email(email)
    is_new = await tx.fetchval(ADD_USER, email) is not None
    user = await tx.fetchrow(FIND_USER, email)
    assert user is not None, "a user who was just inserted or found must exist"
    waiting = await tx.fetch(WAITING_FOR, email)
    for row in waiting:
        await wake(tx, row["id"])
    return {"id": user["id"], "email": user["email"], "is_new": is_new, "payments_waiting": len(waiting)}


def check_email(text: str) -> str:
    """Return an e-mail without surrounding spaces. Raises BoathookError if it is invalid."""
    email = text.strip()
    name, at, domain = email.rpartition("@")
    if not (name and at and domain) or not email.isprintable() or " " in email or len(email) > 300:
        raise BoathookError(f"{text!r} is not an e-mail address; use one such as anna@example.com")
    return email


async def link(tx: Transaction, payment: str, email: str) -> Mapping[str, Any]:
    """Link a payment to a user, and wake it if only the user was missing; the row's *problem* says if not.

    Args:
        tx: The transaction.
        payment: The provider's id, ``provider/id``, or the number that `payments` lists.
        email: The user's.

    Raises:
        BoathookError: the payment or user does not exist, the name matches several payments, or the payment was applied
            to another user.
    """
    user = await _user(tx, email)
    found = await _payment(tx, payment)
    if found["is_applied"]:
        if found["user_id"] != user["id"]:
            raise BoathookError(f"payment {payment} was applied to another user already; refund it at the provider")
    else:
        await tx.execute(LINK, found["id"], user["id"], user["email"])
        await wake(tx, found["id"])
    return {
        "id": found["id"],
        "provider": found["provider"],
        "external_payment_id": found["external_payment_id"],
        "email": user["email"],
        "status": found["status"],
        "is_applied": found["is_applied"],
        "problem": found["problem"],
    }


async def _user(tx: Transaction, email: str) -> Mapping[str, Any]:
    user = await tx.fetchrow(FIND_USER, check_email(email))
    if user is None:
        raise BoathookError(f"there is no user {email}: add it with `boathook billing users add {email}`")
    return dict(user)


async def _payment(tx: Transaction, name: str) -> Mapping[str, Any]:
    name = name.encode("utf-8", "replace").decode()  # text in another terminal encoding matches no payment
    found = await tx.fetch(FIND_PAYMENTS, name)
    if not found:
        raise BoathookError(f"there is no payment {name}: `boathook billing payments` lists them")
    if len(found) > 1:
        names = " or ".join(f"{row['provider']}/{row['external_payment_id']}" for row in found)
        raise BoathookError(f"{name} names several payments: write {names}")
    return dict(found[0])


async def cancel(tx: Transaction, email: str) -> Mapping[str, Any]:
    """Cancel a subscription; it lasts until its period ends, and the next payment reactivates it.

    Raises:
        BoathookError: the user or an active subscription does not exist.
    """
    user = await _user(tx, email)
    end = await tx.fetchval(CANCEL, user["id"])
    if end is None:
        raise BoathookError(f"{user['email']} has no active subscription to cancel")
    return {"email": user["email"], "status": "CANCELED", "current_period_end": end}


async def list_users(tx: Transaction) -> Sequence[Mapping[str, Any]]:
    """Return all users, oldest first."""
    return [dict(row) for row in await tx.fetch(LIST_USERS)]


async def list_subscriptions(tx: Transaction) -> Sequence[Mapping[str, Any]]:
    """Return each user's subscription, INACTIVE if there is none."""
    return [dict(row) for row in await tx.fetch(LIST_SUBSCRIPTIONS)]


async def list_payments(
    tx: Transaction, *, status: Status | None, problem: str | None, is_waiting: bool, limit: int
) -> Sequence[Mapping[str, Any]]:
    """Return payments, newest first; *limit* 0 means all."""
    rows = await tx.fetch(LIST_PAYMENTS, status, problem, is_waiting, limit or None)
    return [dict(row) for row in rows]


async def list_receipts(tx: Transaction, *, state: str | None, limit: int) -> Sequence[Mapping[str, Any]]:
    """Return receipts, newest first; *limit* 0 means all."""
    return [dict(row) for row in await tx.fetch(LIST_RECEIPTS, state, limit or None)]


async def list_plans(tx: Transaction) -> Sequence[Mapping[str, Any]]:
    """Return the plans of the settings, and those that are no longer offered."""
    offers = {plan.id: plan for plan in settings().offers}
    kept = [dict(row) for row in await tx.fetch(LIST_PLANS) if row["id"] not in offers]
    return [
        *(
            {"id": p.id, "price": p.price, "currency": p.currency, "days": p.days, "is_offered": True}
            for p in offers.values()
        ),
        *({**row, "is_offered": False} for row in kept),
    ]
