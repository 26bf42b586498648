"""A gateway with its console does not grow, however long it serves senders, attackers and operators."""

import asyncio
import contextlib
import http.server
import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

import httpx
import psutil
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, shared_boathook, signed  # noqa: F401 - a fixture
from tests.security.keep_alive_client import KeepAliveClient
from tests.support import until

PASSWORD: Final = "correct horse battery staple"
COUNTING: Final = """
import collections, gc, json, os, signal, threading

def tell(*_):
    gc.collect()
    objects = gc.get_objects()
    kinds = collections.Counter(type(one).__module__ + "." + type(one).__qualname__ for one in objects)
    told = {"objects": len(objects), "kinds": dict(kinds.most_common(400)), "threads": threading.active_count()}
    with open(f"counts-{os.getpid()}.draft", "w") as file:
        json.dump(told, file)
    os.replace(f"counts-{os.getpid()}.draft", f"counts-{os.getpid()}.json")

signal.signal(signal.SIGUSR2, tell)
"""

MAX_OPEN: Final = 560
"""Descriptors of a sender, which keeps up to 512 connections for the next message to the same endpoint."""
LOOPBACK: Final = """
    [outbound]
    allow = ["127.0.0.0/8"]
    require_https = false
"""
LEAKING: Final = """
import sys
if "serve" in getattr(sys, "orig_argv", ()):
    from boathook.ingest.direct import DirectIngest
    handle, kept = DirectIngest.handle, []

    def remembering(self, exchange):
        kept.append([exchange.scope])
        return handle(self, exchange)

    DirectIngest.handle = remembering
"""


class Grown:
    """The objects and descriptors of one process, counted by itself."""

    def __init__(self, running: BoathookProcess, role: str = "gateway") -> None:
        (child,) = running.children(role)
        file = running.folder / f"counts-{child.pid}.json"
        file.unlink(missing_ok=True)
        child.send_signal(signal.SIGUSR2)
        until(file.exists)
        self.told: dict[str, Any] = json.loads(file.read_bytes())
        process = psutil.Process(child.pid)
        self.rss: int = process.memory_info().rss
        self.descriptors: int = process.num_fds()

    def since(self, before: "Grown") -> dict[str, Any]:
        kinds = {
            kind: number - before.told["kinds"].get(kind, 0)
            for kind, number in self.told["kinds"].items()
            if number - before.told["kinds"].get(kind, 0) > 20
        }
        return {
            "objects": self.told["objects"] - before.told["objects"],
            "threads": self.told["threads"] - before.told["threads"],
            "descriptors": self.descriptors - before.descriptors,
            "MiB": round((self.rss - before.rss) / 2**20, 2),
            "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])[:12]),
        }


def begun(running: BoathookProcess, site: str) -> BoathookProcess:
    (running.folder / "sitecustomize.py").write_text(site)
    running.start()
    until(lambda: httpx.get(f"{running.base}/api/v1/health/ping").status_code == 204)
    command = [sys.executable, "-m", "boathook", "operators", "create", "anna", "--role", "admin", "--password-stdin"]
    subprocess.run(command, cwd=running.folder, env=running.environment, input=f"{PASSWORD}\n", text=True, check=False)
    return running


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:  # noqa: F811
    return begun(shared_boathook(roles="gateway,worker,keeper,console", start=False), COUNTING)


