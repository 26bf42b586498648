"""Russian payment providers, checked by libraries and documented vectors in both directions."""

import base64
import hashlib
import hmac
import json
import time
import warnings
from ipaddress import ip_network
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Challenge, Reason, Rejected, Request
from boathook.providers import find_recipe, payments_russia
from boathook.providers.schemes import Addresses
from boathook.testing import signed_request
from tests.providers.payment_requests import (
    FORM,
    altered,
    from_signed,
    make_request,
    rejection_reason,
    source,
    verified,
)

with warnings.catch_warnings():
    # Some of these libraries use what Python or their own authors have deprecated.
    warnings.simplefilter("ignore")
    from aiorobokassa.utils.signature import verify_result_url_signature
    from yookassa.domain.common import SecurityHelper

NOW = time.time()
ADDRESS = "https://hooks.example.com/in/test"
SECRET = "a secret"


def posted(pairs: dict[str, str], headers: dict[str, str] | None = None, query: str = "") -> Request:
    url = f"{ADDRESS}?{query}" if query else ADDRESS
    return make_request(urlencode(pairs).encode(), {"content-type": FORM} | (headers or {}), url=url)


def got(pairs: dict[str, str], headers: dict[str, str] | None = None) -> Request:
    return make_request(b"", headers or {}, url=f"{ADDRESS}?{urlencode(pairs)}", method="GET")


# YooKassa.

PAYMENT = b'{"type":"notification","event":"payment.succeeded","object":{"id":"22d6d597-000f-5000-9000-145f6df21d6f"}}'


@pytest.mark.judge("yookassa")
@pytest.mark.parametrize(
    "client",
    [
        "77.75.153.1",
        "77.75.153.127",
        "77.75.156.11",
        "77.75.156.35",
        "77.75.154.128",
        "77.75.154.255",
        "185.71.76.31",
        "185.71.77.0",
        "2a02:5180:0:1509::1",
        "2a02:5180:0:2669:ffff::1",
    ],
)
def test_yookassas_own_addresses_are_taken(client):
    assert SecurityHelper().is_ip_trusted(client)
    verdict = verified(source("yookassa"), make_request(PAYMENT, {}, client=client), NOW)
    assert (verdict.grade, verdict.type) == (ProofStrength.ADDRESS, "payment.succeeded")
    assert verdict.dedup_key == "22d6d597-000f-5000-9000-145f6df21d6f.payment.succeeded"


@pytest.mark.judge("yookassa")
@pytest.mark.parametrize(
    "client",
    ["77.75.153.128", "77.75.156.12", "77.75.154.127", "185.71.76.32", "185.71.78.1", "127.0.0.1", "2a02:5181::1"],
)
def test_the_addresses_next_to_yookassas_are_refused(client):
    assert not SecurityHelper().is_ip_trusted(client)
    assert (
        rejection_reason(source("yookassa"), make_request(PAYMENT, {}, client=client), NOW)
        is Reason.ADDRESS_NOT_ALLOWED
    )


def test_yookassa_networks_cover_those_of_its_library():
    networks = payments_russia.YOOKASSA.proof
    assert isinstance(networks, Addresses)
    ours = [ip_network(text) for text in networks.networks]
    for text in SecurityHelper.YOOKASSA_NETWORKS:
        theirs = ip_network(text)
        assert any(theirs.version == one.version and theirs.subnet_of(one) for one in ours), text


def test_an_address_in_a_header_is_not_trusted():
    forged = make_request(PAYMENT, {"X-Forwarded-For": "77.75.153.1", "X-Real-IP": "77.75.153.1"}, client="192.0.2.1")
    assert rejection_reason(source("yookassa"), forged, NOW) is Reason.ADDRESS_NOT_ALLOWED


# CloudPayments.

NOTICE = {"TransactionId": "1000001", "Amount": "10.99", "Status": "Completed", "Name": "ЖУКОВСКИЙ A+B"}


