"""Sources that are added, changed and removed while boathook runs: every gateway follows, and no request is lost."""

import json
import re
import stat
import uuid
from collections.abc import Callable

import httpx
import psycopg
import pytest

from boathook.db.secret_box import SecretBox
from boathook.db.stored_sources import encryption_context
from boathook.testing import sign
from tests.acceptance.conftest import BoathookProcess, payload
from tests.acceptance.test_start_during_outage import target_of, through
from tests.faults.rig.proxy import Proxy
from tests.support import until

KEY = "a key of the tests, long enough"
FILE = "data/stored-sources.json"
HANDLER = """
@hook.on("shop", "payment.*")
async def shop_pays(event: Event, tx: Transaction) -> None:
    await tx.execute(
        "insert into shop.effect (event_key, handler, attempt) values ($1, 'shop_pays', $2)", event.dedup_key, event.attempt)
"""


def post(base: str, path: str, secret: str, key: str) -> int:
    """Send one request on a connection of its own, which any gateway may take."""
    body = json.dumps(payload(key)).encode()
    headers = {**sign("stripe", secret, body), "content-type": "application/json"}
    return httpx.post(f"{base}{path}", content=body, headers=headers, timeout=300).status_code


def ask(base: str, path: str, secret: str = "whsec_shop_of_the_tests") -> set[int]:
    """Return the answers of all gateways, most probably."""
    return {post(base, path, secret, f"evt_{uuid.uuid4().hex}") for _ in range(12)}


def wait_for(base: str, path: str, status: int, secret: str = "whsec_shop_of_the_tests") -> None:
    until(lambda: ask(base, path, secret) == {status})


def add(running: BoathookProcess, name: str, *more: str, secret: str = "whsec_shop_of_the_tests") -> None:
    running.environment["A_SECRET"] = secret
    running.cli("sources", "add", name, "--provider", "stripe", "--secret", "env:A_SECRET", *more)


def insert(url: str, name: str, values: object, key: str = KEY) -> None:
    """Store a source as another version of boathook might."""
    id = uuid.uuid4()
    encrypted = SecretBox([key]).encrypt(json.dumps(values), encryption_context(name, id))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into boathook.source (name, id, paths, encrypted, created_by, changed_by) values (%s, %s, %s, %s, 'x', 'x')",
            (name, id, [f"/hooks/{name}"], encrypted),
        )


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    one = shared_boathook(start=False, roles="gateway,worker,keeper,console")
    one.environment |= {"BOATHOOK_SERVER_GATEWAYS": "2", "BOATHOOK_OUTBOUND_ENCRYPTION_KEYS": json.dumps([KEY])}
    shop = one.folder / "shop.py"
    shop.write_text(shop.read_text() + HANDLER)
    return one.start()


def test_a_source_is_added_changed_and_removed_without_a_restart(running: BoathookProcess, shared_url: str):
    wait_for(running.base, "/in/shop", 404)  # 503 until each gateway has read the stored sources
    add(running, "shop", "--set", 'paths=["/hooks/shop"]')
    wait_for(running.base, "/in/shop", 200)
    assert ask(running.base, "/hooks/shop") == {200}
    assert ask(running.base, "/in/shop", "whsec_forged") == {401}
    assert ask(running.base, "/in/stripe", "whsec_acceptance") == {200}, "the others are served on"
    with psycopg.connect(shared_url, autocommit=True) as connection:
        count = "select count(*) from shop.effect where handler = 'shop_pays'"
        until(lambda: connection.execute(count).fetchone()[0] > 12)
    running.cli("sources", "change", "shop", "--set", 'paths=["/hooks/moved"]', "--set", "max_body=40")
    wait_for(running.base, "/hooks/moved", 413)
    assert ask(running.base, "/hooks/shop") == {404}
    running.cli("sources", "change", "shop", "--unset", "max_body")
    wait_for(running.base, "/hooks/moved", 200)
    done = running.cli("sources", "remove", "shop", check=False)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    running.cli("sources", "remove", "shop", "--yes")
    wait_for(running.base, "/in/shop", 404)
    assert ask(running.base, "/hooks/moved") == {404}
    assert running.listing("events", "list", "--source", "shop", "--limit", "3"), "its events stay"
    add(running, "shop", secret="whsec_of another owner")
    wait_for(running.base, "/in/shop", 200, "whsec_of another owner")
    assert ask(running.base, "/in/shop") == {401}, "the secret of the removed source is not accepted"
    running.cli("sources", "remove", "shop", "--yes")


def test_commands_include_stored_sources(running: BoathookProcess):
    (added,) = running.listing("sources", "add", "seen", "--provider", "github", "--generate-secret")
    assert added["path"] == "/in/seen"
    assert len(added["secret"]) > 30
    listed = {one["name"]: one for one in running.listing("sources", "list")}
    assert listed["seen"]["stored"] is True
    assert listed["seen"]["secrets"] == 1
    assert listed["stripe"]["stored"] is False
    (shown,) = running.listing("sources", "show", "seen")
    assert shown["ready"] == "yes"
    assert added["secret"] not in json.dumps([listed, shown])
    until(lambda: httpx.post(f"{running.base}/in/seen").status_code == 401)
    running.cli("sources", "test", "seen")
    (sent,) = running.listing("trigger", "seen")
    assert sent["status"] == 200
    found = [one for one in running.listing("doctor") if one["check"] == "source seen"]
    assert [one["verdict"] for one in found] == ["ok"]
    secret = running.listing("sources", "secrets", "add", "seen")[0]
    assert len(running.listing("sources", "secrets", "list", "seen")) == 2
    running.cli("sources", "secrets", "remove", "seen", secret["id"])
    running.cli("sources", "remove", "seen", "--yes")