class AcceptingReceiver(http.server.BaseHTTPRequestHandler):
    """A receiver that accepts every request."""

    protocol_version = "HTTP/1.1"
    taken: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.taken[self.path] += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Traffic:
    """Requests of senders, attackers and operators, each on a new connection."""

    def __init__(self, running: BoathookProcess) -> None:
        self.running = running
        (key,) = running.listing("keys", "create", "--scope", "organization")
        self.api = {"authorization": f"Bearer {key['token']}", "content-type": "application/json"}
        form = {"origin": running.base, "content-type": "application/x-www-form-urlencoded"}
        self.form = form
        with httpx.Client(base_url=running.base) as client:
            answer = client.post(
                "/console/sign-in", content=urlencode({"name": "anna", "password": PASSWORD}), headers=form
            )
            assert answer.status_code == 303, answer.text
            self.cookie = {"cookie": "; ".join(f"{k}={v}" for k, v in client.cookies.items())}
        self.number = 0

    def word(self) -> str:
        self.number += 1
        return f"w{self.number}x{random.randrange(10**9)}"

    async def event(self, client: KeepAliveClient) -> int:
        body, headers = signed(payload(self.word(), "payment.paid"))
        return (await client.request("POST", "/in/stripe", headers, body)).status

    async def forged(self, client: KeepAliveClient) -> int:
        body, headers = signed(payload(self.word()), secret=self.word())
        return (await client.request("POST", "/in/stripe", {**headers, f"x-{self.word()}": "1"}, body)).status

    async def nowhere(self, client: KeepAliveClient) -> int:
        return (await client.request("GET", f"/{self.word()}/{self.word()}", {})).status

    async def page(self, client: KeepAliveClient) -> int:
        path = random.choice(("events?q", "events?type", "audit?actor", "rejections?source", "dead?q", "conflicts?q"))
        return (await client.request("GET", f"/console/{path}={self.word()}", self.cookie)).status

    async def guess(self, client: KeepAliveClient) -> int:
        body = urlencode({"name": self.word(), "password": self.word()}).encode()
        return (await client.request("POST", "/console/sign-in", self.form, body)).status

    async def portal(self, client: KeepAliveClient) -> int:
        headers = {"cookie": f"boathook-portal={self.word()}"}
        return (await client.request("GET", "/portal/endpoints", headers)).status

    async def application(self, client: KeepAliveClient) -> int:
        headers = {**self.api, "idempotency-key": self.word()}
        body = json.dumps({"name": self.word(), "uid": self.word()}).encode()
        return (await client.request("POST", "/api/v1/app", headers, body)).status

    async def message(self, client: KeepAliveClient) -> int:
        body = json.dumps({"eventType": "a.thing", "payload": {"word": self.word()}}).encode()
        return (await client.request("POST", "/api/v1/app/acme/msg", self.api, body)).status

    async def unknown(self, client: KeepAliveClient) -> int:
        return (await client.request("GET", f"/api/v1/app/{self.word()}/msg/{self.word()}", self.api)).status

    async def figures(self, client: KeepAliveClient) -> int:
        path = random.choice(("/metrics", "/metrics.json", "/metrics/history", "/readyz"))
        return (await client.request("GET", path, {})).status

    async def watch(self, client: KeepAliveClient) -> int:
        return await self._look_in("/console/overview/live", self.cookie)

    async def listen(self, client: KeepAliveClient) -> int:
        return await self._look_in(f"/api/v1/listen?type={self.word()}", self.api)

    async def _look_in(self, path: str, headers: dict[str, str]) -> int:
        """Start to read an endless response, then disconnect."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.port)
        lines = [f"GET {path} HTTP/1.1", "host: x", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        head = await reader.read(300)
        writer.close()
        return int(head[9:12])


async def drive(
    running: BoathookProcess, doing: Callable[[KeepAliveClient], Awaitable[int]], number: int
) -> Counter[int]:
    """Send this many requests, eight at a time; return their statuses."""
    seen: Counter[int] = Counter()
    left = iter(range(number))

    async def lane() -> None:
        client = KeepAliveClient(running.port)
        for _ in left:
            seen[await doing(client)] += 1
        client.close()

    await asyncio.gather(*(lane() for _ in range(8)))
    return seen


KINDS: Final = {
    "event": (3_000, {200}),
    "forged": (3_000, {401}),
    "nowhere": (3_000, {404}),
    "page": (600, {200}),
    "guess": (3_000, {401, 429}),
    "portal": (1_500, {401}),
    "application": (1_500, {201}),
    "unknown": (1_500, {404}),
    "figures": (1_000, {200}),
    "watch": (1_500, {200, 503}),
    "listen": (1_500, {200, 429}),
}
"""The kinds of requests, how often each is sent, and the expected statuses."""


def grown_by(running: BoathookProcess, traffic: Traffic, kind: str) -> dict[str, Any]:
    """Return a gateway's growth during this many requests, after as many warm-up ones."""
    number, statuses = KINDS[kind]
    doing = getattr(traffic, kind)
    assert set(asyncio.run(drive(running, doing, number))) <= statuses
    before = Grown(running)
    asyncio.run(drive(running, doing, number))
    return settled(running, "gateway", before, number / 5)


