"""Secrets added to a running boathook: known to every gateway within seconds, with no request refused on the way."""

import json
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import httpx
import psycopg
import pytest

from boathook.testing import sign
from tests.acceptance.conftest import SECRET, BoathookProcess, payload
from tests.acceptance.test_start_during_outage import target_of, through
from tests.faults.rig.proxy import Proxy
from tests.support import until

FILE = "data/source-secrets.json"


def post(client: httpx.Client, base: str, key: str, secret: str) -> int:
    body = json.dumps(payload(key)).encode()
    headers = {**sign("stripe", secret, body), "content-type": "application/json"}
    return client.post(f"{base}/in/stripe", content=body, headers=headers).status_code


def ask(base: str, secret: str) -> int:
    """Send one request on a connection of its own, which any gateway may take."""
    with httpx.Client(timeout=300) as client:
        return post(client, base, f"evt_{time.monotonic_ns()}", secret)


def is_known(base: str, secret: str) -> bool:
    return all(ask(base, secret) == 200 for _ in range(16))


def is_gone(base: str, secret: str) -> bool:
    return all(ask(base, secret) == 401 for _ in range(16))


def add(running: BoathookProcess, secret: str, *more: str) -> str:
    running.environment["A_SECRET"] = secret
    (made,) = running.listing("sources", "secrets", "add", "stripe", "--secret", "env:A_SECRET", *more)
    assert "secret" not in made
    return str(made["id"])


class Load:
    """A sender that never pauses and uses the given secret."""

    def __init__(self, base: str, secret: str) -> None:
        self.base, self.secret = base, secret
        self.statuses: Counter[int] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(4)]

    def _run(self, lane: int) -> None:
        with httpx.Client(timeout=300) as client:
            number = 0
            while not self._stop.is_set():
                number += 1
                status = post(client, self.base, f"evt_{lane}_{number}_{id(self)}", self.secret)
                self.statuses[status] += 1

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, number: int = 100) -> None:
        """Wait for that many more answers."""
        before = self.statuses.total()
        until(lambda: self.statuses.total() >= before + number)


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    return shared_boathook(BOATHOOK_SERVER_GATEWAYS="2")


@pytest.mark.extended("runs under load; the tests of each step of a rotation stay")
def test_a_rotation_under_load_refuses_nothing(running: BoathookProcess):
    with Load(running.base, SECRET) as load:
        load.more()
        for secret in ("whsec_of the spring", "whsec_of the summer", "whsec_of the autumn"):
            held = [one["name"] for one in running.listing("sources", "secrets", "list", "stripe")]
            add(running, secret)
            until(partial(is_known, running.base, secret))
            load.secret = secret
            load.more()
            for name in held:
                if name.startswith("ssec_"):
                    running.cli("sources", "secrets", "remove", "stripe", name)
            load.more()
    assert set(load.statuses) == {200}
    assert is_gone(running.base, "whsec_of the spring")
    assert is_known(running.base, SECRET), "those of boathook.toml stay"


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_without_an_overlap_requests_are_rejected(running: BoathookProcess):
    """The mutant: a secret that ends before its sender has changed to the next one."""
    early = add(running, "whsec_ended too early")
    until(lambda: is_known(running.base, "whsec_ended too early"))
    with Load(running.base, "whsec_ended too early") as load:
        load.more()
        running.cli("sources", "secrets", "expire", "stripe", early)
        until(lambda: load.statuses[401] > 0)
    assert load.statuses[401] > 0


def test_earlier_secrets_can_be_set_to_expire_and_kept_again(running: BoathookProcess):
    first = add(running, "whsec_first of two", "--note", "the first")
    second = add(running, "whsec_second of two", "--expire-others", "1h")
    lines = {one["name"]: one for one in running.listing("sources", "secrets", "list", "stripe")}
    assert lines[first]["expires_at"] is not None
    assert lines[first]["note"] == "the first"
    assert lines[second]["expires_at"] is None
    assert lines["a text in the file itself"]["where"] == "boathook.toml"
    assert is_known(running.base, "whsec_first of two"), "it holds until then"
    running.cli("sources", "secrets", "keep", "stripe", first)
    lines = {one["name"]: one for one in running.listing("sources", "secrets", "list", "stripe")}
    assert lines[first]["expires_at"] is None
    for id in (first, second):
        running.cli("sources", "secrets", "remove", "stripe", id)


