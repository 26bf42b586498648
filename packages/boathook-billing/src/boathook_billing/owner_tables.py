"""The tables of a system before this one: how `boathook billing import` reads them, and the views under their names.

They are ``users``, ``subscriptions``, ``payments`` and ``webhook_events``. Users have a UUID or a number as their id,
everything else has a UUID.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from boathook import BoathookError, Transaction
from boathook_app_tools.compatibility_views import Views
from boathook_app_tools.table_import import (
    FLAG,
    ID,
    JSON,
    NUMBER,
    TEXT,
    TIME,
    BadValue,
    Converted,
    Import,
    Row,
    Source,
    SourceTable,
    Values,
    by_row,
    choice,
    converted,
    require,
    text,
    without_nulls,
)
from boathook_app_tools.table_import import UUID as UUID_TYPE
from boathook_billing.app import IMPORTED, hook, settings, shop
from boathook_billing.operator_actions import check_email
from boathook_billing.payload import Status
from boathook_billing.rules import Payment

_SUBSCRIPTION_STATUSES: Final = ("INACTIVE", "ACTIVE", "CANCELED")
_OPEN: Final = ("RECEIVED", "VALIDATED", "FAILED_RETRYABLE")
_EVENT_STATUSES: Final = (*_OPEN, "PROCESSED", "IGNORED", "FAILED_FINAL")
_HAS_OPEN_EVENT: Final = """
    select exists (
        select from {events}
        where provider = $1 and external_payment_id = $2 and signature_valid and status::text = any($3::text[])
    )
"""
_UNVERIFIED: Final = """
    select count(*) from billing.imported_events
    where status in ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE') and signature_valid is not true
