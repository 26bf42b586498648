"""Proofs over chosen fields, tokens in bodies, and addresses; each safeguard has its mutant."""

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.domain.verification import Reason, Rejected, Verified
from boathook.providers.recipe import BodyFormat, EventId
from boathook.providers.request_reader import BasicPassword, Form, Header, Json, Query, expand_path
from boathook.providers.schemes import Addresses, FieldMac, Hmac, SignatureHeaders, SignedPart, SignedTimestamp, Token
from boathook.verification import hmac as verification_hmac
from boathook.verification import signed_content, tokens
from tests.unit.recipe_factory import SIGNED, recipe, source
from tests.unit.verifier_factory import NOW, request

KEY = "geheim"


def mac(text: str, key: str = KEY) -> str:
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()


def state_items(reader, _secret):
    """Each item signs its own amount."""
    items = reader.document
    if not isinstance(items, list):
        return "the body is no array"
    return tuple(
        SignedPart(Json(f"{selector}.sig"), str(item["amount"]).encode()) for selector, item in enumerate(items)
    )


ITEMS = recipe(FieldMac(read_signed_parts=state_items))


def sent(*amounts: int, **changes: object) -> bytes:
    return json.dumps([{"amount": amount, "sig": mac(str(amount))} | changes for amount in amounts]).encode()


def judge(verifier, body: bytes, headers=None, **more):
    return verifier.verify(request(body, headers or {}, **more), NOW)


# What is stated.


def test_every_statement_must_be_signed():
    verifier = source(ITEMS, KEY)
    assert isinstance(judge(verifier, sent(1, 2, 3)), Verified)
    for position in range(3):
        items = json.loads(sent(1, 2, 3))
        items[position]["amount"] = 1_000_000
        verdict = judge(verifier, json.dumps(items).encode())
        assert (verdict.status, verdict.reason) == (401, Reason.SIGNATURE_MISMATCH)
        assert f"signature {position + 1} of 3" in verdict.detail
        assert verdict.may_reverify


def test_mutant_checking_only_the_first_signed_part_lets_forgeries_pass(monkeypatch):
    forged = json.dumps([{"amount": 1, "sig": mac("1")}, {"amount": 9_999, "sig": mac("1")}]).encode()
    assert isinstance(judge(source(ITEMS, KEY), forged), Rejected)
    judge_all = verification_hmac.FieldCheck._check_key
    monkeypatch.setattr(
        verification_hmac.FieldCheck, "_check_key", lambda self, key, claims: judge_all(self, key, claims[:1])
    )
    assert isinstance(judge(source(ITEMS, KEY), forged), Verified)


def test_all_statements_must_be_signed_under_the_same_secret():
    mixed = json.dumps([{"amount": 1, "sig": mac("1", "old")}, {"amount": 2, "sig": mac("2", "new")}]).encode()
    assert isinstance(judge(source(ITEMS, "old", "new"), mixed), Rejected)
    for secret in ("old", "new"):
        body = json.dumps([{"amount": 1, "sig": mac("1", secret)}]).encode()
        assert isinstance(judge(source(ITEMS, "old", "new"), body), Verified)


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (b"{}", Reason.SIGNATURE_MISSING, "the body is no array"),
        (b"not json", Reason.SIGNATURE_MISSING, "the body is no array"),
        (b"[]", Reason.SIGNATURE_MISSING, "contains none of the signed parts"),
        (b"[7]", Reason.SIGNATURE_MALFORMED, "cannot be read"),
        (b'[{"sig":"x"}]', Reason.SIGNATURE_MALFORMED, "cannot be read"),
        (b'[{"amount":1}]', Reason.SIGNATURE_MISSING, "no signature in the body's 0.sig"),
        (b'[{"amount":1,"sig":null}]', Reason.SIGNATURE_MISSING, "no signature"),
        (b'[{"amount":1,"sig":{}}]', Reason.SIGNATURE_MISSING, "no signature"),
        (b'[{"amount":1,"sig":"\\u0416"}]', Reason.SIGNATURE_MISMATCH, "does not match"),
        (b'[{"amount":1,"sig":"\\ud800"}]', Reason.SIGNATURE_MISMATCH, "does not match"),
        (b'[{"amount":1,"sig":""}]', Reason.SIGNATURE_MISMATCH, "does not match"),
    ],
)
def test_missing_or_invalid_signed_parts_are_refused(body, reason, words):
    verdict = judge(source(ITEMS, KEY), body)
    assert (verdict.status, verdict.reason) == (401, reason)
    assert words in verdict.detail


