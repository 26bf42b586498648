"""The largest body that each sender documents; a source accepts as much by default."""

import pytest

from boathook.config import load
from boathook.ingest.sources import compile_sources
from boathook.providers import find_recipe
from boathook.providers.recipe import Confidence
from scripts import docs_providers

MIB = 1 << 20
DOCUMENTED = {
    # "Payloads are capped at 25 MB": https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
    "github": 25,
    # "Limit webhook payload size to 25MB": https://gitlab.com/gitlab-org/gitlab/-/merge_requests/38687
    "gitlab": 25,
    # Of its Inbound Parse Webhook; none is documented for the Event Webhook. "The total message size limit, including
    # the message itself and any number of attachments, is 30MB" (read on 2026-11-28):
    # https://www.twilio.com/docs/sendgrid/for-developers/parsing-email/inbound-email
    # "cannot parse messages greater than 30MB in size, including all attachments":
    # https://www.twilio.com/docs/sendgrid/api-reference/webhooks/retrieves-inbound-parse-webhook-statistics
    "sendgrid": 30,
    # "Total cumulative size for all Inbound attachment files may not exceed 35 MB":
    # https://postmarkapp.com/support/article/1056-what-are-the-attachment-and-email-size-limits
    "postmark": 35,
    # "Webhooks payloads can be up to 3MB": https://developers.facebook.com/docs/whatsapp/cloud-api/webhooks
    "meta": 3,
    # Unconfirmed: Google documents 10 MB for a message's data, not the body that it pushes, where they are Base64. Its
    # client states 1e7 bytes (read on 2026-11-28), as https://cloud.google.com/pubsub/quotas does:
    # https://docs.rs/crate/google-cloud-pubsub/latest/source/src/publisher/constants.rs
    "pubsub": 14,
}
SETTINGS = {
    "meta": {"verify_token": "a-token-of-the-tests"},
    "pubsub": {"audience": "https://hooks.example.com", "email": "push@example.iam.gserviceaccount.com"},
}


@pytest.mark.parametrize("provider", DOCUMENTED)
def test_a_source_accepts_what_its_sender_documents(provider: str) -> None:
    assert find_recipe(provider).max_body == DOCUMENTED[provider] * MIB
    table: dict[str, object] = {"provider": provider, "unsigned": True, **SETTINGS.get(provider, {})}
    sources = {"one": table, "own": table | {"max_body": 7}}
    compiled = compile_sources(load(None, {"sources": sources}))
    assert compiled["/in/one"].max_body == min(DOCUMENTED[provider], 25) * MIB
    assert compiled["/in/own"].max_body == 7
    raised = compile_sources(load(None, {"sources": sources, "limits": {"max_provider_body": 99 * MIB}}))
    assert raised["/in/one"].max_body == DOCUMENTED[provider] * MIB


@pytest.mark.parametrize(("provider", "is_confirmed"), [("sendgrid", True), ("pubsub", False)])
def test_docs_say_which_limit_is_unconfirmed(provider: str, is_confirmed: bool) -> None:
    assert (find_recipe(provider).confidence.get("max_body", Confidence.PRIMARY) is Confidence.PRIMARY) is is_confirmed
    page = docs_providers.pages()[provider]
    assert f"Largest body: {DOCUMENTED[provider]} MB{'' if is_confirmed else '; that is unconfirmed'}." in page


def test_a_scheme_of_a_sender_has_the_same_limit() -> None:
    sources = {"one": {"provider": "gitlab", "scheme": "token", "secrets": ["a-secret-of-the-tests"]}}
    assert compile_sources(load(None, {"sources": sources}))["/in/one"].max_body == 25 * MIB


def test_a_sender_without_a_documented_limit_keeps_the_general_one() -> None:
    for provider in ("stripe", "shopify", "slack"):
        assert find_recipe(provider).max_body is None
        compiled = compile_sources(load(None, {"sources": {"one": {"provider": provider, "unsigned": True}}}))
        assert compiled["/in/one"].max_body == MIB


def test_settings_of_an_earlier_version_stay_readable() -> None:
    limits = load(None, {"limits": {"max_body": 2 * MIB, "max_ratio": 20, "max_decoded": 9 * MIB}}).limits
    assert (limits.max_body, limits.max_ratio, limits.max_provider_body) == (2 * MIB, 20, 25 * MIB)