def test_a_generated_secret_is_shown_once(running: BoathookProcess):
    (made,) = running.listing("sources", "secrets", "add", "stripe")
    until(lambda: is_known(running.base, made["secret"]))
    listed = running.cli("sources", "secrets", "list", "stripe", "--json").stdout
    assert made["secret"] not in listed
    assert made["secret"] not in running.log()
    running.cli("sources", "secrets", "remove", "stripe", made["id"])


def test_saved_secrets_can_be_read_only_with_the_encryption_keys(running: BoathookProcess, shared_url: str):
    add(running, "whsec_nobody reads this")
    until(lambda: "ssec_" in (running.folder / FILE).read_text())
    until(lambda: is_known(running.base, "whsec_nobody reads this"))
    kept = (running.folder / FILE).read_bytes()
    assert b"nobody reads this" not in kept
    assert stat.S_IMODE((running.folder / FILE).stat().st_mode) == 0o600
    with psycopg.connect(shared_url) as connection:
        rows = connection.execute("select encrypted from boathook.source_secret").fetchall()
    assert rows
    assert all(b"nobody reads this" not in bytes(encrypted) for (encrypted,) in rows)
    running.environment["BOATHOOK_OUTBOUND_ENCRYPTION_KEYS"] = '["another key, long enough to be one"]'
    try:
        lines = running.listing("sources", "secrets", "list", "stripe")
    finally:
        del running.environment["BOATHOOK_OUTBOUND_ENCRYPTION_KEYS"]
    assert {one["is_readable"] for one in lines if one["where"] == "added"} == {False}


def test_an_invalid_secret_is_refused_with_a_fix(running: BoathookProcess):
    for secret, word in ((SECRET, "already"), ("env:OTHER", "boathook.toml"), ("whsec_\x07", "control characters")):
        running.environment["A_SECRET"] = secret
        done = running.cli("sources", "secrets", "add", "stripe", "--secret", "env:A_SECRET", check=False)
        assert done.returncode == 2
        assert word in done.stderr
    done = running.cli("sources", "secrets", "add", "stripe", "--secret", "whsec_in the open", check=False)
    assert "env:NAME" in done.stderr
    done = running.cli("sources", "secrets", "add", "nowhere", check=False)
    assert "unknown source 'nowhere'" in done.stderr


@pytest.mark.extended("starts several servers of its own")
def test_a_gateway_starting_without_postgresql_uses_saved_secrets(
    boathook: Callable[..., BoathookProcess], pg_url: str
):
    with Proxy(target_of(pg_url)) as wire:
        one = boathook(start=False)
        configuration = one.folder / "boathook.toml"
        configuration.write_text(configuration.read_text().replace(pg_url, through(pg_url, wire.port)))
        one.start()
        add(one, "whsec_known on disk")
        until(lambda: is_known(one.base, "whsec_known on disk"))
        until((one.folder / FILE).exists)
        assert one.stop() == 0
        wire.set(is_refusing=True)
        one.start()
        assert ask(one.base, "whsec_known on disk") == 200
        one.kill_all()
        # The mutant: without the file it could not be known.
        (one.folder / FILE).unlink()
        one.start()
        assert ask(one.base, "whsec_known on disk") == 401
        wire.heal()
        until(lambda: ask(one.base, "whsec_known on disk") == 200)


def test_a_request_rejected_before_its_secret_is_accepted_later(running: BoathookProcess):
    secret = "whsec_of the late operator"
    body = json.dumps(payload("evt_too_early")).encode()
    headers = {**sign("stripe", secret, body), "content-type": "application/json"}
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 401
    add(running, secret)

    def is_accepted() -> bool:
        # Those of other tests stay refused, which the exit code tells.
        done = running.cli("rejections", "reverify", "--source", "stripe", "--json", check=False)
        return any(json.loads(line)["outcome"] == "accepted" for line in done.stdout.splitlines())

    until(is_accepted, every=1.0)
