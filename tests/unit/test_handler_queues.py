"""What a worker's queues claim, without a database."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from boathook.delivery.dispatcher import DatabaseClock
from boathook.delivery.handler_queues import HandlerQueues
from boathook.domain.policy import Breaker, RetryDefaults
from boathook.handlers.api import Boathook

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
BREAKER = Breaker(dependency="crm", failure_threshold=1, pause_s=10.0)


class SetClock(DatabaseClock):
    """A clock that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.at = NOON

    def now(self) -> datetime:
        return self.at


def test_what_an_open_breaker_has_released_is_claimed_again_once_it_may_probe():
    """Nothing announces these deliveries again, and with the RabbitMQ lane a poll comes every 10 s only."""
    hook, clock = Boathook(), SetClock()

    @hook.on("shop", breaker=BREAKER)
    async def note(_event: Any) -> None:
        pass

    queues = HandlerQueues(
        hook.handlers, 4, store=cast("Any", None), worker_id="w1", lease_s=5.0, retries=RetryDefaults(), clock=clock
    )
    (queue,) = queues.queues.values()
    claims = [cast("Any", object()), cast("Any", object())]
    queue.waiting.extend(claims)
    queues._breakers.record(BREAKER, ConnectionError(), NOON)
    assert set(queues.release()) == set(claims)
    assert not queues._wanted(NOON + timedelta(seconds=9))
    clock.at = NOON + timedelta(seconds=10)
    assert queues._wanted(clock.at) == [(queue, 1)]
