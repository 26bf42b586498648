"""Recipes of cloud, identity and machine learning providers."""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Encoding
from boathook.providers.event_types import OPENAI_TYPES
from boathook.providers.options import Options
from boathook.providers.recipe import (
    FINAL_4XX,
    MIB,
    BatchItems,
    BodyFormat,
    Confidence,
    ConfirmByFetch,
    Echo,
    EventId,
    EventType,
    ExpectedReply,
    Handshake,
    Recipe,
    Sample,
    Setting,
)
from boathook.providers.request_reader import Header, Json, Query, RequestReader
from boathook.providers.schemes import (
    Asymmetric,
    FetchedKey,
    Jwt,
    SignatureAlgorithm,
    SignedPart,
    SignedParts,
    SignedTimestamp,
    TimestampFormat,
    Token,
)
from boathook.providers.standard import STANDARD_HMAC

# Okta.


def configure_okta(options: Options, base: Recipe) -> Recipe:
    """Return the recipe of one source: with Okta, users choose the header that holds the token.

    Raises:
        ConfigError: the setting is not a valid header name.
    """
    header = options.header("header", "authorization")
    assert header is not None
    return replace(base, proof=Token(selector=header))


# Amazon SNS.

_SNS_HOST: Final = r"https://sns\.[a-z]{2}(?:-[a-z]{2,12}){1,3}-[0-9]{1,2}\.amazonaws\.com(?:\.cn)?/"
"""Exactly one region. A looser middle part would match sns.s3-eu-west-1.amazonaws.com, which can be an attacker's
bucket."""
SNS_CERTIFICATE: Final = re.compile(_SNS_HOST + r"SimpleNotificationService-[0-9a-f]{8,64}\.pem")
SNS_CONFIRMATION: Final = re.compile(
    _SNS_HOST
    + r"\?Action=ConfirmSubscription&TopicArn=arn:aws[a-z-]{0,12}:sns:[A-Za-z0-9:._-]{1,300}&Token=[0-9a-f]{1,1000}"
)
_DAY_S: Final = 86_400.0
_NOTIFICATION_KEYS: Final = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_SUBSCRIPTION_KEYS: Final = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SNS_KEYS: Final = {
    "Notification": _NOTIFICATION_KEYS,
    "SubscriptionConfirmation": _SUBSCRIPTION_KEYS,
    "UnsubscribeConfirmation": _SUBSCRIPTION_KEYS,
}