def content_hmac(signed: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"Content-HMAC": base64.b64encode(hmac.digest(secret.encode(), signed, "sha256")).decode()}


@pytest.mark.judge("cloudpayments")
@pytest.mark.parametrize("body", [urlencode(NOTICE).encode(), json.dumps(NOTICE).encode()], ids=["form", "json"])
def test_cloudpayments_package_and_boathook_agree_on_posts(judge, body):
    by_package = judge.asks("cloudpayments", "sign", secret=SECRET, body=body)
    assert {"Content-HMAC": by_package} == content_hmac(body)
    request = make_request(body, {"Content-HMAC": by_package}, url=f"{ADDRESS}?kind=pay")
    verdict = verified(source("cloudpayments", SECRET), request, NOW)
    assert (verdict.dedup_key, verdict.type, verdict.grade) == ("pay.1000001", "pay", ProofStrength.BODY)
    assert verdict.reply is not None
    assert (verdict.reply.status, json.loads(verdict.reply.body)) == (200, {"code": 0})
    assert verdict.reply.content_type == "application/json"

    signed = signed_request("cloudpayments", SECRET, body)
    question = {"secret": SECRET, "signature": signed.headers["content-hmac"], "content_type": FORM}
    if body.startswith(b"{"):
        question["content_type"] = "application/json"
    assert judge.asks("cloudpayments", "verify", body=body, **question) is True
    assert judge.asks("cloudpayments", "verify", body=body + b" ", **question) is False


@pytest.mark.judge("cloudpayments")
def test_cloudpayments_get_signatures_agree_with_its_package(judge):
    verifier = source("cloudpayments", SECRET, scheme="get")
    request = got({**NOTICE, "kind": "pay"})
    by_package = judge.asks("cloudpayments", "sign", secret=SECRET, body=request.query.encode())
    request = replace(request, headers={"content-hmac": by_package})
    verdict = verified(verifier, request, NOW)
    assert (verdict.dedup_key, verdict.type) == ("pay.1000001", "pay")
    other = replace(request, query=request.query.replace("10.99", "11.99"))
    assert rejection_reason(verifier, other, NOW) is Reason.SIGNATURE_MISMATCH

    signed = signed_request("cloudpayments", SECRET, scheme="get")
    question = {"secret": SECRET, "signature": signed.headers["content-hmac"], "method": "GET"}
    assert judge.asks("cloudpayments", "verify", url=signed.url, **question) is True
    assert judge.asks("cloudpayments", "verify", url=signed.url + "0", **question) is False


def test_invalid_cloudpayments_requests_are_refused():
    verifier = source("cloudpayments", SECRET)
    body = urlencode(NOTICE).encode()
    for request in altered(make_request(body, content_hmac(body))):
        assert rejection_reason(verifier, request, NOW) is Reason.SIGNATURE_MISMATCH
    assert rejection_reason(verifier, make_request(body, content_hmac(body, "other")), NOW) is Reason.SIGNATURE_MISMATCH
    assert rejection_reason(verifier, make_request(body, {}), NOW) is Reason.SIGNATURE_MISSING


def test_a_check_and_its_payment_are_two_events():
    """They have the same transaction; the configured URLs or else their bodies differ."""
    check, paid = NOTICE, {**NOTICE, "DateTime": "2026-11-21 10:00:01", "AuthCode": "A1B2C3"}
    verifier = source("cloudpayments", SECRET)
    for queries in (("kind=check", "kind=pay"), ("", "")):
        requests = [
            posted(pairs, content_hmac(urlencode(pairs).encode()), query)
            for pairs, query in zip((check, paid), queries, strict=True)
        ]
        keys = {verified(verifier, request, NOW).dedup_key for request in requests}
        assert len(keys) == 2


def test_a_cloudpayments_replay_of_another_kind_has_the_same_replay_key():
    body = urlencode(NOTICE).encode()
    verifier = source("cloudpayments", SECRET)
    verdicts = [
        verified(verifier, posted(NOTICE, content_hmac(body), f"kind={kind}"), NOW) for kind in ("pay", "refund")
    ]
    assert verdicts[0].dedup_key != verdicts[1].dedup_key
    assert verdicts[0].replay_material == verdicts[1].replay_material is not None


