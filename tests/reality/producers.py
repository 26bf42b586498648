"""What is compared with the corpus: for each sender, the apps that produce its bodies, and how to get all of them."""

import json
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple


class Producer(NamedTuple):
    """An app's simulator, as far as it sends what one sender does."""

    sender: str
    app: str
    bodies: Callable[[], Iterable[bytes]]
    additions: frozenset[str] = frozenset()
    """Fields that the sender does not have, and the app's README says so."""


def _fleet(path: str) -> Callable[[], Iterable[bytes]]:
    def bodies() -> Iterable[bytes]:
        from boathook_fleet.simulator import Sender, Simulation

        for seed in range(3):
            requests = Simulation(Sender(token="t", umnico_token="u"), histories=60, seed=seed).requests
            yield from (request.body for request in requests if path in request.path)

    return bodies


def _billing() -> Iterable[bytes]:
    from decimal import Decimal

    from boathook_app_tools.simulation import SimulatedRequest
    from boathook_billing.settings import Plan
    from boathook_billing.simulator import Sender, Simulation

    plan = Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30)
    for seed in range(3):
        steps = Simulation(Sender(secret="s"), [plan], payments=60, seed=seed).steps
        yield from (step.body for step in steps if isinstance(step, SimulatedRequest))


def _tilda() -> Iterable[bytes]:
    from decimal import Decimal

    from boathook_app_tools.simulation import SimulatedRequest
    from boathook_billing.settings import Plan
    from boathook_billing.simulator import Sender
    from boathook_billing.tilda_simulator import TildaSimulation

    plan = Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30)
    for seed in range(3):
        steps = TildaSimulation(Sender(secret="s", proof="secret"), [plan], payments=60, seed=seed).steps
        yield from (step.body for step in steps if isinstance(step, SimulatedRequest))


def _music() -> Iterable[bytes]:
    from boathook_app_tools.simulation import SimulatedRequest
    from boathook_music.simulator import Reseller, Simulator

    reseller = Reseller(secret="s", files="http://127.0.0.1:9000", at=1_700_000_000)
    for seed in range(3):
        steps = Simulator(reseller, songs=60, seed=seed).steps
        yield from (step.body for step in steps if isinstance(step, SimulatedRequest))


def _cashdesk() -> Iterable[bytes]:
    """Yield the bodies of a shop's webhooks; tests/apps/cashdesk/test_wire.py compares those of a running cabinet."""
    from boathook_cashdesk.entities import Action, Entity
    from boathook_cashdesk.wire import change_body

    time = "2026-11-21T09:30:00.123456+00:00"
    item = {"product_id": 1, "name": "tea", "quantity": 1, "price": 1, "vat": "20"}
    state = {
        "id": 1, "revision": 1, "name": "tea", "price": 1, "vat": "20", "barcode": "46", "total": 1, "items": [item],
        "payment": "cash", "document": 1, "sign": "1", "drive": "1", "device_id": 1, "shift_id": 1, "receipt_id": 1, "amount": 1,
        "error": "CODE: text", "state": "FAILED", "created_at": time, "updated_at": time, "opened_at": time,
        "closed_at": time, "finished_at": time,
    }  # fmt: skip
    owner = {"device_id": 1, "cashier": "Anna", "external_id": "o-1"}
    for entity in Entity:
        kind = {"kind": "deposit" if entity is Entity.ENCASHMENTS else "sale"}
        yield json.dumps(change_body("dreamkas", entity, Action.UPDATE, state | kind, owner)).encode()


ADDITIONS: Final = frozenset({"data.revision"})
"""What the cabinet's webhooks have in addition to Dreamkas'."""
PRODUCERS: Final = (
    Producer("payments", "billing", _billing),
    Producer("tilda", "billing", _tilda),
    Producer("rentprog", "fleet", _fleet("rentprog")),
    Producer("umnico", "fleet", _fleet("umnico")),
    Producer("suno", "music", _music),
    Producer("dreamkas", "cashdesk", _cashdesk, ADDITIONS),
)
WITHOUT: Final[frozenset[str]] = frozenset()
"""Apps whose simulators are not compared yet."""
