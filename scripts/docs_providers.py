"""Writes the how-to of each provider, docs/reference/providers/NAME.md, from its recipe."""

from collections.abc import Iterator
from typing import Any, Final, assert_never

from boathook import verify
from boathook.domain.signing import Algorithm
from boathook.providers import RECIPES
from boathook.providers.recipe import (
    CaptureSecret,
    Confidence,
    ConfirmByFetch,
    Echo,
    Handshake,
    Recipe,
    SignText,
    StaticAnswer,
)
from boathook.providers.request_reader import BasicPassword, Form, Header, Json, Query, Selector
from boathook.providers.schemes import Addresses, Asymmetric, ConfiguredKey, FieldMac, Hmac, Jwt, NoProof, Proof, Token
from boathook.testing import make_keys, signed_request
from boathook_dev.scaffold import PUBLIC_URL, secret_variable, source_settings

PROOF_COVERAGE: Final = {
    "body signed": "The signature covers the whole body; it cannot be changed without the secret.",
    "metadata only": (
        "The signature covers some fields only, not the whole body: fetch the data from the sender's API before you act"
        " on it."
    ),
    "token": "The static token does not protect the body. Anyone who has the token can send anything.",
    "address": "There is no signature: every request from the sender's networks is accepted.",
    "none": "Requests are not authenticated: anyone can send them. Fetch the data from the sender's API.",
}
"""What a grade means, by its name."""


def pages() -> dict[str, str]:
    """Return the text of each page by the provider's name."""
    return {recipe.name: "".join(_page(recipe)) for recipe in RECIPES}


def _page(recipe: Recipe) -> Iterator[str]:
    yield f"# {recipe.title}\n\n<!-- Written by `make docs`; edit src/boathook/providers instead. -->\n\n"
    aliases = f" (also {', '.join(f'`{name}`' for name in recipe.aliases)})" if recipe.aliases else ""
    yield f"The provider `{recipe.name}`{aliases} defines how this sender signs requests, names events and expects"
    yield " replies.\n"
    if "/boathook/" not in recipe.docs:
        yield f"The sender's own documentation is at <{recipe.docs}>.\n"
    yield from _set_up(recipe)
    yield from _settings(recipe)
    yield from _test_section(recipe)
    yield from _proof(recipe)
    yield from _special_notes(recipe)
    yield from _handler(recipe)


def _set_up(recipe: Recipe) -> Iterator[str]:
    yield "\n## At the sender\n\n"
    for number, step in enumerate(recipe.setup, 1):
        yield f"{number}. {step.format(url=f'`{PUBLIC_URL}/in/{recipe.name}`')}\n"
    yield f"\nReplace `{PUBLIC_URL}` with your public URL.\n"


def _settings(recipe: Recipe) -> Iterator[str]:
    yield f"\n## In boathook.toml\n\n```toml\n{source_settings(recipe)}```\n\n"
    if recipe.takes_secrets:
        yield f"The secret itself is in the environment variable `{secret_variable(recipe)}`, or in a file: "
        yield '`"file:PATH"`.\n'
    if recipe.is_secret_chosen:
        yield "You choose it yourself, for example with `openssl rand -hex 32`.\n"
    yield (
        f'The source may have another name; then set `provider = "{recipe.name}"`. The keys that every\n'
        "source has are in [configuration](../configuration.md#sourcesname).\n"
    )
    if recipe.settings:
        yield "\n| setting of this provider | what it does |\n|---|---|\n"
    for one in recipe.settings:
        more = ", required" if one.is_required else f"; default: `{one.default}`" if one.default else ""
        yield f"| `{one.name}`{more} | {one.help.replace('|', chr(92) + '|')}. |\n"
    if recipe.schemes:
        words = ", ".join(f'`scheme = "{scheme}"`' for scheme in recipe.schemes)
        yield f"\nOther authentication schemes: {words}.\n"


