"""Every provider's handshake over real sockets: answered if valid, and never an event."""

import hashlib
import hmac
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

import pytest

from boathook.providers import RECIPES
from boathook.testing import make_keys, signed_request
from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.raw_http import RawResponse, boathook_on_new_database, rows, send_request, write_config
from tests.providers.request_factory import base64_mac, hex_mac
from tests.support import until

SECRET = "a signing secret"
DISCORD = make_keys("discord")
NOTION = "secret_Zm9yZ2V0IG1lIG5vdA"
SOURCES = f"""
[sources.slack]
secrets = ["{SECRET}"]
[sources.discord]
secrets = ["{DISCORD.public}"]
[sources.vk]
secrets = ["{SECRET}"]
confirmation = "1a2b3c4d"
[sources.meta]
secrets = ["{SECRET}"]
verify_token = "meatyhamhock"
[sources.x]
secrets = ["{SECRET}"]
[sources.zoom]
secrets = ["{SECRET}"]
[sources.okta]
secrets = ["{SECRET}"]
[sources.sns]
topic_arn = "arn:aws:sns:eu-central-1:123456789012:a"
[sources.microsoft-graph]
secrets = ["{SECRET}"]
[sources.woocommerce]
secrets = ["{SECRET}"]
[sources.braintree]
secrets = ["{SECRET}"]
public_key = "the_public_key"
[sources.tilda]
secrets = ["{SECRET}"]
[sources.dropbox]
secrets = ["{SECRET}"]
[sources.notion]
[sources.intercom]
secrets = ["{SECRET}"]
[sources.xero]
secrets = ["{SECRET}"]
"""
SLACK = b'{"type":"url_verification","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","token":"x"}'
PING = b'{"application_id":"1","id":"1","token":"t","type":1,"version":1}'
WEBHOOK_PING = b'{"version":1,"application_id":"1","type":0}'
ZOOM = b'{"event":"endpoint.url_validation","payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event_ts":1654503849680}'
XERO = b'{"events":[],"firstEventSequence":0,"lastEventSequence":0,"entropy":"S0m3r4Nd0mt3xt"}'
FORM = {"content-type": "application/x-www-form-urlencoded"}
CHALLENGE = "x-okta-verification-challenge"
BRAINTREE = "20f9f8ed05f77439fe955c977e4c8a53"


@dataclass(frozen=True)
class Case:
    """A challenge and its expected response; body None means a status without details."""

    source: str
    status: int
    answer: bytes | None = None
    method: str = "POST"
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    signed_with: str = ""
    kind: str = "text/plain"
    """How the answer's content type begins."""

    def __str__(self) -> str:
        return f"{self.source}-{self.status}-{self.method}"


def braintree_mac(text: str) -> str:
    return hmac.new(hashlib.sha1(SECRET.encode()).digest(), text.encode(), hashlib.sha1).hexdigest()


def hub(**changes: str) -> dict[str, str]:
    words = {"mode": "subscribe", "challenge": "1158201444", "verify_token": "meatyhamhock", **changes}
    return {f"hub.{name}": text for name, text in words.items()}


def get(source: str, status: int, answer: bytes | None = None, **query: str) -> Case:
    return Case(source, status, answer, method="GET", query=query)


