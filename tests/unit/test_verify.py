"""Verification in its order: the proof first, then the body. Each safeguard has its mutant."""

import gzip
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.providers import RECIPES, request_reader
from boathook.providers.schemes import Hmac, TimestampFormat
from boathook.verification import signed_content
from boathook.verification.hmac import HmacCheck
from boathook.verification.signed_content import parse_timestamp
from boathook.verification.tokens import ValidProof
from boathook.verification.verifier import Challenge, Reason, Rejected, SourceSpec, Verified, Verifier
from tests.providers.source_factory import body_key
from tests.support import examples, too_dear
from tests.unit.verifier_factory import NOW, SECRETS, STANDARD_SECRET, request, signed, verifier

BODY = b'{"id":"evt_1","type":"invoice.paid"}'
SIGNING = ["stripe", "github", "slack", "standard-webhooks", "hmac"]
STAMPED = {"stripe": "stripe-signature", "slack": "x-slack-request-timestamp", "standard-webhooks": "webhook-timestamp"}


# Time, in both directions.


@pytest.mark.parametrize("provider", STAMPED)
@pytest.mark.parametrize(
    ("skew_s", "reason"),
    [
        (0, None),
        (299, None),
        (300, None),
        (301, Reason.TIMESTAMP_TOO_OLD),
        (86_400, Reason.TIMESTAMP_TOO_OLD),
        (-299, None),
        (-300, None),
        (-301, Reason.TIMESTAMP_IN_FUTURE),
        (-1e10, Reason.TIMESTAMP_IN_FUTURE),
    ],
)
def test_a_timestamp_is_accepted_within_300_seconds_of_receiving(provider, skew_s, reason):
    verdict = verifier(provider).verify(signed(provider, BODY, timestamp=NOW - skew_s), NOW)
    assert getattr(verdict, "reason", None) == reason
    if reason is not None:
        assert f"{abs(skew_s):.0f} s" in verdict.detail
        assert "tolerance of 300 s" in verdict.detail
        assert verdict.status == 401


def test_mutant_with_a_one_sided_tolerance_the_future_would_pass(monkeypatch):
    sent = signed("stripe", BODY, timestamp=NOW + 10_000)
    assert isinstance(verifier("stripe").verify(sent, NOW), Rejected)
    monkeypatch.setattr(
        signed_content, "parse_timestamp", lambda text, unit: min(parse_timestamp(text, unit) or NOW, NOW)
    )
    assert isinstance(verifier("stripe").verify(sent, NOW), Verified)


def test_a_source_may_set_its_own_tolerance():
    sent = signed("stripe", BODY, timestamp=NOW - 60)
    assert isinstance(verifier("stripe", tolerance_s=60).verify(sent, NOW), Verified)
    assert isinstance(verifier("stripe", tolerance_s=59).verify(sent, NOW), Rejected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nan",
        "inf",
        "-1",
        "-0",
        "+5",
        "1e9",
        "1_000",
        " 1700000000",
        "1700000000 ",
        "1700000000.0",
        "\u0663\u0660\u0660",
        "\uff11\uff17\uff10",
        "\u00b2",
        "9" * 5_000,
        "0x10",
        "17\x0000",
    ],
)
def test_a_timestamp_must_be_a_plain_number(text):
    assert parse_timestamp(text, TimestampFormat.SECONDS) is None
    assert parse_timestamp(text, TimestampFormat.MILLISECONDS) is None
    for provider, header in STAMPED.items():
        value = f"t={text},v1={'0' * 64}" if provider == "stripe" else text
        verdict = verifier(provider).verify(replace_headers(signed(provider, BODY), {header: value}), NOW)
        assert isinstance(verdict, Rejected)
        assert verdict.status == 401


@given(st.text(max_size=60))
def test_parse_timestamp_never_raises(text):
    for unit in TimestampFormat:
        moment = parse_timestamp(text, unit)
        assert moment is None or abs(moment) < 1e12


def replace_headers(sent, changes):
    headers = {name: value for name, value in (dict(sent.headers) | changes).items() if value is not None}
    return replace(sent, headers=headers)


# What is missing or malformed, told apart.