# T-Bank.

# The example of its documentation: https://developer.tbank.ru/eacq/intro/developer/notification, and its older PDF.
DOCUMENTED = {
    "TerminalKey": "1321054611234DEMO",
    "OrderId": "201709",
    "Success": True,
    "Status": "AUTHORIZED",
    "PaymentId": 8742591,
    "ErrorCode": "0",
    "Amount": 9855,
    "CardId": 322264,
    "Pan": "430000******0777",
    "Data": {"Phone": "+70000000000"},
    "ExpDate": "1122",
    "RebillId": 101709,
}
PASSWORD = "Dfsfh56dgKl"
TOKEN = "b906d28e76c6428e37b25fcf86c0adc52c63d503013fdd632e300593d165766b"


def tbank_token(fields: dict[str, Any], password: str) -> str:
    """The token as its documentation puts it together, without boathook's code."""
    texts = {"Password": password}
    for name, value in fields.items():
        if name != "Token" and not isinstance(value, dict | list) and value is not None:
            texts[name] = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return hashlib.sha256("".join(texts[name] for name in sorted(texts)).encode()).hexdigest()


def tbank_request(fields: dict[str, Any], token: str) -> Request:
    return make_request(json.dumps({**fields, "Token": token}).encode(), {})


@pytest.mark.judge("t-bank")
@pytest.mark.parametrize("name", ["t-bank", "tbank", "t-kassa"])
def test_the_vector_of_tbanks_documentation_is_taken(name):
    assert tbank_token(DOCUMENTED, PASSWORD) == TOKEN
    verdict = verified(source(name, PASSWORD), tbank_request(DOCUMENTED, TOKEN), NOW)
    assert (verdict.grade, verdict.type) == (ProofStrength.METADATA, "AUTHORIZED")
    assert verdict.dedup_key == f"8742591.AUTHORIZED.{TOKEN}"
    assert verdict.reply is not None
    assert (verdict.reply.status, verdict.reply.body) == (200, b"OK")


@pytest.mark.judge("t-bank")
def test_boathook_signs_the_vector_of_tbanks_documentation():
    signed = signed_request("t-bank", PASSWORD, json.dumps(DOCUMENTED).encode())
    assert json.loads(signed.body)["Token"] == TOKEN


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name != "Data"])
def test_each_root_field_of_tbank_is_signed(name):
    value = DOCUMENTED[name]
    changed = {**DOCUMENTED, name: (not value) if isinstance(value, bool) else f"{value}1"}
    verifier = source("t-bank", PASSWORD)
    assert rejection_reason(verifier, tbank_request(changed, TOKEN), NOW) is Reason.SIGNATURE_MISMATCH
    missing = {key: value for key, value in DOCUMENTED.items() if key != name}
    assert rejection_reason(verifier, tbank_request(missing, TOKEN), NOW) is Reason.SIGNATURE_MISMATCH
    added = {**DOCUMENTED, "Extra": "1"}
    assert rejection_reason(verifier, tbank_request(added, TOKEN), NOW) is Reason.SIGNATURE_MISMATCH


def test_invalid_tbank_requests_are_refused():
    verifier = source("t-bank", PASSWORD)
    assert (
        rejection_reason(source("t-bank", "other"), tbank_request(DOCUMENTED, TOKEN), NOW) is Reason.SIGNATURE_MISMATCH
    )
    assert (
        rejection_reason(verifier, make_request(json.dumps(DOCUMENTED).encode(), {}), NOW) is Reason.SIGNATURE_MISSING
    )
    for body in (b"[]", b"no", b"", b'"text"', b"null"):
        assert rejection_reason(verifier, make_request(body, {}), NOW) is Reason.SIGNATURE_MISSING
    lone = make_request(b'{"Token":"00","Status":"\\ud800"}', {})
    assert rejection_reason(verifier, lone, NOW) is Reason.SIGNATURE_MALFORMED