"""
_FOREIGN_KEY: Final = (
    "select exists (select from pg_constraint where conname = $1 and conrelid = 'billing.users'::regclass)"
)


def _user(row: Row) -> Values:
    try:
        email = check_email(row["email"] or "")
    except BoathookError as error:
        raise BadValue("email", str(error)) from None
    owner = "owner_uuid" if isinstance(row["id"], UUID) else "owner_id"
    return {"email": email, owner: row["id"], **without_nulls(created_at=row["created_at"])}


async def _subscriptions(tx: Transaction, source: Source, rows: Sequence[Row]) -> Sequence[Converted]:
    users = await source.target_keys(tx, "users", [row["user_id"] for row in rows])
    applied: defaultdict[Any, list[Row]] = defaultdict(list)
    for payment in await tx.fetch(
        f"select user_id, amount, currency, subscription_applied_at from {source.relation('payments')}"  # noqa: S608 quoted names
        " where user_id = any($1) and subscription_applied_at is not null order by subscription_applied_at desc",
        [row["user_id"] for row in rows if row["user_id"] is not None],
    ):
        applied[payment["user_id"]].append(dict(payment))

    def convert(row: Row) -> Values:
        status, end = choice(row, "status", _SUBSCRIPTION_STATUSES), row["current_period_end"]
        if end is None and status != "INACTIVE":
            raise BadValue("current_period_end", f"it is null, although the status is {status}")
        return {
            "uid": row["id"],
            "user_id": _reference(users, row, "user_id", "users"),
            "status": status,
            "current_period_end": end,
            "active_since": end and _active_since(end, row["created_at"], applied[row["user_id"]]),
            **without_nulls(created_at=row["created_at"], updated_at=row["updated_at"]),
        }

    return converted(rows, convert)


def _active_since(end: datetime, created_at: datetime | None, applied: Sequence[Row]) -> datetime:
    """Return when the unbroken period that ends at *end* began; *applied* are the user's payments, latest first.

    A payment adds its days to the end of the current period, or to the time when it is applied if that is later. So the
    period began with the latest payment that was applied no sooner than its days began.
    """
    begins = end
    for payment in applied:
        days = _days(payment)
        if days is None:
            break
        begins -= timedelta(days=days)
        if payment["subscription_applied_at"] >= begins:
            break
    else:
        payment = applied[-1] if applied else {"subscription_applied_at": created_at or end}
    since: datetime = payment["subscription_applied_at"]
    return min(since, end)


async def _payments(tx: Transaction, source: Source, rows: Sequence[Row]) -> Sequence[Converted]:
    users = await source.target_keys(tx, "users", [row["user_id"] for row in rows])
    subscriptions = await source.target_keys(tx, "subscriptions", [row["subscription_id"] for row in rows])
    periods = {
        row["id"]: dict(row)
        for row in await tx.fetch(
            "select id, user_id, active_since from billing.subscriptions where id = any($1::bigint[])",
            [int(key) for key in subscriptions.values()],
        )
    }

    def convert(row: Row) -> Values:
        status = Status(choice(row, "status", tuple(Status)))
        amount = _amount(row)
        applied_at = row["subscription_applied_at"]
        subscription: Row | None = None
        if row["subscription_id"] is not None:
            subscription = periods[_reference(subscriptions, row, "subscription_id", "subscriptions")]
        user_id = _reference(users, row, "user_id", "users") if row["user_id"] is not None else None
        if applied_at is not None:
            _check_applied(row, status)
            user_id = subscription["user_id"] if user_id is None and subscription else user_id
            if user_id is None:
                raise BadValue("user_id", "it is null, although subscription_applied_at is set")
        elif status is Status.SUCCEEDED:
            _check_provider(row)
        values = {
            "uid": row["id"],
            "provider": text(row, "provider", max_length=100),
            "external_payment_id": text(row, "external_payment_id"),
            "status": status.value,
            "user_id": user_id,
            "email": text(row, "email", is_required=False),
            "amount": amount,
            "currency": _currency(row),
            "paid_at": row["paid_at"],
            "subscription_applied_at": applied_at,
            "subscription_id": subscription and applied_at and subscription["id"],
            "applied_days": applied_at and _days(row),
            "applied_stretch": None,
            **without_nulls(created_at=row["created_at"]),
        }
        if subscription and applied_at and subscription["active_since"]:
            is_current = applied_at >= subscription["active_since"]
            values["applied_stretch"] = subscription["active_since"] if is_current else None
        return {**values, "problem": _problem(values, status)}

    return converted(rows, convert)


def _check_applied(row: Row, status: Status) -> None:
    if status.rank < Status.SUCCEEDED.rank:
        raise BadValue("status", f"it is {status}, although subscription_applied_at is set")
    if _days(row) is None:
        raise BadValue(
            "amount",
            f"{row['amount']} {_currency(row) or settings().currency} is not the price of one plan, so the days that it"
            " added are unknown; add that plan to [[billing.plans]]",
        )


def _check_provider(row: Row) -> None:
    if row["provider"] != settings().provider:
        raise BadValue(
            "provider",
            f"{row['provider']!r} differs from billing.provider, {settings().provider!r}, so it cannot be applied",
        )


def _problem(values: Mapping[str, Any], status: Status) -> str | None:
    payment = Payment(
        **{name: values[name] for name in ("user_id", "email", "amount", "currency")},
        id=0, status=status, plan_id=None, problem=None, is_late=False, is_reversed=False,
        is_applied=values["subscription_applied_at"] is not None,
    )  # fmt: skip
    problem = shop().problem_of(payment)
    return problem and problem.value


def _days(row: Row) -> int | None:
    """Return the days that an applied payment added: those of the plans with its price, if they agree."""
    currency = _currency(row) or settings().currency
    days = {plan.days for plan in shop().plans if (plan.price, plan.currency) == (row["amount"], currency)}
    return days.pop() if len(days) == 1 else None


def _amount(row: Row) -> Decimal | None:
    amount: Decimal | None = row["amount"]
    if amount is not None and not (Decimal(amount).is_finite() and amount >= 0):
        raise BadValue("amount", f"{amount} is not an amount of money")
    return amount


def _currency(row: Row) -> str | None:
    currency = text(row, "currency", max_length=10, is_required=False)
    return currency and currency.upper()


def _reference(keys: Mapping[str, str], row: Row, column: str, table: str) -> int:
    """Return the app's key of a row of another table."""
    require(row, column)
    key = keys.get(str(row[column]))
    if key is None:
        raise BadValue(column, f"{row[column]} is not among the imported rows of {table}")
    return int(key)


def _event(row: Row) -> Values:
    status = choice(row, "status", _EVENT_STATUSES)
    require(row, "received_at")
    if status in _OPEN and row["signature_valid"]:
        _check_provider(row)
        if row["payload"] is None:
            raise BadValue("payload", f"it is null, although the status is {status}")
    return {**row, "provider": text(row, "provider", max_length=100), "status": status}


async def _continue_payment(tx: Transaction, source: Source, row: Row, _key: str) -> None:
    """Publish an event for a success that waits to be applied, unless one of its own events is open."""
    if row["status"] != Status.SUCCEEDED or row["subscription_applied_at"] is not None:
        return
    sql = _HAS_OPEN_EVENT.format(events=source.relation("webhook_events"))
    if await tx.fetchval(sql, row["provider"], row["external_payment_id"], list(_OPEN)):
        return
    notice = {
        "external_payment_id": row["external_payment_id"],
        "status": Status.SUCCEEDED.value,
        "email": row["email"],
        "amount": None if row["amount"] is None else f"{row['amount']:f}",
        "currency": row["currency"],
        "paid_at": row["paid_at"] and row["paid_at"].astimezone(UTC).isoformat(),
    }
    await _publish(tx, f"payment:{row['id']}", json.dumps(without_nulls(**notice)).encode())


