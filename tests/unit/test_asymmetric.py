"""Public-key signatures: keys pasted and keys fetched, good and forged. Each safeguard has its mutant."""

import base64
import re
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from boathook.domain.errors import ConfigError
from boathook.domain.signing import Encoding
from boathook.domain.verification import KeyRequired, Reason, Rejected, SourceSpec
from boathook.providers.request_reader import Header, Json
from boathook.providers.schemes import (
    Asymmetric,
    ConfiguredKey,
    FetchedKey,
    Plain,
    PublicKeyFormat,
    SignatureAlgorithm,
    SignedPart,
    SignedTimestamp,
    Versioned,
)
from boathook.verification import asymmetric, public_keys
from boathook.verification.asymmetric import AsymmetricCheck
from boathook.verification.keyring import KeyRing
from boathook.verification.tokens import ValidProof
from tests.support import examples, too_dear
from tests.unit.verifier_factory import NOW, request

BODY = b'{"id":"evt_1"}'
URL = "https://keys.sender.test/certs/one.pem"
PATTERN = re.compile(r"https://keys\.sender\.test/certs/[a-z0-9-]+\.pem")


@pytest.fixture(scope="module")
def rsa_key():
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def state_body(reader, _secret):
    return (SignedPart(Header("x-signature"), reader.request.body),)


def pem(private):
    return (
        private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def certificate(private, *, starts=NOW - 86_400, ends=NOW + 86_400):
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sender")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(starts, UTC))
        .not_valid_after(datetime.fromtimestamp(ends, UTC))
    )
    signer = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def sign(private, scheme, message):
    match scheme:
        case SignatureAlgorithm.RSA_SHA1:
            return private.sign(message, padding.PKCS1v15(), hashes.SHA1())
        case SignatureAlgorithm.RSA_SHA256:
            return private.sign(message, padding.PKCS1v15(), hashes.SHA256())
        case SignatureAlgorithm.ECDSA_SHA256:
            return private.sign(message, ec.ECDSA(hashes.SHA256()))
        case SignatureAlgorithm.ED25519:
            return private.sign(message)


def b64(raw):
    return base64.b64encode(raw).decode()


def pasted(scheme, *keys, **changes):
    """A check with keys configured as PEM."""
    fields = {
        "read_signed_parts": state_body,
        "scheme": scheme,
        "key": ConfiguredKey(text=PublicKeyFormat.PEM),
        "proof_headers": ("x-signature",),
    }
    spec = SourceSpec(name="test", provider="sender", secrets=keys)
    return AsymmetricCheck(Asymmetric(**(fields | changes)), spec, {}, KeyRing())


def fetched(ring, scheme=SignatureAlgorithm.RSA_SHA256, **changes):
    """A check with a certificate URL in a header."""
    key = FetchedKey(selector=Header("x-cert-url"), pattern=PATTERN)
    proof = Asymmetric(**({"read_signed_parts": state_body, "scheme": scheme, "key": key} | changes))
    return AsymmetricCheck(proof, SourceSpec(name="test", provider="sender"), {}, ring)


