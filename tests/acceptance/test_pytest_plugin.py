"""The fixtures of the pytest plugin: a real server with a project's handlers, and requests of any sender to it."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from boathook.domain.errors import ConfigError, FetchFailed, NotFound
from boathook.testing import BoathookServer
from tests.databases import Pool
from tests.guards.documents import ROOT, blocks
from tests.support import until

SHOP = """
import os

from boathook import Boathook, Dead, Event, Ignore, Retry, RetryPolicy, Transaction

hook = Boathook()

@hook.on("stripe", "invoice.*")
async def record(event: Event, tx: Transaction) -> Ignore | Retry | Dead | None:
    await event.once("mail", lambda: event.dedup_key)
    await hook.publish(tx, application="acme", type="invoice.recorded", payload={"id": event.dedup_key}, tags=["a"])
    match event.json.get("then"):
        case "ignore": return Ignore("seen before")
        case "retry": return Retry(code="USER_MISSING")
        case "die": return Dead("BROKEN", "look at it")
        case "raise": return event.json["customer"]
    return None

@hook.on("stripe", "charge.*", retry=RetryPolicy(delays_s=(3600,)))
async def patient(event: Event) -> None:
    raise ConnectionError(os.environ["SHOP_DATABASE_URL"])

@hook.on("stripe", "customer.subscription.*")
async def update_plan(event: Event, tx: Transaction) -> Ignore | None:
    plan = event.json["data"]["object"]
    if not await tx.newer("plan", plan["id"], event.json["created"]):
        return Ignore("older")
    return None

@hook.on("vk")
@hook.on("discord")
@hook.on("paypal")
@hook.on("yookassa")
@hook.on("twilio")
@hook.on("github", "issues.opened", filter={"body": {"issue.number": 7}})
async def note(event: Event) -> Ignore:
    return Ignore(event.type)
"""
SETTINGS = """
[database]
url = "env:SHOP_DATABASE_URL"
[server]
app = "shop:hook"
roles = ["gateway"]
[sources.stripe]
secrets = ["env:STRIPE_WEBHOOK_SECRET_THAT_IS_NOT_SET"]
retry = "1, 2, 4"
[sources.github]
[sources.vk]
confirmation = "a1b2c3"
[sources.discord]
[sources.paypal]
webhook_id = "5ML55517062060"
[sources.yookassa]
[sources.twilio]
[notifications.channels.phone]
kind = "webhook"
url = "https://example.com/never"
secret = "env:NOT_SET_EITHER"
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "shop.py").write_text(SHOP)
    (folder / "boathook.toml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module")
def server(databases: Pool, project: Path) -> Iterator[BoathookServer]:
    overrides = {"worker.poll_interval_s": 0.1}
    with (
        databases.database() as url,
        BoathookServer.running(project, project / "boathook.toml", {"database": {"url": url}, **overrides}) as server,
    ):
        assert server.create_application("acme") == server.create_application("acme")
        yield server


def paid(server: BoathookServer, **fields):
    return server.deliver("stripe", type="invoice.paid", json=fields)