def test_mutant_without_required_parts_an_empty_request_passes(monkeypatch):
    monkeypatch.setattr(verification_hmac, "read_signed_messages", lambda *_args, **_more: ())
    assert isinstance(judge(source(ITEMS, KEY), b"[]"), Verified)


def test_statements_and_signatures_are_bounded():
    assert isinstance(judge(source(ITEMS, KEY), sent(*range(2_000))), Verified)
    verdict = judge(source(ITEMS, KEY), sent(*range(2_001)))
    assert (verdict.reason, "at most 2000" in verdict.detail) == (Reason.SIGNATURE_MALFORMED, True)
    one = recipe(
        FieldMac(read_signed_parts=lambda reader, _secret: (SignedPart(Header("x-sig"), reader.request.body),)),
        body=BodyFormat.ANY,
    )
    for before, fits in ((15, True), (16, False), (5_000, False)):
        header = ",".join(["0" * 64] * before + [mac("b")])
        assert isinstance(judge(source(one, KEY), b"b", {"x-sig": header}), Verified) is fits


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_mac_is_read_in_its_encoding_hex_in_any_letter_case(encoding):
    made = recipe(
        FieldMac(
            read_signed_parts=lambda reader, _secret: (
                SignedPart(Form("sign"), (reader.text(Form("a")) or "").encode()),
            ),
            algorithm=Algorithm.SHA512,
            encoding=encoding,
        ),
        body=BodyFormat.ANY,
    )
    digest = hmac.new(KEY.encode(), b"1", "sha512").digest()
    right = digest.hex() if encoding is Encoding.HEX else base64.b64encode(digest).decode()
    quoted = right.replace("+", "%2B")
    assert isinstance(judge(source(made, KEY), f"a=1&sign={quoted}".encode()), Verified)
    upper = judge(source(made, KEY), f"a=1&sign={quoted.upper()}".encode())
    assert isinstance(upper, Verified) is (encoding is Encoding.HEX)
    assert isinstance(judge(source(made, KEY), f"a=2&sign={quoted}".encode()), Rejected)
    twice = judge(source(made, KEY), f"a=1&sign={quoted}&sign={quoted}".encode())
    assert twice.reason is Reason.SIGNATURE_MISSING, "of a repeated field none counts"


def state_hash(reader, secret):
    return (SignedPart(Json("token"), f"{reader.text(Json('id'))}:{secret}".encode()),)


@pytest.mark.parametrize("algorithm", [Algorithm.MD5, Algorithm.SHA256])
def test_a_plain_hash_with_the_secret_mixed_in(algorithm):
    made = recipe(FieldMac(read_signed_parts=state_hash, is_keyed=False, algorithm=algorithm))
    token = hashlib.new(algorithm.value, b"7:geheim").hexdigest()
    body = json.dumps({"id": 7, "token": token}).encode()
    assert isinstance(judge(source(made, "other", KEY), body), Verified)
    assert isinstance(judge(source(made, "other"), body), Rejected)
    assert isinstance(judge(source(made, KEY), body.replace(b"7,", b"8,")), Rejected)


def test_a_secret_in_the_wrong_form_is_an_error_of_the_settings():
    made = recipe(FieldMac(read_signed_parts=state_items, key_form=KeyFormat.HEX))
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets\[1\]: the secret must be hexadecimal") as caught:
        source(made, "00ff", "CANARY")
    assert "CANARY" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets: there is none"):
        source(made)


# Its time.


