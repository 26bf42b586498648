"""Every provider against every other: its own request is taken, tampered ones and those of all others are refused."""

import pytest
from msgspec.structs import replace

from boathook.domain.model import ProofStrength
from boathook.domain.verification import KeyRequired, Rejected, Verified
from boathook.providers import RECIPES, find_recipe
from boathook.providers.schemes import Addresses, NoProof, Token
from boathook.testing import signed_request
from tests.providers.source_factory import NOW, ProviderSource, all_sources

ALL = list(all_sources())
GUARDED = [provider_source for provider_source in ALL if not isinstance(provider_source.recipe.proof, NoProof)]
FORBIDDEN = {403, 406, 410}
"""Statuses by which one sender or another stops for good."""

every = pytest.mark.parametrize("provider_source", ALL, ids=str)
guarded = pytest.mark.parametrize("provider_source", GUARDED, ids=str)


@every
def test_its_own_request_is_accepted(provider_source: ProviderSource):
    verdict = provider_source.verifier().verify(provider_source.request(provider_source.sign_sample()), NOW)
    assert isinstance(verdict, Verified), verdict
    expected = ProofStrength.NONE if isinstance(provider_source.recipe.proof, NoProof) else provider_source.recipe.grade
    assert verdict.grade is expected


@guarded
def test_a_request_for_one_is_refused_by_all_others(provider_source: ProviderSource):
    request = provider_source.request(provider_source.sign_sample())
    taken = [
        other.label
        for other in GUARDED
        if other is not provider_source and isinstance(other.verifier().verify(request, NOW), Verified)
    ]
    assert taken == []


def test_mutant_the_matrix_detects_a_shared_secret():
    """Sources with an equal scheme and secret accept each other's requests."""
    ours = next(provider_source for provider_source in GUARDED if provider_source.label == "github")
    theirs = replace(
        next(provider_source for provider_source in GUARDED if provider_source.label == "meta"), secrets=ours.secrets
    )
    assert isinstance(theirs.verifier().verify(ours.request(ours.sign_sample()), NOW), Verified)


@guarded
def test_one_changed_byte_of_a_signed_body_is_refused(provider_source: ProviderSource):
    if provider_source.recipe.grade is not ProofStrength.BODY:
        pytest.skip("its signature does not cover the whole body")
    verifier, request = provider_source.verifier(), provider_source.request(provider_source.sign_sample())
    if request.body:
        middle = request.body.index(b"sample") if b"sample" in request.body else len(request.body) // 2
        altered = replace(request, body=_flip(request.body, middle))
    else:
        query = _flip(request.query.encode(), len(request.query) // 2).decode()
        altered = replace(request, query=query, url=f"{provider_source.url}?{query}")
    verdict = verifier.verify(altered, NOW)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.status == 401


def _flip(text: bytes, position: int) -> bytes:
    return text[:position] + bytes([text[position] ^ 1]) + text[position + 1 :]


@guarded
def test_without_a_proof_it_is_refused_with_401(provider_source: ProviderSource):
    sample = provider_source.recipe.sample
    request = replace(
        provider_source.request(provider_source.sign_sample()),
        headers={"content-type": sample.content_type},
        body=sample.body,
        client="192.0.2.9",
    )
    if isinstance(provider_source.recipe.proof, Token) or request.method == "GET":
        request = replace(request, url=provider_source.url, query="")
    verdict = provider_source.verifier().verify(request, NOW)
    assert isinstance(verdict, Rejected | KeyRequired), verdict
    if isinstance(verdict, Rejected):
        assert verdict.status == 401
        assert verdict.status not in provider_source.recipe.stop_statuses | FORBIDDEN


@every
def test_equal_requests_have_equal_keys_and_others_differ(provider_source: ProviderSource):
    verifier = provider_source.verifier()
    if provider_source.recipe.id.is_repeatable and not provider_source.recipe.id.selectors:
        pytest.skip("its requests may repeat and mean something else")
    keys = []
    for word in ("sample", "simple"):
        request = provider_source.request(provider_source.sign_sample(word))
        first, again = (_keys(verifier.verify(request, NOW)) for _ in range(2))
        assert first == again
        keys.append(first)
    if "sample" in "".join(keys[0]):
        assert keys[0] != keys[1]


def _keys(verdict: object) -> tuple[str, ...]:
    assert isinstance(verdict, Verified), verdict
    return (verdict.dedup_key, *(item.dedup_key for item in verdict.items))


def test_names_and_aliases_are_unique_and_plain():
    names = [name for recipe in RECIPES for name in (recipe.name, *recipe.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and name.replace("-", "").isalnum() for name in names)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_is_completely_described(recipe):
    assert recipe.docs.startswith("https://"), recipe.docs
    assert recipe.title
    described = recipe.describe()
    assert described["grade"] in {grade.value for grade in ProofStrength}
    unknown = set(recipe.confidence) - set(recipe.__struct_fields__)
    assert unknown == set(), "sure names facts by field"
    for one in (recipe, *recipe.schemes.values()):
        assert one.name == recipe.name
        assert isinstance(one.proof, Token | Addresses | NoProof) or one.grade in {
            ProofStrength.BODY,
            ProofStrength.METADATA,
            ProofStrength.TOKEN,
        }


REFERENCE = [
    "stripe",
    "paypal",
    "square",
    "adyen",
    "braintree",
    "gocardless",
    "mollie",
    "razorpay",
    "coinbase-commerce",
    "paddle",
    "yookassa",
    "cloudpayments",
    "t-bank",
    "robokassa",
    "tilda",
    "shopify",
    "woocommerce",
    "twilio",
    "sendgrid",
    "mailgun",
    "postmark",
    "resend",
    "clerk",
    "github",
    "gitlab",
    "bitbucket",
    "jira",
    "linear",
    "vercel",
    "netlify",
    "circleci",
    "sentry",
    "pagerduty",
    "okta",
    "auth0",
    "openai",
    "sns",
    "pubsub",
    "microsoft-graph",
    "slack",
    "discord",
    "telegram",
    "vk",
    "meta",
    "whatsapp",
    "x",
    "twitter",
    "dropbox",
    "notion",
    "intercom",
    "zendesk",
    "hubspot",
    "zoom",
    "docusign",
    "typeform",
    "calendly",
    "xero",
    "suno",
    "rentprog",
    "umnico",
    "standard-webhooks",
    "svix",
    "hmac",
    "token",
    "unsigned",
]


def test_every_provider_promised_is_there():
    for name in REFERENCE:
        find_recipe(name)


def test_a_sample_needs_no_body():
    signed = signed_request("stripe", "whsec_x")
    assert signed.method == "POST"
    assert "stripe-signature" in signed.headers