@pytest.mark.parametrize(
    ("provider", "changes", "reason", "words"),
    [
        ("stripe", {"stripe-signature": None}, Reason.SIGNATURE_MISSING, "no header stripe-signature"),
        ("stripe", {"stripe-signature": ""}, Reason.SIGNATURE_MALFORMED, "no equals sign"),
        ("stripe", {"stripe-signature": "v1=00"}, Reason.TIMESTAMP_MISSING, "no timestamp in stripe-signature"),
        ("stripe", {"stripe-signature": "t=1,t=2,v1=00"}, Reason.SIGNATURE_MALFORMED, "t= twice"),
        ("stripe", {"stripe-signature": "t=1700000000,v0=00"}, Reason.UNKNOWN_SCHEME, "but v0"),
        ("stripe", {"stripe-signature": "t=1700000000,v1=é"}, Reason.SIGNATURE_MALFORMED, "outside ASCII"),
        ("github", {"x-hub-signature-256": "sha1=00"}, Reason.UNKNOWN_SCHEME, "but sha1"),
        ("github", {"x-hub-signature-256": "sha256="}, Reason.SIGNATURE_MISMATCH, "does not match"),
        ("slack", {"x-slack-signature": "v1=00"}, Reason.UNKNOWN_SCHEME, "but v1"),
        ("slack", {"x-slack-request-timestamp": None}, Reason.TIMESTAMP_MISSING, "no header x-slack-request-timestamp"),
        ("standard-webhooks", {"webhook-signature": "nocomma"}, Reason.SIGNATURE_MALFORMED, "no comma"),
        ("standard-webhooks", {"webhook-signature": "v1a,AAAA"}, Reason.UNKNOWN_SCHEME, "but v1a"),
        ("standard-webhooks", {"webhook-signature": " "}, Reason.UNKNOWN_SCHEME, "but nothing"),
        ("standard-webhooks", {"webhook-id": None}, Reason.ID_MISSING, "no header webhook-id"),
        ("standard-webhooks", {"webhook-id": "a.b"}, Reason.ID_MALFORMED, "ambiguous"),
        (
            "standard-webhooks",
            {"webhook-signature": "v1,!!! v1,=== v1,"},
            Reason.SIGNATURE_MISMATCH,
            "none of 3 signatures",
        ),
    ],
)
def test_a_rejection_detail_names_the_problem(provider, changes, reason, words):
    verdict = verifier(provider).verify(replace_headers(signed(provider, BODY), changes), NOW)
    assert isinstance(verdict, Rejected)
    assert (verdict.status, verdict.reason) == (401, reason)
    assert words in verdict.detail


def test_only_the_first_sixteen_signatures_are_tried():
    sent = signed("stripe", BODY)
    stamp, right = sent.headers["stripe-signature"].split(",")
    wrong = f"v1={'0' * 64}"
    for before, fits in ((15, True), (16, False), (10_000, False)):
        header = ",".join([stamp, *[wrong] * before, right])
        verdict = verifier("stripe").verify(replace_headers(sent, {"stripe-signature": header}), NOW)
        assert isinstance(verdict, Verified) is fits
        assert fits or "only the first 16 were tried" in verdict.detail


@pytest.mark.parametrize("provider", SIGNING)
def test_ten_thousand_signatures_cost_a_millisecond_or_so(provider):
    sent = signed(provider, BODY)
    name = next(name for name in sent.headers if "signature" in name)
    flood = replace_headers(sent, {name: ",".join([sent.headers[name][:-1] + "0"] * 10_000)})
    source = verifier(provider)
    assert isinstance(source.verify(flood, NOW), Rejected)
    assert too_dear(lambda: source.verify(flood, NOW), most=2.5) is None


# Secrets.


@pytest.mark.parametrize("provider", list(SECRETS))
def test_without_a_secret_there_is_no_source(provider):
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets: there is none"):
        verifier(provider, secrets=())
    with pytest.raises(ConfigError, match=r"sources\.test\.secrets\[1\]: the secret is empty"):
        verifier(provider, secrets=(SECRETS[provider], " "))


def test_a_request_signed_with_any_of_the_secrets_is_accepted():
    old, new = "whsec_" + "A" * 32, "whsec_" + "B" * 32
    for secrets in ((old, new), (new, old)):
        for secret in (old, new):
            sent = signed("standard-webhooks", BODY, secret=secret)
            assert isinstance(verifier("svix", secrets=secrets).verify(sent, NOW), Verified)
    both = signed("standard-webhooks", BODY, secret=[old, new])
    assert isinstance(verifier("svix", new).verify(both, NOW), Verified)
    assert isinstance(verifier("svix", old).verify(both, NOW), Verified)


