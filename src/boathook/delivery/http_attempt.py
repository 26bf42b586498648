"""Prepares endpoints, builds signed requests, classifies responses, and redacts what is recorded."""

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from boathook.config.tables import OutboundSettings
from boathook.db.endpoint_deliveries import EndpointConfig
from boathook.delivery.destination import Executor
from boathook.delivery.prepared_endpoint import GONE, PreparedEndpoint
from boathook.delivery.response_redaction import secret_forms
from boathook.delivery.signer import Signer, read_signers, sign_message, signing_texts
from boathook.domain.endpoints import CUSTOM, REDACTED, SENSITIVE_HEADERS, check_header
from boathook.domain.policy import Failure, RetryPolicy, Success
from boathook.http_client.messages import OutgoingRequest, RequestResult
from boathook.http_client.retry_after import read_retry_after

ABORTED: Final = "ABORTED"
"""Failure code after which the message is not retried."""
_CONTROL: Final = "webhook-delivery"
_MIN_CUSTOM: Final = 8
"""A custom header may contain a secret despite a harmless name; a shorter value is a plain word such as north."""
_SECRETIVE: Final = ("auth", "cookie", "credential", "key", "password", "secret", "token")


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """An endpoint as the target of requests, with its decrypted secrets."""

    url: str = field(repr=False)
    signers: tuple[Signer, ...] = field(repr=False)
    """The signer of the current secret comes first."""
    timeout_s: float
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The endpoint's own headers."""
    basic: tuple[str, str] | None = field(default=None, repr=False)
    """User name and password."""
    client_certificate: tuple[str, str] | None = field(default=None, repr=False)
    """Certificate and private key in PEM format."""
    bearer: str | None = field(default=None, repr=False)
    """An OAuth token. It and `basic` take precedence over the endpoint's own Authorization header."""

    def __post_init__(self) -> None:
        """Reject headers that may not be sent. Raises ValueError."""
        for name, value in self.headers.items():
            check_header(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint(PreparedEndpoint):
    """An endpoint that receives HTTP requests."""

    target: RequestTarget
    oauth: dict[str, str] | None = field(default=None, repr=False)
    """OAuth client settings for obtaining a token, by the names of the endpoint's settings."""

    def with_token(self, token: str) -> "HttpEndpoint":
        """Return a copy with an OAuth token."""
        target = replace(self.target, bearer=token)
        return replace(self, target=target, secrets=collect_secrets(target))


def prepare_endpoint(
    config: EndpointConfig, executor: Executor[Any], policy: RetryPolicy, timeout_s: float
) -> HttpEndpoint:
    """Prepare an endpoint for requests. Raises ValueError if it has no secret, or one that cannot be used."""
    target = _to_target(config, timeout_s)
    return HttpEndpoint(
        revision=config.revision,
        url=config.url,
        policy=policy,
        timeout_s=timeout_s,
        executor=executor,
        target=target,
        secrets=collect_secrets(target),
        oauth=config.auth.get("oauth2"),
        good_until=config.good_until,
    )


def _to_target(config: EndpointConfig, timeout_s: float) -> RequestTarget:
    basic: dict[str, Any] | None = config.auth.get("basic")
    mtls: dict[str, Any] | None = config.auth.get("mtls")
    return RequestTarget(
        url=config.url,
        signers=read_signers(config.secrets),
        timeout_s=timeout_s,
        headers=config.headers,
        basic=None if basic is None else (basic["username"], basic["password"]),
        client_certificate=None if mtls is None else (mtls["certificate"], mtls["key"]),
    )


class MessageHeaders(msgspec.Struct, frozen=True):
    """The headers that all messages of a deployment share."""

    prefixes: tuple[str, ...]
    """Prefixes of the signature headers: ``webhook``, ``svix`` or both."""
    user_agent: str


def read_message_headers(settings: OutboundSettings) -> MessageHeaders:
    """Read the shared headers from the settings."""
    return MessageHeaders(settings.header_prefixes, settings.user_agent or f"boathook/{_version()}")


@cache
def _version() -> str:
    try:
        return version("boathook")
    except PackageNotFoundError:
        return "0"


def build_request(
    message_headers: MessageHeaders,
    target: RequestTarget,
    *,
    message_id: str,
    timestamp: int,
    body: bytes,
    content_type: str,
    token: object = None,
    extra: tuple[str, str] | None = None,
) -> OutgoingRequest:
    """Build the signed request of one attempt.

    Args:
        timestamp: in Unix seconds.
        token: returned with the response.
        extra: one more header, its name in lower case, unless the endpoint sets its own; None sends none.
    """
    headers = [("user-agent", message_headers.user_agent), ("content-type", content_type)]
    headers += sign_message(message_headers.prefixes, target.signers, message_id, timestamp, body)
    if target.headers:
        is_ours = target.bearer is not None or target.basic is not None
        headers += [pair for pair in target.headers.items() if not (is_ours and pair[0].lower() == "authorization")]
    if target.bearer is not None:
        headers.append(("authorization", f"Bearer {target.bearer}"))
    if extra is not None and not any(name.lower() == extra[0] for name in target.headers):
        headers.append(extra)
    return OutgoingRequest(
        url=target.url,
        headers=tuple(headers),
        body=body,
        timeout_s=target.timeout_s,
        basic=target.basic if target.bearer is None else None,
        client_certificate=target.client_certificate,
        token=token,
    )


def recorded_headers(request: OutgoingRequest, target: RequestTarget) -> str:
    """Return the request's headers as JSON pairs of name and value, without secrets and values of custom headers."""
    custom = {name.lower() for name in target.headers}
    pairs = [
        (name, REDACTED if _is_secret(name) else CUSTOM if name.lower() in custom else value)
        for name, value in request.headers
    ]
    user = target.basic or _user_of(target.url)
    if user is not None and not any(name.lower() == "authorization" for name, _ in pairs):
        pairs.append(("authorization", REDACTED))
    return msgspec.json.encode(pairs).decode()


@lru_cache(1_024)
def _is_secret(name: str) -> bool:
    lower = name.lower()
    return lower in SENSITIVE_HEADERS or any(word in lower for word in _SECRETIVE)


def collect_secrets(target: RequestTarget) -> tuple[bytes, ...]:
    """Return the texts to redact from an endpoint's responses, longest first; compute it once per endpoint."""
    plain = signing_texts(target.signers)
    plain += [value for name, value in target.headers.items() if _is_secret(name) or len(value) >= _MIN_CUSTOM]
    plain += [value.partition(" ")[2] for name, value in target.headers.items() if name.lower() == "authorization"]
    plain += [target.bearer] if target.bearer is not None else []
    for pair in (target.basic, _user_of(target.url)):
        if pair is not None:
            plain += [pair[1], ":".join(pair), base64.b64encode(":".join(pair).encode()).decode()]
    if target.client_certificate is not None:
        plain += [line for line in target.client_certificate[1].splitlines() if not line.startswith("-----")]
    return secret_forms(plain)


def _user_of(url: str) -> tuple[str, str] | None:
    if "@" not in url:
        return None
    info, at, _ = urlsplit(url).netloc.rpartition("@")
    name, _, password = info.partition(":")
    return (unquote(name), unquote(password)) if at else None


def classify_response(answer: RequestResult) -> Success | Failure:
    """Classify a response: 2xx is success, whatever the body."""
    if 200 <= answer.status < 300:
        return Success()
    if answer.failure is not None:
        return Failure(code=str(answer.failure), error=answer.error)
    control = answer.headers.get(_CONTROL, "").strip().lower()
    if answer.status == 410 or control == "disable":
        return Failure(code=GONE, error=f"{_describe(answer)}: the receiver unsubscribed", is_final=True)
    if control == "abort-message":
        return Failure(code=ABORTED, error=f"{_describe(answer)}: it declined this message", is_final=True)
    return Failure(
        code=f"HTTP_{answer.status}",
        error=_describe(answer) + ("; redirects are not followed" if 300 <= answer.status < 400 else ""),
        retry_after_s=read_retry_after(answer.headers.get("retry-after", ""), time.time()),
    )


def _describe(answer: RequestResult) -> str:
    return f"the endpoint answered with status {answer.status}"
