"""Resolves a source's recipe with its settings."""

from typing import Final, NamedTuple

from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.json_document import split_path
from boathook.domain.signing import STANDARD_PREFIX, VERSION_PREFIX, describe_variable, variable_name
from boathook.domain.verification import SourceSpec
from boathook.providers import find_recipe
from boathook.providers.options import Options
from boathook.providers.recipe import Recipe, Setting
from boathook.providers.request_reader import BasicPassword
from boathook.providers.schemes import Asymmetric, Token


class ResolvedSource(NamedTuple):
    """A source's recipe, specification and settings, resolved."""

    recipe: Recipe
    spec: SourceSpec
    """Includes the password as a secret, if the recipe uses one."""
    settings: dict[str, str]
    """The settings the recipe declares, by name, defaults included."""


MIN_SECRET_LENGTH: Final = 6
"""The fewest characters of a secret: an attacker who captures one request finds a shorter one by trying all.

Secrets that senders issue are longer. Owners chose some of six and seven characters, which keep working.
"""

_ATTEMPT_FIELDS: Final = (
    "attempt", "attempts", "attemptNumber", "attempt_number", "createdAt", "created_at", "deliveredAt", "delivered_at",
    "deliveryAttempt", "delivery_attempt", "retryCount", "retry_count", "sentAt", "sent_at", "timestamp",
)  # fmt: skip
"""Fields at the top of a body that may differ between the attempts of one event.

If the owner names the fields that identify an event, a difference in these alone makes a duplicate.
"""


def find_source_recipe(source: str, provider: str) -> Recipe:
    """Return the registered recipe of a source, before its settings are applied.

    Raises:
        ConfigError: the provider is unknown; the message names ``sources.NAME.provider``.
    """
    try:
        return find_recipe(provider)
    except ConfigError as error:
        fix = '; a source of another name needs provider = "hmac" or such; see `boathook sources providers`'
        raise ConfigError(f"sources.{source}.provider: {error}{fix if provider == source else ''}") from None


def resolve_source(spec: SourceSpec) -> ResolvedSource:
    """Return the recipe of a source with its settings applied.

    Raises:
        ConfigError: a setting is unknown, missing or invalid; the message names ``sources.NAME.KEY``.
    """
    recipe = find_source_recipe(spec.name, spec.provider)
    options = Options(spec.name, spec.options)
    recipe = _choose_scheme(options, recipe)
    settings = {setting.name: _read(options, recipe, setting) for setting in recipe.settings}
    if recipe.configure is not None:
        recipe = recipe.configure(options, recipe)
    if isinstance(recipe.proof, Token) and isinstance(recipe.proof.selector, BasicPassword):
        password = options.text("password")
        spec = replace(spec, secrets=(*spec.secrets, password) if password else spec.secrets)
    options.finish(recipe.name)
    names = spec.volatile or (_ATTEMPT_FIELDS if spec.dedup_fields else ())
    volatile = tuple(_volatile_path(options, path) for path in names)
    recipe = replace(recipe, volatile=(*recipe.volatile, *volatile))
    if recipe.signs_url and not (spec.public_url or spec.unsigned):
        raise options.error(
            "public_url",
            f'{recipe.title} signs the URL; set public_url = "https://hooks.example.com", the base URL that it uses',
        )
    return ResolvedSource(recipe, spec, settings)


def check_secret_forms(spec: SourceSpec) -> None:
    """Raise ConfigError for a secret that is too short, or that the sender cannot have issued.

    Its text is shown only if it is a name. What was accepted before is not checked again when it is loaded.
    """
    recipe, _, settings = resolve_source(spec)
    keys = {f"secrets[{position}]": secret for position, secret in enumerate(spec.secrets)}
    for key, secret in keys.items():
        if fault := _form_fault(recipe, secret):
            raise ConfigError(f"sources.{spec.name}.{key}: {fault}")
    if not recipe.takes_secrets or isinstance(recipe.proof, Asymmetric):
        return
    secret_settings = {setting.name: settings[setting.name] for setting in recipe.settings if setting.is_secret}
    for key, secret in (keys | secret_settings).items():
        if secret and (weakness := _find_weakness(recipe, secret)):
            advice = "choose a long random one" if recipe.is_secret_chosen else f"copy all of it from {recipe.title}"
            raise ConfigError(f"sources.{spec.name}.{key}: this secret is easily guessed, because {weakness}; {advice}")


def _form_fault(recipe: Recipe, secret: str) -> str:
    """Return what is wrong with the form of a secret; empty if nothing is known to be."""
    form = recipe.secret_form
    # A wrong encoding is found where the secret is decoded.
    fault = "" if form is None else form.find_fault(secret)
    advice = f"copy the signing secret from {recipe.title}: {fault}" if fault else ""
    name = variable_name(secret) if recipe.has_secret_form else None
    if name is None:
        return advice
    return f"{describe_variable(name)}" + (f"; {advice}" if advice else "")


def _find_weakness(recipe: Recipe, secret: str) -> str:
    """Return why a secret is easily guessed; empty if it is not."""
    text = secret.strip()
    if not text:
        return "it is empty"
    if len(text) < MIN_SECRET_LENGTH:
        return f"it has fewer than {MIN_SECRET_LENGTH} characters"
    prefixes = {VERSION_PREFIX, STANDARD_PREFIX, "" if recipe.secret_form is None else recipe.secret_form.prefix}
    return "nothing follows its prefix" if text in prefixes | {VERSION_PREFIX + STANDARD_PREFIX} else ""


def _volatile_path(options: Options, path: str) -> str:
    try:
        return ".".join(split_path(path))
    except ValueError as error:
        raise options.error("volatile", str(error)) from None


def _choose_scheme(options: Options, recipe: Recipe) -> Recipe:
    if not recipe.schemes:
        return recipe
    scheme = options.text("scheme")
    if scheme and scheme not in recipe.schemes:
        words = " or ".join(f'"{name}"' for name in recipe.schemes)
        raise options.error("scheme", f"unknown scheme {scheme!r}; use {words} or omit it")
    return recipe.schemes[scheme] if scheme else recipe


def _read(options: Options, recipe: Recipe, setting: Setting) -> str:
    value = options.text(setting.name, setting.default)
    if setting.is_required and not value:
        near = options.closest_unread(setting.name)
        guess = f"; perhaps {near} is a misspelling of it" if near else ""
        raise options.error(setting.name, f"required by {recipe.title}: {setting.help}{guess}")
    if value and setting.choices and value not in setting.choices:
        words = ", ".join(f'"{choice}"' for choice in setting.choices)
        raise options.error(setting.name, f"write one of {words}, not {value!r}")
    return value