@pytest.mark.parametrize(
    ("provider", "changes", "message"),
    [
        ("nobody", {"secrets": ("x",)}, r"sources\.test\.provider: there is no provider 'nobody'"),
        ("svix", {"secrets": ("whsec_!!",)}, r"sources\.test\.secrets\[0\]: the secret must be base64"),
        ("stripe", {"tolerance_s": 0}, r"sources\.test\.tolerance_s: 0 would accept"),
        ("stripe", {"tolerance_s": float("inf")}, r"sources\.test\.tolerance_s"),
        ("stripe", {"tolerance_s": float("nan")}, r"sources\.test\.tolerance_s"),
        ("stripe", {"dedup_fields": ("a..b",)}, r"sources\.test\.dedup_fields: 'a\.\.b'"),
        ("stripe", {"header": "x-sig"}, r"sources\.test\.header: the provider stripe has no such setting"),
        ("stripe", {"unsigned": True}, r"sources\.test\.unsigned: there are secrets too"),
        ("unsigned", {"secrets": ()}, r"sources\.test\.unsigned: its requests are not signed"),
        ("hmac", {"algorithm": "rot13"}, r"sources\.test\.algorithm: write one of .*\"sha1\""),
        ("hmac", {"encoding": "rot13"}, r"sources\.test\.encoding"),
        ("hmac", {"key_encoding": "whsec"}, r"sources\.test\.key_encoding"),
        (
            "hmac",
            {"key_encoding": "hex", "secrets": ("xyz",)},
            r"sources\.test\.secrets\[0\]: the secret must be hexadecimal",
        ),
        ("hmac", {"header": "two words"}, r"sources\.test\.header: 'two words' is not a valid header name"),
        ("hmac", {"header": ["x"]}, r"sources\.test\.header: write text"),
        ("hmac", {"template": "{nothing}{body}"}, r"sources\.test\.template: there is no field \{nothing\}"),
        ("hmac", {"template": "{body"}, r"sources\.test\.template: unmatched brace"),
        (
            "hmac",
            {"template": "{timestamp}", "timestamp_header": "x-t"},
            r"sources\.test\.template: \{body\} is missing",
        ),
        ("hmac", {"template": "{timestamp}.{body}"}, r"sources\.test\.timestamp_header: the template includes"),
        ("hmac", {"template": "{id}.{body}"}, r"sources\.test\.id_header: the template includes"),
        (
            "hmac",
            {"template": "{body}", "timestamp_header": "x-t"},
            r"sources\.test\.template: timestamp_header is set, but the template does not include it",
        ),
        ("hmac", {"id_header": "x", "id_path": "y"}, r"sources\.test\.id_path: id_header is set too"),
        ("hmac", {"id_path": "a..b"}, r"sources\.test\.id_path: 'a\.\.b'"),
        ("hmac", {"id_header": "Authorization"}, r"sources\.test\.id_header: authorization contains credentials"),
        (
            "hmac",
            {"colour": "red"},
            r"sources\.test\.colour: the provider hmac has no such setting; its settings are algorithm",
        ),
        ("token", {"header": None}, r"sources\.test\.header: set the location of the token"),
        ("token", {"query": "key"}, r"sources\.test\.header: set the location of the token"),
        ("token", {"header": None, "query": "key", "prefix": "x"}, r"sources\.test\.prefix: only a token in a header"),
    ],
)
def test_a_wrong_specification_names_its_key_and_the_fix(provider, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        verifier(provider, "SECRET-CANARY", **changes)
    assert "CANARY" not in str(caught.value)


def test_no_secret_shows_in_any_refusal():
    for provider, secret in SECRETS.items():
        source = verifier(provider)
        sent = signed(provider, BODY)
        for changed in (replace(sent, body=b"x"), replace(sent, body=BODY + b"\n"), replace(sent, headers={})):
            verdict = source.verify(changed, NOW)
            assert isinstance(verdict, (Rejected, Verified))
            if isinstance(verdict, Rejected):
                assert secret not in repr(verdict)
                assert secret.removeprefix("whsec_") not in repr(verdict)


def test_a_header_sent_twice_is_read_as_both():
    sent = signed("standard-webhooks", BODY)
    right = sent.headers["webhook-signature"]
    for joined in (f"{right}, v1,AAAA", f"v1,AAAA, {right}"):
        assert isinstance(
            verifier("svix", STANDARD_SECRET).verify(replace_headers(sent, {"webhook-signature": joined}), NOW),
            Verified,
        )


# Forged requests leave nothing.


def forged_request(provider):
    """One request for each way to be no genuine one."""
    sent = signed(provider, BODY)
    challenge = b'{"type":"url_verification","challenge":"x"}'
    yield request(BODY, {})
    yield replace(sent, body=BODY + b" ")
    yield replace(sent, body=challenge)
    yield request(challenge, {})
    yield signed(provider, BODY, secret="whsec_" + "C" * 32)
    yield replace_headers(sent, dict.fromkeys(verifier(provider).proof_headers, "0"))


@pytest.mark.parametrize("provider", SIGNING)
def test_a_forged_request_is_rejected_without_parsing_its_body(provider, monkeypatch):
    looks = []
    monkeypatch.setattr(request_reader.FieldExtractor, "extract", lambda _self, body: looks.append(body))
    monkeypatch.setattr(Verifier, "_read_event", lambda *_args, **_more: looks.append("key"))
    source = verifier(provider)
    forgeries = list(forged_request(provider))
    for forged in forgeries:
        assert isinstance(source.verify(forged, NOW), Rejected)
    assert len(forgeries) == 6
    assert looks == []


@pytest.mark.parametrize("provider", SIGNING)
def test_mutant_with_the_check_disabled_the_body_is_parsed(provider, monkeypatch):
    looks = []
    monkeypatch.setattr(HmacCheck, "check", lambda *_args: ValidProof(None))
    monkeypatch.setattr(Verifier, "_read_event", lambda *_args, **_more: looks.append("key"))
    for forged in forged_request(provider):
        verifier(provider).verify(forged, NOW)
    assert looks


@pytest.mark.parametrize("provider", SIGNING)
def test_mutant_with_a_comparison_that_always_holds_forgeries_pass(provider, monkeypatch):
    sent = replace(signed(provider, BODY), body=b'{"id":"evt_2","type":"forged"}')
    assert isinstance(verifier(provider).verify(sent, NOW), Rejected)
    monkeypatch.setattr(signing, "equal_constant_time", lambda _left, _right: True)
    assert isinstance(verifier(provider).verify(sent, NOW), Verified)


def test_signatures_are_compared_in_constant_time_and_in_whole(monkeypatch):
    compared = []

    def watched(left, right):
        compared.append((left, right))
        return False

    monkeypatch.setattr(hmac, "compare_digest", watched)
    verifier("github").verify(signed("github", BODY), NOW)
    assert all(len(a) == 64 for a, _ in compared)
    assert compared


# What names the event.


@pytest.mark.parametrize(
    ("body", "key", "type"),
    [
        (b'{"id":"evt_1","type":"a"}', "evt_1", "a"),
        (b'{"id":17,"type":18}', "17", "18"),
        (b'{"id":"a","id":"b","type":"t"}', "b", "t"),
        (b'{"\\u0069d":"escaped"}', "escaped", "unknown"),
        (b'{"id":12345678901234567890123}', "12345678901234567890123", "unknown"),
        (b'{"id":"sha256:x"}', "id:sha256:x", "unknown"),
        (b'{"id":"fields:[]"}', "id:fields:[]", "unknown"),
        (b'{"id":"' + b"x" * 300 + b'"}', "x" * 300, "unknown"),
        (b'{"id":"' + b"x" * 301 + b'"}', "id-sha256:" + hashlib.sha256(b"x" * 301).hexdigest(), "unknown"),
        (b'{"id":"a\\u0000"}', "id-sha256:" + hashlib.sha256(b"a\0").hexdigest(), "unknown"),
        (b'{"id":"\\ud800"}', "id-sha256:" + hashlib.sha256(b"\xed\xa0\x80").hexdigest(), "unknown"),
        (
            b'{"id":"e","type":"a\\u0000\\nb\\ud800"}',
            "e",
            "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}",
        ),
        (b'{"id":"e","type":"' + b"t" * 1_000 + b'"}', "e", "t" * 200),
        (b'{"id":"e","x":"\\ud800"}', "e", "unknown"),
        (b'{"id":"e","x":1e999}', "e", "unknown"),
        (b'{"id":"e","x":' + b"9" * 5_000 + b"}", "e", "unknown"),
        (b'{"id":' + b"9" * 5_000 + b"}", "id-sha256:" + hashlib.sha256(b"9" * 5_000).hexdigest(), "unknown"),
        (b'{"id":"e","x":"\xff"}', "e", "unknown"),
        (b'{"id":"e","type":["list"]}', "e", "unknown"),
        (b'{"id":"e","type":{"a":1}}', "e", "unknown"),
        (b'{"id":"e","type":1.5}', "e", "unknown"),
        (b'{"id":"e","type":""}', "e", "unknown"),
        (b'{"id":"e","x":' + b"[" * 120 + b"]" * 120 + b"}", "e", "unknown"),
        (b'{"id":"e","x":"' + b"[" * 1_000 + b'"}', "e", "unknown"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_ids_and_types_of_odd_bodies(body, key, type):
    verdict = verifier("stripe").verify(signed("stripe", body), NOW)
    assert isinstance(verdict, Verified)
    assert (verdict.dedup_key, verdict.type) == (key, type)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"id":null}',
        b'{"id":true}',
        b'{"id":1.5}',
        b'{"id":""}',
        b'{"id":["a"]}',
        b'{"id":{}}',
        b"[]",
        b'"x"',
        b"7",
        b"null",
    ],
)
def test_without_a_usable_id_the_body_is_the_key(body):
    verdict = verifier("stripe").verify(signed("stripe", body), NOW)
    assert verdict.dedup_key == body_key(body)


BROKEN = [
    b"",
    b"not json",
    b'{"id":"e"',
    b'{"id":"e"} x',
    b'{"id":"e","x":NaN}',
    b"\xff\xfe\x00",
    b'{"id":"e","x":' + b"[" * 200 + b"]" * 200 + b"}",
    b"[" * 500_000,
    b'{"id":' + b'{"id":' * 100_000,
]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:20]))
def test_a_signed_non_json_body_is_refused_for_json_providers(body):
    verdict = verifier("stripe").verify(signed("stripe", body), NOW)
    assert isinstance(verdict, Rejected)
    assert (verdict.status, verdict.reason) == (400, Reason.BODY_MALFORMED)
    assert "the signature is valid" in verdict.detail


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: repr(body[:20]))
def test_a_signed_non_json_body_is_keyed_by_its_hash_otherwise(body):
    for provider, changes in (("hmac", {"id_path": "id", "type_path": "type"}), ("slack", {})):
        verdict = verifier(provider, **changes).verify(signed(provider, body), NOW)
        assert isinstance(verdict, Verified)
        assert verdict.dedup_key == body_key(body)
        assert verdict.type == "unknown"


