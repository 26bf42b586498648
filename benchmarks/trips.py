"""How many functions of the package, and of how many files, one event passes through: ``python -m benchmarks.trips``.

Three trips are measured, each by the process that makes it in production:

inbound    the gateway: a request signed like GitHub's, over a new connection, until it is committed and answered
handler    a worker: from the notification of one delivery until its handler's transaction has settled it
outbound   a publisher and a sender: from publishing one message until its delivery over HTTP is recorded

A function counts if each of several equal trips calls it, in any thread: the first trip, with its imports and empty
caches, is not measured, and timers that happen to fire during one of the others do not count. What the package
generates, such as the methods of dataclasses, is no function of a file.
"""

import argparse
import asyncio
import contextlib
import functools
import inspect
import json
import operator
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg
import uvloop

import boathook
from benchmarks.bare_clients import urls
from benchmarks.delivery_setup import (
    ACTION,
    DeliverySetup,
    create_setup,
    make_message,
    settings_for,
    wait_for_sender,
)
from benchmarks.environment import BenchmarkEnvironment
from benchmarks.handle import make_table
from benchmarks.handlers import hook
from benchmarks.load import SECRET
from benchmarks.page_client import PageClient
from boathook.cli import output
from boathook.config import Settings, load
from boathook.db import route_registry
from boathook.db.database import Database
from boathook.delivery.handler_executor import run_worker
from boathook.delivery.sender import run_sender
from boathook.domain.errors import ConfigError
from boathook.domain.model import Route
from boathook.observability import log
from boathook.server.child_config import ChildConfig, ProcessContext
from boathook.server.gateway import run_gateway
from boathook.service.operating import operations
from boathook.testing import Signed, signed_request

PACKAGE: Final = Path(boathook.__file__).parent
_ROUNDS: Final = 5
_SETTLE_S: Final = 0.05
"""How long a trip is watched after its end, for what is left to others: notifications, counters, closed connections."""
_POLL_INTERVAL_S: Final = 0.005
_TIMEOUT_S: Final = 60.0
_BODY_BYTES: Final = 1_024
_COLUMNS: Final = tuple(
    output.Column(name, operator.itemgetter(name), is_whole=True) for name in ("trip", "functions", "files")
)

Trip = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A function of the package."""

    file: str
    """Its path below the package."""
    name: str
    """Its qualified name."""


class CallRecorder:
    """Records which functions of the package are called, in this thread and those that start while it is installed."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        self._is_on = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have calls reported for the time of the block; `record` says which are recorded."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call":
            self._codes.add(frame.f_code)

    async def record(self, trip: Trip) -> frozenset[Function]:
        """Make one trip and return the functions that it called."""
        self._codes.clear()
        self._is_on = True
        try:
            await trip()
            await asyncio.sleep(_SETTLE_S)
        finally:
            self._is_on = False
        return frozenset(_functions(self._codes))


def _functions(codes: Iterable[CodeType]) -> Iterable[Function]:
    for code in codes:
        file = Path(code.co_filename)
        # A class's body is no function; a lambda or a comprehension is part of the function around it.
        if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<") and file.is_relative_to(PACKAGE):
            yield Function(file.relative_to(PACKAGE).as_posix(), code.co_qualname)


async def _measure(recorder: CallRecorder, trips: Sequence[Trip]) -> frozenset[Function]:
    """Make these equal trips; return the functions that each of them called, the first left out."""
    async with asyncio.timeout(_TIMEOUT_S):
        first, *others = trips
        await first()
        return frozenset.intersection(*[await recorder.record(trip) for trip in others])


