"""Handshakes: answered, refused, and never an event."""

import hashlib
import hmac
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.domain.errors import ConfigError
from boathook.domain.signing import KeyFormat
from boathook.domain.verification import Challenge, Reason, Rejected, Verified
from boathook.providers.recipe import (
    BodyFormat,
    CaptureSecret,
    ConfirmByFetch,
    Echo,
    ExpectedReply,
    Handshake,
    Setting,
    SignText,
    StaticAnswer,
)
from boathook.providers.request_reader import Form, Header, Json, Query
from boathook.providers.schemes import Token
from boathook.verification import handshakes
from tests.support import too_dear
from tests.unit.recipe_factory import SIGNED, recipe, source
from tests.unit.verifier_factory import NOW, request

KEY = "geheim"
CRC = Handshake(
    when=(Query("crc"),),
    answer=SignText(
        selector=Query("crc"),
        allowed=re.compile("[A-Za-z0-9]{1,40}"),
        template='{"text":"{text}","mac":"sha256={mac}"}',
    ),
    method="GET",
    is_proven=False,
)
ECHO = Handshake(when=((Json("type"), "hello"),), answer=Echo(selector=Json("text")))


def mac(body: bytes) -> str:
    return hmac.new(KEY.encode(), body, "sha256").hexdigest()


def made(*shakes: Handshake, **fields):
    return recipe(SIGNED, handshakes=shakes, body=BodyFormat.ANY, **fields)


def ask(verifier, body: bytes = b"", headers=None, **more):
    return verifier.verify(request(body, headers or {}, **more), NOW)


def ask_signed(verifier, document: object, **more):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return ask(verifier, body, {"x-sig": mac(body)}, **more)


# When a question is one.


def test_a_signed_challenge_is_answered_only_if_valid():
    verifier = source(made(ECHO), KEY)
    question = {"type": "hello", "text": "abc"}
    assert ask_signed(verifier, question) == Challenge(
        status=200, body=b"abc", content_type="text/plain; charset=utf-8"
    )
    forged = ask(verifier, json.dumps(question).encode(), {"x-sig": "0"})
    assert (forged.status, forged.reason) == (401, Reason.SIGNATURE_MISMATCH)
    assert isinstance(ask_signed(verifier, {"type": "other", "text": "abc"}), Verified)
    assert isinstance(ask_signed(verifier, {"type": "hello", "text": "abc"}, method="PUT"), Rejected)


def test_all_that_makes_a_request_the_question_must_be_there():
    shake = Handshake(
        when=((Query("mode"), "subscribe"), Query("challenge"), (Header("x-kind"), "ask")),
        answer=Echo(selector=Query("challenge")),
        method="GET",
        is_proven=False,
    )
    verifier = source(made(shake), KEY)
    whole: dict[str, Any] = {"query": "mode=subscribe&challenge=123", "headers": {"x-kind": "ask"}, "method": "GET"}
    assert ask(verifier, **whole).body == b"123"
    changes: tuple[dict[str, Any], ...] = (
        {"query": "mode=other&challenge=123"},
        {"query": "mode=subscribe"},
        {"query": "mode=subscribe&challenge="},
        {"query": "mode=subscribe&challenge=1&challenge=2"},
        {"headers": {}},
        {"headers": {"x-kind": "tell"}},
        {"method": "POST"},
    )
    for change in changes:
        verdict = ask(verifier, **(whole | change))
        assert (verdict.status, verdict.reason) == (401, Reason.SIGNATURE_MISSING), change


@pytest.mark.parametrize(("value", "text"), [(1, "1"), ("1", "1"), (True, "true"), (1.5, "1.5")], ids=repr)
def test_a_number_in_the_question_equals_its_text(value, text):
    verifier = source(made(Handshake(when=((Json("type"), text),), answer=StaticAnswer(body='{"type":1}'))), KEY)
    assert isinstance(ask_signed(verifier, {"type": value}), Challenge)
    assert isinstance(ask_signed(verifier, {"type": [value]}), Verified)


