"""The recipes, checked by other libraries, and their registry."""

import hmac
import itertools
import json
import time
from datetime import UTC, datetime

import pytest
import stripe
from slack_sdk.signature import Clock, SignatureVerifier
from standardwebhooks.webhooks import Webhook as StandardWebhook
from svix.webhooks import Webhook as SvixWebhook

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.providers import RECIPES, find_recipe
from boathook.providers.options import CREDENTIAL_HEADERS
from boathook.providers.schemes import Hmac
from boathook.testing import sign
from boathook.verification.verifier import Challenge, Rejected, Verified
from tests.providers.source_factory import body_key
from tests.unit.verifier_factory import NOW, SECRETS, STANDARD_SECRET, STRIPE_SECRET, request, signed, verifier

BODIES = [
    b'{"id":"evt_1","object":"event","type":"invoice.paid"}',
    b'{ "id" : "evt_1",\n "type":"invoice.paid" }\n',
    '{"id":"evt_1","type":"invoice.paid","name":"Жуковский ✓"}'.encode(),
]


class FixedClock(Clock):
    def now(self):
        return NOW


@pytest.mark.parametrize("body", BODIES)
def test_stripe_signs_and_we_accept(body):
    stamp = int(NOW)
    signature = stripe.WebhookSignature._compute_signature(f"{stamp}.{body.decode()}", STRIPE_SECRET)
    verdict = verifier("stripe").verify(request(body, {"stripe-signature": f"t={stamp},v1={signature},v0=6ffb"}), NOW)
    assert isinstance(verdict, Verified)
    assert (verdict.type, verdict.dedup_key, verdict.grade) == ("invoice.paid", "evt_1", ProofStrength.BODY)
    assert verdict.replay_material is None
    assert verdict.volatile == ("pending_webhooks",)
    assert verdict.timestamp == datetime.fromtimestamp(NOW, UTC)


@pytest.mark.parametrize("body", BODIES)
def test_we_sign_and_stripe_accepts(body):
    headers = sign("stripe", STRIPE_SECRET, body)
    assert stripe.Webhook.construct_event(body, headers["stripe-signature"], STRIPE_SECRET).id == "evt_1"


@pytest.mark.parametrize("body", [*BODIES, b"token=x&command=%2Fdeploy&text=94070&trigger_id=13.37.abc"])
def test_slack_and_we_accept_each_other(body):
    slack = SignatureVerifier(SECRETS["slack"], clock=FixedClock())
    stamp = str(int(NOW))
    headers = {
        "x-slack-request-timestamp": stamp,
        "x-slack-signature": slack.generate_signature(timestamp=stamp, body=body),
    }
    assert isinstance(verifier("slack").verify(request(body, headers), NOW), Verified)
    ours = sign("slack", SECRETS["slack"], body, timestamp=NOW)
    assert slack.is_valid(body, ours["x-slack-request-timestamp"], ours["x-slack-signature"])


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("webhook", "prefix"), [(StandardWebhook, "webhook"), (SvixWebhook, "svix")])
@pytest.mark.parametrize("name", ["standard-webhooks", "svix", "Standard-Webhooks"])
def test_standard_webhooks_and_svix_and_we_accept_each_other(body, webhook, prefix, name):
    now = int(time.time())
    theirs = webhook(STANDARD_SECRET)
    headers = {
        f"{prefix}-id": "msg_1",
        f"{prefix}-timestamp": str(now),
        f"{prefix}-signature": theirs.sign("msg_1", datetime.fromtimestamp(now, UTC), body.decode()),
    }
    verdict = verifier(name, STANDARD_SECRET).verify(request(body, headers), now)
    assert isinstance(verdict, Verified)
    assert (verdict.dedup_key, verdict.type, verdict.replay_material) == ("msg_1", "invoice.paid", None)
    theirs.verify(body, sign(name, STANDARD_SECRET, body, timestamp=now, id="msg_2"))


def test_github_signs_as_its_documentation_shows():
    # The example on docs.github.com, "Validating webhook deliveries".
    header = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    github = verifier("github", "It's a Secret to Everybody")
    verdict = github.verify(request(b"Hello, World!", {"x-hub-signature-256": header, "x-github-event": "push"}), NOW)
    assert isinstance(verdict, Verified)
    assert sign("github", "It's a Secret to Everybody", b"Hello, World!")["x-hub-signature-256"] == header


