"""Sends messages over HTTP: builds a signed request for each claimed delivery and classifies its response."""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Final

from boathook.db.endpoint_deliveries import EndpointConfig
from boathook.delivery.endpoint_executor import EndpointExecutor, ExecutorContext
from boathook.delivery.endpoint_queues import EndpointAttempt
from boathook.delivery.http_attempt import (
    HttpEndpoint,
    build_request,
    classify_response,
    prepare_endpoint,
    read_message_headers,
    recorded_headers,
)
from boathook.delivery.prepared_endpoint import CONTENT_DELETED
from boathook.delivery.response_redaction import redact
from boathook.domain import ids
from boathook.domain.errors import FetchFailed
from boathook.domain.policy import Failure, Result, RetryPolicy, Superseded
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from boathook.http_client.oauth import TokenCache
from boathook.http_client.sender import HttpSender
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

TOKEN_UNAVAILABLE: Final = "OAUTH"  # noqa: S105 - a code, not a secret
"""Failure code of an attempt for which no access token could be obtained."""
_UNAUTHORIZED: Final = 401
_UNANSWERED_S: Final = 60.0
"""Seconds past the endpoint's timeout after which a request without any result is abandoned."""


class HttpExecutor(EndpointExecutor):
    """Sends the requests of one sender process."""

    def __init__(self, context: ExecutorContext) -> None:
        settings = context.settings
        proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
        self._settings = settings.outbound.model_copy(update={"proxy": proxy})
        self._message_headers = read_message_headers(self._settings)
        self._http_sender = HttpSender(self._settings, on_results=self._answered)
        self._outgoing: list[OutgoingRequest] = []
        """Requests of this event-loop iteration, which are sent together."""
        self._given_up: set[EndpointAttempt] = set()
        self._token_cache: TokenCache | None = None
        self._seconds = meters.histogram("boathook_endpoint_request_seconds")
        self._tracer = context.tracer
        self._is_closed = False

    def prepare(self, config: EndpointConfig, policy: RetryPolicy, timeout_s: float) -> HttpEndpoint:
        """See `EndpointExecutor.prepare`."""
        return prepare_endpoint(config, self, policy, timeout_s)

    async def execute(self, attempt: EndpointAttempt) -> Result:
        """Send one message."""
        endpoint = attempt.endpoint
        assert isinstance(endpoint, HttpEndpoint)
        attempt.overdue_at = time.monotonic() + _UNANSWERED_S + endpoint.timeout_s
        if attempt.delivery.body is None:
            attempt.took_s = 0.0
            return CONTENT_DELETED
        try:
            if endpoint.oauth is not None:
                endpoint = await self._with_token(endpoint, endpoint.oauth)
            answer = await self._post(attempt, endpoint)
        except FetchFailed as error:
            return Failure(code=TOKEN_UNAVAILABLE, error=str(error))
        except asyncio.CancelledError:
            if attempt not in self._given_up:
                raise
            self._given_up.discard(attempt)
            return Superseded()
        failpoint("send.after_response")
        self._seconds.observe(answer.duration_s)
        attempt.took_s, attempt.status, attempt.ended_ns = answer.duration_s, answer.status, time.time_ns()
        attempt.request_headers = recorded_headers(answer.request, endpoint.target)
        attempt.response = redact(answer.body, endpoint.secrets) if answer.body else b""
        bearer = endpoint.target.bearer
        if answer.status == _UNAUTHORIZED and bearer is not None and self._token_cache is not None:
            self._token_cache.drop(bearer)
        return classify_response(answer)

    async def _with_token(self, endpoint: HttpEndpoint, oauth: Mapping[str, str]) -> HttpEndpoint:
        """Return the endpoint with an access token, from the cache or newly requested."""
        if self._token_cache is None:
            self._token_cache = TokenCache(self._settings, user_agent=self._message_headers.user_agent)
        token = await self._token_cache.token(
            oauth["tokenUrl"], oauth["clientId"], oauth["clientSecret"], oauth.get("scope")
        )
        return endpoint.with_token(token)

    async def _post(self, attempt: EndpointAttempt, endpoint: HttpEndpoint) -> RequestResult:
        delivery, loop = attempt.delivery, asyncio.get_running_loop()
        assert delivery.body is not None
        answer: asyncio.Future[RequestResult] = loop.create_future()
        attempt.answer = answer
        if not self._outgoing:
            loop.call_soon(self._flush)
        self._outgoing.append(
            build_request(
                self._message_headers,
                endpoint.target,
                message_id=ids.show(ids.MESSAGE, delivery.event_id),
                timestamp=int(time.time()),
                body=delivery.body,
                content_type=delivery.content_type or "application/json",
                token=attempt,
                extra=None if self._tracer is None else self._tracer.header(delivery),
            )
        )
        return await answer

    def _flush(self) -> None:
        """Send the requests of one event-loop iteration together."""
        batch, self._outgoing = self._outgoing, []
        if not self._is_closed:
            self._http_sender.send(batch)

    def _answered(self, answers: list[RequestResult]) -> None:
        for answer in answers:
            attempt = answer.request.token
            assert isinstance(attempt, EndpointAttempt)
            if (
                answer.failure is not TransportFailure.CLOSED
                and attempt.answer is not None
                and not attempt.answer.done()
            ):
                attempt.answer.set_result(answer)

    def check(self, running: Collection[EndpointAttempt]) -> str | None:
        """Abandon requests without any result, which is a fault on our side; the keeper reaps their leases."""
        now = time.monotonic()
        for attempt in running:
            if now > attempt.overdue_at and attempt.task is not None and attempt not in self._given_up:
                get_logger("sender").error("request_unanswered", delivery=attempt.fields()["delivery"])
                self._given_up.add(attempt)
                attempt.task.cancel()
        return None

    async def stop(self) -> None:
        """Cancel the requests in flight; their results are dropped."""
        self._is_closed = True
        self._http_sender.close()
        if self._token_cache is not None:
            self._token_cache.close()
