"""One attempt after another: claimed deliveries become signed requests, and their answers ended attempts."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from boathook.config import Settings
from boathook.db.endpoint_deliveries import ClaimedSend, FinishedSend
from boathook.delivery.endpoint_queues import Attempt
from boathook.delivery.http_attempt import (
    build_request,
    classify_response,
    read_message_headers,
    recorded_headers,
    redact,
)
from boathook.delivery.prepared_endpoint import PreparedEndpoint
from boathook.delivery.tracing import SendTraces
from boathook.domain import ids
from boathook.domain.errors import FetchFailed
from boathook.domain.policy import AttemptState, Complete, DeadLetter, Decision, Failure, RetryAt, Success, decide
from boathook.http_client.messages import OutgoingRequest
from boathook.http_client.oauth import TokenCache
from boathook.http_client.sender import HttpSender, RequestResult, TransportFailure
from boathook.observability import meters, tracing
from boathook.observability.failpoints import failpoint

TOKEN_UNAVAILABLE: Final = "OAUTH"  # noqa: S105 - a code, not a secret
"""The code of an attempt for which no access token was to be had."""
_CONTENT_DELETED: Final = Failure(code="CONTENT_GONE", error="the message's content was deleted", is_final=True)
_SUCCEEDED: Final = Complete()
_REFUSED: Final = 401

Done = Callable[[Attempt, FinishedSend, float], None]


class HttpExecutor:
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
        self._message_headers = read_message_headers(self._settings)
        self._now = now
        self._done = done
        self._turn = turn
        self._http_sender = HttpSender(self._settings, done=self._answered)
        self._token_cache: TokenCache | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._seconds = meters.histogram("boathook_send_seconds")
        tracer = tracing.current()
        self._traces = None if tracer is None else SendTraces(tracer)

    def send(self, attempts: Sequence[Attempt]) -> None:
        """Begin an attempt at each; what cannot be sent ends at once."""
        batch: list[OutgoingRequest] = []
        now, now_ms = self._now(), time.time_ns() // 1_000_000
        for attempt in attempts:
            attempt.endpoint = endpoint = attempt.queue.endpoint
            attempt.started_at = now
            attempt.attempt_id = ids.make(now_ms, random.getrandbits(74))
            if endpoint is None or endpoint.target is None or attempt.send.body is None:
                self._conclude(attempt, (endpoint and endpoint.fault) or _CONTENT_DELETED)
            elif endpoint.oauth is not None:
                self._ask(attempt, endpoint)
            else:
                batch.append(self._compose(attempt, endpoint))
        if batch:
            self._http_sender.send(batch)

    def close(self) -> None:
        """Give up what is under way; of that nothing is told any more."""
        for task in self._asking:
            task.cancel()
        self._http_sender.close()
        if self._token_cache is not None:
            self._token_cache.close()

    def _ask(self, attempt: Attempt, endpoint: PreparedEndpoint) -> None:
        task = asyncio.create_task(self._send_with_token(attempt, endpoint))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _send_with_token(self, attempt: Attempt, endpoint: PreparedEndpoint) -> None:
        """Send with an access token, asked for where none is at hand."""
        if self._token_cache is None:
            self._token_cache = TokenCache(self._settings, user_agent=self._message_headers.user_agent)
        oauth = endpoint.oauth or {}
        began = time.monotonic()
        try:
            token = await self._token_cache.token(
                oauth["tokenUrl"], oauth["clientId"], oauth["clientSecret"], oauth.get("scope")
            )
        except FetchFailed as error:
            self._conclude(attempt, Failure(code=TOKEN_UNAVAILABLE, error=str(error)), took_s=time.monotonic() - began)
            self._turn()
            return
        attempt.endpoint = endpoint.with_token(token)
        self._http_sender.send([self._compose(attempt, attempt.endpoint)])

    def _compose(self, attempt: Attempt, endpoint: PreparedEndpoint) -> OutgoingRequest:
        send = attempt.send
        assert endpoint.target is not None
        assert send.body is not None
        return build_request(
            self._message_headers,
            endpoint.target,
            message_id=ids.show(ids.MESSAGE, send.event_id),
            timestamp=int(time.time()),
            body=send.body,
            content_type=send.content_type or "application/json",
            token=attempt,
            traceparent=None if self._traces is None else self._traces.header(send),
        )

    def _answered(self, answers: list[RequestResult]) -> None:
        for answer in answers:
            attempt = answer.request.token
            assert isinstance(attempt, Attempt)
            if answer.failure is TransportFailure.CLOSED:
                continue
            failpoint("send.after_response")
            self._seconds.observe(answer.duration_s)
            self._conclude(attempt, classify_response(answer), took_s=answer.duration_s, answer=answer)
        self._turn()

    def _conclude(
        self, attempt: Attempt, outcome: Success | Failure, *, took_s: float = 0.0, answer: RequestResult | None = None
    ) -> None:
        """Decide what follows an attempt, and tell of its end."""
        endpoint = attempt.endpoint
        assert endpoint is not None
        assert attempt.attempt_id is not None
        assert attempt.started_at is not None
        headers = response = None
        if answer is not None and endpoint.target is not None:
            headers = recorded_headers(answer.request, endpoint.target)
            response = redact(answer.body, endpoint.secrets) if answer.body else b""
            self._drop_rejected_token(answer, endpoint)
        ended = FinishedSend(
            send=attempt.send,
            move=self._decide(attempt.send, outcome, endpoint),
            attempt_id=attempt.attempt_id,
            url=endpoint.url,
            status=answer.status if answer is not None else 0,
            duration_ms=int(took_s * 1000),
            request_headers=headers,
            response=response,
            started_at=attempt.started_at,
        )
        if self._traces is not None:
            self._traces.record(ended, took_s)
        self._done(attempt, ended, took_s)

    def _drop_rejected_token(self, answer: RequestResult, endpoint: PreparedEndpoint) -> None:
        bearer = endpoint.target.bearer if endpoint.target is not None else None
        if answer.status == _REFUSED and bearer is not None and self._token_cache is not None:
            self._token_cache.drop(bearer)

    def _decide(
        self, send: ClaimedSend, outcome: Success | Failure, endpoint: PreparedEndpoint
    ) -> Complete | RetryAt | DeadLetter:
        if isinstance(outcome, Success):
            return _SUCCEEDED
        standing = AttemptState(attempt=send.attempt, owed_since=send.owed_since)
        move: Decision = decide(standing, outcome, endpoint.policy, self._now(), random.random())
        # Who asks for one attempt by hand gets one.
        return DeadLetter(move.code, move.error) if send.is_manual and isinstance(move, RetryAt) else move
