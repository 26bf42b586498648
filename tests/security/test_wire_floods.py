"""Floods of large bodies without proof: the rates stop them before they cost a proof, and good traffic is answered."""

import hashlib
import hmac
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.security.gateway_client import SECRET, Gateway, gateway, post, proof, read_answer, statuses

MIB = 1 << 20
FORGED = post("/in/signed", b"x" * (MIB - 100), proof(b"something else"))
RATED = {"client_rate": 50.0, "client_burst": 20}
FLOODERS = 4
MOST_TIMES_P99 = 2.0


class Flood:
    """Clients at addresses of their own that send nothing but forged bodies of a mebibyte."""

    def __init__(self, one: Gateway) -> None:
        self.one = one
        self.sent = 0
        self.statuses: dict[int, int] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(FLOODERS)]

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            status = self._send(f"127.0.9.{1 + number}")
            with self._lock:
                self.sent += 1
                self.statuses[status] = self.statuses.get(status, 0) + 1

    def _send(self, address: str) -> int:
        try:
            with self.one.connect(source=address) as client:
                client.sendall(FORGED)
                return read_answer(client)[0]
        except OSError:
            return 0  # refused and closed while it was still sending

    def __enter__(self) -> "Flood":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(300)


def good(one: Gateway, count: int, word: str) -> tuple[list[int], float]:
    """Send events with their proof at a pace within the rates; return their statuses and the 99th percentile."""
    found, spent_s = [], []
    with one.connect() as client:
        for number in range(count):
            body = b'{"id":"evt_%s_%d","type":"a.b"}' % (word.encode(), number)
            started = time.monotonic()
            client.sendall(post("/in/signed", body, proof(body)))
            found.append(read_answer(client)[0])
            spent_s.append(time.monotonic() - started)
            time.sleep(0.025)  # the pace, not a wait for anything
    return found, sorted(spent_s)[math.floor(count * 0.99)]


def test_a_flood_is_limited_before_verification_and_good_events_accepted():
    with gateway(limits=RATED) as one:
        started = time.monotonic()
        with Flood(one) as flood:
            found, _ = good(one, 100, "flood")
        most = FLOODERS * (RATED["client_burst"] + RATED["client_rate"] * (time.monotonic() - started))
        assert found == [200] * 100
        assert flood.statuses.keys() <= {0, 401, 429}
        assert one.inspect("/macs") - 100 <= most


@contextmanager
def counted(one: Gateway) -> Iterator[list[int]]:
    before, found = one.inspect("/macs"), [0]
    yield found
    found[0] = one.inspect("/macs") - before


def burst(one: Gateway) -> list[int]:
    """Send 60 small forged requests at once from one address; return how they are answered."""
    forged = post("/in/signed", b"x", b"Connection: close\r\n" + proof(b"y"))
    return [status for _ in range(60) for status in statuses(one.ask(forged))]


@pytest.mark.extended("floods a gateway once more; one flood stays")
def test_no_proof_is_computed_beyond_the_rate_of_a_client():
    with gateway(limits={"client_rate": 0.1, "client_burst": 20}) as one:
        with counted(one) as macs:
            found = burst(one)
        assert found == [401] * 20 + [429] * 40
        assert macs == [20]


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_mutant_without_the_rate_each_of_them_costs_a_proof():
    with gateway(limits={"client_rate": 0.1, "client_burst": 20}, mutant="no rate") as one, counted(one) as macs:
        assert burst(one) == [401] * 60
    assert macs == [60]


@pytest.mark.extended("floods a gateway once more; one flood stays")
def test_good_events_are_accepted_in_a_flood_without_a_rate():
    with gateway() as one, Flood(one) as flood:
        found, _ = good(one, 40, "open")
    assert found == [200] * 40
    assert flood.statuses.keys() <= {401}


@pytest.mark.extended("floods a gateway once more; one flood stays")
def test_all_signature_rejections_look_alike():
    body = b'{"id":"evt_1"}'
    stamp = int(time.time())
    right = hmac.new(SECRET.encode(), b"%d." % stamp + body, hashlib.sha256).hexdigest()
    wrong = [
        "0" + right[1:] if right[0] != "0" else "1" + right[1:],
        right[:-1] + ("0" if right[-1] != "0" else "1"),
        "é" * 64,
        "",
    ]
    headers = [
        b"",
        b"Stripe-Signature: \r\n",
        b"Stripe-Signature: rubbish\r\n",
        b"Stripe-Signature: t=1,v1=%s\r\n" % right.encode(),
        b"Stripe-Signature: t=%d,v0=%s\r\n" % (stamp, right.encode()),
        *(b"Stripe-Signature: t=%d,v1=%s\r\n" % (stamp, text.encode()) for text in wrong),
    ]
    with gateway() as one:
        told = {_without_id(one.ask(post("/in/signed", body, b"Connection: close\r\n" + header))) for header in headers}
        assert statuses(one.ask(post("/in/signed", body, b"Connection: close\r\n" + proof(body)))) == [200]
    assert len(told) == 1
    assert b"401 Unauthorized" in told.pop()


def _without_id(got: bytes) -> bytes:
    return re.sub(rb"req_\w+|date: [^\r]+", b"", got)


@pytest.mark.soak
def test_latency_stays_low_in_a_rate_limited_flood():
    """The flood goes to another gateway of this machine first, as its clients alone keep the machine busy."""
    found = []
    for _ in range(3):
        with gateway(limits=RATED) as one, gateway(limits=RATED) as other:
            with Flood(other):
                _, calm_s = good(one, 300, "calm")
            with Flood(one):
                answers, flooded_s = good(one, 300, "flooded")
        assert answers == [200] * 300
        found.append(flooded_s / calm_s)
        if found[-1] <= MOST_TIMES_P99:
            return
    raise AssertionError(json.dumps(found))