def test_handshake_methods_are_allowed_besides_event_methods():
    assert source(made(CRC, ECHO), KEY).methods == {"GET", "POST"}
    assert source(made(ECHO), KEY).methods == {"POST"}
    assert source(made(CRC), KEY, methods=frozenset({"PUT"})).methods == {"GET", "PUT"}


def test_a_get_is_an_event_only_if_configured():
    verifier = source(made(CRC), KEY)
    for method in ("GET", "HEAD"):
        verdict = ask_signed(verifier, {}, method=method)
        assert (verdict.status, verdict.reason) == (400, Reason.CHALLENGE_REFUSED)
    by_get = source(made(CRC, methods=frozenset({"GET", "POST"})), KEY)
    assert isinstance(ask_signed(by_get, {}, method="GET"), Verified)
    by_the_owner = source(made(CRC), KEY, methods=frozenset({"GET"}))
    assert isinstance(ask_signed(by_the_owner, {}, method="GET"), Verified)
    assert isinstance(ask_signed(by_the_owner, {}, method="POST"), Rejected)


def test_an_unsigned_challenge_is_never_an_event():
    """A challenge answered without a proof never becomes an event."""
    for shake in (
        CRC,
        Handshake(when=(Query("crc"),), answer=Echo(selector=Query("crc")), method="POST", is_proven=False),
        Handshake(when=(Query("crc"),), answer=StaticAnswer(body="yes"), method="POST", is_proven=False),
    ):
        verifier = source(made(shake), KEY)
        for query in ("crc=abc", "crc=%7B%7D", "crc=", "other=1", ""):
            verdict = ask(verifier, b'{"id":"forged"}', query=query, method=shake.method)
            assert not isinstance(verdict, Verified), (shake, query)


def test_mutant_if_a_challenge_counted_as_proof_attackers_could_create_events(monkeypatch):
    verifier = source(made(CRC, methods=frozenset({"GET", "POST"})), KEY)
    assert isinstance(ask(verifier, b"{}", query="crc=abc", method="GET"), Challenge)
    monkeypatch.setattr(verifier.check, "check", lambda _request, _now: handshakes_passed())
    monkeypatch.setattr(handshakes.Handshakes, "answer_unproven", lambda _self, _request: None)
    assert isinstance(ask(verifier, b"{}", query="crc=abc", method="GET"), Verified)


def handshakes_passed():
    from boathook.verification.tokens import ValidProof

    return ValidProof(None)


def test_only_small_unverified_bodies_are_parsed():
    shake = Handshake(when=(Json("hello"),), answer=StaticAnswer(body="yes"), is_proven=False)
    verifier = source(made(shake), KEY)
    assert isinstance(ask(verifier, b'{"hello":1}'), Challenge)
    assert isinstance(ask(verifier, b'{"hello":1,"x":"' + b"x" * 20_000 + b'"}'), Rejected)
    bomb = b'{"hello":' * 100_000
    assert isinstance(ask(verifier, bomb), Rejected)
    assert too_dear(lambda: ask(verifier, bomb), most=50) is None


# Answers.


@pytest.mark.parametrize("text", [None, 1, True, ["x"], {"a": 1}, "", "x" * 4_097, "a\nb", "a\x00b", "Ж", "\ud800"])
def test_only_plain_text_is_echoed(text):
    verdict = ask_signed(source(made(ECHO), KEY), {"type": "hello", "text": text})
    assert (verdict.status, verdict.reason) == (400, Reason.CHALLENGE_REFUSED)
    assert not verdict.may_reverify


