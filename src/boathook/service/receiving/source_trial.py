"""Sends sample requests to a source of a running boathook: to test it, or to trigger its handlers."""

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import source_spec
from boathook.providers.recipe import Recipe
from boathook.providers.schemes import Addresses, Asymmetric, Jwt
from boathook.service.gateway_address import gateway_url
from boathook.service.remote import HttpResponse, RemoteClient
from boathook.verification.provider_signer import Signed, edit_request, find_id, signed_request
from boathook.verification.source import ResolvedSource, resolve_source

TEST_USER_AGENT: Final = "boathook-test"
"""The user-agent of test requests; it is stored with the event."""
_TIMEOUT_S: Final = 60.0
_MAX_BYTES: Final = 1_048_576
_SAMPLE_ID: Final = "boathook-sample"


class SourceTestStep(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a test."""

    what: str
    ok: bool
    found: str
    sent: str
    """The request line, without credentials, and the body's size."""
    event_id: str | None = None
    """The event that was created."""


class TriggeredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that `trigger_source` has sent, and its response."""

    sent: str
    """The request line, without credentials, and the body's size."""
    status: int
    response: str
    """The response's body, its first 120 characters."""
    event_id: str | None
    is_duplicate: bool

    @property
    def is_accepted(self) -> bool:
        """Whether the request was accepted; a sender that requires its own reply format gets no event id."""
        return 200 <= self.status < 300


async def trigger_source(
    settings: Settings,
    name: str,
    *,
    type: str | None = None,
    fields: Mapping[str, Any] | None = None,
    body: bytes | None = None,
    times: int = 1,
    url: str = "",
    added: SecretsCache | None = None,
) -> AsyncIterator[TriggeredRequest]:
    """Send signed requests as the sender of a source would, each with a new event id, and yield the responses.

    Args:
        settings: contain the source.
        name: the source's name.
        type: the event type; None keeps that of the sample.
        fields: JSON values by dotted path, to set in the body.
        body: the body; None uses the provider's sample.
        times: how many requests to send.
        url: the gateway's address, such as ``https://hooks.example.com``, or the source's whole URL there; empty uses
            the gateway that runs on this host.
        added: the secrets that operators have added; None reads those that a gateway of this host saved last.

    Raises:
        NotFound: there is no such source.
        ConfigError: its settings are wrong, the sender signs with a private key, or the type or a field cannot be set.
        ConnectionError: no gateway listens there.
    """
    resolved = _resolve(settings, name, added)
    if _only_sender_can_sign(resolved):
        raise ConfigError(
            f"boathook cannot sign as {resolved.recipe.title}; "
            f"configure a source of the provider hmac to try your handlers"
        )
    gateway, path = _split_url(url or gateway_url(settings), [_path(name), *settings.source(name).paths])
    for _ in range(times):
        signed = _genuine_request(resolved, path, type=type, fields=fields, body=body)
        answer = await send_request(gateway, signed)
        document = _read_json(answer)
        yield TriggeredRequest(
            sent=_line(signed),
            status=answer.status,
            response=answer.body[:120].decode("utf-8", "replace"),
            event_id=document.get("event_id"),
            is_duplicate=document.get("duplicate") is True,
        )


async def run_source_test(
    settings: Settings, name: str, *, at: tuple[str, int] | None = None, added: SecretsCache | None = None
) -> AsyncIterator[SourceTestStep]:
    """Send sample requests to a source of the gateway on this host, and yield the result of each.

    The genuine sample becomes a normal event with a new id, and the handlers get it; its user-agent header is
    `TEST_USER_AGENT`. It is signed with the newest secret.

    Args:
        settings: contain the source.
        name: the source's name.
        at: host and port of the gateway; None uses the one that runs on this host.
        added: the secrets that operators have added; None reads those that a gateway of this host saved last.

    Raises:
        NotFound: there is no such source.
        ConfigError: its settings are wrong.
        ConnectionError: no gateway listens there.
    """
    resolved = _resolve(settings, name, added)
    gateway = gateway_url(settings, at)
    if _only_sender_can_sign(resolved):
        yield await _send_unsigned(gateway, resolved, name)
        return
    genuine = _genuine_request(resolved, _path(name))
    yield await _send_genuine(gateway, genuine, has_schema=resolved.spec.schema is not None)
    if not resolved.spec.unsigned:
        yield await _send_forged(gateway, _forged_request(resolved, name))


def _resolve(settings: Settings, name: str, added: SecretsCache | None) -> ResolvedSource:
    """Return a source with the newest of its secrets. Raises NotFound, or ConfigError for wrong settings."""
    settings.source(name)  # raises NotFound
    resolved = resolve_source(source_spec(settings, name, added))
    return resolved._replace(spec=replace(resolved.spec, secrets=resolved.spec.secrets[:1]))


def _path(name: str) -> str:
    return f"/in/{name}"


def _split_url(url: str, paths: Sequence[str]) -> tuple[str, str]:
    """Return the gateway's address in *url*, and the path in it that is one of the source's; the first without one."""
    path = next((path for path in paths if urlsplit(url).path.endswith(path)), None)
    return (url.rstrip("/"), paths[0]) if path is None else (url.partition("?")[0].removesuffix(path), path)


def _only_sender_can_sign(resolved: ResolvedSource) -> bool:
    """Return whether only the sender can make a genuine request, as it has the private key or the address."""
    if resolved.spec.unsigned:
        return False
    proof = resolved.recipe.proof
    return isinstance(proof, Asymmetric | Addresses) or (isinstance(proof, Jwt) and proof.key_set is not None)


def _genuine_request(
    resolved: ResolvedSource,
    path: str,
    *,
    secrets_used: tuple[str, ...] | None = None,
    type: str | None = None,
    fields: Mapping[str, Any] | None = None,
    body: bytes | None = None,
) -> Signed:
    """Return the sample under a new id, edited, and signed with the source's own secret."""
    blank, is_marked = _new_request(resolved, path, body)
    edited = edit_request(resolved.recipe, blank, is_new=not is_marked, type=type, fields=fields)
    return _signed(resolved, edited, resolved.spec.secrets if secrets_used is None else secrets_used)


def sample_request(
    resolved: ResolvedSource,
    name: str,
    *,
    id: str | None = None,
    type: str | None = None,
    fields: Mapping[str, Any] | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Signed:
    """Return an unsigned request of a source's sender, with a new event id unless *id* or *body* states one.

    Args:
        resolved: the source.
        name: its name.
        id: the event id.
        type: the event type; None keeps that of the sample.
        fields: JSON values by dotted path, to set in the body.
        body: the body; None uses the provider's sample.
        headers: headers to add.

    Raises:
        ConfigError: the id, the type or a field cannot be set.
    """
    recipe = resolved.recipe
    blank, is_marked = _new_request(resolved, _path(name), body)
    own = Signed(blank.method, blank.url, headers or {}, body or b"")
    states_id = body is not None and find_id(recipe, own) is not None
    request = replace(blank, headers={**blank.headers, **own.headers})
    if id is None and find_id(recipe, request) is None:
        sample, is_new = _new_request(resolved, _path(name), None)
        sample_id = find_id(recipe, edit_request(recipe, sample, is_new=not is_new))
        with contextlib.suppress(ConfigError):  # a body that has no place for an id is sent as it is
            request = edit_request(recipe, request, id=sample_id)
    return edit_request(recipe, request, is_new=not (is_marked or states_id), id=id, type=type, fields=fields)


def sign_request(resolved: ResolvedSource, request: Signed, secret: str) -> Signed:
    """Sign a request of `sample_request`; if the source takes unsigned requests, return it as it is."""
    return request if resolved.spec.unsigned else _signed(resolved, request, (secret,))


def _new_request(resolved: ResolvedSource, path: str, body: bytes | None) -> tuple[Signed, bool]:
    """Return the sample, or *body* with the sample's headers, and whether it has a new event id."""
    recipe = resolved.recipe
    mark = f"{_SAMPLE_ID}-{secrets.token_hex(4)}"
    headers = {key: value.replace(_SAMPLE_ID, mark) for key, value in recipe.sample.headers.items()}
    sample = _new_sample(recipe, mark) if body is None else body
    headers |= {"user-agent": TEST_USER_AGENT}
    is_marked = mark.encode() in sample or any(mark in value for value in headers.values())
    return Signed(recipe.sample.method, _url(resolved, path), headers, sample), is_marked


def _signed(resolved: ResolvedSource, request: Signed, secrets_used: tuple[str, ...]) -> Signed:
    spec = resolved.spec
    return signed_request(
        spec.provider,
        secrets_used,
        request.body,
        url=request.url,
        method=request.method,
        content_type=resolved.recipe.sample.content_type,
        headers=request.headers,
        **spec.options,
    )


def _new_sample(recipe: Recipe, mark: str) -> bytes:
    """Return the sample's body, different each time: where an id is not signed, the same body again is a duplicate."""
    body = recipe.sample.body.replace(_SAMPLE_ID.encode(), mark.encode())
    if mark.encode() in body:
        return body
    if body.startswith(b"{") and body.rstrip().endswith(b"}"):
        return b'%s,"boathook_sample":"%s"}' % (body.rstrip()[:-1].rstrip(), mark.encode())
    is_form = recipe.sample.content_type.startswith("application/x-www-form-urlencoded")
    return b"%s&boathook_sample=%s" % (body, mark.encode()) if is_form and body else body


def _url(resolved: ResolvedSource, path: str) -> str:
    query = f"?{resolved.recipe.sample.query}" if resolved.recipe.sample.query else ""
    return f"{resolved.spec.public_url or 'http://127.0.0.1'}{path}{query}"


def _forged_request(resolved: ResolvedSource, name: str) -> Signed:
    """Return a request whose signature alone is wrong: it was made with another secret."""
    other = tuple(_another(secret) for secret in resolved.spec.secrets)
    return _genuine_request(resolved, _path(name), secrets_used=other)


def _another(secret: str) -> str:
    """Return a secret of the same form that differs in one character in the middle."""
    middle = len(secret) // 2
    return secret[:middle] + ("A" if secret[middle] != "A" else "B") + secret[middle + 1 :]


async def send_request(gateway: str, signed: Signed) -> HttpResponse:
    """Send a request to the gateway with this address. Raises ConnectionError if none listens there."""
    parts = urlsplit(signed.url)
    url = gateway + parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        return await RemoteClient().request(
            signed.method, url, headers=signed.headers, body=signed.body, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES
        )
    except FetchFailed as error:
        raise ConnectionError(str(error)) from error


async def _send_genuine(gateway: str, signed: Signed, *, has_schema: bool) -> SourceTestStep:
    answer = await send_request(gateway, signed)
    document = _read_json(answer)
    if has_schema and answer.status == 400 and "detail" in document:
        # Only a verified sender gets the reason why its body is invalid.
        description = "a valid sample is verified, but its body does not fit the source's schema"
        return SourceTestStep(
            what=description, ok=True, found=f"{answer.status}, {document['detail']}", sent=_line(signed)
        )
    ok = 200 <= answer.status < 300
    event_id = document.get("event_id")
    text = f"{answer.status}, stored as {event_id}" if event_id else f"{answer.status} {_shown(answer)}"
    return SourceTestStep(what="a valid sample is accepted", ok=ok, found=text, sent=_line(signed), event_id=event_id)


async def _send_forged(gateway: str, signed: Signed) -> SourceTestStep:
    answer = await send_request(gateway, signed)
    text = f"{answer.status} {_shown(answer)}"
    return SourceTestStep(what="a forged sample is rejected", ok=answer.status == 401, found=text, sent=_line(signed))


async def _send_unsigned(gateway: str, resolved: ResolvedSource, name: str) -> SourceTestStep:
    recipe: Recipe = resolved.recipe
    request = Signed(
        recipe.sample.method,
        _url(resolved, _path(name)),
        {"content-type": recipe.sample.content_type, **recipe.sample.headers, "user-agent": TEST_USER_AGENT},
        recipe.sample.body,
    )
    answer = await send_request(gateway, request)
    description = f"an unverified sample is rejected (boathook cannot sign a valid one as {recipe.title})"
    return SourceTestStep(
        what=description, ok=answer.status == 401, found=f"{answer.status} {_shown(answer)}", sent=_line(request)
    )


def _line(signed: Signed) -> str:
    # Without the query, which may contain the token.
    return f"{signed.method} {urlsplit(signed.url).path}, {len(signed.body):,} bytes"


def _read_json(answer: HttpResponse) -> dict[str, Any]:
    try:
        document = json.loads(answer.body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _shown(answer: HttpResponse) -> str:
    return ascii(answer.body[:120].decode("utf-8", "replace"))
