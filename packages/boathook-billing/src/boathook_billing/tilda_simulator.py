"""Generates orders as Tilda sends them: its recorded shapes with other values, in the histories of `simulator`."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from boathook_app_tools.simulation import SimulatedRequest
from boathook_billing.payload import Status
from boathook_billing.settings import Plan
from boathook_billing.simulator import Simulation, Step

_EXAMPLES: Final = Path(__file__).with_name("examples")
_SHAPES: Final = ("order_{}.form", "order_text_{}.form", "order_{}.json")
"""The examples of orders, as placed and as paid; copies of those in tests/reality/tilda."""
_PAID: Final = frozenset({"paid", "succeeded", "success"})
_UNPAID: Final = "0"


class TildaSimulation(Simulation):
    """Generates orders, each placed, paid or both; Tilda reports no other status, time, currency or event id."""

    def _chances(self) -> Mapping[Callable[[Any], Iterator[Step]], int]:
        return _CHANCES

    def _payment(self, email: str | None) -> tuple[dict[str, Any], Plan]:
        plan = self._rng.choice(self._plans)
        payment = {
            "external_payment_id": f"order-{self._run}-{next(self._numbers)}",
            "number": str(self._rng.randrange(10**9, 10**10)),
            "email": email,
            "amount": str(plan.price),
            "shape": self._rng.choice(_SHAPES),
        }
        return payment, plan

    def _notice(self, payment: Mapping[str, Any], status: str, **changes: Any) -> SimulatedRequest:
        return self._request({**payment, "status": status, **changes})

    def _request(self, payment: Mapping[str, Any], *, expect: int = 200, proof: str | None = None) -> SimulatedRequest:
        body, media = order_body(payment)
        headers = {"content-type": media, self._sender.header: proof or self._sender.prove(body)}
        return SimulatedRequest(path=self._sender.path, headers=headers, body=body, expect=expect)

    def _unpaid(self) -> Iterator[Step]:
        """Place an order and never pay it."""
        payment, _plan, _email = self._regular()
        yield self._notice(payment, "pending")
        self._book(payment, Status.RECEIVED)

    def _forged_order(self) -> Iterator[Step]:
        """Forge an order with known ids before the real one is sent."""
        payment, plan, email = self._regular()
        yield self._request({**payment, "status": "paid", "email": "thief@example.com"}, expect=401, proof="0" * 64)
        yield self._notice(payment, "paid")
        self._book(payment, Status.SUCCEEDED, is_applied=True)
        self._credit(email, plan)


def order_body(order: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return an order in the shape of an example, and its media type."""
    is_paid = order["status"].lower() in _PAID
    name = order["shape"].format("paid" if is_paid else "placed")
    payment = {
        "orderid": order["external_payment_id"],
        "systranid": order["number"] if is_paid else _UNPAID,
        "amount": str(order["amount"]),
    }
    fields = json.loads(_example(name)) if name.endswith(".json") else dict(parse_qsl(_example(name)))
    fields["Email"] = order["email"]
    if order["email"] is None:
        del fields["Email"]
    match fields.get("payment"):
        case dict() as nested:
            nested.update(payment)
        case str() as text:
            fields["payment"] = json.dumps(json.loads(text) | payment, ensure_ascii=False, separators=(",", ":"))
        case _:
            fields |= {f"payment[{key}]": value for key, value in payment.items()}
    if name.endswith(".json"):
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(), "application/json"
    return urlencode(fields).encode(), "application/x-www-form-urlencoded"


@cache
def _example(name: str) -> str:
    return (_EXAMPLES / name).read_text(encoding="utf-8").rstrip("\n")


_CHANCES: Final[Mapping[Callable[[Any], Iterator[Step]], int]] = {
    TildaSimulation._ordinary: 8,  # noqa: SLF001 - the class's own histories
    TildaSimulation._copied: 4,  # noqa: SLF001
    TildaSimulation._out_of_order: 3,  # noqa: SLF001
    TildaSimulation._unpaid: 2,  # noqa: SLF001
    TildaSimulation._registers_later: 3,  # noqa: SLF001
    TildaSimulation._never_registers: 1,  # noqa: SLF001
    TildaSimulation._names_nobody: 2,  # noqa: SLF001
    TildaSimulation._wrong_amount: 1,  # noqa: SLF001
    TildaSimulation._corrected: 2,  # noqa: SLF001
    TildaSimulation._forged_order: 2,  # noqa: SLF001
}