def test_a_password_in_a_forged_request_is_not_hashed():
    """Otherwise a field Password would let a sender choose the hashed text."""
    fields = {**DOCUMENTED, "Password": "mine"}
    token = hashlib.sha256("".join(str(fields[name]) for name in sorted(fields) if name != "Data").encode()).hexdigest()
    verifier = source("t-bank", PASSWORD)
    assert rejection_reason(verifier, tbank_request(fields, token), NOW) is Reason.SIGNATURE_MISMATCH


def test_mutant_a_password_taken_from_the_body_would_verify_any_request(monkeypatch):
    recipe = find_recipe("t-bank")
    mine = replace(
        recipe,
        proof=replace(recipe.proof, read_signed_parts=lambda reader, _: recipe.proof.read_signed_parts(reader, "mine")),
    )
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: mine)
    fields = {**DOCUMENTED, "Password": "mine"}
    verified(source("t-bank", PASSWORD), tbank_request(fields, tbank_token(fields, "mine")), NOW)


def test_two_partial_refunds_of_one_payment_are_two_events():
    verifier = source("t-bank", PASSWORD)
    refunds = [{**DOCUMENTED, "Status": "PARTIAL_REFUNDED", "Amount": amount} for amount in (100, 200, 200)]
    keys = [verified(verifier, tbank_request(one, tbank_token(one, PASSWORD)), NOW).dedup_key for one in refunds]
    assert len(set(keys)) == 2
    assert keys[1] == keys[2]


def test_tbanks_numbers_keep_their_digits():
    fields = {**DOCUMENTED, "PaymentId": 123456789012345678901234567890, "Amount": -1}
    verified(source("t-bank", PASSWORD), tbank_request(fields, tbank_token(fields, PASSWORD)), NOW)


# Robokassa.

PAID = {
    "OutSum": "8.960000",
    "InvId": "1001",
    "Fee": "0.31",
    "EMail": "buyer@example.com",
    "Shp_login": "Вася",
    "Shp_Item": "2 & 3",
}
PASSWORD_2 = "password #2"


def robokassa_signature(pairs: dict[str, str], password: str, algorithm: str = "md5") -> str:
    """The checksum as its documentation puts it together, without boathook's code."""
    own = [f"{name}={pairs[name]}" for name in sorted(pairs) if name.startswith("Shp_")]
    return hashlib.new(algorithm, ":".join([pairs["OutSum"], pairs["InvId"], password, *own]).encode()).hexdigest()


def aiorobokassa_accepts(pairs: dict[str, str], password: str, algorithm: str = "md5") -> bool:
    own = {name.removeprefix("Shp_"): value for name, value in pairs.items() if name.startswith("Shp_")}
    return verify_result_url_signature(
        pairs["OutSum"], pairs["InvId"], password, pairs["SignatureValue"], algorithm.upper(), own
    )


@pytest.mark.judge("robokassa")
@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha384", "sha512"])
@pytest.mark.parametrize("make", [posted, got], ids=["post", "get"])
def test_robokassa_notifications_are_accepted(make, algorithm):
    settings = {"algorithm": algorithm} | ({"scheme": "get"} if make is got else {})
    verifier = source("robokassa", PASSWORD_2, **settings)
    signature = robokassa_signature(PAID, PASSWORD_2, algorithm)
    for written in (signature, signature.upper()):
        verdict = verified(verifier, make({**PAID, "SignatureValue": written}), NOW)
        assert (verdict.grade, verdict.dedup_key) == (ProofStrength.METADATA, f"1001.{written}")
        assert verdict.reply is not None
        assert (verdict.reply.status, verdict.reply.body) == (200, b"OK1001")
    assert verifier.methods == {"GET" if make is got else "POST"}


