"""One boathook process with a source of every provider and scheme, and genuine and forged requests to each.

The tests assert what senders and operators see: responses, and the output of the command line.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest
from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.providers.schemes import Addresses, NoProof
from boathook.testing import Signed
from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.raw_http import (
    RawResponse,
    boathook_on_new_database,
    rows,
    send_request,
    send_signed,
    write_config,
)
from tests.providers.request_factory import base64_mac
from tests.providers.source_factory import PUBLIC_URL, ProviderSource, all_sources
from tests.support import until

ALL = list(all_sources())
OPEN = [provider_source for provider_source in ALL if isinstance(provider_source.recipe.proof, NoProof)]
FETCHED = [provider_source for provider_source in ALL if provider_source.ring]
"""Those whose sender's key must be fetched, which cannot be done here."""
REACHED = [provider_source for provider_source in ALL if not provider_source.ring]
GUARDED = [provider_source for provider_source in REACHED if provider_source not in OPEN]

STORED = b'{"ok":true,"event_id":"'
REPLIES: dict[str, tuple[int, bytes]] = {
    "adyen": (200, b"[accepted]"),
    "cloudpayments": (200, b'{"code":0}'),
    "cloudpayments-get": (200, b'{"code":0}'),
    "t-bank": (200, b"OK"),
    "robokassa": (200, b"OK1001"),
    "robokassa-get": (200, b"OK1001"),
    "tilda": (200, b"ok"),
    "twilio": (200, b"<Response/>"),
    "twilio-shared-key": (200, b"<Response/>"),
    "okta": (200, b""),
    "microsoft-graph": (202, b""),
    "discord": (204, b""),
    "vk": (200, b"ok"),
    "xero": (200, b""),
}
"""The exact response that these senders expect, byte for byte; the others take any 2xx."""
LOOK_THERE = {"mollie", "dropbox"}
"""Senders whose identical requests are different events."""
OTHER_METHODS = {
    "braintree": {"GET", "POST"},
    "okta": {"GET", "POST"},
    "meta": {"GET", "POST"},
    "x": {"GET", "POST"},
    "dropbox": {"GET", "POST"},
    "intercom": {"HEAD", "POST"},
    "cloudpayments-get": {"GET"},
    "robokassa-get": {"GET"},
    "twilio": {"GET", "POST"},
    "twilio-shared-key": {"GET", "POST"},
    "zendesk": {"PATCH", "POST", "PUT"},
    "hmac": {"POST", "PUT"},
    "token": {"POST", "PUT"},
    "unsigned": {"POST", "PUT"},
}
"""The methods of senders that do not use POST only."""
EVENTS = {
    "stripe": ("payment_intent.succeeded", "evt_boathook-told01"),
    "square": ("payment.updated", "boathook-told01-0000-000000000000"),
    "mollie-next-gen": ("payment-link.paid", "event_boathook-told01"),
    "razorpay": ("payment.captured", "boathook-told01"),
    "coinbase-commerce": ("charge:confirmed", "boathook-told01"),
    "paddle": ("transaction.completed", "evt_boathook-told01"),
    "yookassa": ("payment.succeeded", "boathook-told01.payment.succeeded"),
    "cloudpayments": ("pay", "pay.1000001"),
    "cloudpayments-get": ("pay", "pay.1000001"),
    "robokassa": ("unknown", "1001.*"),
    "robokassa-get": ("unknown", "1001.*"),
    "tilda": ("form1001", "1001:boathook-told01"),
    "shopify": ("orders/create", "boathook-told01-0000-0000-000000000000"),
    "woocommerce": ("order.updated", "boathook-told01.727"),
    "twilio": ("delivered", "SMboathook-told01.delivered"),
    "mailgun": ("delivered", "boathook-told01.*@mg.example.com"),
    "github": ("issues.opened", "boathook-told01-0000-0000-000000000000"),
    "gitlab": ("merge_request.open", "boathook-told01-0000-0000-000000000000"),
    "gitlab-token": ("merge_request.open", "boathook-told01-0000-0000-000000000000"),
    "bitbucket": ("repo:push", "boathook-told01-0000-0000-000000000000"),
    "jira": ("jira:issue_created", "boathook-told01"),
    "linear": ("Issue.create", "boathook-told01-0000-0000-000000000000"),
    "vercel": ("deployment.succeeded", "boathook-told01"),
    "circleci": ("workflow-completed", "boathook-told01"),
    "sentry": ("issue.created", "sha256:*"),
    "pagerduty": ("incident.triggered", "boathook-told01"),
    "openai": ("response.completed", "wh_boathook-told01"),
    "slack": ("app_mention", "Ev-boathook-told01"),
    "telegram": ("message", "987654321"),
    "vk": ("message_new", "boathook-told01"),
    "notion": ("page.created", "boathook-told01"),
    "intercom": ("conversation.user.created", "notif_boathook-told01"),
    "typeform": ("form_response", "01boathook-told01"),
    "suno": ("complete", "suno:boathook-told01:complete"),
    "standard-webhooks": ("user.created", "msg_boathook-told01"),
    "standard-webhooks-v1a": ("user.created", "msg_boathook-told01"),
    "resend": ("email.delivered", "msg_boathook-told01"),
    "clerk": ("user.created", "msg_boathook-told01"),
}
"""Type and key, as a pattern, of events whose senders name them in words one can foretell."""
NEVER = {403, 406, 410}
"""Statuses by which one sender or another stops for good."""