def stamped(tolerance_s: float = 300.0):
    def read_signed_parts(reader, _secret):
        return (SignedPart(Header("x-sig"), f"{reader.text(Json('at'))}".encode()),)

    return recipe(
        FieldMac(
            read_signed_parts=read_signed_parts, timestamp=SignedTimestamp(selector=Json("at"), tolerance_s=tolerance_s)
        )
    )


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (str(int(NOW)), None),
        (int(NOW) - 300, None),
        (int(NOW) + 300, None),
        (int(NOW) - 301, Reason.TIMESTAMP_TOO_OLD),
        (int(NOW) + 301, Reason.TIMESTAMP_IN_FUTURE),
        (None, Reason.TIMESTAMP_MISSING),
        ({}, Reason.TIMESTAMP_MISSING),
        ("soon", Reason.TIMESTAMP_MALFORMED),
        (1e999, Reason.TIMESTAMP_MALFORMED),
        (float(NOW), Reason.TIMESTAMP_MALFORMED),
        (10**4000, Reason.TIMESTAMP_MALFORMED),
        (True, Reason.TIMESTAMP_MALFORMED),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_timestamp_must_be_within_the_tolerance(at, reason):
    body = json.dumps({"at": at}).replace("Infinity", "1e999").encode()
    verdict = judge(source(stamped(), KEY), body, {"x-sig": mac(str(at))})
    assert getattr(verdict, "reason", None) == reason
    if reason is None:
        assert verdict.timestamp.timestamp() == float(at)


def test_the_sources_own_tolerance_wins():
    old = int(NOW) - 1_000
    body, headers = json.dumps({"at": old}).encode(), {"x-sig": mac(str(old))}
    assert isinstance(judge(source(stamped(), KEY), body, headers), Rejected)
    assert isinstance(judge(source(stamped(), KEY, tolerance_s=1_000), body, headers), Verified)
    with pytest.raises(ConfigError, match=r"sources\.test\.tolerance_s"):
        source(stamped(), KEY, tolerance_s=0)


def test_mutant_without_a_window_an_old_capture_would_pass(monkeypatch):
    old = int(NOW) - 86_400
    body, headers = json.dumps({"at": old}).encode(), {"x-sig": mac(str(old))}
    assert isinstance(judge(source(stamped(), KEY), body, headers), Rejected)
    monkeypatch.setattr(signed_content.TimestampWindow, "check", lambda _self, text, _now: float(text))
    assert isinstance(judge(source(stamped(), KEY), body, headers), Verified)


def test_the_evidence_of_a_proof_over_fields():
    made = recipe(
        FieldMac(
            read_signed_parts=state_items,
            timestamp=SignedTimestamp(selector=Header("x-at")),
            proof_headers=("x-sig", "x-nonce"),
        )
    )
    assert source(made, KEY).proof_headers == {"x-sig", "x-nonce", "x-at"}


def test_a_once_only_signature_is_the_replay_key():
    def read_signed_parts(reader, _secret):
        return (SignedPart(Header("x-sig"), (reader.text(Header("x-token")) or "").encode()),)

    once = recipe(
        FieldMac(read_signed_parts=read_signed_parts, proof_headers=("x-sig", "x-token"), is_signed_once=True),
        grade=ProofStrength.METADATA,
        id=EventId(selectors=(Json("id"),), is_signed=False),
    )
    headers = {"x-token": "t1", "x-sig": mac("t1")}
    one, other = (judge(source(once, KEY), body, headers) for body in (b'{"id":"1"}', b'{"id":"forged"}'))
    assert one.dedup_key != other.dedup_key
    assert one.replay_material == other.replay_material == b"t1"
    # Mutant: without it, an attacker who captured one request could send any body under its signature.
    careless = replace(once, proof=replace(once.proof, is_signed_once=False))
    one, other = (judge(source(careless, KEY), body, headers) for body in (b'{"id":"1"}', b'{"id":"forged"}'))
    assert one.replay_material != other.replay_material


# Several headers, each with a signature under another key.


def test_any_header_accepts_a_signature_in_any_of_16_headers():
    names = tuple(SignatureHeaders(signature=f"x-sig-{number}") for number in range(1, 41))
    made = recipe(Hmac(headers=names, any_header=True))
    right, wrong = mac("{}"), "0" * 64
    verifier = source(made, KEY)
    for selector, fits in ((1, True), (16, True), (17, False)):
        headers = {f"x-sig-{number}": wrong for number in range(1, 20)} | {f"x-sig-{selector}": right}
        assert isinstance(judge(verifier, b"{}", headers), Verified) is fits, selector
    assert isinstance(judge(verifier, b"{}", {"x-sig-40": right}), Verified)
    first_only = source(recipe(Hmac(headers=names)), KEY)
    assert isinstance(judge(first_only, b"{}", {"x-sig-1": wrong, "x-sig-2": right}), Rejected)


