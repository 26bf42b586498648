"""Standard Webhooks, symmetric and asymmetric, and the senders that have Svix send for them."""

import base64
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from standardwebhooks.webhooks import Webhook as StandardWebhook
from svix.webhooks import Webhook as SvixWebhook
from svix.webhooks import WebhookVerificationError

from boathook.domain.errors import ConfigError
from boathook.domain.verification import Rejected, Verified
from boathook.providers import find_recipe
from boathook.testing import make_keys, sign
from tests.providers.source_factory import NOW
from tests.unit.verifier_factory import STANDARD_SECRET, request, verifier

BODY = '{"type":"user.created","data":{"id":"1","name":"Жуковский ✓"}}'.encode()


def reason(verdict: object) -> str:
    assert isinstance(verdict, Rejected), verdict
    return verdict.reason


def judged(headers: dict[str, str], body: bytes, secret: str = STANDARD_SECRET) -> bool:
    try:
        SvixWebhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return False
    return True


@pytest.mark.judge("resend")
@pytest.mark.judge("clerk")
@pytest.mark.parametrize("provider", ["resend", "clerk"])
def test_svix_and_we_accept_each_other(provider):
    theirs = {
        "svix-id": "msg_1",
        "svix-timestamp": str(int(NOW)),
        "svix-signature": SvixWebhook(STANDARD_SECRET).sign(
            "msg_1", datetime.fromtimestamp(int(NOW), UTC), BODY.decode()
        ),
    }
    verdict = verifier(provider, STANDARD_SECRET).verify(request(BODY, theirs), NOW)
    assert (verdict.type, verdict.dedup_key, verdict.replay_material) == ("user.created", "msg_1", None)
    ours = sign(provider, STANDARD_SECRET, BODY, timestamp=NOW, id="msg_2")
    assert "svix-signature" in ours
    assert judged(ours, BODY)
    other = "whsec_" + base64.b64encode(b"B" * 24).decode()
    for body, headers, secret in (
        (BODY[:-1] + b" }", ours, STANDARD_SECRET),
        (BODY, ours | {"svix-id": "msg_3"}, STANDARD_SECRET),
        (BODY, ours, other),
        (BODY, sign(provider, STANDARD_SECRET, BODY, timestamp=NOW - 301), STANDARD_SECRET),
        (BODY, sign(provider, STANDARD_SECRET, BODY, timestamp=NOW + 330), STANDARD_SECRET),
    ):
        assert not judged(headers, body, secret)
        assert isinstance(verifier(provider, secret).verify(request(body, headers), NOW), Rejected)


@pytest.mark.parametrize("provider", ["resend", "clerk"])
def test_they_always_send_json(provider):
    sent = request(b"a=1", sign(provider, STANDARD_SECRET, b"a=1", timestamp=NOW))
    assert reason(verifier(provider, STANDARD_SECRET).verify(sent, NOW)) == "body_malformed"


@pytest.mark.judge("standard-webhooks")
def test_several_secrets_are_signed_with_side_by_side():
    other = "whsec_" + base64.b64encode(b"B" * 24).decode()
    ours = sign("standard-webhooks", [other, STANDARD_SECRET], BODY, timestamp=NOW)
    for secret in (other, STANDARD_SECRET):
        assert StandardWebhook(secret).verify(BODY, ours)
        assert isinstance(verifier("standard-webhooks", secret).verify(request(BODY, ours), NOW), Verified)


# The asymmetric form

# github.com/svix/svix-webhooks, server/svix-server/src/core/webhook_http_client and worker: test_asymmetric_key_signing.
PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
SEED = base64.b64decode("6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=")
VECTOR = request(
    b'{"test": 2432232314}',
    {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
    },
)
THEN = 1_614_265_330.0


def v1a(*public: str):
    return verifier("standard-webhooks", secrets=public or (PUBLIC,), scheme="v1a")


@pytest.mark.judge("standard-webhooks")
def test_svixs_own_vector_is_accepted():
    verdict = v1a().verify(VECTOR, THEN)
    assert isinstance(verdict, Verified)
    assert (verdict.dedup_key, verdict.replay_material) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", None)
    assert verdict.timestamp.timestamp() == THEN
    by_hand = Ed25519PrivateKey.from_private_bytes(SEED).sign(
        b'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'
    )
    assert VECTOR.headers["webhook-signature"] == "v1a," + base64.b64encode(by_hand).decode()


@pytest.mark.parametrize(
    ("changes", "body", "now", "expected"),
    [
        ({}, b'{"test": 2432232315}', THEN, "signature_mismatch"),
        ({"webhook-id": "msg_other"}, None, THEN, "signature_mismatch"),
        ({"webhook-timestamp": "1614265331"}, None, THEN, "signature_mismatch"),
        ({"webhook-signature": "v1a,AAAA"}, None, THEN, "signature_mismatch"),
        ({"webhook-signature": "v1a,%%%"}, None, THEN, "signature_malformed"),
        ({"webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="}, None, THEN, "unknown_scheme"),
        ({"webhook-id": ""}, None, THEN, "signature_missing"),
        ({"webhook-id": "msg.1"}, None, THEN, "signature_missing"),
        ({"webhook-timestamp": "soon"}, None, THEN, "timestamp_malformed"),
        ({}, None, THEN + 301, "timestamp_too_old"),
        ({}, None, THEN - 301, "timestamp_in_future"),
    ],
)
def test_changed_test_vectors_are_refused(changes, body, now, expected):
    sent = replace(VECTOR, headers={**VECTOR.headers, **changes}, body=VECTOR.body if body is None else body)
    assert reason(v1a().verify(sent, now)) == expected


