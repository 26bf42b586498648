"""Recipes of payment providers."""

import re
import zlib
from base64 import b64decode
from typing import Final

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.providers.event_types import PADDLE_TYPES, STRIPE_TYPES
from boathook.providers.options import Options
from boathook.providers.recipe import (
    PLAIN_TEXT,
    BatchItems,
    BodyFormat,
    Confidence,
    EventId,
    EventType,
    ExpectedReply,
    Handshake,
    Recipe,
    Sample,
    SecretForm,
    Setting,
    SignText,
)
from boathook.providers.request_reader import Form, Header, Json, Query, RequestReader
from boathook.providers.schemes import (
    Asymmetric,
    FetchedKey,
    FieldMac,
    Hmac,
    KeyedPairs,
    NoProof,
    Pairs,
    Plain,
    SignatureAlgorithm,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    SignedTimestamp,
    TimestampFormat,
)

FORM: Final = "application/x-www-form-urlencoded"
STRIPE: Final = Recipe(
    name="stripe",
    title="Stripe",
    docs="https://docs.stripe.com/webhooks",
    grade=ProofStrength.BODY,
    # The whole whsec_… string is the key, as text. v0 signatures belong to old test events and are ignored.
    proof=Hmac(
        headers=(SignatureHeaders(signature="stripe-signature"),),
        form=Pairs(signature="v1", timestamp="t"),
        template="{timestamp}.{body}",
    ),
    sample=Sample(
        body=b'{"id":"evt_boathook-sample","object":"event","type":"payment_intent.succeeded","created":1763700000,'
        b'"data":{"object":{"id":"pi_boathook-sample","amount":1099,"currency":"eur"}}}',
        secret="whsec_boathook-sample-secret",
    ),
    id=EventId(selectors=(Json("id"),)),
    type=EventType(
        selectors=(Json("type"),),
        known=tuple(STRIPE_TYPES),
        rests=STRIPE_TYPES,
    ),
    volatile=("pending_webhooks",),
    secret_form=SecretForm(
        prefix="whsec_",
        others={"sk_": "an API key", "rk_": "an API key", "pk_": "a publishable key", "we_": "an endpoint's id"},
    ),
    answer_within_s=30.0,
    retries="for up to 3 days with backoff; each attempt has a new signature",
    retries_for_days=3.0,
    checked=("stripe (Python), both ways",),
    confidence={"answer_within_s": Confidence.SECONDARY},
    setup=(
        "In Stripe's Dashboard open Workbench, then Webhooks, and add a webhook endpoint as destination.",
        "Enter {url} as the endpoint's URL and choose the events that your handlers process.",
        (
            "Reveal the endpoint's signing secret and copy all of it, whsec_ included, into the source's "
            "secrets. Each endpoint has its own secret, in test mode and in live mode."
        ),
        (
            "To rotate, roll the secret in Workbench with a delay of up to 24 hours, during which Stripe signs "
            "with both secrets."
        ),
    ),
)


