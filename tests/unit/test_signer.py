"""Signing messages: the published vector, the packages that receivers use, and secrets that are none."""

import base64
import time

import pytest
import standardwebhooks
import svix.webhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from boathook.delivery.signer import make_ed25519_secret, make_secret, read_signer

BODY = b'{"name":"\xc3\xa4", "x": [1, 2]}'


def write(prefix, key):
    return prefix + base64.b64encode(key).decode()


def test_the_published_vector():
    signer = read_signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signer.public == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize("make", [make_secret, lambda: write("whsec_", bytes(75)), lambda: write("whsec_", bytes(24))])
def test_receivers_packages_verify(make):
    secret, now = make(), int(time.time())
    signature = read_signer(secret).sign("msg_1", now, BODY)
    for prefix, package in (
        ("webhook", standardwebhooks.Webhook),
        ("webhook", svix.webhooks.Webhook),
        ("svix", svix.webhooks.Webhook),
    ):
        headers = {f"{prefix}-id": "msg_1", f"{prefix}-timestamp": str(now), f"{prefix}-signature": signature}
        package(secret).verify(BODY.decode(), headers)
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            package(secret).verify(BODY.decode() + " ", headers)
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            package(make_secret()).verify(BODY.decode(), headers)


def test_old_and_new_secrets_signatures_both_verify_together():
    now, secrets = int(time.time()), [make_secret(), make_ed25519_secret(), make_secret()]
    signature = " ".join(read_signer(secret).sign("msg_1", now, BODY) for secret in secrets)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}
    for secret in (secrets[0], secrets[2]):
        standardwebhooks.Webhook(secret).verify(BODY.decode(), headers)


def test_an_ed25519_signature_verifies_with_the_public_key_alone():
    secret = make_ed25519_secret()
    signer = read_signer(secret)
    version, _, signature = signer.sign("msg_1", 5, BODY).partition(",")
    assert (version, signer.public[:5]) == ("v1a", "whpk_")
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(signer.public[5:]))
    public.verify(base64.b64decode(signature), b"msg_1.5." + BODY)
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signature), b"msg_1.6." + BODY)
    assert base64.b64decode(secret[5:])[:32] not in base64.b64decode(signer.public[5:])


def test_a_seed_alone_and_one_with_its_public_key_are_one_key():
    key = Ed25519PrivateKey.generate()
    seed, public = key.private_bytes_raw(), key.public_key().public_bytes_raw()
    alone, both = read_signer(write("whsk_", seed)), read_signer(write("whsk_", seed + public))
    assert alone.public == both.public
    assert alone.sign("m", 1, b"") == both.sign("m", 1, b"")


def test_made_secrets_differ_and_can_be_read():
    for make, length in ((make_secret, 24), (make_ed25519_secret, 64)):
        made = {make() for _ in range(20)}
        assert len(made) == 20
        assert {len(base64.b64decode(secret.partition("_")[2])) for secret in made} == {length}
        assert all(read_signer(secret) for secret in made)


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ("", "starts with"),
        ("whsec_", "empty"),
        (write("whsec_", bytes(23)), "24 to 75 bytes.*not 23"),
        (write("whsec_", bytes(76)), "24 to 75 bytes.*not 76"),
        ("whsec_!" + "a" * 40, "base64"),
        ("whsec_ä" + "a" * 40, "base64"),
        (write("whsk_", bytes(31)), "32 or 64"),
        (write("whsk_", bytes(33)), "32 or 64"),
        (write("whsk_", bytes(65)), "32 or 64"),
        (write("whsk_", bytes(64)), "public key of the first"),
        (write("whpk_", bytes(32)), "starts with"),
        (write("whsk1_", bytes(32)), "starts with"),
        (write("WHSEC_", bytes(32)), "starts with"),
        (write("", bytes(32)), "starts with"),
        (write(" whsec_", bytes(32)), "starts with"),
    ],
)
def test_an_invalid_secret_is_explained_but_not_shown(secret, words):
    with pytest.raises(ValueError, match=words) as caught:
        read_signer(secret)
    assert len(secret) < 20 or secret[6:] not in str(caught.value)
