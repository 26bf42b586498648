"""Verifies requests as a library: one call, in any web framework, without a server."""

import functools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, assert_never, runtime_checkable
from urllib.parse import urlsplit

import msgspec

from boathook.domain.errors import BoathookError, ConfigError
from boathook.domain.verification import Challenge, KeyRequired, Reason, Rejected, Reply, Request, SourceSpec, Verified
from boathook.verification.keyring import KeyRing

# `import boathook` loads this module in every process, even where nothing is verified. So the first call imports the
# rest: recipes, cryptography and the HTTP client take longer than everything else together.
if TYPE_CHECKING:
    from boathook.http_client.fetch import Fetcher
    from boathook.verification.verifier import Verifier

KEY_RING: Final = KeyRing()
"""Public keys fetched so far, shared by all calls in this process."""
MAX_KEY_BYTES: Final = 65_536

_MAX_FETCHES: Final = 2
_OK: Final = Reply(status=200, body=b'{"ok":true}', content_type="application/json")


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify` for one request; true unless the request is refused."""

    outcome: Literal["event", "handshake", "rejected"]
    reply: Reply
    """The reply to send: status, body and content type. For a handshake or a refusal send exactly this; for an event,
    send it after you have stored the event."""
    event: Verified | None = None
    """The event in the request: its type, dedup key, grade and items; None unless the outcome is an event."""
    reason: Reason | None = None
    """Why it is refused, as a fixed word suitable for metrics."""
    detail: str = ""
    """Why it is refused, for your own log; never send it to the sender."""
    visit: str | None = None
    """A URL on the sender's own host that you must fetch to confirm a subscription (Amazon SNS)."""
    capture: str | None = None
    """A secret that the sender sends only once: store it, because later requests are signed with it (Notion)."""

    def __bool__(self) -> bool:
        return self.outcome != "rejected"


@runtime_checkable
class _Items(Protocol):
    def items(self) -> Iterable[tuple[str | bytes, str | bytes]]: ...


_Settings = tuple[tuple[str, Any], ...]
Headers = _Items | Iterable[tuple[str | bytes, str | bytes]]
"""A mapping, a framework's own headers object, or pairs; header names are case-insensitive."""


def verify(
    provider: str,
    secrets: str | Sequence[str],
    headers: Headers,
    body: bytes,
    url: str = "",
    *,
    method: str = "POST",
    client: str = "",
    now: float | None = None,
    tolerance_s: float | None = None,
    keys: Mapping[str, bytes] | None = None,
    schema: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Verification:
    """Verify that a request comes from *provider* and return its event; never raises because of the request's content.

    Storing the event and deduplicating it (by ``result.event.dedup_key``) is up to the caller. For senders whose public
    keys must be fetched (PayPal, Amazon SNS, Google Pub/Sub), the first call blocks for up to a few seconds. In async
    code run it in a thread, or pass *keys*.

    Args:
        provider: a recipe's name, as ``boathook sources providers`` lists them.
        secrets: the shared secret, or several during rotation; for key pairs the sender's public key.
        headers: the request's headers.
        body: the raw bytes as received, before any parsing.
        url: the public URL the request was sent to, query included; needed if it is signed, holds a token, or carries a
            handshake.
        method: the HTTP method.
        client: the sender's IP address, for senders that are identified only by it.
        now: when the request was received, in seconds since 1970; the current time by default.
        tolerance_s: how far a signed timestamp may be in the past or the future; the provider's own default if omitted.
        keys: public keys by the URL they would be fetched from; these are not fetched.
        schema: a JSON Schema (draft 7) that the body must match once its proof is verified.
        settings: the provider's own settings, as in boathook.toml: ``webhook_id="..."``.

    Raises:
        ConfigError: the provider is unknown, or a secret, a setting, the URL or the schema is missing or invalid.
        TypeError: an argument has the wrong type: *body*, because a parsed and re-serialized body never matches its
            signature; *secrets*, often because the variable it is read from is not set.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"body: pass the raw bytes as received, not {type(body).__name__}")
    options = tuple(sorted((name, _hashable(name, value)) for name, value in settings.items()))
    received_at = time.time() if now is None else now
    spec = provider, _secrets(secrets), tolerance_s, options, _written(schema)
    verifier = _compile(*spec) if keys is None else _make(*spec, _ring_of(keys, received_at))
    if verifier.recipe.signs_url and not url:
        raise ConfigError(f"url: {verifier.recipe.title} signs the URL; pass all of it, with its query")
    path, query = _split(url)
    request = Request(
        method=method.upper(),
        url=url,
        path=path,
        query=query,
        headers=_read(headers),
        body=bytes(body),
        client=client or "",
    )
    return _verify_request(verifier, request, received_at)


@functools.lru_cache(maxsize=256)
def _compile(
    provider: str, secrets: tuple[str, ...], tolerance_s: float | None, settings: _Settings, schema: str
) -> "Verifier":
    return _make(provider, secrets, tolerance_s, settings, schema, KEY_RING)


def _ring_of(keys: Mapping[str, bytes], now: float) -> KeyRing:
    """Return a key ring for the keys of one call; no other call may trust them."""
    ring = KeyRing()
    for url, content in keys.items():
        ring.put(url, content, now)
    return ring


def _make(
    provider: str, secrets: tuple[str, ...], tolerance_s: float | None, settings: _Settings, schema: str, ring: KeyRing
) -> "Verifier":
    from boathook.verification.verifier import Verifier

    spec = SourceSpec(
        name=provider,
        provider=provider,
        secrets=secrets,
        # A placeholder: each request has its own URL.
        public_url="https://given.by.the.caller",
        tolerance_s=tolerance_s,
        options=dict(settings),
        schema=json.loads(schema) if schema else None,
    )
    try:
        return Verifier(spec, ring)
    except ConfigError as error:
        raise ConfigError(_reword_for_library(str(error), provider, secrets)) from None


def _reword_for_library(complaint: str, provider: str, secrets: tuple[str, ...]) -> str:
    """Rewrite a settings error for library callers: without boathook.toml, the keys are arguments."""
    from boathook.providers import find_recipe
    from boathook.providers.schemes import NoProof

    message = complaint.removeprefix(f"sources.{provider}.")
    match message.partition(":")[0]:
        case "unsigned" if isinstance(find_recipe(provider).proof, NoProof):
            return f"provider: {provider} does not sign, so there is nothing to verify; fetch the data from its API"
        case "secrets" if not secrets:
            return f"secrets: there is none, but {provider} signs its requests with one; pass it as text"
        case _:
            return message


def _secrets(secrets: str | Sequence[str]) -> tuple[str, ...]:
    values: tuple[object, ...] = (secrets,) if isinstance(secrets, str | None) else tuple(secrets)
    texts = tuple(value for value in values if isinstance(value, str))
    if texts != values:
        raise TypeError("secrets: pass a string or a list of strings; None means that a variable is not set")
    return tuple(filter(None, texts))


def _written(schema: Mapping[str, Any] | None) -> str:
    try:
        return "" if schema is None else json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"schema: it cannot be written as JSON: {error}") from None


def _hashable(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        raise ConfigError(f"{name}: no provider has a setting that is a table; pass text")
    return value


def _read(headers: Headers) -> dict[str, str]:
    read: dict[str, str] = {}
    if isinstance(headers, str | bytes | None):
        raise TypeError("headers: pass a mapping, or pairs of name and value")
    for raw_name, raw_value in headers.items() if isinstance(headers, _Items) else headers:
        name = _text(raw_name).lower()
        value = _text(raw_value, name)
        read[name] = f"{read[name]}, {value}" if name in read else value
    return read


def _split(url: str) -> tuple[str, str]:
    """Return path and query of a URL; its host comes from the request and may be malformed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", url.partition("#")[0].partition("?")[2]
    return parts.path, parts.query


def _text(value: str | bytes, header: str = "a name") -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise TypeError(f"headers: {header} must be text, not {type(value).__name__}")
    return value


def _verify_request(verifier: "Verifier", request: Request, now: float) -> Verification:
    for _ in range(_MAX_FETCHES):
        verdict = verifier.verify(request, now)
        match verdict:
            case KeyRequired(url=url):
                trouble = _fetch_key(verifier.ring, url, now)
                if trouble is not None:
                    return _key_unavailable(trouble)
            case Verified():
                return Verification(outcome="event", reply=verdict.reply or _OK, event=verdict)
            case Challenge():
                reply = Reply(status=verdict.status, body=verdict.body, content_type=verdict.content_type)
                return Verification(outcome="handshake", reply=reply, visit=verdict.visit, capture=verdict.capture)
            case Rejected():
                return _refused(verdict)
            case _:
                assert_never(verdict)
    return _key_unavailable("the sender's keys, fetched again, do not include the one that this request names")


def _fetch_key(ring: KeyRing, url: str, now: float) -> str | None:
    """Fetch a key into the ring, or keep using an old one if that fails; return the error if there is none."""
    try:
        ring.put(url, _fetcher().fetch_sync(url, max_bytes=MAX_KEY_BYTES), now)
    except BoathookError as error:
        return None if ring.extend(url, now) else str(error)
    return None


@functools.cache
def _fetcher() -> "Fetcher":
    from boathook.http_client.fetch import Fetcher

    return Fetcher()


def _refused(rejected: Rejected) -> Verification:
    body = {"ok": False} | ({"detail": rejected.public_detail} if rejected.public_detail else {})
    written = json.dumps(body, separators=(",", ":")).encode()
    reply = Reply(status=rejected.status, body=written, content_type="application/json")
    return Verification(outcome="rejected", reply=reply, reason=rejected.reason, detail=rejected.detail)


def _key_unavailable(detail: str) -> Verification:
    # 503, because the request itself is valid: the sender should retry.
    rejected = Rejected(status=503, reason=Reason.KEY_UNAVAILABLE, detail=detail, may_reverify=True)
    return _refused(rejected)
