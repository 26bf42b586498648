"""Thousands of slow clients: each is closed in time, and no other client waits for it."""

import json
import math
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.security.gateway_client import Gateway, gateway, post, read_answer
from tests.security.slow_clients import KINDS
from tests.support import until

SLOW_CLIENTS = Path(__file__).parent / "slow_clients.py"
QUICK = {"head_timeout_s": 1.0, "body_timeout_s": 2.0, "keep_alive_s": 1.5}
CLOSED_WITHIN_S = 20.0
MOST_TIMES_P99 = 2.0


@dataclass
class GoodTraffic:
    """A client that sends one event after the other on connections it keeps for a while."""

    one: Gateway
    spent_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in count():
            with self.one.connect() as client:
                for turn in range(50):
                    if self._stop.wait(0.002):
                        return
                    self._send(client, b'{"id":"good-%d-%d"}' % (number, turn))

    def _send(self, client: Any, body: bytes) -> None:
        started = time.monotonic()
        try:
            client.sendall(post("/in/open", body))
            status: int | str = read_answer(client)[0]
        except OSError as error:
            status = repr(error)
        self.spent_s.append(time.monotonic() - started)
        if status != 200:
            self.failed.append(f"{body!r}: {status}")

    def p99_s(self) -> float:
        """Return the 99th percentile of the measured times, and clear them."""
        measured, self.spent_s = sorted(self.spent_s), []
        return measured[math.floor(len(measured) * 0.99)]

    def end(self) -> None:
        self._stop.set()
        self._thread.join(300)


@dataclass(frozen=True)
class LoadResult:
    """The result of slow clients beside good traffic."""

    slow_clients: dict[str, dict[str, float]]
    failed: list[str]
    times_p99: float
    """The 99th percentile of good answers beside the crowd, as a multiple of the one before it."""
    left: int
    """Descriptors that the gateway has open and had not before."""

    @property
    def open(self) -> float:
        return sum(kind["open"] for kind in self.slow_clients.values())

    @property
    def slowest_s(self) -> float:
        return max(kind["slowest_s"] for kind in self.slow_clients.values())


def beside(one: Gateway, *, clients: int, calm_s: float, give_up_s: float) -> LoadResult:
    """Send good traffic, alone for a while and then beside slow clients."""
    before = one.seen.num_fds()
    good = GoodTraffic(one)
    try:
        time.sleep(calm_s)  # the time of measuring, which is not waited for
        calm = good.p99_s()
        line = [sys.executable, str(SLOW_CLIENTS), str(one.port), str(clients), str(give_up_s)]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=give_up_s + 60, check=True)
        crowded = good.p99_s()
    finally:
        good.end()
    slow_clients = json.loads(done.stdout.partition("\n")[2])
    until(lambda: one.seen.num_fds() <= before + 1 or any(kind["open"] for kind in slow_clients.values()))
    return LoadResult(slow_clients, good.failed, crowded / calm, one.seen.num_fds() - before)


@pytest.mark.extended("is a flood; the tests of each deadline stay")
def test_slow_clients_are_closed_and_good_ones_answered():
    with gateway(limits=QUICK, send_buffer=4096) as one:
        result = beside(one, clients=2_000, calm_s=0.3, give_up_s=CLOSED_WITHIN_S)
    assert result.failed == []
    assert result.open == 0, result.slow_clients
    assert result.slowest_s <= CLOSED_WITHIN_S
    assert result.left <= 1


DEAF = {"deaf to little", "deaf at the end"}


@pytest.mark.extended("waits for intervals and deadlines of the product")
@pytest.mark.parametrize(
    ("name", "kinds"),
    [("no deadlines", KINDS.keys() - {"no http"}), ("no end of flushing", DEAF)],
)
def test_mutant_without_deadlines_they_stay(name: str, kinds: set[str]):
    with gateway(limits=QUICK, send_buffer=4096, mutant=name) as one:
        result = beside(one, clients=130, calm_s=0.3, give_up_s=6)
    assert {kind for kind, found in result.slow_clients.items() if found["open"]} == kinds


@pytest.mark.soak
def test_latency_stays_low_beside_two_thousand_slow_clients():
    """With the deadlines that are the default, except that of idle connections, which cost nothing."""
    found = []
    for _ in range(3):
        with gateway(limits={"keep_alive_s": 15.0}, send_buffer=4096) as one:
            result = beside(one, clients=2_000, calm_s=5, give_up_s=30)
        assert result.failed == []
        assert result.open == 0, result.slow_clients
        assert result.slowest_s <= CLOSED_WITHIN_S, result.slow_clients
        found.append(result.times_p99)
        if found[-1] <= MOST_TIMES_P99:
            return
    raise AssertionError(found)