def test_an_echo_may_be_wrapped():
    shake = Handshake(when=(Header("x-ask"),), answer=Echo(selector=Header("x-ask"), wrap="verification"), method="GET")
    verifier = source(made(shake), KEY)
    answer = ask(verifier, b"", {"x-ask": 'a"b', "x-sig": mac(b"")}, method="GET")
    assert json.loads(answer.body) == {"verification": 'a"b'}
    assert answer.content_type == "application/json"


def test_a_static_answer_may_come_from_the_settings():
    shake = Handshake(when=((Json("type"), "confirmation"),), answer=StaticAnswer(setting="code"), is_proven=False)
    confirming = made(shake, settings=(Setting(name="code", help="The code the sender shows"),))
    assert ask(source(confirming, KEY, options={"code": "4fe7a"}), b'{"type":"confirmation"}').body == b"4fe7a"
    verdict = ask(source(confirming, KEY), b'{"type":"confirmation"}')
    assert (verdict.status, verdict.reason) == (400, Reason.CHALLENGE_REFUSED)
    assert "sources.test.code is not set" in verdict.detail


def test_a_text_is_signed_with_the_first_secret():
    expected = hmac.new(KEY.encode(), b"abc", "sha256").hexdigest()
    answer = ask(source(made(CRC), KEY, "old"), query="crc=abc", method="GET")
    assert json.loads(answer.body) == {"text": "abc", "mac": f"sha256={expected}"}
    hashed = SignText(
        selector=Query("crc"),
        allowed=re.compile(".+"),
        template="{public}|{mac}",
        key_form=KeyFormat.SHA1,
        content_type="a/b",
    )
    shake = Handshake(when=(Query("crc"),), answer=hashed, method="GET", is_proven=False)
    setting = Setting(name="public", help="The public key")
    answer = ask(
        source(made(shake, settings=(setting,)), KEY, options={"public": "p{mac}"}), query="crc=x", method="GET"
    )
    digest = hmac.new(hashlib.sha1(KEY.encode()).digest(), b"x", "sha256").hexdigest()
    assert (answer.body.decode(), answer.content_type) == (f"p{{mac}}|{digest}", "a/b")


@pytest.mark.parametrize("text", ["{}", "1700000000.{}", "v0:1700000000:x", "", "a b", "abc%0A", "%D0%96", "x" * 41])
def test_a_foreign_text_is_signed_only_in_the_alphabet_of_challenges(text):
    verdict = ask(source(made(CRC), KEY), query=f"crc={text}", method="GET")
    assert isinstance(verdict, Rejected)
    assert verdict.status in {400, 401}


def test_mutant_without_the_alphabet_an_attacker_could_have_a_body_signed():
    """A signing oracle: signing any challenge text would sign any event."""
    body = '{"id":"forged"}'
    quoted = body.replace("{", "%7B").replace("}", "%7D").replace('"', "%22").replace(":", "%3A")
    assert isinstance(ask(source(made(CRC), KEY), query=f"crc={quoted}", method="GET"), Rejected)
    careless = Handshake(
        when=(Query("crc"),),
        answer=SignText(selector=Query("crc"), allowed=re.compile("(?s).*"), template="{mac}"),
        method="GET",
        is_proven=False,
    )
    verifier = source(made(careless), KEY)
    stolen = ask(verifier, query=f"crc={quoted}", method="GET").body.decode()
    assert isinstance(ask(verifier, body.encode(), {"x-sig": stolen}), Verified)


def test_without_a_secret_nothing_is_signed():
    verdict = ask(source(made(CRC), unsigned=True), query="crc=abc", method="GET")
    assert (verdict.status, verdict.reason) == (400, Reason.CHALLENGE_REFUSED)


def test_a_malformed_secret_for_the_answer_is_a_settings_error():
    answer = SignText(selector=Query("crc"), allowed=re.compile(".+"), template="{mac}", key_form=KeyFormat.HEX)
    shake = Handshake(when=(Query("crc"),), answer=answer, method="GET", is_proven=False)
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets\[0\]: the secret must be hexadecimal"):
        source(made(shake), "CANARY")


