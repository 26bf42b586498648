"""Runs boathook inside a user's process, on its event loop: the gateway, and deliveries unless other processes do.

It prepares the database as the supervisor does, and runs in tasks what the supervisor runs in processes. So a handler
that blocks the event loop blocks everything, and one that crashes ends the whole process; leases and fences keep the
guarantees intact.
"""

import asyncio
import contextlib
import functools
import platform
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec

from boathook.config import Settings
from boathook.db.due_notifier import DueNotifier, NotifyDue
from boathook.delivery.handler_executor import run_worker
from boathook.delivery.keeper import run_keeper
from boathook.delivery.sender import run_sender
from boathook.domain.errors import BoathookError, DatabaseUnavailable
from boathook.handlers.api import Boathook
from boathook.handlers.hooks import Hooks
from boathook.http.asgi import Asgi
from boathook.ingest.reply_waiter import inline_sources
from boathook.observability import log
from boathook.observability.live_metrics import LiveMetrics, SnapshotFile
from boathook.server.gateway import IngestRuntime
from boathook.server.gateway_sources import load_sources
from boathook.server.loading import bound, load_app, load_hooks, migrations_of
from boathook.server.process_packages import packages_running
from boathook.server.sampler import Sampler
from boathook.server.supervisor import (
    check_settings,
    instance_prefix,
    open_postgresql,
    prepare_database,
    try_prepare,
)
from boathook.service.job_steps import make_service_step

_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 10.0
_STOP_GRACE_S: Final = 3.0
_LOG = log.get_logger("server")


class RunningServer(msgspec.Struct, frozen=True):
    """boathook's interface for the host process."""

    app: Asgi
    """Answers requests to sources, by the ``path`` of their scope."""
    hook: Boathook
    """The handlers of `server.app`; an empty object without that setting."""
    notify_due: NotifyDue
    """Starts a search for due deliveries at once, after a commit of published events."""


@contextlib.asynccontextmanager
async def run_in_process(
    settings: Settings, apps: Sequence[Boathook], *, delivers: bool
) -> AsyncIterator[RunningServer]:
    """Run boathook for the duration of the block; without PostgreSQL, it starts and writes events to the spool.

    Args:
        settings: the settings, extended by the sources of *apps*.
        apps: the apps of `apps.load`.
        delivers: whether to run handlers, send messages and maintain the database too.

    Raises:
        ConfigError: a setting or the handlers are wrong; the message says what to write.
        DatabaseError: PostgreSQL is unsafe or refuses the schema, or cannot be reached and there is no spool.
    """
    hooks = load_hooks(settings)
    check_settings(settings, hooks)
    async with contextlib.AsyncExitStack() as stack:
        slot = f"{stack.enter_context(instance_prefix(settings.server.data_dir))}app-0"
        log.configure(settings.log.level, settings.log.format, is_guest=True, process=slot)
        settings, _ = await stack.enter_async_context(open_postgresql(settings))
        prepare = functools.partial(prepare_database, settings, hooks, migrations_of(apps))
        prepared = asyncio.Event()
        if await try_prepare(prepare, can_wait=settings.accepts_without_database):
            prepared.set()
        stack.enter_context(packages_running(settings, slot))
        live_metrics = LiveMetrics(settings.server.data_dir, slot)
        await stack.enter_async_context(_counting(settings, slot, live_metrics))
        await stack.enter_async_context(bound(settings, hooks, live_metrics))
        runtime = IngestRuntime(settings, load_sources(settings), live_metrics, prepared=prepared)
        await stack.enter_async_context(runtime)
        notifier = DueNotifier(runtime.announce)
        await stack.enter_async_context(_in_background(notifier.run()))
        await stack.enter_async_context(_in_background(_until_prepared(prepare, prepared)))
        if delivers:
            await stack.enter_async_context(_delivering(settings, hooks, slot, prepared))
        yield RunningServer(runtime.app, load_app(settings), notifier.notify)


@contextlib.asynccontextmanager
async def _in_background(*works: Awaitable[None]) -> AsyncIterator[None]:
    """Run *works* until the end of the block."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _counting(settings: Settings, slot: str, live_metrics: LiveMetrics) -> AsyncIterator[None]:
    """Write the metrics of this process, as each process of `boathook serve` does, and sample those of the host."""
    snapshot = SnapshotFile(settings.server.data_dir, slot)
    snapshot.restore()
    sampler = Sampler(settings, slot)
    async with _in_background(snapshot.run(), live_metrics.run()):
        sampler.start()
        try:
            yield
        finally:
            await sampler.stop()


async def _until_prepared(prepare: Callable[[], Awaitable[None]], prepared: asyncio.Event) -> None:
    """Prepare the database once it is available."""
    while not prepared.is_set():
        await asyncio.sleep(_RETRY_S)
        try:
            await prepare()
        except DatabaseUnavailable as error:
            _LOG.debug("database_still_unavailable", error=str(error))
        except BoathookError as error:
            _LOG.error("cannot_serve", error=str(error))
        else:
            prepared.set()


@contextlib.asynccontextmanager
async def _delivering(settings: Settings, hooks: Hooks, slot: str, prepared: asyncio.Event) -> AsyncIterator[None]:
    """Run handlers, senders and the keeper; at the end of the block, finish or release what they hold."""
    # The limit would count for the whole program.
    settings = settings.model_copy(update={"worker": settings.worker.model_copy(update={"memory_mb": 0})})
    stop = asyncio.Event()

    async def work(name: str, *, only_suspects: bool) -> None:
        await run_worker(
            settings,
            hooks,
            worker_id=name,
            only_suspects=only_suspects,
            find_inline=inline_sources,
            stop=stop,
            beat=_ignore_beat,
        )

    roles: dict[str, Callable[[str], Awaitable[None]]] = {
        "sender": lambda name: run_sender(settings, sender_id=name, stop=stop, beat=_ignore_beat),
        "keeper": lambda _: run_keeper(
            settings, hooks=hooks, make_service_step=make_service_step, stop=stop, beat=_ignore_beat
        ),
    }
    if hooks.handlers:
        roles["worker"] = functools.partial(work, only_suspects=False)
        roles["suspects"] = functools.partial(work, only_suspects=True)
    tasks = [
        asyncio.create_task(_run_role(f"{slot}-{role}", run, prepared, stop), name=f"boathook:{role}")
        for role, run in roles.items()
    ]
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait(tasks, timeout=settings.server.drain_s + _STOP_GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_role(
    name: str, run: Callable[[str], Awaitable[None]], prepared: asyncio.Event, stop: asyncio.Event
) -> None:
    """Run one role until *stop* is set; after an error, start it again under a new worker id."""
    pause_s = _RETRY_S
    await _either(prepared, stop)
    while not stop.is_set():
        try:
            await run(f"{name}@{platform.node()}:{uuid.uuid4().hex[:12]}")
        except Exception as error:  # noqa: BLE001 - nothing else would report the end of a task of the user's loop
            _LOG.error("role_failed", role=name, exc_info=error, restart_in_s=pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)
            pause_s = min(_MAX_RETRY_S, pause_s * 2)


async def _either(*events: asyncio.Event) -> None:
    """Wait until one of *events* is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _ignore_beat() -> None:
    """Take the heartbeat that a supervisor would watch."""
