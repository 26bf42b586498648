"""A server that stands for a dependency of handlers in tests: its answers are set, and can be held back."""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

_MAX_BODY: Final = 64 * 1_048_576


@dataclass(frozen=True, kw_only=True)
class StubRequest:
    """A request that a `StubDependency` received."""

    method: str
    path: str
    """With the query."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


class StubDependency:
    """An HTTP server on the loopback interface, as a context manager.

    It answers 200 and ``{}`` until `answer` sets another. Nothing sleeps: `hold` keeps requests waiting until
    `release`, so a client with a short timeout sees a timeout.
    """

    def __init__(self) -> None:
        self.requests: list[StubRequest] = []
        """The requests so far."""
        self._answer: _Answer | None = _Answer()
        self._is_released = threading.Event()
        self._is_released.set()
        self._arrived = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), self._new_handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="stub", daemon=True)

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, status: int = 200, *, headers: Mapping[str, str] | None = None, body: bytes = b"{}") -> None:
        """Answer requests in this way from now on, also those that are held."""
        if not 200 <= status <= 599:
            raise ValueError(f"status must be 200 to 599, not {status}")
        self._answer = _Answer(status, dict(headers or {}), body)

    def drop(self) -> None:
        """Close the connections of requests without an answer from now on."""
        self._answer = None

    def hold(self) -> None:
        """Keep requests waiting from now on, until `release`."""
        self._is_released.clear()

    def release(self) -> None:
        """Answer the requests that wait, and later ones at once."""
        self._is_released.set()

    def wait_for_requests(self, number: int, timeout_s: float = 30.0) -> None:
        """Wait until *number* requests have arrived since the start. Raises TimeoutError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= number, timeout_s):
                raise TimeoutError(f"{len(self.requests)} requests arrived within {timeout_s:g} s, not {number}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _receive(self, request: StubRequest) -> _Answer | None:
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        self._is_released.wait()
        return self._answer

    def _new_handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client has given up
                    super().handle_one_request()

            def _handle(self) -> None:
                length = min(int(self.headers.get("content-length") or 0), _MAX_BODY)
                request = StubRequest(
                    method=self.command,
                    path=self.path,
                    headers={name.lower(): value for name, value in self.headers.items()},
                    body=self.rfile.read(length),
                )
                answer = stub._receive(request)
                self.close_connection = True
                if answer is None:
                    return
                body = b"" if self.command == "HEAD" or answer.status in {204, 304} else answer.body
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815 as http.server calls them

            def log_message(self, format: str, *args: Any) -> None:
                """Stay silent: tests see the requests."""

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
