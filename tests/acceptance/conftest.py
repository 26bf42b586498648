"""Runs `boathook serve` as a subprocess with the handlers of a sample shop, for tests over HTTP and the command line."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest

from boathook.config import load
from boathook.db.secret_box import open_secret_box
from boathook_outage_publishing.access_copy import AccessCopy
from tests.commands import ForkedProcess, boathook_command, boathook_running
from tests.support import until

SECRET = "whsec_acceptance"

SHOP = """
import asyncio, os, time
from boathook import Boathook, Dead, Event, Ignore, Retry, RetryPolicy, Transaction

hook = Boathook()
QUICK = RetryPolicy(first_s=0.05, max_delay_s=0.2, max_attempts=4)

@hook.on("stripe", "payment.*", retry=QUICK)
async def pay(event: Event, tx: Transaction) -> None:
    await tx.execute(
        "insert into shop.effect (event_key, handler, attempt) values ($1, 'pay', $2)", event.dedup_key, event.attempt)

@hook.on("stripe", "slow.*", retry=QUICK, timeout=60)
async def slow(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into shop.effect (event_key, handler, attempt) values ($1, 'slow', $2)", event.dedup_key, event.attempt)
    await tx.execute("insert into shop.started (event_key) values ($1)", event.dedup_key)
    await asyncio.sleep(event.json["seconds"])

@hook.on("stripe", "order.*", retry=QUICK, order_by="customer")
async def ordered(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into shop.sequence (customer, n) values ($1, $2)", event.json["customer"], event.json["n"])

@hook.on("stripe", "flaky.*", retry=QUICK)
async def flaky(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into shop.effect (event_key, handler, attempt) values ($1, 'flaky', $2)", event.dedup_key, event.attempt)
    if event.attempt < 3:
        raise ConnectionError("the bank is away")

@hook.on("stripe", "broken.*", retry=QUICK)
async def broken(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into shop.effect (event_key, handler, attempt) values ($1, 'broken', $2)", event.dedup_key, event.attempt)
    if not os.path.exists(os.environ.get("SHOP_FIXED", "/nonexistent")):
        raise RuntimeError("this never works")

@hook.on("stripe", "ignored.*")
def ignored(event: Event, tx) -> Ignore:
    return Ignore("nothing to do")

@hook.on("stripe", "poison.crash", retry=RetryPolicy(first_s=0.05, max_attempts=3))
async def poison(event: Event, tx: Transaction) -> None:
    os._exit(13)

@hook.on("stripe", "poison.memory", retry=RetryPolicy(first_s=0.05, max_attempts=2))
async def greedy(event: Event, tx: Transaction) -> None:
    bytearray(8 * 1024**3)

@hook.on("stripe", "poison.loop", retry=RetryPolicy(first_s=0.05, max_attempts=2), timeout=1)
async def endless(event: Event, tx: Transaction) -> None:
    while True:
        time.sleep(1)  # it blocks its process as well as a busy loop, which would keep a processor from all other tests
"""

TABLES = """
create schema if not exists shop;
create table if not exists shop.effect (id bigserial primary key, event_key text, handler text, attempt int);
create table if not exists shop.started (id bigserial primary key, event_key text);
create table if not exists shop.sequence (id bigserial primary key, customer text, n int);
"""


PATIENT = """
[limits]
head_timeout_s = 120.0
"""
"""A client on a busy machine may be kept from sending for longer than the default of five seconds."""

_FIRST_PORT = 15_000 + os.getpid() % 160 * 100
_PORTS = itertools.cycle((*range(_FIRST_PORT, 31_000), *range(15_000, _FIRST_PORT)))
"""Ports below the kernel's ephemeral range, so that no outgoing connection takes a port before it is bound."""


def wait_for_copy(running: "BoathookProcess", uid: str) -> None:
    """Wait until a gateway has saved a copy of the applications that has this one."""
    settings = load(running.folder / "boathook.toml", {"server.data_dir": str(running.folder / "data")})
    box = open_secret_box(settings)
    until(lambda: ("default", uid) in AccessCopy.load(settings, box).targets.by_name)


def free_port() -> int:
    """Return an unused loopback port; every call returns a different one."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class BoathookProcess:
    """A `boathook serve` subprocess with its configuration; it can be started, killed and started again."""

    page = ""
    """Path of an app's page that `wait_ready` waits for as well; apps start after the gateway accepts requests."""
    own = f"""
        app = "shop:hook"
        [sources.stripe]
        provider = "stripe"
        secrets = ["{SECRET}"]
        paths = ["/webhooks/stripe"]
    """
    """Configuration text that follows the table [server]."""

    def __init__(self, folder: Path, database_url: str, *, roles: str, extra: str = "", senders: int = 0) -> None:
        self.folder = folder
        self.database_url = database_url
        self.roles = roles
        self.senders = senders
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}
        self.process: ForkedProcess | subprocess.Popen[bytes] | None = None
        (folder / "shop.py").write_text(textwrap.dedent(SHOP))
        (folder / "boathook.toml").write_text(self._configuration(extra))

    def _configuration(self, extra: str) -> str:
        url = f'url = "{self.database_url}"' if self.database_url else ""
        return textwrap.dedent(f"""
            [database]
            {url}
            [worker]
            lease_s = 2.0
            retry = "1, 2, 4, 8"
            [server]
            bind = "127.0.0.1:{self.port}"
            data_dir = "data"
            roles = {json.dumps(self.roles.split(","))}
            senders = {self.senders}
        """) + "".join(map(textwrap.dedent, (self.own, PATIENT if "[limits]" not in extra else "", extra)))

    def start(self, *, wait: bool = True, **environment: str) -> Self:
        with (self.folder / "serve.log").open("ab") as log:
            self.process = boathook_running(
                "serve", cwd=self.folder, env={**self.environment, **environment}, output=log
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = 300) -> None:
        try:
            until(lambda: self._has_ended() or self._is_ready(), timeout=timeout_s)
        except AssertionError:
            raise AssertionError(f"not ready after {timeout_s} s:\n{self.log()[-3000:]}") from None
        assert not self._has_ended(), f"serve ended by itself:\n{self.log()[-3000:]}"

    def _has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _is_ready(self) -> bool:
        return httpx.get(f"{self.base}/readyz", timeout=1).status_code == 200 and self._has_page()

    def _has_page(self) -> bool:
        return not self.page or httpx.get(f"{self.base}{self.page}", timeout=1).status_code != 503

    def log(self) -> str:
        return (self.folder / "serve.log").read_text(errors="replace")

    def wait_logged(self, text: str) -> None:
        """Wait until a text is in the log, which is written slightly later."""
        until(lambda: text in self.log())

    def children(self, role: str) -> list[psutil.Process]:
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                line = child.cmdline()
            except psutil.Error:
                continue
            if line and line[0].startswith("boathook: ") and f"{role}-" in line[0]:
                found.append(child)
        return found

    def kill(self, role: str) -> None:
        """SIGKILL every child of one role, once there is one: the last may just have been killed."""
        until(lambda: self.children(role))
        for child in self.children(role):
            child.kill()

    def kill_all(self) -> None:
        """SIGKILL the supervisor, if it runs, and everything below it except PostgreSQL."""
        if self.process is None or self.process.poll() is not None:
            return
        victims = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for victim in victims:
            try:
                if "postgres" not in victim.name():
                    victim.kill()
            except psutil.Error:
                continue
        self.process.wait(300)
        self._check_patch()

    def _check_patch(self) -> None:
        """Fail if the target of a test's sitecustomize.py patch is missing; Python only prints that error."""
        assert "Error in sitecustomize" not in self.log(), self.log()[:3000]

    def stop(self) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._check_patch()
        try:
            return self.process.wait(300)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise AssertionError(f"serve did not stop:\n{self.log()[-3000:]}") from None

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = boathook_command(*arguments, cwd=self.folder, env=self.environment)
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def listing(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a listing command with --json and return its objects."""
        return [json.loads(line) for line in self.cli(*arguments, "--json").stdout.splitlines()]


def signed(
    payload: Mapping[str, Any], *, secret: str = SECRET, at: float | None = None
) -> tuple[bytes, dict[str, str]]:
    """Return a body and headers signed by Stripe's own library."""
    import stripe

    body = json.dumps(payload)
    stamp = int(time.time() if at is None else at)
    signature = stripe.WebhookSignature._compute_signature(f"{stamp}.{body}", secret)
    return body.encode(), {"stripe-signature": f"t={stamp},v1={signature}", "content-type": "application/json"}


def payload(key: str, kind: str = "payment.paid", **more: Any) -> dict[str, Any]:
    """Return the body of a generated Stripe event."""
    return {"id": key, "type": kind, "object": "event", **more}


@contextlib.contextmanager
def boathook_processes(folder: Path, url: str) -> Iterator[Callable[..., BoathookProcess]]:
    """Return a function that creates and starts boathook processes in subfolders of *folder*; all are killed at the end."""
    import psycopg

    made: list[BoathookProcess] = []

    def make(
        *,
        roles: str = "gateway,worker,keeper",
        senders: int = 0,
        extra: str = "",
        start: bool = True,
        wait: bool = True,
        database_url: str = url,
        **environment: str,
    ) -> BoathookProcess:
        place = folder / f"boathook{len(made)}"
        place.mkdir()
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(TABLES)
        running = BoathookProcess(place, database_url, roles=roles, extra=extra, senders=senders)
        made.append(running)
        return running.start(wait=wait, **environment) if start else running

    try:
        yield make
    finally:
        for running in made:
            running.kill_all()


@pytest.fixture
def boathook(tmp_path: Path, pg_url: str) -> Iterator[Callable[..., BoathookProcess]]:
    """Create and start boathook processes on a database of this test."""
    with boathook_processes(tmp_path, pg_url) as make:
        yield make


@pytest.fixture(scope="module")
def shared_boathook(
    tmp_path_factory: pytest.TempPathFactory, shared_url: str
) -> Iterator[Callable[..., BoathookProcess]]:
    """Create and start boathook processes for all tests of a file on one database; each test uses its own keys."""
    with boathook_processes(tmp_path_factory.mktemp("shared"), shared_url) as make:
        yield make
