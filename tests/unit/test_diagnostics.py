"""Hints about a rejected request: common mistakes by name, no secret, and only after a rejection."""

import gzip
import json
from functools import partial

import pytest
from msgspec.structs import replace

from boathook.verification import diagnostics
from boathook.verification.verifier import Rejected, Verifier
from tests.support import too_dear
from tests.unit.verifier_factory import NOW, STANDARD_SECRET, request, signed, verifier

BODY = b'{"id":"evt_1","type":"invoice.paid","data":{"b":1.5,"a":[1,2],"name":"\xd0\x96"}}'


def explain(source: Verifier, sent, **more):
    verdict = source.verify(sent, NOW)
    assert isinstance(verdict, Rejected)
    return source.explain(sent, verdict, NOW, **more)


@pytest.mark.parametrize(
    ("provider", "secret", "sent_secret", "change", "words"),
    [
        ("stripe", "s", "s", lambda body: body + b"\n", "without the newline"),
        ("stripe", "s", "s", lambda body: body + b"\r\n", "without the newline"),
        ("hmac", "YWJjZGVm", "abcdef", lambda body: body, "decoded from base64"),
        ("hmac", "whsec_YWJjZGVm", "abcdef", lambda body: body, "after its whsec_"),
        ("hmac", "616263", "abc", lambda body: body, "decoded from hexadecimal"),
        ("hmac", " padded ", "padded", lambda body: body, "without the spaces around it"),
        ("github", "s\n", "s", lambda body: body, "without the spaces around it"),
        ("slack", "s", "s", lambda body: json.dumps(json.loads(body)).encode(), "written without spaces"),
        ("slack", "s", "s", lambda body: body.replace(b"paid", b"void"), None),
        ("github", "s", "other", lambda body: body, None),
    ],
)
def test_common_mistakes_are_named(provider, secret, sent_secret, change, words):
    sent = signed(provider, BODY, secret=sent_secret)
    hint = explain(verifier(provider, secret), replace(sent, body=change(BODY)))
    assert hint is None if words is None else words in hint


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({}, "with spaces after commas and colons"),
        ({"sort_keys": True, "separators": (",", ":")}, "with its keys sorted:"),
        ({"indent": 2}, "indented by two"),
        ({"ensure_ascii": False, "sort_keys": True}, "keys sorted and spaces"),
    ],
)
def test_a_reserialized_body_is_recognised(written, words):
    original = json.dumps(json.loads(BODY), **written).encode()
    sent = replace(signed("stripe", original), body=BODY)
    assert words in explain(verifier("stripe"), sent)


def test_a_compressed_body_is_recognised():
    sent = replace(signed("stripe", BODY), body=gzip.compress(BODY))
    assert "without its Content-Encoding" in explain(verifier("stripe"), sent, decode=gzip.decompress)
    assert explain(verifier("stripe"), sent) is None


@pytest.mark.parametrize(
    ("theirs", "words"),
    [({"algorithm": "sha1"}, "as sha1 written in hex"), ({"encoding": "base64"}, "as sha256 written in base64")],
)
def test_another_algorithm_or_encoding_is_recognised(theirs, words):
    assert words in explain(verifier("hmac"), signed("hmac", BODY, **theirs))


def test_a_lost_newline_is_named_except_for_large_bodies():
    for size, is_named in ((10, True), (100_000, False)):
        body = b" " * size + BODY
        hint = explain(verifier("stripe"), replace(signed("stripe", body + b"\n"), body=body))
        assert ("a proxy removed one" in (hint or "")) is is_named


def test_another_source_that_would_accept_it_is_named():
    shop, crm = (
        Verifier(replace(verifier("stripe", secret).spec, name=name))
        for name, secret in (("shop", "one"), ("crm", "two"))
    )
    anybody = Verifier(replace(verifier("unsigned", secrets=(), unsigned=True).spec, name="anybody"))
    sent = signed("stripe", BODY, secret="two")
    assert "'crm'" in explain(shop, sent, others=[anybody, shop, crm])
    assert explain(shop, sent, others=[anybody, shop]) is None
    github = Verifier(replace(verifier("github", "three").spec, name="github"))
    assert "'github'" in explain(shop, signed("github", BODY, secret="three"), others=[github])


def test_only_some_of_many_sources_are_tried():
    asked = []

    class Counting:
        proof_headers: frozenset[str] = frozenset()

        def check(self, _request, _now):
            asked.append(1)

    case = _case("stripe", signed("stripe", BODY, secret="x"))
    diagnostics.explain(case, "signature_mismatch", {str(number): Counting() for number in range(1000)})
    assert len(asked) == diagnostics.MAX_OTHERS


def _case(provider, sent):
    source = verifier(provider)
    return diagnostics.RejectedRequest(source.recipe, source.spec, source._settings, source.ring, sent, NOW, None)


def test_a_request_of_another_sender_is_recognised_by_its_header():
    assert "of GitHub" in explain(verifier("stripe"), signed("github", BODY))
    assert "stripe-signature" in explain(verifier("github"), signed("stripe", BODY))
    assert explain(verifier("github"), request(BODY, {"x-other": "1"})) is None


def test_errors_unrelated_to_the_signature_are_not_explained():
    same_source = Verifier(replace(verifier("stripe").spec, name="same"))
    assert explain(verifier("stripe"), signed("stripe", b"not json"), others=[same_source]) is None


def test_a_stale_signed_request_is_distinguished_from_a_forged_one():
    late = signed("stripe", BODY, timestamp=NOW - 4_000)
    assert "its signature is valid" in explain(verifier("stripe"), late)
    assert "not have been valid" in explain(verifier("stripe", "another"), late)


def test_hints_hold_no_secret():
    for secret, sent_secret in ((" geheim ", "geheim"), ("Z2VoZWlt", "geheim")):
        hint = explain(verifier("hmac", secret), signed("hmac", BODY, secret=sent_secret))
        assert hint
        assert "geheim" not in hint
        assert secret.strip() not in hint


def test_mutant_an_unchecked_guess_is_given_as_a_hint(monkeypatch):
    """A guess that is not checked would explain anything."""
    sent = signed("hmac", BODY, secret="nobody's")
    assert explain(verifier("hmac"), sent) is None
    monkeypatch.setattr(diagnostics, "_proof_holds", lambda *_args: True)
    assert explain(verifier("hmac"), sent) is not None


def test_finding_a_hint_takes_milliseconds():
    body = json.dumps([{"id": number, "text": "x" * 40} for number in range(250)]).encode()
    assert len(body) < diagnostics.MAX_BODY
    others = [Verifier(replace(verifier("stripe", f"s{number}").spec, name=f"s{number}")) for number in range(40)]
    for provider in ("stripe", "hmac", "standard-webhooks"):
        source = verifier(provider, STANDARD_SECRET)
        sent = signed(provider, body, secret="whsec_" + "C" * 32)
        verdict = source.verify(sent, NOW)
        assert too_dear(partial(source.explain, sent, verdict, NOW, others=others), most=50) is None