def test_dedup_fields_rank_after_the_id_and_before_the_hash():
    source = verifier("hmac", dedup_fields=("order.id", "$.status", "amount", "paid"))

    def key(document):
        return source.verify(signed("hmac", json.dumps(document).encode()), NOW).dedup_key

    first = key({"order": {"id": 7}, "status": "new", "amount": 1.5, "paid": True})
    assert first == 'fields:["7", "new", "1.5", "true"]'
    assert key({"paid": True, "amount": 1.5, "status": "new", "order": {"id": 7, "more": 1}}) == first
    assert key({"order": {"id": 7}, "status": "new", "amount": 2.5, "paid": True}) != first
    assert key({"status": "new"}) == 'fields:[null, "new", null, null]'
    assert key({"other": 1}).startswith("sha256:")
    with_id = verifier("stripe", dedup_fields=("type",)).verify(signed("stripe", BODY), NOW)
    assert with_id.dedup_key == "evt_1"


@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_a_key_is_stable_storable_and_different_for_different_ids(one, other):
    source = verifier("stripe")

    def key(identifier, **extra):
        body = json.dumps({"id": identifier, **extra}).encode()
        return source.verify(signed("stripe", body), NOW).dedup_key

    assert key(one) == key(one, later=1) == key(one, pending_webhooks=2)
    assert key(one).isprintable()
    assert key(one).encode()
    if other != one:
        assert key(one) != key(other)


