"""Recipes of Standard Webhooks and Svix, one scheme with two sets of header names, and of senders that use Svix."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Encoding, KeyFormat
from boathook.providers.event_types import CLERK_TYPES, RESEND_TYPES
from boathook.providers.recipe import BodyFormat, Confidence, EventId, EventType, Recipe, Sample, SecretForm
from boathook.providers.request_reader import Header, Json, RequestReader
from boathook.providers.schemes import (
    Asymmetric,
    ConfiguredKey,
    Hmac,
    PublicKeyFormat,
    SignatureAlgorithm,
    SignatureHeaders,
    SignedPart,
    SignedParts,
    SignedTimestamp,
    Versioned,
    present_headers,
)

_STANDARD_NAMES: Final = SignatureHeaders(signature="webhook-signature", timestamp="webhook-timestamp", id="webhook-id")
_SVIX_NAMES: Final = SignatureHeaders(signature="svix-signature", timestamp="svix-timestamp", id="svix-id")

STANDARD_HMAC: Final = Hmac(
    headers=(_STANDARD_NAMES, _SVIX_NAMES),
    form=Versioned(version="v1"),
    template="{id}.{timestamp}.{body}",
    encoding=Encoding.BASE64,
    key_form=KeyFormat.STANDARD,
)
"""The symmetric scheme of Standard Webhooks 1.0.0, for all senders that use it."""


def _ed25519_state(reader: RequestReader, _secret: str) -> SignedParts | str:
    """Return the signed bytes, as in the symmetric scheme: Standard Webhooks 1.0.0, "Signature scheme", asymmetric."""
    headers = reader.request.headers
    names = present_headers(STANDARD_HMAC.headers, headers)
    assert names.id is not None
    assert names.timestamp is not None
    identifier = headers.get(names.id, "")
    if not identifier:
        return f"there is no header {names.id}, and the signature covers it"
    if "." in identifier:
        return f"the id in {names.id} contains a dot, so the signed bytes are ambiguous"
    head = f"{identifier}.{headers.get(names.timestamp, '')}.".encode("latin-1", "replace")
    return (SignedPart(Header(names.signature), head + reader.request.body),)


_STANDARD: Final = Recipe(
    name="standard-webhooks",
    aliases=("svix",),
    title="Standard Webhooks, Svix",
    docs="https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
    grade=ProofStrength.BODY,
    proof=STANDARD_HMAC,
    sample=Sample(
        body=b'{"type":"user.created","timestamp":"2026-11-21T10:00:00Z","data":{"id":"1"}}',
        headers={"webhook-id": "msg_boathook-sample"},
        secret="whsec_Ym9hdGhvb2stc2FtcGxlLXNlY3JldC0yNGI=",
    ),
    id=EventId(selectors=(Header("webhook-id"), Header("svix-id")), is_kept_in_retries=True),
    type=EventType(selectors=(Json("type"),)),
    body=BodyFormat.ANY,
    # By the specification, a sender disables the webhook when it receives 410 Gone.
    stop_statuses=frozenset({410}),
    answer_within_s=15.0,
    retries="by the sender's own schedule; the specification suggests 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, "
    "24 h",
    retries_for_days=3.2,
    checked=("standardwebhooks (Python), both ways", "svix (Python), both ways"),
    setup=(
        "At the sender, add an endpoint with the URL {url} and choose the event types.",
        (
            "Copy the endpoint's signing secret, which begins with whsec_, into the source's secrets. For "
            'Ed25519 set scheme = "v1a" and copy the public key, which begins with whpk_.'
        ),
    ),
)


def _through_svix(
    name: str,
    title: str,
    docs: str,
    body: bytes,
    step: str,
    *,
    types: Mapping[str, tuple[str, ...]],
    others: Mapping[str, str],
) -> Recipe:
    """Return the recipe of a sender that sends through Svix.

    Args:
        name: the provider's name.
        title: the sender's name.
        docs: its documentation.
        body: a sample.
        step: the first step of the set-up.
        types: its event types, as `EventType.rests`.
        others: its other values, as `SecretForm.others`.
    """
    return replace(
        _STANDARD,
        name=name,
        setup=(
            step,
            "Copy the endpoint's signing secret, which begins with whsec_, into the source's secrets.",
        ),
        aliases=(),
        title=title,
        docs=docs,
        proof=replace(STANDARD_HMAC, headers=(_SVIX_NAMES, _STANDARD_NAMES)),
        sample=replace(_STANDARD.sample, body=body, headers={"svix-id": "msg_boathook-sample"}),
        id=EventId(selectors=(Header("svix-id"), Header("webhook-id")), is_kept_in_retries=True),
        type=EventType(selectors=(Json("type"),), known=tuple(types), rests=types),
        secret_form=SecretForm(others=others),
        body=BodyFormat.JSON,
        retries="after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h; an endpoint that fails for 5 days is disabled",
        retries_for_days=1.2,
        checked=("svix (Python), both ways",),
        # Svix documents no status that stops it, only the response header webhook-delivery.
        confidence={"stop_statuses": Confidence.SECONDARY},
    )


RECIPES: Final = (
    replace(
        _STANDARD,
        schemes={
            "v1a": replace(
                _STANDARD,
                proof=Asymmetric(
                    read_signed_parts=_ed25519_state,
                    scheme=SignatureAlgorithm.ED25519,
                    key=ConfiguredKey(text=PublicKeyFormat.STANDARD),
                    form=Versioned(version="v1a"),
                    timestamp=SignedTimestamp(selector=Header("webhook-timestamp")),
                    headers=STANDARD_HMAC.headers,
                ),
                checked=("the vector of Svix's own server, for its Ed25519 signatures",),
            )
        },
        checked=(*_STANDARD.checked, "v1a: the vector of Svix's own server"),
    ),
    _through_svix(
        "resend",
        "Resend",
        "https://resend.com/docs/webhooks/verify-webhooks-requests",
        b'{"type":"email.delivered","created_at":"2026-11-21T10:00:00Z","data":{"email_id":"boathook-sample"}}',
        "In Resend open Webhooks, add one, enter {url} and choose the events.",
        types=RESEND_TYPES,
        others={"re_": "an API key"},
    ),
    _through_svix(
        "clerk",
        "Clerk",
        "https://clerk.com/docs/webhooks/overview",
        b'{"type":"user.created","object":"event","timestamp":1763700000000,"data":{"id":"user_boathook-sample"}}',
        "In Clerk's Dashboard open Configure, Webhooks, add an endpoint, enter {url} and choose the events.",
        types=CLERK_TYPES,
        others={"sk_(live|test)_": "a secret key of the API", "pk_(live|test)_": "a publishable key"},
    ),
)
