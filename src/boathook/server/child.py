"""Runs a child process from reading its configuration to its exit."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
import uvloop

from boathook.config import Settings
from boathook.domain.errors import BoathookError
from boathook.observability import log
from boathook.observability.live_metrics import LiveMetrics, SnapshotFile
from boathook.server.child_config import HEARTBEAT, PREPARED, READY, ChildConfig, ProcessContext, finish_startup
from boathook.server.process_packages import packages_running

_HEARTBEAT_INTERVAL_S: Final = 0.5
_ORPHAN_S: Final = 5.0
_MAX_READ_BYTES: Final = 65_536


def run_child(role: str, beat: int, bound: int = -1) -> int:
    """Run one role until stopped; return the exit code.

    Args:
        role: the role to run, such as ``gateway``.
        beat: the descriptor of the pipe for heartbeats of the event loop.
        bound: the descriptor of the socket that the supervisor has bound, or -1.
    """
    config, received = _read_config()
    settings = Settings.model_validate_json(config.settings)
    log.configure(settings.log.level, settings.log.format, process=config.slot)
    try:
        uvloop.run(_run(role, config, settings, received, beat, bound))
    except BoathookError as error:
        log.get_logger("server").error("child_failed", error=str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - log any error before the process ends
        log.get_logger("server").error("child_failed", exc_info=error)
        return 1
    finally:
        log.flush()
    return 0


def _read_config() -> tuple[ChildConfig, bytes]:
    """Return the configuration, and any bytes received after it."""
    data = b""
    while b"\n" not in data and (piece := os.read(0, _MAX_READ_BYTES)):
        data += piece
    line, _, rest = data.partition(b"\n")
    return msgspec.json.decode(line, type=ChildConfig), rest


async def _run(
    role: str, config: ChildConfig, settings: Settings, received: bytes, heartbeat_fd: int, socket_fd: int
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    prepared = asyncio.Event()
    _watch_supervisor(loop, stop, prepared, received)
    context = ProcessContext(
        config,
        settings,
        stop,
        lambda: _write_to_supervisor(heartbeat_fd, HEARTBEAT),
        lambda: _write_to_supervisor(heartbeat_fd, READY),
        prepared,
        socket_fd,
    )
    snapshot = SnapshotFile(settings.server.data_dir, config.slot)
    snapshot.restore()
    tasks = [asyncio.create_task(snapshot.run()), asyncio.create_task(_send_heartbeats(context.beat))]
    try:
        with packages_running(settings, config.slot):
            await _run_role(role, context)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_role(role: str, context: ProcessContext) -> None:
    match role:
        case "gateway":
            from boathook.server.gateway import run_gateway

            await run_gateway(context)
        case "worker" | "suspects":
            await _run_worker_role(context, only_suspects=role == "suspects")
        case "sender":
            await _run_sender_role(context)
        case "keeper":
            await _run_keeper_role(context)
        case _:
            raise ValueError(f"there is no role {role!r}")


async def _run_worker_role(context: ProcessContext, *, only_suspects: bool) -> None:
    from boathook.delivery.dispatcher import AttemptStuck
    from boathook.delivery.handler_executor import run_worker
    from boathook.ingest.reply_waiter import inline_sources
    from boathook.server.loading import bound, load_hooks

    hooks = load_hooks(context.settings)
    try:
        async with bound(context.settings, hooks, LiveMetrics(context.settings.server.data_dir, context.config.slot)):
            context.ready()
            finish_startup()
            await run_worker(
                context.settings,
                hooks,
                worker_id=context.config.worker_id,
                only_suspects=only_suspects,
                find_inline=inline_sources,
                stop=context.stop,
                beat=context.beat,
                predecessors=context.config.predecessors,
            )
    except AttemptStuck as error:
        # A thread that cannot be stopped would keep the interpreter from exiting.
        log.get_logger("server").error("worker_stuck", error=str(error))
        log.flush()
        os._exit(1)


async def _run_keeper_role(context: ProcessContext) -> None:
    from boathook.delivery.keeper import run_keeper
    from boathook.server.loading import bound, load_hooks
    from boathook.service.job_steps import make_service_step

    hooks = load_hooks(context.settings)
    live_metrics = LiveMetrics(context.settings.server.data_dir, context.config.slot)
    sampling = asyncio.create_task(live_metrics.run())  # apps' periodic jobs read the last minute's metrics
    try:
        async with bound(context.settings, hooks, live_metrics):
            context.ready()
            finish_startup()
            await run_keeper(
                context.settings,
                hooks=hooks,
                make_service_step=make_service_step,
                stop=context.stop,
                beat=context.beat,
            )
    finally:
        sampling.cancel()


async def _run_sender_role(context: ProcessContext) -> None:
    from boathook.delivery.sender import run_sender

    context.ready()
    finish_startup()
    await run_sender(
        context.settings,
        sender_id=context.config.worker_id,
        stop=context.stop,
        beat=context.beat,
        predecessors=context.config.predecessors,
    )


async def _send_heartbeats(beat: Callable[[], None]) -> None:
    while True:
        beat()
        await asyncio.sleep(_HEARTBEAT_INTERVAL_S)


def _write_to_supervisor(descriptor: int, message: bytes) -> None:
    # A full pipe means that the supervisor is slow; a broken one means that it is gone, which standard input reports.
    with contextlib.suppress(OSError):
        os.write(descriptor, message)


def _watch_supervisor(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, prepared: asyncio.Event, received: bytes
) -> None:
    """Watch standard input in a thread: set *prepared* on its message; exit at its end even if the loop hangs."""
    if PREPARED in received:
        prepared.set()

    def watch() -> None:
        while message := os.read(0, 4096):
            if PREPARED in message:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(prepared.set)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        time.sleep(_ORPHAN_S)
        os._exit(1)

    threading.Thread(target=watch, name="boathook-supervisor-watch", daemon=True).start()
