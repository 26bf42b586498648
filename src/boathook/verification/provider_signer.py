"""Signs requests the way providers do; used by `boathook.testing` and to send test requests to sources."""

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, assert_never
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec.structs import replace

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.json_document import UNREADABLE, get_path, parse, split_path
from boathook.domain.verification import Request, SourceSpec
from boathook.providers import find_recipe
from boathook.providers.recipe import Recipe
from boathook.providers.request_reader import BasicPassword, Form, Header, Json, Query, RequestReader, Selector
from boathook.providers.schemes import (
    Addresses,
    Asymmetric,
    FieldMac,
    Hmac,
    Jwt,
    NoProof,
    SignatureAlgorithm,
    SignedParts,
    SignedTimestamp,
    TimestampFormat,
    Token,
    fields_of,
)
from boathook.verification import provider_keys as keys
from boathook.verification.hmac import make_signatures
from boathook.verification.provider_keys import Keys
from boathook.verification.source import resolve_source

DEFAULT_URL = "http://127.0.0.1:8080/in/test"


class Signed(msgspec.Struct, frozen=True):
    """A request as its sender would make it."""

    method: str
    url: str
    headers: Mapping[str, str]
    """Header names are in lower case."""
    body: bytes


def make_keys(provider: str, **settings: Any) -> Keys:
    """Return a new key pair in the formats *provider* uses, with the source's own *settings*.

    Raises:
        ConfigError: the provider is unknown, or it does not sign with a key pair.
    """
    recipe, options = _resolve(provider, settings)
    match recipe.proof:
        case Asymmetric() as proof:
            return keys.make_keys(
                proof, _scheme(proof, RequestReader(_unsigned_request(recipe, None, DEFAULT_URL, None, None), options))
            )
        case Jwt(key_set=str()) as proof:
            return keys.make_keys(proof, SignatureAlgorithm.RSA_SHA256)
        case _:
            raise ConfigError(f"{recipe.title} signs with a shared secret, not with a key pair: choose any text")


def sign(
    provider: str,
    secret: str | Sequence[str],
    body: bytes,
    *,
    timestamp: float | None = None,
    id: str | None = None,
    type: str | None = None,
    url: str = DEFAULT_URL,
    method: str = "POST",
    content_type: str = "application/json",
    **settings: Any,
) -> dict[str, str]:
    """Return the headers, by lower-case name, with which *provider* would send *body*.

    Args:
        provider: the name of a recipe.
        secret: the shared secret, or the private key of `make_keys`; several are used together, as during rotation.
        body: the exact bytes that will be sent.
        timestamp: the time of sending in seconds since 1970; the current time by default.
        id: the event id, for senders that put it into a header.
        type: the event type, for senders that put it into a header.
        url: where it will be sent; some senders sign it.
        method: the HTTP method; some senders sign it.
        content_type: the type of *body*.
        settings: the source's own settings, as in boathook.toml: ``header="X-Sig", prefix="sha1="``.

    Raises:
        ConfigError: the provider is unknown, or it has no such setting.
        ValueError: a secret is not in the provider's format, or the proof is not only in headers, so that
            `signed_request` is needed.
    """
    signed = signed_request(
        provider,
        secret,
        body,
        timestamp=timestamp,
        id=id,
        type=type,
        url=url,
        method=method,
        content_type=content_type,
        **settings,
    )
    if signed.body != body or signed.url != url:
        part = "body" if signed.body != body else "address"
        raise ValueError(f"{provider} puts its signature into the {part}; send what signed_request returns")
    return dict(signed.headers)


def signed_request(
    provider: str,
    secret: str | Sequence[str] = (),
    body: bytes | None = None,
    *,
    timestamp: float | None = None,
    id: str | None = None,
    type: str | None = None,
    url: str = DEFAULT_URL,
    method: str | None = None,
    content_type: str | None = None,
    headers: Mapping[str, str] | None = None,
    **settings: Any,
) -> Signed:
    """Return a complete request as *provider* would send it; takes the arguments of `sign`, and *headers* to add.

    Without *body* it is the provider's sample, in which *id* and *type* are set only if they are headers.
    """
    if body is None:
        settings = {**find_recipe(provider).sample.settings, **settings}
    recipe, options = _resolve(provider, settings)
    secrets = [secret] if isinstance(secret, str) else list(secret)
    now = time.time() if timestamp is None else timestamp
    blank = _unsigned_request(recipe, body, url, method, content_type)
    request = _set_id_and_type(recipe, replace(blank, headers={**blank.headers, **(headers or {})}), id, type)
    proven = _add_proof(recipe, options, secrets, request, now, id)
    return Signed(proven.method, proven.url, proven.headers, proven.body)