ANSWERED = [
    Case("slack", 200, json.loads(SLACK)["challenge"].encode(), body=SLACK, signed_with=SECRET),
    Case("slack", 200, b"", body=b"ssl_check=1&token=x", headers=FORM),
    Case("discord", 200, b'{"type":1}', body=PING, signed_with=DISCORD.private, kind="application/json"),
    Case("discord", 204, b"", body=WEBHOOK_PING, signed_with=DISCORD.private, kind=""),
    Case("vk", 200, b"1a2b3c4d", body=b'{"type":"confirmation","group_id":1}'),
    Case("meta", 200, b"1158201444", method="GET", query=hub()),
    Case(
        "x",
        200,
        json.dumps(
            {"response_token": "sha256=" + base64_mac(SECRET, "challenge_string")}, separators=(",", ":")
        ).encode(),
        method="GET",
        query={"crc_token": "challenge_string"},
        kind="application/json",
    ),
    Case(
        "zoom",
        200,
        json.dumps(
            {"plainToken": "qgg8vlvZRS6UYooatFL8Aw", "encryptedToken": hex_mac(SECRET, "qgg8vlvZRS6UYooatFL8Aw")},
            separators=(",", ":"),
        ).encode(),
        body=ZOOM,
        signed_with=SECRET,
        kind="application/json",
    ),
    Case(
        "okta",
        200,
        b'{"verification": "a-B_c.1"}',
        method="GET",
        headers={CHALLENGE: "a-B_c.1"},
        kind="application/json",
    ),
    Case(
        "microsoft-graph",
        200,
        b"Validation: Request-Id: 5+2/a=&",
        query={"validationToken": "Validation: Request-Id: 5+2/a=&"},
    ),
    Case("woocommerce", 200, b"", body=b"webhook_id=7", headers=FORM),
    get("braintree", 200, f"the_public_key|{braintree_mac(BRAINTREE)}".encode(), bt_challenge=BRAINTREE),
    Case("tilda", 200, b"ok", body=b"test=test", headers=FORM),
    get("dropbox", 200, b"abc-123_X", challenge="abc-123_X"),
    Case("intercom", 200, b"", method="HEAD"),
    Case("xero", 200, b"", body=XERO, signed_with=SECRET),
]

REFUSED = [
    Case("slack", 401, body=SLACK, signed_with="another secret"),
    Case("slack", 401, body=SLACK),
    Case("discord", 401, body=PING, signed_with=make_keys("discord").private),
    Case("discord", 401, body=PING),
    Case("discord", 401, body=WEBHOOK_PING),
    Case("vk", 401, body=b'{"type":"message_new","group_id":1,"secret":"wrong"}'),
    Case("meta", 401, method="GET", query=hub(verify_token="meatyhamhocks")),
    Case("meta", 401, method="GET", query=hub(verify_token="")),
    Case("meta", 400, method="GET", query=hub(challenge="<script>")),
    Case("meta", 400, method="GET", query=hub(challenge="1" * 257)),
    Case("meta", 401, method="GET", query=hub(mode="unsubscribe")),
    get("x", 400, crc_token='{"tweet_create_events":[]}'),
    get("x", 400, crc_token="a" * 5_000),
    Case("zoom", 401, body=ZOOM),
    Case("zoom", 401, body=ZOOM, signed_with="another secret"),
    Case("zoom", 400, body=ZOOM.replace(b"qgg8", b"v0:1:{}"), signed_with=SECRET),
    Case("okta", 400, method="GET", headers={CHALLENGE: "two words"}),
    Case("okta", 400, method="GET", headers={CHALLENGE: "a" * 513}),
    Case("okta", 401, method="GET"),
    Case("microsoft-graph", 400, query={"validationToken": "a\r\nset-cookie: x"}),
    Case("microsoft-graph", 401, query={"validationToken": ""}),
    get("braintree", 400, bt_challenge="PGEvPg=="),
    get("braintree", 400, bt_challenge=BRAINTREE[:19]),
    get("dropbox", 400, challenge="<b>"),
    get("dropbox", 401),
    Case("xero", 401, b"", body=XERO, signed_with="another secret"),
    Case("notion", 400, body=b'{"verification_token":"short"}'),
    Case("notion", 401, body=b'{"type":"page.created"}'),
]


@pytest.fixture(scope="module")
def running(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("handshakes")) as one:
        write_config(one, SOURCES, server='public_url = "https://hooks.example.com"')
        yield one.start()


def ask(running: BoathookProcess, case: Case) -> RawResponse:
    query = "?" + urlencode(case.query) if case.query else ""
    headers, body = {"content-type": "application/json", **case.headers}, case.body
    if case.signed_with:
        settings = {"verify_token": "x"} if case.source == "meta" else {}
        sent = signed_request(case.source, case.signed_with, body, timestamp=time.time(), **settings)
        headers, body = {**headers, **sent.headers}, sent.body
    return send_request(running, case.method, f"/in/{case.source}{query}", headers, body)


