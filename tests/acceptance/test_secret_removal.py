"""Removed source secrets are rejected in any gateway state, and kept ones never are."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from boathook.ingest.secret_reloader import POLL_INTERVAL_S
from tests.acceptance.conftest import SECRET, BoathookProcess
from tests.acceptance.test_source_secrets import Load, add, ask, is_gone, is_known
from tests.faults.rig.disks import still
from tests.support import until

FILE = "data/source-secrets.json"
LATE = """
from boathook.ingest.secret_reloader import SecretReloader

async def opens_at_once(self):
    pass

SecretReloader.ensure_fresh = opens_at_once
"""


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    return shared_boathook(roles="gateway,keeper")


def statuses_while_frozen(running: BoathookProcess, removed: str) -> tuple[Counter[int], Counter[int]]:
    """Remove a secret while the gateway is frozen; return the statuses of requests sent meanwhile."""
    id = add(running, removed)
    until(partial(is_known, running.base, removed))
    with ThreadPoolExecutor(12) as senders:
        with still(running.children("gateway")):
            running.cli("sources", "secrets", "remove", "stripe", id)
            old = [senders.submit(ask, running.base, removed) for _ in range(6)]
            kept = [senders.submit(ask, running.base, SECRET) for _ in range(6)]
            removed_at = time.monotonic()
            until(lambda: time.monotonic() - removed_at > POLL_INTERVAL_S)
        return Counter(one.result() for one in old), Counter(one.result() for one in kept)


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_gateway_frozen_during_the_removal_rejects_the_secret(running: BoathookProcess):
    old, kept = statuses_while_frozen(running, "whsec_removed in the frost")
    assert set(kept) == {200}
    assert set(old) == {401}
    assert is_gone(running.base, "whsec_removed in the frost")


@pytest.mark.extended("the mutant of a test that is left out")
def test_mutant_without_the_refresh_a_thawed_gateway_accepts_it(boathook: Callable[..., BoathookProcess]):
    """The mutant: waiting requests are verified with stale secrets."""
    unsafe = boathook(roles="gateway,keeper", start=False)
    (unsafe.folder / "sitecustomize.py").write_text(
        "from boathook.ingest import secret_reloader\nsecret_reloader.MAX_STALENESS_S = 9e9\n"
    )
    old, _ = statuses_while_frozen(unsafe.start(), "whsec_removed in the frost")
    assert old[200]


def on_disk(running: BoathookProcess) -> str:
    """Return the secrets saved for a start without PostgreSQL."""
    file = running.folder / FILE
    return file.read_text() if file.exists() else ""


def statuses_while_starting(running: BoathookProcess, removed: str) -> Counter[int]:
    """Remove a secret while the gateway is down; return the statuses of requests during its start."""
    id = add(running, removed)
    until(lambda: id in on_disk(running))
    running.kill_all()
    running.cli("sources", "secrets", "remove", "stripe", id)
    statuses: Counter[int] = Counter()
    is_over = threading.Event()

    def knock() -> None:
        while not is_over.is_set():
            with contextlib.suppress(httpx.TransportError):
                statuses[ask(running.base, removed)] += 1

    with ThreadPoolExecutor(8) as senders:
        for _ in range(8):
            senders.submit(knock)
        running.start()
        until(lambda: statuses[401] > 20)
        is_over.set()
    until(lambda: id not in on_disk(running))  # a start without PostgreSQL must not know it either
    return statuses


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_gateway_down_during_the_removal_rejects_the_secret(running: BoathookProcess):
    assert set(statuses_while_starting(running, "whsec_removed in the night")) == {401}


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_mutant_a_gateway_opening_with_saved_secrets_accepts_it(
    boathook: Callable[..., BoathookProcess],
):
    """The mutant: requests are accepted before removals are read."""
    unsafe = boathook(roles="gateway,keeper", start=False)
    (unsafe.folder / "sitecustomize.py").write_text(LATE)
    assert statuses_while_starting(unsafe.start(), "whsec_removed in the night")[200]


def test_a_damaged_file_does_not_affect_stored_secrets(running: BoathookProcess):
    id = add(running, "whsec_kept in the database")
    until(partial(is_known, running.base, "whsec_kept in the database"))
    until(lambda: id in on_disk(running))
    running.kill_all()
    (running.folder / FILE).write_text('[{"id": "nonsense"')
    running.start()
    assert is_known(running.base, "whsec_kept in the database"), "from the first request on"
    until(lambda: id in on_disk(running))
    running.cli("sources", "secrets", "remove", "stripe", id)
    until(partial(is_gone, running.base, "whsec_kept in the database"))


@pytest.mark.soak
def test_rotating_secrets_on_two_hosts_accepts_valid_ones_only(
    shared_boathook: Callable[..., BoathookProcess],
):
    keys = {"BOATHOOK_OUTBOUND_ENCRYPTION_KEYS": '["one key for both of them, long enough"]'}
    both = [shared_boathook(roles="gateway", BOATHOOK_SERVER_GATEWAYS=gateways, **keys) for gateways in ("1", "2")]
    for one in both:
        one.environment.update(keys)
    with Load(both[0].base, SECRET) as first, Load(both[1].base, SECRET) as second:
        for number in range(12):
            secret = f"whsec_of week {number}"
            id = add(both[number % 2], secret)
            for one in both:
                until(partial(is_known, one.base, secret))
            first.secret = second.secret = secret
            first.more(50)
            second.more(50)
            first.secret = second.secret = SECRET
            first.more(50)
            second.more(50)
            both[(number + 1) % 2].cli("sources", "secrets", "remove", "stripe", id)
            removed_at = time.monotonic()
            for one in both:
                until(partial(is_gone, one.base, secret))
            assert time.monotonic() - removed_at < 10
        for number in range(12):
            assert all(is_gone(one.base, f"whsec_of week {number}") for one in both)
    assert set(first.statuses) == set(second.statuses) == {200}