# Tokens.


@pytest.mark.parametrize(
    ("selector", "body", "reason"),
    [
        (Json("secret"), b'{"secret":"geheim"}', None),
        (Json("secret"), b'{"secret":"Geheim"}', Reason.TOKEN_MISMATCH),
        (Json("secret"), b'{"secret":["geheim"]}', Reason.TOKEN_MISSING),
        (Json("secret"), b"{}", Reason.TOKEN_MISSING),
        (Json("secret"), b"not json", Reason.TOKEN_MISSING),
        (Json("secret"), b'{"secret":"\\ud800"}', Reason.TOKEN_MISMATCH),
        (Form("key"), b"a=1&key=geheim", None),
        (Form("key"), b"key=geheim&key=geheim", Reason.TOKEN_MISSING),
        (Form("payload", "key"), b"payload=%7B%22key%22%3A%22geheim%22%7D", None),
        (Json("value.*.state"), b'{"value":[{"state":"geheim"},{"state":"geheim"}]}', None),
        (Json("value.*.state"), b'{"value":[{"state":"geheim"},{"state":"wrong"}]}', Reason.TOKEN_MISMATCH),
        (Json("value.*.state"), b'{"value":[{"state":"wrong"},{"state":"geheim"}]}', Reason.TOKEN_MISMATCH),
        (Json("value.*.state"), b'{"value":[{"state":"geheim"},{}]}', Reason.TOKEN_MISSING),
        (Json("value.*.state"), b'{"value":[{"state":"geheim"},7]}', Reason.TOKEN_MISSING),
        (Json("value.*.state"), b'{"value":[]}', Reason.TOKEN_MISSING),
        (Json("value.*.state"), b'{"value":{"state":"geheim"}}', Reason.TOKEN_MISSING),
        (Json("value.*.state"), b"{}", Reason.TOKEN_MISSING),
        (Json("a.*.b.*"), b'{"a":[{"b":["geheim"]},{"b":[]}]}', Reason.TOKEN_MISSING),
        (Json("*"), b'["geheim"]', None),
    ],
)
def test_tokens_in_bodies_each_of_which_must_be_right(selector, body, reason):
    verdict = judge(
        source(recipe(Token(selector=selector), grade=ProofStrength.TOKEN, body=BodyFormat.ANY), "old", KEY), body
    )
    assert getattr(verdict, "reason", None) == reason
    if reason is not None:
        assert verdict.status == 401
        assert "geheim" not in verdict.detail


def test_mutant_if_one_right_token_were_enough_another_element_could_be_forged(monkeypatch):
    made = recipe(Token(selector=Json("value.*.state")), grade=ProofStrength.TOKEN)
    forged = b'{"value":[{"state":"geheim"},{"state":"forged"}]}'
    assert isinstance(judge(source(made, KEY), forged), Rejected)
    monkeypatch.setattr(tokens, "expand_path", lambda document, path: list(expand_path(document, path))[:1])
    assert isinstance(judge(source(made, KEY), forged), Verified)


def test_a_token_prefix_applies_to_every_selector():
    for selector, body, query in (
        (Query("key"), b"", "key=v1%20geheim"),
        (Form("key"), b"key=v1+geheim", ""),
        (Json("key"), b'{"key":"v1 geheim"}', ""),
    ):
        made = recipe(Token(selector=selector, prefix="v1 "), grade=ProofStrength.TOKEN, body=BodyFormat.ANY)
        assert isinstance(judge(source(made, KEY), body, query=query), Verified), selector
    basic = recipe(Token(selector=BasicPassword("bob")), grade=ProofStrength.TOKEN, body=BodyFormat.ANY)
    assert isinstance(judge(source(basic, KEY), b"", {"authorization": "Basic Ym9iOmdlaGVpbQ=="}), Verified)


# Paths with stars.


