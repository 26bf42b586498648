"""Recipes of office software: documents, forms, customers, accounting."""

import re

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm, Encoding
from boathook.providers.recipe import (
    BatchItems,
    BodyFormat,
    CaptureSecret,
    Confidence,
    Echo,
    EventId,
    EventType,
    ExpectedReply,
    Handshake,
    Recipe,
    Sample,
    StaticAnswer,
)
from boathook.providers.request_reader import Header, Json, Query, RequestReader, decode_escapes
from boathook.providers.schemes import (
    MAX_SIGNATURES,
    FieldMac,
    Hmac,
    Pairs,
    Plain,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    TimestampFormat,
)

_HUBSPOT_SIGNATURE = Header("x-hubspot-signature")


def state_hubspot_v1(reader: RequestReader, secret: str) -> SignedParts | str:
    """Return the signed bytes: the secret and the body, for a plain SHA-256.

    An attacker who has one such hash can extend the covered bytes, but then the body is no longer a JSON document.

    Source: https://legacydocs.hubspot.com/docs/faq/v1-request-validation
    """
    return (SignedPart(_HUBSPOT_SIGNATURE, secret.encode("utf-8", "surrogatepass") + reader.request.body),)


def state_hubspot_v2(reader: RequestReader, secret: str) -> SignedParts | str:
    """Return the signed bytes: secret, method, URL and body, for a plain SHA-256.

    Source: https://legacydocs.hubspot.com/docs/faq/v2-request-validation
    """
    request = reader.request
    head = f"{secret}{request.method}{request.url}".encode("utf-8", "surrogatepass")
    return (SignedPart(_HUBSPOT_SIGNATURE, head + request.body),)


DROPBOX = Recipe(
    name="dropbox",
    title="Dropbox",
    docs="https://www.dropbox.com/developers/reference/webhooks",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-dropbox-signature"),)),
    sample=Sample(
        body=b'{"list_folder":{"accounts":["dbid:boathook-sample"]},"delta":{"users":[12345678]}}',
    ),
    # The body only names accounts in which something changed, so the next change of an account has the same body.
    id=EventId(is_repeatable=True),
    type=EventType(first_key_except=("delta",)),
    handshakes=(
        Handshake(
            method="GET",
            when=(Query("challenge"),),
            answer=Echo(selector=Query("challenge"), allowed=re.compile(r"[A-Za-z0-9_-]{1,256}")),
            is_proven=False,
        ),
    ),
    answer_within_s=10.0,
    retries="for about 10 minutes with backoff; disabled if too many fail",
    retries_for_days=0.1,
    checked=("built by hand from its documentation",),
    confidence={"type": Confidence.MEMORY},
    setup=(
        "In the Dropbox App Console open the app, put its App secret into the source's secrets, and start boathook.",
        "Under Webhooks enter {url}; Dropbox sends one verification request.",
        (
            "A notification only names the accounts whose files have changed: let the handler fetch the changes "
            "from Dropbox's API."
        ),
    ),
)

NOTION = Recipe(
    name="notion",
    title="Notion",
    docs="https://developers.notion.com/reference/webhooks",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-notion-signature"),), form=Plain("sha256=")),
    sample=Sample(
        body=b'{"id":"boathook-sample","timestamp":"2026-11-21T10:00:00.000Z","type":"page.created","attempt_number":1,'
        b'"entity":{"id":"153104cd-477e-809d-8dc4-ff2d96ae3090","type":"page"}}',
        secret="secret_boathook-sample",
    ),
    id=EventId(selectors=(Json("id"),)),
    type=EventType(selectors=(Json("type"),)),
    volatile=("attempt_number",),
    # The token is the key of all signatures, also of this first request's. That signature proves nothing, because the
    # request contains the key.
    handshakes=(
        Handshake(
            when=(Json("verification_token"),),
            answer=CaptureSecret(selector=Json("verification_token"), allowed=re.compile(r"[A-Za-z0-9_-]{16,256}")),
            is_proven=False,
        ),
    ),
    retries="up to 8 times within a day, with backoff",
    retries_for_days=1.0,
    checked=("@notionhq/client (npm), both ways",),
    setup=(
        (
            "At notion.so/my-integrations open the integration, then Webhooks, and create a subscription for "
            "{url}. The source needs no secrets: Notion sends one."
        ),
        "Then run `boathook sources secret` with the source's name, and paste its output into Notion.",
    ),
)