def settled(running: BoathookProcess, role: str, before: Grown, objects: float) -> dict[str, Any]:
    """Return a process's growth, once its last clients are gone."""
    looks: list[dict[str, Any]] = []

    def are_gone() -> bool:
        looks.append(Grown(running, role).since(before))
        return looks[-1]["objects"] < objects

    with contextlib.suppress(AssertionError):  # the caller judges by the last look
        until(are_gone, timeout=10, every=0.5)
    return looks[-1]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_thousands_of_requests_leak_nothing(running: BoathookProcess):
    traffic = Traffic(running)
    for kind, (number, _) in KINDS.items():
        grown = grown_by(running, traffic, kind)
        assert grown["objects"] < number / 5, (kind, grown)
        assert grown["threads"] <= 2, (kind, grown)
        assert grown["descriptors"] <= 10, (kind, grown)
        assert grown["MiB"] < 2, (kind, grown)


@pytest.mark.soak
def test_thousands_of_events_and_messages_leak_nothing_in_workers(
    shared_boathook: Callable[..., BoathookProcess],  # noqa: F811
):
    waiting = shared_boathook(roles="gateway,worker,keeper,console", senders=1, extra=LOOPBACK, start=False)
    running = begun(waiting, COUNTING)
    traffic = Traffic(running)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AcceptingReceiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with httpx.Client(base_url=f"{running.base}/api/v1", headers=traffic.api) as client:
            client.post("/app", json={"name": "Acme", "uid": "acme"}).raise_for_status()
            for number in range(20):
                url = f"http://127.0.0.1:{server.server_address[1]}/{number}"
                client.post("/app/acme/endpoint", json={"url": url}).raise_for_status()
        roles = ("worker", "sender", "keeper")
        work_off(traffic, 4_000)
        before = {role: Grown(running, role) for role in roles}
        work_off(traffic, 8_000)
        for role in roles:
            grown = settled(running, role, before[role], 400)
            assert grown["objects"] < 400, (role, grown)
            assert Grown(running, role).descriptors < MAX_OPEN, role
            assert grown["MiB"] < 4, (role, grown)
        server.shutdown()


def work_off(traffic: Traffic, sent: int) -> None:
    """Bring in events and messages, and wait until so many in all were sent and nothing is due."""
    asyncio.run(drive(traffic.running, traffic.event, 2_000))
    asyncio.run(drive(traffic.running, traffic.message, 200))
    until(lambda: AcceptingReceiver.taken.total() >= sent and is_idle(traffic.running), timeout=240)


def is_idle(running: BoathookProcess) -> bool:
    with psycopg.connect(running.database_url) as connection:
        row = connection.execute("select count(*) from boathook.delivery where state <> 'dead'").fetchone()
    return row == (0,)


@pytest.mark.soak
def test_mutant_so_that_each_leaves_something_it_shows(
    shared_boathook: Callable[..., BoathookProcess],  # noqa: F811
):
    leaky = begun(shared_boathook(roles="gateway,console", start=False), COUNTING + LEAKING)
    grown = grown_by(leaky, Traffic(leaky), "event")
    assert grown["objects"] > KINDS["event"][0] / 5