def sent(signature, body=BODY, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return request(body, {"x-signature": signature} | names)


# Keys that the owner pasted.


@pytest.mark.parametrize("scheme", list(SignatureAlgorithm))
def test_each_scheme_accepts_its_signature_and_refuses_another_body_or_key(scheme, rsa_key):
    private = {SignatureAlgorithm.ECDSA_SHA256: EC_KEY, SignatureAlgorithm.ED25519: ED_KEY}.get(scheme, rsa_key)
    other = {
        SignatureAlgorithm.ECDSA_SHA256: lambda: ec.generate_private_key(ec.SECP256R1()),
        SignatureAlgorithm.ED25519: ed25519.Ed25519PrivateKey.generate,
    }.get(scheme, lambda: rsa.generate_private_key(public_exponent=65_537, key_size=2_048))()
    check = pasted(scheme, pem(private))
    signature = b64(sign(private, scheme, BODY))
    assert check.check(sent(signature), NOW) == ValidProof(None)
    assert check.check(sent(signature, BODY + b" "), NOW).reason is Reason.SIGNATURE_MISMATCH
    assert check.check(sent(b64(sign(other, scheme, BODY))), NOW).reason is Reason.SIGNATURE_MISMATCH


def test_several_keys_are_a_rotation():
    new = ec.generate_private_key(ec.SECP256R1())
    check = pasted(SignatureAlgorithm.ECDSA_SHA256, pem(EC_KEY), pem(new))
    for private in (EC_KEY, new):
        assert check.check(sent(b64(sign(private, SignatureAlgorithm.ECDSA_SHA256, BODY))), NOW) == ValidProof(None)


def test_rsa_with_sha1_is_not_taken_for_sha256(rsa_key):
    signature = b64(sign(rsa_key, SignatureAlgorithm.RSA_SHA1, BODY))
    assert pasted(SignatureAlgorithm.RSA_SHA1, pem(rsa_key)).check(sent(signature), NOW) == ValidProof(None)
    verdict = pasted(SignatureAlgorithm.RSA_SHA256, pem(rsa_key)).check(sent(signature), NOW)
    assert verdict.reason is Reason.SIGNATURE_MISMATCH


def test_keys_are_read_in_every_form_senders_write_them():
    raw = ED_KEY.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    der = EC_KEY.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    for form, text, scheme, private in [
        (PublicKeyFormat.HEX, raw.hex(), SignatureAlgorithm.ED25519, ED_KEY),
        (PublicKeyFormat.STANDARD, "whpk_" + b64(raw), SignatureAlgorithm.ED25519, ED_KEY),
        (PublicKeyFormat.SPKI, b64(der), SignatureAlgorithm.ECDSA_SHA256, EC_KEY),
        (PublicKeyFormat.SPKI, pem(EC_KEY), SignatureAlgorithm.ECDSA_SHA256, EC_KEY),
    ]:
        check = pasted(scheme, text, key=ConfiguredKey(text=form))
        assert check.check(sent(b64(sign(private, scheme, BODY))), NOW) == ValidProof(None), form


def test_hex_and_versioned_signatures_are_accepted():
    signature = sign(ED_KEY, SignatureAlgorithm.ED25519, BODY)
    in_hex = pasted(SignatureAlgorithm.ED25519, pem(ED_KEY), encoding=Encoding.HEX)
    assert in_hex.check(sent(signature.hex().upper()), NOW) == ValidProof(None)
    versioned = pasted(SignatureAlgorithm.ED25519, pem(ED_KEY), form=Versioned(version="v1a"))
    assert versioned.check(sent(f"v1,xxxx v1a,{b64(signature)}"), NOW) == ValidProof(None)
    assert versioned.check(sent("v1,xxxx"), NOW).reason is Reason.UNKNOWN_SCHEME


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        (PublicKeyFormat.PEM, "not a key at all", "not PEM"),
        (PublicKeyFormat.PEM, "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "secrets[0]"),
        (PublicKeyFormat.HEX, "zz" * 32, "not hexadecimal"),
        (PublicKeyFormat.HEX, "aa" * 31, "32 bytes"),
        (PublicKeyFormat.SPKI, "!!!", "not base64"),
        (PublicKeyFormat.SPKI, "AAAA", "SubjectPublicKeyInfo"),
        (PublicKeyFormat.STANDARD, "whpk_AAAA", "32 bytes"),
        (PublicKeyFormat.PEM, " ", "empty"),
    ],
)
def test_an_unreadable_key_is_refused_by_name_and_never_repeated(form, text, words):
    with pytest.raises(ConfigError, match=re.escape("sources.test.secrets[0]")) as caught:
        pasted(SignatureAlgorithm.ED25519, text, key=ConfiguredKey(text=form))
    assert words in str(caught.value)
    assert text.strip() == "" or text not in str(caught.value)


def test_a_missing_weak_or_wrong_key_is_refused_at_compile_time():
    with pytest.raises(ConfigError, match="secrets: there is none"):
        pasted(SignatureAlgorithm.ED25519)
    weak = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    with pytest.raises(ConfigError, match="1024 bits"):
        pasted(SignatureAlgorithm.RSA_SHA256, pem(weak))
    with pytest.raises(ConfigError, match="this type of key cannot sign with"):
        pasted(SignatureAlgorithm.RSA_SHA256, pem(ED_KEY))
    for curve in (ec.SECP384R1(), ec.SECP256K1()):
        with pytest.raises(ConfigError, match=curve.name):
            pasted(SignatureAlgorithm.ECDSA_SHA256, pem(ec.generate_private_key(curve)))


