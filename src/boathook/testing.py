"""Requests signed the way their senders sign them, for tests of handlers and for demonstrations."""

import base64
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from boathook.inbound.places import Basic, Form, Header, Json, Place, Query
from boathook.inbound.proof import signatures_of
from boathook.inbound.providers import find
from boathook.inbound.providers.options import Options
from boathook.inbound.providers.proofs import Hmac, NoProof, TimeUnit, Token
from boathook.inbound.providers.recipe import Recipe
from boathook.inbound.template import fields_of
from boathook.inbound.verify import Request


def sign(
    provider: str,
    secret: str | Sequence[str],
    body: bytes,
    *,
    timestamp: float | None = None,
    id: str | None = None,
    type: str | None = None,
    url: str = "http://127.0.0.1:8080/in/test",
    method: str = "POST",
    content_type: str = "application/json",
    **settings: Any,
) -> dict[str, str]:
    """Return the headers, by lower-case names, with which *provider* would send *body*.

    Args:
        provider: the name of a recipe.
        secret: the shared secret; several are used side by side, as while one is being rotated.
        body: the exact bytes that will be sent.
        timestamp: the moment of sending in seconds since 1970; now, where it is left out.
        id: the event id, for senders that put it into a header.
        type: the event type, for senders that put it into a header.
        url: where it will be sent; some senders sign it.
        method: the HTTP method; some senders sign it.
        content_type: the type of *body*.
        settings: a generic source's own settings, as in boathook.toml: ``header="X-Sig", prefix="sha1="``.

    Raises:
        ConfigError: there is no such provider, or it has no such setting.
        ValueError: a secret is not in the form the provider uses, or the token stands in the URL.
    """
    recipe = find(provider)
    options = Options("test", settings)
    if recipe.configure is not None:
        recipe = recipe.configure(options, recipe)
    options.finish(recipe.name)
    secrets = [secret] if isinstance(secret, str) else list(secret)
    headers = {"content-type": content_type} | _name(recipe, id, type)
    request = Request(method=method, url=url, path="", query="", headers=headers, body=body, client="127.0.0.1")
    match recipe.proof:
        case Hmac() as proof:
            return headers | _sign(proof, secrets, request, time.time() if timestamp is None else timestamp, id)
        case Token() as proof:
            return headers | _present(proof, secrets[0])
        case NoProof():
            return headers
        case _:
            raise NotImplementedError(recipe.proof)


def _name(recipe: Recipe, id: str | None, type: str | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text, places in ((id, recipe.id.places), (type, recipe.type.places)):
        header = next((place for place in map(_first, places) if isinstance(place, Header)), None)
        if text is not None and header is not None:
            headers[header.name] = text
    return headers


def _first(place: Place | tuple[Place, ...]) -> Place:
    return place[0] if isinstance(place, tuple) else place


def _sign(proof: Hmac, secrets: list[str], request: Request, now: float, id: str | None) -> dict[str, str]:
    names = proof.headers[0]
    stamp = _write_moment(now, proof.time_unit)
    headers: dict[str, str] = {}
    if names.timestamp:
        headers[names.timestamp] = stamp
    if names.id and "id" in fields_of(proof.template):
        headers[names.id] = id = id or "msg_test"
    signatures = signatures_of(proof, secrets, replace(request, headers={}), stamp, id or "")
    return headers | {names.signature: proof.form.write(signatures, stamp)}


def _write_moment(now: float, unit: TimeUnit) -> str:
    match unit:
        case TimeUnit.SECONDS:
            return str(int(now))
        case TimeUnit.MILLISECONDS:
            return str(int(now * 1000))
        case TimeUnit.ISO:
            return datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")


def _present(proof: Token, secret: str) -> dict[str, str]:
    match proof.place:
        case Header(name=name):
            return {name: proof.prefix + secret}
        case Basic(username=username):
            return {"authorization": "Basic " + base64.b64encode(f"{username}:{secret}".encode()).decode()}
        case Query(name=name) | Form(name=name) | Json(path=name):
            raise ValueError(f"this token travels in the URL: send to ...?{name}=TOKEN")