@dataclass
class Talk:
    """The requests to one source and their responses."""

    first: RawResponse
    again: RawResponse
    forged: RawResponse | None
    events: list[dict[str, Any]] = field(default_factory=list)
    rejections: list[dict[str, Any]] = field(default_factory=list)


def configuration(running: BoathookProcess, provider_source: ProviderSource, number: int) -> str:
    """Write one source's table, its secrets by turns in a file and in the environment."""
    lines: dict[str, Any] = {
        "provider": provider_source.recipe.name,
        "public_url": PUBLIC_URL,
        **provider_source.settings,
    }
    if isinstance(provider_source.recipe.proof, NoProof):
        lines["unsigned"] = True
    for secret in provider_source.secrets:
        if number % 2 or "\n" in secret:
            (running.folder / f"{provider_source.label}.secret").write_text(secret + "\n")
            lines["secrets"] = [f"file:{provider_source.label}.secret"]
        else:
            running.environment[f"SECRET_{number}"] = secret
            lines["secrets"] = [f"env:SECRET_{number}"]
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())
    return f"\n[sources.{provider_source.label}]\n{table}\n"


@pytest.fixture(scope="module")
def running(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("providers")) as one:
        sources = "".join(configuration(one, provider_source, number) for number, provider_source in enumerate(ALL))
        write_config(one, sources, server='trusted_proxies = ["127.0.0.1/32"]')
        yield one.start()


def sent(provider_source: ProviderSource, word: str = "told01") -> Signed:
    return provider_source.sign_sample(word, at=time.time())


def forged(provider_source: ProviderSource) -> Signed:
    """The same request with one byte of the signed content or of the proof changed."""
    signed = sent(provider_source, "forged")
    if provider_source.recipe.grade is ProofStrength.BODY and signed.body:
        middle = signed.body.index(b"forged") if b"forged" in signed.body else len(signed.body) // 2
        return replace(signed, body=_flip(signed.body, middle))
    if provider_source.recipe.grade is ProofStrength.BODY:
        return replace(signed, url=signed.url.replace("Amount=", "Amount=1"))
    other = provider_source.secret[:-1] + ("A" if provider_source.secret[-1] != "A" else "B")
    return replace(provider_source, secret=other).sign_sample("forged", at=time.time())


def _flip(body: bytes, position: int) -> bytes:
    return body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :]


def client_of(provider_source: ProviderSource, *, is_stranger: bool = False) -> str:
    """The address a request comes from, as the proxy in front says it."""
    return "192.0.2.66" if is_stranger else provider_source.request(sent(provider_source)).client


