"""Payment providers: their libraries verify boathook's signatures, and boathook theirs."""

import base64
import hmac
import json
import re
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import pytest
import stripe
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import Challenge, KeyRequired, Reason, Rejected, Request
from boathook.providers import find_recipe, payments
from boathook.testing import make_keys, signed_request
from boathook.verification.keyring import KeyRing
from tests.providers.payment_requests import (
    FORM,
    URL,
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
    import Adyen.util
    import braintree
    import gocardless_pro.errors
    import gocardless_pro.webhooks
    import paypalrestsdk
    import razorpay
    from braintree.exceptions.invalid_challenge_error import InvalidChallengeError
    from braintree.exceptions.invalid_signature_error import InvalidSignatureError
    from coinbase_commerce import webhook as coinbase
    from mollie.utils.webhooks.signature_validator import InvalidSignatureException, SignatureValidator
    from square.utils.webhooks_helper import verify_signature as square_verify

NOW = time.time()
HEX_KEY = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
ADDRESS = "https://hooks.example.com/in/test"


def mac(secret: str, message: bytes) -> bytes:
    return hmac.digest(secret.encode(), message, "sha256")


# Senders with a signature in a header.


@dataclass(frozen=True)
class Judge:
    """A sender's library, or its documented recipe where the library cannot do something."""

    provider: str
    secret: str
    sign: Callable[[bytes, str, float], Mapping[str, str]]
    """The headers, by body, secret and time."""
    accepts: Callable[[bytes, Mapping[str, str], str], bool]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tolerance_s: float | None = None


def did_not_raise(*errors: type[Exception]) -> Callable[[Callable[[], object]], bool]:
    def run(call: Callable[[], object]) -> bool:
        try:
            call()
        except errors:
            return False
        return True

    return run


def stripe_sign(body: bytes, secret: str, now: float) -> dict[str, str]:
    stamp = int(now)
    signature = stripe.WebhookSignature._compute_signature(f"{stamp}.{body.decode()}", secret)
    return {"Stripe-Signature": f"t={stamp},v1={signature},v0={'00' * 32}"}


def stripe_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    return did_not_raise(stripe.SignatureVerificationError)(
        lambda: stripe.Webhook.construct_event(body, headers["stripe-signature"], secret)
    )


def square_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    return square_verify(
        request_body=body.decode(),
        signature_header=headers["x-square-hmacsha256-signature"],
        signature_key=secret,
        notification_url=URL,
    )


def square_sign(body: bytes, secret: str, _now: float) -> dict[str, str]:
    return {"X-Square-HmacSha256-Signature": base64.b64encode(mac(secret, URL.encode() + body)).decode()}


def adyen_sign(body: bytes, secret: str, _now: float) -> dict[str, str]:
    return {"HmacSignature": Adyen.util.generate_payload_sig(body, secret).decode(), "Protocol": "HmacSHA256"}


def adyen_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    return Adyen.util.is_valid_hmac_payload(headers["hmacsignature"], secret, body)


def gocardless_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    return did_not_raise(gocardless_pro.errors.InvalidSignatureError)(
        lambda: gocardless_pro.webhooks.parse(body, secret, headers["webhook-signature"])
    )


def mollie_sign(body: bytes, secret: str, _now: float) -> dict[str, str]:
    return {"X-Mollie-Signature": "sha256=" + SignatureValidator.create_signature(body.decode(), secret)}


def mollie_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    return did_not_raise(InvalidSignatureException)(
        lambda: SignatureValidator.validate(body.decode(), secret, headers["x-mollie-signature"])
    )


def razorpay_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    utility = razorpay.Client(auth=("id", "key")).utility
    return did_not_raise(razorpay.errors.SignatureVerificationError)(
        lambda: utility.verify_webhook_signature(body.decode(), headers["x-razorpay-signature"], secret)
    )


def coinbase_sign(body: bytes, secret: str, _now: float) -> dict[str, str]:
    return {"X-CC-Webhook-Signature": coinbase.WebhookSignature._compute_signature(body.decode(), secret)}


def coinbase_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    return did_not_raise(coinbase.SignatureVerificationError)(
        lambda: coinbase.Webhook.construct_event(body.decode(), headers["x-cc-webhook-signature"], secret)
    )


def paddle_sign(body: bytes, secret: str, now: float) -> dict[str, str]:
    from paddle_billing.Notifications.PaddleSignature import PaddleSignature

    signed = f"{int(now)}:".encode() + body
    signature = PaddleSignature.calculate_hmac(secret, signed).hexdigest()
    return {"Paddle-Signature": f"ts={int(now)};h1={'00' * 32};h1={signature}"}


def paddle_accepts(body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    from paddle_billing.Notifications import Secret, Verifier

    request = SimpleNamespace(headers={"Paddle-Signature": headers["paddle-signature"]}, body=body)
    return Verifier(5).verify(request, Secret(secret))


def hex_header(name: str) -> Callable[[bytes, str, float], dict[str, str]]:
    return lambda body, secret, _now: {name: mac(secret, body).hex()}


JUDGES = [
    Judge("stripe", "whsec_a+b/c==", stripe_sign, stripe_accepts, tolerance_s=300),
    Judge("square", "kPCn1Q8SgIgB0A==", square_sign, square_accepts),
    Judge("adyen", HEX_KEY, adyen_sign, adyen_accepts, {"scheme": "platforms"}),
    Judge("gocardless", "a secret", hex_header("Webhook-Signature"), gocardless_accepts),
    Judge("mollie", "a secret", mollie_sign, mollie_accepts, {"scheme": "next-gen"}),
    Judge("razorpay", "a secret", hex_header("X-Razorpay-Signature"), razorpay_accepts),
    Judge("coinbase-commerce", "a secret", coinbase_sign, coinbase_accepts),
    Judge("paddle", "pdl_ntfset_01_a+b/c", paddle_sign, paddle_accepts, tolerance_s=300),
]

judged = pytest.mark.parametrize(
    "judge", [pytest.param(one, marks=pytest.mark.judge(one.provider), id=one.provider) for one in JUDGES]
)


def sample(judge: Judge) -> bytes:
    """The recipe's sample, with characters and spacing that a parser would not preserve."""
    recipe = find_recipe(judge.provider)
    scheme = judge.settings.get("scheme")
    body = (recipe.schemes[scheme] if scheme else recipe).sample.body
    return body.replace(b"{", '{ "Жуковский":"✓",'.encode(), 1)


def by_library(judge: Judge, body: bytes, secret: str | None = None, now: float | None = None) -> Request:
    return make_request(body, judge.sign(body, secret or judge.secret, now or NOW))


@judged
def test_signatures_of_the_library_are_accepted(judge):
    verdict = verified(source(judge.provider, judge.secret, **judge.settings), by_library(judge, sample(judge)), NOW)
    assert verdict.grade is ProofStrength.BODY


@judged
def test_the_library_accepts_boathooks_signatures(judge):
    body, now = sample(judge), time.time()
    signed = signed_request(judge.provider, judge.secret, body, url=URL, timestamp=now, **judge.settings)
    assert signed.body == body
    assert judge.accepts(body, signed.headers, judge.secret)
    assert not judge.accepts(body + b" ", signed.headers, judge.secret), "the judge must be able to refuse"
    assert not judge.accepts(body, signed.headers, judge.secret[:-2] + "00"), "the judge must mind the key"


@judged
def test_a_body_with_one_byte_changed_is_refused(judge):
    verifier = source(judge.provider, judge.secret, **judge.settings)
    for request in altered(by_library(judge, sample(judge))):
        assert rejection_reason(verifier, request, NOW) is Reason.SIGNATURE_MISMATCH


@judged
def test_another_key_is_refused_and_a_rotated_one_is_not(judge):
    other = judge.secret[:-2] + "00"
    request = by_library(judge, sample(judge), secret=other)
    assert (
        rejection_reason(source(judge.provider, judge.secret, **judge.settings), request, NOW)
        is Reason.SIGNATURE_MISMATCH
    )
    verified(source(judge.provider, judge.secret, other, **judge.settings), request, NOW)


@judged
def test_a_request_without_its_signature_is_refused(judge):
    request = make_request(sample(judge), {})
    assert (
        rejection_reason(source(judge.provider, judge.secret, **judge.settings), request, NOW)
        is Reason.SIGNATURE_MISSING
    )


@judged
def test_a_stamp_is_minded_where_one_is_signed(judge):
    verifier = source(judge.provider, judge.secret, **judge.settings)
    for skew_s, reason in ((-900, Reason.TIMESTAMP_TOO_OLD), (900, Reason.TIMESTAMP_IN_FUTURE)):
        request = by_library(judge, sample(judge), now=NOW + skew_s)
        if judge.tolerance_s is None:
            assert verified(verifier, request, NOW).timestamp is None
        else:
            assert rejection_reason(verifier, request, NOW) is reason


@pytest.mark.parametrize(
    ("provider", "settings", "key", "type"),
    [
        ("stripe", {}, "evt_boathook-sample", "payment_intent.succeeded"),
        ("square", {}, "boathook-sample-0000-000000000000", "payment.updated"),
        ("mollie", {"scheme": "next-gen"}, "event_boathook-sample", "payment-link.paid"),
        ("razorpay", {}, "boathook-sample", "payment.captured"),
        ("coinbase-commerce", {}, "boathook-sample", "charge:confirmed"),
        ("paddle", {}, "evt_boathook-sample", "transaction.completed"),
        ("paddle-billing", {}, "evt_boathook-sample", "transaction.completed"),
    ],
)
def test_samples_are_named_by_their_sender(provider, settings, key, type):
    request = from_signed(signed_request(provider, "a secret", url=URL, timestamp=NOW, **settings))
    verdict = verified(source(provider, "a secret", **settings), request, NOW)
    assert (verdict.dedup_key, verdict.type, verdict.items, verdict.reply) == (key, type, (), None)


def test_stripe_signs_under_two_secrets_while_one_is_rotated():
    signed = signed_request("stripe", ["whsec_new", "whsec_old"], timestamp=NOW)
    for secret in ("whsec_new", "whsec_old"):
        verified(source("stripe", secret), from_signed(signed), NOW)
    assert stripe_accepts(signed.body, signed.headers, "whsec_old")


def test_the_count_of_pending_webhooks_is_no_conflict():
    assert "pending_webhooks" in stripe.Event.__annotations__
    assert find_recipe("stripe").volatile == ("pending_webhooks",)


def test_square_signs_the_address():
    body = find_recipe("square").sample.body
    request = from_signed(signed_request("square", "a secret", body, url=URL))
    elsewhere = replace(request, url=URL.replace("shop=1", "shop=2"))
    assert rejection_reason(source("square", "a secret"), elsewhere, NOW) is Reason.SIGNATURE_MISMATCH
    assert find_recipe("square").signs_url


def test_razorpay_replay_key_is_the_body():
    first = from_signed(signed_request("razorpay", "a secret", id="one"))
    again = replace(first, headers={**first.headers, "x-razorpay-event-id": "two"})
    verdicts = [verified(source("razorpay", "a secret"), request, NOW) for request in (first, again)]
    assert [verdict.dedup_key for verdict in verdicts] == ["one", "two"]
    assert verdicts[0].replay_material == verdicts[1].replay_material is not None


def test_gocardless_batches_are_split_into_items():
    events = [
        {"id": "EV1", "resource_type": "payments", "action": "confirmed"},
        {"id": "EV2", "resource_type": "mandates", "action": "cancelled"},
    ]
    body = json.dumps({"events": events, "meta": {"webhook_id": "WB1"}}).encode()
    verdict = verified(
        source("gocardless", "a secret"), from_signed(signed_request("gocardless", "a secret", body)), NOW
    )
    assert [(item.path, item.type, item.dedup_key) for item in verdict.items] == [
        ("events.0", "payments.confirmed", "item:EV1"),
        ("events.1", "mandates.cancelled", "item:EV2"),
    ]
    read = gocardless_pro.webhooks.parse(body, "a secret", mac("a secret", body).hex())
    assert [event.id for event in read] == ["EV1", "EV2"]


@pytest.mark.judge("mollie")
@pytest.mark.parametrize("form", ["{}", "sha256={}", "sha256={}, {}", "{},0000", "md5={}, {}"])
def test_mollie_signatures_need_no_prefix(form):
    """As in https://docs.mollie.com/reference/webhooks-best-practices, where the digest is compared alone."""
    body = b'{"id":"event_1","type":"payment-link.paid"}'
    digest = SignatureValidator.create_signature(body.decode(), "a secret")
    header = form.replace("{}", digest)
    assert SignatureValidator.validate(body.decode(), "a secret", [part.strip() for part in header.split(",")])
    verified(source("mollie", "a secret", scheme="next-gen"), make_request(body, {"x-mollie-signature": header}), NOW)


@pytest.mark.parametrize("header", ["md5={}", "SHA256={}", "sha256=sha256={}", "", "sha256="])
def test_mollie_signatures_of_another_form_are_refused(header):
    body = b'{"id":"event_1","type":"payment-link.paid"}'
    header = header.replace("{}", SignatureValidator.create_signature(body.decode(), "a secret"))
    sent = make_request(body, {"x-mollie-signature": header})
    assert rejection_reason(source("mollie", "a secret", scheme="next-gen"), sent, NOW)


@pytest.mark.judge("mollie")
def test_mollie_classic_webhooks_are_never_duplicates():
    # The request of https://docs.mollie.com/reference/webhooks
    request = make_request(
        b"id=tr_5B8cwPMGnU6qLbRvo7qEZo", {"content-type": FORM, "user-agent": "Mollie HTTP client/1.0"}
    )
    verifier = source("mollie", unsigned=True)
    verdicts = [verified(verifier, request, NOW + later) for later in (0.0, 60.0)]
    assert verdicts[0].grade is ProofStrength.NONE
    assert verdicts[0].dedup_key != verdicts[1].dedup_key


def test_mollie_classic_webhooks_need_unsigned():
    with pytest.raises(ConfigError, match="unsigned"):
        source("mollie")


# Adyen, item by item.


def adyen_body(*items: dict[str, Any], key: str = HEX_KEY) -> bytes:
    """A notification with items signed by Adyen's library."""
    signed = [
        {**item, "additionalData": {"hmacSignature": Adyen.util.generate_notification_sig(item, key).decode()}}
        for item in items
    ]
    return json.dumps(
        {"live": "false", "notificationItems": [{"NotificationRequestItem": one} for one in signed]}
    ).encode()


PAID: dict[str, Any] = {
    "amount": {"value": 1099, "currency": "EUR"},
    "eventCode": "AUTHORISATION",
    "eventDate": "2026-11-21T10:00:00+01:00",
    "merchantAccountCode": "Shop",
    "merchantReference": "order:1\\ö",
    "originalReference": "",
    "pspReference": "7914073381342284",
    "success": "true",
}
REFUNDED = {**PAID, "eventCode": "REFUND", "pspReference": "853587031437598F", "originalReference": "7914073381342284"}


@pytest.mark.judge("adyen")
def test_adyens_items_are_each_verified_and_named():
    verdict = verified(source("adyen", HEX_KEY), make_request(adyen_body(PAID, REFUNDED), {}), NOW)
    assert verdict.grade is ProofStrength.METADATA
    assert [(item.type, item.dedup_key) for item in verdict.items] == [
        ("AUTHORISATION", "item:7914073381342284.AUTHORISATION.true"),
        ("REFUND", "item:853587031437598F.REFUND.true"),
    ]
    assert verdict.reply is not None
    assert (verdict.reply.status, verdict.reply.body) == (200, b"[accepted]")


@pytest.mark.judge("adyen")
def test_adyen_takes_the_items_boathook_signs():
    plain = json.dumps({"notificationItems": [{"NotificationRequestItem": one} for one in (PAID, REFUNDED)]}).encode()
    signed = signed_request("adyen", HEX_KEY, plain)
    for one in json.loads(signed.body)["notificationItems"]:
        assert Adyen.util.is_valid_hmac_notification(one["NotificationRequestItem"], HEX_KEY)
        changed = {**one["NotificationRequestItem"], "success": "false"}
        assert not Adyen.util.is_valid_hmac_notification(changed, HEX_KEY)


@pytest.mark.parametrize("name", ["pspReference", "eventCode", "success", "merchantReference", "amount"])
def test_one_forged_item_among_genuine_ones_refuses_all(name):
    document = json.loads(adyen_body(PAID, REFUNDED))
    item = document["notificationItems"][1]["NotificationRequestItem"]
    item[name] = {"value": 1, "currency": "EUR"} if name == "amount" else item[name] + "x"
    verifier = source("adyen", HEX_KEY)
    assert rejection_reason(verifier, make_request(json.dumps(document).encode(), {}), NOW) is Reason.SIGNATURE_MISMATCH


def test_an_item_without_signature_or_no_item_at_all_is_refused():
    verifier = source("adyen", HEX_KEY)
    document = json.loads(adyen_body(PAID, REFUNDED))
    del document["notificationItems"][1]["NotificationRequestItem"]["additionalData"]
    for body in (json.dumps(document).encode(), b'{"notificationItems":[]}', b'{"notificationItems":{}}', b"[]", b"no"):
        assert rejection_reason(verifier, make_request(body, {}), NOW) is Reason.SIGNATURE_MISSING


def test_mutant_checking_only_the_first_adyen_item_accepts_forged_ones(monkeypatch):
    """Like `Adyen.util.is_valid_hmac_notification`."""
    document = json.loads(adyen_body(PAID, REFUNDED))
    document["notificationItems"][1]["NotificationRequestItem"]["amount"]["value"] = 9_999_999
    forged = json.dumps(document).encode()
    assert Adyen.util.is_valid_hmac_notification(json.loads(forged), HEX_KEY)
    assert rejection_reason(source("adyen", HEX_KEY), make_request(forged, {}), NOW) is Reason.SIGNATURE_MISMATCH
    first_only = replace(
        payments.ADYEN,
        proof=replace(
            payments.ADYEN.proof, read_signed_parts=lambda reader, key: payments.state_items(reader, key)[:1]
        ),
    )
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: first_only)
    assert len(verified(source("adyen", HEX_KEY), make_request(forged, {}), NOW).items) == 2


def test_an_adyen_event_sent_again_with_another_date_is_the_same():
    later = {**PAID, "eventDate": "2026-11-21T11:00:00+01:00"}
    verifier = source("adyen", HEX_KEY)
    one, two = (verified(verifier, make_request(adyen_body(item), {}), NOW).items[0] for item in (PAID, later))
    assert (one.dedup_key, one.digest) == (two.dedup_key, two.digest)


@pytest.mark.judge("adyen")
def test_adyens_key_is_hexadecimal():
    with pytest.raises(ConfigError, match="hexadecimal"):
        source("adyen", "not hexadecimal")


# Braintree.

GATEWAY = braintree.BraintreeGateway(
    braintree.Configuration(
        braintree.Environment.Sandbox,
        merchant_id="merchant",
        public_key="our_public_key",
        private_key="our private key",
    )
)
PUBLIC, PRIVATE = "our_public_key", "our private key"


def braintree_request(kind: str, **changes: str) -> Request:
    """A notification that Braintree's library has made and signed."""
    made = GATEWAY.webhook_testing.sample_notification(kind, "an-id")
    fields = {"bt_signature": made["bt_signature"], "bt_payload": made["bt_payload"].decode()} | changes
    return make_request(urlencode(fields).encode(), {"content-type": FORM})


@pytest.mark.judge("braintree")
@pytest.mark.parametrize(
    "kind", ["subscription_went_past_due", "dispute_opened", "check", "transaction_disbursed", "oauth_access_revoked"]
)
def test_braintree_signatures_are_accepted(kind):
    verdict = verified(source("braintree", PRIVATE, public_key=PUBLIC), braintree_request(kind), NOW)
    assert (verdict.grade, verdict.type) == (ProofStrength.BODY, kind)


@pytest.mark.judge("braintree")
def test_braintree_accepts_boathooks_signatures():
    signed = signed_request("braintree", PRIVATE, public_key=PUBLIC)
    fields = {name: values[0] for name, values in parse_qs(signed.body.decode()).items()}
    notification = GATEWAY.webhook_notification.parse(fields["bt_signature"], fields["bt_payload"])
    assert notification.kind == "subscription_went_past_due"
    assert verified(source("braintree", PRIVATE, public_key=PUBLIC), from_signed(signed), NOW).type == notification.kind
    with pytest.raises(InvalidSignatureError):
        GATEWAY.webhook_notification.parse(fields["bt_signature"], "A" + fields["bt_payload"][1:])


@pytest.mark.judge("braintree")
def test_a_newline_that_the_form_lost_is_put_back():
    payload = GATEWAY.webhook_testing.sample_notification("check", "an-id")["bt_payload"].decode()
    request = braintree_request("check", bt_payload=payload.removesuffix("\n"))
    verified(source("braintree", PRIVATE, public_key=PUBLIC), request, NOW)


def test_invalid_braintree_requests_are_refused():
    verifier = source("braintree", PRIVATE, public_key=PUBLIC)
    good = braintree_request("check")
    for request in altered(good):
        assert isinstance(verifier.verify(request, NOW), Rejected)
    assert (
        rejection_reason(source("braintree", "another key", public_key=PUBLIC), good, NOW) is Reason.SIGNATURE_MISMATCH
    )
    assert rejection_reason(source("braintree", PRIVATE, public_key="other"), good, NOW) is Reason.UNKNOWN_SCHEME
    assert rejection_reason(verifier, braintree_request("check", bt_payload=""), NOW) is Reason.SIGNATURE_MISSING
    assert rejection_reason(verifier, braintree_request("check", bt_payload="<xml/>"), NOW) is Reason.SIGNATURE_MISSING
    assert rejection_reason(verifier, make_request(b"{}", {}), NOW) is Reason.SIGNATURE_MISSING


def test_braintree_needs_the_public_key():
    with pytest.raises(ConfigError, match="public_key"):
        source("braintree", PRIVATE)


def challenge(text: str) -> Request:
    return make_request(b"", {}, url=f"{ADDRESS}?bt_challenge={quote(text)}", method="GET")


@pytest.mark.judge("braintree")
def test_a_challenge_is_answered_as_braintree_does():
    verifier = source("braintree", PRIVATE, public_key=PUBLIC)
    text = "20f9f8ed05f77439fe955c977e4c8a53"
    answer = verifier.verify(challenge(text), NOW)
    assert isinstance(answer, Challenge)
    assert (answer.status, answer.body.decode()) == (200, GATEWAY.webhook_notification.verify(text))
    assert "GET" in verifier.methods


@pytest.mark.parametrize(
    "text", ["", "short", "G" * 24, "a" * 19, "a" * 33, "a" * 24 + "\n", "a" * 24 + "+/==", "Ж" * 24, "A" * 24]
)
def test_a_challenge_in_another_alphabet_is_not_signed(text):
    verdict = source("braintree", PRIVATE, public_key=PUBLIC).verify(challenge(text), NOW)
    assert isinstance(verdict, Rejected)
    if text and text != "a" * 24 + "\n":
        with pytest.raises(InvalidChallengeError):
            GATEWAY.webhook_notification.verify(text)


def forge(payload: str, answer: Challenge) -> Request:
    """An event whose payload and signature are a challenge and its response."""
    fields = {"bt_signature": answer.body.decode(), "bt_payload": payload}
    return make_request(urlencode(fields).encode(), {"content-type": FORM})


def test_an_answered_challenge_is_no_signed_event():
    verifier = source("braintree", PRIVATE, public_key=PUBLIC)
    text = "a" * 24
    answer = verifier.verify(challenge(text), NOW)
    assert isinstance(answer, Challenge)
    for payload in (text, text + "\n"):
        assert rejection_reason(verifier, forge(payload, answer), NOW) is Reason.SIGNATURE_MISMATCH


def test_mutant_with_a_wider_alphabet_a_challenge_would_sign_an_event(monkeypatch):
    shake = payments.BRAINTREE.handshakes[0]
    any_text = replace(shake, answer=replace(shake.answer, allowed=re.compile(r"[\s\S]+")))
    careless = replace(payments.BRAINTREE, handshakes=(any_text,))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: careless)
    verifier = source("braintree", PRIVATE, public_key=PUBLIC)
    payload = base64.encodebytes(b"<notification><kind>disbursement</kind></notification>").decode()
    answer = verifier.verify(challenge(payload), NOW)
    assert isinstance(answer, Challenge)
    assert verified(verifier, forge(payload, answer), NOW).type == "disbursement"


