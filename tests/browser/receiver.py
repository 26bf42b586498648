"""Webhook receiver in a thread, for tests that are not coroutines: records requests and sends scripted responses."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """The received requests and the configured responses."""

    base: str = ""
    status: int = 200
    body: bytes = b"thank you"
    kind: str = "text/plain"
    statuses: dict[str, int] = field(default_factory=dict)
    """Statuses of single paths, instead of `status`."""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def to(self, path: str) -> list[tuple[str, dict[str, str], bytes]]:
        """Return the requests to one path."""
        return [request for request in self.requests if request[0] == path]


@contextlib.contextmanager
def open_receiver() -> Iterator[Receiver]:
    """Listen on a free port of loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append((self.path, headers, body))
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            self.send_response(receiver.statuses.get(self.path, receiver.status))
            self.send_header("content-type", receiver.kind)
            self.send_header("content-length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.base = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(300)