SVIX_NAMES = {f"webhook-{part}": f"svix-{part}" for part in ("id", "timestamp", "signature")}


def with_svix_names(sent):
    return replace(sent, headers={SVIX_NAMES.get(name, name): text for name, text in sent.headers.items()})


@pytest.mark.judge("standard-webhooks")
def test_svix_signs_asymmetrically_under_its_own_header_names():
    """Svix's server sends svix-* unless whitelabel_headers is set: svix-server, src/cfg.rs."""
    verdict = v1a().verify(with_svix_names(VECTOR), THEN)
    assert isinstance(verdict, Verified), verdict
    assert (verdict.dedup_key, verdict.replay_material) == ("msg_p5jXN8AQM9LWM0D4loKWxJek", None)
    assert verdict.timestamp.timestamp() == THEN
    assert {"svix-id", "svix-timestamp", "svix-signature"} <= v1a().proof_headers


@pytest.mark.parametrize(
    ("more", "now", "expected"),
    [
        ({"webhook-timestamp": str(int(THEN + 1000))}, THEN + 1000, "timestamp_too_old"),
        ({"svix-timestamp": str(int(THEN + 1000))}, THEN + 1000, "signature_mismatch"),
        ({"webhook-signature": "v1a,AAAA"}, THEN, "signature_missing"),
        ({"svix-id": "msg_other"}, THEN, "signature_mismatch"),
    ],
)
def test_header_sets_are_never_mixed(more, now, expected):
    """A header of the other set is not signed, so it must not date or name the request."""
    sent = with_svix_names(VECTOR)
    refused = v1a().verify(replace(sent, headers={**sent.headers, **more}), now)
    assert reason(refused) in {expected, "timestamp_missing"}


def test_an_unsigned_id_of_the_other_header_set_names_no_event():
    sent = with_svix_names(VECTOR)
    verdict = v1a().verify(replace(sent, headers={**sent.headers, "webhook-id": "msg_new"}), THEN)
    assert verdict.dedup_key == "msg_p5jXN8AQM9LWM0D4loKWxJek"


@pytest.mark.parametrize("provider", ["standard-webhooks", "svix", "clerk", "resend"])
def test_a_secret_may_have_the_version_of_its_signatures(provider):
    """Supabase shows v1,whsec_…: https://supabase.com/docs/guides/auth/auth-hooks."""
    sent = request(BODY, sign(provider, STANDARD_SECRET, BODY, timestamp=NOW))
    for pasted in (f"v1,{STANDARD_SECRET}", STANDARD_SECRET, STANDARD_SECRET.removeprefix("whsec_")):
        assert isinstance(verifier(provider, pasted).verify(sent, NOW), Verified)
    with pytest.raises(ConfigError, match=r"secrets\[0\]: the secret is empty"):
        verifier(provider, "v1,whsec_")


@pytest.mark.parametrize("provider", ["standard-webhooks", "clerk", "stripe", "hmac"])
def test_a_private_signing_key_is_named_as_what_it_is(provider):
    private = make_keys("standard-webhooks", scheme="v1a").private
    settings = {"header": "x-signature"} if provider == "hmac" else {}
    pasted = "whsk_" + base64.b64encode(b"p" * 64).decode()
    for secret in (pasted, f"v1a,{pasted}", *((private,) if private.startswith("whsk_") else ())):
        with pytest.raises(
            ConfigError, match=r"secrets\[0\]: this is a private signing key \(whsk_\).*whpk_"
        ) as caught:
            verifier(provider, secret, **settings)
        assert "cHBw" not in str(caught.value)


def test_keys_of_the_other_scheme_are_named_as_what_they_are():
    with pytest.raises(ConfigError, match=r"public key \(whpk_\), which needs scheme"):
        verifier("standard-webhooks", PUBLIC)
    with pytest.raises(ConfigError, match=r"shared secret \(whsec_\), which needs no scheme"):
        v1a(STANDARD_SECRET)
    with pytest.raises(ConfigError, match="it is a private key"):
        verifier("sendgrid", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----")


def test_both_signature_versions_may_be_combined_and_keys_rotated():
    keys = make_keys("standard-webhooks", scheme="v1a")
    assert keys.public.startswith("whpk_")
    ours = sign("standard-webhooks", keys.private, BODY, scheme="v1a", timestamp=NOW, id="msg_1")
    macs = sign("standard-webhooks", STANDARD_SECRET, BODY, timestamp=NOW, id="msg_1")
    both = ours | {"webhook-signature": f"{macs['webhook-signature']} {ours['webhook-signature']}"}
    assert isinstance(v1a(PUBLIC, keys.public).verify(request(BODY, both), NOW), Verified)
    assert isinstance(verifier("standard-webhooks", STANDARD_SECRET).verify(request(BODY, both), NOW), Verified)
    assert reason(v1a(PUBLIC).verify(request(BODY, both), NOW)) == "signature_mismatch"
    assert StandardWebhook(STANDARD_SECRET).verify(BODY, both)


@pytest.mark.parametrize("secret", [STANDARD_SECRET, "whpk_AAAA", "whsk_" + PUBLIC[5:], ""])
def test_only_a_public_key_will_do(secret):
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets\[0\]") as caught:
        v1a(secret)
    assert not secret or secret not in str(caught.value)


def test_a_public_key_is_no_secret_of_the_symmetric_form():
    """If a public key were a secret, everyone who knows it could sign."""
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets\[0\]"):
        verifier("standard-webhooks", PUBLIC)


def test_410_is_a_stop_status():
    assert find_recipe("standard-webhooks").stop_statuses == {410}