@pytest.mark.judge("robokassa")
@pytest.mark.parametrize("algorithm", ["md5", "sha256", "sha512"])
@pytest.mark.parametrize("scheme", ["", "get"])
def test_aiorobokassa_accepts_boathooks_signatures(scheme, algorithm):
    settings = {"algorithm": algorithm, "scheme": scheme}
    if scheme:
        signed = signed_request(
            "robokassa", PASSWORD_2, b"", url=f"{ADDRESS}?{urlencode(PAID)}", method="GET", **settings
        )
        text = signed.url.partition("?")[2]
    else:
        signed = signed_request("robokassa", PASSWORD_2, urlencode(PAID).encode(), **settings)
        text = signed.body.decode()
    pairs = {name: values[0] for name, values in parse_qs(text).items()}
    assert aiorobokassa_accepts(pairs, PASSWORD_2, algorithm)
    assert not aiorobokassa_accepts(pairs, "password #1", algorithm)
    assert not aiorobokassa_accepts({**pairs, "OutSum": "8.96"}, PASSWORD_2, algorithm)


@pytest.mark.parametrize("name", ["OutSum", "InvId", "Shp_login", "Shp_Item"])
def test_changed_robokassa_fields_are_refused(name):
    verifier = source("robokassa", PASSWORD_2)
    signed = {**PAID, "SignatureValue": robokassa_signature(PAID, PASSWORD_2)}
    assert rejection_reason(verifier, posted({**signed, name: signed[name] + "1"}), NOW) is Reason.SIGNATURE_MISMATCH
    missing = {key: value for key, value in signed.items() if key != name}
    assert rejection_reason(verifier, posted(missing), NOW) in {Reason.SIGNATURE_MISMATCH, Reason.SIGNATURE_MISSING}
    twice = posted(signed)
    twice = replace(twice, body=twice.body + b"&" + urlencode({name: signed[name]}).encode())
    assert rejection_reason(verifier, twice, NOW) in {Reason.SIGNATURE_MISMATCH, Reason.SIGNATURE_MISSING}


def test_invalid_robokassa_requests_are_refused():
    signed = posted({**PAID, "SignatureValue": robokassa_signature(PAID, PASSWORD_2)})
    assert rejection_reason(source("robokassa", "password #1"), signed, NOW) is Reason.SIGNATURE_MISMATCH
    assert (
        rejection_reason(source("robokassa", PASSWORD_2, algorithm="sha256"), signed, NOW) is Reason.SIGNATURE_MISMATCH
    )
    assert rejection_reason(source("robokassa", PASSWORD_2), posted(PAID), NOW) is Reason.SIGNATURE_MISSING
    # The sum with which a buyer was sent off, under Password #1, is not a notice of a payment.
    asked = hashlib.md5(b"shop:8.960000:1001:password #1").hexdigest()
    assert rejection_reason(source("robokassa", PASSWORD_2), posted({**PAID, "SignatureValue": asked}), NOW)


def test_a_robokassa_payment_is_no_duplicate_of_a_test():
    verifier = source("robokassa", PASSWORD_2, "test password #2")
    real, tested = (
        verified(verifier, posted({**PAID, "SignatureValue": robokassa_signature(PAID, password)}), NOW)
        for password in (PASSWORD_2, "test password #2")
    )
    assert real.dedup_key != tested.dedup_key
    assert real.replay_material != tested.replay_material


def test_a_rewritten_robokassa_notification_has_the_same_replay_key():
    verifier = source("robokassa", PASSWORD_2)
    signature = robokassa_signature(PAID, PASSWORD_2)
    notices = ({"SignatureValue": signature}, {"SignatureValue": signature.upper()}, {"Fee": "9"})
    materials = {
        verified(verifier, posted({**PAID, "SignatureValue": signature, **changed}), NOW).replay_material
        for changed in notices
    }
    assert len(materials) == 1
    assert None not in materials


def test_a_hash_robokassa_does_not_offer_is_refused_with_those_it_does():
    with pytest.raises(ConfigError, match=r'sources.test.algorithm: write one of "md5", "sha1"'):
        source("robokassa", PASSWORD_2, algorithm="crc32")


