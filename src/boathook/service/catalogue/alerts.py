"""Operations on alerts and their channels; lists of alerts have filters and pages of their own."""

import secrets
from datetime import UTC, datetime
from typing import Annotated, Final

from boathook.alerts.channel import SendFailed
from boathook.alerts.notifier import Notifier
from boathook.db.audit import record
from boathook.domain import ids
from boathook.domain.alerts import AlertEntry, AlertMessage, AlertMessageKind
from boathook.domain.errors import NotFound
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import Result
from boathook.service.fields import Input, Rule
from boathook.service.unit_of_work import UnitOfWork, new_id

TAG: Final = "Alert"


class ChannelNamed(Input, frozen=True, kw_only=True):
    """The alert channel that is meant."""

    channel: Annotated[str, Rule(help="Channel name.", argument="CHANNEL", example="ops")]


class ChannelTested(Result, frozen=True, kw_only=True):
    """The outcome of a test message."""

    channel: str
    sent: Annotated[bool, Rule(help="Whether the channel accepted the message.")]
    error: Annotated[str | None, Rule(help="Why it did not; null if it did.")] = None


@operation(
    "alert.test",
    Permission.ALERT_MANAGE,
    Scope.DEPLOYMENT,
    Http("POST", "/alert-channel/{channel}/test"),
    tag=TAG,
    undo=None,
    examples=("boathook alerts test ops",),
)
async def test(work: UnitOfWork, target: ChannelNamed) -> ChannelTested:
    """Send a test message to an alert channel, and return whether it was accepted."""
    settings, name = work.app_context.settings, target.channel
    if name not in settings.notifications.channels:
        raise NotFound(f"unknown channel {name!r}; add it under notifications.channels in boathook.toml")
    await record(work.connection, work.actor, "alert.test", name)
    now = datetime.now(UTC)
    entry = AlertEntry(
        id=ids.show(ids.ALERT, new_id()),
        kind=AlertMessageKind.TEST,
        rule="test",
        subject="",
        severity="warning",
        summary=f"{work.actor} tests whether messages arrive at {name}; this is a test",
        advice="",
        page="/console/alerts",
        value=0.0,
        worst=0.0,
        fired_at=now,
    )
    message = AlertMessage(f"ntc_{secrets.token_hex(16)}", now, [entry], settings.server.public_url)
    notifier = Notifier(settings)
    try:
        outcome = await notifier.send(name, message)
    finally:
        notifier.close()
    error = outcome.error if isinstance(outcome, SendFailed) else None
    return ChannelTested(channel=name, sent=error is None, error=error)