async def continue_event(tx: Transaction, _source: Source, row: Row, _key: str) -> None:
    """Publish a verified event that is not finished."""
    if row["status"] in _OPEN and row["signature_valid"]:
        event_id = await _publish(tx, f"event:{row['id']}", row["payload"].encode())
        await tx.execute("update billing.imported_events set event_id = $2 where id = $1", row["id"], event_id)


async def _publish(tx: Transaction, id: str, body: bytes) -> UUID:
    try:
        receipt = await hook.publish(
            tx,
            application=IMPORTED,
            type="payment.imported",
            payload=body,
            # A payment that has changed is another message.
            id=f"{id}:{hashlib.sha256(body).hexdigest()[:16]}",
        )
    except BoathookError as error:
        if error.name == "InvalidMessage":
            raise BadValue("payload", str(error)) from None
        if error.name != "ApplicationNotFound":
            raise
        raise BoathookError(
            "the handlers of this app are not registered yet, so open payments cannot be continued; "
            "start `boathook serve` once, then import"
        ) from None
    return receipt.event_id


async def _finish(tx: Transaction, source: Source) -> Sequence[str]:
    notes = []
    if unverified := await tx.fetchval(_UNVERIFIED):
        notes.append(
            f"{unverified} unfinished webhooks were never verified (signature_valid), so they are history only;"
            " their provider sends them again"
        )
    notes += await _add_foreign_key(tx, source)
    return notes


async def _add_foreign_key(tx: Transaction, source: Source) -> Sequence[str]:
    """Let billing.users refer to the owner's users; they can be deleted all the same."""
    column = (
        "owner_id"
        if await tx.fetchval("select exists (select from billing.users where owner_id is not null)")
        else "owner_uuid"
    )
    name = f"users_{column}_fkey"
    if await tx.fetchval(_FOREIGN_KEY, name):
        return []
    users = source.relation("users")
    try:
        async with tx.savepoint():
            await tx.execute("set local lock_timeout = '5s'")
            await tx.execute(
                f"alter table billing.users add constraint {name} foreign key ({column}) references {users} (id)"
                " on delete set null"
            )
    except Exception as error:
        if getattr(error, "sqlstate", None) is None:
            raise
        return [f"billing.users.{column} has no foreign key to {users}: {error}"]
    return [f"billing.users.{column} refers to {users} (id), on delete set null"]


async def _view_parameters(tx: Transaction) -> Mapping[str, str]:
    has_numbers = await tx.fetchval("select exists (select from billing.users where owner_id is not null)")
    provider = await tx.fetchval("select quote_literal($1)", settings().provider)
    return {"owner": "owner_id" if has_numbers else "owner_uuid", "provider": provider}


IMPORT: Final = Import(
    app="billing",
    tables=(
        SourceTable(
            name="users",
            columns={"id": ID, "email": TEXT, "created_at": TIME},
            target="billing.users",
            convert=by_row(_user),
            existing="lower(email) = lower($1)",
            match=("email",),
            adopt=("owner_uuid", "owner_id"),
        ),
        SourceTable(
            name="subscriptions",
            columns={
                "id": UUID_TYPE, "user_id": ID, "status": TEXT, "current_period_end": TIME, "created_at": TIME,
                "updated_at": TIME,
            },
            target="billing.subscriptions",
            convert=_subscriptions,
            existing="user_id = $1",
            match=("user_id",),
            same=("status", "current_period_end"),
            adopt=("uid",),
        ),
        SourceTable(
            name="payments",
            columns={
                "id": UUID_TYPE, "provider": TEXT, "external_payment_id": TEXT, "user_id": ID, "email": TEXT,
                "amount": NUMBER, "currency": TEXT, "status": TEXT, "paid_at": TIME, "subscription_applied_at": TIME,
                "subscription_id": UUID_TYPE, "created_at": TIME,
            },
            target="billing.payments",
            convert=_payments,
            existing="provider = $1 and external_payment_id = $2",
            match=("provider", "external_payment_id"),
            same=("status", "subscription_applied_at"),
            adopt=("uid",),
            stored=_continue_payment,
        ),
        SourceTable(
            name="webhook_events",
            columns={
                "id": UUID_TYPE, "provider": TEXT, "external_event_id": TEXT, "external_payment_id": TEXT,
                "payload": JSON, "payload_hash": TEXT, "signature_valid": FLAG, "status": TEXT, "received_at": TIME,
                "processed_at": TIME, "error_code": TEXT, "error_message": TEXT,
            },
            target="billing.imported_events",
            convert=by_row(_event),
            stored=continue_event,
        ),
    ),
    finish=_finish,
)  # fmt: skip
VIEWS: Final = Views(
    app="billing",
    names=("subscriptions", "payments", "webhook_events"),
    file=Path(__file__).with_name("views.sql"),
    parameters=_view_parameters,
)
