"""Keys, MACs and encodings, checked by published vectors and the standardwebhooks package."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from boathook.domain.signing import (
    STANDARD_PREFIX,
    Algorithm,
    HmacKey,
    KeyFormat,
    decode_key,
    encode_base64,
    equal_constant_time,
    sign_standard,
)

# RFC 4231, test case 2, and RFC 2202, test case 2.
VECTORS = {
    Algorithm.MD5: "750c783e6ab0b503eaa86e310a5db738",
    Algorithm.SHA1: "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
    Algorithm.SHA256: "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    Algorithm.SHA384: "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
    Algorithm.SHA512: "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_macs_equal_the_published_vectors(algorithm):
    assert HmacKey(b"Jefe", algorithm).digest([b"what do ya ", b"want for nothing?"]).hex() == VECTORS[algorithm]


@given(st.binary(min_size=1, max_size=200), st.lists(st.binary(max_size=50), max_size=5))
def test_pieces_give_the_same_mac_as_the_whole(key, chunks):
    mac = HmacKey(key)
    assert mac.digest(chunks) == hmac.digest(key, b"".join(chunks), "sha256") == mac.digest(chunks)


@pytest.mark.parametrize(
    ("secret", "form", "key"),
    [
        ("whsec_YWJj", KeyFormat.TEXT, b"whsec_YWJj"),
        ("Ключ", KeyFormat.TEXT, "Ключ".encode()),
        ("00ffAB", KeyFormat.HEX, b"\x00\xff\xab"),
        ("YWJj", KeyFormat.BASE64, b"abc"),
        ("YWI", KeyFormat.BASE64, b"ab"),
        ("whsec_YWJj", KeyFormat.STANDARD, b"abc"),
        ("YWJj", KeyFormat.STANDARD, b"abc"),
        # FIPS 180-4's example.
        ("abc", KeyFormat.SHA1, bytes.fromhex("a9993e364706816aba3e25717850c26c9cd0d89d")),
    ],
)
def test_keys_are_read_in_every_form(secret, form, key):
    assert decode_key(secret, form) == key


@pytest.mark.parametrize(
    ("secret", "form"),
    [
        ("", KeyFormat.TEXT),
        ("", KeyFormat.SHA1),
        ("whsec_", KeyFormat.STANDARD),
        ("0", KeyFormat.HEX),
        ("zz-top", KeyFormat.HEX),
        ("a b", KeyFormat.BASE64),
        ("ключ", KeyFormat.BASE64),
        ("ключ", KeyFormat.HEX),
        ("whsec_!!!!", KeyFormat.STANDARD),
        ("a", KeyFormat.BASE64),
    ],
)
def test_a_secret_in_the_wrong_form_is_refused_without_being_repeated(secret, form):
    with pytest.raises(ValueError, match=r"the secret (is empty|must be)") as caught:
        decode_key(secret, form)
    assert not secret or len(secret) < 3 or secret not in str(caught.value)


def test_base64_is_written_with_padding():
    assert encode_base64(b"\xff\xfe") == base64.b64encode(b"\xff\xfe").decode() == "//4="


def test_constant_time_comparison_is_correct():
    assert equal_constant_time("abc", "abc")
    assert not equal_constant_time("abc", "abd")
    assert not equal_constant_time("abc", "abcd")
    with pytest.raises(TypeError):
        equal_constant_time("é", "abc")


def test_standardwebhooks_verifies_signatures_of_each_secret():
    secrets = [STANDARD_PREFIX + encode_base64(hashlib.sha256(seed).digest()) for seed in (b"old", b"new")]
    now = int(datetime.now(UTC).timestamp())
    body = b'{"type":"a"}'
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": sign_standard(secrets, "msg_1", now, body),
    }
    for secret in secrets:
        assert Webhook(secret).verify(body, headers) == {"type": "a"}
    assert (
        Webhook(secrets[0]).sign("msg_1", datetime.fromtimestamp(now, UTC), body.decode())
        in headers["webhook-signature"]
    )


@pytest.mark.parametrize("message_id", ["", "a.b"])
def test_an_ambiguous_message_id_is_not_signed(message_id):
    with pytest.raises(ValueError, match="no dot"):
        sign_standard(["whsec_YWJj"], message_id, 1, b"")
