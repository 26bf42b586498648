"""Generates the files of a new project: settings, one handler, and tests that pass."""

import json
from textwrap import indent
from typing import Final

from boathook.providers import find_recipe
from boathook.providers.recipe import Recipe
from boathook.providers.schemes import Asymmetric, FieldMac, Hmac, NoProof, Token
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
"""Tests of the handlers; run them with pytest."""

import asyncio
from types import SimpleNamespace

from boathook import verify
from boathook.testing import signed_request

from hooks import {name}


class Statements:
    """Takes the place of the transaction, and keeps what the handler executes."""

    def __init__(self) -> None:
        self.executed: list[tuple[object, ...]] = []

    async def execute(self, *arguments: object) -> None:
        self.executed.append(arguments)


def test_it_is_stored() -> None:
    tx = Statements()
    asyncio.run({name}(SimpleNamespace({event}), tx))
    assert tx.executed[-1][1:] == {stored}
'''
_SIGNATURE_TEST: Final = """

def test_only_a_signed_request_is_accepted() -> None:
    secret, settings = {secret}, {settings}
    sent = signed_request("{provider}", secret, **settings)
    assert verify("{provider}", secret, sent.headers, sent.body, sent.url, method=sent.method, **settings)
    assert not verify("{provider}", secret, {{}}, b"{{}}", "https://hooks.example.com/in/{provider}", **settings)
"""
_STRIPE: Final = {
    "name": "record_payment",
    "what": "a payment",
    "selection": '"stripe", "payment_intent.succeeded"',
    "body": """\
payment = event.json["data"]["object"]
await tx.execute("create table if not exists payment (id text primary key, amount bigint)")
await tx.execute("insert into payment values ($1, $2)", payment["id"], payment["amount"])
""",
    "event": 'json={"data": {"object": {"id": "pi_1", "amount": 4200}}}',
    "stored": '("pi_1", 4200)',
}
_ANY: Final = {
    "name": "record_event",
    "what": "an event",
    "selection": '"{provider}"',
    "body": """\
await tx.execute("create table if not exists received (key text primary key, type text)")
await tx.execute("insert into received values ($1, $2)", event.dedup_key, event.type)
""",
    "event": 'dedup_key="evt_1", type="invoice.paid"',
    "stored": '("evt_1", "invoice.paid")',
}


def project_files(provider: str) -> dict[str, str]:
    """Return the files of a new project with one source, by name; `.env` contains a new secret.

    Raises:
        ConfigError: there is no such provider; the message suggests similar names.
    """
    recipe = find_recipe(provider)
    parts = {key: text.replace("{provider}", recipe.name) for key, text in (_special(recipe) or _ANY).items()}
    return {
        "boathook.toml": f'[server]\napp = "hooks:hook"\n\n{source_settings(recipe)}',
        "hooks.py": _HOOKS.format_map({**parts, "body": indent(parts["body"], "    ")}),
        "test_hooks.py": _tests(recipe, parts),
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


def _special(recipe: Recipe) -> dict[str, str] | None:
    return _STRIPE if recipe.name == "stripe" else None


def _tests(recipe: Recipe, parts: dict[str, str]) -> str:
    if not isinstance(recipe.proof, Hmac | FieldMac | Token):  # only the sender can sign, or nothing is signed
        unused = ("from boathook import verify\n", "from boathook.testing import signed_request\n\n")
        text = _TESTS
        for line in unused:
            text = text.replace(line, "")
        return text.format_map(parts)
    signature = _SIGNATURE_TEST.format(
        provider=recipe.name, secret=json.dumps(recipe.sample.secret), settings=json.dumps(dict(recipe.sample.settings))
    )
    return _TESTS.format_map(parts) + signature


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