def test_mutant_without_the_check_of_the_curve_another_curve_would_sign(monkeypatch):
    other = ec.generate_private_key(ec.SECP256K1())
    public_keys.read_pem.cache_clear()
    monkeypatch.setattr(public_keys, "_checked", lambda key: key)
    check = pasted(SignatureAlgorithm.ECDSA_SHA256, pem(other))
    public_keys.read_pem.cache_clear()
    assert check.check(sent(b64(sign(other, SignatureAlgorithm.ECDSA_SHA256, BODY))), NOW) == ValidProof(None)


# Stamps, statements and schemes.


def state_stamped(reader, _secret):
    timestamp = reader.text(Header("x-stamp")) or ""
    return (SignedPart(Header("x-signature"), timestamp.encode() + reader.request.body),)


def test_a_signed_timestamp_must_be_within_the_tolerance():
    check = pasted(
        SignatureAlgorithm.ED25519,
        pem(ED_KEY),
        read_signed_parts=state_stamped,
        timestamp=SignedTimestamp(selector=Header("x-stamp")),
    )
    assert check.proof_headers == {"x-signature", "x-stamp"}

    def at(moment):
        signature = b64(sign(ED_KEY, SignatureAlgorithm.ED25519, str(moment).encode() + BODY))
        return check.check(sent(signature, x_stamp=str(moment)), NOW)

    assert at(int(NOW) - 300) == ValidProof(NOW - 300)
    assert at(int(NOW) - 301).reason is Reason.TIMESTAMP_TOO_OLD
    assert at(int(NOW) + 301).reason is Reason.TIMESTAMP_IN_FUTURE
    assert check.check(sent("AAAA"), NOW).reason is Reason.TIMESTAMP_MISSING
    assert check.check(sent("AAAA", x_stamp="soon"), NOW).reason is Reason.TIMESTAMP_MALFORMED


def test_every_signed_part_needs_its_own_signature():
    def read_signed_parts(reader, _secret):
        return tuple(SignedPart(Json(f"items.{i}.signature"), f"item {i}".encode()) for i in range(2))

    check = pasted(SignatureAlgorithm.ED25519, pem(ED_KEY), read_signed_parts=read_signed_parts)
    good = [b64(sign(ED_KEY, SignatureAlgorithm.ED25519, f"item {i}".encode())) for i in range(2)]

    def judge(*signatures):
        items = ",".join(f'{{"signature":"{one}"}}' for one in signatures)
        return check.check(request(f'{{"items":[{items}]}}'.encode(), {}), NOW)

    assert judge(*good) == ValidProof(None)
    assert judge(good[0], good[0]).reason is Reason.SIGNATURE_MISMATCH
    assert judge(good[0]).reason is Reason.SIGNATURE_MISSING


def test_more_than_sixteen_signed_parts_or_signatures_are_refused(monkeypatch):
    def many(reader, _secret):
        return tuple(SignedPart(Header("x-signature"), b"") for _ in range(17))

    assert (
        pasted(SignatureAlgorithm.ED25519, pem(ED_KEY), read_signed_parts=many).check(sent("AAAA"), NOW).reason
        is Reason.SIGNATURE_MALFORMED
    )
    tried = []

    def fail(*attempt):
        tried.append(attempt)
        return False

    monkeypatch.setattr(asymmetric, "is_valid_signature", fail)
    check = pasted(SignatureAlgorithm.ED25519, pem(ED_KEY))
    signatures = ",".join(b64(bytes([i]) * 64) for i in range(100))
    assert isinstance(check.check(sent(signatures), NOW), Rejected)
    assert len(tried) == 16


def test_a_failing_or_declining_part_reader_is_a_rejection():
    def stumble(reader, _secret):
        return (SignedPart(Header("x-signature"), reader.text(Json("absent")).encode()),)

    verdict = pasted(SignatureAlgorithm.ED25519, pem(ED_KEY), read_signed_parts=stumble).check(sent("AAAA"), NOW)
    assert verdict.reason is Reason.SIGNATURE_MALFORMED
    declines = pasted(SignatureAlgorithm.ED25519, pem(ED_KEY), read_signed_parts=lambda *_: "the body names no version")
    verdict = declines.check(sent("AAAA"), NOW)
    assert (verdict.reason, verdict.detail) == (Reason.SIGNATURE_MISSING, "the body names no version")
    assert (
        pasted(SignatureAlgorithm.ED25519, pem(ED_KEY), read_signed_parts=lambda *_: ()).check(sent("A"), NOW).status
        == 401
    )