def test_a_kind_inside_the_subject_is_not_the_notifications():
    xml = b"<notification><subject><dispute><kind>chargeback</kind></dispute></subject><kind>dispute_won</kind></notification>"
    signed = signed_request(
        "braintree", PRIVATE, urlencode({"bt_payload": base64.encodebytes(xml).decode()}).encode(), public_key=PUBLIC
    )
    assert verified(source("braintree", PRIVATE, public_key=PUBLIC), from_signed(signed), NOW).type == "dispute_won"


# PayPal.

WEBHOOK_ID = "1JE4291016473214C"
CERT_URL = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-1d93a270"
EVENT = '{"id":"WH-2WR32451HC0233532-67976317FL4543714","event_type":"PAYMENT.CAPTURE.COMPLETED","note":"Жуковский ✓"}'


@pytest.fixture(scope="module")
def paypal_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


def certificate(key: rsa.RSAPrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "messageverificationcerts.paypal.com")])
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=today - timedelta(days=1),
        not_valid_after=today + timedelta(days=1),
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def paypal_request(
    key: rsa.RSAPrivateKey, *, now: float = NOW, webhook_id: str = WEBHOOK_ID, **changes: str
) -> Request:
    """A transmission whose signed bytes are built by PayPal's library."""
    stamp = datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z")
    identifier = "69cd13f0-d67a-11e5-baa3-778b53f4ae55"
    signed = paypalrestsdk.WebhookEvent._get_expected_sig(identifier, stamp, webhook_id, EVENT)
    signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    headers = {
        "PAYPAL-TRANSMISSION-ID": identifier,
        "PAYPAL-TRANSMISSION-TIME": stamp,
        "PAYPAL-TRANSMISSION-SIG": base64.b64encode(signature).decode(),
        "PAYPAL-CERT-URL": CERT_URL,
        "PAYPAL-AUTH-ALGO": "SHA256withRSA",
    }
    return make_request(EVENT.encode(), headers | changes)