INTERCOM = Recipe(
    name="intercom",
    title="Intercom",
    docs="https://developers.intercom.com/docs/webhooks/webhook-notifications",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-hub-signature"),), form=Plain("sha1="), algorithm=Algorithm.SHA1),
    sample=Sample(
        body=b'{"type":"notification_event","app_id":"abc","topic":"conversation.user.created",'
        b'"id":"notif_boathook-sample","data":{"type":"notification_event_data","item":{"id":"1"}},'
        b'"delivery_status":"pending","delivery_attempts":1,"delivered_at":0,"first_sent_at":1763700000,'
        b'"created_at":1763700000}'
    ),
    id=EventId(selectors=(Json("id"),)),
    type=EventType(selectors=(Json("topic"),)),
    volatile=("delivery_attempts", "delivery_status", "delivered_at", "first_sent_at"),
    # Sent once, when the URL is entered.
    handshakes=(Handshake(method="HEAD", when=(), answer=StaticAnswer(), is_proven=False),),
    stop_statuses=frozenset({410}),
    answer_within_s=5.0,
    retries="once, after about 1 minute; suspended after seven days of errors",
    retries_for_days=0.1,
    checked=("built by hand from its documentation",),
    confidence={
        "answer_within_s": Confidence.SECONDARY,
        "retries": Confidence.SECONDARY,
        "retries_for_days": Confidence.SECONDARY,
        "stop_statuses": Confidence.MEMORY,
        "volatile": Confidence.SECONDARY,
        "handshakes": Confidence.MEMORY,
    },
    setup=(
        (
            "In Intercom's Developer Hub open the app, and put its client secret into the source's secrets. Start "
            "boathook."
        ),
        "Under Webhooks enter {url} as endpoint URL and choose the topics.",
    ),
)

ZENDESK = Recipe(
    name="zendesk",
    title="Zendesk",
    docs="https://developer.zendesk.com/documentation/webhooks/verifying/",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(
            SignatureHeaders(
                signature="x-zendesk-webhook-signature", timestamp="x-zendesk-webhook-signature-timestamp"
            ),
        ),
        template="{timestamp}{body}",
        encoding=Encoding.BASE64,
        time_unit=TimestampFormat.ISO,
    ),
    sample=Sample(
        body=b'{"account_id":123456,"type":"zen:event-type:ticket.created","id":"boathook-sample",'
        b'"zendesk_event_version":"2022-11-06","time":"2026-11-21T10:00:00Z","detail":{"id":"1"},"event":{}}',
        headers={"x-zendesk-webhook-invocation-id": "01BOATHOOKSAMPLE"},
    ),
    # Users define the body that a trigger sends, and may put a ticket's id under "id". Only an id with Zendesk's
    # version is an event id.
    id=EventId(
        selectors=((Json("zendesk_event_version"), Json("id")), Header("x-zendesk-webhook-invocation-id")),
        is_signed=False,
    ),
    type=EventType(selectors=(Json("type"),)),
    body=BodyFormat.ANY,
    methods=frozenset({"POST", "PUT", "PATCH"}),
    keep=("x-zendesk-webhook-id", "x-zendesk-account-id"),
    answer_within_s=10.0,
    retries="409: up to 3 times; 429 and 503: as Retry-After says; paused if most requests of 5 minutes fail",
    checked=("built by hand from its documentation",),
    confidence={"answer_within_s": Confidence.SECONDARY, "retries": Confidence.SECONDARY, "id": Confidence.SECONDARY},
    setup=(
        "In Zendesk's Admin Center open Apps and integrations, Webhooks, and create one.",
        "Enter {url}, the method POST and the format JSON, and choose the events, or connect it to a trigger.",
        "Reveal the signing secret and copy it into the source's secrets.",
    ),
)


def _decoded_and_sent(url: str) -> tuple[str, str]:
    """Return a URL as HubSpot signs it, with these escapes decoded, and as sent, which is what its library signs.

    Source: https://developers.hubspot.com/docs/apps/developer-platform/build-apps/authentication/request-validation
    """
    return decode_escapes(url, ":/?@!$'()*,;"), url


_HUBSPOT_ITEMS = BatchItems(
    paths=("*",),
    # HubSpot documents that eventId may not be unique.
    id=EventId(
        selectors=(
            (Json("subscriptionId"), Json("eventId"), Json("occurredAt"), Json("objectId")),
            (Json("subscriptionId"), Json("eventId"), Json("occurredAt")),
        )
    ),
    type=EventType(selectors=(Json("subscriptionType"),)),
)