def test_the_request_may_choose_among_the_recipes_schemes_only(rsa_key):
    def choose(reader):
        version = reader.text(Json("v"))
        return {"1": SignatureAlgorithm.RSA_SHA1, "2": SignatureAlgorithm.RSA_SHA256}.get(
            version
        ) or "the version is unknown"

    check = pasted(choose, pem(rsa_key))
    for version, scheme in (("1", SignatureAlgorithm.RSA_SHA1), ("2", SignatureAlgorithm.RSA_SHA256)):
        body = f'{{"v":"{version}"}}'.encode()
        assert check.check(sent(b64(sign(rsa_key, scheme, body)), body), NOW) == ValidProof(None)
    verdict = check.check(sent("AAAA", b'{"v":"3"}'), NOW)
    assert (verdict.reason, verdict.detail) == (Reason.UNKNOWN_SCHEME, "the version is unknown")


# Keys that are fetched.


def test_a_certificate_is_requested_then_used_then_refreshed(rsa_key):
    ring = KeyRing()
    check = fetched(ring)
    one = sent(b64(sign(rsa_key, SignatureAlgorithm.RSA_SHA256, BODY)), x_cert_url=URL)
    assert check.proof_headers == {"x-cert-url"}
    assert check.check(one, NOW) == KeyRequired(url=URL)
    ring.put(URL, certificate(rsa_key), NOW)
    assert check.check(one, NOW) == ValidProof(None)
    assert check.check(one, NOW + 3_599) == ValidProof(None)
    assert check.check(one, NOW + 3_601) == KeyRequired(url=URL)
    assert ring.extend(URL, NOW + 3_601)
    assert check.check(one, NOW + 3_602) == ValidProof(None)
    assert not ring.extend(URL, NOW + 90_000)


def test_a_bare_key_or_the_first_certificate_of_a_chain_is_used(rsa_key):
    other = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    one = sent(b64(sign(rsa_key, SignatureAlgorithm.RSA_SHA256, BODY)), x_cert_url=URL)
    for content, is_good in [
        (pem(rsa_key).encode(), True),
        (certificate(rsa_key) + certificate(other), True),
        (certificate(other) + certificate(rsa_key), False),
    ]:
        ring = KeyRing()
        ring.put(URL, content, NOW)
        assert isinstance(fetched(ring).check(one, NOW), ValidProof) is is_good


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest/meta-data/",
        "https://keys.sender.test.evil.test/certs/one.pem",
        "https://evil.test/https://keys.sender.test/certs/one.pem",
        "https://keys.sender.test@127.0.0.1/certs/one.pem",
        "https://keys.sender.test\\@127.0.0.1/certs/one.pem",
        "https://127.0.0.1#@keys.sender.test/certs/one.pem",
        "https://keys.sender.test/certs/../../evil.pem",
        "http://keys.sender.test/certs/one.pem",
        "https://keys.sender.test:8443/certs/one.pem",
        "https://keys.sender.test/certs/one.pem\n",
        "https://keys.sender.test/certs/one.pem\r\nhost: evil",
        "https://KEYS.sender.test/certs/one.pem",
        "https://k\N{CYRILLIC SMALL LETTER IE}ys.sender.test/certs/one.pem",
        "file:///etc/passwd",
        "https://keys.sender.test/certs/" + "a" * 2_000 + ".pem",
        "",
    ],
)
def test_an_unpinned_key_url_is_refused_without_a_fetch(url, rsa_key):
    one = sent(b64(sign(rsa_key, SignatureAlgorithm.RSA_SHA256, BODY)), x_cert_url=url)
    verdict = fetched(KeyRing()).check(one, NOW)
    assert isinstance(verdict, Rejected)
    assert verdict.reason is Reason.SIGNATURE_MALFORMED
    loose = FetchedKey(selector=Header("x-cert-url"), pattern=re.compile(r"(?s)https://keys\.sender\.test.*"))
    if any(mark in url for mark in "\\@#\n") or ".." in url:
        # A careless pattern is not the only guard.
        assert isinstance(fetched(KeyRing(), key=loose).check(one, NOW), Rejected)