def paypal_source(key: rsa.RSAPrivateKey) -> Any:
    ring = KeyRing()
    ring.put(CERT_URL, certificate(key), NOW)
    return source("paypal", ring=ring, webhook_id=WEBHOOK_ID)


@pytest.mark.judge("paypal")
def test_paypal_signatures_are_accepted(paypal_key):
    verdict = verified(paypal_source(paypal_key), paypal_request(paypal_key), NOW)
    assert (verdict.grade, verdict.type) == (ProofStrength.METADATA, "PAYMENT.CAPTURE.COMPLETED")
    assert verdict.dedup_key == "WH-2WR32451HC0233532-67976317FL4543714"
    assert verdict.timestamp == datetime.fromtimestamp(int(NOW), UTC)


@pytest.mark.judge("paypal")
def test_paypals_library_expects_boathooks_signatures():
    keys = make_keys("paypal", webhook_id=WEBHOOK_ID)
    signed = signed_request("paypal", keys.private, EVENT.encode(), webhook_id=WEBHOOK_ID, timestamp=NOW)
    expected = paypalrestsdk.WebhookEvent._get_expected_sig(
        signed.headers["paypal-transmission-id"], signed.headers["paypal-transmission-time"], WEBHOOK_ID, EVENT
    )
    public = x509.load_pem_x509_certificate(keys.public.encode()).public_key()
    assert isinstance(public, rsa.RSAPublicKey)
    signature = base64.b64decode(signed.headers["paypal-transmission-sig"])
    public.verify(signature, expected.encode(), padding.PKCS1v15(), hashes.SHA256())
    with pytest.raises(InvalidSignature):
        public.verify(signature, expected.encode() + b"0", padding.PKCS1v15(), hashes.SHA256())


