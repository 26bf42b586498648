"""Readers of metrics and pages hardly slow down the intake."""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.acceptance.svix.server import Api, BoathookServer, wait_for_api

PATHS = ("/metrics", "/metrics.json", "/console/sign-in")
TURNS = 3
EVENTS = 15
READERS = """
import asyncio, sys

async def read(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.7", 0))
    while True:
        writer.write(f"GET {path} HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n".encode())
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        length = head.lower().partition(b"content-length:")[2].split()[0]
        await reader.readexactly(int(length))
        told.set()

async def tell():
    await told.wait()
    print("read", flush=True)

async def main():
    global told
    told = asyncio.Event()
    await asyncio.gather(tell(), *(read(int(sys.argv[1]), sys.argv[2]) for _ in range(24)))

asyncio.run(main())
"""
UNPROTECTED = """
from boathook.http import limits
from boathook.ingest import health
limits.FairScheduler._begin = lambda self: None
health._SharedResult.get = lambda self: self._find()
"""
"""A sitecustomize.py that removes both safeguards."""


def start(boathook: Callable[..., BoathookProcess], site: str) -> BoathookProcess:
    running = boathook(roles="gateway,console", start=False)
    (running.folder / "sitecustomize.py").write_text(site)
    running.start()
    until_there = httpx.get(f"{running.base}/console/sign-in", timeout=300)
    assert until_there.status_code == 200
    return running


@contextlib.contextmanager
def readers(running: BoathookProcess, path: str) -> Iterator[None]:
    """Let 24 connections in another process ask for a path again and again."""
    command = [sys.executable, "-c", READERS, str(running.port), path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"read\n"
        try:
            yield
        finally:
            process.kill()


def seconds_of(running: BoathookProcess, client: httpx.Client, key: str) -> list[float]:
    """Return how long each of some events took to be stored."""
    spent = []
    for number in range(EVENTS):
        body, headers = signed(payload(f"{key}_{number}"))
        began = time.perf_counter()
        assert client.post(f"{running.base}/webhooks/stripe", content=body, headers=headers).status_code == 200
        spent.append(time.perf_counter() - began)
    return spent


def ratio(running: BoathookProcess, path: str) -> float:
    """Return the median latency beside readers divided by the undisturbed one, measured in turns."""
    alone, beside = list[float](), list[float]()
    with httpx.Client(timeout=300) as client:
        seconds_of(running, client, f"{path}_first")
        for turn in range(TURNS):
            alone += seconds_of(running, client, f"{path}_{turn}_alone")
            with readers(running, path):
                beside += seconds_of(running, client, f"{path}_{turn}_beside")
    return statistics.median(beside) / statistics.median(alone)


@pytest.mark.soak
def test_readers_hardly_slow_down_the_intake(boathook: Callable[..., BoathookProcess]):
    running = start(boathook, "")
    assert {path: found for path in PATHS if (found := ratio(running, path)) > 4} == {}


@pytest.mark.soak
def test_mutant_without_fair_turns_readers_slow_down_the_intake(boathook: Callable[..., BoathookProcess]):
    running = start(boathook, UNPROTECTED)
    assert {path: found for path in PATHS if (found := ratio(running, path)) <= 4} == {}


@pytest.mark.extended("floods a gateway once more; one flood stays")
def test_a_caller_with_a_recently_valid_token_waits_for_no_turn(boathook: Callable[..., BoathookProcess]):
    site = """
from pathlib import Path
from boathook.http import limits
take = limits.FairScheduler.take

async def noted(self, client):
    with Path("turns").open("a") as file:
        file.write("turn\\n")
    await take(self, client)

limits.FairScheduler.take = noted
"""
    running = start(boathook, site)
    wait_for_api(running)
    server = BoathookServer(running)
    taken = running.folder / "turns"

    def turns(api: Api, expect: int, times: int = 5) -> int:
        before = len(taken.read_text().splitlines())
        for _ in range(times):
            api.get("/app", expect=expect)
        return len(taken.read_text().splitlines()) - before

    assert turns(server.api, 200) == 1
    assert turns(server.api, 200) == 0
    assert turns(Api(running.base, "testsk_unknown"), 401) == 5
    assert turns(server.api, 200) == 0