# Tokens of questions.

VERIFY = Handshake(
    when=((Query("mode"), "subscribe"),),
    answer=Echo(selector=Query("challenge")),
    method="GET",
    is_proven=False,
    token=(Query("token"), "verify_token"),
)
VERIFYING = made(VERIFY, settings=(Setting(name="verify_token", help="What you typed into the sender's form"),))


@pytest.mark.parametrize(
    "query", ["token=wrong", "token=", "", "token=right&token=right", "token=righ", "token=%ED%A0%80"]
)
def test_a_question_with_the_wrong_token_is_refused_never_with_403(query):
    verifier = source(VERIFYING, KEY, options={"verify_token": "right"})
    assert ask(verifier, query="mode=subscribe&challenge=1&token=right", method="GET").body == b"1"
    verdict = ask(verifier, query=f"mode=subscribe&challenge=1&{query}", method="GET")
    assert (verdict.status, verdict.reason) == (401, Reason.CHALLENGE_REFUSED)
    assert "right" not in verdict.detail


def test_without_the_setting_nobodys_token_is_right():
    for query in ("token=", "token=None", ""):
        verdict = ask(source(VERIFYING, KEY), query=f"mode=subscribe&challenge=1&{query}", method="GET")
        assert (verdict.status, verdict.reason) == (401, Reason.CHALLENGE_REFUSED)
        assert "sources.test.verify_token is not set" in verdict.detail


def test_mutant_an_always_true_comparison_lets_attackers_subscribe(monkeypatch):
    verifier = source(VERIFYING, KEY, options={"verify_token": "right"})
    monkeypatch.setattr("boathook.domain.signing.equal_bytes_constant_time", lambda *_args: True)
    assert isinstance(ask(verifier, query="mode=subscribe&challenge=1&token=wrong", method="GET"), Challenge)


# Confirmation URLs and handshake secrets.


def test_an_address_is_visited_only_on_the_senders_own_host():
    pattern = re.compile(r"https://sns\.[a-z0-9-]+\.amazonaws\.com/\?[A-Za-z0-9=&_-]+")
    verifier = source(
        made(Handshake(when=(Json("url"),), answer=ConfirmByFetch(selector=Json("url"), pattern=pattern))), KEY
    )
    good = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=abc"
    assert ask_signed(verifier, {"url": good}).visit == good
    for url in (
        "http://169.254.169.254/",
        good.replace("https", "http"),
        good.replace(".com", ".com.evil.example"),
        "https://evil.example/?u=" + good,
        good + "\n",
        good.replace("sns.", "sns@"),
        "x" * 5_000,
        7,
    ):
        verdict = ask_signed(verifier, {"url": url})
        assert (verdict.status, verdict.reason) == (400, Reason.CHALLENGE_REFUSED), url
    assert isinstance(ask(verifier, json.dumps({"url": good}).encode()), Rejected)


SECRET_HANDSHAKE = made(
    Handshake(
        when=(Json("verification_token"),),
        answer=CaptureSecret(selector=Json("verification_token"), allowed=re.compile("secret_[A-Za-z0-9]{1,80}")),
        is_proven=False,
    )
)


def test_a_secret_is_captured_only_if_none_is_set():
    told = json.dumps({"verification_token": "secret_abc"}).encode()
    waiting = source(SECRET_HANDSHAKE)
    captured = ask(waiting, told)
    assert (captured.capture, captured.status, captured.body) == ("secret_abc", 200, b"")
    verdict = ask(waiting, b'{"verification_token":"other"}')
    assert (verdict.status, verdict.reason) == (400, Reason.CHALLENGE_REFUSED)
    settled = source(SECRET_HANDSHAKE, "secret_abc")
    verdict = ask(settled, told)
    assert (verdict.status, verdict.reason) == (401, Reason.SIGNATURE_MISSING)