def test_github_types_are_the_event_and_its_action():
    github = verifier("github")
    for body, type, expected in (
        (b'{"action":"opened"}', "pull_request", "pull_request.opened"),
        (b'{"ref":"refs/heads/main"}', "push", "push"),
        (b"payload=%7B%22action%22%3A%22opened%22%7D", "issues", "issues.opened"),
        (b'{"action":"opened"}', None, "unknown"),
    ):
        assert github.verify(signed("github", body, type=type), NOW).type == expected


def test_githubs_id_is_not_signed_so_the_body_counts_too():
    body = b'{"action":"opened"}'
    first = verifier("github").verify(signed("github", body, id="guid-1"), NOW)
    replayed = verifier("github").verify(signed("github", body, id="guid-2"), NOW)
    stripped = verifier("github").verify(signed("github", body, id=None), NOW)
    assert first.dedup_key == "guid-1"
    assert replayed.dedup_key == "guid-2"
    assert stripped.dedup_key == body_key(body, stripped.type)
    assert first.replay_material == replayed.replay_material == stripped.replay_material == body


def test_slack_is_answered_only_after_its_proof():
    body = json.dumps(
        {"token": "x", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P", "type": "url_verification"}
    ).encode()
    genuine = signed("slack", body)
    assert verifier("slack").verify(genuine, NOW) == Challenge(
        status=200,
        body=b"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",
        content_type="text/plain; charset=utf-8",
    )
    assert isinstance(verifier("slack", "another").verify(genuine, NOW), Rejected)
    assert isinstance(verifier("slack").verify(request(body, {}), NOW), Rejected)


@pytest.mark.parametrize("challenge", [None, 1, ["x"], "x" * 5_000])
def test_a_slack_question_without_text_to_echo_is_refused(challenge):
    body = json.dumps({"type": "url_verification", "challenge": challenge}).encode()
    verdict = verifier("slack").verify(signed("slack", body), NOW)
    assert isinstance(verdict, Rejected)
    assert verdict.status == 400


@pytest.mark.parametrize(
    ("body", "content_type", "type", "key"),
    [
        (
            b'{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}',
            "application/json",
            "app_mention",
            "Ev1",
        ),
        (b'{"type":"app_rate_limited","event_id":"Ev2"}', "application/json", "app_rate_limited", "Ev2"),
        (b'{"type":"event_callback","event_id":"Ev3","event":"odd"}', "application/json", "event_callback", "Ev3"),
        (b"command=%2Fdeploy&trigger_id=13.37", "application/x-www-form-urlencoded", "/deploy", "13.37"),
    ],
)
def test_slack_events_and_commands(body, content_type, type, key):
    verdict = verifier("slack").verify(signed("slack", body, content_type=content_type), NOW)
    assert (verdict.type, verdict.dedup_key) == (type, key)


@pytest.mark.parametrize(("sender", "receiver"), list(itertools.permutations(SECRETS, 2)))
def test_a_providers_signature_is_refused_by_every_other_provider(sender, receiver):
    sent = signed(sender, BODIES[0], secret=STANDARD_SECRET, type="invoice.paid")
    assert isinstance(verifier(sender, STANDARD_SECRET).verify(sent, NOW), Verified)
    assert isinstance(verifier(receiver, STANDARD_SECRET).verify(sent, NOW), Rejected)


@pytest.mark.parametrize("provider", list(SECRETS))
def test_a_secret_binds_a_request_to_its_source(provider):
    sent = signed(provider, BODIES[0])
    other = "whsec_" + "B" * 40
    assert isinstance(verifier(provider, other).verify(sent, NOW), Rejected)
    assert isinstance(verifier(provider, secrets=(other, SECRETS[provider])).verify(sent, NOW), Verified)


def test_names_and_aliases_are_found_in_any_letter_case():
    assert find_recipe(" Stripe ").name == "stripe"
    assert find_recipe("SVIX") is find_recipe("standard-webhooks")
    with pytest.raises(ConfigError, match="perhaps stripe"):
        find_recipe("strpe")


def test_recipes_are_well_formed():
    names = [name for recipe in RECIPES for name in (recipe.name, *recipe.aliases)]
    assert len(names) == len(set(names))
    for recipe in RECIPES:
        assert recipe.name == recipe.name.lower()
        assert recipe.docs.startswith("https://")
        assert not CREDENTIAL_HEADERS & set(recipe.keep)
        assert json.dumps(recipe.describe())
        assert set(recipe.confidence) <= set(recipe.__struct_fields__)
        if isinstance(recipe.proof, Hmac):
            assert recipe.proof.headers
            for names_of in recipe.proof.headers:
                for name in (names_of.signature, names_of.timestamp, names_of.id):
                    assert name is None or name == name.lower()


GENERIC = [
    ({"header": "X-Signature"}, lambda key, _t, body: ("x-signature", hmac.new(key, body, "sha256").hexdigest())),
    (
        {"header": "X-Sig", "algorithm": "sha1", "encoding": "base64", "prefix": "sha1="},
        lambda key, _t, body: (
            "x-sig",
            "sha1=" + __import__("base64").b64encode(hmac.new(key, body, "sha1").digest()).decode(),
        ),
    ),
    (
        {
            "header": "X-Sig",
            "algorithm": "sha512",
            "template": "v1|{timestamp}|{method}|{url}|{body}",
            "timestamp_header": "X-Time",
        },
        lambda key, t, body: (
            "x-sig",
            hmac.new(key, b"v1|" + t + b"|POST|https://hooks.example.com/in/test|" + body, "sha512").hexdigest(),
        ),
    ),
    (
        {"header": "X-Sig", "algorithm": "sha384", "timestamp_header": "X-Time", "key_encoding": "hex"},
        lambda key, t, body: (
            "x-sig",
            hmac.new(bytes.fromhex(key.decode()), t + b"." + body, "sha384").hexdigest().upper(),
        ),
    ),
]


@pytest.mark.parametrize(("settings", "compute"), GENERIC)
def test_generic_signatures_equal_those_computed_by_hand(settings, compute):
    secret, body, stamp = "00112233aabb", b'{"a":1}', str(int(NOW))
    name, value = compute(secret.encode(), stamp.encode(), body)
    sent = request(body, {name: value, "x-time": stamp})
    assert isinstance(verifier("hmac", secret, **settings).verify(sent, NOW), Verified)
    ours = sign("hmac", secret, body, timestamp=NOW, url="https://hooks.example.com/in/test", **settings)
    assert ours[name] == value.lower() if "base64" not in settings.values() else ours[name] == value


@pytest.mark.parametrize(
    ("unit", "text"), [("s", "1700000000"), ("ms", "1700000000000"), ("iso", "2023-11-14T22:13:20Z")]
)
def test_generic_timestamps_are_read_in_three_units(unit, text):
    settings = {"timestamp_header": "x-time", "timestamp_unit": unit}
    sent = signed("hmac", b"{}", **settings)
    assert sent.headers["x-time"] == text
    verdict = verifier("hmac", **settings).verify(sent, NOW)
    assert verdict.timestamp == datetime.fromtimestamp(NOW, UTC)
    assert verifier("hmac", **settings).verify(sent, NOW + 301).reason == "timestamp_too_old"


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\tb", "é", "a b"])
def test_a_field_may_have_any_name(name: str):
    verdict = verifier("hmac", id_path=name).verify(signed("hmac", json.dumps({name: "evt_1"}).encode()), NOW)
    assert isinstance(verdict, Verified)
    assert verdict.dedup_key == "evt_1"


def test_a_generic_id_counts_as_signed_only_inside_the_template_or_the_body():
    body = b'{"id":"from-body","kind":"k"}'
    unsigned = verifier("hmac", id_header="x-id", type_path="kind")
    verdict = unsigned.verify(signed("hmac", body, id="h1", id_header="x-id"), NOW)
    assert (verdict.dedup_key, verdict.type, verdict.replay_material) == ("h1", "k", body)
    inside = {"id_header": "x-id", "template": "{id}:{body}"}
    verdict = verifier("hmac", **inside).verify(signed("hmac", body, id="h1", **inside), NOW)
    assert (verdict.dedup_key, verdict.replay_material) == ("h1", None)
    verdict = verifier("hmac", id_path="$.id").verify(signed("hmac", body), NOW)
    assert (verdict.dedup_key, verdict.replay_material) == ("from-body", None)


def test_tokens_in_every_place():
    body = b'{"id":7}'
    for settings, sent in (
        ({"header": "X-Token"}, request(body, {"x-token": "geheim"})),
        ({"header": "Authorization", "prefix": "Bearer "}, request(body, {"authorization": "Bearer geheim"})),
        ({"query": "key"}, request(body, {}, query="a=1&key=geheim")),
        ({"username": "bob"}, request(body, {"authorization": "Basic Ym9iOmdlaGVpbQ=="})),
    ):
        verdict = verifier("token", "geheim", **{"header": None} | settings, id_path="id").verify(sent, NOW)
        assert isinstance(verdict, Verified), settings
        assert (verdict.grade, verdict.dedup_key) == (ProofStrength.TOKEN, "7")
        assert "geheim" not in repr(verdict.kept_headers)
        assert "authorization" not in verdict.kept_headers
        wrong = verifier("token", "other", **{"header": None} | settings).verify(sent, NOW)
        assert wrong.reason == "token_mismatch"
        assert "geheim" not in wrong.detail
        assert not wrong.may_reverify


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"header": "x-token"}, request(b"", {})),
        ({"header": "x-token", "prefix": "Bearer "}, request(b"", {"x-token": "geheim"})),
        ({"query": "key"}, request(b"", {}, query="key=geheim&key=geheim")),
        ({"query": "key"}, request(b"", {}, query="&".join(["key=geheim"] * 5_000))),
        ({"username": "bob"}, request(b"", {"authorization": "Basic !!!"})),
        ({"username": "bob"}, request(b"", {"authorization": "Basic Ym9i"})),
        ({"username": "bob"}, request(b"", {"authorization": "Basic é"})),
        ({"username": "eve"}, request(b"", {"authorization": "Basic Ym9iOmdlaGVpbQ=="})),
    ],
)
def test_a_token_that_is_not_there_is_missing(settings, sent):
    assert verifier("token", "geheim", **{"header": None} | settings).verify(sent, NOW).reason == "token_missing"