# Tilda.

ORDER = {"Name": "Вася", "tranid": "1001:2002", "formid": "form1001"}


@pytest.mark.judge("tilda")
@pytest.mark.parametrize(
    ("settings", "headers", "fields"),
    [
        ({}, {"X-Api-Key": SECRET}, {}),
        ({"header": "X-Our-Key"}, {"X-Our-Key": SECRET}, {}),
        ({"field": "our_key"}, {}, {"our_key": SECRET}),
    ],
    ids=["default", "header", "field"],
)
def test_tilda_key_location_can_be_configured(settings, headers, fields):
    verifier = source("tilda", SECRET, **settings)
    verdict = verified(verifier, posted({**ORDER, **fields}, headers), NOW)
    assert (verdict.grade, verdict.type, verdict.dedup_key) == (ProofStrength.TOKEN, "form1001", "1001:2002")
    assert verdict.reply is not None
    assert (verdict.reply.status, verdict.reply.body) == (200, b"ok")
    assert rejection_reason(verifier, posted(ORDER), NOW) is Reason.TOKEN_MISSING
    wrong = posted({**ORDER, **dict.fromkeys(fields, "other")}, dict.fromkeys(headers, "other"))
    assert rejection_reason(verifier, wrong, NOW) is Reason.TOKEN_MISMATCH


def test_a_paid_tilda_order_is_another_event_than_its_submission():
    verifier = source("tilda", SECRET)
    paid = {**ORDER, "payment[orderid]": "77", "payment[systranid]": "pay-1", "payment[amount]": "10"}
    keys = [verified(verifier, posted(pairs, {"x-api-key": SECRET}), NOW).dedup_key for pairs in (ORDER, paid)]
    assert keys == ["1001:2002", "1001:2002.pay-1"]


def test_a_paid_tilda_order_is_distinguished_with_a_json_payment():
    verifier = source("tilda", SECRET)
    orders = [{**ORDER, "payment": f'{{"sys":"yakassa","systranid":"{number}"}}'} for number in ("0", "pay-1")]
    keys = [verified(verifier, posted(pairs, {"x-api-key": SECRET}), NOW).dedup_key for pairs in orders]
    assert keys == ["1001:2002.0", "1001:2002.pay-1"]


@pytest.mark.judge("tilda")
def test_tilda_url_check_is_answered_and_no_event():
    """https://help-ru.tilda.cc/forms/webhook: test=test by POST, and 200 is awaited."""
    for verifier in (source("tilda", SECRET), source("tilda", unsigned=True)):
        answer = verifier.verify(posted({"test": "test"}), NOW)
        assert isinstance(answer, Challenge)
        assert (answer.status, answer.body) == (200, b"ok")
    assert isinstance(source("tilda", SECRET).verify(posted({"test": "tested"}), NOW), Rejected)


def test_tilda_without_a_key_needs_unsigned():
    with pytest.raises(ConfigError, match="unsigned"):
        source("tilda")
    assert verified(source("tilda", unsigned=True), posted(ORDER), NOW).grade is ProofStrength.NONE
    with pytest.raises(ConfigError, match=r"sources\.test\.field: header is set too"):
        source("tilda", SECRET, header="X-Key", field="key")


# All of the family.


@pytest.mark.parametrize("recipe", payments_russia.RECIPES, ids=lambda recipe: recipe.name)
def test_samples_are_taken_and_answered_with_200(recipe):
    for scheme, one in {"": recipe, **recipe.schemes}.items():
        settings = {"scheme": scheme} if scheme else {}
        request = from_signed(signed_request(recipe.name, SECRET, url=ADDRESS, **settings))
        secrets = () if isinstance(one.proof, Addresses) else (SECRET,)
        verdict = verified(source(recipe.name, *secrets, **settings), replace(request, client="77.75.153.1"), NOW)
        assert verdict.reply is None or verdict.reply.status == 200
        assert one.checked
