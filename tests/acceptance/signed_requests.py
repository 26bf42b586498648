"""Webhook requests signed by the providers' own libraries; this module imports nothing of boathook."""

import base64
import hmac
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import standardwebhooks
import stripe
import svix
from slack_sdk.signature import SignatureVerifier

SECRETS = {
    "stripe": "whsec_stripe_of_the_shop",
    "github": "It's a Secret to Everybody",
    "slack": "8f742231b10e8888abcd99yyyzzz85a5",
    "standard": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "svix": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    "custom": "73ab00ff",
    "token": "long static token",
    "basic": "pass:word",
}
"""The secret that each sender shares with its source."""

NEW_SECRETS = {
    "stripe": "whsec_of_next_month",
    "github": "Nobody knows yet",
    "slack": "00112233445566778899aabbccddeeff",
    "standard": "whsec_DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD",
    "svix": "whsec_EEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE",
    "custom": "c0ffee",
}
"""Secrets that senders already use but boathook does not have yet."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed request with the event that boathook is expected to store."""

    source: str
    body: bytes
    headers: dict[str, str]
    key: str
    """The expected dedup key."""
    type: str
    grade: str = "body signed"


def mac(secret: bytes, material: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.new(secret, material, algorithm).digest()


def from_stripe(at: float, key: str, *, source: str = "payments", secret: str | None = None) -> SignedRequest:
    body = json.dumps({"id": key, "object": "event", "type": "invoice.paid"}, indent=2)
    header = stripe.WebhookSignature.generate_signature_header(body, secret or SECRETS["stripe"], timestamp=int(at))
    return SignedRequest(source, body.encode(), {"Stripe-Signature": header}, key, "invoice.paid")


def from_github(_at: float, key: str) -> SignedRequest:
    body = json.dumps({"action": "opened", "pull_request": {"title": key}}).encode()
    signature = "sha256=" + mac(SECRETS["github"].encode(), body).hex()
    headers = {"X-Hub-Signature-256": signature, "X-GitHub-Delivery": key, "X-GitHub-Event": "pull_request"}
    return SignedRequest("github", body, headers, key, "pull_request.opened")


def slack_request(at: float, payload: dict[str, Any], key: str, type: str) -> SignedRequest:
    body = json.dumps(payload)
    stamp = str(int(at))
    signature = SignatureVerifier(SECRETS["slack"]).generate_signature(timestamp=stamp, body=body)
    assert signature is not None
    headers = {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": stamp}
    return SignedRequest("slack", body.encode(), headers, key, type)


def from_slack(at: float, key: str) -> SignedRequest:
    event = {"type": "app_mention", "text": "ahoy <@U1>"}
    return slack_request(at, {"type": "event_callback", "event_id": key, "event": event}, key, "app_mention")


def from_standard(at: float, key: str) -> SignedRequest:
    body = json.dumps({"type": "user.created", "data": {"name": "Zoë", "ref": key}})
    moment = datetime.fromtimestamp(int(at), UTC)
    signature = standardwebhooks.Webhook(SECRETS["standard"]).sign(key, moment, body)
    headers = {"webhook-id": key, "webhook-timestamp": str(int(at)), "webhook-signature": signature}
    return SignedRequest("standard", body.encode(), headers, key, "user.created")


def from_svix(at: float, key: str) -> SignedRequest:
    body = json.dumps({"type": "user.deleted", "data": {"name": "Zoë", "ref": key}})
    signature = svix.Webhook(SECRETS["svix"]).sign(key, datetime.fromtimestamp(int(at), UTC), body)
    headers = {"svix-id": key, "svix-timestamp": str(int(at)), "svix-signature": signature}
    return SignedRequest("svix", body.encode(), headers, key, "user.deleted")


def from_custom(at: float, key: str) -> SignedRequest:
    body = b'{"meta":{"ref":"%s"}}\n' % key.encode()
    proof = mac(bytes.fromhex(SECRETS["custom"]), b"POST|%d|%s" % (int(at), body), "sha512")
    headers = {
        "X-Acme-Proof": f"acme={base64.b64encode(proof).decode()}", "X-Acme-Time": str(int(at)), "X-Acme-Kind": "sail",
    }  # fmt: skip
    return SignedRequest("custom", body, headers, key, "sail")


def from_token(_at: float, key: str) -> SignedRequest:
    headers = {"X-Token": f"Token {SECRETS['token']}", "X-Request": key}
    return SignedRequest("token", b"any bytes \x00\xff" + key.encode(), headers, key, "unknown", "token")


def from_basic(_at: float, key: str) -> SignedRequest:
    credentials = base64.b64encode(f"ship:{SECRETS['basic']}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}"}
    return SignedRequest("basic", b'{"n":"%s"}' % key.encode(), headers, key, "unknown", "token")


SIGNERS = (from_stripe, from_github, from_slack, from_standard, from_svix, from_custom)
SENDERS = (*SIGNERS, from_token, from_basic)
TIMESTAMPED = (from_stripe, from_slack, from_standard, from_svix, from_custom)
Sender = Callable[[float, str], SignedRequest]


def new_key() -> str:
    return f"key_{uuid.uuid4().hex}"


PROOF_HEADER_SUFFIXES = ("signature", "signature-256", "proof", "token", "authorization")
"""Suffixes of the names of headers that hold a signature or token."""


def name_of(sender: Sender) -> str:
    return sender.__name__.removeprefix("from_")
