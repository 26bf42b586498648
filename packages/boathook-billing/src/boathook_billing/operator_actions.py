"""Operations on behalf of operators: the commands and the staff page call these, each action once."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from boathook import BoathookError, Transaction
from boathook_app_tools.statements import load_statements
from boathook_billing import receipts
from boathook_billing.app import STAFF, gettext, hook, ngettext, settings
from boathook_billing.handlers import wake
from boathook_billing.payload import Status
from boathook_billing.rules import Problem

SQL: Final = load_statements(__file__)

COMMAND: Final = "command"
"""The author of what is done on the command line."""


async def add_user(tx: Transaction, email: str) -> Mapping[str, Any]:
    """Create a user, if there is none with this e-mail, and wake the payments that wait for it.

    Raises:
        BoathookError: *email* is invalid.
    """
    email = check_email(email)
    is_new = await tx.fetchval(SQL["add_user"], email) is not None
    user = await tx.fetchrow(SQL["find_user"], email)
    assert user is not None, "a user who was just inserted or found must exist"
    waiting = await tx.fetch(SQL["waiting_for"], email)
    for row in waiting:
        await wake(tx, row["id"])
    return {"id": user["id"], "email": user["email"], "is_new": is_new, "payments_waiting": len(waiting)}


def describe_user(row: Mapping[str, Any]) -> str:
    """Return what became of a user who was added, as a sentence."""
    text = gettext("%(email)s added", email=row["email"])
    if not row["is_new"]:
        text = gettext("%(email)s already exists", email=row["email"])
    count = row["payments_waiting"]
    return text + (
        "; " + ngettext("one waiting payment resumed", "%(num)s waiting payments resumed", count) if count else ""
    )


def check_email(text: str) -> str:
    """Return an e-mail without surrounding spaces. Raises BoathookError if it is invalid."""
    email = text.strip()
    name, at, domain = email.rpartition("@")
    if not (name and at and domain) or not email.isprintable() or " " in email or len(email) > 300:
        raise BoathookError(
            gettext("%(text)s is not an e-mail address; use one such as anna@example.com", text=repr(text))
        )
    return email


async def link(tx: Transaction, payment: str | int, email: str, *, author: str = COMMAND) -> Mapping[str, Any]:
    """Link a payment to a user, and wake it if only the user was missing; the row's *problem* says if not.

    Args:
        tx: The transaction.
        payment: The provider's id, ``provider/id``, or the number that `payments` lists; an int is that number.
        email: The user's.
        author: Who does it.

    Raises:
        BoathookError: the payment or user does not exist, the name matches several payments, or the payment was applied
            to another user.
    """
    user = await _user(tx, email)
    row = await _payment(tx, payment)
    if row["is_applied"]:
        if row["user_id"] != user["id"]:
            raise BoathookError(
                gettext(
                    "payment %(payment)s was applied to another user already; refund it at the provider",
                    payment=payment,
                )
            )
    else:
        await tx.execute(SQL["link"], row["id"], user["id"], user["email"])
        await tx.execute(SQL["add_note"], row["id"], author, "linked", user["email"])
        await wake(tx, row["id"])
    names = ("id", "provider", "external_payment_id", "status", "is_applied", "problem")
    return {**{name: row[name] for name in names}, "email": user["email"]}


def describe_link(row: Mapping[str, Any]) -> str:
    """Return what becomes of a payment that was linked, as a sentence."""
    values = {"payment": row["external_payment_id"], "email": row["email"]}
    if row["is_applied"]:
        return gettext("payment %(payment)s belongs to %(email)s and has already been applied", **values)
    if row["status"] != Status.SUCCEEDED:
        return gettext(
            "payment %(payment)s belongs to %(email)s and is %(status)s: there is nothing to apply",
            status=row["status"],
            **values,
        )
    if row["problem"] is not None and not Problem(row["problem"]).is_waiting:
        return gettext(
            "payment %(payment)s belongs to %(email)s but is not applied: %(problem)s;"
            " `boathook dead list --source payments` shows why",
            problem=row["problem"],
            **values,
        )
    return gettext("payment %(payment)s belongs to %(email)s and resumes", **values)


async def refund(
    tx: Transaction, payment: str | int, note: str, *, amount: Decimal | None = None, author: str = COMMAND
) -> Mapping[str, Any]:
    """Note a refund that the provider does not report; it is handled like one that it does.

    Args:
        tx: The transaction.
        payment: As for `link`.
        note: Why.
        amount: None: all of it.
        author: Who does it.

    Raises:
        BoathookError: the payment does not exist or was not paid, or the amount is larger than its own.
    """
    row = await _payment(tx, payment)
    if row["status"] != Status.SUCCEEDED:
        raise BoathookError(
            gettext(
                "payment %(payment)s is %(status)s: there is nothing to refund",
                payment=row["external_payment_id"],
                status=row["status"],
            )
        )
    if amount is not None and row["amount"] is not None and amount > row["amount"]:
        raise BoathookError(gettext("amount: the payment was %(amount)s", amount=row["amount"]))
    payload = {
        "provider": row["provider"],
        "external_payment_id": row["external_payment_id"],
        "status": "refunded",
        **({} if amount is None else {"refund_amount": f"{amount:f}"}),
    }
    await hook.publish(tx, application=STAFF, type="payment.refunded", payload=payload)
    await tx.execute(SQL["add_note"], row["id"], author, "refunded", note)
    return {"id": row["id"], "provider": row["provider"], "external_payment_id": row["external_payment_id"]}


async def add_note(tx: Transaction, payment: str | int, note: str, *, author: str = COMMAND) -> None:
    """Add a note to a payment. Raises BoathookError if it does not exist."""
    row = await _payment(tx, payment)
    await tx.execute(SQL["add_note"], row["id"], author, "note", note)


async def reissue_receipt(tx: Transaction, receipt: int, *, author: str = COMMAND) -> Mapping[str, Any]:
    """Issue a failed receipt again, under a new external id. Raises BoathookError if it has not failed."""
    row = await receipts.reissue(tx, receipt)
    if row is None:
        raise BoathookError(
            gettext(
                "there is no failed receipt %(id)s: `boathook billing receipts list` has those that failed", id=receipt
            )
        )
    await tx.execute(SQL["add_note"], row["payment_id"], author, "reissued", row["external_id"])
    return row


async def history(tx: Transaction, id: int) -> Mapping[str, Any] | None:
    """Return a payment with its subscription, events and their deliveries, receipts and notes; None if unknown."""
    payment = await tx.fetchrow(SQL["see_payment"], id)
    if payment is None:
        return None
    events = [dict(row) for row in await tx.fetch(SQL["see_events"], id)]
    deliveries = [dict(row) for row in await tx.fetch(SQL["see_deliveries"], [event["event_id"] for event in events])]
    for event in events:
        event["deliveries"] = [row for row in deliveries if row["event_id"] == event["event_id"]]
    return {
        "payment": dict(payment),
        "subscription": await tx.fetchrow(SQL["see_subscription"], payment["user_id"]),
        "events": events,
        "receipts": await tx.fetch(SQL["see_receipts"], id),
        "notes": await tx.fetch(SQL["see_notes"], id),
    }


async def find_payments(tx: Transaction, text: str, *, is_waiting: bool, limit: int) -> Sequence[Mapping[str, Any]]:
    """Return the payments with an id or an e-mail, newest first; empty *text* matches all."""
    return [dict(row) for row in await tx.fetch(SQL["search"], _storable(text), is_waiting, limit)]


async def _user(tx: Transaction, email: str) -> Mapping[str, Any]:
    user = await tx.fetchrow(SQL["find_user"], check_email(email))
    if user is None:
        raise BoathookError(
            gettext("there is no user %(email)s: add it with `boathook billing users add %(email)s`", email=email)
        )
    return dict(user)


async def _payment(tx: Transaction, name: str | int) -> Mapping[str, Any]:
    number = name if isinstance(name, int) else None
    matching = await tx.fetch(SQL["find_payments"], _storable(str(name)), number)
    if not matching:
        raise BoathookError(gettext("there is no payment %(name)s: `boathook billing payments` lists them", name=name))
    if len(matching) > 1:
        names = " or ".join(f"{row['provider']}/{row['external_payment_id']}" for row in matching)
        raise BoathookError(gettext("%(name)s names several payments: write %(names)s", name=name, names=names))
    return dict(matching[0])


def _storable(text: str) -> str:
    """Return a text as PostgreSQL can compare it: text in another terminal encoding matches nothing."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