def _state_transmission(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes of PayPal: two headers, the webhook's id and a CRC-32 of the body.

    https://developer.paypal.com/api/rest/webhooks/rest/; the same in its SDK for Python, ``paypalrestsdk``.
    """
    identifier = reader.request.headers.get("paypal-transmission-id")
    sent_at = reader.request.headers.get("paypal-transmission-time")
    if not identifier or not sent_at:
        return "there is no header paypal-transmission-id or paypal-transmission-time"
    checksum = zlib.crc32(reader.request.body)
    signed = f"{identifier}|{sent_at}|{reader.settings['webhook_id']}|{checksum}"
    return (SignedPart(Header("paypal-transmission-sig"), signed.encode()),)


def _choose_scheme(reader: RequestReader) -> SignatureAlgorithm | str:
    name = reader.request.headers.get("paypal-auth-algo", "")
    return (
        SignatureAlgorithm.RSA_SHA256 if name == "SHA256withRSA" else "the header paypal-auth-algo is not SHA256withRSA"
    )


PAYPAL: Final = Recipe(
    name="paypal",
    title="PayPal",
    docs="https://developer.paypal.com/api/rest/webhooks/rest/",
    # A CRC-32 protects the body only against accidents: with one signed request, an attacker can make others that
    # match.
    grade=ProofStrength.METADATA,
    proof=Asymmetric(
        read_signed_parts=_state_transmission,
        scheme=_choose_scheme,
        key=FetchedKey(
            selector=Header("paypal-cert-url"),
            pattern=re.compile(
                r"https://api(-m)?(\.sandbox)?\.paypal\.com/v1/notifications/certs/CERT-[A-Za-z0-9-]{1,100}"
            ),
        ),
        # It is not documented whether retries have new timestamps, so the window is longer than the retry period.
        timestamp=SignedTimestamp(
            selector=Header("paypal-transmission-time"), unit=TimestampFormat.ISO, tolerance_s=4 * 86_400.0
        ),
        proof_headers=(
            "paypal-transmission-sig",
            "paypal-transmission-id",
            "paypal-transmission-time",
            "paypal-cert-url",
            "paypal-auth-algo",
        ),
        # Each transmission has its own id, so a forgery can only repeat a captured one.
        is_signed_once=True,
    ),
    sample=Sample(
        body=b'{"id":"WH-boathook-sample","event_version":"1.0","create_time":"2026-11-21T10:00:00.000Z",'
        b'"resource_type":"capture","event_type":"PAYMENT.CAPTURE.COMPLETED","summary":"Payment completed",'
        b'"resource":{"id":"42311647XV020574X","amount":{"currency_code":"EUR","value":"10.99"},"status":"COMPLETED"}}',
        headers={
            "paypal-transmission-id": "69cd13f0-d67a-11e5-baa3-778b53f4ae55",
            "paypal-cert-url": "https://api.paypal.com/v1/notifications/certs/CERT-boathook-sample",
            "paypal-auth-algo": "SHA256withRSA",
        },
        settings={"webhook_id": "1JE4291016473214C"},
    ),
    id=EventId(selectors=(Json("id"),), is_signed=False),
    type=EventType(selectors=(Json("event_type"),)),
    settings=(
        Setting(
            name="webhook_id",
            help="The webhook's id from the developer dashboard, which PayPal includes in the signed bytes",
            is_required=True,
        ),
    ),
    answer_within_s=30.0,
    retries="up to 25 times in 3 days",
    retries_for_days=3.0,
    checked=("paypalrestsdk (Python) for the signed bytes, both ways; RSA and certificate by cryptography",),
    confidence={"answer_within_s": Confidence.MEMORY},
    setup=(
        "In PayPal's Developer Dashboard open the app (Sandbox or Live), and add a webhook.",
        "Enter {url} and choose the event types.",
        (
            "Set webhook_id of the source to the webhook's ID, which is part of the signed bytes. There is no "
            "secret; boathook fetches PayPal's certificate automatically."
        ),
        (
            "The signature covers only a CRC-32 of the body: if money is involved, fetch the resource from "
            "PayPal's API. Requests of PayPal's webhook simulator have no valid signature and are rejected."
        ),
    ),
)

SQUARE: Final = Recipe(
    name="square",
    title="Square",
    docs="https://developer.squareup.com/docs/webhooks/step3validate",
    grade=ProofStrength.BODY,
    # The URL is signed as registered, so the source needs its public URL.
    proof=Hmac(
        headers=(SignatureHeaders(signature="x-square-hmacsha256-signature"),),
        template="{url}{body}",
        encoding=Encoding.BASE64,
    ),
    sample=Sample(
        body=b'{"merchant_id":"6SSW7HV8K2ST5","type":"payment.updated","event_id":"boathook-sample-0000-000000000000",'
        b'"created_at":"2026-11-21T10:00:00Z","data":{"type":"payment","id":"hYy9pRFVxpDsO1FB05SunFWUe9JZY",'
        b'"object":{"payment":{"status":"COMPLETED","amount_money":{"amount":1099,"currency":"USD"}}}}}'
    ),
    id=EventId(selectors=(Json("event_id"),)),
    type=EventType(selectors=(Json("type"),)),
    keep=(
        "square-environment",
        "square-initial-delivery-timestamp",
        "square-retry-number",
        "square-retry-reason",
    ),
    answer_within_s=10.0,
    retries="for up to 24 hours with backoff; disabled after 3 weeks of failures",
    retries_for_days=1.0,
    checked=("squareup (Python): it accepts what boathook signs", "requests built by hand from its documentation"),
    setup=(
        "In Square's Developer Console open the application, then Webhooks, Subscriptions, and add a subscription.",
        ("Enter {url} exactly as shown here, and set public_url to its base URL: Square signs the URL."),
        "Choose the events, then copy the signature key into the source's secrets.",
    ),
)

_ADYEN_SIGNED: Final = (
    "pspReference",
    "originalReference",
    "merchantAccountCode",
    "merchantReference",
    "amount.value",
    "amount.currency",
    "eventCode",
    "success",
)
_ADYEN_PLAIN: Final = tuple(name for name in _ADYEN_SIGNED if name not in {"merchantReference", "amount.value"})
_MAX_ADYEN_ITEMS: Final = 100
"""JSON notifications contain one item, SOAP notifications at most six."""


def state_items(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes of each item of Adyen: eight of its fields joined by colons, empty if absent.

    https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures
    """
    items = reader.value(Json("notificationItems"))
    if not isinstance(items, list) or not items:
        return "the body has no notificationItems"
    if len(items) > _MAX_ADYEN_ITEMS:
        return f"the body has {len(items)} notificationItems; at most {_MAX_ADYEN_ITEMS} are read"
    paths = [f"notificationItems.{index}.NotificationRequestItem" for index in range(len(items))]
    for path in paths:
        if any(not _is_plain(reader.value(Json(f"{path}.{name}"))) for name in _ADYEN_PLAIN):
            return f"in {path}, one of {', '.join(_ADYEN_PLAIN)} is not text or contains a colon"
    return tuple(_state_item(reader, path) for path in paths)


def _is_plain(value: object) -> bool:
    # Another representation or split of the same signed text would give the item another key.
    return value is None or (isinstance(value, str) and ":" not in value)


def _state_item(reader: RequestReader, path: str) -> SignedPart:
    signed = ":".join(reader.text(Json(f"{path}.{name}")) or "" for name in _ADYEN_SIGNED)
    return SignedPart(Json(f"{path}.additionalData.hmacSignature"), signed.encode())


_ADYEN_PLATFORMS: Final = Recipe(
    name="adyen",
    title="Adyen for Platforms, Management and Banking",
    docs="https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="hmacsignature"),), encoding=Encoding.BASE64, key_form=KeyFormat.HEX
    ),
    sample=Sample(
        body=b'{"type":"balancePlatform.transfer.created","environment":"test","data":{"id":"boathook-sample",'
        b'"status":"authorised","amount":{"value":1099,"currency":"EUR"}}}',
        secret="44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
    ),
    type=EventType(selectors=(Json("type"),)),
    answer_within_s=10.0,
    retries="3 immediately, then for 30 days at intervals of 2 minutes to 8 hours; later items wait for the oldest",
    retries_for_days=30.0,
    checked=("Adyen (Python), both ways",),
)

