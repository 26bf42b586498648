"""JSON Web Tokens: shared secrets, key sets, times, and the confusions tokens are known for."""

import base64
import hashlib
import hmac
import json

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from boathook.domain.errors import ConfigError
from boathook.domain.verification import KeyRequired, Reason, Rejected, SourceSpec
from boathook.providers.schemes import Jwt
from boathook.verification import jwt
from boathook.verification.jwt import JwtCheck
from boathook.verification.keyring import KeyRing
from boathook.verification.tokens import ValidProof
from tests.support import examples
from tests.unit.verifier_factory import NOW, request

BODY = b'{"id":"evt_1"}'
KEY_SET = "https://issuer.test/keys"
SECRET = "short"
CLAIMS = {"iss": "issuer", "iat": int(NOW), "exp": int(NOW) + 60, "sha256": hashlib.sha256(BODY).hexdigest()}


@pytest.fixture(scope="module")
def private():
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


def judge_hash(claims, reader):
    fits = claims.get("sha256") == hashlib.sha256(reader.request.body).hexdigest()
    return None if fits else "the token is for another body"


def check_of(ring=None, secrets=(SECRET,), spec=None, **changes):
    fields = {
        "header": "x-token",
        "algorithms": ("HS256",),
        "issuers": ("issuer",),
        "check_claims": judge_hash,
        "claim": lambda *_: {},
    }
    proof = Jwt(**(fields | changes))
    secrets = () if proof.key_set else secrets
    spec = {"name": "test", "provider": "sender", "secrets": secrets} | (spec or {})
    return JwtCheck(proof, SourceSpec(**spec), {}, ring or KeyRing())


def public_check(ring):
    return check_of(ring, algorithms=("RS256",), key_set=KEY_SET, header="authorization", prefix="Bearer ")


def token(key, kid, claims=CLAIMS):
    return pyjwt.PyJWS().encode(json.dumps(claims).encode(), key, algorithm="RS256", headers={"kid": kid})


