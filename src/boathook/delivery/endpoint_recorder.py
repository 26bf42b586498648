"""Writes the results of endpoint attempts in batches, with endpoint health and operational webhooks."""

import random
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from boathook.config import RetentionSettings, Settings
from boathook.db.database import Connection
from boathook.db.deliveries import EPOCH
from boathook.db.endpoint_deliveries import (
    BreakerRules,
    ClaimedEndpointDelivery,
    EndpointDeliveryStore,
    FailureSummary,
    FinishedEndpointDelivery,
    OperationalSubscriber,
    find_message_uids,
    find_operational_subscribers,
)
from boathook.db.endpoints import DisabledEndpoint
from boathook.delivery.destination import Recorder
from boathook.delivery.endpoint_queues import EndpointAttempt, EndpointQueue
from boathook.delivery.prepared_endpoint import CONTENT_GONE, GONE, UNAVAILABLE, UNREADABLE
from boathook.domain import ids
from boathook.domain.endpoints import FAILING_AT
from boathook.domain.errors import DatabaseError
from boathook.domain.policy import Complete, DeadLetter, RetryAt, WaitUntil
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import Outbox
from boathook.http_client.messages import TransportFailure
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

_OURS: Final = frozenset({UNAVAILABLE, UNREADABLE, TransportFailure.PROXY.value, TransportFailure.FAULT.value})
"""Failure codes that never disable an endpoint, because the fault may be on our side."""
_DAY_S: Final = 86_400.0
_LOG: Final = get_logger("sender")


class SenderTracer(Protocol):
    """Follows the attempts of one sender."""

    stored_header: str
    """The header, as stored with messages, whose value deliveries are claimed with."""

    def header(self, delivery: ClaimedEndpointDelivery) -> tuple[str, str] | None:
        """Return the header by which an endpoint follows an attempt, its name in lower case; None if it must not."""
        ...

    def record(self, finished: FinishedEndpointDelivery, ended_ns: int, took_s: float) -> None:
        """Note an attempt that ended at *ended_ns* and took *took_s* seconds."""
        ...