@pytest.fixture(scope="module")
def talks(running: BoathookProcess) -> dict[str, Talk]:
    """Send requests to every source, then read the results with the command line."""
    found = {}
    for provider_source in REACHED:
        signed = sent(provider_source)
        first, again = (send_signed(running, signed, x_forwarded_for=client_of(provider_source)) for _ in range(2))
        is_address = isinstance(provider_source.recipe.proof, Addresses)
        lie = None if provider_source in OPEN else forged(provider_source)
        answer = lie and send_signed(running, lie, x_forwarded_for=client_of(provider_source, is_stranger=is_address))
        found[provider_source.label] = Talk(first, again, answer)
    until(lambda: rows(running, "select count(*) >= %s from boathook.rejection", len(GUARDED)) == [(True,)])
    for event in running.listing("events", "list", "--limit", "0"):
        found[event["source"]].events.append(event)
    for rejection in running.listing("rejections", "list", "--limit", "0"):
        found[rejection["source"]].rejections.append(rejection)
    return found


each = pytest.mark.parametrize("provider_source", REACHED, ids=str)
guarded = pytest.mark.parametrize("provider_source", GUARDED, ids=str)


@each
def test_its_sample_is_stored_and_gets_its_expected_response(talks: dict[str, Talk], provider_source: ProviderSource):
    talk = talks[provider_source.label]
    status, body = REPLIES.get(provider_source.label, (200, None))
    for answer in (talk.first, talk.again):
        assert answer.status == status, answer.body
        assert answer.body == body or (body is None and answer.body.startswith(STORED))
    if body is None:
        is_new_each_time = provider_source.label in LOOK_THERE
        assert [talk.first.json["duplicate"], talk.again.json["duplicate"]] == [False, not is_new_each_time]


@each
def test_its_event_is_listed_once_with_strength_type_and_key(talks: dict[str, Talk], provider_source: ProviderSource):
    events = talks[provider_source.label].events
    assert len(events) == (2 if provider_source.label in LOOK_THERE else 1)
    assert events[0]["grade"] == ("none" if provider_source in OPEN else provider_source.recipe.grade.value)
    if provider_source.label in EVENTS:
        type, key = EVENTS[provider_source.label]
        assert events[0]["type"] == type
        assert fnmatchcase(events[0]["dedup_key"], key)
    else:
        assert events[0]["type"]
        assert events[0]["dedup_key"]


@guarded
def test_one_changed_byte_is_refused_without_a_word_of_why(talks: dict[str, Talk], provider_source: ProviderSource):
    answer = talks[provider_source.label].forged
    assert answer is not None
    assert answer.status == 401
    if provider_source.recipe.has_empty_error_body:
        assert answer.body == b""
    else:
        assert set(answer.json) == {"ok", "error", "request_id"}
        assert answer.json["error"] == "unauthorized"
    assert not set(answer.headers) - {"content-type", "content-length", "x-request-id", "date", "server", "connection"}


@guarded
def test_rejections_have_a_reason_without_secrets(talks: dict[str, Talk], provider_source: ProviderSource):
    (rejection,) = talks[provider_source.label].rejections
    assert rejection["reason"] in {"signature_mismatch", "token_mismatch", "address_not_allowed"}
    assert len(rejection["detail"].split()) >= 4, rejection["detail"]
    for secret in provider_source.secrets:
        assert secret not in rejection["detail"]


@pytest.mark.parametrize("provider_source", FETCHED, ids=str)
def test_an_unavailable_key_answers_503_without_a_rejection(running: BoathookProcess, provider_source: ProviderSource):
    answer = send_signed(running, sent(provider_source))
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    assert rows(running, "select count(*) from boathook.rejection where source = %s", provider_source.label) == [(0,)]
    assert rows(running, "select count(*) from boathook.event where source = %s", provider_source.label) == [(0,)]


