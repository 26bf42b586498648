"""Generates traffic of RentProg and Umnico, and the table contents expected once all of it is handled.

Everything derives from the seed: histories of single objects, each with its own problems. Each request is a recorded or
documented example with other values, see `example_requests`. A history is to be sent in order, each request after the
response to the one before it: RentProg names no time. Late repetitions are part of the histories.
"""

import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any, Final, Literal

from boathook_app_tools.simulation import SimulatedRequest, interleave
from boathook_fleet.example_requests import read, vary
from boathook_fleet.settings import ALIAS, PATH, UMNICO_PATH
from boathook_fleet.words import Entity

MODELS: Final = ("Kia Rio", "Hyundai Solaris", "Skoda Octavia", "Haval Jolion")
NAMES: Final = ("Иван Петров", "Anna Schmidt", "Мария Кузнецова", "John O'Neil", 'Lev "Fast" Orlov')
STATES: Final = ("Новая", "Активная", "Завершена")
BRANCHES: Final = (4_310, 5_872)


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
    """The number of distinct changes, late ones included."""
    late: int
    """The number of late changes, which are not applied."""


class Simulation:
    """Generates *histories* objects and all requests about them.

    Args:
        sender: How requests are proven.
        histories: The number of objects.
        seed: Determines ids and problems; equal seeds give equal ids.
        now: The time before which messages were sent.
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
        self._kept: dict[tuple[Entity, str], dict[str, Any]] = {}
        self._deleted: set[tuple[Entity, str]] = set()
        self._changes = self._late_changes = 0
        self._named: set[tuple[Entity, str]] = set()
        self._unknown = 0
        kinds = [kind for kind in _CHANCES if sender.umnico_token or kind is not Simulation._message]
        drawn = [*kinds, *self._rng.choices(kinds, [_CHANCES[kind] for kind in kinds], k=histories)][:histories]
        self.histories: tuple[tuple[SimulatedRequest, ...], ...] = tuple(tuple(kind(self)) for kind in drawn)
        self.requests: tuple[SimulatedRequest, ...] = tuple(interleave(self.histories, self._rng))

    def expected(self) -> Expected:
        """Return the expected table contents once every request is handled."""
        # Changes are applied together, so a branch that a car has left meanwhile may never have been referenced.
        branches = {(Entity.BRANCH, str(data["company_id"])) for data in self._kept.values() if data.get("company_id")}
        objects = {key: ExpectedObject(data={}, is_stub=True) for key in self._named | branches}
        for key, data in self._kept.items():
            objects[key] = ExpectedObject(data=data, is_deleted=key in self._deleted)
        return Expected(things=objects, unknown=self._unknown, changes=self._changes, late=self._late_changes)

    def _id(self) -> str:
        return str(next(self._numbers))

    def _report(
        self, example: str, id: str, values: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> SimulatedRequest:
        """Record a change as *example* reports it, and return the request.

        Args:
            example: the name of the example.
            id: the object.
            values: the fields after the change.
            before: the values before of those that are sent as pairs.
        """
        name, action, *_ = example.split("_")
        entity = Entity(name)
        pairs = {name: [before[name], value] if before and name in before else value for name, value in values.items()}
        self._kept.setdefault((entity, id), {}).update({"id": int(id), **values})
        if action == "destroy":
            self._deleted.add((entity, id))
        self._changes += 1
        return self._request(vary(example, {"id": int(id), **pairs}))

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

    def _again(self, request: SimulatedRequest) -> SimulatedRequest:
        """Return a request again, after newer ones: an event, but too late."""
        self._changes += 1
        self._late_changes += 1
        return request

    def _create_car(self, car: str) -> SimulatedRequest:
        if self._rng.random() < 0.5:
            values: dict[str, Any] = {"model": self._rng.choice(MODELS), "plate_number": f"QA{car[-3:]}AQ"}
            return self._report("car_create_ruby", car, {**values, "company_id": self._rng.choice(BRANCHES)})
        values = {"car_name": self._rng.choice(MODELS), "number": f"QB{car[-3:]}BQ", "year": 2021, "state": 0}
        return self._report("car_create_object", car, {**values, "company_id": self._rng.choice(BRANCHES)})

    def _drive(self, car: str, mileages: Sequence[int]) -> Iterator[SimulatedRequest]:
        """Report each mileage after the one before it."""
        examples = ("car_update_ruby", "car_update_clean_ruby", "car_update_object")
        for before, mileage in pairwise(mileages):
            yield self._report(self._rng.choice(examples), car, {"mileage": mileage}, {"mileage": before})

    def _mileages(self, number: int) -> list[int]:
        return sorted(self._rng.sample(range(200_000), number))

    def _car(self) -> Iterator[SimulatedRequest]:
        """Buy a car, use it, and move it to another branch."""
        car = self._id()
        yield self._create_car(car)
        yield from self._drive(car, self._mileages(4))
        branches = [self._kept[Entity.CAR, car]["company_id"], BRANCHES[-1] + 1]
        example = self._rng.choice(("car_update_branch_ruby", "car_update_branch_object"))
        yield self._report(example, car, {"company_id": branches[1]}, {"company_id": branches[0]})

    def _late(self) -> Iterator[SimulatedRequest]:
        """Repeat a creation and the first update of a car late."""
        car = self._id()
        created = self._create_car(car)
        yield created
        updates = list(self._drive(car, self._mileages(4)))
        yield from updates
        yield self._again(updates[0])
        yield self._again(created)

    def _copied(self) -> Iterator[SimulatedRequest]:
        """Report one change repeatedly."""
        client = self._id()
        values = {"name": self._rng.choice(NAMES), "email": f"c{client}@example.com"}
        yield from [self._report("client_create_object", client, values)] * self._rng.randint(2, 5)

    def _booking(self) -> Iterator[SimulatedRequest]:
        """Rent a car to a client, and let the booking's state go to and fro; car and client may be unknown yet."""
        booking, car, client, employee = (self._id() for _ in range(4))
        self._named |= {(Entity.CAR, car), (Entity.CLIENT, client), (Entity.EMPLOYEE, employee)}
        dates = {"start_date": "25-01-2027 10:00", "end_date": "27-01-2027 9:30"}
        values = {"car_id": int(car), "client_id": int(client), "company_id": BRANCHES[0], "state": STATES[0],
                  "total": 12_500.5, **dates}  # fmt: skip
        yield self._report(self._rng.choice(("booking_create_ruby", "booking_create_object")), booking, values)
        for before, after in (STATES[:2], STATES[1::-1], STATES[:2], STATES[1:3]):
            example = self._rng.choice(("booking_update_ruby", "booking_update_text", "booking_update_object"))
            yield self._report(example, booking, {"state": after}, {"state": before})
        responsible = {"responsible": self._rng.choice(NAMES), "responsible_id": int(employee)}
        yield self._report("booking_update_responsible_ruby", booking, responsible, dict.fromkeys(responsible, None))
        yield self._report("booking_update_total_ruby", booking, {"total": 13_000.0}, {"total": values["total"]})
        moved = {"start_date": "25-01-2027 9:00", "end_date": "26-01-2027 21:00"}
        yield self._report("booking_update_dates_ruby", booking, moved, dates)
        client_fields = {"name": self._rng.choice(NAMES), "phone": "+995500000002"}
        yield self._report("client_create_ruby", client, client_fields)

    def _deleted_client(self) -> Iterator[SimulatedRequest]:
        """Delete a client, and repeat an earlier change afterwards."""
        client = self._id()
        yield self._report("client_create_ruby", client, {"name": self._rng.choice(NAMES), "phone": "+995500000001"})
        update = self._report("client_update_ruby", client, {"phone": "+995500000003"}, {"phone": "+995500000001"})
        yield update
        yield self._report(self._rng.choice(("client_destroy_ruby", "client_destroy_object")), client, {})
        yield self._again(update)

    def _busy(self) -> Iterator[SimulatedRequest]:
        """Change one car many times within a minute."""
        yield from self._drive(self._id(), self._mileages(self._burst + 1))

    def _forged(self) -> Iterator[SimulatedRequest]:
        """Forge a request with known content before the real one is sent."""
        real = self._create_car(self._id())
        yield self._posted(real.body, expect=401, token="guessed")  # noqa: S106 a wrong one
        yield real

    def _unknown_shape(self) -> Iterator[SimulatedRequest]:
        """Send a request that cannot be parsed."""
        number = int(self._id())
        self._unknown += 1
        yield self._request(
            self._rng.choice(
                (
                    vary("car_moved_ruby", {"id": number, "location": "Tbilisi"}),
                    vary("car_update_ruby", {"mileage": [number, number + 1]}),
                )
            )
        )

    def _broken(self) -> Iterator[SimulatedRequest]:
        """Send a body that is not JSON."""
        yield self._posted(b'{"event": "car_update", ' + self._id().encode(), expect=400)

    def _message(self) -> Iterator[SimulatedRequest]:
        """Receive a client's message, through Umnico."""
        message, sent_at = self._id(), int(self._now.timestamp() * 1_000)
        document = read("message_incoming")
        document["leadId"] = int(self._id())
        document["message"] |= {"messageId": message, "datetime": sent_at}
        context = {"leadId": document["leadId"], "accountId": document["accountId"]}
        self._kept[Entity.MESSAGE, message] = {**context, **document["message"]}
        self._changes += 1
        yield replace(
            self._request(document),
            path=f"{UMNICO_PATH}?token={self._sender.umnico_token}",
            headers={"content-type": "application/json"},
        )


_CHANCES: Final[Mapping[Callable[[Simulation], Iterator[SimulatedRequest]], int]] = {
    Simulation._car: 8,  # noqa: SLF001 - the class's own histories
    Simulation._booking: 6,  # noqa: SLF001
    Simulation._late: 4,  # noqa: SLF001
    Simulation._copied: 3,  # noqa: SLF001
    Simulation._deleted_client: 3,  # noqa: SLF001
    Simulation._busy: 1,  # noqa: SLF001
    Simulation._forged: 2,  # noqa: SLF001
    Simulation._unknown_shape: 2,  # noqa: SLF001
    Simulation._broken: 1,  # noqa: SLF001
    Simulation._message: 3,  # noqa: SLF001
}
