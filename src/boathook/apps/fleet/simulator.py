"""Generates traffic of RentProg and Umnico, and the table contents expected once all of it is handled.

Everything derives from the seed: histories of single objects, each with its own problems, interleaved. The expected
state is computed from the times of the changes, never from the order of sending: senders repeat and reorder requests.
"""

import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, Literal

from boathook.apps.fleet.settings import ALIAS, PATH, UMNICO_PATH
from boathook.apps.fleet.words import Action, Entity
from boathook.apps.simulation import SimulatedRequest, interleave

MODELS: Final = ("Kia Rio", "Hyundai Solaris", "Skoda Octavia", "Haval Jolion")
NAMES: Final = ("Иван Петров", "Anna Schmidt", "Мария Кузнецова", "John O'Neil", 'Lev "Fast" Orlov')
STATES: Final = ("free", "rented", "service", "washing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """How the senders prove their requests."""

    token: str = field(repr=False)
    scheme: Literal["token", "hmac"] = "token"
    umnico_token: str = field(default="", repr=False)
    """If empty, Umnico sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedObject:
    """The expected row of one object."""

    data: Mapping[str, Any]
    is_deleted: bool = False
    is_stub: bool = False
    """Whether it is only referenced by others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected contents of the tables."""

    things: Mapping[tuple[Entity, str], ExpectedObject]
    """By entity and id."""
    unknown: int
    """The number of requests that cannot be parsed."""
    changes: int
    """The number of distinct changes."""


@dataclass(frozen=True, slots=True)
class _ObjectEvent:
    stamp: datetime
    action: Action
    fields: Mapping[str, Any]


class Simulation:
    """Generates *histories* objects and all requests about them.

    Args:
        sender: How requests are proven.
        histories: The number of objects.
        seed: Determines ids and problems; equal seeds give equal ids.
        now: The time before which everything happened.
        burst: The number of updates in a burst.
    """

    def __init__(
        self, sender: Sender, *, histories: int, seed: int, now: datetime | None = None, burst: int = 40
    ) -> None:
        self._sender = sender
        self._rng = random.Random(seed)
        self._now = (now or datetime.now(UTC)) - timedelta(seconds=10)
        self._burst = burst
        self._numbers = count(self._rng.randrange(10**6, 10**9) * 1_000)
        self._happened: dict[tuple[Entity, str], list[_ObjectEvent]] = {}
        self._named: set[tuple[Entity, str]] = set()
        self._unknown = 0
        kinds = [kind for kind in _CHANCES if sender.umnico_token or kind is not Simulation._message]
        chosen = [*kinds, *self._rng.choices(kinds, [_CHANCES[kind] for kind in kinds], k=histories)][:histories]
        self.requests: tuple[SimulatedRequest, ...] = tuple(
            interleave([list(kind(self)) for kind in chosen], self._rng)
        )

    def expected(self) -> Expected:
        """Return the expected table contents once every request is handled."""
        things = {key: ExpectedObject(data={}, is_stub=True) for key in self._named}
        for key, history in self._happened.items():
            happenings = sorted(history, key=lambda one: one.stamp)
            data = {name: value for one in happenings for name, value in one.fields.items()}
            things[key] = ExpectedObject(data=data, is_deleted=happenings[-1].action is Action.DELETE)
        return Expected(things=things, unknown=self._unknown, changes=sum(map(len, self._happened.values())))

    def burst_of(self, updates: int) -> tuple[str, list[SimulatedRequest]]:
        """Return *updates* updates of one car within a second, shuffled, and the car's id."""
        car = self._id()
        requests = [
            self._report(
                Entity.CAR, car, Action.UPDATE, {"mileage": number}, at=self._now + timedelta(milliseconds=number)
            )
            for number in range(updates)
        ]
        self._rng.shuffle(requests)
        return car, requests

    def _id(self) -> str:
        return str(next(self._numbers))

    def _moments(self, number: int) -> list[datetime]:
        """Return *number* different times within the last hours, ascending."""
        seconds = sorted(self._rng.sample(range(1, 10_000), number), reverse=True)
        return [self._now - timedelta(seconds=one) for one in seconds]

    def _report(
        self, entity: Entity, id: str, action: Action, fields: Mapping[str, Any], *, at: datetime,
        shape: "Callable[[Change], dict[str, Any]] | None" = None,
    ) -> SimulatedRequest:  # fmt: skip
        """Record a change, and return the request that reports it."""
        stamp = "deleted_at" if action is Action.DELETE else "updated_at"
        values = {"id": int(id), **fields, stamp: at.isoformat().replace("+00:00", "Z")}
        self._happened.setdefault((entity, id), []).append(_ObjectEvent(at, action, values))
        shape = shape or self._rng.choices(SHAPES, _SHAPE_WEIGHTS)[0]
        return self._request(shape(Change(entity, action, values)))

    def _request(self, document: Any, *, expect: int = 200) -> SimulatedRequest:
        return self._posted(json.dumps(document, ensure_ascii=self._rng.random() < 0.5).encode(), expect=expect)

    def _posted(self, body: bytes, *, expect: int = 200, token: str | None = None) -> SimulatedRequest:
        path, token = self._rng.choice((PATH, ALIAS)), token or self._sender.token
        headers = {"content-type": "application/json"}
        if self._sender.scheme == "hmac":
            headers["x-signature"] = hmac.digest(token.encode(), body, hashlib.sha256).hex()
        else:
            path += f"?token={token}"
        return SimulatedRequest(path=path, headers=headers, body=body, expect=expect)

    def _car_fields(self) -> dict[str, Any]:
        letters = "".join(self._rng.choices("АВЕКМНОРСТУХ", k=3))  # noqa: RUF001 the Russian letters used on plates
        number = f"{letters[0]}{self._rng.randrange(1_000):03}{letters[1:]}{self._rng.randrange(1, 200):02}"
        return {"number": number, "model": self._rng.choice(MODELS), "mileage": self._rng.randrange(200_000)}

    def _update(self) -> dict[str, Any]:
        return self._rng.choice(
            ({"state": self._rng.choice(STATES)}, {"mileage": self._rng.randrange(200_000)}, {"note": None})
        )

    def _car(self) -> Iterator[SimulatedRequest]:
        """Buy a car and use it."""
        car, moments = self._id(), self._moments(4)
        yield self._report(Entity.CAR, car, Action.CREATE, self._car_fields(), at=moments[0])
        for moment in moments[1:]:
            yield self._report(Entity.CAR, car, Action.UPDATE, self._update(), at=moment)

    def _out_of_order(self) -> Iterator[SimulatedRequest]:
        """Report a car's changes in any order, one of them a week late."""
        car, moments = self._id(), self._moments(5)
        requests = [self._report(Entity.CAR, car, Action.UPDATE, self._update(), at=moment) for moment in moments]
        requests.append(
            self._report(Entity.CAR, car, Action.CREATE, self._car_fields(), at=moments[0] - timedelta(days=7))
        )
        self._rng.shuffle(requests)
        yield from requests

    def _copied(self) -> Iterator[SimulatedRequest]:
        """Report one change repeatedly."""
        branch, moment = self._id(), self._moments(1)[0]
        fields = {"name": f"Filial {branch}", "address": "Сочи, ул. Мира, 1"}
        request = self._report(Entity.BRANCH, branch, Action.CREATE, fields, at=moment)
        yield from [request] * self._rng.randint(2, 5)

    def _booking(self) -> Iterator[SimulatedRequest]:
        """Rent a car to a client; car, client, branch and employee may all be unknown yet."""
        booking, car, client, branch, employee = (self._id() for _ in range(5))
        moments = self._moments(5)
        fields = {
            "car_id": int(car), "client_id": int(client), "branch_id": int(branch), "employee_id": int(employee),
            "state": "new", "total": "12500.50", "currency": "RUB", "start_date": "2026-11-21 10:00:00 +0300",
            "end_date": "24.11.2026 10:00",
        }  # fmt: skip
        references = ((Entity.CAR, car), (Entity.CLIENT, client), (Entity.BRANCH, branch), (Entity.EMPLOYEE, employee))
        self._named.update(references)
        yield self._report(Entity.BOOKING, booking, Action.CREATE, fields, at=moments[0])
        yield self._report(Entity.BOOKING, booking, Action.UPDATE, {"state": "active"}, at=moments[1])
        client_fields = {"name": self._rng.choice(NAMES), "phone": "+7 900 000-00-00"}
        yield self._report(Entity.CLIENT, client, Action.CREATE, client_fields, at=moments[2])
        if self._rng.random() < 0.5:
            person = {"name": self._rng.choice(NAMES), "email": f"e{employee}@example.com", "branch_id": int(branch)}
            yield self._report(Entity.EMPLOYEE, employee, Action.CREATE, person, at=moments[3])
        yield self._report(Entity.BOOKING, booking, Action.UPDATE, {"state": "closed"}, at=moments[4])

    def _deleted(self) -> Iterator[SimulatedRequest]:
        """Delete a client, and report an earlier change afterwards."""
        client, moments = self._id(), self._moments(3)
        yield self._report(Entity.CLIENT, client, Action.CREATE, {"name": self._rng.choice(NAMES)}, at=moments[0])
        late = self._report(Entity.CLIENT, client, Action.UPDATE, {"phone": "+7 900 111-11-11"}, at=moments[1])
        yield self._report(Entity.CLIENT, client, Action.DELETE, {}, at=moments[2])
        yield late

    def _busy(self) -> Iterator[SimulatedRequest]:
        """Change one car many times within a minute."""
        yield from self.burst_of(self._burst)[1]

    def _forged(self) -> Iterator[SimulatedRequest]:
        """Forge a request with known content before the real one is sent."""
        car, moment = self._id(), self._moments(1)[0]
        real = self._report(Entity.CAR, car, Action.CREATE, self._car_fields(), at=moment)
        yield self._posted(real.body, expect=401, token="guessed")  # noqa: S106 a wrong one
        yield real

    def _unknown_shape(self) -> Iterator[SimulatedRequest]:
        """Send a request that cannot be parsed."""
        documents = (
            {"event": "invoice_paid", "payload": {"id": int(self._id())}},
            {"hello": self._id()},
            ["car_update", int(self._id())],
            {"event": "car_update", "payload": {"state": f"free {self._id()}"}},
        )
        self._unknown += 1
        yield self._request(self._rng.choice(documents))

    def _broken(self) -> Iterator[SimulatedRequest]:
        """Send a body that is not JSON."""
        yield self._posted(b'{"event": "car_update", ' + self._id().encode(), expect=400)

    def _message(self) -> Iterator[SimulatedRequest]:
        """Receive a client's message, through Umnico."""
        message, moment = self._id(), self._moments(1)[0].replace(microsecond=0)
        sent_at = int(moment.timestamp() * 1_000)
        inner = {"messageId": message, "datetime": sent_at, "message": {"text": "Добрый день!"}}
        context = {"leadId": int(self._id()), "accountId": 7}
        self._happened[Entity.MESSAGE, message] = [_ObjectEvent(moment, Action.CREATE, {**context, **inner})]
        request = self._request({"type": "message.incoming", **context, "message": inner})
        yield replace(
            request,
            path=f"{UMNICO_PATH}?token={self._sender.umnico_token}",
            headers={"content-type": "application/json"},
        )


@dataclass(frozen=True, slots=True)
class Change:
    """The content of a generated document."""

    entity: Entity
    action: Action
    fields: Mapping[str, Any]


def _today(change: Change) -> dict[str, Any]:
    return {"event": f"{change.entity}_{change.action}", "payload": dict(change.fields)}


def _as_text(change: Change) -> dict[str, Any]:
    return {"event": f"{change.entity}_{change.action}", "payload": json.dumps(dict(change.fields), ensure_ascii=False)}


def _as_ruby(change: Change) -> dict[str, Any]:
    return {"event": f"{change.entity}_{change.action}", "payload": write_hash(change.fields)}


def _apart(change: Change) -> dict[str, Any]:
    return {
        "entity": str(change.entity),
        "action": f"{change.action}d",
        "data": {str(change.entity): dict(change.fields)},
    }


def _as_model(change: Change) -> dict[str, Any]:
    inner = {name: value for name, value in change.fields.items() if name != "id"}
    return {
        "model": change.entity.capitalize(),
        "action": change.action,
        "id": change.fields["id"],
        "attributes": inner,
    }


SHAPES: Final = (_today, _as_text, _as_ruby, _apart, _as_model)
"""The formats of senders of different versions, for the same content."""
_SHAPE_WEIGHTS: Final = (12, 2, 3, 2, 2)


def write_hash(value: Any) -> str:
    """Format a value the way Ruby prints it."""
    match value:
        case None:
            return "nil"
        case Mapping():
            pairs = (f"{write_hash(str(key))}=>{write_hash(inner)}" for key, inner in value.items())
            return "{" + ", ".join(pairs) + "}"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return json.dumps(value)


_CHANCES: Final[Mapping[Callable[[Simulation], Iterator[SimulatedRequest]], int]] = {
    Simulation._car: 8,  # noqa: SLF001 - the class's own histories
    Simulation._booking: 6,  # noqa: SLF001
    Simulation._out_of_order: 4,  # noqa: SLF001
    Simulation._copied: 3,  # noqa: SLF001
    Simulation._deleted: 3,  # noqa: SLF001
    Simulation._busy: 1,  # noqa: SLF001
    Simulation._forged: 2,  # noqa: SLF001
    Simulation._unknown_shape: 2,  # noqa: SLF001
    Simulation._broken: 1,  # noqa: SLF001
    Simulation._message: 3,  # noqa: SLF001
}
