"""Endpoints that follow their moods, and a courier that carries requests there in virtual time, without libcurl."""

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from boathook.dispatch.lanes import Flight
from boathook.outbound.outgoing import Answer, Outgoing, Trouble
from tests.simulation.handlers import Killed
from tests.simulation.loop import PROCESS, Process, VirtualLoop
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Endpoint

_NEVER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint does with one request."""

    status: int
    after_s: float
    headers: tuple[tuple[str, str], ...] = ()
    trouble: Trouble | None = None
    """What the sender sees in place of the answer."""

    @property
    def is_taken(self) -> bool:
        """Whether the endpoint has done what the message asks for, whatever the sender hears of it."""
        return 200 <= self.status < 300


@dataclass
class Place:
    """An endpoint's receiver."""

    endpoint: Endpoint
    moods: Sequence[str]
    is_ordered: bool = False
    mood: str = "ok"
    under_way: list[Flight] = field(default_factory=list)

    def turn(self, rng: random.Random) -> None:
        """Take on another mood."""
        self.mood = rng.choice(self.moods)

    def reply(self, rng: random.Random, timeout_s: float) -> Reply:
        """Decide about a request that has arrived."""
        soon_s = 0.001 + rng.random() * 0.03
        match self.mood:
            case "slow":
                return Reply(200, rng.random() * 1.5 * timeout_s)
            case "5xx":
                return Reply(500, soon_s)
            case "429":
                return Reply(429, soon_s, headers=(("retry-after", str(rng.randint(1, 4))),))
            case "410":
                return Reply(410, soon_s)
            case "hang":
                return Reply(0, _NEVER_S)
            case "flapping":
                return Reply(rng.choice((200, 503)), soon_s)
            case "answer lost":
                return Reply(200, soon_s, trouble=Trouble.READ)
            case _:
                return Reply(200, soon_s)


class Witness(Protocol):
    """Who judges what happens on the wire."""

    def arrived(self, place: Place, flight: Flight, outgoing: Outgoing) -> None: ...

    def taken(self, flight: Flight) -> None: ...

    def told_success(self, flight: Flight) -> None: ...


class Network:
    """Everything between senders and endpoints."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, places: Sequence[Place], witness: Witness) -> None:
        self.loop = loop
        self.places = {place.endpoint.url: place for place in places}
        self._rng = rng
        self._witness = witness
        loop.network = self  # type: ignore[attr-defined]

    def carry(self, courier: "Courier", outgoing: Outgoing) -> None:
        """Bring a request to its endpoint."""
        place = self.places[outgoing.url]
        if place.mood == "refused":
            courier.answer(outgoing, 0.001, Reply(0, 0.001, trouble=Trouble.CONNECT))
            return
        self._later(self._rng.random() * 0.01, lambda: self._arrive(place, courier, outgoing))

    def _arrive(self, place: Place, courier: "Courier", outgoing: Outgoing) -> None:
        flight = outgoing.token
        assert isinstance(flight, Flight)
        self._witness.arrived(place, flight, outgoing)
        place.under_way.append(flight)
        reply = place.reply(self._rng, outgoing.timeout_s)
        if reply.is_taken:
            self._later(min(reply.after_s, outgoing.timeout_s), lambda: self._witness.taken(flight))
        if reply.after_s >= outgoing.timeout_s:
            sometimes("an endpoint took a message and answered too late", if_=reply.is_taken)
            reply = Reply(0, outgoing.timeout_s, trouble=Trouble.TIMEOUT)
        sometimes(
            "the answer of an endpoint that took a message was lost", if_=reply.is_taken and reply.trouble is not None
        )
        self._later(reply.after_s, lambda: self._leave(place, courier, outgoing, reply))

    def _leave(self, place: Place, courier: "Courier", outgoing: Outgoing, reply: Reply) -> None:
        flight = outgoing.token
        assert isinstance(flight, Flight)
        place.under_way.remove(flight)
        if reply.is_taken and reply.trouble is None:
            self._witness.told_success(flight)
        courier.answer(outgoing, reply.after_s, reply)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self.loop.call_later(seconds, do, context=self.loop.world.context)


class Courier:
    """The courier's interface, in the process of whoever makes it."""

    def __init__(self, _settings: object, *, done: Callable[[list[Answer]], None]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._network: Network = loop.network  # type: ignore[attr-defined]
        self._process: Process = PROCESS.get(loop.world)
        self._context = contextvars.copy_context()
        self._done = done
        self._is_closed = False

    def send(self, batch: Sequence[Outgoing]) -> None:
        """Begin these requests."""
        if self._is_closed:
            raise RuntimeError("the courier is closed")
        for outgoing in batch:
            self._network.carry(self, outgoing)

    def close(self) -> None:
        """Tell nothing more."""
        self._is_closed = True

    def answer(self, outgoing: Outgoing, took_s: float, reply: Reply) -> None:
        """Let the sender have an answer, as soon as it runs."""
        status = 0 if reply.trouble is not None else reply.status
        answer = Answer(
            outgoing=outgoing, status=status, headers=dict(reply.headers), body=b"", duration_s=took_s,
            trouble=reply.trouble, error="" if reply.trouble is None else "it did not work",
        )  # fmt: skip
        self._loop.call_later(0.0001, self._tell, answer, context=self._context)

    def _tell(self, answer: Answer) -> None:
        if self._is_closed:
            return
        with contextlib.suppress(Killed):  # whoever would have heard more is dead
            self._done([answer])


def key_of(flight: Flight) -> tuple[Any, int]:
    """Return the delivery that a request is for."""
    return flight.send.event_id, flight.send.ordinal