def test_mutant_without_pinning_an_attacker_chooses_the_key_url(monkeypatch):
    one = sent("AAAA", x_cert_url="https://169.254.169.254/latest/meta-data/")
    assert isinstance(fetched(KeyRing()).check(one, NOW), Rejected)
    monkeypatch.setattr(asymmetric, "is_allowed_url", lambda *_: True)
    assert fetched(KeyRing()).check(one, NOW) == KeyRequired(url="https://169.254.169.254/latest/meta-data/")


def test_a_certificate_out_of_its_dates_is_refused(rsa_key):
    one = sent(b64(sign(rsa_key, SignatureAlgorithm.RSA_SHA256, BODY)), x_cert_url=URL)
    for dates, words in [
        ({"starts": NOW - 200, "ends": NOW - 100}, "expired"),
        ({"starts": NOW + 100, "ends": NOW + 200}, "not valid yet"),
    ]:
        ring = KeyRing()
        ring.put(URL, certificate(rsa_key, **dates), NOW)
        verdict = fetched(ring).check(one, NOW)
        assert verdict.reason is Reason.KEY_UNAVAILABLE
        assert words in verdict.detail


def test_mutant_without_the_dates_an_expired_certificate_would_be_used(monkeypatch, rsa_key):
    ring = KeyRing()
    ring.put(URL, certificate(rsa_key, starts=NOW - 200, ends=NOW - 100), NOW)
    monkeypatch.setattr(public_keys.PublicKey, "trouble", lambda *_: None)
    one = sent(b64(sign(rsa_key, SignatureAlgorithm.RSA_SHA256, BODY)), x_cert_url=URL)
    assert fetched(ring).check(one, NOW) == ValidProof(None)


@pytest.mark.parametrize("content", [b"", b"<html>", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
def test_invalid_key_material_is_refused(content):
    ring = KeyRing()
    ring.put(URL, content, NOW)
    verdict = fetched(ring).check(sent("AAAA", x_cert_url=URL), NOW)
    assert verdict.reason is Reason.KEY_UNAVAILABLE


def test_a_fetched_key_must_be_strong_and_of_the_schemes_kind():
    weak = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    for private in (weak, EC_KEY, ec.generate_private_key(ec.SECP384R1())):
        ring = KeyRing()
        ring.put(URL, certificate(private), NOW)
        verdict = fetched(ring).check(sent("AAAA", x_cert_url=URL), NOW)
        assert verdict.reason is Reason.KEY_UNAVAILABLE


# The ring.


def test_the_key_ring_keeps_the_64_newest_keys():
    ring = KeyRing()
    for i in range(70):
        ring.put(f"https://keys.sender.test/{i}", b"x", NOW + i)
    assert sum(ring.has(f"https://keys.sender.test/{i}") for i in range(70)) == 64
    assert not ring.has("https://keys.sender.test/5")
    with pytest.raises(ValueError, match="too many"):
        ring.put(URL, b"x" * 1_048_577, NOW)


def test_the_key_ring_reuses_the_object_for_equal_bytes():
    ring = KeyRing()
    first = b"x" * 100
    ring.put(URL, first, NOW)
    ring.put(URL, bytes(bytearray(first)), NOW + 10)
    assert ring.get(URL, NOW + 3_605) is first


# Hostile input.


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=300), st.text(max_size=300), st.binary(max_size=200))
def test_nothing_that_is_sent_raises(signature, url, body):
    one = request(body, {"x-signature": signature, "x-cert-url": url, "x-stamp": signature})
    stamped = SignedTimestamp(selector=Header("x-stamp"))
    for form in (Plain(), Versioned()):
        check = pasted(
            SignatureAlgorithm.ED25519, pem(ED_KEY), form=form, read_signed_parts=state_stamped, timestamp=stamped
        )
        assert isinstance(check.check(one, NOW), Rejected)
    assert isinstance(fetched(KeyRing()).check(one, NOW), Rejected)


def test_hostile_signatures_cost_little():
    check = pasted(SignatureAlgorithm.ED25519, pem(ED_KEY))
    one = sent(",".join(b64(bytes([i]) * 64) for i in range(90)))
    assert too_dear(lambda: check.check(one, NOW), most=5) is None
