"""Senders that people talk through."""

from boathook.domain.model import Grade
from boathook.inbound.places import Form, Json
from boathook.inbound.providers.forms import Plain
from boathook.inbound.providers.proofs import Hmac, SignedHeaders
from boathook.inbound.providers.recipe import BodyForm, Echo, EventId, EventType, Handshake, Recipe, Sample, Sure

RECIPES = (
    Recipe(
        name="slack",
        title="Slack",
        docs="https://docs.slack.dev/authentication/verifying-requests-from-slack",
        grade=Grade.BODY,
        proof=Hmac(
            headers=(SignedHeaders(signature="x-slack-signature", timestamp="x-slack-request-timestamp"),),
            form=Plain("v0="),
            template="v0:{timestamp}:{body}",
        ),
        sample=Sample(
            body=b'{"type":"event_callback","event_id":"Ev-boathook-sample","team_id":"T0001","event":{"type":"app_mention","text":"hello"}}'
        ),
        # Events are JSON; slash commands are forms, and name themselves by a trigger.
        id=EventId(places=(Json("event_id"), Form("trigger_id"))),
        type=EventType(places=(Json("event.type"), Json("type"), Form("command"))),
        body=BodyForm.ANY,
        keep=("x-slack-retry-num", "x-slack-retry-reason"),
        handshakes=(Handshake(when=((Json("type"), "url_verification"),), answer=Echo(place=Json("challenge"))),),
        answer_within_s=3.0,
        retries="3 times: almost at once, after 1 minute, after 5 minutes",
        sure={"retries": Sure.SECONDARY, "id": Sure.MEMORY},
    ),
)
