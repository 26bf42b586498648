"""Generic sources with a configured scheme, checked by Python's own hmac."""

import base64
import hmac
import itertools

import pytest

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Rejected, Reply, Verified
from boathook.testing import sign
from tests.unit.verifier_factory import NOW, request, verifier

BODY = '{"id":"e1","kind":"k","name":"Жуковский ✓"}'.encode()
ENCODE = {"hex": bytes.hex, "base64": lambda digest: base64.b64encode(digest).decode()}
KEYS = {"text": b"00112233aabb", "hex": bytes.fromhex("00112233aabb"), "base64": base64.b64decode("00112233aabb")}
STAMPS = {"s": "1700000000", "ms": "1700000000000", "iso": "2023-11-14T22:13:20Z"}


@pytest.mark.judge("hmac")
@pytest.mark.parametrize(
    ("algorithm", "encoding", "key_encoding"),
    list(itertools.product(("sha1", "sha256", "sha384", "sha512"), ENCODE, KEYS)),
)
def test_every_algorithm_encoding_and_form_of_key(algorithm, encoding, key_encoding):
    settings = {"header": "X-Sig", "algorithm": algorithm, "encoding": encoding, "key_encoding": key_encoding}
    signature = ENCODE[encoding](hmac.new(KEYS[key_encoding], BODY, algorithm).digest())
    source = verifier("hmac", "00112233aabb", **settings, id_path="id", type_path="kind")
    verdict = source.verify(request(BODY, {"x-sig": signature}), NOW)
    assert (verdict.dedup_key, verdict.type, verdict.grade) == ("e1", "k", ProofStrength.BODY)
    assert isinstance(source.verify(request(BODY + b" ", {"x-sig": signature}), NOW), Rejected)
    assert sign("hmac", "00112233aabb", BODY, **settings)["x-sig"] == signature


@pytest.mark.judge("hmac")
@pytest.mark.parametrize("unit", STAMPS)
def test_every_unit_of_time(unit):
    settings = {
        "header": "X-Sig",
        "timestamp_header": "X-Time",
        "timestamp_unit": unit,
        "template": "{timestamp}.{body}",
    }
    signature = hmac.new(b"geheim", STAMPS[unit].encode() + b"." + BODY, "sha256").hexdigest()
    headers = {"x-sig": signature, "x-time": STAMPS[unit]}
    source = verifier("hmac", "geheim", **settings)
    assert source.verify(request(BODY, headers), NOW).timestamp.timestamp() == NOW
    assert source.verify(request(BODY, headers), NOW + 301).reason == "timestamp_too_old"
    assert source.verify(request(BODY, headers | {"x-time": "1e9"}), NOW).reason == "timestamp_malformed"
    assert sign("hmac", "geheim", BODY, timestamp=NOW, **settings)["x-sig"] == signature


@pytest.mark.judge("token")
@pytest.mark.judge("unsigned")
def test_a_token_and_no_proof_at_all():
    source = verifier("token", "geheim", header="X-Token", id_path="id")
    assert source.verify(request(BODY, {"x-token": "geheim"}), NOW).grade is ProofStrength.TOKEN
    assert source.verify(request(BODY, {"x-token": "other"}), NOW).reason == "token_mismatch"
    verdict = verifier("unsigned", secrets=(), unsigned=True, id_path="id").verify(request(BODY, {}), NOW)
    assert (verdict.grade, verdict.dedup_key) == (ProofStrength.NONE, "e1")
    with pytest.raises(ConfigError, match=r"sources\.test\.unsigned"):
        verifier("unsigned", secrets=())


# What generic senders want to hear


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"reply_body": "OK"}, Reply(status=200, body=b"OK", content_type="text/plain; charset=utf-8")),
        ({"reply_body": '{"code":0}'}, Reply(status=200, body=b'{"code":0}', content_type="application/json")),
        ({"reply_status": 204}, Reply(status=204, body=b"", content_type="text/plain; charset=utf-8")),
        (
            {"reply_status": "201", "reply_body": "<ok/>", "reply_content_type": "text/xml"},
            Reply(status=201, body=b"<ok/>", content_type="text/xml"),
        ),
    ],
)
@pytest.mark.parametrize(("provider", "own"), [("unsigned", {}), ("rentprog", {}), ("hmac", {"header": "X-Sig"})])
def test_the_reply_can_be_configured(provider, own, settings, expected):
    source = verifier(provider, secrets=(), unsigned=True, **own, **settings)
    verdict = source.verify(request(b"{}", {}), NOW)
    assert isinstance(verdict, Verified)
    assert verdict.reply == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reply_status": 410}, r"sources\.test\.reply_status: write a whole number from 200 to 299"),
        ({"reply_status": "abc"}, r"sources\.test\.reply_status"),
        ({"reply_status": True}, r"sources\.test\.reply_status"),
        ({"reply_status": 204, "reply_body": "x"}, r"sources\.test\.reply_body"),
        ({"reply_content_type": "text/xml"}, r"sources\.test\.reply_content_type"),
        ({"reply_body": ["x"]}, r"sources\.test\.reply_body: write text in quotes"),
    ],
)
def test_an_invalid_reply_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        verifier("unsigned", secrets=(), unsigned=True, **settings)


def test_a_unit_without_a_timestamp_is_refused():
    with pytest.raises(ConfigError, match=r"sources\.test\.timestamp_unit: timestamp_header is not set"):
        verifier("hmac", "x", timestamp_unit="ms")
