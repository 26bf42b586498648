"""A source's settings: what each provider needs, in errors that name the key and the fix and never a secret."""

import pytest

from boathook.domain.errors import ConfigError
from boathook.domain.model import ProofStrength
from boathook.domain.verification import SourceSpec
from boathook.providers import RECIPES
from boathook.providers.recipe import Setting
from boathook.providers.request_reader import BasicPassword, Header
from boathook.providers.schemes import Hmac, SignatureHeaders, Token
from boathook.verification.source import MIN_SECRET_LENGTH, check_secret_forms, resolve_source
from boathook.verification.verifier import Verifier
from tests.unit.recipe_factory import SIGNED, recipe, registered, source

SET = recipe(
    SIGNED,
    settings=(
        Setting(name="webhook_id", help="The id the dashboard shows", is_required=True),
        Setting(name="region", help="Where it runs", default="eu", choices=("eu", "us")),
        Setting(name="verify_token", help="What you typed", is_secret=True),
    ),
    schemes={"token": recipe(Token(selector=Header("x-token")), grade=ProofStrength.TOKEN)},
)


def settled(made, **options):
    with registered(made):
        return resolve_source(SourceSpec(name="test", provider="made-up", secrets=("s",), options=options))


def test_settings_are_read_with_their_defaults():
    assert settled(SET, webhook_id="w").settings == {"webhook_id": "w", "region": "eu", "verify_token": ""}
    assert settled(SET, webhook_id=17, region="us").settings["webhook_id"] == "17"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"sources\.test\.webhook_id: required by Made-up: The id the dashboard shows"),
        ({"webhook_id": ""}, r"sources\.test\.webhook_id: required by Made-up"),
        ({"webhook_id": "w", "region": "mars"}, r"sources\.test\.region: write one of \"eu\", \"us\", not 'mars'"),
        ({"webhook_id": ["CANARY"]}, r"sources\.test\.webhook_id: write text in quotes, not a list"),
        ({"webhook_id": "w", "verify_token": {"x": "CANARY"}}, r"sources\.test\.verify_token: write text in quotes"),
        ({"webhook_id": True}, r"sources\.test\.webhook_id: write text in quotes, not a bool"),
        ({"webhook_id": "w", "verify_tokn": "CANARY"}, r"sources\.test\.verify_tokn: .*perhaps verify_token\?"),
        ({"webhook_id": "w", "colour": "red"}, r"sources\.test\.colour: the provider made-up has no such setting; it"),
        ({"scheme": "jwt"}, r"sources\.test\.scheme: unknown scheme 'jwt'; use \"token\" or omit it"),
    ],
)
def test_an_invalid_setting_is_named_but_secrets_are_not_shown(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        settled(SET, **options)
    assert "CANARY" not in str(caught.value)


def test_each_scheme_has_its_own_settings():
    chosen = settled(SET, scheme="token")
    assert isinstance(chosen.recipe.proof, Token)
    assert chosen.settings == {}
    with pytest.raises(ConfigError, match=r"sources\.test\.webhook_id: the provider"):
        settled(SET, scheme="token", webhook_id="w")
    with pytest.raises(ConfigError, match=r"sources\.test\.scheme: the provider made-up has no such setting"):
        settled(recipe(SIGNED), scheme="token")


def test_a_password_among_the_settings_is_a_secret():
    basic = recipe(Token(selector=BasicPassword("bob")), grade=ProofStrength.TOKEN)
    assert settled(basic, password="geheim").spec.secrets == ("s", "geheim")


URL_SIGNED = recipe(Hmac(headers=(SignatureHeaders(signature="x-sig"),), template="{url}{body}"))


@pytest.mark.parametrize("made", [URL_SIGNED, recipe(SIGNED, needs_url=True)])
def test_a_sender_that_signs_the_address_needs_the_public_one(made):
    with pytest.raises(ConfigError, match=r"sources\.test\.public_url: Made-up signs the URL; set"):
        source(made, "s")
    assert source(made, "s", public_url="https://hooks.example.com").recipe.signs_url
    assert source(made, unsigned=True).recipe.signs_url


def test_every_provider_setting_has_help():
    for one in RECIPES:
        for made in (one, *one.schemes.values()):
            names = [setting.name for setting in made.settings]
            assert len(names) == len(set(names))
            for setting in made.settings:
                assert setting.help
                assert not setting.help.endswith(".")
                assert not setting.default or not setting.choices or setting.default in setting.choices


def check(provider: str, *secrets: str, **options: str) -> None:
    spec = SourceSpec(name="test", provider=provider, secrets=secrets, options=options, public_url="https://a.example")
    check_secret_forms(spec)


@pytest.mark.parametrize(
    ("provider", "secrets", "options", "key"),
    [
        ("github", ("x",), {}, r"secrets\[0\]"),
        ("github", ("long enough", "  five5  "), {}, r"secrets\[1\]"),
        ("hmac", ("12345",), {"header": "x-signature"}, r"secrets\[0\]"),
        ("standard-webhooks", ("v1,whsec_",), {}, r"secrets\[0\]"),
        ("cloudpayments", ("x",), {}, r"secrets\[0\]"),
        ("telegram", ("x",), {}, r"secrets\[0\]"),
        ("netlify", ("x",), {}, r"secrets\[0\]"),
        ("token", (), {"username": "u", "password": "x"}, "password"),
        ("postmark", (), {"password": "x"}, "password"),
        ("meta", ("long enough",), {"verify_token": "x"}, "verify_token"),
    ],
)
def test_a_secret_that_is_easily_guessed_is_refused(provider, secrets, options, key):
    with pytest.raises(
        ConfigError, match=rf"sources\.test\.{key}: .*(fewer than 6 characters|its prefix); (choose|copy)"
    ) as caught:
        check(provider, *secrets, **options)
    assert not any(repr(text) in str(caught.value) for text in (*secrets, *options.values()))


@pytest.mark.parametrize("made", [each for one in RECIPES for each in (one, *one.schemes.values())])
def test_the_secret_of_each_senders_example_is_long_enough(made):
    assert len(made.sample.secret) >= MIN_SECRET_LENGTH


def test_a_source_that_was_compiled_before_still_is():
    with pytest.raises(ConfigError, match="fewer than 6"):
        check("github", "x")
    Verifier(SourceSpec(name="test", provider="github", secrets=("x",)))