def test_only_headers_on_the_allow_list_are_kept():
    noise = {"authorization": "Bearer x", "cookie": "a=b", "x-github-encoded-secret": "s", "x-forwarded-for": "1"}
    for provider in SIGNING:
        sent = signed(provider, BODY, type="t")
        verdict = verifier(provider).verify(replace_headers(sent, noise | {"user-agent": "Sender/1"}), NOW)
        assert isinstance(verdict, Verified)
        assert verdict.kept_headers["user-agent"] == "Sender/1"
        assert verdict.kept_headers["content-type"] == "application/json"
        assert not verdict.kept_headers.keys() & noise.keys()
        assert not [name for name in verdict.kept_headers if "signature" in name or "token" in name]
    github = verifier("github").verify(signed("github", BODY, id="guid", type="push"), NOW)
    assert github.kept_headers == {
        "content-type": "application/json",
        "x-github-delivery": "guid",
        "x-github-event": "push",
    }


def test_proof_headers_contain_no_token():
    assert verifier("stripe").proof_headers == {"stripe-signature"}
    assert verifier("svix", STANDARD_SECRET).proof_headers >= {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "svix-id",
    }
    assert verifier("token").proof_headers == frozenset()


def test_a_rejection_can_be_reverified_with_the_right_secret():
    sent = signed("slack", BODY)
    wrong, right = verifier("slack", "old secret"), verifier("slack")
    assert wrong.verify(sent, NOW).may_reverify
    stored = replace(sent, headers={name: value for name, value in sent.headers.items() if name in wrong.proof_headers})
    assert isinstance(right.verify(stored, NOW), Verified)