def events(running: BoathookProcess) -> int:
    return int(rows(running, "select count(*) from boathook.event")[0][0])


@pytest.mark.parametrize("case", ANSWERED, ids=str)
def test_a_valid_challenge_is_answered_exactly_and_is_no_event(running: BoathookProcess, case: Case):
    answer = ask(running, case)
    assert (answer.status, answer.body) == (case.status, case.answer)
    assert answer.headers.get("content-type", "").startswith(case.kind)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers
    assert events(running) == 0


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_wrong_challenge_is_refused_without_an_echo(running: BoathookProcess, case: Case):
    answer = ask(running, case)
    assert answer.status == case.status
    assert answer.body == b"" if case.answer == b"" else set(answer.json) == {"ok", "error", "request_id"}
    assert events(running) == 0


def test_every_provider_with_a_handshake_is_tested():
    asking = {recipe.name for recipe in RECIPES if recipe.handshakes}
    assert asking == {case.source for case in ANSWERED} | {"sns", "notion"}


def test_an_sns_confirmation_needs_a_verified_certificate(running: BoathookProcess):
    question = {
        "Type": "SubscriptionConfirmation",
        "MessageId": "1",
        "Token": "t",
        "TopicArn": "arn:aws:sns:eu-central-1:123456789012:a",
        "Message": "You have chosen",
        "SubscribeURL": "https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription",
        "Timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "SignatureVersion": "1",
        "Signature": "A" * 340 + "AA==",
    }
    places = {
        "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem": 503,
        "https://evil.example/SimpleNotificationService-0123456789abcdef.pem": 401,
        "https://sns.eu-central-1.amazonaws.com.evil.example/a.pem": 401,
        "http://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem": 401,
        "https://127.0.0.1/SimpleNotificationService-0123456789abcdef.pem": 401,
    }
    for place, status in places.items():
        body = json.dumps({**question, "SigningCertURL": place}).encode()
        answer = send_request(running, "POST", "/in/sns", {"content-type": "text/plain; charset=UTF-8"}, body)
        assert answer.status == status, place
    assert events(running) == 0


def test_a_notion_secret_is_captured_once_and_confirmed_by_an_operator(running: BoathookProcess):
    def send_secret(secret: str) -> RawResponse:
        body = json.dumps({"verification_token": secret}).encode()
        return send_request(running, "POST", "/in/notion", {"content-type": "application/json"}, body)

    def page(key: str) -> RawResponse:
        body = json.dumps({"id": key, "type": "page.created", "timestamp": "2026-01-01T00:00:00Z"}).encode()
        sent = signed_request("notion", NOTION, body)
        return send_request(running, "POST", "/in/notion", sent.headers, body)

    assert (send_secret(NOTION).status, send_secret(NOTION).status) == (200, 200)
    assert send_secret("secret_of_somebody_else").status == 401
    assert page("before").status == 401, "nobody has confirmed that it was Notion who told it"
    assert running.cli("sources", "secret", "notion").stdout.strip() == NOTION
    until(lambda: page("after").status == 200)
    assert send_secret("secret_of_somebody_else").status == 401
    assert rows(running, "select distinct source, dedup_key from boathook.event") == [("notion", "after")]
    assert NOTION not in running.log()
    rows(running, "delete from boathook.event returning id")


def test_the_reason_for_a_refused_challenge_is_listed(running: BoathookProcess):
    ask(running, Case("meta", 401, method="GET", query=hub(verify_token="never this")))

    def details() -> set[str]:
        listed = running.listing("rejections", "list", "--source", "meta", "--limit", "0")
        return {one["detail"] for one in listed if one["reason"] == "challenge_refused"}

    wanted = "a handshake was refused: its token is not sources.meta.verify_token"
    until(lambda: wanted in details(), every=0.3)
