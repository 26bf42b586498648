"""`boathook sources`: the list of providers, and invalid settings with their fixes."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from boathook.domain.model import ProofStrength
from boathook.providers import RECIPES
from tests.acceptance.conftest import BoathookProcess, free_port, payload, signed
from tests.acceptance.raw_http import send_request, write_config
from tests.acceptance.test_cli import ENVIRONMENT, Cli
from tests.support import until

WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "square": ('secrets = ["x"]', ("public_url: Square signs the URL", 'public_url = "https://')),
    "twilio": ('secrets = ["x"]', ("public_url: Twilio signs the URL",)),
    "hubspot": ('secrets = ["x"]', ("public_url: HubSpot signs the URL",)),
    "github": ('secrets = ["x"]\nheder = "x"', ("heder: the provider github has no such setting",)),
    "hmac": ('secrets = ["x"]\nheder = "x"', ("heder: the provider hmac has no such setting; perhaps header?",)),
    "jira": ('secrets = ["x"]\nscheme = "conect"', ("scheme: unknown scheme 'conect'", 'use "connect"')),
    "meta": (
        'secrets = ["x"]',
        ("verify_token: ", "required by Meta: WhatsApp, Facebook, Instagram, Messenger: The Verify Token"),
    ),
    "whatsapp": (
        'secrets = ["x"]\nverify_tokn = "y"',
        ("verify_token: ", "perhaps verify_tokn is a misspelling of it"),
    ),
    "paypal": ('webhook_id = "5"\nsecrets = ["x"]', ("secrets: ", "boathook fetches automatically; remove them")),
    "yookassa": ('secrets = ["x"]', ("secrets: ", "identified by its addresses; remove them")),
    "stripe": ("", ("secrets: there is none", "unsigned = true")),
    "slack": ('secrets = ["env:NO_SUCH_SECRET"]', ("secrets[0]: the environment variable NO_SUCH_SECRET is not set",)),
    "linear": ('secrets = ["file:nowhere"]', ("secrets[0]: cannot read", "nowhere")),
    "zoom": ('secrets = ["file:blank"]', ("blank is empty; write the value into it",)),
    "adyen": (
        'secrets = ["not hexadecimal"]',
        ("secrets[0]: the secret must be hexadecimal", "copy it from the sender"),
    ),
    "discord": ('secrets = ["not hex"]', ("secrets[0]: ", "public key as hexadecimal")),
    "gitlab": ('secrets = ["whsec_%%% is not base64"]', ("secrets[0]: the secret must be base64",)),
    "telegramm": ('secrets = ["x"]', ("provider: there is no provider 'telegramm'; perhaps telegram?",)),
}
"""Invalid source settings, and the expected error of each."""

UNREADABLE: dict[str, tuple[str, tuple[str, ...]]] = {
    "misspelt": ('secrets = ["x"]\ntolerence_s = 5', ("tolerence_s is not a setting", "sources.stripe.tolerance_s")),
    "empty": ('secrets = [""]', ("sources.stripe.secrets[0]: must not be empty", "env:NAME")),
    "no list": ('secrets = "x"', ("sources.stripe.secrets: must be a list",)),
    "network": ('secrets = ["x"]\naddresses = ["10.0.0.0/33"]', ("sources.stripe.addresses[0]: must be a network",)),
    "host bits": ('secrets = ["x"]\naddresses = ["10.0.0.1/8"]', ("sources.stripe.addresses[0]", "host bits")),
    "address": ('secrets = ["x"]\npublic_url = "example.com"', ("sources.stripe.public_url: must be an address",)),
    "moment": ('secrets = ["x"]\ntolerance_s = -1', ("sources.stripe.tolerance_s: must be greater than 0",)),
    "mode": ('secrets = ["x"]\nmode = "inlin"', ("sources.stripe.mode",)),
}
"""Settings that are wrong for any sender, so that the whole file is refused."""


def source(name: str) -> str:
    return f"[sources.{name}]\n{WRONG[name][0]}\n"


def write(cli: Cli, url: str, sources: str) -> None:
    (cli.folder / "blank").write_text("\n")
    head = f'[server]\nbind = "127.0.0.1:{free_port()}"\n[database]\nurl = "{url}"\n'
    (cli.folder / "boathook.toml").write_text(head + sources)


@pytest.fixture
def cli(tmp_path: Path, pg_url: str) -> Cli:
    return Cli(tmp_path, pg_url)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_source_is_named_with_its_fix_and_nothing_starts(cli: Cli, pg_url: str, name: str):
    write(cli, pg_url, source(name))
    complaint = cli.complaint("serve")
    for words in (f"sources.{name}.", *WRONG[name][1]):
        assert words in complaint


@pytest.mark.parametrize("case", UNREADABLE)
def test_settings_wrong_for_any_source_are_named_too(cli: Cli, pg_url: str, case: str):
    lines, words = UNREADABLE[case]
    write(cli, pg_url, f"[sources.stripe]\n{lines}\n")
    complaint = cli.complaint("serve")
    for word in words:
        assert word in complaint


def test_the_doctor_reports_every_invalid_source(cli: Cli, pg_url: str):
    short = '[sources.shop]\nprovider = "stripe"\nsecrets = ["whsec_of_a_test_that_is_long"]\ndedup_days = 1\n'
    long = '[sources.store]\nprovider = "stripe"\nsecrets = ["whsec_of_a_test_that_is_long"]\ndedup_days = 5\n'
    write(cli, pg_url, "".join(source(name) for name in WRONG) + short + long)
    found = {one["check"]: one for one in cli.objects("doctor", code=1)}
    for name, (_, words) in WRONG.items():
        finding = found[f"source {name}"]
        assert finding["verdict"] == "fail"
        assert finding["fix"]
        for word in (f"sources.{name}.", *words):
            assert word in finding["found"]
    assert found["source shop"]["verdict"] == "warn"
    assert "sources.shop.dedup_days" in found["source shop"]["fix"]
    assert found["source store"]["verdict"] == "ok"
    (table,) = [line for line in cli.run("doctor", code=1).stdout.splitlines() if "source square" in line]
    assert table.startswith("fail")
    assert "sources.square.public_url" in table


def test_an_invalid_source_is_listed_as_not_ready(cli: Cli, pg_url: str):
    write(
        cli,
        pg_url,
        source("square") + '[sources.shop]\nprovider = "stripe"\nsecrets = ["whsec_of_a_test_that_is_long"]\n',
    )
    listed = {one["name"]: one for one in cli.objects("sources", "list")}
    assert {name: one["grade"] for name, one in listed.items()} == {"square": None, "shop": "body signed"}
    assert "not ready" in cli.run("sources", "list").stdout
    (shown,) = cli.objects("sources", "show", "square")
    assert shown["ready"].startswith("no: sources.square.public_url")
    assert "unknown source 'nobody'; configured: shop, square" in cli.complaint("sources", "show", "nobody", code=1)
    assert "unknown source 'nobody'" in cli.complaint("sources", "test", "nobody", code=1)
    assert "start `boathook dev`, `boathook serve`" in cli.complaint("sources", "test", "shop")


def test_every_provider_is_listed_with_strength_and_docs(cli: Cli):
    told = cli.objects("sources", "providers")
    lines = cli.run("sources", "providers", COLUMNS="80").stdout.splitlines()
    assert len(told) == len(lines) == len(RECIPES)
    for one, line in zip(told, lines, strict=True):
        assert one["grade"] in {grade.value for grade in ProofStrength}
        assert one["docs"].startswith("https://")
        assert line.split("  ")[0] == one["name"]
        assert one["grade"] in line
        assert line.endswith("  " + one["docs"]), "an address is one word, to be copied"
        for key in ("title", "settings", "checked", "retries", "answer_within_s", "schemes", "aliases"):
            assert key in one


HANDLERS = """
from boathook import Boathook, Event, RetryPolicy, Transaction