ADYEN: Final = Recipe(
    name="adyen",
    title="Adyen",
    docs="https://docs.adyen.com/development-resources/webhooks/secure-webhooks/verify-hmac-signatures",
    grade=ProofStrength.METADATA,
    proof=FieldMac(read_signed_parts=state_items, encoding=Encoding.BASE64, key_form=KeyFormat.HEX),
    sample=Sample(
        body=b'{"live":"false","notificationItems":[{"NotificationRequestItem":{"additionalData":{},'
        b'"amount":{"value":1099,"currency":"EUR"},"eventCode":"AUTHORISATION","eventDate":"2026-11-21T10:00:00+01:00",'
        b'"merchantAccountCode":"SampleMerchant","merchantReference":"order-1","paymentMethod":"visa",'
        b'"pspReference":"boathook-sample","success":"true"}}]}',
        secret="44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
    ),
    # A payment may fail and then succeed; both count.
    items=BatchItems(
        paths=("notificationItems.*",),
        id=EventId(
            selectors=(
                (
                    Json("NotificationRequestItem.pspReference"),
                    Json("NotificationRequestItem.eventCode"),
                    Json("NotificationRequestItem.success"),
                ),
            )
        ),
        type=EventType(selectors=(Json("NotificationRequestItem.eventCode"),)),
    ),
    type=EventType(selectors=(Json("notificationItems.0.NotificationRequestItem.eventCode"),)),
    volatile=("notificationItems.*.NotificationRequestItem.eventDate",),
    # Any 2xx is accepted now; webhooks that were set up long ago still require this body.
    reply=ExpectedReply(body=("[accepted]",)),
    schemes={"platforms": _ADYEN_PLATFORMS},
    answer_within_s=10.0,
    retries="3 immediately, then for 30 days at intervals of 2 minutes to 8 hours; later items wait for the oldest",
    retries_for_days=30.0,
    checked=("Adyen (Python), both ways, item by item",),
    confidence={"reply": Confidence.SECONDARY},
    setup=(
        "In Adyen's Customer Area open Developers, then Webhooks, and add a Standard webhook.",
        "Enter {url}, the method JSON, and choose the events.",
        (
            "Under Security generate an HMAC key, which is hexadecimal, and copy it into the source's secrets. "
            "Webhooks of Platforms, Management and Banking use another scheme: for them set scheme = "
            '"platforms".'
        ),
        "Adyen retries only the oldest failed item and delays later ones, so one rejected item blocks all others.",
    ),
)

