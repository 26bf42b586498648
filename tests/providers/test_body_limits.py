"""The largest body that each sender documents; a source accepts as much by default."""

import pytest

from boathook.config import load
from boathook.ingest.sources import compile_sources
from boathook.providers import find_recipe

MIB = 1 << 20
DOCUMENTED = {
    # "Payloads are capped at 25 MB": https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap
    "github": 25,
    # "Limit webhook payload size to 25MB": https://gitlab.com/gitlab-org/gitlab/-/merge_requests/38687
    "gitlab": 25,
    # "The total message size limit, including the message itself and any number of attachments, is 30MB":
    # https://www.twilio.com/docs/sendgrid/for-developers/parsing-email/inbound-email
    "sendgrid": 30,
    # "Total cumulative size for all Inbound attachment files may not exceed 35 MB":
    # https://postmarkapp.com/support/article/1056-what-are-the-attachment-and-email-size-limits
    "postmark": 35,
    # "Webhooks payloads can be up to 3MB": https://developers.facebook.com/docs/whatsapp/cloud-api/webhooks
    "meta": 3,
    # Messages of 10 MB (https://cloud.google.com/pubsub/quotas), which are Base64 in the body.
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