def edit_request(
    recipe: Recipe,
    request: Signed,
    *,
    is_new: bool = False,
    id: str | None = None,
    type: str | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Signed:
    """Return an unsigned request with another event id, event type and other JSON fields.

    Args:
        recipe: the sender's recipe.
        request: the request, before it is signed.
        is_new: whether to set a random event id, in the form of the present one.
        id: the event id instead.
        type: the event type as boathook reads it, such as ``issues.opened``; None keeps it.
        fields: JSON values by dotted path.

    Raises:
        ConfigError: the sender's requests state no type or id, or the body is not JSON.
    """
    edited = to_request(request)
    if id is not None:
        edited = _set_id(recipe, edited, id)
    elif is_new:
        edited = _set_new_id(recipe, edited)
    if type is not None:
        edited = _set_type(recipe, edited, type)
    for path, value in (fields or {}).items():
        document = parse(edited.body)
        if not isinstance(document, dict | list):
            raise ConfigError(f"{path} cannot be set: the body of {recipe.title} is not JSON; pass the whole body")
        try:
            _set_json_value(document, split_path(path), value)
        except (AttributeError, IndexError, TypeError, ValueError):
            raise ConfigError(f"{path} cannot be set: the body has no object or list there") from None
        edited = replace(edited, body=json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    return Signed(edited.method, edited.url, edited.headers, edited.body)


def find_id(recipe: Recipe, request: Signed) -> str | None:
    """Return the event id that a request states, or the first part of a composed one; None if it states none."""
    reader = RequestReader(to_request(request))
    return next(filter(None, map(reader.text, _flat(recipe.id.selectors))), None)


def _set_id(recipe: Recipe, request: Request, id: str) -> Request:
    selector = next(_flat(recipe.id.selectors), None)
    if selector is None:
        raise ConfigError(f"requests of {recipe.title} contain no event id; change the body to get a distinct event")
    try:
        return _put(request, selector, id)
    except (AttributeError, IndexError, TypeError, ValueError):
        raise ConfigError(f"the event id of {recipe.title} cannot be set: the body has no place for it") from None


def _set_new_id(recipe: Recipe, request: Request) -> Request:
    reader = RequestReader(request)
    for selector in _flat(recipe.id.selectors):
        present = reader.text(selector)
        if present:
            new = uuid.uuid4()
            return _put(request, selector, str(new.int)[: len(present)] if present.isdigit() else str(new))
    return request


def _set_type(recipe: Recipe, request: Request, type: str) -> Request:
    items = recipe.items
    if items is not None and items.type.selectors and parse(request.body) is not UNREADABLE:
        selectors = [
            Json(f"{path}.{selector.path}") for path in items.paths for selector in _flat(items.type.selectors[:1])
        ]
    else:
        selectors = list(_flat(recipe.type.selectors[:1]))
    if not selectors:
        raise ConfigError(
            f"requests of {recipe.title} state no event type that can be set; pass the whole body, or set type_header"
            " or type_path if the source has them"
        )
    parts = type.split(".", len(selectors) - 1)
    for selector, text in zip(selectors, parts, strict=False):
        request = _put(request, selector, text)
    for selector in selectors[len(parts) :]:  # such as the sample's action, for a type without one
        request = _without(request, selector)
    return request


def _flat(selectors: Sequence[Selector | tuple[Selector, ...]]) -> Iterator[Any]:
    for selector in selectors:
        yield from selector if isinstance(selector, tuple) else (selector,)


def to_request(request: Signed) -> Request:
    """Return a request as the gateway would read it."""
    parts = urlsplit(request.url)
    return Request(
        method=request.method,
        url=request.url,
        path=parts.path,
        query=parts.query,
        headers=request.headers,
        body=request.body,
        client="127.0.0.1",
    )


def _resolve(provider: str, settings: Mapping[str, Any]) -> tuple[Recipe, dict[str, str]]:
    # Unsigned, so that no secret is required: the settings alone select the recipe.
    settled = resolve_source(SourceSpec(name="test", provider=provider, options=settings, unsigned=True))
    return settled.recipe, settled.settings


def _unsigned_request(
    recipe: Recipe, body: bytes | None, url: str, method: str | None, content_type: str | None
) -> Request:
    sample = recipe.sample
    headers = {"content-type": content_type or sample.content_type} | _sample_proof_headers(recipe)
    if body is None:
        body, headers = sample.body, headers | dict(sample.headers)
        if sample.query and "?" not in url:
            url = f"{url}?{sample.query}"
        method = method or sample.method
    return to_request(Signed(method or "POST", url, headers, body))


def _sample_proof_headers(recipe: Recipe) -> dict[str, str]:
    """Return the sample's headers that the proof reads; without them no body could be signed."""
    read = recipe.proof.proof_headers if isinstance(recipe.proof, FieldMac | Asymmetric) else ()
    return {name: text for name, text in recipe.sample.headers.items() if name in read}


def _set_id_and_type(recipe: Recipe, request: Request, id: str | None, type: str | None) -> Request:
    for text, selectors in ((id, recipe.id.selectors), (type, recipe.type.selectors)):
        firsts = (selector[0] if isinstance(selector, tuple) else selector for selector in selectors)
        header = next((selector for selector in firsts if isinstance(selector, Header)), None)
        if text is not None and header is not None:
            request = _put(request, header, text)
    return request


def _add_proof(
    recipe: Recipe, settings: Mapping[str, str], secrets: list[str], request: Request, now: float, id: str | None
) -> Request:
    match recipe.proof:
        case Hmac() as proof:
            return _add_mac(proof, secrets, request, now, id)
        case FieldMac() as proof:
            return _add_field_macs(proof, settings, secrets, _stamp(proof.timestamp, request, now))
        case Asymmetric() as proof:
            return _add_signatures(proof, settings, secrets, _stamp(proof.timestamp, request, now))
        case Jwt() as proof:
            claims = proof.claim(RequestReader(request, settings), now)
            return _put(request, Header(proof.header), proof.prefix + keys.write_token(proof, secrets[0], claims))
        case Token() as proof:
            return _put_token(proof, secrets[0], request)
        case Addresses() | NoProof():
            return request
        case _ as never:
            assert_never(never)


def _add_mac(proof: Hmac, secrets: list[str], request: Request, now: float, id: str | None) -> Request:
    names = proof.headers[0]
    timestamp = format_timestamp(now, proof.time_unit)
    if names.timestamp:
        request = _put(request, Header(names.timestamp), timestamp)
    if names.id and "id" in fields_of(proof.template):
        id = id or request.headers.get(names.id) or "msg_test"
        request = _put(request, Header(names.id), id)
    signatures = make_signatures(proof, secrets, request, timestamp, id or "")
    return _put(request, Header(names.signature), proof.form.write(signatures, timestamp))


def _stamp(timestamp: SignedTimestamp | None, request: Request, now: float) -> Request:
    return request if timestamp is None else _put(request, timestamp.selector, format_timestamp(now, timestamp.unit))


def _state(proof: FieldMac | Asymmetric, reader: RequestReader, secret: str) -> SignedParts:
    stated = proof.read_signed_parts(reader, secret)
    if isinstance(stated, str):
        raise ValueError(f"this cannot be signed: {stated}")  # noqa: TRY004 - the type is right, the value is not
    return stated


def _add_field_macs(proof: FieldMac, settings: Mapping[str, str], secrets: list[str], request: Request) -> Request:
    reader = RequestReader(request, settings)
    by_secret = [_state(proof, reader, secret) for secret in secrets]
    for together in zip(*by_secret, strict=True):
        macs = [
            signing.ENCODERS[proof.encoding](_digest(proof, secret, content.signed))
            for secret, content in zip(secrets, together, strict=True)
        ]
        request = _put(request, together[0].selector, proof.form.write(macs, None))
    return request


def _digest(proof: FieldMac, secret: str, signed: bytes) -> bytes:
    if not proof.is_keyed:
        return hashlib.new(proof.algorithm.value, signed).digest()
    return signing.HmacKey(signing.decode_key(secret, proof.key_form), proof.algorithm).digest((signed,))


def _add_signatures(proof: Asymmetric, settings: Mapping[str, str], privates: list[str], request: Request) -> Request:
    reader = RequestReader(request, settings)
    scheme = _scheme(proof, reader)
    for content in _state(proof, reader, ""):
        signatures = [
            signing.ENCODERS[proof.encoding](keys.sign(scheme, private, content.signed)) for private in privates
        ]
        request = _put(request, content.selector, proof.form.write(signatures, None))
    return request


def _scheme(proof: Asymmetric, reader: RequestReader) -> SignatureAlgorithm:
    scheme = proof.scheme if isinstance(proof.scheme, SignatureAlgorithm) else proof.scheme(reader)
    if not isinstance(scheme, SignatureAlgorithm):
        raise ValueError(f"this cannot be signed: {scheme}")  # noqa: TRY004 - the type is right, the value is not
    return scheme


def _put_token(proof: Token, secret: str, request: Request) -> Request:
    match proof.selector:
        case BasicPassword(username=username):
            pair = base64.b64encode(f"{username}:{secret}".encode()).decode()
            return _put(request, Header("authorization"), f"Basic {pair}")
        case selector:
            return _put(request, selector, proof.prefix + secret)


def format_timestamp(now: float, unit: TimestampFormat) -> str:
    """Format a time, in seconds since 1970, in this unit."""
    match unit:
        case TimestampFormat.SECONDS:
            return str(int(now))
        case TimestampFormat.MILLISECONDS:
            return str(int(now * 1000))
        case TimestampFormat.ISO:
            return datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")


def _put(request: Request, selector: Selector, text: str) -> Request:
    """Return the request with *text* at the selector, replacing any present value."""
    match selector:
        case Header(name=name):
            return replace(request, headers={**request.headers, name: text})
        case Query(name=name):
            query = _with_pair(RequestReader(request).query, name, text)
            base = request.url.partition("?")[0]
            return replace(request, query=query, url=f"{base}?{query}")
        case Form(name=name) if request.method == "GET" and not request.body:
            return _put(request, Query(name), text)
        case Form(name=name):
            return replace(request, body=_with_pair(RequestReader(request).form, name, text).encode())
        case Json(path=path):
            document = parse(request.body)
            if document is UNREADABLE:
                raise ValueError(f"{path} belongs in the body, which is not JSON")
            _set_json_value(document, split_path(path), text)
            return replace(request, body=json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def _without(request: Request, selector: Selector) -> Request:
    """Return the request without a header or a field of its JSON body."""
    match selector:
        case Header(name=name):
            return replace(request, headers={key: text for key, text in request.headers.items() if key != name})
        case Json(path=path) if (document := parse(request.body)) is not UNREADABLE:
            *folders, last = split_path(path)
            table = get_path(document, tuple(folders)) if folders else document
            if isinstance(table, dict) and table.pop(last, None) is not None:
                return replace(request, body=json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
    return request


def _with_pair(pairs: list[tuple[str, str]], name: str, text: str) -> str:
    return urlencode([(key, value) for key, value in pairs if key != name] + [(name, text)])


def _set_json_value(document: Any, parts: Sequence[str], value: Any) -> None:
    here, *rest = parts
    if here == "*":
        for inner in document:
            _set_json_value(inner, rest, value)
    elif isinstance(document, list) and rest:
        _set_json_value(document[int(here)], rest, value)
    elif isinstance(document, list):
        document[int(here)] = value
    elif rest:
        _set_json_value(document.setdefault(here, {}), rest, value)
    else:
        # Keep the type if the sample has a number here.
        is_number = type(document.get(here)) is int and isinstance(value, str) and value.isdigit()
        document[here] = int(value) if is_number else value