def state_sns(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the names and values that Amazon SNS signs, each on its own line.

    Amazon signs for all customers with the same keys, so only the topic distinguishes our messages from others'.
    https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
    """
    message = reader.document if isinstance(reader.document, dict) else {}
    kind, topic = message.get("Type"), message.get("TopicArn")
    keys = _SNS_KEYS.get(kind) if isinstance(kind, str) else None
    if keys is None:
        return (
            "the body is not an Amazon SNS message; if raw message delivery is enabled, disable it: raw messages "
            "are not signed"
        )
    if topic not in reader.settings.get("topic_arn", "").replace(",", " ").split():
        return f"the message is for topic {str(topic)[:300]!r}, which is not in topic_arn"
    for key in keys:
        text = message.get(key)
        if not isinstance(text, str) and (text is not None or key != "Subject"):
            return f"{key} is not text"
        if text is not None and "\n" in text and key != "Message":
            return f"{key} contains a line break, so the signed bytes are ambiguous"
    signed = "".join(f"{key}\n{message[key]}\n" for key in keys if message.get(key) is not None)
    return (SignedPart(Json("Signature"), signed.encode("utf-8", "surrogatepass")),)


def scheme_sns(reader: RequestReader) -> SignatureAlgorithm | str:
    """Return the scheme for the value of SignatureVersion."""
    match reader.text(Json("SignatureVersion")):
        case "1":
            return SignatureAlgorithm.RSA_SHA1
        case "2":
            return SignatureAlgorithm.RSA_SHA256
        case other:
            return f"SignatureVersion is {str(other)[:40]!r}, and only 1 and 2 are supported"


# Google Pub/Sub.


def check_pubsub_claims(claims: Mapping[str, Any], reader: RequestReader) -> str | None:
    """Check that Google's token is for this audience and from our service account.

    Anyone can have Google sign a token for our audience, but not for our service account.
    https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions
    """
    for name in ("audience", "email"):
        claim, expected = claims.get("aud" if name == "audience" else name), reader.settings.get(name, "")
        if not expected or claim != expected:
            return f"the token's {name} is {str(claim)[:300]!r}, which is not the configured one"
    return None if claims.get("email_verified") is True else "the token's email is not verified"


def claim_pubsub(reader: RequestReader, now: float) -> dict[str, Any]:
    """Return the claims of Google's token for a request."""
    return {
        "iss": "https://accounts.google.com",
        "aud": reader.settings.get("audience", ""),
        "azp": "113774264463038321964",
        "sub": "113774264463038321964",
        "email": reader.settings.get("email", ""),
        "email_verified": True,
        "iat": int(now),
        "exp": int(now) + 3_600,
    }


OKTA = Recipe(
    name="okta",
    title="Okta event hooks",
    docs="https://developer.okta.com/docs/concepts/event-hooks/",
    grade=ProofStrength.TOKEN,
    proof=Token(selector=Header("authorization")),
    sample=Sample(
        body=b'{"eventType":"com.okta.event_hook","eventId":"boathook-sample","eventTime":"2026-11-21T10:00:00.000Z",'
        b'"data":{"events":[{"uuid":"boathook-sample-1","eventType":"user.session.start"},'
        b'{"uuid":"boathook-sample-2","eventType":"user.session.end"}]}}'
    ),
    id=EventId(selectors=(Json("eventId"),)),
    type=EventType(selectors=(Json("eventType"),)),
    items=BatchItems(
        paths=("data.events.*",),
        id=EventId(selectors=(Json("uuid"),)),
        type=EventType(selectors=(Json("eventType"),)),
    ),
    settings=(Setting(name="header", help="The header with the authentication secret", default="authorization"),),
    configure=configure_okta,
    handshakes=(
        # Sent once, when the hook is verified; the echo reveals nothing, with or without the token.
        Handshake(
            when=(Header("x-okta-verification-challenge"),),
            answer=Echo(
                selector=Header("x-okta-verification-challenge"),
                wrap="verification",
                allowed=re.compile(r"[!-~]{1,512}"),
            ),
            method="GET",
            is_proven=False,
        ),
    ),
    reply=ExpectedReply(),
    stop_statuses=FINAL_4XX,
    answer_within_s=3.0,
    retries="at most once, after a timeout or a 5xx; never after a 4xx",
    retries_for_days=0.1,
    checked=("built by hand from its documentation",),
    confidence={"retries_for_days": Confidence.MEMORY},
    setup=(
        "In Okta's Admin Console open Workflow, then Event Hooks, and create one.",
        (
            "Enter {url}, choose the events, and set an authentication field, such as Authorization, and a long "
            "random authentication secret."
        ),
        "Put the same secret into the source's secrets. If the field is not Authorization, set header to its name.",
        "Start boathook, then press Verify: Okta sends one verification request before it sends events.",
    ),
    is_secret_chosen=True,
)

AUTH0 = Recipe(
    name="auth0",
    title="Auth0 log streams",
    docs="https://auth0.com/docs/customize/log-streams/custom-log-streams",
    grade=ProofStrength.TOKEN,
    # The whole header is the Authorization Token that the user configured, including "Bearer" if present.
    proof=Token(selector=Header("authorization")),
    sample=Sample(
        body=b'[{"log_id":"boathook-sample-1","data":{"log_id":"boathook-sample-1","type":"s"}},'
        b'{"log_id":"boathook-sample-2","data":{"log_id":"boathook-sample-2","type":"f"}}]'
    ),
    # One log event if the stream is set to JSON objects. JSON lines with several events stay one event without a type.
    id=EventId(selectors=(Json("log_id"),)),
    type=EventType(selectors=(Json("data.type"),)),
    items=BatchItems(
        paths=("*",), id=EventId(selectors=(Json("log_id"),)), type=EventType(selectors=(Json("data.type"),))
    ),
    body=BodyFormat.ANY,
    retries="3 times, then again together with later events; a stream that fails for 7 days is paused",
    retries_for_days=7.0,
    checked=("built by hand from its documentation",),
    setup=(
        "In Auth0's Dashboard open Monitoring, then Streams, and create a Custom Webhook.",
        "Enter {url}, the content type application/json and the format JSON Lines or Array.",
        "Choose a long random authorization token, and put the same token into the source's secrets.",
    ),
    is_secret_chosen=True,
)

OPENAI = Recipe(
    name="openai",
    title="OpenAI",
    docs="https://platform.openai.com/docs/guides/webhooks",
    grade=ProofStrength.BODY,
    proof=replace(STANDARD_HMAC, headers=STANDARD_HMAC.headers[:1]),
    sample=Sample(
        body=b'{"id":"evt_boathook-sample","object":"event","created_at":1763700000,"type":"response.completed",'
        b'"data":{"id":"resp_1"}}',
        headers={"webhook-id": "wh_boathook-sample"},
        secret="whsec_Ym9hdGhvb2stc2FtcGxlLXNlY3JldC0zMi1ieXRlcyE=",
    ),
    id=EventId(selectors=(Header("webhook-id"),), is_kept_in_retries=True),
    type=EventType(selectors=(Json("type"),), known=tuple(OPENAI_TYPES), rests=OPENAI_TYPES),
    retries="for up to 72 hours with backoff",
    retries_for_days=3.0,
    checked=(
        "openai (Python), its verifying half",
        "standardwebhooks (Python), both ways",
        "1 vector of the tests of its own package",
    ),
    confidence={"retries": Confidence.SECONDARY, "retries_for_days": Confidence.SECONDARY},
    setup=(
        "In OpenAI's platform open the project's settings, then Webhooks, and create one.",
        "Enter {url} and choose the event types.",
        "Copy the signing secret, which is shown once and begins with whsec_, into the source's secrets.",
    ),
)

SNS = Recipe(
    name="sns",
    aliases=("amazon-sns",),
    title="Amazon SNS",
    docs="https://docs.aws.amazon.com/sns/latest/dg/sns-http-https-endpoint-as-subscriber.html",
    # MessageAttributes are unsigned; message, subject, topic and time are signed.
    grade=ProofStrength.BODY,
    proof=Asymmetric(
        read_signed_parts=state_sns,
        scheme=scheme_sns,
        key=FetchedKey(selector=Json("SigningCertURL"), pattern=SNS_CERTIFICATE),
        encoding=Encoding.BASE64,
        # The time of publishing. Retries end within an hour; the rest allows for clock skew and delays.
        timestamp=SignedTimestamp(selector=Json("Timestamp"), unit=TimestampFormat.ISO, tolerance_s=_DAY_S),
    ),
    sample=Sample(
        body=b'{"Type":"Notification","MessageId":"boathook-sample","TopicArn":"arn:aws:sns:eu-central-1:123456789012:a",'
        b'"Subject":"A sample","Message":"{\\"a\\":1}","Timestamp":"2026-11-21T10:00:00.000Z","SignatureVersion":"2",'
        b'"SigningCertURL":"https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem"}',
        content_type="text/plain; charset=UTF-8",
        headers={"x-amz-sns-message-type": "Notification"},
        settings={"topic_arn": "arn:aws:sns:eu-central-1:123456789012:a"},
    ),
    settings=(
        Setting(
            name="topic_arn",
            help="The topic whose messages are accepted, such as arn:aws:sns:eu-central-1:123456789012:orders; several"
            " are separated by commas",
            is_required=True,
        ),
    ),
    id=EventId(selectors=(Json("MessageId"),)),
    type=EventType(selectors=(Json("Type"),)),
    keep=("x-amz-sns-topic-arn", "x-amz-sns-subscription-arn"),
    handshakes=(
        Handshake(
            when=((Json("Type"), "SubscriptionConfirmation"),),
            answer=ConfirmByFetch(selector=Json("SubscribeURL"), pattern=SNS_CONFIRMATION),
        ),
    ),
    stop_statuses=FINAL_4XX - {429},
    answer_within_s=15.0,
    retries="by the topic's delivery policy, for at most an hour, after 429, 5xx or no response; by default 3 times, "
    "20 s apart",
    retries_for_days=0.1,
    checked=("sns-validator (npm), its verifying half", "built by hand from its documentation"),
    setup=(
        "Set topic_arn of the source to the topic's ARN, and start boathook.",
        "In the SNS console open the topic and create a subscription with the protocol HTTPS and the endpoint {url}.",
        (
            "Keep raw message delivery disabled: raw messages are not signed. There is no secret; boathook "
            "fetches Amazon's certificate and confirms the subscription automatically."
        ),
    ),
)

PUBSUB = Recipe(
    name="pubsub",
    aliases=("google-pubsub",),
    title="Google Cloud Pub/Sub push",
    docs="https://cloud.google.com/pubsub/docs/push",
    # The token identifies sender and receiver, but covers nothing of the message.
    # The data of a message has up to 10 MB, https://cloud.google.com/pubsub/quotas; it is Base64 in the body.
    max_body=14 * MIB,
    grade=ProofStrength.TOKEN,
    proof=Jwt(
        header="authorization",
        prefix="Bearer ",
        algorithms=("RS256",),
        key_set="https://www.googleapis.com/oauth2/v3/certs",
        issuers=("https://accounts.google.com", "accounts.google.com"),
        check_claims=check_pubsub_claims,
        claim=claim_pubsub,
    ),
    sample=Sample(
        body=b'{"message":{"attributes":{"eventType":"OBJECT_FINALIZE"},"data":"eyJhIjoxfQ==",'
        b'"messageId":"boathook-sample","publishTime":"2026-11-21T10:00:00.000Z"},'
        b'"subscription":"projects/a/subscriptions/b"}',
        settings={
            "audience": "https://hooks.example.com/in/pubsub",
            "email": "push@a.iam.gserviceaccount.com",
        },
    ),
    settings=(
        Setting(
            name="audience",
            help="The audience of the push subscription; if none was set, its endpoint's URL",
            is_required=True,
        ),
        Setting(name="email", help="The service account that signs for the push subscription", is_required=True),
    ),
    # Unwrapped messages have their id in a header, if their metadata is written at all; without it, two equal bodies
    # may be two messages. The header comes first, because a published message may itself look like a wrapped one.
    id=EventId(
        selectors=(Header("x-goog-pubsub-message-id"), Json("message.messageId")),
        is_signed=False,
        is_kept_in_retries=True,
        is_repeatable=True,
    ),
    type=EventType(
        selectors=(
            Json("message.attributes.eventType"),
            Json("message.attributes.ce-type"),
            Json("message.attributes.type"),
            # Attributes of an unwrapped message are headers.
            Header("eventtype"),
            Header("ce-type"),
        )
    ),
    body=BodyFormat.ANY,
    volatile=("deliveryAttempt",),
    keep=("x-goog-pubsub-subscription-name", "x-goog-pubsub-publish-time"),
    answer_within_s=10.0,
    retries="until the message expires (by default after 7 days) or goes to a dead-letter topic",
    retries_for_days=7.0,
    checked=("google-auth (Python), its verifying half", "PyJWT (Python), its signing half"),
    confidence={"type": Confidence.SECONDARY, "max_body": Confidence.SECONDARY},
    setup=(
        "In Google Cloud create a push subscription of the topic with the endpoint {url}.",
        "Enable authentication, choose a service account, and set an audience.",
        (
            "In the source, set email to the service account's address and audience to that audience. There is "
            "no secret; boathook fetches Google's keys automatically."
        ),
    ),
)

MICROSOFT_GRAPH = Recipe(
    name="microsoft-graph",
    aliases=("graph",),
    title="Microsoft Graph change notifications",
    docs="https://learn.microsoft.com/graph/change-notifications-delivery-webhooks",
    grade=ProofStrength.TOKEN,
    proof=Token(selector=Json("value.*.clientState")),
    sample=Sample(
        body=b'{"value":[{"id":"boathook-sample-1","subscriptionId":"s1","changeType":"created","resource":"users/u1/'
        b'messages/m1","tenantId":"t1"},{"id":"boathook-sample-2","subscriptionId":"s1","changeType":"updated",'
        b'"resource":"users/u1/messages/m2","tenantId":"t1"}]}'
    ),
    # Without an id, two notifications of changes to one resource are the same bytes, and both must be delivered.
    id=EventId(is_repeatable=True),
    items=BatchItems(
        paths=("value.*",),
        id=EventId(selectors=(Json("id"),), is_repeatable=True),
        type=EventType(selectors=(Json("lifecycleEvent"), Json("changeType"))),
    ),
    handshakes=(
        Handshake(
            when=(Query("validationToken"),),
            unless=(Json("value"),),
            answer=Echo(selector=Query("validationToken")),
            is_proven=False,
        ),
    ),
    # 200 means "processed", 202 means "accepted for processing".
    reply=ExpectedReply(status=202),
    answer_within_s=3.0,
    retries=(
        "for up to 4 hours with backoff; receivers that are often slower than 10 s get messages late or not at all"
    ),
    retries_for_days=0.2,
    checked=("built by hand from its documentation",),
    setup=(
        (
            "Put a long random text into the source's secrets and start boathook: Microsoft Graph sends a "
            "verification request when the subscription is created."
        ),
        "POST to /subscriptions with notificationUrl {url}, and the same text as clientState.",
        "A subscription expires within days: renew it regularly by a program.",
    ),
    is_secret_chosen=True,
)

RECIPES: tuple[Recipe, ...] = (OKTA, AUTH0, OPENAI, SNS, PUBSUB, MICROSOFT_GRAPH)
