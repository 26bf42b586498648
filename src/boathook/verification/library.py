"""Verification as a library: whether a request is genuine, in one call, in any web framework, without a server."""

import functools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, assert_never, runtime_checkable
from urllib.parse import urlsplit

from boathook.domain.errors import BoathookError, ConfigError
from boathook.domain.verification import Challenge, KeyRequired, Reason, Rejected, Reply, Request, SourceSpec, Verified
from boathook.verification.keyring import KeyRing

# `import boathook` brings this module along into every process, also where nothing is ever verified. So the rest is
# imported by the first call: recipes, cryptography and a client of HTTP take longer than all else together.
if TYPE_CHECKING:
    from boathook.http_client.fetch import Fetcher
    from boathook.verification.verifier import Verifier

KEY_RING: Final = KeyRing()
"""Public keys fetched so far, shared by all calls in this process."""
MAX_KEY_BYTES: Final = 65_536

_MAX_FETCHES: Final = 2
_OK: Final = Reply(status=200, body=b'{"ok":true}', content_type="application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `verify` says of one request; true unless it is refused."""

    outcome: Literal["event", "handshake", "refused"]
    reply: Reply
    """What to answer: status, body and content type. For a handshake or a refusal answer just this; for an event,
    once you have stored it."""
    event: Verified | None = None
    """What the request brings: its type, dedup key, grade and items; None unless it is an event."""
    reason: Reason | None = None
    """Why it is refused, as a word to count by."""
    detail: str = ""
    """Why it is refused, for your own log; never answer it to the sender."""
    visit: str | None = None
    """An address on the sender's own host that you must fetch to confirm a subscription (Amazon SNS)."""
    capture: str | None = None
    """A secret the sender tells once: keep it, as what follows is signed with it (Notion)."""

    def __bool__(self) -> bool:
        return self.outcome != "refused"


@runtime_checkable
class _Items(Protocol):
    def items(self) -> Iterable[tuple[str | bytes, str | bytes]]: ...


_Settings = tuple[tuple[str, Any], ...]
Headers = _Items | Iterable[tuple[str | bytes, str | bytes]]
"""A mapping, any framework's own headers, or pairs; names in any letter case."""


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
    """Say whether a request is what *provider* sends, and what it brings; never raises because of what was sent.

    Storing the event and refusing the second copy of one (by ``result.event.dedup_key``) stay with the caller. Senders
    whose public keys must be fetched (PayPal, Amazon SNS, Google Pub/Sub) make the first call wait for that, for
    at most some seconds; in async code run it in a thread, or pass *keys*.

    Args:
        provider: a recipe's name, as ``boathook sources providers`` lists them.
        secrets: the shared secret, or several while one is being rotated; for key pairs the sender's public key.
        headers: the request's headers.
        body: the raw bytes as they arrived, before any parsing.
        url: the public address the sender sent to, query included; needed where it is signed, holds a token, or
            carries a handshake.
        method: the HTTP method.
        client: the sender's address, for senders known by nothing else.
        now: the moment of receiving in seconds since 1970; the clock's, where it is left out.
        tolerance_s: how far a signed timestamp may lie in the past or the future; the provider's own by default.
        keys: public keys by the address they would be fetched from, which are then not fetched.
        schema: a JSON Schema (draft 7) that the body must fit once its proof has held.
        settings: the provider's own settings, as in boathook.toml: ``webhook_id="..."``.

    Raises:
        ConfigError: there is no such provider, or a secret, a setting, the address or the schema is missing or
            impossible.
        TypeError: an argument is of another type: *body*, because a parsed and rewritten body never fits its signature;
            *secrets*, often because the variable they are read from is not set.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"body: pass the raw bytes as they arrived, not {type(body).__name__}")
    chosen = tuple(sorted((name, _hashable(name, value)) for name, value in settings.items()))
    moment = time.time() if now is None else now
    spec = provider, _secrets(secrets), tolerance_s, chosen, _written(schema)
    verifier = _compile(*spec) if keys is None else _make(*spec, _ring_of(keys, moment))
    if verifier.recipe.signs_url and not url:
        raise ConfigError(f"url: {verifier.recipe.title} signs the address it sends to; pass it whole, query included")
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
    return _verify_request(verifier, request, moment)


@functools.lru_cache(maxsize=256)
def _compile(
    provider: str, secrets: tuple[str, ...], tolerance_s: float | None, settings: _Settings, schema: str
) -> "Verifier":
    return _make(provider, secrets, tolerance_s, settings, schema, KEY_RING)


def _ring_of(keys: Mapping[str, bytes], now: float) -> KeyRing:
    """Return the keys of one call in a ring of their own: no other call is to trust them."""
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
        # Each request brings its own.
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
    """Write a complaint about a source's settings for code, where there is no boathook.toml: its keys are arguments."""
    from boathook.providers import find_recipe
    from boathook.providers.schemes import NoProof

    said = complaint.removeprefix(f"sources.{provider}.")
    match said.partition(":")[0]:
        case "unsigned" if isinstance(find_recipe(provider).proof, NoProof):
            return f"provider: {provider} proves nothing, so there is nothing to verify; ask its API what is true"
        case "secrets" if not secrets:
            return f"secrets: there is none, and {provider} proves its requests with one; pass its text"
        case _:
            return said


def _secrets(secrets: str | Sequence[str]) -> tuple[str, ...]:
    known: tuple[object, ...] = (secrets,) if isinstance(secrets, str | None) else tuple(secrets)
    texts = tuple(one for one in known if isinstance(one, str))
    if texts != known:
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
        raise TypeError("headers: pass a mapping, or pairs of name and value, not text or nothing")
    for raw_name, raw_value in headers.items() if isinstance(headers, _Items) else headers:
        name = _text(raw_name).lower()
        value = _text(raw_value, name)
        read[name] = f"{read[name]}, {value}" if name in read else value
    return read


def _split(url: str) -> tuple[str, str]:
    """Return path and query of an address whose host a stranger may have written."""
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
    return _key_unavailable("the sender's keys, fetched anew, do not hold the one this request names")


def _fetch_key(ring: KeyRing, url: str, now: float) -> str | None:
    """Put the key at an address into the ring, or go on with an old one; return what went wrong."""
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
    return Verification(outcome="refused", reply=reply, reason=rejected.reason, detail=rejected.detail)


def _key_unavailable(detail: str) -> Verification:
    # 503, because nothing is wrong with the request: its sender is to try again.
    rejected = Rejected(status=503, reason=Reason.KEY_UNAVAILABLE, detail=detail, may_reverify=True)
    return _refused(rejected)
