"""Simulates shops without any I/O: the requests that each sends to the cabinet's API, and the webhooks it expects.

A `Shop` creates one request at a time and gets its response, and so tracks which objects exist. It also makes mistakes
of clients and attackers: it repeats requests, names objects it does not own, and uses wrong tokens. The same seed and
the same responses give the same requests.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from boathook_cashdesk.entities import Action, Entity
from boathook_cashdesk.wire import TYPES

_API: Final = "/cabinet/api"
_ENTITIES: Final = {name: entity for entity, name in TYPES.items()}
_GOODS: Final = ("tea", "coffee", "bread", "milk", "honey", "rye <b>cake</b>", "crème brûlée", "茶")


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request, and the allowed statuses of its response."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    expect: frozenset[int]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an object, as an event reports it."""

    entity: Entity
    action: Action
    id: int
    revision: int


def read_change(payload: Mapping[str, Any]) -> Change:
    """Return the change that a webhook's body reports, in either format."""
    state = payload["data"] if "data" in payload else payload["object"]
    entity = _ENTITIES.get(payload["type"]) or Entity(payload["type"])
    return Change(entity, Action(payload["action"]), state["id"], state["revision"])


Hear = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True)
class Shop:
    """One simulated user of the cabinet."""

    token: str = field(repr=False)
    seed: int
    changes: list[Change] = field(default_factory=list)
    """All changes so far, according to the responses."""
    surprises: list[str] = field(default_factory=list)
    """Unexpected responses."""
    _luck: random.Random = field(init=False)
    _known: dict[Entity, dict[int, int]] = field(init=False)
    """Revisions of the existing objects, by id."""
    _hear: Hear | None = None
    _shift: int | None = None
    _written: int = 0
    _last_receipt: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._luck = random.Random(self.seed)
        self._known = {entity: {} for entity in Entity}

    def expected(self, types: Mapping[Entity, bool]) -> set[Change]:
        """Return the changes that a webhook for *types* must have received once all receipts are fiscalised."""
        return {change for change in self.changes if types[change.entity]}

    def write(self) -> SimulatedRequest:
        """Return the next request."""
        self._written += 1
        self._hear = None
        return self._next()()

    def answered(self, request: SimulatedRequest, status: int, body: bytes) -> None:
        """Process the response to the latest request."""
        if status not in request.expect:
            self.surprises.append(f"{request.method} {request.path}: {status} {body[:200]!r}")
        elif self._hear is not None and status in {200, 201, 202, 204}:
            self._hear(json.loads(body) if body else {})

    def lost(self, request: SimulatedRequest) -> None:
        """Record that the latest request got no response: it may have been processed or not."""
        if request.path.startswith(f"{_API}/shifts"):
            # Another device is certainly free.
            self._known[Entity.DEVICES].clear()
            self._shift = None

    def _next(self) -> Callable[[], SimulatedRequest]:
        if not self._known[Entity.DEVICES]:
            return self._register_device
        if self._shift is None:
            return self._open_shift
        if len(self._known[Entity.PRODUCTS]) < 3:
            return self._add_product
        work: list[tuple[Callable[[], SimulatedRequest], int]] = [
            (self._add_product, 8), (self._reprice, 25), (self._remove_product, 5), (self._sell, 30),
            (self._sell_again, 3), (self._encash, 8), (self._correct_encashment, 4), (self._take_back_encashment, 3),
            (self._rename_device, 3), (self._change_cashier, 3), (self._close_shift, 4), (self._clear_operation, 6),
            (self._forget_token, 2), (self._name_strange, 2), (self._misspell, 2),
        ]  # fmt: skip
        picked: list[Callable[[], SimulatedRequest]] = self._luck.choices(
            [request for request, _ in work], [weight for _, weight in work]
        )
        return picked[0]

    def _request(self, method: str, path: str, document: object = None, *, expect: int | set[int]) -> SimulatedRequest:
        body = b"" if document is None else json.dumps(document).encode()
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        statuses = frozenset({expect} if isinstance(expect, int) else expect)
        return SimulatedRequest(method, f"{_API}/{path}", body, headers, statuses)

    def _add(self, entity: Entity, document: object) -> SimulatedRequest:
        self._hear = lambda answer: self._note(entity, Action.CREATE, answer)
        return self._request("POST", entity, document, expect=201)

    def _patch(self, entity: Entity, id: int, document: object) -> SimulatedRequest:
        self._hear = lambda changed: self._note(entity, Action.UPDATE, changed)
        return self._request("PATCH", f"{entity}/{id}", document, expect=200)

    def _delete(self, entity: Entity, id: int, *, expect: set[int] | int = 204) -> SimulatedRequest:
        self._hear = lambda _: self._forget(entity, id)
        return self._request("DELETE", f"{entity}/{id}", expect=expect)

    def _note(self, entity: Entity, action: Action, state: Mapping[str, Any]) -> None:
        self._known[entity][state["id"]] = state["revision"]
        self.changes.append(Change(entity, action, state["id"], state["revision"]))

    def _forget(self, entity: Entity, id: int) -> None:
        self.changes.append(Change(entity, Action.DELETE, id, self._known[entity].pop(id)))

    def _pick(self, entity: Entity) -> int | None:
        ids = sorted(self._known[entity])
        return self._luck.choice(ids) if ids else None

    def _register_device(self) -> SimulatedRequest:
        serial = f"S{self.seed}-{self._written}"
        return self._add(Entity.DEVICES, {"serial": serial, "model": "Sim-1", "name": f"Register {serial}"})

    def _rename_device(self) -> SimulatedRequest:
        id = max(self._known[Entity.DEVICES])
        return self._patch(Entity.DEVICES, id, {"name": f"Register, renamed {self._written}"})

    def _open_shift(self) -> SimulatedRequest:
        request = self._add(Entity.SHIFTS, {"device_id": max(self._known[Entity.DEVICES]), "cashier": "Anna"})

        def hear(answer: Mapping[str, Any]) -> None:
            self._note(Entity.SHIFTS, Action.CREATE, answer)
            self._shift = answer["id"]

        self._hear = hear
        return request

    def _change_cashier(self) -> SimulatedRequest:
        assert self._shift is not None
        return self._patch(Entity.SHIFTS, self._shift, {"cashier": self._luck.choice(("Anna", "Boris", "José"))})

    def _close_shift(self) -> SimulatedRequest:
        def hear(closed: Mapping[str, Any]) -> None:
            self._note(Entity.SHIFTS, Action.UPDATE, closed)
            self._shift = None
            self._known[Entity.ENCASHMENTS].clear()

        self._hear = hear
        # Receipts that are being fiscalised keep it open.
        return self._request("POST", f"shifts/{self._shift}/close", expect={200, 409})

    def _add_product(self) -> SimulatedRequest:
        goods = {"name": self._luck.choice(_GOODS), "price": self._luck.randrange(1, 100_000)}
        return self._add(Entity.PRODUCTS, goods)

    def _reprice(self) -> SimulatedRequest:
        id = self._pick(Entity.PRODUCTS)
        assert id is not None
        return self._patch(Entity.PRODUCTS, id, {"price": self._luck.randrange(1, 100_000)})

    def _remove_product(self) -> SimulatedRequest:
        id = self._pick(Entity.PRODUCTS)
        assert id is not None
        return self._delete(Entity.PRODUCTS, id)

    def _sell(self) -> SimulatedRequest:
        product_ids = self._luck.sample(sorted(self._known[Entity.PRODUCTS]), 2)
        receipt = {
            "shift_id": self._shift,
            "items": [
                *({"product_id": id, "quantity": self._luck.randrange(1, 5)} for id in product_ids),
                {"name": self._luck.choice(_GOODS), "price": self._luck.randrange(1, 1_000), "quantity": 1},
            ],
            "payment": self._luck.choice(("cash", "card")),
            "external_id": f"{self.seed}-{self._written}",
        }
        self._hear = lambda begun: self._sold(receipt, begun)
        return self._request("POST", "receipts", receipt, expect=202)

    def _sold(self, receipt: dict[str, Any], begun: Mapping[str, Any]) -> None:
        self._last_receipt = receipt
        for entity, state in ((Entity.RECEIPTS, begun["receipt"]), (Entity.OPERATIONS, begun["operation"])):
            self._note(entity, Action.CREATE, state)
            self.changes.append(Change(entity, Action.UPDATE, state["id"], state["revision"] + 1))
            self._known[entity][state["id"]] += 1

    def _sell_again(self) -> SimulatedRequest:
        """Send the last receipt again, like a register that missed the response; it must have no effect."""
        if self._last_receipt is None:
            return self._sell()
        return self._request("POST", "receipts", self._last_receipt, expect=202)

    def _encash(self) -> SimulatedRequest:
        kind = self._luck.choice(("deposit", "withdrawal"))
        amount = self._luck.randrange(1, 1_000_000)
        return self._add(Entity.ENCASHMENTS, {"shift_id": self._shift, "kind": kind, "amount": amount})

    def _correct_encashment(self) -> SimulatedRequest:
        id = self._pick(Entity.ENCASHMENTS)
        return self._encash() if id is None else self._patch(Entity.ENCASHMENTS, id, {"comment": "counted again"})

    def _take_back_encashment(self) -> SimulatedRequest:
        id = self._pick(Entity.ENCASHMENTS)
        return self._encash() if id is None else self._delete(Entity.ENCASHMENTS, id)

    def _clear_operation(self) -> SimulatedRequest:
        id = self._pick(Entity.OPERATIONS)
        # It may be pending.
        return self._sell() if id is None else self._delete(Entity.OPERATIONS, id, expect={204, 409})

    def _forget_token(self) -> SimulatedRequest:
        request = self._request("POST", Entity.PRODUCTS, {"name": "stolen", "price": 1}, expect=401)
        return SimulatedRequest(
            request.method, request.path, request.body, {"authorization": "Bearer cdk_forged"}, request.expect
        )

    def _name_strange(self) -> SimulatedRequest:
        return self._request("DELETE", f"{Entity.PRODUCTS}/{2**62 + self._written}", expect=404)

    def _misspell(self) -> SimulatedRequest:
        return self._request("POST", Entity.PRODUCTS, {"name": "tea", "prise": 1}, expect=400)