def _test_section(recipe: Recipe) -> Iterator[str]:
    yield (
        "\n## Try it\n\nWhile `boathook serve` runs, send it a request as this sender would send it, and one that was\n"
        "tampered with:\n\n"
        f"```sh\nboathook sources test {recipe.name}\nboathook events list --source {recipe.name} --limit 5\n```\n\n"
        "Once the sender delivers real events, `boathook rejections list` shows rejected requests with their reasons.\n"
    )


def _proof(recipe: Recipe) -> Iterator[str]:
    yield f"\n## Authentication\n\n{_describe(recipe.proof)}\n\n{PROOF_COVERAGE[recipe.grade.value]}\n"
    unsure = recipe.confidence.get("proof") or recipe.confidence.get("template")
    if unsure is not None and unsure is not Confidence.PRIMARY:
        yield "\nThis is not confirmed by its own documentation or code: test it before you rely on it.\n"
    if recipe.checked:
        yield f"\nOur recipe is checked against: {'; '.join(recipe.checked)}.\n"


def _describe(proof: Proof) -> str:
    match proof:
        case Hmac():
            moment = f" The timestamp may differ from boathook's clock by {proof.tolerance_s:g} s." * (
                "{timestamp}" in proof.template
            )
            return (
                f"HMAC-{_upper(proof.algorithm)}, {proof.encoding.value}, over `{proof.template}`, in the header"
                f" `{proof.headers[0].signature}`.{moment}"
            )
        case FieldMac():
            kind = "An HMAC" if proof.is_keyed else "A hash with the secret mixed in"
            return f"{kind} ({_upper(proof.algorithm)}, {proof.encoding.value}) over chosen parts of the request."
        case Asymmetric():
            scheme = "" if callable(proof.scheme) and not isinstance(proof.scheme, str) else f" ({proof.scheme.value})"
            whose = (
                "the source's secrets"
                if isinstance(proof.key, ConfiguredKey)
                else "a URL on its own hosts, and is cached"
            )
            return f"A signature{scheme} made with its private key. The public key comes from {whose}."
        case Jwt():
            whose = f"its keys at <{proof.key_set}>" if proof.key_set else "the shared secret"
            algorithms = ", ".join(proof.algorithms)
            return f"A JSON Web Token ({algorithms}) in the header `{proof.header}`, checked with {whose}."
        case Token():
            return f"A static secret in {_place(proof.selector)}."
        case Addresses():
            networks = ", ".join(f"`{network}`" for network in proof.networks)
            return f"It sends from these networks: {networks}. Behind a proxy, set `server.trusted_proxies`."
        case NoProof():
            return (
                "It does not sign. The source therefore needs `unsigned = true`, and its events have the grade `none`."
            )
        case _:
            assert_never(proof)


def _upper(algorithm: Algorithm) -> str:
    return algorithm.value.upper().replace("SHA", "SHA-")


def _place(selector: Selector | BasicPassword) -> str:
    match selector:
        case Header(name):
            return f"the header `{name}`"
        case Query(name):
            return f"the query parameter `{name}`"
        case Form(name):
            return f"the form field `{name}`"
        case Json(path):
            return f"the body at `{path}`"
        case BasicPassword(username):
            return f"HTTP Basic authentication, user name `{username}`"
        case _:
            assert_never(selector)


def _special_notes(recipe: Recipe) -> Iterator[str]:
    lines = [*_of_requests(recipe), *(_of_handshake(one) for one in recipe.handshakes), *_of_answers(recipe)]
    if lines:
        yield "\n## Notes\n\n"
        yield from (f"- {line}\n" for line in dict.fromkeys(lines))