async def cancel(tx: Transaction, email: str) -> Mapping[str, Any]:
    """Cancel a subscription; it lasts until its period ends, and the next payment reactivates it.

    Raises:
        BoathookError: the user or an active subscription does not exist.
    """
    user = await _user(tx, email)
    end = await tx.fetchval(SQL["cancel"], user["id"])
    if end is None:
        raise BoathookError(gettext("%(email)s has no active subscription to cancel", email=user["email"]))
    return {"email": user["email"], "status": "CANCELED", "current_period_end": end}


async def list_users(tx: Transaction) -> Sequence[Mapping[str, Any]]:
    """Return all users, oldest first."""
    return [dict(row) for row in await tx.fetch(SQL["list_users"])]


async def list_subscriptions(tx: Transaction) -> Sequence[Mapping[str, Any]]:
    """Return each user's subscription, INACTIVE if there is none."""
    return [dict(row) for row in await tx.fetch(SQL["list_subscriptions"])]


async def list_payments(
    tx: Transaction, *, status: Status | None, problem: str | None, is_waiting: bool, limit: int
) -> Sequence[Mapping[str, Any]]:
    """Return payments, newest first; *limit* 0 means all."""
    rows = await tx.fetch(SQL["list_payments"], status, problem, is_waiting, limit or None)
    return [dict(row) for row in rows]


async def list_receipts(tx: Transaction, *, state: str | None, limit: int) -> Sequence[Mapping[str, Any]]:
    """Return receipts, newest first; *limit* 0 means all."""
    return [dict(row) for row in await tx.fetch(SQL["list_receipts"], state, limit or None)]


async def list_plans(tx: Transaction) -> Sequence[Mapping[str, Any]]:
    """Return the plans of the settings, and those that are no longer offered."""
    offers = {plan.id: plan for plan in settings().offers}
    former = [dict(row) for row in await tx.fetch(SQL["list_plans"]) if row["id"] not in offers]
    return [
        *(
            {"id": p.id, "price": p.price, "currency": p.currency, "days": p.days, "is_offered": True}
            for p in offers.values()
        ),
        *({**row, "is_offered": False} for row in former),
    ]