def test_a_generated_secret_is_printed_on_a_line_of_its_own(running: BoathookProcess):
    printed = running.cli("sources", "add", "made", "--provider", "github", "--generate-secret").stdout.splitlines()
    assert printed[0] == "made added; requests arrive at /in/made"
    assert re.fullmatch(r"[0-9a-f]{48}", printed[1])
    assert len(printed) == 2
    running.cli("sources", "remove", "made", "--yes")


def test_wrong_commands_are_refused_with_the_fix(running: BoathookProcess):
    running.environment["A_SECRET"] = "whsec_x_of_the_tests"
    secret = ("--secret", "env:A_SECRET")
    for arguments, words in (
        (("add", "a/b", "--provider", "stripe", *secret), "NAME: invalid source name: it is used in the URL"),
        (("add", "stripe", *secret), "boathook.toml or an app defines a source stripe"),
        (("add", "till", "--provider", "strip", *secret), "--provider"),
        (("add", "till", "--provider", "stripe"), "--secret"),
        (("add", "till", "--provider", "stripe", "--secret", "whsec_in the open"), "env:NAME"),
        (("add", "till", "--provider", "stripe", *secret, "--generate-secret"), "give one of"),
        (("add", "till", "--provider", "stripe", *secret, "--set", "public_url=env:HOME"), "--set public_url"),
        (("add", "till", "--provider", "stripe", *secret, "--set", 'paths=["/webhooks/stripe"]'), "--set paths"),
        (("change", "stripe", "--set", "rate=1"), "boathook.toml"),
        (("change", "nowhere", "--set", "rate=1"), "there is no source nowhere"),
        (("change", "nowhere"), "nothing to change"),
        (("change", "nowhere", "--set", "rate=1", "--unset", "rate"), "remove one of the two"),
        (("remove", "stripe", "--yes"), "boathook.toml"),
        (("remove", "nowhere", "--yes"), "there is no source nowhere"),
    ):
        done = running.cli("sources", *arguments, check=False)
        assert done.returncode != 0, arguments
        assert words in done.stderr, (arguments, done.stderr)


@pytest.mark.extended("starts several servers of its own")
def test_a_broken_stored_source_is_answered_503_and_the_others_are_served(running: BoathookProcess, shared_url: str):
    insert(shared_url, "newer", {"provider": "stripe", "of_the_future": "1"})
    insert(shared_url, "locked", {"provider": "stripe"}, "another key, long enough to be one")
    try:
        for name in ("newer", "locked"):
            wait_for(running.base, f"/in/{name}", 503)
            wait_for(running.base, f"/hooks/{name}", 503)
        assert "retry-after" in httpx.post(f"{running.base}/in/newer").headers
        assert ask(running.base, "/in/stripe", "whsec_acceptance") == {200}
        running.wait_logged("stored_source_unavailable")
        done = running.cli("doctor", "--json", check=False)
        found = {one["check"]: one for one in map(json.loads, done.stdout.splitlines())}
        assert found["source newer"]["verdict"] == "fail"
        assert found["stored source locked"]["verdict"] == "fail"
        done = running.cli("sources", "list", "--json")
        assert "locked is not used" in done.stderr
        running.kill("gateway")
        running.wait_ready()
        wait_for(running.base, "/in/newer", 503)
        assert ask(running.base, "/in/stripe", "whsec_acceptance") == {200}
    finally:
        for name in ("newer", "locked"):
            running.cli("sources", "remove", name, "--yes")
    wait_for(running.base, "/in/newer", 404)


@pytest.mark.extended("starts several servers of its own")
def test_a_gateway_starting_without_postgresql_uses_saved_sources(
    boathook: Callable[..., BoathookProcess], pg_url: str
):
    with Proxy(target_of(pg_url)) as wire:
        one = boathook(start=False)
        configuration = one.folder / "boathook.toml"
        configuration.write_text(configuration.read_text().replace(pg_url, through(pg_url, wire.port)))
        one.start()
        add(one, "shop")
        wait_for(one.base, "/in/shop", 200)
        until(lambda: "shop" in (one.folder / FILE).read_text())
        kept = (one.folder / FILE).read_bytes()
        assert b"stripe" not in kept
        assert stat.S_IMODE((one.folder / FILE).stat().st_mode) == 0o600
        assert one.stop() == 0
        wire.set(is_refusing=True)
        one.start()
        assert post(one.base, "/in/shop", "whsec_shop_of_the_tests", "evt_spooled") == 200
        assert ask(one.base, "/in/nowhere") == {404}
        one.kill_all()
        # The mutant: without the file it could not be known; then nothing may be answered 404.
        saved = (one.folder / FILE).read_bytes()
        (one.folder / FILE).unlink()
        one.start()
        assert ask(one.base, "/in/shop") == {503}
        one.kill_all()
        (one.folder / FILE).write_bytes(saved)
        # What was spooled drains, although the source is removed before PostgreSQL is seen again.
        with psycopg.connect(pg_url, autocommit=True) as direct:
            direct.execute("delete from boathook.source")
            direct.execute("delete from boathook.source_secret")
            one.start()
            wire.heal()
            wait_for(one.base, "/in/shop", 404)
            found = "select 1 from boathook.event where source = 'shop' and dedup_key = 'evt_spooled'"
            until(lambda: direct.execute(found).fetchone())
