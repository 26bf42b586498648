"""The servers beside PostgreSQL that the demo runs where they are installed: RabbitMQ and Redis."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from boathook.domain.errors import ConfigError
from boathook_demo import rabbitmq, redis_server
from boathook_demo.folder import Folder, ServerProcess

Running = TypeVar("Running")

RABBITMQ_USE: Final = "takes events while PostgreSQL is unavailable, and announces due deliveries"
REDIS_USE: Final = "leases the rates of sources to gateways"


@dataclass(frozen=True, slots=True)
class Services:
    """What runs beside PostgreSQL; an empty text is a server that does not."""

    broker: str = ""
    """The broker's address and port."""
    redis: str = ""
    """The URL of Redis."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the servers to run."""

    has_broker: bool = False
    has_redis: bool = False
    left_out: tuple[str, ...] = ()
    """A sentence for each that is not installed."""


def chosen(buffer: str) -> Choice:
    """Return which servers to run.

    Args:
        buffer: ``auto`` runs what is installed, ``rabbitmq`` needs RabbitMQ, ``disk`` runs neither.

    Raises:
        ConfigError: RabbitMQ is needed, and it or its client is not installed.
    """
    if buffer == "rabbitmq":
        rabbitmq.require()
        return Choice(has_broker=True)
    if buffer == "disk":
        return Choice()
    no_broker, no_redis = _missing(rabbitmq.require), _missing(redis_server.require)
    left_out = [f"RabbitMQ, which {RABBITMQ_USE}: {no_broker}"] if no_broker else []
    left_out += [f"Redis, which {REDIS_USE}: {no_redis}"] if no_redis else []
    return Choice(has_broker=not no_broker, has_redis=not no_redis, left_out=tuple(left_out))


def _missing(require: Callable[[], None]) -> str:
    try:
        require()
    except ConfigError as error:
        return str(error)
    return ""


@contextlib.asynccontextmanager
async def running(folder: Folder, choice: Choice, say: Callable[[str], None]) -> AsyncIterator[Services]:
    """Run the chosen servers until the block ends. Raises BoathookError if one does not start."""
    async with contextlib.AsyncExitStack() as stack:
        broker = redis = ""
        if choice.has_broker:
            say(f"starting RabbitMQ, which {RABBITMQ_USE}")
            (node,) = await stack.enter_async_context(_in_thread(rabbitmq.running_nodes(folder.broker, 1)))
            broker = f"{node.host[0]}:{node.host[1]}"
        if choice.has_redis:
            say(f"starting Redis, which {REDIS_USE}")
            redis = (await stack.enter_async_context(_in_thread(redis_server.running(folder.redis)))).url
        yield Services(broker, redis)


@contextlib.asynccontextmanager
async def _in_thread(manager: AbstractContextManager[Running]) -> AsyncIterator[Running]:
    running = await asyncio.to_thread(manager.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


async def report(services: Services, serving: ServerProcess) -> list[tuple[str, bool]]:
    """Return a sentence for each server on its use by boathook, and whether it is used."""
    lines: list[tuple[str, bool]] = []
    if services.broker:
        announced = await serving.read_metric("boathook_due_lane_messages_total", outcome="received")
        is_away = await serving.read_metric("boathook_due_lane_unavailable")
        is_used = bool(announced) and is_away == 0
        lines.append((f"RabbitMQ announced {_number(announced)} messages of due deliveries", is_used))
    if services.redis:
        is_away = await serving.read_metric("boathook_redis_unavailable")
        state = "unknown" if is_away is None else "unavailable" if is_away else "in use"
        lines.append((f"Redis, for the rates of sources, is {state}", is_away == 0))
    return lines


def _number(value: float | None) -> str:
    return "an unknown number of" if value is None else f"{value:,.0f}"