def _of_requests(recipe: Recipe) -> Iterator[str]:
    if recipe.signs_url:
        yield "It signs the URL that it sends to, so `public_url` must be exactly the base of that URL."
    if recipe.items is not None:
        yield "A request may contain many items. Each is deduplicated, delivered and retried separately: `event.item`."
    if recipe.id.is_repeatable:
        yield "Distinct events can have equal bodies, so a request without an id is never treated as a duplicate."
    elif not (recipe.id.selectors or recipe.items):
        yield "Its events have no id, so two requests with the same type and body are one event."
    elif recipe.id.is_kept_in_retries is False:
        yield "Each of its attempts has a new id, so two requests with the same type and body are one event."
    elif not recipe.id.is_signed:
        yield (
            "The signature does not cover the event id. A signed body that comes again under another id is a new event,"
            " which names the first; `repeated_body` changes that."
        )
    if recipe.can_be_repeated:
        yield "The signature covers no time either: an attacker who captures a request can send it again under new ids."
    if recipe.id.selectors and recipe.retries_keep_id is None:
        yield "That its retries keep the id of the first attempt is unconfirmed."
    if recipe.methods != {"POST"}:
        yield f"HTTP methods: {', '.join(sorted(recipe.methods))}."


def _of_handshake(handshake: Handshake) -> str:
    match handshake.answer:
        case Echo():
            how = "boathook echoes the text of the request"
        case StaticAnswer():
            how = "boathook sends a fixed reply"
        case SignText():
            how = "boathook signs a text of the request with your secret"
        case ConfirmByFetch():
            how = "boathook fetches the confirmation URL, which must be on the sender's own host"
        case CaptureSecret():
            how = "boathook stores the secret in the request; `boathook sources secret` shows it"
        case _:
            assert_never(handshake.answer)
    return f"It sends a verification request before events ({handshake.method}). It is answered automatically: {how}."


def _of_answers(recipe: Recipe) -> Iterator[str]:
    if recipe.reply is not None:
        yield "It expects a reply in its own format, which boathook sends."
    if recipe.has_empty_error_body:
        yield "It expects replies without a body."
    if recipe.answer_within_s is not None:
        yield f"It waits {recipe.answer_within_s:g} s for a reply."
    if recipe.max_body:
        doubt = "" if recipe.confidence.get("max_body") is None else "; that is unconfirmed"
        yield f"Largest body: {recipe.max_body >> 20} MB{doubt}."
    if recipe.retries:
        yield f"Retries: {recipe.retries}."
    if recipe.stop_statuses:
        codes = ", ".join(map(str, sorted(recipe.stop_statuses)))
        yield f"It gives up after a reply with status {codes}, so boathook never sends one by accident."


def _handler(recipe: Recipe) -> Iterator[str]:
    kind = sample_type(recipe)
    pattern = f', "{kind}"' if kind else ""
    yield HANDLER.replace("PROVIDER", f'"{recipe.name}"{pattern}')
    yield "\nMore in [handlers](../handlers.md).\n"
    if not isinstance(recipe.proof, NoProof):
        yield (
            "\nTo verify requests in your own web application, without a boathook server, call\n"
            f'`boathook.verify("{recipe.name}", ...)`: [verify](../../how-to/verify.md).\n'
        )


HANDLER: Final = """
## A handler

```python
from boathook import Boathook, Event, Transaction

hook = Boathook()


@hook.on(PROVIDER)
async def handle(event: Event, tx: Transaction) -> None:
    await tx.execute("insert into news (event_id, type) values ($1, $2)", event.id, event.type)  # your own table
```
"""


def sample_type(recipe: Recipe) -> str:
    """Return the type of the event that a typical request of this sender becomes; empty where that says nothing."""
    if not recipe.takes_secrets:
        return ""
    private = public = recipe.sample.secret
    settings: dict[str, Any] = dict(recipe.sample.settings)
    if isinstance(recipe.proof, Asymmetric):
        pair = make_keys(recipe.name, **settings)
        private, public = pair.private, pair.public
    sent = signed_request(recipe.name, private, url=f"{PUBLIC_URL}/in/{recipe.name}", **settings)
    result = verify(recipe.name, public, sent.headers, sent.body, sent.url, method=sent.method, **settings)
    kind = result.event.type if result.event is not None else ""
    return "" if kind in {"unknown", "batch"} else kind