hook = Boathook()

@hook.on("stripe", "broken.*", retry=RetryPolicy(first_s=0.05, max_attempts=1))
async def broken(event: Event, tx: Transaction) -> None:
    raise RuntimeError("this never works")
"""


@pytest.fixture(scope="module")
def running(shared_boathook: Any) -> BoathookProcess:
    """A boathook shared by all tests here; event types keep them apart."""
    one: BoathookProcess = shared_boathook(start=False)
    (one.folder / "shop.py").write_text(HANDLERS)
    sources = '[sources.stripe]\nsecrets = ["whsec_acceptance"]\n'
    write_config(one, sources, app="shop:hook", roles='["gateway", "worker"]')
    return one.start()


class TestGrade:
    """The proof strength is shown with every event."""

    @pytest.mark.extended("starts several servers of its own")
    def test_it_is(self, running: BoathookProcess):
        body, headers = signed(payload("evt_1", "broken.now"))
        answer = send_request(running, "POST", "/in/stripe", headers, body)
        event_id = answer.json["event_id"]
        until(lambda: [one["state"] for one in running.listing("deliveries", "list")] == ["dead"], every=0.2)
        (dead,) = running.listing("dead", "list")
        told = [
            running.listing("events", "list", "--type", "broken.*")[0],
            json.loads(running.cli("events", "show", event_id, "--json").stdout),
            running.listing("deliveries", "list")[0],
            json.loads(running.cli("deliveries", "show", dead["id"], "--json").stdout),
            dead,
        ]
        assert [one["grade"] for one in told] == ["body signed"] * 5
        running.environment["COLUMNS"] = "120"
        for listing in (("events", "list"), ("deliveries", "list"), ("dead", "list"), ("events", "show", event_id)):
            shown = running.cli(*listing).stdout
            assert "proof" in shown
            assert "body" in shown.split("proof")[1]

    @pytest.mark.extended("starts several servers of its own")
    def test_strength_is_shown_by_reverify(self, running: BoathookProcess):
        body, headers = signed(payload("evt_2", "order.paid"), secret="whsec_tomorrow")
        assert send_request(running, "POST", "/in/stripe", headers, body).status == 401
        until(lambda: running.listing("rejections", "list"), every=0.2)
        write_config(running, '[sources.stripe]\nsecrets = ["whsec_tomorrow"]\n', app="shop:hook")
        shown = running.cli("rejections", "reverify", "--source", "stripe").stdout
        assert "accepted  evt_" in shown
        assert "(body signed)" in shown

    def test_events_can_be_read_on_80_columns(self, running: BoathookProcess):
        for number in range(3):
            body, headers = signed(payload(f"evt_paid_{number}", f"order.paid.{number}"), at=time.time())
            assert send_request(running, "POST", "/in/stripe", headers, body).status == 200
        running.environment["COLUMNS"] = "80"
        head, *lines = running.cli("events", "list", "--type", "order.paid.*").stdout.splitlines()
        assert head.split() == ["id", "from", "type", "proof", "fanout", "size", "age"]
        assert [line.split()[1:5] for line in lines] == [
            ["stripe", f"order.paid.{number}", "body", "0"] for number in (2, 1, 0)
        ]
        assert max(map(len, [head, *lines])) <= 80


def test_a_reader_that_stops_early_is_no_error(cli: Cli):
    done = subprocess.run(
        f"{sys.executable} -m boathook sources providers --json | head -1",
        shell=True, cwd=cli.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