class EndpointRecorder(Recorder[EndpointAttempt]):
    """Records attempts at endpoints and updates the health of the endpoints."""

    def __init__(self, store: EndpointDeliveryStore, settings: Settings, tracer: SenderTracer | None) -> None:
        outbound = settings.outbound
        self._store = store
        self._rules = BreakerRules(
            outbound.breaker_after,
            outbound.breaker_pause_s,
            outbound.breaker_max_pause_s,
            outbound.disable_after_days * _DAY_S,
        )
        self._tracer = tracer
        self._operational_webhooks = OperationalWebhooks(settings.retention)

    async def record(self, attempts: Sequence[EndpointAttempt]) -> list[bool]:
        """See `Recorder.record`."""
        finished = [attempt.finished or self._finish(attempt) for attempt in attempts]
        for attempt in attempts:
            if attempt.delivery.is_probe:  # the held probe keeps other senders away until the result is written
                attempt.queue.is_probing = False
        has_operational_event = any(operational_event_type(delivery) for delivery in finished)
        failpoint("send.before_settle")
        fences_held = await self._store.settle(
            finished, after=self._operational_webhooks.publish_attempts if has_operational_event else None
        )
        failpoint("send.after_settle")
        if not all(isinstance(delivery.decision, Complete) for delivery in finished) or any(
            attempt.queue.is_unhealthy or attempt.queue.open_until is not None for attempt in attempts
        ):
            try:
                await self._update_health(attempts, finished)
            except DatabaseError as error:  # the next failure updates the health again
                _LOG.warning("health_not_written", error=str(error))
        return fences_held

    def _finish(self, attempt: EndpointAttempt) -> FinishedEndpointDelivery:
        assert attempt.endpoint is not None
        assert not isinstance(attempt.decision, WaitUntil)  # only handlers wait
        took_s = attempt.took_s or 0.0
        attempt.finished = finished = FinishedEndpointDelivery(
            attempt.delivery,
            attempt.decision,
            ids.make(int(attempt.started_at.timestamp() * 1000), random.getrandbits(74)),
            attempt.endpoint.url,
            attempt.status,
            int(took_s * 1000),
            attempt.request_headers,
            attempt.response,
            attempt.started_at,
        )
        if self._tracer is not None:
            self._tracer.record(finished, attempt.ended_ns or time.time_ns(), took_s)
        return finished

    async def _update_health(
        self, attempts: Sequence[EndpointAttempt], finished: Sequence[FinishedEndpointDelivery]
    ) -> None:
        queues = {attempt.queue.endpoint_id: attempt.queue for attempt in attempts}
        await self._release_probes(
            [
                attempt.queue
                for attempt, delivery in zip(attempts, finished, strict=True)
                if attempt.delivery.is_probe and _is_unsent(delivery)
            ]
        )
        failures, healthy = summarize_health(finished)
        healed = [key for key in healthy if queues[key].is_unhealthy or queues[key].open_until is not None]
        if healed:
            _log_resumed(await self._store.mark_healthy(healed))
        for key in healed:
            queues[key].is_unhealthy = queues[key].is_probing = False
            queues[key].open_until = None
        if not failures:
            return
        health_by_endpoint = await self._store.update_health(failures, self._rules, random.random)
        for key, health in health_by_endpoint.items():
            queue = queues[key]
            queue.is_unhealthy, queue.is_probing, queue.open_until = True, False, health.open_until
            if health.has_closed:
                _log_resumed([key])
            if health.has_opened and health.open_until is not None:
                endpoint, until = ids.show(ids.ENDPOINT, key), health.open_until.isoformat()
                _LOG.warning("endpoint_paused", endpoint=endpoint, next_probe_at=until)
        should_disable = {key for key, health in health_by_endpoint.items() if health.should_disable}
        await self._disable(finished, should_disable)

    async def _release_probes(self, queues: Sequence[EndpointQueue]) -> None:
        """Let another delivery probe these endpoints, immediately."""
        probes = {queue.endpoint_id: queue.open_until for queue in queues if queue.open_until is not None}
        if probes:
            await self._store.release_probes(probes, after_s=0.0)
            for queue in queues:
                queue.open_until = EPOCH

    async def _disable(self, batch: Sequence[FinishedEndpointDelivery], should_disable: set[UUID]) -> None:
        for attempt in batch:
            if isinstance(attempt.decision, Complete):
                continue
            key = attempt.delivery.endpoint_id
            is_gone = attempt.decision.code == GONE
            if not is_gone and key not in should_disable:
                continue
            should_disable.discard(key)
            because = "gone" if is_gone else "failing"
            is_disabled = await self._store.disable(
                key, because, revision=attempt.delivery.revision, then=self._operational_webhooks.publish_disabled
            )
            if is_disabled:
                meters.count("boathook_endpoints_disabled_total", reason=because)
                _LOG.warning("endpoint_disabled", endpoint=ids.show(ids.ENDPOINT, key), because=because)


def _log_resumed(endpoints: Iterable[UUID]) -> None:
    for key in endpoints:
        _LOG.info("endpoint_resumed", endpoint=ids.show(ids.ENDPOINT, key))


def summarize_health(batch: Iterable[FinishedEndpointDelivery]) -> tuple[list[FailureSummary], set[UUID]]:
    """Return the failures of endpoints whose latest attempt failed, and the endpoints where it succeeded.

    *batch* is in the order in which the attempts ended; those for which nothing was sent are left out.
    """
    failures: dict[UUID, FailureSummary] = {}
    succeeded: set[UUID] = set()
    for attempt in batch:
        key = attempt.delivery.endpoint_id
        if isinstance(attempt.decision, Complete):
            failures.pop(key, None)
            succeeded.add(key)
            continue
        if _is_unsent(attempt):
            continue
        previous = failures.get(key)
        failures[key] = FailureSummary(
            endpoint_id=key,
            failed=1 if previous is None else previous.failed + 1,
            is_after_success=key in succeeded,
            is_endpoint_fault=attempt.decision.code not in _OURS
            or (previous is not None and previous.is_endpoint_fault),
            is_probe=attempt.delivery.is_probe or (previous is not None and previous.is_probe),
        )
    return sorted(failures.values(), key=lambda failure: failure.endpoint_id), succeeded - failures.keys()


