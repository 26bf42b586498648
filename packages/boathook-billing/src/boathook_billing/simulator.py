"""Generates traffic of a payment provider, and the results expected once all of it is handled.

Everything derives from the seed: histories of single payments, each with its own problems, interleaved. Bodies vary
the example in ``examples``, a copy of one in tests/reality/payments.
"""

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from boathook_app_tools.simulation import SimulatedRequest, interleave, read_example, require_fields
from boathook_billing.payload import Status
from boathook_billing.rules import Problem
from boathook_billing.settings import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The way the provider signs its requests."""

    secret: str = field(repr=False)
    path: str = "/webhooks/payments"
    header: str = "X-Signature"
    encoding: Literal["hex", "base64"] = "hex"
    proof: Literal["hmac", "secret"] = "hmac"

    def prove(self, body: bytes) -> str:
        """Return the header's value for a body."""
        if self.proof == "secret":
            return self.secret
        digest = hmac.digest(self.secret.encode(), body, hashlib.sha256)
        return digest.hex() if self.encoding == "hex" else base64.b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A user who registers at this point of the sequence."""

    email: str


Step = SimulatedRequest | Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The expected data of a user."""

    days: int = 0
    """The days by which all applied payments together extend the subscription."""
    payments_applied: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The expected data of a payment."""

    status: Status
    is_applied: bool = False
    """And not refunded since."""
    problem: Problem | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected data at the end."""

    accounts: Mapping[str, Account]
    """By e-mail."""
    payments: Mapping[str, Entry]
    """By the provider's id."""


