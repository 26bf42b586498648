"""Senders that move money."""

from boathook.domain.model import Grade
from boathook.inbound.places import Json
from boathook.inbound.providers.forms import Pairs
from boathook.inbound.providers.proofs import Hmac, SignedHeaders
from boathook.inbound.providers.recipe import EventId, EventType, Recipe, Sample, Sure

RECIPES = (
    Recipe(
        name="stripe",
        title="Stripe",
        docs="https://docs.stripe.com/webhooks",
        grade=Grade.BODY,
        # The whole whsec_… string is the key, as text. v0 signatures belong to test events of old and are passed over.
        proof=Hmac(
            headers=(SignedHeaders(signature="stripe-signature"),),
            form=Pairs(signature="v1", timestamp="t"),
            template="{timestamp}.{body}",
        ),
        sample=Sample(
            body=b'{"id":"evt_boathook-sample","object":"event","type":"payment_intent.succeeded","created":1763700000,'
            b'"data":{"object":{"id":"pi_boathook-sample","amount":1099,"currency":"eur"}}}',
            secret="whsec_boathook-sample-secret",
        ),
        id=EventId(places=(Json("id"),)),
        type=EventType(places=(Json("type"),)),
        volatile=("pending_webhooks",),
        answer_within_s=30.0,
        retries="for up to 3 days with growing pauses, each signed anew",
        sure={
            "answer_within_s": Sure.SECONDARY,
            "retries": Sure.SECONDARY,
            "volatile": Sure.MEMORY,
        },
    ),
)
