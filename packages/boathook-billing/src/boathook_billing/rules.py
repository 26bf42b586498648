"""Decides what a payment does, from plain values."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from boathook_billing.payload import Notice, Status
from boathook_billing.settings import Plan


class Problem(StrEnum):
    """Why a successful payment is not applied."""

    USER_MISSING = "USER_MISSING"
    """No user has its e-mail: it waits."""
    UNLINKED_PAYMENT = "UNLINKED_PAYMENT"
    """It has no e-mail: it waits for a link by an operator, or for an event with an e-mail."""
    AMOUNT_MISMATCH = "AMOUNT_MISMATCH"
    """The amount differs from its plan's price: final."""
    PLAN_UNKNOWN = "PLAN_UNKNOWN"
    """The plan cannot be determined: final."""

    @property
    def is_waiting(self) -> bool:
        """Whether the problem ends by itself once the user is known."""
        return self in {Problem.USER_MISSING, Problem.UNLINKED_PAYMENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """A stored payment with all its notices."""

    id: int
    status: Status
    user_id: int | None
    email: str | None
    plan_id: str | None
    amount: Decimal | None
    currency: str | None
    problem: Problem | None
    is_late: bool
    is_applied: bool
    is_reversed: bool
    provider: str = ""


@dataclass(frozen=True, slots=True)
class Extend:
    """Apply it: extend the subscription by the plan's days."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Reverse:
    """Revert what it added."""


@dataclass(frozen=True, slots=True)
class NoChange:
    """Leave the subscription unchanged; the reason is for logs and metrics."""

    reason: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """It should be applied, but cannot be."""

    problem: Problem
    note: str


Verdict = Extend | Reverse | NoChange | Blocked


@dataclass(frozen=True, slots=True)
class Shop:
    """The plans for sale, and how strictly payments are compared with them."""

    plans: tuple[Plan, ...]
    currency: str
    require_amount: bool = False

    def decide(self, notice: Notice, payment: Payment) -> Verdict:
        """Return the consequence of *notice*; *payment* is its payment after the notice was stored."""
        match notice.status:
            case Status.REFUNDED if not payment.is_applied:
                return NoChange("NEVER_APPLIED")
            case Status.REFUNDED:
                return NoChange("ALREADY_REVERSED") if payment.is_reversed else Reverse()
            case Status.SUCCEEDED if payment.status is Status.REFUNDED:
                return NoChange("ALREADY_REFUNDED")
            case Status.SUCCEEDED if payment.is_applied:
                return NoChange("ALREADY_APPLIED")
            case Status.SUCCEEDED:
                return self._claim(payment)
            case _:
                return NoChange("NON_SUCCESS_STATUS")

    def plan_of(self, payment: Payment) -> Plan | None:
        """Return the plan that a payment pays; None if it fits none, or it is not known which."""
        plan = self._bought(payment)
        return None if isinstance(plan, Blocked) else plan

    def can_apply(self, payment: Payment) -> bool:
        """Return whether a payment is what one of the plans costs, or need not be applied."""
        problem = self.problem_of(payment)
        return problem is None or problem.is_waiting

    def problem_of(self, payment: Payment) -> Problem | None:
        """Return why a payment is not applied yet, or None if it need not be or has no problem."""
        if payment.status is not Status.SUCCEEDED or payment.is_applied:
            return None
        verdict = self._claim(payment)
        return verdict.problem if isinstance(verdict, Blocked) else None

    def _claim(self, payment: Payment) -> Extend | Blocked:
        plan = self._bought(payment)
        if isinstance(plan, Blocked):
            return plan
        if payment.user_id is not None:
            return Extend(plan)
        if payment.email is None:
            return Blocked(Problem.UNLINKED_PAYMENT, "it names no e-mail; link it by hand")
        return Blocked(Problem.USER_MISSING, "no user has its e-mail yet")

    def _bought(self, payment: Payment) -> Plan | Blocked:
        if payment.plan_id is not None:
            candidates = [plan for plan in self.plans if plan.id == payment.plan_id]
        else:
            candidates = list(self.plans)
        if not candidates:
            return Blocked(Problem.PLAN_UNKNOWN, f"there is no plan {payment.plan_id or 'at all'} in the settings")
        if payment.amount is None and self.require_amount:
            return Blocked(Problem.AMOUNT_MISMATCH, "the notice has no amount, and billing.require_amount is set")
        fitting = [plan for plan in candidates if self._fits(payment, plan)]
        if not fitting:
            return Blocked(Problem.AMOUNT_MISMATCH, self._complaint(payment, candidates))
        if len(fitting) > 1:
            return Blocked(Problem.PLAN_UNKNOWN, "it names no plan, and several plans have its price")
        return fitting[0]

    def _fits(self, payment: Payment, plan: Plan) -> bool:
        is_price = payment.amount is None or payment.amount == plan.price
        return is_price and (payment.currency or self.currency) == plan.currency

    def _complaint(self, payment: Payment, candidates: Iterable[Plan]) -> str:
        prices = ", ".join(f"{plan.id} costs {plan.price} {plan.currency}" for plan in candidates)
        return f"paid were {payment.amount} {payment.currency or self.currency}, but {prices}"
