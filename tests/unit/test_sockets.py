"""A WebSocket's deadlines and bounds, on a transport of the test's own and at moments of its choosing."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from boathook import config
from boathook.http import websocket
from boathook.http.limits import ConnectionLimiter
from boathook.http.websocket import WebSocketConnection
from tests.support import eventually

LIMITS = config.load(None, {}).limits
KEY = (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==")
HEADERS = [(b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"sec-websocket-version", b"13"), KEY]


@dataclass
class Wire:
    """A transport that remembers."""

    written: bytearray = field(default_factory=bytearray)
    is_reading: bool = True
    is_closed: bool = False
    is_aborted: bool = False
    has_ended: bool = False

    def write(self, data: bytes) -> None:
        self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class SocketHarness:
    """A WebSocket with a scripted application."""

    def __init__(self, *, more: bytes = b"", headers=HEADERS) -> None:
        connections = ConnectionLimiter(10, 10)
        connections.open("192.0.2.1")
        self.registry = SimpleNamespace(
            limits=LIMITS, connections=connections, date_line=b"date: today\r\n", open=set(), tasks=set()
        )
        self.wire = Wire()
        self.app: asyncio.Queue[Any] = asyncio.Queue()
        self.done = asyncio.Event()
        scope = {"type": "http", "path": "/x", "headers": headers, "client": ("192.0.2.1", 1), "scheme": "http"}
        self.socket = WebSocketConnection(self.registry, self.wire, scope, self._run, more)
        self.socket.start()

    async def _run(self, scope, receive, send) -> None:
        while (step := await self.app.get()) is not None:
            action, value, answer = step
            try:
                answer.set_result(await (send(value) if action == "send" else receive()))
            except Exception as error:  # noqa: BLE001 - it is for the caller
                answer.set_exception(error)

    async def ask(self, action: str, value: object = None) -> object:
        answer = asyncio.get_running_loop().create_future()
        self.app.put_nowait((action, value, answer))
        return await asyncio.wait_for(answer, 300)

    async def accept(self, **more: object) -> "SocketHarness":
        assert await self.ask("receive") == {"type": "websocket.connect"}
        await self.ask("send", {"type": "websocket.accept", **more})
        assert self.wire.written.startswith(b"HTTP/1.1 101 ")
        self.wire.written.clear()
        return self

    def at(self, seconds: float) -> None:
        """Run the deadline check *seconds* from now."""
        self.socket.check(asyncio.get_running_loop().time() + seconds)

    def frames(self) -> list[Frame]:
        """Return the frames sent to the peer."""
        peer = ClientProtocol(parse_uri("ws://x/"), state=OPEN)
        peer.receive_data(bytes(self.wire.written))
        return [event for event in peer.events_received() if isinstance(event, Frame)]


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


async def test_nothing_is_read_before_the_application_has_accepted():
    harness = SocketHarness(more=frame(Opcode.TEXT, b"early"))
    was_reading = harness.wire.is_reading
    await harness.accept()
    assert (was_reading, harness.wire.is_reading) == (False, True)
    assert await harness.ask("receive") == {"type": "websocket.receive", "text": "early"}


async def test_an_unanswered_handshake_times_out_with_503():
    harness = SocketHarness()
    harness.at(LIMITS.head_timeout_s - 1)
    assert not harness.wire.written
    harness.at(LIMITS.head_timeout_s + 1)
    assert harness.wire.written.startswith(b"HTTP/1.1 503 ")
    assert harness.wire.is_closed


async def test_an_idle_peer_is_pinged_and_aborted_without_a_pong():
    harness = await SocketHarness().accept()
    harness.at(19)
    assert not harness.wire.written
    harness.at(21)
    assert [found.opcode for found in harness.frames()] == [Opcode.PING]
    harness.at(40)
    assert not harness.wire.is_aborted
    harness.at(42)
    assert harness.wire.is_aborted


async def test_a_pong_keeps_the_connection_open():
    """The mutant: with a pong, what would have been its end is one more ping."""
    harness = await SocketHarness().accept()
    harness.at(21)
    loop = asyncio.get_running_loop()
    later, harness.socket._loop = loop.time() + 22, cast("Any", SimpleNamespace(time=lambda: loop.time() + 22))
    harness.socket.data_received(frame(Opcode.PONG))
    harness.socket.check(later + 19)
    harness.socket.check(later + 21)
    assert not harness.wire.is_aborted
    assert [found.opcode for found in harness.frames()] == [Opcode.PING, Opcode.PING]


async def test_a_closing_handshake_that_the_peer_does_not_end_is_cut_off():
    harness = await SocketHarness().accept()
    await harness.ask("send", {"type": "websocket.close", "code": 4000, "reason": "enough"})
    assert harness.frames()[0].opcode is Opcode.CLOSE
    assert not harness.wire.is_closed
    harness.at(1)
    assert not harness.wire.is_aborted
    harness.at(4)
    assert harness.wire.is_aborted


async def test_a_closing_handshake_that_the_peer_ends_closes_the_connection():
    harness = await SocketHarness().accept()
    await harness.ask("send", {"type": "websocket.close"})
    harness.socket.data_received(frame(Opcode.CLOSE, b"\x03\xe8"))
    assert harness.wire.is_closed


async def test_a_peer_that_does_not_read_is_not_read_from_and_cut_off():
    harness = await SocketHarness().accept()
    harness.socket.pause_writing()
    assert not harness.wire.is_reading, "each ping of it would be one more pong to keep"
    harness.at(LIMITS.body_timeout_s - 1)
    assert not harness.wire.is_aborted
    harness.at(LIMITS.body_timeout_s + 1)
    assert harness.wire.is_aborted


async def test_sending_resumes_when_the_peer_reads_again():
    harness = await SocketHarness().accept()
    harness.socket.pause_writing()
    sending = asyncio.create_task(harness.ask("send", {"type": "websocket.send", "text": "x"}))
    await asyncio.sleep(0)
    assert not harness.wire.written
    harness.socket.resume_writing()
    await sending
    assert harness.wire.is_reading
    harness.at(LIMITS.body_timeout_s + 1)
    assert not harness.wire.is_aborted


async def test_messages_that_the_application_leaves_unread_are_bounded():
    harness = await SocketHarness().accept()
    for n in range(32):
        assert harness.wire.is_reading
        harness.socket.data_received(frame(Opcode.TEXT, str(n).encode()))
    assert not harness.wire.is_reading
    assert (await harness.ask("receive"))["text"] == "0"
    assert harness.wire.is_reading


async def test_empty_pieces_of_a_message_take_no_room():
    harness = await SocketHarness().accept()
    harness.socket.data_received(frame(Opcode.BINARY, b"a", fin=False))
    harness.socket.data_received(frame(Opcode.CONT, b"", fin=False) * 10_000)
    harness.socket.data_received(frame(Opcode.CONT, b"b"))
    assert await harness.ask("receive") == {"type": "websocket.receive", "bytes": b"ab"}


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([Frame(Opcode.TEXT, b"x").serialize(mask=False)], 1002),
        ([frame(Opcode.CONT, b"x")], 1002),
        ([b"\xc1\x80\x00\x00\x00\x00"], 1002),
        ([b"\x81\xfe\xff\xff\x00\x00\x00\x00", b"x" * 10], None),
        ([b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"], 1009),
        ([b"\x89\xfe\x00\x7e\x00\x00\x00\x00" + b"x" * 126], 1002),
        ([frame(Opcode.TEXT, b"\xff")], 1007),
    ],
)
async def test_invalid_frames_close_with_the_right_code(pieces: list[bytes], code: int | None):
    harness = await SocketHarness().accept()
    for piece in pieces:
        harness.socket.data_received(piece)
    told = harness.frames()
    if code is None:
        assert told == []
        return
    assert [int.from_bytes(found.data[:2], "big") for found in told if found.opcode is Opcode.CLOSE] == [code]
    harness.socket.data_received(b"whatever else comes")
    assert (await harness.ask("receive"))["code"] == code
    with pytest.raises(OSError, match="closed"):
        await harness.ask("send", {"type": "websocket.send", "text": "x"})
    harness.at(4)
    assert harness.wire.is_aborted


async def test_disconnect_is_returned_on_every_receive():
    harness = await SocketHarness().accept()
    harness.socket.connection_lost(None)
    for _ in range(3):
        assert await harness.ask("receive") == {"type": "websocket.disconnect", "code": 1006, "reason": ""}
    assert not harness.registry.open
    assert harness.registry.connections.total == 0


async def test_an_application_running_long_after_disconnect_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    """Otherwise each client of a quiet live view would leak a task."""
    monkeypatch.setattr(websocket, "APP_EXIT_TIMEOUT_S", 0.05)
    harness = await SocketHarness().accept()
    (task,) = harness.registry.tasks
    harness.socket.connection_lost(None)
    await eventually(task.cancelled)
    await eventually(lambda: not harness.registry.tasks)


async def test_messages_before_the_close_are_read_first():
    harness = await SocketHarness().accept()
    harness.socket.data_received(frame(Opcode.TEXT, b"last words") + frame(Opcode.CLOSE, b"\x03\xe9"))
    assert (await harness.ask("receive"))["text"] == "last words"
    assert (await harness.ask("receive"))["code"] == 1001


async def test_a_stopping_gateway_closes_with_1012_once():
    harness = await SocketHarness().accept()
    harness.socket.drain()
    harness.socket.drain()
    (told,) = harness.frames()
    assert told.data[:2] == (1012).to_bytes(2, "big")
    assert (await harness.ask("receive"))["code"] == 1012


async def test_an_application_that_returns_closes_the_socket():
    harness = await SocketHarness().accept()
    harness.app.put_nowait(None)
    await eventually(harness.frames)
    assert harness.frames()[0].data[:2] == (1000).to_bytes(2, "big")


async def test_an_application_returning_without_a_response_gets_500():
    harness = SocketHarness()
    harness.app.put_nowait(None)
    await eventually(lambda: harness.wire.written.startswith(b"HTTP/1.1 500 "))


async def test_an_application_may_answer_in_plain_http():
    harness = SocketHarness()
    start = {"type": "websocket.http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]}
    await harness.ask("send", start)
    await harness.ask("send", {"type": "websocket.http.response.body", "body": b"who ", "more_body": True})
    await harness.ask("send", {"type": "websocket.http.response.body", "body": b"are you?"})
    head, _, body = bytes(harness.wire.written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"content-length: 12\r\nconnection: close" in head
    assert body == b"who are you?"
    assert harness.wire.is_closed


@pytest.mark.parametrize("header", [(b"x-a", b"1\r\nx-b: 2"), (b"x\n", b"1")])
async def test_no_header_of_an_application_splits_the_answer(header):
    harness = SocketHarness()
    with pytest.raises(RuntimeError, match="line break"):
        await harness.ask("send", {"type": "websocket.accept", "headers": [header]})
    assert not harness.wire.written


async def test_out_of_order_messages_raise():
    harness = SocketHarness()
    with pytest.raises(RuntimeError, match="out of order"):
        await harness.ask("send", {"type": "websocket.send", "text": "x"})
    await harness.accept()
    with pytest.raises(RuntimeError, match="out of order"):
        await harness.ask("send", {"type": "websocket.accept"})


@pytest.mark.parametrize("left_out", [b"sec-websocket-version", b"sec-websocket-key", b"connection"])
async def test_half_a_handshake_is_refused_without_asking_the_application(left_out: bytes):
    harness = SocketHarness(headers=[(name, value) for name, value in HEADERS if name != left_out])
    assert harness.wire.written.startswith(b"HTTP/1.1 400 ")
    assert not harness.registry.tasks
