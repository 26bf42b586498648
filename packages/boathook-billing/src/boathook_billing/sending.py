"""Sends simulated traffic to a running boathook, and compares the stored data with the expected results."""

import functools
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from boathook import ConfigError, Transaction
from boathook_app_tools.simulation import (
    ResponseCounts,
    SimulatedRequest,
    SimulationResult,
    has_open,
    pick_seed,
    send,
    settle,
)
from boathook_billing import operator_actions
from boathook_billing.app import hook
from boathook_billing.settings import BillingSettings
from boathook_billing.simulator import Account, Arrival, Entry, Expected, Sender, Simulation
from boathook_billing.tilda_simulator import TildaSimulation

TOLERANCE: Final = timedelta(minutes=30)
"""Allowed deviation of a subscription's end from now plus its days, because the traffic takes time."""


async def simulate(
    url: str, settings: BillingSettings, *, count: int, seed: int | None, wait_s: float
) -> SimulationResult:
    """Send the traffic of *count* payments in order, wait until the stored data is right, and return the result.

    Raises:
        BoathookError: *url* is invalid or unreachable.
        ConfigError: there are no plans, or none that orders of Tilda can name.
    """
    number, answers = pick_seed(seed), ResponseCounts()
    traffic = simulation(settings, count=count, seed=number)
    for step in traffic.steps:
        match step:
            case Arrival(email=email):
                async with hook.transaction() as tx:
                    await operator_actions.add_user(tx, email)
            case SimulatedRequest():
                status, _ = await send(hook, url, step)
                answers.note(step, status, {step.expect})
    expected = traffic.expected()

    async def compare() -> list[str]:
        async with hook.transaction() as tx:
            return await differences(tx, expected)

    wrong, is_finished = await settle(compare, functools.partial(has_open, hook), wait_s)
    return SimulationResult(
        seed=number, answers=answers, effects=_effects(expected), differences=wrong, is_finished=is_finished
    )


def simulation(settings: BillingSettings, *, count: int, seed: int) -> Simulation:
    """Generate the traffic of *count* payments for these settings. Raises ConfigError if the settings prevent it."""
    if settings.secret is None:
        raise ConfigError("billing.secret: it is missing; payments are simulated as its sender signs them")
    if not settings.plans:
        raise ConfigError("billing.plans: no plans; add [[billing.plans]] with id, price and days")
    sender = Sender(
        secret=hook.resolve(settings.secret, "secret"),
        path=settings.path,
        header=settings.header,
        encoding=settings.encoding,
        proof=settings.proof,
    )
    if settings.form == "json":
        return Simulation(sender, settings.offers, payments=count, seed=seed)
    # An order names no plan and no currency: its price tells.
    prices = Counter(plan.price for plan in settings.offers if plan.currency == settings.currency)
    plans = [plan for plan in settings.offers if plan.currency == settings.currency and prices[plan.price] == 1]
    if not plans:
        raise ConfigError(
            f"billing.plans: no plan in {settings.currency} has a price of its own, by which orders name it"
        )
    return TildaSimulation(sender, plans, payments=count, seed=seed)


def _effects(expected: Expected) -> dict[str, int]:
    entries = expected.payments.values()
    return {
        "payments applied": sum(account.payments_applied for account in expected.accounts.values()),
        "waiting": sum(entry.problem is not None and entry.problem.is_waiting for entry in entries),
    }


async def differences(tx: Transaction, expected: Expected, *, now: datetime | None = None) -> list[str]:
    """Return the differences between the stored data and *expected*, one line each."""
    now = now or datetime.now(UTC)
    subscriptions = {row["email"].lower(): row for row in await operator_actions.list_subscriptions(tx)}
    payments = {
        row["external_payment_id"]: row
        for row in await operator_actions.list_payments(tx, status=None, problem=None, is_waiting=False, limit=0)
    }
    return [
        *(
            line
            for email, account in expected.accounts.items()
            if (line := _account(email, account, subscriptions.get(email.lower()), now))
        ),
        *(line for name, entry in expected.payments.items() if (line := _entry(name, entry, payments.get(name)))),
    ]


def _account(email: str, account: Account, row: Mapping[str, Any] | None, now: datetime) -> str | None:
    if row is None:
        return f"{email}: there is no such user"
    if row["payments_applied"] != account.payments_applied:
        return f"{email}: {row['payments_applied']} payments applied, not {account.payments_applied}"
    end: datetime | None = row["current_period_end"]
    expected_end = now + timedelta(days=account.days)
    if account.days and (end is None or abs(end - expected_end) > TOLERANCE or row["status"] != "ACTIVE"):
        return f"{email}: {row['status']} until {end}, not ACTIVE until about {expected_end:%Y-%m-%d}"
    if not account.days and end is not None and end > now + TOLERANCE:
        return f"{email}: lasts until {end}, though no payment of theirs is left"
    return None


_ENTRY: Final = ("status", "applied", "problem", "late")


def _entry(name: str, entry: Entry, row: Mapping[str, Any] | None) -> str | None:
    if row is None:
        return f"{name}: there is no such payment"
    is_applied, is_reversed = row["subscription_applied_at"] is not None, row["reversed_at"] is not None
    actual_values = (row["status"], is_applied and not is_reversed, row["problem"], row["is_late"])
    expected_values = (entry.status, entry.is_applied, entry.problem, entry.is_late)
    wrong = [
        f"{title} is {actual}, not {required}"
        for title, actual, required in zip(_ENTRY, actual_values, expected_values, strict=True)
        if actual != required
    ]
    return f"{name}: {', '.join(wrong)}" if wrong else None