class Simulation:
    """Generates *payments* payments and all requests about them.

    Args:
        sender: How requests are signed.
        plans: The plans for sale, each with its currency.
        payments: The number of payments.
        seed: Determines ids and problems; equal seeds give equal ids.
        now: The time before which all payments were made.
    """

    def __init__(
        self, sender: Sender, plans: Sequence[Plan], *, payments: int, seed: int, now: datetime | None = None
    ) -> None:
        self._sender, self._plans = sender, plans
        self._rng = random.Random(seed)
        self._now = now or datetime.now(UTC)
        self._run = f"{seed:x}-{self._rng.getrandbits(24):06x}"
        self._numbers = count(1)
        self._accounts: dict[str, Account] = {}
        self._entries: dict[str, Entry] = {}
        self._regulars = [self._email("regular") for _ in range(max(1, payments // 4))]
        self._accounts |= dict.fromkeys(self._regulars, Account())
        kinds, weights = zip(*self._chances().items(), strict=True)
        histories = [list(self._rng.choices(kinds, weights)[0](self)) for _ in range(payments)]
        self.steps: tuple[Step, ...] = (*map(Arrival, self._regulars), *interleave(histories, self._rng))

    def expected(self) -> Expected:
        """Return the expected data once every step is done and handled."""
        return Expected(dict(self._accounts), dict(self._entries))

    def _chances(self) -> Mapping[Callable[[Any], Iterator[Step]], int]:
        """Return the kinds of histories, with the weights by which they are chosen."""
        return _CHANCES

    def _email(self, kind: str) -> str:
        return f"{kind}{next(self._numbers)}.{self._run}@example.com"

    def _request(self, payment: Mapping[str, Any], *, expect: int = 200, proof: str | None = None) -> SimulatedRequest:
        body = json.dumps(payment, separators=(",", ":")).encode()
        headers = {"content-type": "application/json", self._sender.header: proof or self._sender.prove(body)}
        return SimulatedRequest(path=self._sender.path, headers=headers, body=body, expect=expect)

    def _notice(self, payment: Mapping[str, Any], status: str, **changes: Any) -> SimulatedRequest:
        """Return a request about a payment with its own event id or, in one of four cases, without one."""
        id_field = {} if self._rng.random() < 0.25 else {"event_id": f"evt-{self._run}-{next(self._numbers)}"}
        return self._request({**payment, "status": status, **id_field, **changes})

    def _payment(self, email: str | None) -> tuple[dict[str, Any], Plan]:
        plan = self._rng.choice(self._plans)
        paid_at = self._now - timedelta(seconds=self._rng.uniform(1, 3_600))
        payment = _vary_example(
            external_payment_id=f"pay-{self._run}-{next(self._numbers)}",
            email=email,
            amount=self._rng.choice((float, str))(plan.price),
            currency=plan.currency,
            plan_id=plan.id,
            paid_at=paid_at.isoformat(),
        )
        return payment, plan

    def _regular(self) -> tuple[dict[str, Any], Plan, str]:
        email = self._rng.choice(self._regulars)
        return *self._payment(self._rng.choice((email, email.upper()))), email

    def _book(self, payment: Mapping[str, Any], status: Status, **more: Any) -> None:
        self._entries[payment["external_payment_id"]] = Entry(status=status, **more)

    def _credit(self, email: str, plan: Plan) -> None:
        before = self._accounts.get(email, Account())
        self._accounts[email] = Account(days=before.days + plan.days, payments_applied=before.payments_applied + 1)

    def _ordinary(self) -> Iterator[Step]:
        """Pay normally: first pending, then paid."""
        payment, plan, email = self._regular()
        yield self._notice(payment, "pending")
        yield self._notice(payment, self._rng.choice(("paid", "SUCCEEDED", "Success")))
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)

    def _copied(self) -> Iterator[Step]:
        """Pay once, and report it repeatedly: the same request, and others about the same payment."""
        payment, plan, email = self._regular()
        first = self._notice(payment, "succeeded")
        yield from [first] * self._rng.randint(2, 4)
        yield from (self._notice(payment, "paid") for _ in range(self._rng.randint(1, 3)))
        yield first
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)

    def _out_of_order(self) -> Iterator[Step]:
        """Report the success before the earlier statuses."""
        payment, plan, email = self._regular()
        steps = [self._notice(payment, word) for word in ("succeeded", "processing", "failed", "pending")]
        self._rng.shuffle(steps)
        yield from steps
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)

    def _failed(self) -> Iterator[Step]:
        """Fail to pay."""
        payment, _plan, _email = self._regular()
        yield self._notice(payment, "pending")
        yield self._notice(payment, self._rng.choice(("failed", "declined")))
        self._book(payment, Status.FAILED)

    def _late(self) -> Iterator[Step]:
        """Report a payment a week late."""
        payment, plan, email = self._regular()
        payment["paid_at"] = (self._now - timedelta(days=7)).isoformat()
        yield self._notice(payment, "paid")
        self._book(payment, Status.SUCCEEDED, is_applied=True, is_late=True)
        self._credit(email, plan)

    def _registers_later(self) -> Iterator[Step]:
        """Pay first and register afterwards."""
        email = self._email("later")
        payment, plan = self._payment(email)
        yield self._notice(payment, "paid")
        yield self._notice(payment, "paid")
        yield Arrival(email)
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)

    def _never_registers(self) -> Iterator[Step]:
        """Pay and never register."""
        payment, _plan = self._payment(self._email("nobody"))
        yield self._notice(payment, "paid")
        self._book(payment, Status.SUCCEEDED, problem=Problem.USER_MISSING)

    def _names_nobody(self) -> Iterator[Step]:
        """Pay without an e-mail; in half of the cases it follows."""
        payment, plan, email = self._regular()
        yield self._notice(payment, "paid", email=None)
        if self._rng.random() < 0.5:
            self._book(payment, Status.SUCCEEDED, problem=Problem.UNLINKED_PAYMENT)
            return
        yield self._notice(payment, "paid")
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)

    def _wrong_amount(self) -> Iterator[Step]:
        """Pay an amount that is not the plan's price."""
        payment, _plan, _email = self._regular()
        yield self._notice(payment, "paid", amount=str(self._wrong_price()))
        self._book(payment, Status.SUCCEEDED, problem=Problem.AMOUNT_MISMATCH)

    def _wrong_price(self) -> Decimal:
        """Return what no plan costs."""
        return max(plan.price for plan in self._plans) + 1

    def _corrected(self) -> Iterator[Step]:
        """Report a wrong amount first and the right one then, both without an event id."""
        payment, plan, email = self._regular()
        yield self._request({**payment, "status": "paid", "amount": str(self._wrong_price())})
        yield self._request({**payment, "status": "paid"})
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)

    def _refunded(self) -> Iterator[Step]:
        """Refund a payment: reported once or twice, after the success or before it."""
        payment, _plan, _email = self._regular()
        steps = [self._notice(payment, "paid"), self._notice(payment, "refunded")]
        if self._rng.random() < 0.3:
            steps.reverse()
        yield from steps
        if self._rng.random() < 0.5:
            yield self._notice(payment, "refunded")
        self._book(payment, Status.REFUNDED)

    def _forged(self) -> Iterator[Step]:
        """Forge a payment with known ids before the real one is sent."""
        payment, plan, email = self._regular()
        real = self._notice(payment, "paid")
        forged = self._request({**json.loads(real.body), "email": "thief@example.com"}, expect=401, proof="0" * 64)
        yield forged
        yield replace(forged, body=real.body)
        yield real
        yield forged
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)

    def _broken(self) -> Iterator[Step]:
        """Send a verified request that is not a valid payment."""
        payment, _plan, _email = self._regular()
        broken = self._rng.choice(({"status": None}, {"amount": -1}, {"paid_at": "yesterday"}, {"email": 7}))
        yield self._request({**payment, "status": "paid", **broken}, expect=400)


def _vary_example(**values: Any) -> dict[str, Any]:
    """Return the example's payment with other values, without the fields that each notice has of its own."""
    example = read_example(Path(__file__).with_name("examples"), "paid")
    require_fields("paid", example, values)
    return {name: values.get(name, value) for name, value in example.items() if name not in {"event_id", "status"}}


_CHANCES: Final[Mapping[Callable[[Any], Iterator[Step]], int]] = {
    Simulation._ordinary: 8,  # noqa: SLF001 - the class's own histories
    Simulation._copied: 4,  # noqa: SLF001
    Simulation._out_of_order: 3,  # noqa: SLF001
    Simulation._failed: 2,  # noqa: SLF001
    Simulation._late: 2,  # noqa: SLF001
    Simulation._registers_later: 3,  # noqa: SLF001
    Simulation._never_registers: 1,  # noqa: SLF001
    Simulation._names_nobody: 2,  # noqa: SLF001
    Simulation._wrong_amount: 1,  # noqa: SLF001
    Simulation._corrected: 2,  # noqa: SLF001
    Simulation._refunded: 3,  # noqa: SLF001
    Simulation._forged: 2,  # noqa: SLF001
    Simulation._broken: 1,  # noqa: SLF001
}