def test_invalid_paypal_requests_are_refused(paypal_key):
    verifier, good = paypal_source(paypal_key), paypal_request(paypal_key)
    for request in altered(good):
        assert rejection_reason(verifier, request, NOW) is Reason.SIGNATURE_MISMATCH
    other_key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    assert rejection_reason(verifier, paypal_request(other_key), NOW) is Reason.SIGNATURE_MISMATCH
    other_hook = paypal_request(paypal_key, webhook_id="0AB00000000000000")
    assert rejection_reason(verifier, other_hook, NOW) is Reason.SIGNATURE_MISMATCH
    sha1 = paypal_request(paypal_key, **{"PAYPAL-AUTH-ALGO": "SHA1withRSA"})
    assert rejection_reason(verifier, sha1, NOW) is Reason.UNKNOWN_SCHEME
    old = paypal_request(paypal_key, now=NOW - 5 * 86_400)
    assert rejection_reason(verifier, old, NOW) is Reason.TIMESTAMP_TOO_OLD


def test_a_retry_with_its_first_stamp_is_taken_three_days_later(paypal_key):
    verified(paypal_source(paypal_key), paypal_request(paypal_key, now=NOW - 3 * 86_400), NOW)


def test_an_unknown_paypal_certificate_is_requested(paypal_key):
    verdict = source("paypal", webhook_id=WEBHOOK_ID).verify(paypal_request(paypal_key), NOW)
    assert verdict == KeyRequired(url=CERT_URL)