def test_unsigned_changes_give_a_captured_body_no_new_key():
    """Each replay must share the dedup key or the replay material with the request it was captured from."""
    form = b"command=%2Fpay&trigger_id=13.37"
    packed = gzip.compress(b'{"event_id":"Ev1","event":{"type":"t"}}')
    captured = [
        ("slack", form, {}, {"content-type": "application/x-www-form-urlencoded"}, {"content-type": "text/plain"}),
        ("slack", packed, {}, {"content-encoding": "gzip"}, {"content-encoding": None}),
        ("hmac", packed, {"id_path": "event_id"}, {"content-encoding": "gzip"}, {"content-encoding": None}),
        ("hmac", packed, {}, {"content-encoding": "gzip"}, {"content-encoding": None}),
        ("github", packed, {}, {"content-encoding": "gzip"}, {"content-encoding": None, "x-github-delivery": "other"}),
        ("github", BODY, {}, {}, {"x-github-delivery": "other"}),
        ("github", BODY, {}, {}, {"x-github-delivery": None}),
        ("hmac", BODY, {"id_header": "x-id"}, {}, {"x-id": None}),
    ]
    for provider, body, options, original, change in captured:
        source = verifier(provider, **options)
        sent = replace_headers(signed(provider, body, **options), original)
        first, again = (
            source.verify(each, NOW, gzip.decompress if each.headers.get("content-encoding") else None)
            for each in (sent, replace_headers(sent, change))
        )
        same_key = first.dedup_key == again.dedup_key
        same_bytes = first.replay_material is not None and first.replay_material == again.replay_material
        assert same_key or same_bytes, (provider, change)


def test_mutant_treating_githubs_id_as_signed_lets_replays_pass():
    source = verifier("github")
    source._is_id_proven = True
    one, other = (source.verify(signed("github", BODY, id=guid), NOW) for guid in ("guid-1", "guid-2"))
    assert one.dedup_key != other.dedup_key
    assert one.replay_material is None


def test_a_body_is_decoded_only_after_verification():
    calls = []
    packed = gzip.compress(BODY)

    def decode(body):
        calls.append(body)
        return gzip.decompress(body)

    sent = signed("stripe", packed)
    assert isinstance(verifier("stripe").verify(replace(sent, body=packed + b"x"), NOW, decode), Rejected)
    assert calls == []
    assert verifier("stripe").verify(sent, NOW, decode).dedup_key == "evt_1"
    assert calls == [packed]


def test_a_path_that_runs_through_anothers_end_is_read_all_the_same():
    source = verifier("hmac", dedup_fields=("data", "data.id"))
    assert source.verify(signed("hmac", b'{"data":{"id":7}}'), NOW).dedup_key == 'fields:[null, "7"]'
    assert source.verify(signed("hmac", b'{"data":"x"}'), NOW).dedup_key == 'fields:["x", null]'


# Properties.


