"""Recipes of shop, mail and telephony providers."""

import hashlib
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm, Encoding, equal_constant_time
from boathook.providers.generic import configure_default_token
from boathook.providers.recipe import (
    FINAL_4XX,
    MIB,
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
    StaticAnswer,
)
from boathook.providers.request_reader import BasicPassword, Form, Header, Json, Query, RequestReader, decode_escapes
from boathook.providers.schemes import (
    Asymmetric,
    ConfiguredKey,
    FieldMac,
    Hmac,
    PublicKeyFormat,
    SignatureAlgorithm,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    SignedTimestamp,
    Token,
)

_FORM: Final = "application/x-www-form-urlencoded"


# Shops.

SHOPIFY: Final = Recipe(
    name="shopify",
    title="Shopify",
    docs="https://shopify.dev/docs/apps/build/webhooks/verify-deliveries",
    grade=ProofStrength.BODY,
    # The second set is for deliveries of Shopify's newer product, Events.
    proof=Hmac(
        headers=(
            SignatureHeaders(signature="x-shopify-hmac-sha256"),
            SignatureHeaders(signature="shopify-hmac-sha256"),
        ),
        encoding=Encoding.BASE64,
    ),
    sample=Sample(
        body=b'{"id":820982911946154508,"email":"a@example.com","total_price":"10.00","currency":"EUR"}',
        headers={
            "x-shopify-webhook-id": "boathook-sample-0000-0000-000000000000",
            "x-shopify-topic": "orders/create",
            "x-shopify-shop-domain": "example.myshopify.com",
            "x-shopify-api-version": "2026-10",
        },
    ),
    # X-Shopify-Event-Id is the same for every topic that one change affects, so it would merge different events.
    id=EventId(
        selectors=(Header("x-shopify-webhook-id"), Header("shopify-webhook-id")),
        is_signed=False,
        is_kept_in_retries=True,
    ),
    type=EventType(selectors=(Header("x-shopify-topic"), (Json("topic"), Json("action"))), is_part_of_replay_key=True),
    secret_form=SecretForm(others={"shp(at|ca|pa)_": "an access token of Shopify's API"}),
    # Webhooks created in a shop's settings may use XML.
    body=BodyFormat.ANY,
    keep=(
        "x-shopify-shop-domain",
        "x-shopify-event-id",
        "x-shopify-triggered-at",
        "x-shopify-api-version",
        "x-shopify-sub-topic",
        "x-shopify-name",
        "shopify-shop-domain",
    ),
    answer_within_s=5.0,
    retries=("8 times within 4 hours; a webhook created through the Admin API is deleted after 8 consecutive failures"),
    retries_for_days=4 / 24,
    checked=("@shopify/shopify-api (npm), both ways",),
    setup=(
        (
            "For an app, subscribe in its shopify.app.toml or through the Admin API; for one shop, open Settings, "
            "Notifications, Webhooks."
        ),
        "Enter {url}, the format JSON, and the topic. A subscription covers one topic.",
        (
            "Put the app's client secret into the source's secrets; for a shop's own webhooks it is the key "
            "below the list of webhooks."
        ),
        "After a rotation Shopify may sign with the old secret for up to an hour.",
    ),
)

WOOCOMMERCE: Final = Recipe(
    name="woocommerce",
    title="WooCommerce",
    docs="https://woocommerce.github.io/woocommerce-rest-api-docs/#webhooks",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-wc-webhook-signature"),), encoding=Encoding.BASE64),
    sample=Sample(
        body=b'{"id":727,"status":"processing","currency":"EUR","total":"29.35","order_key":"wc_order_boathook-sample"}',
        headers={"x-wc-webhook-delivery-id": "boathook-sample", "x-wc-webhook-topic": "order.updated"},
    ),
    # The delivery id is a hash of the webhook's number and the second, so orders changed in one second share it.
    id=EventId(
        selectors=(
            (Header("x-wc-webhook-delivery-id"), Json("id")),
            (Header("x-wc-webhook-delivery-id"), Json("arg")),
        ),
        is_signed=False,
    ),
    type=EventType(selectors=(Header("x-wc-webhook-topic"),), is_part_of_replay_key=True),
    keep=("x-wc-webhook-source", "x-wc-webhook-id", "x-wc-webhook-resource", "x-wc-webhook-event"),
    # A webhook is saved only if an unsigned ping, the form "webhook_id=1", is answered with exactly 200.
    handshakes=(Handshake(when=(Form("webhook_id"),), answer=StaticAnswer(), is_proven=False),),
    answer_within_s=60.0,
    retries="never; a webhook is disabled after more than 5 consecutive failures",
    retries_for_days=0.0,
    checked=("requests built by hand after its source, class-wc-webhook.php",),
    setup=(
        "In WordPress open WooCommerce, Settings, Advanced, Webhooks, and add one.",
        "Enter {url} as delivery URL, choose the topic, and set the status to Active.",
        "Choose a long random secret, and put the same secret into the source's secrets.",
        "WooCommerce never retries, and disables the webhook after five failures in a row.",
    ),
    is_secret_chosen=True,
)


