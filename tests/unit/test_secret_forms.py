"""What each sender's other keys and tokens look like, so that one in the place of the secret is an error with its name."""

import pytest

from boathook.domain.errors import ConfigError
from boathook.domain.verification import SourceSpec
from boathook.providers import RECIPES
from boathook.verification.source import check_secret_forms

SID = "0123456789abcdef" * 2
OTHERS = [
    # https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github#githubs-token-formats
    *(("github", f"{start}{SID}", "a token") for start in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_")),
    # https://gitlab.com/gitlab-org/gitlab/-/merge_requests/138438
    ("gitlab", f"glpat-{SID}", "an access token"),
    ("gitlab", f"gldt-{SID}", "a deploy token"),
    # https://docs.slack.dev/tools/node-slack-sdk/web-api, https://api.slack.com/concepts/token-types
    ("slack", "xoxb-1-2-3", "a token"),
    ("slack", "xoxp-1-2-3", "a token"),
    ("slack", "xapp-1-2-3", "an app-level token"),
    # https://core.telegram.org/bots/api#authorizing-your-bot; #setwebhook: no secret token has a colon
    ("telegram", "123456:ABC-DEF1234ghIkl-zyx57W2v1u123ew11", "the token of the bot"),
    # https://shopify.dev/changelog/length-of-the-shopify-access-token-is-increasing
    *(("shopify", f"{start}{SID}", "an access token") for start in ("shpat_", "shpca_", "shppa_")),
    # https://www.twilio.com/docs/glossary/what-is-a-sid
    ("twilio", f"AC{SID}", "an account's SID"),
    ("twilio", f"SK{SID}", "the SID of an API key"),
    # https://resend.com/docs/api-reference/webhooks/rotate-signing-secret
    ("resend", "re_zKa4RCko_Lhm9ost2YjNCctnPjbLw8Nop", "an API key"),
    # https://github.com/clerk/javascript/blob/main/packages/shared/src/keys.ts
    ("clerk", f"sk_live_{SID}", "a secret key"),
    ("clerk", f"sk_test_{SID}", "a secret key"),
    ("clerk", f"pk_test_{SID}", "a publishable key"),
]
GENUINE = [
    # the vector of https://docs.slack.dev/authentication/verifying-requests-from-slack
    ("slack", "8f742231b10e8888abcd99yyyzzz85a5"),
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    ("github", "It's a Secret to Everybody"),
    # https://shopify.dev/changelog/app-secret-key-length-has-increased: those of before have no prefix
    ("shopify", f"shpss_{SID}"),
    ("shopify", SID),
    ("twilio", SID),
    ("resend", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ("clerk", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ("gitlab", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ("telegram", "A_secret-token-1"),
]


def check(provider: str, secret: str) -> None:
    check_secret_forms(
        SourceSpec(name="test", provider=provider, secrets=(secret,), public_url="https://hooks.example.com")
    )


@pytest.mark.parametrize(("provider", "secret", "kind"), OTHERS, ids=lambda text: text[:12])
def test_another_key_of_the_sender_is_named(provider: str, secret: str, kind: str):
    with pytest.raises(ConfigError, match=rf"sources\.test\.secrets\[0\]: copy the signing .*this is {kind}") as caught:
        check(provider, secret)
    assert secret not in str(caught.value)


@pytest.mark.parametrize(("provider", "secret"), GENUINE)
def test_a_secret_of_the_sender_is_accepted(provider: str, secret: str):
    check(provider, secret)


@pytest.mark.parametrize(
    "recipe", [one for one in RECIPES if one.secret_form is not None], ids=lambda recipe: recipe.name
)
def test_the_example_of_each_sender_has_its_form(recipe):
    assert not recipe.secret_form.find_fault(recipe.sample.secret)