class TestDeliver:
    @pytest.mark.parametrize(
        ("then", "outcome", "code", "note"),
        [
            (None, "succeeded", None, None),
            ("ignore", "ignored", None, "seen before"),
            ("retry", "retry", "USER_MISSING", None),
            ("die", "dead", "BROKEN", "look at it"),
            ("raise", "failed", "KeyError", None),
        ],
    )
    def test_deliver_returns_the_handlers_result(self, server, then, outcome, code, note):
        result = paid(server, then=then)
        assert (result.outcome, result.code, result.note) == (outcome, code, note)
        assert result.handlers[0].exception is None
        assert list(result.effects) == ["mail"]
        assert (result.status, result.is_duplicate) == (200, False)

    def test_an_exception_has_file_and_line(self, server, project):
        result = paid(server, then="raise")
        number = next(n for n, line in enumerate(SHOP.splitlines(), start=1) if 'event.json["customer"]' in line)
        assert (result.error, result.location) == ("KeyError: 'customer'", f"{project}/shop.py:{number}")
        assert "KeyError: 'customer'" in repr(result)

    def test_a_retried_handler_is_reported_as_failed(self, server):
        result = server.deliver("stripe", type="charge.failed")
        assert result.outcome == "failed"
        assert server.database_url in (result.error or ""), "the project's own engines use the database of the tests"

    def test_the_same_id_is_a_duplicate_and_has_its_results(self, server):
        first = server.deliver("stripe", type="invoice.paid", id="evt_twice", json={"then": "ignore"})
        again = server.deliver("stripe", type="invoice.paid", id="evt_twice", json={"then": "ignore"})
        assert (again.is_duplicate, again.event_id, again.note) == (True, first.event_id, "seen before")

    @pytest.mark.parametrize("source", ["vk", "discord", "paypal", "yookassa", "twilio"])
    def test_providers_with_special_schemes_are_delivered(self, server, source):
        assert server.deliver(source, timeout_s=300).outcome == "ignored"

    def test_a_provider_with_its_own_reply_detects_a_duplicate(self, server):
        first, again = server.deliver("vk", id="twice"), server.deliver("vk", id="twice")
        assert (first.response, first.is_duplicate) == (b"ok", False)
        assert (again.event_id, again.is_duplicate) == (first.event_id, True)

    def test_fields_of_the_sample(self, server):
        assert server.deliver("github", type="issues.opened", fields={"issue.number": 7}).note == "issues.opened"

    def test_without_a_matching_handler_all_are_listed(self, server):
        with pytest.raises(NotFound) as raised:
            server.deliver("github", type="issues.opened", fields={"issue.number": 3})
        assert "no handler takes 'issues.opened' of github" in str(raised.value)
        assert "record takes stripe: invoice.*" in str(raised.value)
        assert "note takes github: issues.opened (with a filter)" in str(raised.value)

    def test_two_swapped_events_arrive_in_the_wrong_order(self, server):
        def update(number: int) -> dict[str, object]:
            fields = {"data.object.id": "sub_1", "created": 1_900_000_000 + number}
            return {"id": f"evt_swapped_{number}", "type": "customer.subscription.updated", "fields": fields}

        earlier, later = server.deliver_swapped("stripe", update(1), update(2))
        assert (earlier.outcome, later.outcome) == ("ignored", "succeeded")
        assert earlier.note == "older"
        assert later.event_id < earlier.event_id, "ids grow with the time of acceptance"

    def test_in_the_right_order_both_succeed(self, server):
        """Shows that the test above can fail: its events alone do not make it pass."""
        for number in (1, 2):
            fields = {"data.object.id": "sub_2", "created": 1_900_000_000 + number}
            assert server.deliver("stripe", type="customer.subscription.updated", fields=fields).outcome == "succeeded"

    def test_an_unknown_argument_of_a_swapped_event_is_named(self, server):
        with pytest.raises(ConfigError, match="unknown argument 'filds'; it takes body, fields"):
            server.deliver_swapped("stripe", {"filds": {}}, {})

    def test_an_unknown_source_and_a_refused_request(self, server):
        with pytest.raises(ConfigError, match="deliver takes json= or body=, not both"):
            server.deliver("stripe", json={}, body=b"{}")
        with pytest.raises(NotFound, match="unknown source 'strip'; configured: "):
            server.deliver("strip")
        with pytest.raises(FetchFailed, match="answered 400"):
            server.deliver("stripe", body=b"no JSON")

    def test_mutant_a_wrong_secret_is_refused(self, server, monkeypatch):
        monkeypatch.setitem(server._secrets, "stripe", "whsec_another")
        with pytest.raises(FetchFailed, match="answered 401"):
            paid(server)

    async def test_it_can_be_called_inside_an_event_loop(self, server):
        assert paid(server).outcome == "succeeded"


