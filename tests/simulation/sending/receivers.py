"""Simulated endpoints with scripted behaviour, and an HTTP sender in virtual time that replaces libcurl."""

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from boathook.delivery.endpoint_queues import EndpointAttempt
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from tests.simulation.handlers import Killed
from tests.simulation.loop import PROCESS, Process, VirtualLoop
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Endpoint

_NEVER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Reply:
    """The response of an endpoint to one request."""

    status: int
    after_s: float
    headers: tuple[tuple[str, str], ...] = ()
    failure: TransportFailure | None = None
    """The error that the sender sees instead of the response."""

    @property
    def is_taken(self) -> bool:
        """Whether the endpoint has processed the message, even if its response is lost."""
        return 200 <= self.status < 300


@dataclass
class EndpointReceiver:
    """The receiver of one endpoint."""

    endpoint: Endpoint
    behaviours: Sequence[str]
    is_ordered: bool = False
    behaviour: str = "ok"
    under_way: list[EndpointAttempt] = field(default_factory=list)

    def change_behaviour(self, rng: random.Random) -> None:
        """Switch to another behaviour."""
        self.behaviour = rng.choice(self.behaviours)

    def reply(self, rng: random.Random, timeout_s: float) -> Reply:
        """Return the reply to a request."""
        soon_s = 0.001 + rng.random() * 0.03
        match self.behaviour:
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
                return Reply(200, soon_s, failure=TransportFailure.READ)
            case _:
                return Reply(200, soon_s)


class WireRecorder(Protocol):
    """Records what happens on the network."""

    def arrived(self, receiver: EndpointReceiver, attempt: EndpointAttempt, request: OutgoingRequest) -> None: ...

    def taken(self, attempt: EndpointAttempt) -> None: ...

    def told_success(self, attempt: EndpointAttempt) -> None: ...


class Network:
    """The network between senders and endpoints."""

    def __init__(
        self, loop: VirtualLoop, rng: random.Random, receivers: Sequence[EndpointReceiver], recorder: WireRecorder
    ) -> None:
        self.loop = loop
        self.receivers = {receiver.endpoint.url: receiver for receiver in receivers}
        self._rng = rng
        self._recorder = recorder
        loop.network = self  # type: ignore[attr-defined]

    def carry(self, courier: "Courier", request: OutgoingRequest) -> None:
        """Carry a request to its endpoint."""
        receiver = self.receivers[request.url]
        if receiver.behaviour == "refused":
            courier.answer(request, 0.001, Reply(0, 0.001, failure=TransportFailure.CONNECT))
            return
        self._later(self._rng.random() * 0.01, lambda: self._arrive(receiver, courier, request))

    def _arrive(self, receiver: EndpointReceiver, courier: "Courier", request: OutgoingRequest) -> None:
        attempt = request.token
        assert isinstance(attempt, EndpointAttempt)
        self._recorder.arrived(receiver, attempt, request)
        receiver.under_way.append(attempt)
        reply = receiver.reply(self._rng, request.timeout_s)
        if reply.is_taken:
            self._later(min(reply.after_s, request.timeout_s), lambda: self._recorder.taken(attempt))
        if reply.after_s >= request.timeout_s:
            sometimes("an endpoint took a message and answered too late", if_=reply.is_taken)
            reply = Reply(0, request.timeout_s, failure=TransportFailure.TIMEOUT)
        sometimes(
            "the answer of an endpoint that took a message was lost", if_=reply.is_taken and reply.failure is not None
        )
        self._later(reply.after_s, lambda: self._leave(receiver, courier, request, reply))

    def _leave(self, receiver: EndpointReceiver, courier: "Courier", request: OutgoingRequest, reply: Reply) -> None:
        attempt = request.token
        assert isinstance(attempt, EndpointAttempt)
        receiver.under_way.remove(attempt)
        if reply.is_taken and reply.failure is None:
            self._recorder.told_success(attempt)
        courier.answer(request, reply.after_s, reply)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self.loop.call_later(seconds, do, context=self.loop.world.context)


class Courier:
    """The interface of boathook's HTTP sender, in the process that creates it."""

    def __init__(self, _settings: object, *, on_results: Callable[[list[RequestResult]], None]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._network: Network = loop.network  # type: ignore[attr-defined]
        self._process: Process = PROCESS.get(loop.world)
        self._context = contextvars.copy_context()
        self._done = on_results
        self._is_closed = False

    def send(self, batch: Sequence[OutgoingRequest]) -> None:
        """Begin these requests."""
        if self._is_closed:
            raise RuntimeError("the sender is closed")
        for request in batch:
            self._network.carry(self, request)

    def close(self) -> None:
        """Stop recording."""
        self._is_closed = True

    def answer(self, request: OutgoingRequest, took_s: float, reply: Reply) -> None:
        """Deliver a response to the sender as soon as it runs."""
        status = 0 if reply.failure is not None else reply.status
        answer = RequestResult(
            request=request, status=status, headers=dict(reply.headers), body=b"", duration_s=took_s,
            failure=reply.failure, error="" if reply.failure is None else "it did not work",
        )  # fmt: skip
        self._loop.call_later(0.0001, self._tell, answer, context=self._context)

    def _tell(self, answer: RequestResult) -> None:
        if self._is_closed:
            return
        with contextlib.suppress(Killed):  # the process that would have heard more is dead
            self._done([answer])


def key_of(attempt: EndpointAttempt) -> tuple[Any, int]:
    """Return the delivery that a request is for."""
    return attempt.delivery.event_id, attempt.delivery.ordinal
