"""The direct path of ingest: every request gets the answer that the ASGI application gives, and a 2xx after the append only."""

import asyncio
import hashlib
import hmac
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from boathook.config import load
from boathook.domain.errors import DatabaseUnavailable, TooManyDeliveries, ValueRejected
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.http.connection import Connection, ConnectionRegistry
from boathook.http.limits import ConnectionLimiter, RateLimiter
from boathook.ingest import pipeline
from boathook.ingest.app import IngestApp
from boathook.ingest.direct import DirectIngest
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.intake import Intake
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.responses import Response, accepted
from boathook.ingest.sources import compile_sources
from boathook.observability import meters
from tests.support import eventually

SECRET = "a secret that is long enough"
TOPIC = "arn:aws:sns:eu-central-1:123456789012:orders"
SOURCES = {
    "github": {"provider": "github", "secrets": [SECRET], "max_body": 2_000},
    "slack": {"provider": "slack", "secrets": [SECRET]},
    "sns": {"provider": "sns", "topic_arn": TOPIC},
    "inline": {"provider": "hmac", "secrets": [SECRET], "mode": "inline", "header": "x-signature"},
}


class Wire(asyncio.Transport):
    """The transport of one connection, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000) if name in {"peername", "sockname"} else default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Store:
    """Stores events in memory, when `may_commit` is set; *errors* are raised first."""

    def __init__(self, errors: Sequence[Exception] = ()) -> None:
        self.errors = list(errors)
        self.rows: dict[Any, NewEvent] = {}
        self.has_begun = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        del within_s
        self.has_begun.set()
        await self.may_commit.wait()
        if self.errors:
            raise self.errors.pop(0)
        receipts: list[Receipt] = []
        for event in batch:
            first = self.rows.setdefault(event.key_hash, event)
            same = first.body_sha256 == event.body_sha256
            receipts.append(Accepted(event.id) if first is event else Duplicate(first.id, conflict=not same))
        return receipts


class Side:
    """One gateway in memory, with or without the direct path."""

    def __init__(
        self, *, is_direct: bool, errors: Sequence[Exception] = (), queue: int = 100, rate: float = 0.0
    ) -> None:
        settings = load(Path("/dev/null"), {"sources": SOURCES})
        self.router = Router((), 1)
        self.store = Store(errors)
        self.intake = Intake(self.store, queue=queue)
        self.pipeline = IngestPipeline(
            compile_sources(settings), self.intake, EventBuilder(self.router, self._read_router), quarantine=None,
            client_rate=RateLimiter(rate, 1) if rate else None,
        )  # fmt: skip
        self.app = IngestApp(self.pipeline, others=self._not_found)
        self.registry = ConnectionRegistry(self.app, settings.limits, ConnectionLimiter(100, 100))
        self.registry.date_line = b"date: today\r\n"
        self.direct = DirectIngest(self.pipeline)
        if is_direct:
            self.registry.direct = self.direct

    async def _read_router(self) -> Router:
        return self.router

    async def _not_found(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def connect(self) -> tuple[Connection, Wire]:
        config = Config(self.registry.app, loop="none", ws="none", lifespan="off", log_config=None)
        config.load()
        connection, wire = Connection(config, ServerState(), asyncio.get_running_loop(), self.registry), Wire()
        connection.connection_made(wire)
        return connection, wire

    async def talk(self, pieces: Sequence[bytes], answers: int) -> str:
        """Send pieces over one connection; return the output after that many responses."""
        connection, wire = self.connect()
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        await eventually(lambda: wire.written.count(b"HTTP/1.1 ") >= answers or wire.is_closed)
        return masked(wire)


def masked(wire: Wire) -> str:
    text = wire.written.decode("latin-1") + ("<closed>" if wire.is_closed else "")
    return re.sub(r"(req|evt)_[0-9a-z]+", r"\1", text)


def request(
    path: str = "/in/github", key: str = "1", body: bytes = b'{"a": 1}', *, method: str = "POST", sign: bool = True,
    headers: Sequence[str] = (), length: int | None = None,
) -> bytes:  # fmt: skip
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest() if sign else "0" * 64
    lines = [
        f"{method} {path} HTTP/1.1", "Host: a", "X-GitHub-Event: issues", f"X-GitHub-Delivery: {key}",
        f"X-Hub-Signature-256: sha256={signature}", "Content-Type: application/json", *headers,
    ]  # fmt: skip
    if not any(line.startswith("Transfer-Encoding") for line in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes) -> bytes:
    head = request(body=body, headers=("Transfer-Encoding: chunked",)).partition(b"\r\n\r\n")[0]
    return head + b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


SNS = json.dumps({
    "Type": "Notification", "MessageId": "1", "TopicArn": TOPIC, "Message": "m", "Timestamp": "2026-11-23T10:00:00.000Z",
    "SignatureVersion": "2", "Signature": "AAAA",
    "SigningCertURL": "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0.pem",
}).encode()  # fmt: skip
CONVERSATIONS: dict[str, tuple[Sequence[bytes], int]] = {
    "accepted": ([request()], 1),
    "in two pieces": ([request()[:-3], request()[-3:]], 1),
    "byte by byte": ([bytes([one]) for one in request()], 1),
    "the same again": ([request(), request()], 2),
    "another body under one key": ([request(), request(body=b'{"a": 2}')], 2),
    "three pipelined": ([request(key="1") + request(key="2") + request(key="3")], 3),
    "pipelined behind a chunked one": ([chunked(b'{"b": 1}') + request(key="2") + request("/elsewhere")], 3),
    "pipelined before another path": ([request(key="1") + request("/elsewhere") + request(key="2")], 3),
    "forged": ([request(sign=False)], 1),
    "forged, and one behind it": ([request(sign=False) + request(key="2")], 1),
    "without a length": ([request(headers=("Transfer-Encoding: identity",))], 1),
    "too large": ([request(body=b"x" * 3_000)], 1),
    "beyond what is kept in memory": ([request("/in/slack", body=b"x" * 100_000)], 1),
    "another method": ([request(method="PUT")], 1),
    "a question by GET": ([request(method="GET", body=b"")], 1),
    "expects 100": ([request(headers=("Expect: 100-continue",))], 1),
    "another encoding": ([request(headers=("Content-Encoding: br",))], 1),
    "the last one": ([request(headers=("Connection: close",))], 1),
    "unknown source": ([request("/in/nothing")], 1),
    "a challenge": ([request("/in/slack", body=b'{"type": "url_verification", "challenge": "c"}')], 1),
    "a key that has to be fetched": ([request("/in/sns", body=SNS)], 1),
    "not signed at all": ([request("/in/slack")], 1),
}
ERRORS: dict[str, Callable[[], Exception]] = {
    "the database is away": lambda: DatabaseUnavailable("away"),
    "a value that cannot be stored": lambda: ValueRejected("no"),
    "too many deliveries": lambda: TooManyDeliveries("no"),
    "a fault": lambda: RuntimeError("fault"),
}


async def both(
    pieces: Sequence[bytes], answers: int, error: Callable[[], Exception] | None = None, **more: Any
) -> tuple[str, str]:
    found = []
    for is_direct in (True, False):
        side = Side(is_direct=is_direct, errors=() if error is None else [error()], **more)
        await side.intake.start()
        found.append(await side.talk(pieces, answers))
        await side.intake.drain()
    return found[0], found[1]


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_request_gets_the_same_response_as_asgi(name: str) -> None:
    found, asgi = await both(*CONVERSATIONS[name])
    assert found == asgi
    assert found.startswith("HTTP/1.1 ")


@pytest.mark.parametrize("name", ERRORS)
async def test_a_store_error_gets_the_same_response_as_asgi(name: str) -> None:
    found, asgi = await both([request()], 1, ERRORS[name])
    assert found == asgi
    assert not found.startswith("HTTP/1.1 2")


@pytest.mark.parametrize("more", [{"queue": 0}, {"rate": 0.001}], ids=["overloaded", "too many requests"])
async def test_a_request_over_a_limit_gets_the_same_response_as_asgi(more: dict[str, Any]) -> None:
    found, asgi = await both([request(key="1") + request(key="2")], 2, **more)
    assert found == asgi
    assert "HTTP/1.1 503" in found or "HTTP/1.1 429" in found


async def written_before_the_append_returned() -> bytes:
    side = Side(is_direct=True)
    await side.intake.start()
    side.store.may_commit.clear()
    connection, wire = side.connect()
    connection.data_received(request())
    await side.store.has_begun.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    early = wire.written
    side.store.may_commit.set()
    await eventually(lambda: wire.written.startswith(b"HTTP/1.1 200"))
    await side.intake.drain()
    return early


async def test_a_2xx_is_written_once_the_append_has_returned_and_no_sooner() -> None:
    assert await written_before_the_append_returned() == b""


async def test_mutant_a_2xx_before_the_commit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Intake.put

    def hasty(self: Intake, event: NewEvent, waiter: Any) -> None:
        put(self, event, asyncio.get_running_loop().create_future())
        waiter.set_result(Accepted(event.id))

    monkeypatch.setattr(Intake, "put", hasty)
    assert (await written_before_the_append_returned()).startswith(b"HTTP/1.1 200")


async def test_a_client_disconnecting_before_the_commit_is_still_stored() -> None:
    side = Side(is_direct=True)
    await side.intake.start()
    side.store.may_commit.clear()
    connection, wire = side.connect()
    connection.data_received(request())
    await side.store.has_begun.wait()
    connection.connection_lost(None)
    side.store.may_commit.set()
    await side.intake.drain()
    assert (wire.written, len(side.store.rows)) == (b"", 1)


async def test_a_client_disconnecting_within_its_body_stores_nothing() -> None:
    side = Side(is_direct=True)
    await side.intake.start()
    connection, wire = side.connect()
    connection.data_received(request()[:-3])
    connection.connection_lost(None)
    await side.intake.drain()
    assert (wire.written, side.store.rows) == (b"", {})


async def test_a_failing_response_does_not_affect_others_of_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_compiled: Any, event: NewEvent, *rest: Any) -> Response:
        if event.dedup_key == "2":
            raise RuntimeError("a fault")
        return accepted(_compiled, event, *rest)

    monkeypatch.setattr(pipeline, "accepted", failing)
    side = Side(is_direct=True)
    await side.intake.start()
    wires = []
    for number in range(4):
        connection, wire = side.connect()
        connection.data_received(request(key=str(number)))
        wires.append(wire)
    await eventually(lambda: all(wire.written for wire in wires))
    assert [wire.written[9:12] for wire in wires] == [b"200", b"200", b"500", b"200"]
    await side.intake.drain()


async def entered(*, is_direct: bool) -> Counter[str]:
    """Return how often one accepted request enters each module of its way into the intake, from another one."""
    side = Side(is_direct=is_direct)
    await side.intake.start()
    await side.talk([request(key="1")], 1)  # with imports and empty caches
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        file, caller = frame.f_code.co_filename, frame.f_back
        if event == "call" and (caller is None or caller.f_code.co_filename != file):
            counts[Path(file).name] += file.startswith(str(Path(pipeline.__file__).parent))

    sys.setprofile(note)
    try:
        assert "200 OK" in await side.talk([request(key="2")], 1)
    finally:
        sys.setprofile(None)
    await side.intake.drain()
    return counts


@pytest.mark.parametrize(
    ("is_direct", "limits"),
    [(True, {"direct.py": 4, "pipeline.py": 4, "app.py": 0}), (False, {"app.py": 4, "pipeline.py": 5, "direct.py": 0})],
)
async def test_a_request_passes_the_stages_in_one_direction(is_direct: bool, limits: dict[str, int]) -> None:
    counts = await entered(is_direct=is_direct)
    assert {name: counts[name] for name in limits if counts[name] > limits[name]} == {}
    assert counts["pipeline.py"] > 0


def test_sync_reply_sources_use_the_asgi_application() -> None:
    settings = load(Path("/dev/null"), {"sources": SOURCES})
    router = Router((), 1)

    async def read_router() -> Router:
        return router

    events = EventBuilder(router, read_router)
    handler = DirectIngest(IngestPipeline(compile_sources(settings), Intake(Store()), events, quarantine=None))
    assert [handler.max_body(path) for path in ("/in/github", "/in/inline", "/elsewhere")] == [2_000, -1, -1]


# Sources that change while the gateway runs


@pytest.mark.parametrize("is_direct", [False, True])
async def test_sources_are_replaced_between_two_requests(is_direct: bool):
    side = Side(is_direct=is_direct)
    await side.intake.start()
    compiled_sources = compile_sources(load(Path("/dev/null"), {"sources": SOURCES}))
    assert "200 OK" in await side.talk([request(key="1")], 1)
    side.pipeline.set_sources({"/in/slack": compiled_sources["/in/slack"]}, {"/in/github": "github"})
    answer = await side.talk([request(key="2")], 1)
    assert "503 Service Unavailable" in answer
    assert "retry-after: 30" in answer
    assert "401 Unauthorized" in await side.talk([request("/in/slack")], 1)
    side.pipeline.set_sources({})
    assert "404 Not Found" in await side.talk([request(key="3")], 1)
    side.pipeline.set_sources(compiled_sources)
    assert "200 OK" in await side.talk([request(key="4")], 1)
    await side.intake.drain()
    assert len(side.store.rows) == 2


@pytest.mark.parametrize("is_direct", [False, True])
async def test_until_all_sources_are_known_an_unknown_one_is_answered_503(is_direct: bool):
    side = Side(is_direct=is_direct)
    await side.intake.start()
    compiled_sources = compile_sources(load(Path("/dev/null"), {"sources": SOURCES}))
    side.pipeline.set_sources(compiled_sources, has_all_sources=False)
    assert "503 Service Unavailable" in await side.talk([request("/in/nothing")], 1)
    assert "404 Not Found" in await side.talk([request("/elsewhere")], 1)
    assert "200 OK" in await side.talk([request()], 1)
    side.pipeline.set_sources(compiled_sources)
    assert "404 Not Found" in await side.talk([request("/in/nothing")], 1)
    await side.intake.drain()


async def test_a_source_removed_before_the_body_arrived_answers_503():
    side = Side(is_direct=True)
    whole = request()
    path = whole.split()[1].decode()
    connection, wire = side.connect()
    connection.data_received(whole[:-3])
    side.pipeline.set_sources({}, {path: "broken"})
    connection.data_received(whole[-3:])
    await eventually(lambda: b"HTTP/1.1 " in wire.written)
    assert b"503 Service Unavailable" in wire.written
    assert side.store.rows == {}
    assert [["broken", "503"], 1] in meters.snapshot()["boathook_requests_total"]
