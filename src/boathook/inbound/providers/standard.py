"""Standard Webhooks and its elder, Svix: one scheme under two sets of header names."""

from boathook.domain.model import Grade
from boathook.domain.signing import Encoding, KeyForm
from boathook.inbound.places import Header, Json
from boathook.inbound.providers.forms import Versioned
from boathook.inbound.providers.proofs import Hmac, SignedHeaders
from boathook.inbound.providers.recipe import BodyForm, EventId, EventType, Recipe, Sample

STANDARD_HMAC = Hmac(
    headers=(
        SignedHeaders(signature="webhook-signature", timestamp="webhook-timestamp", id="webhook-id"),
        SignedHeaders(signature="svix-signature", timestamp="svix-timestamp", id="svix-id"),
    ),
    form=Versioned(version="v1"),
    template="{id}.{timestamp}.{body}",
    encoding=Encoding.BASE64,
    key_form=KeyForm.STANDARD,
)
"""The symmetric scheme of Standard Webhooks 1.0.0, for every sender that speaks it."""

RECIPES = (
    Recipe(
        name="standard-webhooks",
        aliases=("svix",),
        title="Standard Webhooks, Svix",
        docs="https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
        grade=Grade.BODY,
        proof=STANDARD_HMAC,
        sample=Sample(
            body=b'{"type":"user.created","timestamp":"2026-11-21T10:00:00Z","data":{"id":"1"}}',
            headers={"webhook-id": "msg_boathook-sample"},
            secret="whsec_Ym9hdGhvb2stc2FtcGxlLXNlY3JldC0yNGI=",
        ),
        id=EventId(places=(Header("webhook-id"), Header("svix-id"))),
        type=EventType(places=(Json("type"),)),
        body=BodyForm.ANY,
        answer_within_s=15.0,
        retries="after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h",
    ),
)