def test_published_are_the_messages_that_were_committed(server):
    paid(server)
    before = server.published(type="invoice.*", application="acme")
    paid(server, then="raise")
    paid(server, id="evt_latest")
    after = server.published(type="invoice.*", application="acme")
    assert after[: len(before)] == before
    assert [(one.type, one.payload, one.tags) for one in after[len(before) :]] == [
        ("invoice.recorded", {"id": "evt_latest"}, ("a",))
    ]
    assert server.published(application="nobody") == []


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_a_server_that_does_not_start_shows_why(pg_url, tmp_path):
    overrides = {"database.url": pg_url, "server.app": "nowhere:hook"}
    with (
        pytest.raises(ConfigError, match="there is no module 'nowhere'"),
        BoathookServer.running(tmp_path, None, overrides),
    ):
        pass


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_it_ends_with_a_test_process_that_is_killed(pg_url, tmp_path):
    code = f"""
from pathlib import Path
from boathook.testing import BoathookServer
with BoathookServer.running(Path({str(tmp_path)!r}), None, {{"database.url": {pg_url!r}}}) as server:
    print(server.url, server.log.parent, flush=True)
    input()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        url, folder = process.stdout.readline().split()
        assert httpx.get(f"{url}/readyz").status_code == 200
        process.kill()
    until(lambda: not answers(url) and not Path(folder).exists())


def answers(url: str) -> bool:
    try:
        httpx.get(f"{url}/healthz")
    except httpx.HTTPError:
        return False
    return True


def run_pytest(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    # A database that no test may touch: the server takes none from the environment.
    environment = {**os.environ, "BOATHOOK_DATABASE_URL": "postgresql://127.0.0.1:9/production"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.extended("starts several servers of its own")
def test_works_without_a_settings_file_and_shows_failures(pg_url, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "pytest.ini").write_text("[pytest]\nboathook_app = shop:hook\n")
    (tmp_path / "conftest.py").write_text(
        textwrap.dedent(f"""
            import os
            import pytest

            os.environ["SHOP_DATABASE_URL"] = "unused"

            @pytest.fixture(scope="session")
            def boathook_settings():
                return {{"database": {{"url": {pg_url!r}}}, "sources": {{"stripe": {{}}}}}}
        """)
    )
    (tmp_path / "test_shop.py").write_text(
        textwrap.dedent("""
            def test_first(boathook_server, deliver, published):
                boathook_server.create_application("acme")
                assert deliver("stripe", type="invoice.paid").outcome == "succeeded"
                assert len(published()) == 1

            def test_only_messages_since_the_test_began(published):
                assert published() == []

            def test_failing(deliver):
                assert deliver("stripe", type="invoice.paid", json={"then": "raise"}).outcome == "succeeded"

            def test_missing(deliver):
                deliver("stripe", type="payout.paid")
        """)
    )
    done = run_pytest(tmp_path, "-q")
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert f"handler record failed at {tmp_path}/shop.py:" in done.stdout
    assert 'case "raise": return event.json["customer"]' in done.stdout
    assert "NotFound: no handler takes 'payout.paid' of stripe; " in done.stdout
    assert "boathook/testing/server.py" not in done.stdout, "the test's own line is shown, not the fixture's insides"


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_without_settings_the_fix_is_named(tmp_path):
    (tmp_path / "test_shop.py").write_text("def test_it(boathook_server): ...")
    done = run_pytest(tmp_path, "-q", "-c", "/dev/null", "--rootdir", str(tmp_path))
    assert f"there is no {tmp_path}/boathook.toml; set `boathook_config`" in done.stdout


def test_a_wrong_setting_is_named_without_a_traceback(tmp_path):
    (tmp_path / "test_shop.py").write_text("def test_it(boathook_server): ...")
    (tmp_path / "boathook.toml").write_text('[sources.stripe]\nsecrts = ["x"]\n')
    done = run_pytest(tmp_path, "-q", "-c", "/dev/null", "--rootdir", str(tmp_path))
    assert "sources.stripe.secrts is not a setting; did you mean sources.stripe.secrets?" in done.stdout
    assert "Traceback" not in done.stdout
    assert "loader.py" not in done.stdout


@pytest.mark.extended("starts several servers of its own")
def test_the_tests_on_the_page_about_tests_pass(tmp_path):
    """With the embedded PostgreSQL, which the other tests of this file do without."""
    shop, tables, over_http, _, dependency, _, in_a_transaction = [one for one in PAGE if one.language == "python"]
    settings, for_pytest, _ = [one for one in PAGE if one.language == "toml"]
    (tmp_path / "shop.py").write_text(shop.text)
    (tmp_path / "boathook.toml").write_text(settings.text)
    (tmp_path / "conftest.py").write_text(tables.text)
    (tmp_path / "test_http.py").write_text(over_http.text)
    (tmp_path / "test_dependency.py").write_text(dependency.text)
    (tmp_path / "test_transaction.py").write_text(in_a_transaction.text)
    (tmp_path / "pyproject.toml").write_text(for_pytest.text)
    done = run_pytest(tmp_path, "-q")
    assert "7 passed" in done.stdout, done.stdout + done.stderr


PAGE = list(blocks(ROOT / "docs/how-to/test-handlers.md"))
