"""`boathook trigger` on a running boathook: signed requests of a source become events that handlers get."""

import json
from collections.abc import Callable

import pytest

from tests.acceptance.conftest import BoathookProcess
from tests.support import until

SOURCES = """
    [sources.github]
    provider = "github"
    secrets = ["a secret of github that is long"]
    [sources.telegram]
    provider = "telegram"
    secrets = ["a_secret_of_telegram"]
    [sources.vk]
    provider = "vk"
    secrets = ["a_secret_of_vk"]
    confirmation = "a1b2c3"
    [sources.paypal]
    provider = "paypal"
    webhook_id = "5ML55517062060"
"""


@pytest.fixture(scope="module")
def running(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    return shared_boathook(extra=SOURCES)


def test_each_request_is_an_event_of_the_type_with_the_fields(running: BoathookProcess) -> None:
    rows = running.listing("trigger", "github", "issues.opened", "--set", "issue.number=7", "--times", "3")
    assert [row["status"] for row in rows] == [200, 200, 200]
    assert len({row["event_id"] for row in rows}) == 3, "each has an id of its own"
    (shown,) = running.listing("events", "show", rows[0]["event_id"])
    assert shown["type"] == "issues.opened"
    body = json.loads(shown["body"])
    assert (body["action"], body["issue"]["number"]) == ("opened", 7)


def test_a_handler_gets_the_event(running: BoathookProcess) -> None:
    (row,) = running.listing("trigger", "stripe", "payment.paid")
    until(lambda: [one["state"] for one in running.listing("deliveries", "list") if one["event_id"] == row["event_id"]])


def test_a_provider_with_its_own_reply_is_accepted(running: BoathookProcess) -> None:
    (row,) = running.listing("trigger", "vk")
    assert (row["status"], row["response"], row["event_id"]) == (200, "ok", None)


def test_the_whole_url_of_a_source_is_taken(running: BoathookProcess) -> None:
    for path in ("", "/", "/in/stripe", "/webhooks/stripe"):
        (row,) = running.listing("trigger", "stripe", "--url", f"{running.base}{path}")
        expected = path if len(path) > 1 else "/in/stripe"
        assert (row["status"], row["sent"].partition(",")[0]) == (200, f"POST {expected}")


def test_a_body_from_a_file_is_sent_as_it_is_signed(running: BoathookProcess) -> None:
    (running.folder / "body.json").write_text('{"action": "closed", "issue": {"number": 1}}')
    (row,) = running.listing("trigger", "github", "--file", "body.json")
    (shown,) = running.listing("events", "show", row["event_id"])
    assert json.loads(shown["body"]) == {"action": "closed", "issue": {"number": 1}}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("paypal",), "boathook cannot sign as PayPal"),
        (("githb",), "unknown source 'githb'; configured: github, paypal, stripe, telegram, vk"),
        (("github", "--file", "nowhere.json"), "cannot read nowhere.json"),
        (("github", "--set", "issue"), "--set: write NAME=VALUE"),
        (("github", "--url", "http://127.0.0.1:9"), "no response from http://127.0.0.1:9"),
    ],
    ids=["a key pair", "a typo", "no file", "no value", "no gateway"],
)
def test_wrong_arguments_are_explained(running: BoathookProcess, arguments: tuple[str, ...], text: str) -> None:
    done = running.cli("trigger", *arguments, check=False)
    assert done.returncode != 0
    assert text in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