@pytest.mark.parametrize(
    "url",
    [
        "http://api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1",
        "https://evil.example/api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com@evil.example/v1/notifications/certs/CERT-1",
        "https://apixpaypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com:8443/v1/notifications/certs/CERT-1",
        "https://api.paypal.com/v1/notifications/certs/../../x",
        "https://api.paypal.com/v1/notifications/certs/CERT-1?x=1",
        "https://api.paypal.com/v1/notifications/certs/CERT-1\n",
        "https://www.paypal.com/v1/notifications/certs/CERT-1",
    ],
)
def test_a_forged_request_cannot_choose_the_certificate_url(paypal_key, url):
    request = paypal_request(paypal_key, **{"PAYPAL-CERT-URL": url})
    assert rejection_reason(source("paypal", webhook_id=WEBHOOK_ID), request, NOW) is Reason.SIGNATURE_MALFORMED


@pytest.mark.parametrize(
    "host", ["api.paypal.com", "api.sandbox.paypal.com", "api-m.paypal.com", "api-m.sandbox.paypal.com"]
)
def test_certificates_are_requested_from_paypals_hosts(paypal_key, host):
    url = f"https://{host}/v1/notifications/certs/CERT-360caa42-fca2a594-1d93a270"
    verdict = source("paypal", webhook_id=WEBHOOK_ID).verify(
        paypal_request(paypal_key, **{"PAYPAL-CERT-URL": url}), NOW
    )
    assert verdict == KeyRequired(url=url)


