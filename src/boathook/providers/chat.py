"""Recipes of chat and social platforms."""

import re
from typing import Final

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Encoding
from boathook.providers.recipe import (
    JSON,
    MIB,
    BatchItems,
    BodyFormat,
    Confidence,
    Echo,
    EventId,
    EventType,
    ExpectedReply,
    Handshake,
    Recipe,
    Sample,
    SecretForm,
    Setting,
    SignText,
    StaticAnswer,
)
from boathook.providers.request_reader import Form, Header, Json, Query, RequestReader
from boathook.providers.schemes import (
    Asymmetric,
    ConfiguredKey,
    Hmac,
    Plain,
    PublicKeyFormat,
    SignatureAlgorithm,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    SignedTimestamp,
    Token,
)

_SIGNATURE, _STAMP = "x-signature-ed25519", "x-signature-timestamp"

NOT_JSON = re.compile(
    r"(?!(?:true|false|null)$)"  # JSON literals
    r"(?!-?[0-9]+(?:[eE][+-]?[0-9]+)?$)"  # JSON numbers
    r"[A-Za-z0-9_+/=-]{1,256}"
)
"""Allowed challenge text: never a valid JSON document, because JSON documents are what X signs."""

NO_COLON = re.compile(r"[A-Za-z0-9_+/=-]{1,256}")
"""Allowed challenge text: without a colon, because everything else that Zoom signs contains one."""


