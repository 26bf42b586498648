"""What an organization is told of its own sending, decided from attempts as they are settled."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from boathook.db.database import Connection
from boathook.db.endpoint_deliveries import (
    FinishedSend,
    OperationalSubscriber,
    find_message_uids,
    find_operational_subscribers,
)
from boathook.db.endpoints import DisabledEndpoint
from boathook.domain import ids
from boathook.domain.endpoints import FAILING_AT
from boathook.domain.policy import Complete, DeadLetter, RetryAt
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import Outbox
from boathook.observability.log import get_logger

_LOG: Final = get_logger("sender")


def operational_event_type(one: FinishedSend) -> str | None:
    """Return the type of the operational event that an attempt gives rise to; a resend by hand gives rise to none."""
    if one.send.is_manual:
        return None
    match one.move:
        case Complete():
            return "message.attempt.recovered" if one.send.attempt > FAILING_AT else None
        case RetryAt():
            return "message.attempt.failing" if one.send.attempt == FAILING_AT else None
        case DeadLetter():
            return "message.attempt.exhausted"


class OperationalWebhooks:
    """Publishes operational events in the transaction of what they tell of; one that fails holds up nothing."""

    def __init__(self) -> None:
        self._outbox = Outbox()

    async def publish_attempts(self, connection: Connection, held: Sequence[FinishedSend]) -> None:
        """Tell of the attempts that are worth it to whoever listens."""
        news = [(one, kind) for one in held if (kind := operational_event_type(one)) is not None]
        if not news:
            return
        told = await find_operational_subscribers(connection, list({one.send.endpoint_id for one, _ in news}))
        if not told:
            return
        names = await find_message_uids(connection, [one.send.event_id for one, _ in news])
        for one, kind in news:
            listener = told.get(one.send.endpoint_id)
            if listener is not None:
                data = _attempt(listener, one, names.get(one.send.event_id))
                await self._report(connection, listener.organization, kind, data)

    async def publish_disabled(self, connection: Connection, endpoint: DisabledEndpoint, since: datetime) -> None:
        """Tell that an endpoint was disabled because it has failed *since*."""
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
        except Exception as error:  # noqa: BLE001 - what is told must not hold up what it tells of
            _LOG.error("report_failed", type=kind, endpoint=data["endpointId"], error=repr(error))


def _endpoint(endpoint: OperationalSubscriber | DisabledEndpoint) -> dict[str, Any]:
    data = {
        "appId": ids.show(ids.APPLICATION, endpoint.application_id),
        "endpointId": ids.show(ids.ENDPOINT, endpoint.endpoint_id),
    }
    return data if endpoint.application_uid is None else {**data, "appUid": endpoint.application_uid}


def _attempt(listener: OperationalSubscriber, one: FinishedSend, name: str | None) -> dict[str, Any]:
    data = {
        **_endpoint(listener),
        "msgId": ids.show(ids.MESSAGE, one.send.event_id),
        "lastAttempt": {
            "id": ids.show(ids.ATTEMPT, one.attempt_id),
            "responseStatusCode": one.status,
            "timestamp": _moment(one.started_at),
        },
    }
    return data if name is None else {**data, "msgEventId": name}


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