def test_a_basic_password_may_be_the_setting():
    source = verifier("token", header=None, username="bob", password="geheim", secrets=())
    assert isinstance(source.verify(request(b"", {"authorization": "basic Ym9iOmdlaGVpbQ=="}), NOW), Verified)
    assert verifier("token", header=None, query="key").secret_query == "key"


def test_an_unsigned_source_accepts_all_with_proof_strength_none():
    for provider, key in (("unsigned", "sha256:"), ("github", "guid")):
        source = verifier(provider, secrets=(), unsigned=True)
        verdict = source.verify(request(b"x", {"x-github-delivery": "guid", "x-github-event": "push"}), NOW)
        assert isinstance(verdict, Verified)
        assert verdict.grade is ProofStrength.NONE
        assert verdict.dedup_key.startswith(key)


def test_sign_covers_tokens_and_refuses_non_header_proofs():
    basic = sign("token", "geheim", b"", username="bob")
    assert basic["authorization"] == "Basic Ym9iOmdlaGVpbQ=="
    assert sign("unsigned", "", b"x") == {"content-type": "application/json"}
    with pytest.raises(ValueError, match="into the address"):
        sign("token", "geheim", b"", query="key")
    with pytest.raises(ConfigError, match="no such setting"):
        sign("stripe", "x", b"", header="x-sig")


def test_one_signature_is_written_for_each_secret():
    for provider in ("stripe", "standard-webhooks", "github"):
        sent = signed(provider, BODIES[0], secret=[STANDARD_SECRET, "whsec_" + "B" * 32])
        for secret in (STANDARD_SECRET, "whsec_" + "B" * 32):
            assert isinstance(verifier(provider, secret).verify(sent, NOW), Verified)