@contextlib.asynccontextmanager
async def _running(process: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run what runs until its event is set, for the time of the block."""
    stop = asyncio.Event()
    task = asyncio.create_task(process(stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def _inbound(recorder: CallRecorder, settings: Settings) -> frozenset[Function]:
    database = await Database.open(settings.database.url, purpose="benchmark", size=1)
    route = Route(recipient="handler:benchmark", app="benchmark", source="github")
    await route_registry.register(database, "benchmark", [route])
    await database.close()
    listening = socket.create_server(("127.0.0.1", 0))
    port: int = listening.getsockname()[1]
    prepared, ready = asyncio.Event(), asyncio.Event()
    prepared.set()
    config = ChildConfig("gateway-0", "gateway-0@benchmark", [], "")

    async def gateway(stop: asyncio.Event) -> None:
        await run_gateway(ProcessContext(config, settings, stop, _nothing, ready.set, prepared, listening.detach()))

    async with _running(gateway):
        async with asyncio.timeout(_TIMEOUT_S):
            await ready.wait()
        return await _measure(recorder, _posts(port, "github"))


async def _handler(recorder: CallRecorder, settings: Settings, port: int) -> frozenset[Function]:
    connection = await asyncpg.connect(settings.database.url)

    async def make_trip(post: Trip) -> None:
        await post()
        await _wait_until_delivered(connection)

    async def worker(stop: asyncio.Event) -> None:
        await run_worker(settings, hook, worker_id="benchmark", stop=stop, beat=_nothing)

    async with _running(worker):
        found = await _measure(recorder, [functools.partial(make_trip, post) for post in _posts(port, "stripe")])
    await connection.close()
    return found


async def _outbound(recorder: CallRecorder, setup: DeliverySetup) -> frozenset[Function]:
    settings, message = settings_for(setup.database_url), make_message(setup, _BODY_BYTES)
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    connection = await asyncpg.connect(setup.database_url)

    async def make_trip() -> None:
        await operations.send(database, settings, ACTION, message)
        await _wait_until_delivered(connection)

    async def sender(stop: asyncio.Event) -> None:
        await run_sender(settings, sender_id="benchmark", stop=stop, beat=_nothing)

    async with _running(sender):
        await wait_for_sender(setup)
        found = await _measure(recorder, [make_trip] * (_ROUNDS + 1))
    await connection.close()
    await database.close()
    return found


def _posts(port: int, provider: str) -> list[Trip]:
    """Return the trips of one measurement: each posts an event of its own to a gateway."""
    return [functools.partial(asyncio.to_thread, _post, port, _signed(provider, n)) for n in range(_ROUNDS + 1)]


def _signed(provider: str, number: int) -> Signed:
    name = f"evt_{number}"
    body = json.dumps({"id": name, "type": "invoice.paid", "text": "x" * _BODY_BYTES}).encode()
    return signed_request(provider, SECRET, body, id=name, url=f"http://127.0.0.1/in/{provider}")


def _post(port: int, request: Signed) -> None:
    with PageClient(port) as client:
        answer = client.post(urlsplit(request.url).path, request.body, dict(request.headers))
    if answer.status != 200 or json.loads(answer.body)["duplicate"]:
        raise ConfigError(f"an event of the benchmark was answered {answer.status}: {answer.body.decode()}")


async def _wait_until_delivered(connection: "asyncpg.Connection[Any]") -> None:
    """Wait until nothing is pending, without a function of the package."""
    while await connection.fetchval("select exists (select from boathook.delivery)"):
        await asyncio.sleep(_POLL_INTERVAL_S)


def _nothing() -> None:
    """Accept a heartbeat and ignore it."""


def measure(environment: BenchmarkEnvironment) -> dict[str, frozenset[Function]]:
    """Make the three trips and return the functions of each.

    Raises:
        ConfigError: a request was refused, or a server did not start.
    """
    recorder = CallRecorder()
    with recorder.installed():
        environment.report("one request through the gateway")
        inbound = _run(_inbound(recorder, _settings(environment)))
        environment.report("one delivery to a handler")
        settings = _settings(environment)
        make_table(settings.database.url)
        with environment.serve(settings.database.url) as gateway:
            handler = _run(_handler(recorder, settings, gateway.port))
        environment.report("one message to an endpoint")
        with environment.module("sink", "1") as sink:
            outbound = _run(_outbound(recorder, create_setup(environment, urls(sink.port, 1))))
    return {"inbound": inbound, "handler": handler, "outbound": outbound}


def _run(work: Coroutine[Any, Any, frozenset[Function]]) -> frozenset[Function]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _settings(environment: BenchmarkEnvironment) -> Settings:
    """Return the settings of a process of its own database."""
    changes = {
        "database.url": environment.new_database(),
        "server.roles": ["gateway"],
        "server.data_dir": str(environment.data_dir(0)),
        "sources.github.secrets": [SECRET],
    }
    return load(Path("/dev/null"), changes)


def main() -> None:
    """Measure the trips and print how many functions and files each has."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trips",
        description="Count the functions of the package that one request, one handler's delivery and one sent message "
        "pass through.",
    )
    parser.add_argument("--config", type=Path, help="the configuration file; boathook.toml where there is one")
    parser.add_argument("--json", action="store_true", help="print JSON, with the name of each function")
    options = parser.parse_args()
    log.configure("warning")
    try:
        with BenchmarkEnvironment(load(options.config).database_url(), _report, is_log_filled=False) as environment:
            trips = measure(environment)
    except ConfigError as error:
        sys.exit(f"benchmarks: {error}")
    counts = {
        name: {"functions": len(functions), "files": len({function.file for function in functions})}
        for name, functions in trips.items()
    }
    if options.json:
        names = {name: [f"{one.file}:{one.name}" for one in sorted(trips[name])] for name in trips}
        output.print_json({name: {**counts[name], "names": names[name]} for name in trips})
    else:
        rows = [{"trip": name, **counts[name]} for name in trips]
        output.View(_COLUMNS).print_rows(rows, as_json=False)


def _report(message: str) -> None:
    print(message, file=sys.stderr)


if __name__ == "__main__":
    main()
