"""Senders that developers work with: code, builds, incidents."""

from boathook.domain.model import Grade
from boathook.inbound.places import Header, Json
from boathook.inbound.providers.forms import Plain
from boathook.inbound.providers.proofs import Hmac, SignedHeaders
from boathook.inbound.providers.recipe import BodyForm, EventId, EventType, Recipe, Sample

RECIPES = (
    Recipe(
        name="github",
        title="GitHub",
        docs="https://docs.github.com/webhooks",
        grade=Grade.BODY,
        proof=Hmac(headers=(SignedHeaders(signature="x-hub-signature-256"),), form=Plain("sha256=")),
        sample=Sample(
            body=b'{"action":"opened","issue":{"number":1,"title":"A sample"},"repository":{"full_name":"a/b"}}',
            headers={"x-github-delivery": "boathook-sample-0000-0000-000000000000", "x-github-event": "issues"},
        ),
        id=EventId(places=(Header("x-github-delivery"),), is_signed=False),
        type=EventType(places=((Header("x-github-event"), Json("action")),)),
        # Hooks may be set to send a form, whose field payload holds the JSON; its type is then the header's alone.
        body=BodyForm.ANY,
        keep=("x-github-hook-id", "x-github-hook-installation-target-id", "x-github-hook-installation-target-type"),
        answer_within_s=10.0,
        retries="never by itself; a redelivery asked for keeps the id",
    ),
)