HUBSPOT = Recipe(
    name="hubspot",
    title="HubSpot",
    docs="https://developers.hubspot.com/docs/apps/developer-platform/build-apps/authentication/request-validation",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="x-hubspot-signature-v3", timestamp="x-hubspot-request-timestamp"),),
        template="{method}{url}{body}{timestamp}",
        encoding=Encoding.BASE64,
        time_unit=TimestampFormat.MILLISECONDS,
        url_forms=_decoded_and_sent,
    ),
    sample=Sample(
        body=b'[{"eventId":1,"subscriptionId":12345,"portalId":62515,"appId":54321,"occurredAt":1763700000000,'
        b'"subscriptionType":"contact.creation","attemptNumber":0,"objectId":123,"changeSource":"boathook-sample"}]'
    ),
    items=_HUBSPOT_ITEMS,
    volatile=("*.attemptNumber",),
    answer_within_s=5.0,
    retries="up to 10 times within a day, at varying intervals",
    retries_for_days=1.0,
    checked=("hubspot-api-client (Python), both ways, v1, v2 and v3", "2 vectors of its documentation"),
    setup=(
        "In HubSpot's developer account open the app, then Webhooks.",
        (
            "Enter {url} as target URL exactly as shown here, set public_url to its base URL, and create the "
            "subscriptions: HubSpot signs the URL."
        ),
        "Put the app's client secret into the source's secrets.",
    ),
)

HUBSPOT_V1 = replace(
    HUBSPOT,
    title="HubSpot, signature v1",
    docs="https://legacydocs.hubspot.com/docs/faq/v1-request-validation",
    proof=FieldMac(read_signed_parts=state_hubspot_v1, is_keyed=False),
)

HUBSPOT_V2 = replace(
    HUBSPOT,
    title="HubSpot, signature v2",
    docs="https://legacydocs.hubspot.com/docs/faq/v2-request-validation",
    proof=FieldMac(read_signed_parts=state_hubspot_v2, is_keyed=False),
    needs_url=True,
)

DOCUSIGN = Recipe(
    name="docusign",
    title="Docusign Connect",
    docs="https://developers.docusign.com/platform/webhooks/connect/validate",
    grade=ProofStrength.BODY,
    # One header for each of the account's keys; accounts have far fewer than the hundred that Docusign allows.
    proof=Hmac(
        headers=tuple(
            SignatureHeaders(signature=f"x-docusign-signature-{number}") for number in range(1, MAX_SIGNATURES + 1)
        ),
        encoding=Encoding.BASE64,
        any_header=True,
    ),
    sample=Sample(
        body=b'{"event":"envelope-completed","apiVersion":"v2.1","retryCount":0,"configurationId":21752918,'
        b'"generatedDateTime":"2026-11-21T10:00:00.4233752Z","data":{"accountId":"24dfce13",'
        b'"envelopeId":"boathook-sample"}}'
    ),
    id=EventId(
        selectors=(
            (Json("data.envelopeId"), Json("event"), Json("generatedDateTime"), Json("data.recipientId")),
            (Json("data.envelopeId"), Json("event"), Json("generatedDateTime")),
        )
    ),
    type=EventType(selectors=(Json("event"),)),
    body=BodyFormat.ANY,
    volatile=("retryCount",),
    answer_within_s=100.0,
    retries="for about 15 days, with backoff",
    retries_for_days=15.0,
    checked=("built by hand from its documentation",),
    confidence={
        "answer_within_s": Confidence.MEMORY,
        "retries": Confidence.MEMORY,
        "retries_for_days": Confidence.MEMORY,
        "id": Confidence.SECONDARY,
    },
    setup=(
        "In Docusign's Admin open Integrations, Connect, and add a custom configuration.",
        "Enter {url}, the format JSON, and choose the events.",
        (
            "Under Connect Keys add a key, copy it into the source's secrets (it is shown once), and enable "
            "Include HMAC Signature."
        ),
    ),
)