def _is_unsent(attempt: FinishedEndpointDelivery) -> bool:
    """Return whether the message had nothing to send, which says nothing about the endpoint."""
    return isinstance(attempt.decision, DeadLetter) and attempt.decision.code == CONTENT_GONE


def operational_event_type(attempt: FinishedEndpointDelivery) -> str | None:
    """Return the type of the operational event for an attempt; manual resends have none."""
    if attempt.delivery.is_manual:
        return None
    match attempt.decision:
        case Complete():
            return "message.attempt.recovered" if attempt.delivery.attempt > FAILING_AT else None
        case RetryAt():
            return "message.attempt.failing" if attempt.delivery.attempt == FAILING_AT else None
        case DeadLetter():
            return "message.attempt.exhausted"


class OperationalWebhooks:
    """Publishes operational events in the transaction of their cause; a failure to publish does not roll it back."""

    def __init__(self, retention: RetentionSettings) -> None:
        self._outbox = Outbox.of(retention)

    async def publish_attempts(self, connection: Connection, finished: Sequence[FinishedEndpointDelivery]) -> None:
        """Publish operational webhooks about these attempts to their subscribers."""
        events = [(attempt, kind) for attempt in finished if (kind := operational_event_type(attempt)) is not None]
        if not events:
            return
        subscribers = await find_operational_subscribers(
            connection, list({attempt.delivery.endpoint_id for attempt, _ in events})
        )
        if not subscribers:
            return
        names = await find_message_uids(connection, [attempt.delivery.event_id for attempt, _ in events])
        for attempt, kind in events:
            subscriber = subscribers.get(attempt.delivery.endpoint_id)
            if subscriber is not None:
                data = _attempt(subscriber, attempt, names.get(attempt.delivery.event_id))
                await self._report(connection, subscriber.organization, kind, data)

    async def publish_disabled(self, connection: Connection, endpoint: DisabledEndpoint, since: datetime) -> None:
        """Publish that an endpoint was disabled because it has failed *since*."""
        if endpoint.is_operational:
            return
        data = {**_endpoint(endpoint), "failSince": _moment(since), "trigger": "automatic"}
        if endpoint.endpoint_uid is not None:
            data["endpointUid"] = endpoint.endpoint_uid
        await self._report(connection, endpoint.organization, "endpoint.disabled", data)

    async def _report(self, connection: Connection, organization: str, kind: str, data: dict[str, Any]) -> None:
        try:
            async with connection.transaction():
                await publish_operational_event(
                    self._outbox, connection, organization=organization, type=kind, data=data
                )
        except Exception as error:  # noqa: BLE001 - a webhook about a result must not block the result
            _LOG.error("report_failed", type=kind, endpoint=data["endpointId"], error=repr(error))


def _endpoint(endpoint: OperationalSubscriber | DisabledEndpoint) -> dict[str, Any]:
    data = {
        "appId": ids.show(ids.APPLICATION, endpoint.application_id),
        "endpointId": ids.show(ids.ENDPOINT, endpoint.endpoint_id),
    }
    return data if endpoint.application_uid is None else {**data, "appUid": endpoint.application_uid}


def _attempt(subscriber: OperationalSubscriber, attempt: FinishedEndpointDelivery, name: str | None) -> dict[str, Any]:
    data = {
        **_endpoint(subscriber),
        "msgId": ids.show(ids.MESSAGE, attempt.delivery.event_id),
        "lastAttempt": {
            "id": ids.show(ids.ATTEMPT, attempt.attempt_id),
            "responseStatusCode": attempt.status,
            "timestamp": _moment(attempt.started_at),
        },
    }
    return data if name is None else {**data, "msgEventId": name}


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