def forge_checksum(template: bytes, wanted: int) -> bytes:
    """Fill the last run of ``a`` in *template* with letters ``a`` and ``c`` such that its CRC-32 is *wanted*.

    Changing one letter changes the checksum by a fixed pattern, whatever the others are: 32 linear equations.
    """
    places = [index for index, byte in enumerate(template) if byte == ord("a")][-48:]
    base = zlib.crc32(template)
    flipped = [template[:place] + b"c" + template[place + 1 :] for place in places]
    rows: dict[int, tuple[int, int]] = {}
    for index, body in enumerate(flipped):
        effect, chosen = zlib.crc32(body) ^ base, 1 << index
        while effect and effect.bit_length() in rows:
            pattern, with_letters = rows[effect.bit_length()]
            effect, chosen = effect ^ pattern, chosen ^ with_letters
        if effect:
            rows[effect.bit_length()] = (effect, chosen)
    missing, letters = wanted ^ base, 0
    while missing:
        pattern, with_letters = rows[missing.bit_length()]
        missing, letters = missing ^ pattern, letters ^ with_letters
    forged = bytearray(template)
    for index, place in enumerate(places):
        forged[place] = ord("c") if letters >> index & 1 else ord("a")
    return bytes(forged)


def forged_from(good: Request) -> Request:
    """Another id and amount under a captured signature, which only PayPal could have made."""
    template = b'{"id":"WH-forged","event_type":"PAYMENT.CAPTURE.COMPLETED","amount":"9999.00","x":"%s"}' % (b"a" * 48)
    body = forge_checksum(template, zlib.crc32(good.body))
    assert zlib.crc32(body) == zlib.crc32(good.body)
    return replace(good, body=body)