def state_discord(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes: the timestamp followed by the body.

    Source: https://docs.discord.com/developers/interactions/overview#setting-up-an-endpoint
    """
    timestamp = reader.text(Header(_STAMP))
    if timestamp is None:
        return f"there is no header {_STAMP}, and the signature covers it"
    return (SignedPart(Header(_SIGNATURE), timestamp.encode("latin-1", "replace") + reader.request.body),)


SLACK = Recipe(
    name="slack",
    title="Slack",
    docs="https://docs.slack.dev/authentication/verifying-requests-from-slack",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="x-slack-signature", timestamp="x-slack-request-timestamp"),),
        form=Plain("v0="),
        template="v0:{timestamp}:{body}",
    ),
    sample=Sample(
        body=b'{"type":"event_callback","event_id":"Ev-boathook-sample","team_id":"T0001",'
        b'"event":{"type":"app_mention","text":"hello"}}'
    ),
    # Events are JSON. Commands and clicks are forms; a click's field payload holds JSON. Both are identified by a
    # trigger id. Clicks without one are identified by their whole body, which holds the time of the click.
    id=EventId(selectors=(Json("event_id"), Form("trigger_id"), Form("payload", "trigger_id"))),
    type=EventType(selectors=(Json("event.type"), Json("type"), Form("command"), Form("payload", "type"))),
    body=BodyFormat.ANY,
    secret_form=SecretForm(others={"xox[bp]-": "a token of Slack's API", "xapp-": "an app-level token"}),
    keep=("x-slack-retry-num", "x-slack-retry-reason"),
    handshakes=(
        Handshake(when=((Json("type"), "url_verification"),), answer=Echo(selector=Json("challenge"))),
        # Slack occasionally checks a command endpoint's certificate; its own libraries answer that unverified.
        Handshake(when=((Form("ssl_check"), "1"),), answer=StaticAnswer(), is_proven=False),
    ),
    # Slack shows any text in the reply to the user who gave the command or clicked.
    reply=ExpectedReply(only_with=(Form("command"), Form("payload"))),
    answer_within_s=3.0,
    retries="3 times: almost immediately, after 1 minute, after 5 minutes; hourly for a day if the app requests it; "
    "commands and clicks: never",
    retries_for_days=1.0,
    checked=("slack_sdk (Python), both ways", "1 vector of its documentation"),
    confidence={"retries": Confidence.SECONDARY},
    setup=(
        (
            "At api.slack.com/apps open the app, then Basic Information, and copy the signing secret into the "
            "source's secrets. Start boathook."
        ),
        "Under Event Subscriptions enable events and enter {url} as Request URL; Slack verifies it immediately.",
        "Subscribe to the events, then install the app again.",
    ),
)

DISCORD = Recipe(
    name="discord",
    title="Discord interactions and webhook events",
    docs="https://docs.discord.com/developers/events/webhook-events",
    grade=ProofStrength.BODY,
    proof=Asymmetric(
        read_signed_parts=state_discord,
        scheme=SignatureAlgorithm.ED25519,
        key=ConfiguredKey(text=PublicKeyFormat.HEX),
        encoding=Encoding.HEX,
        # A retry may come 10 minutes later, and it is not documented whether it is signed again.
        timestamp=SignedTimestamp(selector=Header(_STAMP), tolerance_s=900.0),
        proof_headers=(_SIGNATURE, _STAMP),
    ),
    sample=Sample(
        body=b'{"version":1,"application_id":"1234560123453231555","type":1,"event":{"type":"APPLICATION_AUTHORIZED",'
        b'"timestamp":"2026-11-21T10:00:00.064834","data":{"integration_type":1,"scopes":["boathook-sample"]}}}',
        secret="9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
    ),
    # Events have no id. Type and time cannot distinguish two events of the same instant; their bodies can.
    id=EventId(selectors=(Json("id"),)),
    type=EventType(selectors=(Json("event.type"), (Json("type"), Json("data.name")))),
    handshakes=(
        Handshake(when=((Json("type"), "0"),), answer=StaticAnswer(content_type=JSON), status=204),
        # Webhook events also have type 1; only interactions have a token.
        Handshake(when=((Json("type"), "1"), Json("token")), answer=StaticAnswer(body='{"type":1}', content_type=JSON)),
    ),
    reply=ExpectedReply(status=204),
    answer_within_s=3.0,
    retries="events: for up to 10 minutes with backoff; interactions: never",
    retries_for_days=0.01,
    checked=("discord-interactions (Python), which verifies", "1 vector of webhook.co's registry"),
    setup=(
        (
            "In Discord's Developer Portal open the application, and copy its public key into the source's "
            "secrets. Start boathook."
        ),
        ("Under Webhooks enter {url} as endpoint URL and enable the events; or enter it as Interactions Endpoint URL."),
        "Discord regularly sends test requests with invalid signatures, so some rejections are expected.",
    ),
)
_TELEGRAM_TYPES: Final = (
    "message", "edited_message", "channel_post", "edited_channel_post", "business_connection", "business_message",
    "edited_business_message", "deleted_business_messages", "message_reaction", "message_reaction_count",
    "inline_query", "chosen_inline_result", "callback_query", "shipping_query", "pre_checkout_query",
    "purchased_paid_media", "poll", "poll_answer", "my_chat_member", "chat_member", "chat_join_request",
    "chat_boost", "removed_chat_boost",
)  # fmt: skip

TELEGRAM = Recipe(
    name="telegram",
    title="Telegram Bot API",
    docs="https://core.telegram.org/bots/api#setwebhook",
    grade=ProofStrength.TOKEN,
    proof=Token(selector=Header("x-telegram-bot-api-secret-token")),
    sample=Sample(
        body=b'{"update_id":987654321,"message":{"message_id":1,"date":1763700000,"chat":{"id":1,"type":"private"},'
        b'"text":"boathook-sample"}}'
    ),
    id=EventId(selectors=(Json("update_id"),)),
    type=EventType(
        first_key_except=("update_id",),
        known=_TELEGRAM_TYPES,
    ),
    secret_form=SecretForm(others={"[0-9]+:": "the token of the bot"}),
    retries="a reasonable number of times; undelivered updates are kept for a day",
    retries_for_days=1.0,
    checked=("built by hand from its documentation",),
    setup=(
        "Choose a long random text of letters, digits, _ and -, and put it into the source's secrets.",
        (
            "Call setWebhook of the Bot API with url={url}, secret_token set to that text, and allowed_updates as "
            "you need."
        ),
        "To rotate, add the new text to the source's secrets, call setWebhook with it, then end the old secret.",
    ),
    is_secret_chosen=True,
)

VK = Recipe(
    name="vk",
    title="VK Callback API",
    docs="https://dev.vk.com/api/callback/getting-started",
    grade=ProofStrength.TOKEN,
    proof=Token(selector=Json("secret")),
    sample=Sample(
        body=b'{"group_id":1,"type":"message_new","event_id":"boathook-sample","v":"5.199","object":{"message":'
        b'{"id":1,"text":"hello"}},"secret":"boathook-sample-secret"}',
        settings={"confirmation": "1a2b3c4d"},
    ),
    id=EventId(selectors=(Json("event_id"),)),
    type=EventType(selectors=(Json("type"),)),
    # VK confirms the URL before a secret can be set, so the challenge may come without one.
    handshakes=(
        Handshake(when=((Json("type"), "confirmation"),), answer=StaticAnswer(setting="confirmation"), is_proven=False),
    ),
    reply=ExpectedReply(body=("ok",)),
    settings=(
        Setting(
            name="confirmation",
            help=(
                "The string that VK expects as the reply to its confirmation request, from the group's Callback "
                "API page"
            ),
            is_required=True,
        ),
    ),
    retries="several times; paused after several consecutive errors",
    checked=("built by hand from its documentation",),
    confidence={"retries": Confidence.SECONDARY},
    setup=(
        "In the community open Manage, API usage, Callback API, and add a server.",
        (
            "Set confirmation of the source to the string that the server must return, choose a long random "
            "secret key, put it into the source's secrets, and start boathook."
        ),
        "Enter {url}, the same secret key, confirm, and choose the event types.",
    ),
    is_secret_chosen=True,
)

META = Recipe(
    name="meta",
    aliases=("whatsapp", "facebook", "instagram", "messenger"),
    title="Meta: WhatsApp, Facebook, Instagram, Messenger",
    docs="https://developers.facebook.com/docs/graph-api/webhooks/getting-started",
    # https://developers.facebook.com/docs/whatsapp/cloud-api/webhooks
    max_body=3 * MIB,
    grade=ProofStrength.BODY,
    proof=Hmac(headers=(SignatureHeaders(signature="x-hub-signature-256"),), form=Plain("sha256=")),
    sample=Sample(
        body=b'{"object":"whatsapp_business_account","entry":[{"id":"102290129340398","changes":[{"field":"messages",'
        b'"value":{"messaging_product":"whatsapp","metadata":{"phone_number_id":"106540352242922"},"messages":'
        b'[{"from":"16505551234","id":"wamid.boathook-sample","timestamp":"1763700000","type":"text",'
        b'"text":{"body":"hello"}}]}}]}]}',
        settings={"verify_token": "boathook-sample-token"},
    ),
    type=EventType(selectors=(Json("object"),)),
    # A message's id is used again when the message is deleted or reacted to, and one change may hold several messages.
    # So an item's own content is its key. Many changes have no time, but the entry around them has the time of sending.
    # So a change sent again in another batch may count twice; otherwise the same change later would be lost. Messages
    # have their own time.
    items=BatchItems(
        paths=("entry.*.changes.*", "entry.*.messaging.*", "entry.*.standby.*"),
        type=EventType(selectors=(Json("field"),), first_key_except=("sender", "recipient", "timestamp", "app_id")),
        around={"entry.*.changes.*": ("id", "time")},
    ),
    # This challenge is the only request that Meta sends unsigned.
    handshakes=(
        Handshake(
            method="GET",
            when=((Query("hub.mode"), "subscribe"), Query("hub.challenge")),
            answer=Echo(selector=Query("hub.challenge"), allowed=re.compile(r"[A-Za-z0-9_-]{1,256}")),
            is_proven=False,
            token=(Query("hub.verify_token"), "verify_token"),
        ),
    ),
    settings=(
        Setting(
            name="verify_token",
            help="The Verify Token that you chose on the Webhooks page of the App Dashboard",
            is_required=True,
            is_secret=True,
        ),
    ),
    answer_within_s=5.0,
    retries="immediately, then at growing intervals for 36 hours (WhatsApp: 7 days); Messenger and Instagram "
    "unsubscribe the page after 1 hour of failures",
    retries_for_days=7.0,
    checked=("built by hand from its documentation",),
    confidence={
        "answer_within_s": Confidence.MEMORY,
        "retries": Confidence.SECONDARY,
    },
    setup=(
        (
            "At developers.facebook.com open the app, and put its App Secret, from Settings, Basic, into the "
            "source's secrets."
        ),
        "Choose a random verify_token for the source, and start boathook.",
        (
            "Under Webhooks (or WhatsApp, Configuration) enter {url} as callback URL and the same verify token, "
            "then subscribe to the fields."
        ),
    ),
)

X = Recipe(
    name="x",
    aliases=("twitter",),
    title="X (Twitter)",
    docs="https://docs.x.com/x-api/webhooks/introduction",
    grade=ProofStrength.BODY,
    # The first is made with the OAuth 2.0 client secret, the second with the consumer secret; during a migration X
    # sends both.
    proof=Hmac(
        headers=(
            SignatureHeaders(signature="x-twitter-webhooks-signature-oauth2"),
            SignatureHeaders(signature="x-twitter-webhooks-signature"),
        ),
        form=Plain("sha256="),
        encoding=Encoding.BASE64,
        any_header=True,
    ),
    sample=Sample(
        body=b'{"for_user_id":"2244994945","tweet_create_events":[{"id_str":"boathook-sample","text":"hello"}]}'
    ),
    # For posts, an activity's id is the post's id, so it is the same for all subscriptions. The older format, with
    # for_user_id, has ids only in nested objects; there the body is the key.
    id=EventId(
        selectors=(
            (Json("data.event_type"), Json("data.filter.user_id"), Json("data.event_uuid")),
            (Json("data.event_type"), Json("data.filter.keyword"), Json("data.event_uuid")),
            (Json("data.event_type"), Json("data.event_uuid")),
        )
    ),
    type=EventType(
        selectors=(Json("data.event_type"),),
        first_key_except=("for_user_id", "user_has_blocked", "is_blocked_by", "users", "apps"),
    ),
    handshakes=(
        Handshake(
            method="GET",
            when=(Query("crc_token"),),
            answer=SignText(
                selector=Query("crc_token"),
                allowed=NOT_JSON,
                template='{"response_token":"sha256={mac}"}',
                encoding=Encoding.BASE64,
            ),
            is_proven=False,
        ),
    ),
    answer_within_s=10.0,
    retries="not published; past events can be requested again",
    checked=("built by hand from its documentation",),
    confidence={"type": Confidence.SECONDARY},
    setup=(
        "Put the app's consumer secret (API key secret) into the source's secrets, and start boathook.",
        (
            "Register {url} with POST /2/webhooks, then subscribe the accounts. X sends a verification request "
            "repeatedly, and stops sending events after a wrong reply."
        ),
    ),
)

ZOOM = Recipe(
    name="zoom",
    title="Zoom",
    docs="https://developers.zoom.us/docs/api/webhooks",
    grade=ProofStrength.BODY,
    proof=Hmac(
        headers=(SignatureHeaders(signature="x-zm-signature", timestamp="x-zm-request-timestamp"),),
        form=Plain("v0="),
        template="v0:{timestamp}:{body}",
    ),
    sample=Sample(
        body=b'{"event":"meeting.started","event_ts":1763700000000,"payload":{"account_id":"abc","object":'
        b'{"id":"123456789","uuid":"boathook-sample==","topic":"A sample"}}}'
    ),
    # Event, time and meeting cannot distinguish two people who join in the same millisecond; the body can.
    type=EventType(selectors=(Json("event"),)),
    handshakes=(
        Handshake(
            when=((Json("event"), "endpoint.url_validation"),),
            answer=SignText(
                selector=Json("payload.plainToken"),
                allowed=NO_COLON,
                template='{"plainToken":"{text}","encryptedToken":"{mac}"}',
            ),
        ),
    ),
    answer_within_s=3.0,
    retries="3 times: after 5, 20 and 60 minutes",
    retries_for_days=0.1,
    checked=("1 vector of elastic/beats for the challenge", "built by hand from its documentation"),
    setup=(
        (
            "In the Zoom App Marketplace open the app, Features, and copy the secret token into the source's "
            "secrets. Start boathook."
        ),
        "Enable Event Subscriptions, enter {url} as endpoint URL, press Validate, and choose the events.",
    ),
)

RECIPES = (SLACK, DISCORD, TELEGRAM, VK, META, X, ZOOM)
