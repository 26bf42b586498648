"""One attempt after another: claimed deliveries become signed requests, and their answers ended attempts."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from boathook.config import Settings
from boathook.dispatch.lanes import Flight
from boathook.dispatch.posts import Destination
from boathook.dispatch.traced import SendTraces
from boathook.domain import ids
from boathook.domain.errors import FetchFailed
from boathook.domain.policy import Bury, Failure, Move, Settle, Standing, Success, TryAgain, decide
from boathook.journal.sending import Ended, Send
from boathook.outbound.attempt import compose, read_letterhead, recorded_headers, redact, verdict
from boathook.outbound.courier import Answer, Courier, Trouble
from boathook.outbound.oauth import TokenDesk
from boathook.outbound.outgoing import Outgoing
from boathook.telemetry import emit, tracing
from boathook.telemetry.crashpoints import crash_point

UNGRANTED: Final = "OAUTH"
"""The code of an attempt for which no access token was to be had."""
_EXPUNGED: Final = Failure(code="CONTENT_GONE", error="the message's content was deleted", is_final=True)
_SUCCEEDED: Final = Settle()
_REFUSED: Final = 401

Done = Callable[[Flight, Ended, float], None]


class Mailing:
    """Makes the requests of one sender.

    Args:
        now: the journal's time.
        done: told of each attempt that has ended, with the seconds it took.
        turn: called after each round of answers.
    """

    def __init__(
        self, settings: Settings, *, now: Callable[[], datetime], done: Done, turn: Callable[[], None]
    ) -> None:
        proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
        self._settings = settings.outbound.model_copy(update={"proxy": proxy})
        self._letterhead = read_letterhead(self._settings)
        self._now = now
        self._done = done
        self._turn = turn
        self._courier = Courier(self._settings, done=self._answered)
        self._desk: TokenDesk | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._seconds = emit.histogram("boathook_send_seconds")
        tracer = tracing.current()
        self._traces = None if tracer is None else SendTraces(tracer)

    def send(self, flights: Sequence[Flight]) -> None:
        """Begin an attempt at each; what cannot be sent ends at once."""
        batch: list[Outgoing] = []
        now, now_ms = self._now(), time.time_ns() // 1_000_000
        for flight in flights:
            flight.destination = destination = flight.lane.destination
            flight.started_at = now
            flight.attempt_id = ids.make(now_ms, random.getrandbits(74))
            if destination is None or destination.target is None or flight.send.body is None:
                self._conclude(flight, (destination and destination.fault) or _EXPUNGED)
            elif destination.oauth is not None:
                self._ask(flight, destination)
            else:
                batch.append(self._compose(flight, destination))
        if batch:
            self._courier.send(batch)

    def close(self) -> None:
        """Give up what is under way; of that nothing is told any more."""
        for task in self._asking:
            task.cancel()
        self._courier.close()
        if self._desk is not None:
            self._desk.close()

    def _ask(self, flight: Flight, destination: Destination) -> None:
        task = asyncio.create_task(self._send_bearing(flight, destination))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _send_bearing(self, flight: Flight, destination: Destination) -> None:
        """Send with an access token, asked for where none is at hand."""
        if self._desk is None:
            self._desk = TokenDesk(self._settings, user_agent=self._letterhead.user_agent)
        oauth = destination.oauth or {}
        began = time.monotonic()
        try:
            token = await self._desk.token(
                oauth["tokenUrl"], oauth["clientId"], oauth["clientSecret"], oauth.get("scope")
            )
        except FetchFailed as error:
            self._conclude(flight, Failure(code=UNGRANTED, error=str(error)), took_s=time.monotonic() - began)
            self._turn()
            return
        flight.destination = destination.bearing(token)
        self._courier.send([self._compose(flight, flight.destination)])

    def _compose(self, flight: Flight, destination: Destination) -> Outgoing:
        send = flight.send
        assert destination.target is not None
        assert send.body is not None
        return compose(
            self._letterhead,
            destination.target,
            message_id=ids.show(ids.MESSAGE, send.event_id),
            timestamp=int(time.time()),
            body=send.body,
            content_type=send.content_type or "application/json",
            token=flight,
            traceparent=None if self._traces is None else self._traces.header(send),
        )

    def _answered(self, answers: list[Answer]) -> None:
        for answer in answers:
            flight = answer.outgoing.token
            assert isinstance(flight, Flight)
            if answer.trouble is Trouble.CLOSED:
                continue
            crash_point("send.after_response")
            self._seconds.observe(answer.duration_s)
            self._conclude(flight, verdict(answer), took_s=answer.duration_s, answer=answer)
        self._turn()

    def _conclude(
        self, flight: Flight, outcome: Success | Failure, *, took_s: float = 0.0, answer: Answer | None = None
    ) -> None:
        """Decide what follows an attempt, and tell of its end."""
        destination = flight.destination
        assert destination is not None
        assert flight.attempt_id is not None
        assert flight.started_at is not None
        headers = response = None
        if answer is not None and destination.target is not None:
            headers = recorded_headers(answer.outgoing, destination.target)
            response = redact(answer.body, destination.secrets) if answer.body else b""
            self._heed_refusal(answer, destination)
        ended = Ended(
            send=flight.send,
            move=self._decide(flight.send, outcome, destination),
            attempt_id=flight.attempt_id,
            url=destination.url,
            status=answer.status if answer is not None else 0,
            duration_ms=int(took_s * 1000),
            request_headers=headers,
            response=response,
            started_at=flight.started_at,
        )
        if self._traces is not None:
            self._traces.record(ended, took_s)
        self._done(flight, ended, took_s)

    def _heed_refusal(self, answer: Answer, destination: Destination) -> None:
        bearer = destination.target.bearer if destination.target is not None else None
        if answer.status == _REFUSED and bearer is not None and self._desk is not None:
            self._desk.drop(bearer)

    def _decide(self, send: Send, outcome: Success | Failure, destination: Destination) -> Settle | TryAgain | Bury:
        if isinstance(outcome, Success):
            return _SUCCEEDED
        standing = Standing(attempt=send.attempt, owed_since=send.owed_since)
        move: Move = decide(standing, outcome, destination.policy, self._now(), random.random())
        # Who asks for one attempt by hand gets one.
        return Bury(move.code, move.error) if send.is_manual and isinstance(move, TryAgain) else move