def test_a_forgery_by_paypals_weak_checksum_counts_as_a_replay(paypal_key):
    verifier, good = paypal_source(paypal_key), paypal_request(paypal_key)
    genuine, forged = (verified(verifier, request, NOW) for request in (good, forged_from(good)))
    assert (forged.dedup_key, forged.grade) == ("WH-forged", ProofStrength.METADATA)
    assert genuine.replay_material == forged.replay_material is not None


def test_mutant_without_once_only_signatures_the_forgery_is_an_event(paypal_key, monkeypatch):
    careless = replace(payments.PAYPAL, proof=replace(payments.PAYPAL.proof, is_signed_once=False))
    monkeypatch.setattr("boathook.verification.source.find_recipe", lambda _name: careless)
    verifier, good = paypal_source(paypal_key), paypal_request(paypal_key)
    genuine, forged = (verified(verifier, request, NOW) for request in (good, forged_from(good)))
    assert genuine.replay_material != forged.replay_material


# All of the family.


@pytest.mark.parametrize("recipe", payments.RECIPES, ids=lambda recipe: recipe.name)
def test_replies_are_200_and_there_are_no_stop_statuses(recipe):
    for one in (recipe, *recipe.schemes.values()):
        assert one.reply is None or one.reply.status == 200
        assert one.checked
        assert not one.stop_statuses