def key_set(private, kid="one", **changes):
    key = json.loads(pyjwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    return json.dumps({"keys": [{**key, "kid": kid, "use": "sig", "alg": "RS256"} | changes]}).encode()


def sent(text, body=BODY, header="x-token"):
    return request(body, {header: text})


def test_a_token_with_a_shared_secret_proves_the_body_it_names():
    check = check_of()
    text = SHORT_KEY_TOKEN
    assert check.check(sent(text), NOW) == ValidProof(NOW)
    assert check.check(sent(text, BODY + b" "), NOW).detail == "the token is for another body"
    assert check_of(secrets=("another",)).check(sent(text), NOW).reason is Reason.SIGNATURE_MISMATCH
    assert check_of(secrets=("another", SECRET)).check(sent(text), NOW) == ValidProof(NOW)
    assert check.proof_headers == {"x-token"}


def by_hand(claims, header, secret=b"short", digest="sha256"):
    """A token made without any library."""
    parts = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    mac = base64.urlsafe_b64encode(hmac.digest(secret, parts, digest)).rstrip(b"=")
    return (parts + b"." + mac).decode()


SHORT_KEY_TOKEN = by_hand(CLAIMS, {"alg": "HS256", "typ": "JWT"})


def test_the_header_and_its_prefix_must_be_there():
    check = check_of(prefix="Bearer ")
    assert check.check(request(BODY, {}), NOW).reason is Reason.SIGNATURE_MISSING
    assert check.check(sent(SHORT_KEY_TOKEN), NOW).reason is Reason.SIGNATURE_MISSING
    assert check.check(sent("bearer " + SHORT_KEY_TOKEN), NOW) == ValidProof(NOW)


# Algorithms.


def test_an_unsigned_token_is_refused():
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    payload = SHORT_KEY_TOKEN.split(".")[1]
    for text in (f"{head}.{payload}.", by_hand(CLAIMS, {"alg": "None"}), by_hand(CLAIMS, {})):
        assert check_of().check(sent(text), NOW).reason is Reason.UNKNOWN_SCHEME


def test_an_algorithm_is_the_recipes_word_and_not_the_tokens():
    text = by_hand(CLAIMS, {"alg": "HS512"}, digest="sha512")
    assert check_of().check(sent(text), NOW).reason is Reason.UNKNOWN_SCHEME
    assert check_of(algorithms=("HS512",)).check(sent(text), NOW) == ValidProof(NOW)


def test_a_public_key_does_not_serve_as_a_shared_secret(private):
    ring = KeyRing()
    ring.put(KEY_SET, key_set(private), NOW)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    forged = by_hand(CLAIMS, {"alg": "HS256", "kid": "one"}, public)
    verdict = public_check(ring).check(sent("Bearer " + forged, header="authorization"), NOW)
    assert verdict.reason is Reason.UNKNOWN_SCHEME


def test_mutant_where_the_token_chose_the_algorithm_the_public_key_would_forge(private):
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    forged = by_hand(CLAIMS, {"alg": "HS256", "kid": "one"}, public)
    check = check_of()
    assert check.check(sent(forged), NOW).reason is Reason.SIGNATURE_MISMATCH
    # What would be wrong: the published key among the shared secrets, and no look at its form.
    check._secrets = (public.decode(),)
    check._jws._algorithms["HS256"] = NoLook()
    assert check.check(sent(forged), NOW) == ValidProof(NOW)


class NoLook(jwt.AnyKeyLength):
    """HMAC without PyJWT's refusal of keys that look like public ones."""

    def __init__(self):
        super().__init__(self.SHA256)

    def prepare_key(self, key):
        return key.encode() if isinstance(key, str) else key


def test_a_recipe_cannot_mix_shared_secrets_with_a_key_set():
    with pytest.raises(ConfigError, match="do not match the source"):
        check_of(algorithms=("RS256",))
    with pytest.raises(ConfigError, match="do not match the source"):
        check_of(algorithms=("RS256", "HS256"), key_set=KEY_SET)
    with pytest.raises(ConfigError, match=r"secrets\[0\]: this is a PEM key"):
        check_of(secrets=("-----BEGIN PUBLIC KEY-----\nAAAA",))
    with pytest.raises(ConfigError, match="there is none"):
        check_of(secrets=())


# Key sets.


def test_a_key_set_is_requested_and_then_used(private):
    ring = KeyRing()
    check = public_check(ring)
    one = sent("Bearer " + token(private, "one"), header="authorization")
    assert check.proof_headers == frozenset()
    assert check.check(one, NOW) == KeyRequired(url=KEY_SET)
    ring.put(KEY_SET, key_set(private), NOW)
    assert check.check(one, NOW) == ValidProof(NOW)


def test_an_unknown_key_id_fetches_again_but_at_most_once_a_minute(private):
    ring = KeyRing()
    check = public_check(ring)
    ring.put(KEY_SET, key_set(private, kid="old"), NOW)
    one = sent("Bearer " + token(private, "new"), header="authorization")
    assert check.check(one, NOW + 59).reason is Reason.SIGNATURE_MISMATCH
    assert check.check(one, NOW + 61) == KeyRequired(url=KEY_SET)
    ring.put(KEY_SET, key_set(private, kid="new"), NOW + 61)
    assert check.check(one, NOW + 61) == ValidProof(NOW)


def test_mutant_without_the_minute_every_forged_key_id_would_fetch(monkeypatch, private):
    ring = KeyRing()
    ring.put(KEY_SET, key_set(private, kid="old"), NOW)
    one = sent("Bearer " + token(private, "new"), header="authorization")
    monkeypatch.setattr(jwt, "REFETCH_S", -1.0)
    assert public_check(ring).check(one, NOW) == KeyRequired(url=KEY_SET)


def test_keys_of_another_kind_use_or_strength_are_passed_over(private):
    weak = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    for content in [
        key_set(private, use="enc"),
        key_set(private, alg="RS512"),
        key_set(private, kty="oct", k="c2hvcnQ"),
        key_set(private, n="!"),
        key_set(weak),
        b"[]",
        b'{"keys":{}}',
        b'{"keys":[1,null]}',
        b"<html>",
    ]:
        ring = KeyRing()
        ring.put(KEY_SET, content, NOW)
        one = sent("Bearer " + token(private, "one"), header="authorization")
        assert public_check(ring).check(one, NOW).reason is Reason.KEY_UNAVAILABLE, content


# Times and claims.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW - 299}, None),
        ({"exp": NOW - 301}, Reason.TIMESTAMP_TOO_OLD),
        ({"exp": None}, Reason.TIMESTAMP_MALFORMED),
        ({"exp": "soon"}, Reason.TIMESTAMP_MALFORMED),
        ({"exp": True}, Reason.TIMESTAMP_MALFORMED),
        ({"exp": 10**400}, Reason.TIMESTAMP_MALFORMED),
        ({"exp": -1}, Reason.TIMESTAMP_MALFORMED),
        ({"nbf": NOW + 299}, None),
        ({"nbf": NOW + 301}, Reason.TIMESTAMP_IN_FUTURE),
        ({"iat": NOW + 301}, Reason.TIMESTAMP_IN_FUTURE),
        ({"iat": [1]}, Reason.TIMESTAMP_MALFORMED),
        ({"iss": "stranger"}, Reason.SIGNATURE_MISMATCH),
        ({"iss": ["issuer"]}, Reason.SIGNATURE_MISMATCH),
    ],
)
def test_times_and_issuer_are_checked(changes, reason):
    verdict = check_of().check(sent(by_hand(CLAIMS | changes, {"alg": "HS256"})), NOW)
    assert getattr(verdict, "reason", None) == reason