@pytest.mark.parametrize("provider_source", ALL, ids=str)
def test_unused_methods_are_not_allowed(running: BoathookProcess, provider_source: ProviderSource):
    wanted = OTHER_METHODS.get(provider_source.label, {"POST"})
    path = f"/in/{provider_source.label}"
    for method in ("HEAD", "GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = send_request(running, method, path)
        assert answer.status not in NEVER | set(range(300, 400))
        assert (answer.status == 405) is (method not in wanted), method
        if answer.status == 405:
            assert set(answer.headers["allow"].split(", ")) == wanted
    counted = rows(
        running, "select count(*) from boathook.event where source = %s and body = ''", provider_source.label
    )
    assert provider_source in OPEN or provider_source.recipe.sample.method == "GET" or counted == [(0,)]


def test_no_response_status_stops_a_sender(talks: dict[str, Talk]):
    statuses = {one.status for talk in talks.values() for one in (talk.first, talk.again, talk.forged) if one}
    assert statuses == {200, 202, 204, 401}
    assert not statuses & (NEVER | set(range(300, 400)))
    for provider_source in REACHED:
        assert talks[provider_source.label].first.status not in provider_source.recipe.stop_statuses


def test_events_show_prints_all_fields(running: BoathookProcess, talks: dict[str, Talk]):
    (event,) = talks["github"].events
    shown = json.loads(running.cli("events", "show", event["id"], "--json").stdout)
    assert {key: shown[key] for key in event} == event
    assert json.loads(shown["body"])["action"] == "opened"
    assert "body signed" in running.cli("events", "show", event["id"]).stdout


def test_nothing_that_is_secret_is_logged_or_kept(running: BoathookProcess, talks: dict[str, Talk]):
    log = running.log()
    shown = running.cli("config", "show").stdout
    for provider_source in ALL:
        for secret in provider_source.secrets:
            if not secret.startswith(("-----", "MF", "whpk")) and provider_source.label != "discord":
                assert secret not in log, provider_source.label
                assert secret not in shown, provider_source.label


TARGET = "/in/{source}?name=J%C3%BCrgen%20B&slash=%2F%2f&plus=a+b&colon=%3A&empty=&name=2"
LIES = {
    "host": "evil.example",
    "x-forwarded-host": "evil.example",
    "x-forwarded-proto": "http",
    "forwarded": "host=evil.example",
}


class TestPublicUrl:
    """The configured URL is the signed one, regardless of proxies and senders."""

    def test_square_signs_the_address_as_configured(self, running: BoathookProcess):
        target, secret = TARGET.format(source="square"), secret_of("square")
        for base, status in (
            (PUBLIC_URL, 200),
            ("http://evil.example", 401),
            (f"http://127.0.0.1:{running.port}", 401),
        ):
            body = json.dumps({"event_id": f"at {base}", "type": "payment.updated"}).encode()
            signature = base64_mac(secret, f"{base}{target}", body)
            headers = {"x-square-hmacsha256-signature": signature, "content-type": "application/json", **LIES}
            assert send_request(running, "POST", target, headers, body).status == status, base

    def test_an_address_written_another_way_is_another(self, running: BoathookProcess):
        target = TARGET.format(source="square")
        tidied = target.replace("%2f", "%2F")
        signature = base64_mac(secret_of("square"), f"{PUBLIC_URL}{target}", b"{}")
        assert send_request(running, "POST", tidied, {"x-square-hmacsha256-signature": signature}, b"{}").status == 401

    def test_hubspot_signs_the_address_as_configured(self, running: BoathookProcess):
        target, stamp = "/in/hubspot?name=J%C3%BCrgen%20B&plus=a+b&empty=&name=2", str(int(time.time() * 1000))
        for base, status in ((PUBLIC_URL, 200), ("https://evil.example", 401)):
            body = json.dumps([{"eventId": base, "subscriptionType": "contact.creation"}]).encode()
            signature = base64_mac(secret_of("hubspot"), f"POST{base}{target}", body, stamp)
            headers = {"x-hubspot-signature-v3": signature, "x-hubspot-request-timestamp": stamp, **LIES}
            assert send_request(running, "POST", target, headers, body).status == status, base


def secret_of(label: str) -> str:
    return next(provider_source.secret for provider_source in ALL if provider_source.label == label)