def mutate(data, position, bit):
    changed = bytearray(data)
    changed[position % len(changed)] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize("provider", SIGNING)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_changed_bit_of_the_body_is_accepted(provider, position, bit):
    sent = signed(provider, BODY)
    assert isinstance(verifier(provider).verify(replace(sent, body=mutate(BODY, position, bit)), NOW), Rejected)


@pytest.mark.parametrize("provider", SIGNING)
@given(position=st.integers(0, 10_000), char=st.characters(max_codepoint=255))
def test_no_changed_character_of_a_proof_header_is_accepted(provider, position, char):
    sent = signed(provider, BODY)
    for name in verifier(provider).proof_headers & sent.headers.keys():
        value = sent.headers[name]
        place = position % len(value)
        changed = value[:place] + char + value[place + 1 :]
        assume(changed.lower() != value.lower() or provider == "standard-webhooks")
        assume(changed != value)
        assume(" " not in (char, value[place]))
        verdict = verifier(provider).verify(replace_headers(sent, {name: changed}), NOW)
        assert isinstance(verdict, Rejected), (name, changed)


HEADER_TEXT = st.text(st.characters(max_codepoint=255), max_size=80) | st.sampled_from(
    [
        "v1,",
        "t=,v1=",
        ",,,,",
        "====",
        "t=1;v1=2",
        "v1=" * 50,
        "sha256=sha256=",
        "v0=\x00",
        "t=1700000000,v1=" + "0" * 64,
        "v1,\u00ff",
        "\ud800",
        "Ⅻ",
    ]
)


@settings(max_examples=examples(300))
@given(
    provider=st.sampled_from([*SIGNING, "token"]),
    values=st.lists(HEADER_TEXT, min_size=6, max_size=6),
    body=st.binary(max_size=50),
    query=HEADER_TEXT,
)
def test_arbitrary_headers_never_raise_or_pass(provider, values, body, query):
    names = [
        "stripe-signature", "x-hub-signature-256", "x-slack-signature", "x-slack-request-timestamp", "webhook-signature",
        "webhook-id", "webhook-timestamp", "svix-signature", "x-signature", "x-token", "authorization", "content-type",
    ]  # fmt: skip
    headers = {name: values[position % len(values)] for position, name in enumerate(names)}
    assert isinstance(verifier(provider).verify(request(body, headers, query=query), NOW), Rejected)


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_arbitrary_signed_bodies_never_raise(body):
    for provider in SIGNING:
        for content_type in ("application/json", "application/x-www-form-urlencoded"):
            verdict = verifier(provider).verify(signed(provider, body, content_type=content_type), NOW)
            assert isinstance(verdict, (Verified, Rejected, Challenge))


@pytest.mark.parametrize("provider", SIGNING)
def test_binary_bodies_are_verified(provider):
    body = bytes(range(256))
    verdict = verifier(provider).verify(signed(provider, body), NOW)
    assert isinstance(verdict, Verified) or verdict.reason is Reason.BODY_MALFORMED


def test_the_fast_reader_and_the_patient_one_agree(monkeypatch):
    bodies = [
        BODY,
        b'{"id":1}',
        b'{"id":null,"type":""}',
        b'{"id":"a","id":2}',
        b'{"id":"x","type":[1]}',
        b"[]",
        b"{",
        b'{"id":1e3}',
    ]
    fast = [verifier("stripe").verify(signed("stripe", body), NOW) for body in bodies]
    monkeypatch.setattr(request_reader, "_compile", lambda _paths: None)
    assert [verifier("stripe").verify(signed("stripe", body), NOW) for body in bodies] == fast


def test_every_hmac_recipe_has_a_check_that_compiles():
    for recipe in RECIPES:
        if isinstance(recipe.proof, Hmac):
            assert HmacCheck(
                recipe.proof, SourceSpec(name="s", provider=recipe.name, secrets=(STANDARD_SECRET,))
            ).proof_headers


def test_the_verdict_has_the_signed_timestamp():
    assert verifier("stripe").verify(signed("stripe", BODY), NOW).timestamp == datetime.fromtimestamp(NOW, UTC)
    assert verifier("github").verify(signed("github", BODY), NOW).timestamp is None


def test_a_verifier_is_compiled_from_its_specification_alone():
    spec = SourceSpec(name="s", provider="stripe", secrets=("x",))
    assert Verifier(spec).methods == {"POST"}
    assert Verifier(spec).secret_query is None