def test_the_sources_own_tolerance_counts():
    one = sent(by_hand(CLAIMS | {"exp": NOW - 20}, {"alg": "HS256"}))
    assert check_of().check(one, NOW) == ValidProof(NOW)
    assert check_of(spec={"tolerance_s": 10}).check(one, NOW).reason is Reason.TIMESTAMP_TOO_OLD


def test_a_token_without_an_end_needs_a_recipe_that_allows_it():
    claims = {key: value for key, value in CLAIMS.items() if key != "exp"}
    one = sent(by_hand(claims, {"alg": "HS256"}))
    assert check_of().check(one, NOW).reason is Reason.TIMESTAMP_MISSING
    assert check_of(must_expire=False).check(one, NOW) == ValidProof(NOW)


def test_mutant_without_the_times_an_old_token_would_hold(monkeypatch):
    one = sent(by_hand(CLAIMS | {"exp": NOW - 9_999}, {"alg": "HS256"}))
    monkeypatch.setattr(JwtCheck, "_check_times", lambda *_: None)
    assert check_of().check(one, NOW) == ValidProof(NOW)


def test_an_exception_in_a_claims_check_is_a_rejection():
    verdict = check_of(check_claims=lambda claims, _facts: claims["absent"]).check(sent(SHORT_KEY_TOKEN), NOW)
    assert verdict.reason is Reason.SIGNATURE_MISMATCH


# Hostile input.


@pytest.mark.own_process
@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "\xff.\xff.\xff",
        SHORT_KEY_TOKEN + "x" * 9_000,
        by_hand([1], {"alg": "HS256"}),
        by_hand("text", {"alg": "HS256"}),
        by_hand(CLAIMS, {"alg": ["HS256"]}),
        by_hand(CLAIMS, {"alg": "HS256", "kid": 5}),
        by_hand(CLAIMS, {"alg": "HS256", "crit": ["x"]}),
        by_hand(CLAIMS, {"alg": "HS256", "b64": False, "crit": ["b64"]}),
        by_hand(CLAIMS, [1]),
        base64.urlsafe_b64encode(b"[" * 5_000).decode() + ".e30.e30",
        base64.urlsafe_b64encode(b'{"a":' * 1_200).decode() + ".e30.e30",
    ],
)
def test_an_odd_token_is_refused(text):
    assert isinstance(check_of().check(sent(text), NOW), Rejected)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=200), st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit"]), st.text(max_size=8)), st.binary(max_size=80))  # fmt: skip
def test_nothing_that_is_sent_raises(text, header, payload):
    made = (
        base64.urlsafe_b64encode(json.dumps(header).encode()).decode()
        + "."
        + base64.urlsafe_b64encode(payload).decode()
        + ".AAAA"
    )
    for value in (text, made):
        assert isinstance(check_of().check(sent(value), NOW), Rejected)