@pytest.mark.parametrize("secrets", [(), ("secret_abc",)], ids=["no secret yet", "a secret"])
def test_a_request_that_hands_over_a_secret_is_known_whatever_is_captured(secrets):
    verifier = source(SECRET_HANDSHAKE, *secrets)
    for document, expected in (
        ({"verification_token": "secret_new"}, True),
        ({"verification_token": "not in the sender's format", "more": 1}, True),
        ({"verification_token": ""}, False),
        ({"id": "1"}, False),
        (["verification_token"], False),
    ):
        sent = request(json.dumps(document).encode(), {})
        assert verifier.carries_secret(sent) is expected, document
    assert not verifier.carries_secret(request(b"verification_token", {}))


def test_without_a_secret_requests_are_rejected_but_reverifiable():
    waiting = source(SECRET_HANDSHAKE)
    body = b'{"id":"1"}'
    sent = {"x-sig": hmac.new(b"secret_abc", body, "sha256").hexdigest()}
    verdict = ask(waiting, body, sent)
    assert (verdict.status, verdict.reason) == (401, Reason.SIGNATURE_MISSING)
    assert "no secret yet" in verdict.detail
    assert verdict.may_reverify
    assert waiting.proof_headers == {"x-sig"}
    assert isinstance(ask(source(SECRET_HANDSHAKE, "secret_abc"), body, sent), Verified)


def test_the_placeholder_secret_verifies_nothing():
    body = b'{"id":"1"}'
    sent = {"x-sig": hmac.new(b"0" * 64, body, "sha256").hexdigest()}
    assert isinstance(ask(source(SECRET_HANDSHAKE), body, sent), Rejected)


# Replies.


def test_a_reply_may_echo_request_fields():
    wants = made(reply=ExpectedReply(body=("OK", Form("InvId"), "\n"), status=202))
    body = b"InvId=678&OutSum=1"
    verdict = ask(source(wants, KEY), body, {"x-sig": mac(body)})
    assert (verdict.reply.status, verdict.reply.body) == (202, b"OK678\n")
    assert verdict.reply.content_type == "text/plain; charset=utf-8"
    body = b"OutSum=1"
    assert ask(source(wants, KEY), body, {"x-sig": mac(body)}).reply.body == b"OK\n"
    again = source(made(reply=ExpectedReply(body=("ok",))), KEY)
    assert ask_signed(again, {}).reply is ask_signed(again, {}).reply, "rendered once"
    assert ask_signed(source(made(), KEY), {}).reply is None


# Arbitrary requests.

WORDS = st.text(max_size=40) | st.sampled_from(["hello", "subscribe", "abc", "{}", "%00", "\ud800", "a" * 5_000])


@given(WORDS, WORDS, st.sampled_from(["GET", "POST", "HEAD", "PUT", "\ud800"]), st.binary(max_size=60))
def test_unverified_requests_never_raise_or_become_events(name, value, method, body):
    asking = made(CRC, ECHO, VERIFY, Handshake(when=(Json("a"),), answer=Echo(selector=Json("b")), is_proven=False))
    verifier = source(asking, KEY)
    for query in (f"{name}={value}", f"crc={value}", f"mode=subscribe&challenge={value}&token={name}"):
        verdict = ask(verifier, body, {"x-sig": value}, query=query, method=method)
        assert isinstance(verdict, Challenge | Rejected)


def test_a_challenge_may_be_verified_by_a_header_token():
    shake = Handshake(when=(Header("x-ask"),), answer=Echo(selector=Header("x-ask")), method="GET")
    verifier = source(recipe(Token(selector=Header("x-token")), handshakes=(shake,)), KEY)
    assert ask(verifier, b"{}", {"x-token": KEY, "x-ask": "abc"}, method="GET").body == b"abc"
    assert ask(verifier, b"{}", {"x-token": "wrong", "x-ask": "abc"}, method="GET").status == 401