# Telephony.


def _twilio_state(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes: the URL and, for a form, all its fields.

    See https://www.twilio.com/docs/usage/webhooks/webhooks-security. Other bodies are covered by their hash in the URL;
    a body without that hash would not be covered, so it is rejected. A GET request has its parameters in the URL. The
    URL is signed with its port or without, see github.com/twilio/twilio-python (request_validator.py).
    """
    request, fields = reader.request, ""
    if request.method != "GET" or request.body:
        digest = reader.text(Query("bodySHA256"))
        if digest is None or not digest.isascii() or not equal_constant_time(_sha256(reader), digest.lower()):
            if not reader.form:
                return "the body is not a form, and bodySHA256 is not its hash, so the signature does not cover it"
            fields = "".join(name + value for name, value in sorted(set(reader.form)))
    first, *others = [(url + fields).encode("utf-8", "surrogatepass") for url in _twilio_urls(request.url)]
    return (SignedPart(Header("x-twilio-signature"), first, tuple(others)),)


def _sha256(reader: RequestReader) -> str:
    return hashlib.sha256(reader.request.body).hexdigest()


def _twilio_urls(url: str) -> tuple[str, ...]:
    """Return the forms of a URL of which Twilio signs one.

    It signs ``'``, ``@`` and ``:`` of a query as they are, and sends some of them escaped; see twilio/twilio-node
    #1059, #621 and #1183, and twilio/twilio-ruby #528. The first form is the same for all, so that a copy with
    other escapes is the same event.
    """
    path, mark, query = url.partition("?")
    escaped = query.replace("'", "%27")
    queries = dict.fromkeys((decode_escapes(query, "'@:"), query, decode_escapes(query, "'"), escaped))
    return tuple(variant for text in queries for variant in _with_and_without_port(f"{path}{mark}{text}"))


def _with_and_without_port(url: str) -> tuple[str, ...]:
    """Return a URL unchanged, then with its default port added or its port removed."""
    parts = urlsplit(url)
    host, colon, _port = parts.netloc.rpartition(":")
    other = host if colon else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"
    return url, url.replace(parts.netloc, other, 1)


_TWILIO_PROOF: Final = FieldMac(
    read_signed_parts=_twilio_state,
    algorithm=Algorithm.SHA1,
    encoding=Encoding.BASE64,
    proof_headers=("x-twilio-signature",),
    # Names and values are signed without separators, so one signed text can be split into different fields.
    is_signed_once=True,
)
_TWILIO: Final = Recipe(
    name="twilio",
    title="Twilio",
    docs="https://www.twilio.com/docs/usage/webhooks/webhooks-security",
    grade=ProofStrength.BODY,
    proof=_TWILIO_PROOF,
    needs_url=True,
    methods=frozenset({"POST", "GET"}),
    secret_form=SecretForm(
        others={"AC[0-9a-fA-F]{32}$": "an account's SID", "SK[0-9a-fA-F]{32}$": "the SID of an API key"}
    ),
    sample=Sample(
        body=b"MessageSid=SMboathook-sample&MessageStatus=delivered&From=%2B15550001000&To=%2B15551112222"
        b"&AccountSid=AC0000&ApiVersion=2010-04-01",
        content_type=_FORM,
    ),
    # Only signed fields identify an event: the idempotency token's header is not signed.
    id=EventId(
        selectors=(
            (Form("MessageSid"), Form("MessageStatus")),
            (Form("MessageSid"), Form("SmsStatus")),
            (Form("SmsSid"), Form("SmsStatus")),
            (Form("RecordingSid"), Form("RecordingStatus")),
            (Form("ConferenceSid"), Form("SequenceNumber"), Form("StatusCallbackEvent")),
            (Form("CallSid"), Form("SequenceNumber"), Form("CallStatus")),
        ),
        is_signed=False,
    ),
    type=EventType(
        selectors=(
            Form("EventType"),
            Form("StatusCallbackEvent"),
            Form("MessageStatus"),
            Form("SmsStatus"),
            Form("RecordingStatus"),
            Form("CallStatus"),
        )
    ),
    # Event Streams sends arrays of CloudEvents.
    items=BatchItems(paths=("*",), id=EventId(selectors=(Json("id"),)), type=EventType(selectors=(Json("type"),))),
    body=BodyFormat.ANY,
    keep=("i-twilio-idempotency-token",),
    # The reply to a message is TwiML; plain text would be sent to the author of the message.
    reply=ExpectedReply(body=("<Response/>",), content_type="text/xml"),
    answer_within_s=15.0,
    retries="once, only if the connection fails; the URL can request more (#rc=...); Event Streams: for 4 hours",
    retries_for_days=4 / 24,
    checked=("twilio (Python), both ways",),
    confidence={"id": Confidence.SECONDARY, "type": Confidence.SECONDARY},
    setup=(
        "In Twilio's Console open the phone number or messaging service.",
        (
            "Enter {url} as its webhook, with the method POST or GET, exactly as shown here, and set public_url to "
            "its base URL: Twilio signs the URL."
        ),
        "Put the account's Auth Token into the source's secrets. To rotate it, promote the secondary token.",
        'To reply with TwiML, use mode = "inline": the handler sets the reply.',
    ),
)
TWILIO: Final = replace(
    _TWILIO,
    schemes={
        # The header X-Twilio-Webhooks-Signature-Settings announces this scheme; its content is never trusted.
        "shared-key": replace(_TWILIO, proof=replace(_TWILIO_PROOF, algorithm=Algorithm.SHA256)),
    },
)


# Mail.


def _sendgrid_state(reader: RequestReader, _secret: str) -> SignedParts:
    """Return timestamp and body as signed bytes, like github.com/sendgrid/sendgrid-python (helpers/eventwebhook)."""
    timestamp = reader.request.headers.get("x-twilio-email-event-webhook-timestamp", "")
    signed = timestamp.encode("latin-1", "replace") + reader.request.body
    return (SignedPart(Header("x-twilio-email-event-webhook-signature"), signed),)


SENDGRID: Final = Recipe(
    name="sendgrid",
    title="Twilio SendGrid Event Webhook",
    docs="https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/getting-started-event-webhook-security-features",
    # Of its Inbound Parse Webhook; none is documented for the Event Webhook:
    # https://www.twilio.com/docs/sendgrid/for-developers/parsing-email/inbound-email
    max_body=30 * MIB,
    grade=ProofStrength.BODY,
    proof=Asymmetric(
        read_signed_parts=_sendgrid_state,
        scheme=SignatureAlgorithm.ECDSA_SHA256,
        key=ConfiguredKey(text=PublicKeyFormat.SPKI),
        # It is not documented whether a retry is signed again, so the window covers all retries.
        timestamp=SignedTimestamp(selector=Header("x-twilio-email-event-webhook-timestamp"), tolerance_s=90_000.0),
        proof_headers=("x-twilio-email-event-webhook-signature",),
    ),
    sample=Sample(
        body=b'[{"email":"a@example.com","timestamp":1763700000,"event":"delivered","sg_event_id":"boathook-sample",'
        b'"sg_message_id":"14c5d75ce93.dfd.64b469"}]'
    ),
    items=BatchItems(
        paths=("*",), id=EventId(selectors=(Json("sg_event_id"),)), type=EventType(selectors=(Json("event"),))
    ),
    retries="with backoff for up to 24 hours after the event",
    retries_for_days=1.0,
    checked=("sendgrid (Python), both ways",),
    setup=(
        "In SendGrid open Settings, Mail Settings, Event Webhook, and create one.",
        "Enter {url} as Post URL and choose the actions.",
        (
            "Enable Signed Event Webhook, and copy the verification key, which is a public key, into the "
            "source's secrets."
        ),
    ),
)


def _mailgun_state(selector: Json) -> FieldMac:
    def read_signed_parts(reader: RequestReader, _secret: str) -> SignedParts | str:
        timestamp, token = reader.text(Json("signature.timestamp")), reader.text(Json("signature.token"))
        if timestamp is None or token is None:
            return "the body contains no signature with its timestamp and token"
        return (SignedPart(selector, (timestamp + token).encode("utf-8", "surrogatepass")),)

    return FieldMac(
        read_signed_parts=read_signed_parts,
        # Mailgun retries for 8 hours, does not document whether a retry is signed again, and allows for delays.
        timestamp=SignedTimestamp(selector=Json("signature.timestamp"), tolerance_s=43_200.0),
        # Only the random token and the timestamp are signed, so a token must not be accepted twice.
        is_signed_once=True,
    )


_MAILGUN: Final = Recipe(
    name="mailgun",
    title="Mailgun",
    docs="https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks",
    max_body=25 * MIB,
    grade=ProofStrength.METADATA,
    proof=_mailgun_state(Json("signature.signature")),
    sample=Sample(
        body=b'{"signature":{"token":"e0b5477167110d68991efc6b9f89f0a11066af27834600e123","timestamp":"1763700000",'
        b'"signature":""},"event-data":{"event":"delivered","id":"boathook-sample","timestamp":1763700000.0,'
        b'"message":{"headers":{"message-id":"20261121100000.1@mg.example.com"}},"recipient":"a@example.com"}}'
    ),
    # The id is guaranteed to be unique only within a day; the mail's id distinguishes events of different days.
    id=EventId(
        selectors=(
            (Json("event-data.id"), Json("event-data.message.headers.message-id")),
            Json("event-data.id"),
        ),
        is_signed=False,
    ),
    type=EventType(selectors=(Json("event-data.event"),)),
    volatile=("signature",),
    stop_statuses=frozenset({406}),
    retries="after 5, 10 and 15 minutes, 1, 2 and 4 hours; delivery notifications: never",
    retries_for_days=8 / 24,
    checked=("requests built by hand from its documentation",),
    confidence={"max_body": Confidence.SECONDARY},
    setup=(
        "In Mailgun open Sending, then Webhooks, choose the domain, and add a webhook.",
        "Enter {url} for each event type.",
        "Copy the HTTP webhook signing key, under API Security, into the source's secrets.",
        "Mailgun signs a timestamp and a token, not the body: do not trust the body.",
    ),
)
MAILGUN: Final = replace(
    _MAILGUN,
    schemes={
        "parent": replace(_MAILGUN, proof=_mailgun_state(Json("signature.parent-signature"))),
    },
)

_POSTMARK_MAIL: Final = (Json("RecordType"), Json("MessageID"), Json("Recipient"))
POSTMARK: Final = Recipe(
    name="postmark",
    title="Postmark",
    docs="https://postmarkapp.com/developer/webhooks/webhooks-overview",
    # Inbound mail, by its attachments, which are Base64 in the body and so a third larger there:
    # https://postmarkapp.com/support/article/1056-what-are-the-attachment-and-email-size-limits
    max_body=35 * MIB,
    grade=ProofStrength.TOKEN,
    proof=Token(selector=BasicPassword("postmark")),
    sample=Sample(
        body=b'{"RecordType":"Delivery","MessageID":"boathook-sample-0000-0000-000000000000","ServerID":23,'
        b'"Recipient":"a@example.com","DeliveredAt":"2026-11-21T10:00:00Z","MessageStream":"outbound"}',
        headers={"x-pm-webhook-trace-id": "boathook-sample-0000-0000-000000000000"},
    ),
    # The trace id is the same in every retry of an event, but is not always sent. Bounces and complaints have a number.
    # Other events are identified by mail, recipient, time and link; inbound mail only by the mail's id.
    id=EventId(
        selectors=(
            Header("x-pm-webhook-trace-id"),
            (Json("RecordType"), Json("ID")),
            (*_POSTMARK_MAIL, Json("ReceivedAt"), Json("OriginalLink")),
            (*_POSTMARK_MAIL, Json("ReceivedAt")),
            (*_POSTMARK_MAIL, Json("DeliveredAt")),
            (*_POSTMARK_MAIL, Json("ChangedAt")),
            (Json("MessageStream"), Json("MessageID"), Json("Date"), Json("From")),
        )
    ),
    type=EventType(selectors=(Json("RecordType"), Json("MessageStream"))),
    settings=(
        Setting(name="username", help="User name in the URL configured in Postmark; default: postmark"),
        Setting(name="password", help="The password in that URL, instead of secrets", is_secret=True),
        Setting(name="header", help="Header with a token, as configured in Postmark, instead of a user name"),
        Setting(name="prefix", help="Prefix of the token in that header"),
        Setting(name="query", help="Query parameter with a token in the URL configured in Postmark"),
    ),
    configure=configure_default_token,
    keep=("x-pm-retries-remaining",),
    # Events of outbound mail are dropped after any 4xx except 408 and 429; inbound mail only after 403.
    stop_statuses=FINAL_4XX - {429},
    retries=(
        "inbound mail: 10 times within 10.5 hours; other events: 6 times within 70 minutes, after 408, 429, 5xx or "
        "no response"
    ),
    retries_for_days=10.5 / 24,
    checked=("requests built by hand from its documentation",),
    confidence={"id": Confidence.SECONDARY},
    setup=(
        "In Postmark open the server, the message stream, then Webhooks, and add one.",
        "Enter {url}, and under Basic auth a user name and a long random password.",
        "Set username of the source to the user name, and put the password into password or the secrets.",
    ),
    is_secret_chosen=True,
)

RECIPES = (SHOPIFY, WOOCOMMERCE, TWILIO, SENDGRID, MAILGUN, POSTMARK)
