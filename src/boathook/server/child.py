"""A child process from its first line to its end."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import uvloop

from boathook.config import Settings
from boathook.domain.errors import BoathookError
from boathook.server.collector import end_start
from boathook.server.order import BEAT, PREPARED, READY, Life, Order
from boathook.server.traces import traced
from boathook.telemetry import log
from boathook.telemetry.exporters import History, SnapshotFile

_BEAT_S: Final = 0.5
_ORPHAN_S: Final = 5.0
_MOST_AT_ONCE: Final = 65_536


def run_child(role: str, beat: int, bound: int = -1) -> int:
    """Run one role until told to stop; return the exit code.

    Args:
        beat: the descriptor of the pipe on which the event loop shows that it turns.
        bound: the descriptor of the socket that the supervisor has bound, or -1.
    """
    order, heard = _read_order()
    settings = Settings.model_validate_json(order.settings)
    log.configure(settings.log.level, settings.log.format, process=order.slot)
    try:
        uvloop.run(_live(role, order, settings, heard, beat, bound))
    except BoathookError as error:
        log.get_logger("server").error("child_failed", error=str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the last word of a dying process
        log.get_logger("server").error("child_failed", exc_info=error)
        return 1
    finally:
        log.flush()
    return 0


def _read_order() -> tuple[Order, bytes]:
    """Return the order, and what was said right behind it."""
    data = b""
    while b"\n" not in data and (piece := os.read(0, _MOST_AT_ONCE)):
        data += piece
    line, _, rest = data.partition(b"\n")
    return msgspec.json.decode(line, type=Order), rest


async def _live(role: str, order: Order, settings: Settings, heard: bytes, beat: int, bound: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    prepared = asyncio.Event()
    _hear_supervisor(loop, stop, prepared, heard)
    life = Life(order, settings, stop, lambda: _tell(beat, BEAT), lambda: _tell(beat, READY), prepared, bound)
    snapshot = SnapshotFile(settings.server.data_dir, order.slot)
    snapshot.continue_from_last()
    chores = [asyncio.create_task(snapshot.keep_writing()), asyncio.create_task(_keep_beating(life.beat))]
    if _is_reporter(role, order.slot, settings.server.roles):
        from boathook.dispatch.alarms.service import run_reporter

        chores.append(asyncio.create_task(run_reporter(settings, order.slot)))
    try:
        with traced(settings, order.slot):
            await _play(role, life)
    finally:
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)


def _is_reporter(role: str, slot: str, roles: Sequence[str]) -> bool:
    """Return whether this process tells the journal what all of its host have counted: one of them does."""
    chosen = next((one for one in ("keeper", "worker", "gateway") if one in roles), "")
    return role == chosen and slot.endswith(f"{chosen}-0")


async def _play(role: str, life: Life) -> None:
    match role:
        case "gateway":
            from boathook.server.gateway import run_gateway

            await run_gateway(life)
        case "worker" | "suspects":
            await _handle(life, only_suspects=role == "suspects")
        case "sender":
            await _send(life)
        case "keeper":
            await _keep(life)
        case _:
            raise ValueError(f"there is no role {role!r}")


async def _handle(life: Life, *, only_suspects: bool) -> None:
    from boathook.dispatch.worker import Stuck, run_worker
    from boathook.inbound.inline import inline_sources
    from boathook.server.loading import bound, load_hooks

    life.ready()
    hooks = load_hooks(life.settings)
    try:
        async with bound(life.settings, hooks, History(life.settings.server.data_dir, life.order.slot)):
            end_start()
            await run_worker(
                life.settings,
                hooks,
                worker_id=life.order.worker_id,
                only_suspects=only_suspects,
                inline=inline_sources(life.settings),
                stop=life.stop,
                beat=life.beat,
                predecessors=life.order.predecessors,
            )
    except Stuck as error:
        # A thread that cannot be stopped would keep the interpreter from ending.
        log.get_logger("server").error("worker_stuck", error=str(error))
        log.flush()
        os._exit(1)


async def _keep(life: Life) -> None:
    from boathook.dispatch.keeper import run_keeper
    from boathook.server.loading import bound, load_hooks

    life.ready()
    hooks = load_hooks(life.settings)
    history = History(life.settings.server.data_dir, life.order.slot)
    sampling = asyncio.create_task(history.keep_sampling())  # apps' chores look at the last minute
    try:
        async with bound(life.settings, hooks, history):
            end_start()
            await run_keeper(life.settings, hooks=hooks, stop=life.stop, beat=life.beat)
    finally:
        sampling.cancel()


async def _send(life: Life) -> None:
    from boathook.dispatch.sender import run_sender

    life.ready()
    end_start()
    await run_sender(
        life.settings,
        sender_id=life.order.worker_id,
        stop=life.stop,
        beat=life.beat,
        predecessors=life.order.predecessors,
    )


async def _keep_beating(beat: Callable[[], None]) -> None:
    while True:
        beat()
        await asyncio.sleep(_BEAT_S)


def _tell(descriptor: int, what: bytes) -> None:
    # A full pipe means that the supervisor is slow, a broken one that it is gone; standard input tells the latter.
    with contextlib.suppress(OSError):
        os.write(descriptor, what)


def _hear_supervisor(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, prepared: asyncio.Event, heard: bytes
) -> None:
    """Hear that the ground is prepared, and end when standard input does, even if the event loop no longer turns."""
    if PREPARED in heard:
        prepared.set()

    def watch() -> None:
        while said := os.read(0, 4096):
            if PREPARED in said:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(prepared.set)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)
        time.sleep(_ORPHAN_S)
        os._exit(1)

    threading.Thread(target=watch, name="boathook-supervisor-watch", daemon=True).start()