TYPEFORM = Recipe(
    name="typeform",
    title="Typeform",
    docs="https://www.typeform.com/developers/webhooks/",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="typeform-signature"),), form=Plain("sha256="), encoding=Encoding.BASE64
    ),
    sample=Sample(
        body=b'{"event_id":"01boathook-sample","event_type":"form_response","form_response":{"form_id":"lT4Z3j",'
        b'"token":"a3a12ec67a1365927098a606107fac15","answers":[]}}'
    ),
    id=EventId(selectors=(Json("event_id"),)),
    type=EventType(selectors=(Json("event_type"),)),
    stop_statuses=frozenset({404, 410}),
    answer_within_s=30.0,
    retries="after 408, 423, 429 and 503 every 2 to 3 minutes for 10 hours, otherwise within 11 hours with backoff",
    retries_for_days=1.0,
    checked=("built by hand from its documentation",),
    setup=(
        "In Typeform open the form, Connect, Webhooks, and add one.",
        (
            "Enter {url}, choose a long random secret, put the same secret into the source's secrets, and "
            "enable the webhook."
        ),
    ),
    is_secret_chosen=True,
)

CALENDLY = Recipe(
    name="calendly",
    title="Calendly",
    docs="https://developer.calendly.com/api-docs/overview/webhooks/webhook-signatures",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="calendly-webhook-signature"),),
        form=Pairs(signature="v1", timestamp="t"),
        template="{timestamp}.{body}",
    ),
    sample=Sample(
        body=b'{"event":"invitee.created","created_at":"2026-11-21T10:00:00.000000Z","payload":'
        b'{"uri":"https://api.calendly.com/scheduled_events/1/invitees/boathook-sample","name":"A sample"}}'
    ),
    id=EventId(selectors=((Json("payload.uri"), Json("event"), Json("created_at")),)),
    type=EventType(selectors=(Json("event"),)),
    answer_within_s=15.0,
    retries="for 24 hours with backoff, then disabled",
    retries_for_days=1.0,
    checked=("built by hand from its documentation",),
    confidence={"id": Confidence.SECONDARY, "proof": Confidence.SECONDARY},
    setup=(
        "Create a webhook subscription through Calendly's API, POST /webhook_subscriptions, with the url {url}.",
        "Pass a long random signing_key, and put the same key into the source's secrets.",
    ),
    is_secret_chosen=True,
)

XERO = Recipe(
    name="xero",
    title="Xero",
    docs="https://developer.xero.com/documentation/guides/webhooks/overview/",
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-xero-signature"),), encoding=Encoding.BASE64),
    sample=Sample(
        body=b'{"events":[{"resourceUrl":"https://api.xero.com/api.xro/2.0/Contacts/1","resourceId":"boathook-sample",'
        b'"tenantId":"c2cc9b6e","tenantType":"ORGANISATION","eventCategory":"CONTACT","eventType":"UPDATE",'
        b'"eventDateUtc":"2026-11-21T10:00:00.000"}],"firstEventSequence":1,"lastEventSequence":1,"entropy":"abc"}'
    ),
    items=BatchItems(
        paths=("events.*",),
        id=EventId(
            selectors=((Json("tenantId"), Json("resourceId"), Json("eventType"), Json("eventDateUtc")),),
        ),
        type=EventType(selectors=((Json("eventCategory"), Json("eventType")),)),
    ),
    # "Intent to receive": requests without events, some with wrong signatures, which must be rejected.
    handshakes=(
        Handshake(when=((Json("firstEventSequence"), "0"), (Json("lastEventSequence"), "0")), answer=StaticAnswer()),
    ),
    reply=ExpectedReply(),
    has_empty_error_body=True,
    answer_within_s=5.0,
    retries=("for 24 hours, then disabled; events of that time are kept for 31 days and sent once it is enabled again"),
    retries_for_days=31.0,
    checked=("built by hand from its documentation",),
    confidence={"retries": Confidence.SECONDARY, "retries_for_days": Confidence.SECONDARY},
    setup=(
        (
            "At developer.xero.com open the app, then Webhooks; copy the webhooks key into the source's secrets "
            "and start boathook."
        ),
        (
            "Enter {url} as delivery URL and send the intent to receive: Xero sends requests with valid and "
            "invalid signatures, and expects the invalid ones to be rejected."
        ),
    ),
)

RECIPES = (
    DROPBOX,
    NOTION,
    INTERCOM,
    ZENDESK,
    replace(HUBSPOT, schemes={"v1": HUBSPOT_V1, "v2": HUBSPOT_V2}),
    DOCUSIGN,
    TYPEFORM,
    CALENDLY,
    XERO,
)
