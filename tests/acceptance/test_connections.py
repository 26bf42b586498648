"""Held connections lock no one out: idle ones are evicted, and some are reserved for small clients."""

import contextlib
import resource
import socket
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import sampled, until

ASK = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
SLOW = b"POST /in/stripe HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
CLIENTS = 5
EACH = 1_024
"""As many as one client may have with the default settings; all of them are more than a gateway has places."""
NO_EVICTION = """
from boathook.http import limits
limits.ConnectionLimiter._evict = staticmethod(lambda client: False)
limits.LIGHT_CLIENT_CONNECTIONS = 100_000
"""


@pytest.fixture(autouse=True)
def open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * CLIENTS * EACH:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CLIENTS * EACH), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(running: BoathookProcess, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=300, source_address=(address, 0))


def fill(running: BoathookProcess, request: bytes, stack: contextlib.ExitStack) -> int:
    """Keep 5,120 connections from five addresses open, each with a request; return how many were answered 200."""
    answered = 0
    for number in range(CLIENTS * EACH):
        client = stack.enter_context(connect(running, f"127.0.0.{number % CLIENTS + 2}"))
        with contextlib.suppress(OSError):
            client.sendall(request)
            if request is ASK:
                answered += client.recv(4_096).startswith(b"HTTP/1.1 200")
    return answered


def send(running: BoathookProcess, key: str, address: str = "127.0.0.99") -> int:
    """Send a signed request on a new connection of another client; return the status, 0 where there is none."""
    body, headers = signed(payload(key))
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(transport=transport, timeout=300) as client, contextlib.suppress(httpx.TransportError):
        return client.post(f"{running.base}/webhooks/stripe", content=body, headers=headers).status_code
    return 0


def start(boathook: Callable[..., BoathookProcess], site: str = "", limits: str = "") -> BoathookProcess:
    extra = f"[limits]\nhead_timeout_s = 600.0\nbody_timeout_s = 600.0\nmin_rate = 0\nkeep_alive_s = 600.0\n{limits}"
    running = boathook(roles="gateway", extra=extra, start=False)
    (running.folder / "sitecustomize.py").write_text(site)
    return running.start()


@pytest.mark.extended("floods a gateway once more; one flood stays")
@pytest.mark.parametrize("request_", sampled([ASK, b"", SLOW], keep=1), ids=["idle", "silent", "slow bodies"])
def test_five_clients_holding_all_connections_lock_no_one_out(
    boathook: Callable[..., BoathookProcess], request_: bytes
):
    running = start(boathook)
    with contextlib.ExitStack() as stack:
        fill(running, request_, stack)
        assert [send(running, f"evt_{n}") for n in range(20)] == [200] * 20
        told = httpx.get(f"{running.base}/readyz", timeout=300)
        assert told.status_code == 200
        assert "idle ones are closed for new clients" in " ".join(told.json()["notes"])
        metrics = httpx.get(f"{running.base}/metrics", timeout=300).text
        reason = "too_many" if request_ is SLOW else "evicted"
        assert f'boathook_connections_refused_total{{reason="{reason}"}}' in metrics
        assert "boathook_connections_used_ratio 0." in metrics or "boathook_connections_used_ratio 1.0" in metrics
    until(lambda: "idle" not in str(httpx.get(f"{running.base}/readyz", timeout=300).json()["notes"]))


@pytest.mark.parametrize(
    "request_",
    [ASK, pytest.param(SLOW, marks=pytest.mark.extended("another mutant of the same test stays"))],
    ids=["idle", "slow bodies"],
)
@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_eviction_and_reserve_others_are_locked_out(
    boathook: Callable[..., BoathookProcess], request_: bytes
):
    running = start(boathook, NO_EVICTION)
    with contextlib.ExitStack() as stack:
        fill(running, request_, stack)
        assert send(running, "evt_shut_out") in {0, 503}