def test_a_path_with_stars_gives_each_element_with_its_concrete_path():
    document = {"a": [{"b": [1, 2]}, {"b": []}, {}, 7, {"b": {"0": "object"}}], "c": {"d": 5}}
    assert list(expand_path(document, "a.*.b.*")) == [
        ("a.0.b.0", 1),
        ("a.0.b.1", 2),
        ("a.1.b.*", None),
        ("a.2.b.*", None),
        ("a.3.b.*", None),
        ("a.4.b.*", None),
    ]
    assert list(expand_path(document, "c.d")) == [("c.d", 5)]
    assert list(expand_path(document, "c.x")) == [("c.x", None)]
    assert list(expand_path([1, [2]], "*")) == [("0", 1), ("1", [2])]
    assert list(expand_path({"0": 1}, "*")) == [("*", None)]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "*", "0"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON_VALUES, st.lists(st.sampled_from(["a", "b", "*", "0"]), min_size=1, max_size=4).map(".".join))
def test_expanding_a_path_never_raises_or_returns_nothing(document, path):
    found = list(expand_path(document, path))
    assert found
    assert len({concrete for concrete, _ in found}) == len(found)


# Addresses.

YOO = recipe(Addresses(networks=("192.0.2.0/24", "2001:db8::/32")), grade=ProofStrength.ADDRESS)


@pytest.mark.parametrize(
    ("client", "is_allowed"),
    [
        ("192.0.2.7", True),
        ("::ffff:192.0.2.7", True),
        ("2001:db8::5", True),
        ("192.0.3.7", False),
        ("::ffff:192.0.3.7", False),
        ("2001:db9::5", False),
        ("", False),
        ("192.0.2.7.example.com", False),
        ("x" * 1_000, False),
    ],
)
def test_an_address_only_recipe_checks_the_client_address(client, is_allowed):
    verdict = judge(source(YOO), b"{}", client=client)
    if is_allowed:
        assert verdict.grade is ProofStrength.ADDRESS
    else:
        assert (verdict.status, verdict.reason) == (401, Reason.ADDRESS_NOT_ALLOWED)


def test_source_addresses_override_or_add_to_the_recipe():
    moved = source(YOO, addresses=("198.51.100.0/24",))
    assert isinstance(judge(moved, b"{}", client="192.0.2.7"), Rejected)
    assert isinstance(judge(moved, b"{}", client="198.51.100.1"), Verified)
    fenced = source(recipe(SIGNED), KEY, addresses=("198.51.100.1",))
    headers = {"x-sig": mac("{}")}
    assert isinstance(judge(fenced, b"{}", headers, client="198.51.100.1"), Verified)
    assert judge(fenced, b"{}", headers, client="198.51.100.2").reason is Reason.ADDRESS_NOT_ALLOWED
    assert judge(fenced, b"{}", {"x-sig": "0"}, client="198.51.100.1").reason is Reason.SIGNATURE_MISMATCH
    open_to_one = source(recipe(SIGNED), unsigned=True, addresses=("198.51.100.1",))
    assert judge(open_to_one, b"{}", client="198.51.100.2").reason is Reason.ADDRESS_NOT_ALLOWED
    assert judge(open_to_one, b"{}", client="198.51.100.1").grade is ProofStrength.NONE


def test_mutant_without_the_fence_any_address_would_do(monkeypatch):
    fenced = source(recipe(SIGNED), KEY, addresses=("198.51.100.1",))
    assert isinstance(judge(fenced, b"{}", {"x-sig": mac("{}")}), Rejected)
    monkeypatch.setattr("boathook.verification.tokens.is_within", lambda *_args: True)
    assert isinstance(judge(fenced, b"{}", {"x-sig": mac("{}")}), Verified)


@pytest.mark.parametrize("network", ["", "192.0.2.1/24", "example.com", "192.0.2.0/33", "2001:db8::/129"])
def test_an_invalid_network_is_a_settings_error(network):
    with pytest.raises(ConfigError, match=r"sources\.test\.addresses: .* is neither an address nor a network"):
        source(recipe(SIGNED), KEY, addresses=(network,))


def test_secrets_of_a_sender_that_signs_nothing_are_refused():
    with pytest.raises(
        ConfigError, match=r"sources\.test\.secrets: Made-up does not sign and is identified by its addresses"
    ):
        source(YOO, "useless")
