"""Runs a sender: claims due deliveries to endpoints, and attempts each by the executor of its endpoint."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Final

from boathook.config import Settings
from boathook.db.database import Database, wait_for_database
from boathook.db.deliveries import DeliveryStore
from boathook.db.endpoint_deliveries import EndpointDeliveryStore
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.delivery.destination import Executor
from boathook.delivery.dispatcher import DatabaseClock, Dispatcher
from boathook.delivery.due_receiver import open_notifier
from boathook.delivery.endpoint_executor import EndpointExecutors
from boathook.delivery.endpoint_queues import EndpointAttempt, EndpointQueues
from boathook.delivery.endpoint_recorder import EndpointRecorder, SenderTracer
from boathook.observability import tracer
from boathook.observability.log import get_logger

CONNECTIONS: Final = 5


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
        executor: makes the attempts; None: that of each endpoint's kind of destination.
    """
    installed, clock = tracer.current(), DatabaseClock()
    sender_tracer: SenderTracer | None = None if installed is None else installed.open_sender()
    executors = EndpointExecutors(settings, sender_tracer)
    store = EndpointDeliveryStore(
        own, worker=sender_id, kept_header=None if sender_tracer is None else sender_tracer.stored_header
    )
    return Dispatcher(
        EndpointQueues(settings, store=store, secret_box=secret_box, clock=clock, prepare=executors.prepare),
        executors if executor is None else executor,
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
