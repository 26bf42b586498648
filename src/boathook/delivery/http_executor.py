"""Sends messages over HTTP: builds a signed request for each claimed delivery and classifies its response."""

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from boathook.config import Settings
from boathook.db.database import Database, wait_for_database
from boathook.db.deliveries import DeliveryStore
from boathook.db.endpoint_deliveries import EndpointDeliveryStore
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.delivery.destination import Executor
from boathook.delivery.dispatcher import DatabaseClock, Dispatcher
from boathook.delivery.due_receiver import open_notifier
from boathook.delivery.endpoint_queues import EndpointAttempt, EndpointQueues
from boathook.delivery.endpoint_recorder import EndpointRecorder, SenderTracer
from boathook.delivery.http_attempt import (
    CONTENT_GONE,
    PreparedEndpoint,
    build_request,
    classify_response,
    read_message_headers,
    recorded_headers,
    redact,
)
from boathook.domain import ids
from boathook.domain.errors import FetchFailed
from boathook.domain.policy import Failure, Result, Superseded
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from boathook.http_client.oauth import TokenCache
from boathook.http_client.sender import HttpSender
from boathook.observability import meters, tracer
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

TOKEN_UNAVAILABLE: Final = "OAUTH"  # noqa: S105 - a code, not a secret
"""Failure code of an attempt for which no access token could be obtained."""
_CONTENT_DELETED: Final = Failure(code=CONTENT_GONE, error="the message's content was deleted", is_final=True)
_UNAUTHORIZED: Final = 401
CONNECTIONS: Final = 5
_UNANSWERED_S: Final = 60.0
"""Seconds past the endpoint's timeout after which a request without any result is abandoned."""


class HttpExecutor(Executor[EndpointAttempt]):
    """Sends the requests of one sender process."""

    def __init__(self, settings: Settings, sender_tracer: SenderTracer | None = None) -> None:
        proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
        self._settings = settings.outbound.model_copy(update={"proxy": proxy})
        self._message_headers = read_message_headers(self._settings)
        self._http_sender = HttpSender(self._settings, on_results=self._answered)
        self._outgoing: list[OutgoingRequest] = []
        """Requests of this event-loop iteration, which are sent together."""
        self._given_up: set[EndpointAttempt] = set()
        self._token_cache: TokenCache | None = None
        self._seconds = meters.histogram("boathook_endpoint_request_seconds")
        self._tracer = sender_tracer
        self._is_closed = False

    async def execute(self, attempt: EndpointAttempt) -> Result:
        """Send one message."""
        endpoint = attempt.endpoint
        assert endpoint is not None
        attempt.overdue_at = time.monotonic() + _UNANSWERED_S + endpoint.timeout_s
        if endpoint.target is None or attempt.delivery.body is None:
            attempt.took_s = 0.0
            return endpoint.fault or _CONTENT_DELETED
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
        assert endpoint.target is not None
        attempt.took_s, attempt.status, attempt.ended_ns = answer.duration_s, answer.status, time.time_ns()
        attempt.request_headers = recorded_headers(answer.request, endpoint.target)
        attempt.response = redact(answer.body, endpoint.secrets) if answer.body else b""
        bearer = endpoint.target.bearer
        if answer.status == _UNAUTHORIZED and bearer is not None and self._token_cache is not None:
            self._token_cache.drop(bearer)
        return classify_response(answer)

    async def _with_token(self, endpoint: PreparedEndpoint, oauth: Mapping[str, str]) -> PreparedEndpoint:
        """Return the endpoint with an access token, from the cache or newly requested."""
        if self._token_cache is None:
            self._token_cache = TokenCache(self._settings, user_agent=self._message_headers.user_agent)
        token = await self._token_cache.token(
            oauth["tokenUrl"], oauth["clientId"], oauth["clientSecret"], oauth.get("scope")
        )
        return endpoint.with_token(token)

    async def _post(self, attempt: EndpointAttempt, endpoint: PreparedEndpoint) -> RequestResult:
        delivery, loop = attempt.delivery, asyncio.get_running_loop()
        assert endpoint.target is not None
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


def make_sender(
    settings: Settings,
    *,
    own: Database,
    secret_box: SecretBox,
    sender_id: str,
    executor: Executor[EndpointAttempt] | None = None,
) -> Dispatcher[EndpointAttempt]:
    """Create the dispatcher for endpoints on the given connections; see `run_sender`.

    Args:
        executor: makes the attempts; None: over HTTP.
    """
    installed, clock = tracer.current(), DatabaseClock()
    sender_tracer: SenderTracer | None = None if installed is None else installed.open_sender()
    store = EndpointDeliveryStore(
        own, worker=sender_id, kept_header=None if sender_tracer is None else sender_tracer.stored_header
    )
    return Dispatcher(
        EndpointQueues(settings, store=store, secret_box=secret_box, clock=clock),
        HttpExecutor(settings, sender_tracer) if executor is None else executor,
        EndpointRecorder(store, settings, sender_tracer),
        database=own,
        deliveries=DeliveryStore(own, settings.retry_defaults()),
        clock=clock,
        settings=settings,
        log=get_logger("sender").bind(worker=sender_id),
        notifier=open_notifier(settings, "endpoints", clock.seconds),
    )


async def run_sender(
    settings: Settings,
    *,
    sender_id: str,
    stop: asyncio.Event,
    beat: Callable[[], None],
    predecessors: Sequence[str] = (),
) -> None:
    """Run one sender until *stop* is set, then finish or release its claimed deliveries.

    Args:
        sender_id: A new, unique id; names the holder of this process's leases.
        beat: Called twice a second while the event loop is alive.
        predecessors: Ids of senders known to be dead, whose leases are reaped immediately.

    Raises:
        ConfigError: an encryption key or the proxy cannot be read.
    """
    database, secret_box = settings.database, open_secret_box(settings)
    open_own = functools.partial(
        Database.open,
        database.url,
        purpose="sender",
        size=CONNECTIONS,
        connect_timeout_s=database.connect_timeout_s,
        statement_timeout_s=database.statement_timeout_s,
        is_reset=False,
        is_queue=True,
    )
    async with wait_for_database(stop, open_own) as own:
        if own is not None:
            sender = make_sender(settings, own=own, secret_box=secret_box, sender_id=sender_id)
            await sender.run(stop, beat, predecessors=predecessors)
