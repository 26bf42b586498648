"""Builds verifiers with test secrets and requests signed for them at a fixed time."""

from collections.abc import Mapping
from typing import Any

from boathook.testing import sign
from boathook.verification.verifier import Request, SourceSpec, Verifier

NOW = 1_700_000_000.0
URL = "https://hooks.example.com/in/test"

STRIPE_SECRET = "whsec_stripe_test"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRETS = {
    "stripe": STRIPE_SECRET,
    "github": "github secret",
    "slack": "8f742231b10e8888abcd99yyyzzz85a5",
    "standard-webhooks": STANDARD_SECRET,
    "hmac": "generic secret",
    "token": "static token",
}
SETTINGS: dict[str, dict[str, Any]] = {"token": {"header": "x-token"}}
OWN = (
    "secrets",
    "unsigned",
    "tolerance_s",
    "dedup_fields",
    "dedup_headers",
    "dedup_object",
    "volatile",
    "public_url",
    "addresses",
    "methods",
)


def request(body: bytes, headers: Mapping[str, str], **changes: Any) -> Request:
    fields = {"method": "POST", "url": URL, "path": "/in/test", "query": "", "client": "192.0.2.1"} | changes
    return Request(
        body=body, headers={"host": "hooks.example.com", "content-type": "application/json"} | dict(headers), **fields
    )


def verifier(provider: str, secret: str | None = None, /, **changes: Any) -> Verifier:
    """Return the verifier of a source with its test secret; unknown keywords are the provider's own settings."""
    own = {key: changes.pop(key) for key in OWN if key in changes}
    if "secrets" not in own:
        own["secrets"] = (secret or SECRETS[provider],)
    own.setdefault("public_url", "https://hooks.example.com")
    return Verifier(SourceSpec(name="test", provider=provider, options=SETTINGS.get(provider, {}) | changes, **own))


def signed(provider: str, body: bytes, **changes: Any) -> Request:
    """Return a request as the provider sends it at `NOW`."""
    changes = {"timestamp": NOW, "id": "evt_1"} | SETTINGS.get(provider, {}) | changes
    return request(body, sign(provider, changes.pop("secret", SECRETS.get(provider)), body, **changes))
