"""Generates the files of a new project: settings, one handler, and tests that pass."""

import json
from textwrap import indent
from typing import Final

from boathook.config import SCHEMA_URL
from boathook.providers import find_recipe
from boathook.providers.recipe import Recipe
from boathook.providers.schemes import Asymmetric, NoProof
from boathook.service.source_secrets import generate_secret
from boathook.verification.provider_signer import make_keys

PUBLIC_URL: Final = "https://hooks.example.com"
"""Stands for the address at which senders reach boathook."""

_HOOKS: Final = '''\
"""Handlers: boathook calls each function for the events that its decorator selects."""

from boathook import Boathook, Event, Transaction

hook = Boathook()


@hook.on({selection})
async def {name}(event: Event, tx: Transaction) -> None:
    """Store {what}, in the transaction that completes the delivery."""
{body}'''
_TESTS: Final = '''\
"""Tests of the handlers; run them with pytest.

`deliver` sends a signed request to a boathook with a PostgreSQL of its own, and waits for the handler.
"""

from collections.abc import Callable

from boathook.testing import DeliverResult

Deliver = Callable[..., DeliverResult]


{test}'''
_STRIPE: Final = {
    "name": "record_payment",
    "what": "a payment",
    "selection": '"stripe", "payment_intent.succeeded"',
    "body": """\
payment = event.json["data"]["object"]
await tx.execute("create table if not exists payment (id text primary key, amount bigint)")
await tx.execute("insert into payment values ($1, $2)", payment["id"], payment["amount"])
""",
    "test": """\
def test_payment_is_stored_once(deliver: Deliver) -> None:
    first, again = [deliver("stripe", type="payment_intent.succeeded", id="evt_1") for _ in range(2)]
    assert first.outcome == "succeeded"
    assert again.is_duplicate
""",
}
_ANY: Final = {
    "name": "record_event",
    "what": "an event",
    "selection": '"{provider}"',
    "body": """\
await tx.execute("create table if not exists received (key text primary key, type text)")
await tx.execute("insert into received values ($1, $2)", event.dedup_key, event.type)
""",
    "test": """\
def test_event_is_stored(deliver: Deliver) -> None:
    assert deliver("{provider}").outcome == "succeeded"
""",
}


def project_files(provider: str) -> dict[str, str]:
    """Return the files of a new project with one source, by name; `.env` contains a new secret.

    Raises:
        ConfigError: there is no such provider; the message suggests similar names.
    """
    recipe = find_recipe(provider)
    example = _STRIPE if recipe.name == "stripe" else _ANY
    parts = {key: text.replace("{provider}", recipe.name) for key, text in example.items()}
    return {
        "boathook.toml": f'#:schema {SCHEMA_URL}\n[server]\napp = "hooks:hook"\n\n{source_settings(recipe)}',
        "hooks.py": _HOOKS.format_map({**parts, "body": indent(parts["body"], "    ")}),
        "test_hooks.py": _TESTS.format_map(parts),
        ".env.example": _environment(recipe, ""),
        ".env": _environment(recipe, _new_secret(recipe)),
        ".gitignore": ".env\n.boathook/\n__pycache__/\n",
    }


def source_settings(recipe: Recipe) -> str:
    """Return the table of a provider's source, as it is written into boathook.toml."""
    lines = [f"[sources.{recipe.name}]"]
    if recipe.takes_secrets:
        lines.append(f'secrets = ["env:{secret_variable(recipe)}"]')
    if isinstance(recipe.proof, NoProof):
        lines.append("unsigned = true")
    if recipe.signs_url:
        lines.append(f'public_url = "{PUBLIC_URL}"')
    lines += [f'{name} = "{value}"' for name, value in recipe.sample.settings.items()]
    return "\n".join(lines) + "\n"


def secret_variable(recipe: Recipe) -> str:
    """Return the environment variable that holds the provider's secret, or its public key."""
    word = recipe.name.upper().replace("-", "_")
    return f"{word}_PUBLIC_KEY" if isinstance(recipe.proof, Asymmetric) else f"{word}_SECRET"


def _new_secret(recipe: Recipe) -> str:
    if isinstance(recipe.proof, Asymmetric):
        return make_keys(recipe.name, **recipe.sample.settings).public
    return generate_secret(recipe.proof)


def _environment(recipe: Recipe, secret: str) -> str:
    """Return the file with the variable of the source's secret; empty for a sender without one."""
    if not recipe.takes_secrets:
        return ""
    comment = "# Made up by `boathook init`, for requests of `boathook trigger`." if secret else f"# See {recipe.docs}"
    return f"{comment}\n{secret_variable(recipe)}={json.dumps(secret) if secret else ''}\n"
