"""Diagnoses the brokers, whose queues must keep what they confirm."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from boathook.config import Settings
from boathook.db.buffer_marks import count_lost
from boathook.db.database import Database
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.plurals import counted
from boathook.service.operating.doctor.handlers import CheckStatus, Finding
from boathook_rabbitmq import administration
from boathook_rabbitmq.administration import QueueMembers, QueueStatus
from boathook_rabbitmq.errors import BrokerUnavailable
from boathook_rabbitmq.queues import BUFFER_QUEUES, REFUSED_QUEUE, REPLICAS
from boathook_rabbitmq.settings import brokers_of, holds_events, notifies

_QUEUES: Final = "brokers"
_MEMBERS: Final = "copies"
_REFUSED: Final = "refused"
_LOST: Final = "buffered"


async def examine(settings: Settings, database: Database | None) -> AsyncIterator[Finding]:
    """Yield the findings about the brokers, or with a database about what has arrived there from them."""
    if database is not None:
        if holds_events(settings):
            yield await compare(database)
    elif holds_events(settings) or notifies(settings):
        async for finding in _examine_queues(settings):
            yield finding


async def _examine_queues(settings: Settings) -> AsyncIterator[Finding]:
    try:
        queues = await administration.read_queues(settings)
    except (BrokerUnavailable, ConfigError) as error:
        fix = "see that these hosts run RabbitMQ, and that [buffer] has the right user, password and vhost"
        yield Finding(_QUEUES, CheckStatus.FAIL, str(error), fix)
        return
    yield _arguments(queues)
    if holds_events(settings):
        yield _refused(queues)
    yield await _copies(settings)


async def compare(database: Database) -> Finding:
    """Report events that brokers had confirmed and that never arrived."""
    losses = await count_lost(database)
    if losses.lost and losses.noticed_at is not None:
        text = (
            f"{counted(losses.lost, 'event')} that brokers had confirmed never arrived, until {losses.noticed_at:%F %R}"
        )
        fix = "ask the senders to resend events from the periods in the gateways' logs (`buffered_events_lost`)"
        return Finding(_LOST, CheckStatus.WARN, text, fix)
    return Finding(_LOST, CheckStatus.OK, "everything that brokers confirmed has arrived, as far as it was drained")


def _arguments(queues: Sequence[QueueStatus]) -> Finding:
    wrong = [queue for queue in queues if queue.problem]
    if any(queue.messages is None for queue in wrong):
        missing = next(queue for queue in wrong if queue.messages is None)
        fix = "run `boathook migrate`, which creates the queues, while all brokers are running"
        return Finding(_QUEUES, CheckStatus.FAIL, f"{missing.queue} cannot be used: {missing.problem}", fix)
    if wrong:
        fix = "let gateways drain it, delete it, and run `boathook migrate`; until then they publish nothing there"
        return Finding(_QUEUES, CheckStatus.FAIL, f"{wrong[0].queue} has other arguments: {wrong[0].problem}", fix)
    waiting = sum(queue.messages or 0 for queue in queues if queue.queue in BUFFER_QUEUES)
    return Finding(_QUEUES, CheckStatus.OK, f"{counted(len(queues), 'queue')} as declared, {waiting} messages wait")


def _refused(queues: Sequence[QueueStatus]) -> Finding:
    number = next((queue.messages or 0 for queue in queues if queue.queue == REFUSED_QUEUE), 0)
    if number:
        fix = "the gateways' logs name the reasons; fix them, then run `boathook buffer retry`"
        return Finding(_REFUSED, CheckStatus.WARN, f"{counted(number, 'message')} refused or damaged", fix)
    return Finding(_REFUSED, CheckStatus.OK, "nothing was refused, and nothing was damaged")


async def _copies(settings: Settings) -> Finding:
    if not brokers_of(settings).management_url:
        text = "not checked: how many copies each queue has is known to the management API only"
        return Finding(_MEMBERS, CheckStatus.WARN, text, "set buffer.management_url")
    try:
        queues = await administration.read_members(settings)
    except FetchFailed as error:
        fix = "see that buffer.management_url is right, and that buffer.user has the tag `monitoring` or `management`"
        return Finding(_MEMBERS, CheckStatus.WARN, f"not checked: {error}", fix)
    return check_copies(queues)


def check_copies(queues: Sequence[QueueMembers]) -> Finding:
    """Return the finding about the copies of each queue."""
    fewest = min(queues, key=lambda queue: len(queue.members))
    if len(fewest.members) < REPLICAS:
        copies = counted(len(fewest.members), "copy")
        text = f"{fewest.queue} has {copies} instead of {REPLICAS}: losing one broker may stop it, or lose its events"
        fix = 'run `rabbitmq-queues grow NODE all --queue-pattern "boathook.*"` for each broker without a copy'
        return Finding(_MEMBERS, CheckStatus.FAIL, text, fix)
    for queue in queues:
        offline = sorted(set(queue.members) - set(queue.online))
        if offline:
            text = f"{queue.queue} lacks its copy on {', '.join(offline)}, which is not running"
            return Finding(
                _MEMBERS, CheckStatus.WARN, text, "start it; without two of three copies nothing is confirmed"
            )
    return Finding(_MEMBERS, CheckStatus.OK, f"every queue has at least {REPLICAS} copies, all of them in use")