BRAINTREE_CHALLENGE: Final = re.compile(r"[a-f0-9]{20,32}")
"""The challenge in Braintree's verification request, which the reply signs."""
_BRAINTREE_PAYLOAD: Final = re.compile(r"[A-Za-z0-9+/=\n]+\n")
"""Signed payloads end in a newline; challenges never do, so the reply to a challenge never signs an event."""


def _state_payload(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes of Braintree: its payload as base64 text with its final newline, which forms may drop.

    https://developer.paypal.com/braintree/docs/guides/webhooks/parse/python; the newline and the allowed characters are
    those of its SDK for Python, ``braintree``.
    """
    payload = reader.text(Form("bt_payload"))
    if not payload:
        return "the body has no field bt_payload"
    signed = payload if payload.endswith("\n") else payload + "\n"
    if not _BRAINTREE_PAYLOAD.fullmatch(signed):
        return "the field bt_payload is not base64"
    return (SignedPart(Form("bt_signature"), signed.encode()),)


def _read_kind(reader: RequestReader) -> str | None:
    # Only the signed text is read, and a pattern needs no XML parser. A subject may contain its own kind.
    xml = b64decode(reader.text(Form("bt_payload")) or "")
    before, _, rest = xml.partition(b"<subject>")
    kind = re.search(rb"<kind>([a-z0-9_]{1,100})</kind>", before + rest.rpartition(b"</subject>")[2])
    return None if kind is None else kind[1].decode()


def _set_public_key(options: Options, base: Recipe) -> Recipe:
    assert isinstance(base.proof, FieldMac)
    return replace(base, proof=replace(base.proof, form=KeyedPairs(options.text("public_key"))))


BRAINTREE: Final = Recipe(
    name="braintree",
    title="Braintree",
    docs="https://developer.paypal.com/braintree/docs/guides/webhooks/overview",
    grade=ProofStrength.BODY,
    proof=FieldMac(
        read_signed_parts=_state_payload,
        form=KeyedPairs(),
        algorithm=Algorithm.SHA1,
        key_form=KeyFormat.SHA1,
        # The form around the payload is not signed and can be encoded in many ways.
        is_signed_once=True,
    ),
    sample=Sample(
        body=b"bt_payload=PG5vdGlmaWNhdGlvbj48a2luZD5zdWJzY3JpcHRpb25fd2VudF9wYXN0X2R1ZTwva2lu%0AZD48dGltZXN0YW1wIHR5"
        b"cGU9ImRhdGV0aW1lIj4yMDI2LTExLTIxVDEwOjAwOjAwWjwvdGlt%0AZXN0YW1wPjxzdWJqZWN0PjxzdWJzY3JpcHRpb24%2BPGlkPmJvYXRo"
        b"b29rLXNhbXBsZTwvaWQ%2B%0APC9zdWJzY3JpcHRpb24%2BPC9zdWJqZWN0Pjwvbm90aWZpY2F0aW9uPg%3D%3D%0A",
        content_type=FORM,
        settings={"public_key": "boathook_sample_key"},
    ),
    type=EventType(read=_read_kind),
    body=BodyFormat.ANY,
    handshakes=(
        Handshake(
            method="GET",
            when=(Query("bt_challenge"),),
            is_proven=False,
            answer=SignText(
                selector=Query("bt_challenge"),
                allowed=BRAINTREE_CHALLENGE,
                template="{public_key}|{mac}",
                content_type=PLAIN_TEXT,
                algorithm=Algorithm.SHA1,
                key_form=KeyFormat.SHA1,
            ),
        ),
    ),
    settings=(
        Setting(
            name="public_key", help="The public key of the API keys whose private key is the secret", is_required=True
        ),
    ),
    configure=_set_public_key,
    answer_within_s=30.0,
    retries="hourly for 24 hours, in the sandbox for 3 hours",
    retries_for_days=1.0,
    checked=("braintree (Python), both ways, events and challenge",),
    setup=(
        "In Braintree's Control Panel open API, then Webhooks, and create a webhook.",
        (
            "Before you save it, set public_key of the source to the public key of your API keys, copy the "
            "private key into the source's secrets, and start boathook: Braintree verifies the URL when it is "
            "saved."
        ),
        "Enter {url} as the destination and choose the notifications.",
    ),
)

GOCARDLESS: Final = Recipe(
    name="gocardless",
    title="GoCardless",
    docs="https://developer.gocardless.com/getting-started/staying-up-to-date-with-webhooks/",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="webhook-signature"),)),
    sample=Sample(
        body=b'{"events":[{"id":"EV-boathook-sample","created_at":"2026-11-21T10:00:00.000Z","resource_type":"payments",'
        b'"action":"confirmed","links":{"payment":"PM0001"},"details":{"origin":"gocardless","cause":"payment_confirmed"}}],'
        b'"meta":{"webhook_id":"WB-boathook-sample"}}'
    ),
    id=EventId(selectors=(Json("meta.webhook_id"),)),
    items=BatchItems(
        paths=("events.*",),
        id=EventId(selectors=(Json("id"),)),
        type=EventType(selectors=((Json("resource_type"), Json("action")),)),
    ),
    keep=("origin",),
    answer_within_s=10.0,
    retries="up to 8 times with backoff; more by its API",
    checked=(
        "gocardless_pro (Python): it accepts what boathook signs",
        "requests built by hand from its documentation",
    ),
    setup=(
        "In the GoCardless dashboard open Developers, Create, and add a webhook endpoint.",
        (
            "Enter {url} and a secret, or let GoCardless generate one, and put the same secret into the source's "
            "secrets."
        ),
        "One request contains many events; each is handled separately.",
    ),
    is_secret_chosen=True,
)

# Its documentation compares the header with the bare hexadecimal digest, its libraries strip a prefix if there is one:
# https://docs.mollie.com/reference/webhooks-best-practices, mollie-api-py (signature_validator.py).
_MOLLIE_FORM: Final = Plain("sha256=", is_prefix_optional=True)
_MOLLIE_NEXT: Final = Recipe(
    name="mollie",
    title="Mollie next-gen",
    docs="https://docs.mollie.com/reference/webhooks-new",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-mollie-signature"),), form=_MOLLIE_FORM),
    sample=Sample(
        body=b'{"resource":"event","id":"event_boathook-sample","type":"payment-link.paid","entityId":"pl_0001",'
        b'"createdAt":"2026-11-21T10:00:00.0Z"}'
    ),
    id=EventId(selectors=(Json("id"),)),
    type=EventType(selectors=(Json("type"),)),
    answer_within_s=15.0,
    retries="10 tries in about 26 hours",
    retries_for_days=2.0,
    checked=("mollie-api-py (Python), both ways",),
    confidence={"retries": Confidence.MEMORY, "retries_for_days": Confidence.MEMORY},
)

MOLLIE: Final = Recipe(
    name="mollie",
    title="Mollie",
    docs="https://docs.mollie.com/reference/webhooks",
    # The request holds only the id of the changed object, by design: the handler fetches the rest, so a forgery gains
    # nothing.
    grade=ProofStrength.NONE,
    proof=NoProof(),
    sample=Sample(body=b"id=tr_boathook-sample", content_type=FORM),
    # Paid, refunded, charged back: each change of a payment sends the same body.
    id=EventId(is_repeatable=True),
    body=BodyFormat.ANY,
    schemes={"next-gen": _MOLLIE_NEXT},
    answer_within_s=15.0,
    retries="10 tries in about 26 hours",
    retries_for_days=2.0,
    checked=("a request of its documentation",),
    confidence={"retries": Confidence.MEMORY, "retries_for_days": Confidence.MEMORY},
    setup=(
        (
            "For signed webhooks create one in Mollie's dashboard under Developers, Webhooks, and set scheme = "
            '"next-gen".'
        ),
        "Enter {url}, choose the events, and copy the signing secret into the source's secrets.",
        (
            "Classic webhooks have no signature: pass {url} as webhookUrl of each payment, set unsigned = "
            "true, and let the handler fetch the payment from Mollie's API. The request contains only the "
            "payment's id."
        ),
    ),
)

RAZORPAY: Final = Recipe(
    name="razorpay",
    title="Razorpay",
    docs="https://razorpay.com/docs/webhooks/validate-test/",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-razorpay-signature"),)),
    sample=Sample(
        body=b'{"entity":"event","account_id":"acc_0001","event":"payment.captured","contains":["payment"],'
        b'"payload":{"payment":{"entity":{"id":"pay_boathook-sample","amount":1099,"currency":"INR"}}},'
        b'"created_at":1763700000}',
        headers={"x-razorpay-event-id": "boathook-sample"},
    ),
    id=EventId(selectors=(Header("x-razorpay-event-id"),), is_signed=False, is_kept_in_retries=True),
    type=EventType(selectors=(Json("event"),)),
    answer_within_s=5.0,
    retries="for 24 hours with backoff, then the webhook is disabled",
    # It can resend an event on request until the event is 15 days old: https://razorpay.com/docs/webhooks/faqs/.
    retries_for_days=15.0,
    checked=("razorpay (Python): it accepts what boathook signs", "requests built by hand from its documentation"),
    setup=(
        "In Razorpay's Dashboard open Account & Settings, then Webhooks, and add a webhook.",
        "Enter {url} and a long random secret, and put the same secret into the source's secrets.",
        "Choose the active events. After a day of failures Razorpay disables the webhook and sends an e-mail.",
    ),
    is_secret_chosen=True,
)

COINBASE_COMMERCE: Final = Recipe(
    name="coinbase-commerce",
    title="Coinbase Commerce",
    docs="https://docs.cdp.coinbase.com/commerce/api-arcitecture/webhooks-overview",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-cc-webhook-signature"),)),
    sample=Sample(
        body=b'{"attempt_number":1,"event":{"api_version":"2018-03-22","created_at":"2026-11-21T10:00:00Z",'
        b'"data":{"code":"BOATHOOK","name":"A sample"},"id":"boathook-sample","resource":"event",'
        b'"type":"charge:confirmed"},"id":"1","scheduled_for":"2026-11-21T10:00:00Z"}'
    ),
    id=EventId(selectors=(Json("event.id"),)),
    type=EventType(selectors=(Json("event.type"),)),
    volatile=("attempt_number", "id", "scheduled_for"),
    retries="for up to 3 days, at most an hour apart",
    retries_for_days=3.0,
    checked=("coinbase-commerce (Python), both ways",),
    setup=(
        "In Coinbase Commerce open Settings, then Notifications, and add an endpoint.",
        "Enter {url} and choose the events.",
        "Show the shared secret and copy it into the source's secrets.",
    ),
)

PADDLE: Final = Recipe(
    name="paddle",
    title="Paddle Billing",
    docs="https://developer.paddle.com/webhooks/signature-verification",
    aliases=("paddle-billing",),
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="paddle-signature"),),
        form=Pairs(signature="h1", timestamp="ts", separator=";"),
        template="{timestamp}:{body}",
    ),
    sample=Sample(
        body=b'{"event_id":"evt_boathook-sample","event_type":"transaction.completed",'
        b'"occurred_at":"2026-11-21T10:00:00.000000Z","notification_id":"ntf_boathook-sample",'
        b'"data":{"id":"txn_0001","status":"completed","currency_code":"EUR"}}',
        secret="pdl_ntfset_boathook-sample",
    ),
    id=EventId(selectors=(Json("event_id"),)),
    type=EventType(selectors=(Json("event_type"),), known=tuple(PADDLE_TYPES), rests=PADDLE_TYPES),
    # A requested replay is a new notification about the same event.
    volatile=("notification_id",),
    secret_form=SecretForm(
        prefix="pdl_ntfset_",
        others={"pdl_": "an API key", "ntfset_": "a destination's id"},
    ),
    answer_within_s=5.0,
    retries="up to 60 times in 3 days, in the sandbox 3 times in 15 minutes; each attempt has a new signature",
    retries_for_days=3.0,
    checked=("paddle-python-sdk (Python), both ways",),
    setup=(
        "In Paddle open Developer tools, then Notifications, and add a webhook destination.",
        "Enter {url} and choose the events.",
        "Copy the secret key of the destination, which begins with pdl_ntfset_, into the source's secrets.",
    ),
)

RECIPES: Final[tuple[Recipe, ...]] = (
    STRIPE,
    PAYPAL,
    SQUARE,
    ADYEN,
    BRAINTREE,
    GOCARDLESS,
    MOLLIE,
    RAZORPAY,
    COINBASE_COMMERCE,
    PADDLE,
)
