"""Forwards events to a local server as their senders would send them: the same bytes with a new signature."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from boathook.cli.context import UsageError
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.redaction import RedactedStruct
from boathook.domain.signing import STANDARD_PREFIX
from boathook.service.operating.event_feed import MESSAGE_SCHEME, FeedEvent, arrives_by_get
from boathook.service.remote import HttpResponse, RemoteClient

_TIMEOUT_S: Final = 30.0
_MAX_RESPONSE_BYTES: Final = 1_048_576
_RETRY_S: Final = 1.0
_CLIENT_HEADERS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "te", "transfer-encoding", "upgrade"}
)
"""Headers that the HTTP client sets itself."""


class Answered(msgspec.Struct, frozen=True):
    """The local server responded."""

    answer: HttpResponse
    ms: float


class Failed(msgspec.Struct, frozen=True):
    """There was no response."""

    reason: str
    ms: float


class Unsigned(msgspec.Struct, frozen=True):
    """The event was not sent, because it cannot be signed."""

    reason: str


Forwarded = Answered | Failed | Unsigned


class SigningOptions(RedactedStruct, frozen=True):
    """Options for signing forwarded events.

    Args:
        secret: the secret that the local server verifies with, or the private key for its public key.
        provider: the scheme; None for that of each event's source.
        options: settings of that scheme.
    """

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secret"})

    secret: str
    provider: str | None
    options: Mapping[str, str]


class Request(msgspec.Struct, frozen=True):
    """A request to the local server."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class Forwarder:
    """Sends events to one URL, one at a time.

    Args:
        client: makes the requests.
        signing: None sends the headers as stored.
        retries: number of retries if there is no response.
        say: called with a message when the server is unavailable.
    """

    def __init__(
        self,
        client: RemoteClient,
        url: str,
        signing: SigningOptions | None,
        *,
        retries: int,
        say: Callable[[str], None],
    ) -> None:
        self._client = client
        self._url = url
        self._signing = signing
        self._retries = retries
        self._say = say

    async def forward(self, event: FeedEvent) -> Forwarded:
        """Forward one event and return the result."""
        try:
            request = request_for(event, self._url, self._signing)
        except (ConfigError, ValueError) as error:
            return Unsigned(str(error))
        for tries_left in range(self._retries, -1, -1):
            began = time.perf_counter()
            try:
                answer = await self._send(request)
            except FetchFailed as error:
                failed = Failed(str(error), _ms_since(began))
                if tries_left == 0 or error.is_final:
                    return failed
                self._say(f"{error}; retrying")
                await asyncio.sleep(_RETRY_S)
            else:
                return Answered(answer, _ms_since(began))
        raise AssertionError("the last try returns")

    async def _send(self, request: Request) -> HttpResponse:
        return await self._client.request(
            request.method,
            request.url,
            headers=request.headers,
            body=request.body,
            timeout_s=_TIMEOUT_S,
            max_bytes=_MAX_RESPONSE_BYTES,
        )


def request_for(event: FeedEvent, url: str, signing: SigningOptions | None) -> Request:
    """Return the request with which an event's sender would send it to *url* now.

    Raises:
        ConfigError: the provider or its settings are unknown.
        ValueError: the secret is not in the provider's format.
    """
    headers = {name: value for name, value in event.headers.items() if name.lower() not in _CLIENT_HEADERS}
    headers.setdefault("content-type", event.content_type)
    provider = signing.provider if signing and signing.provider else event.provider
    method, body = "POST", event.body
    if arrives_by_get(event):
        # The body of an event from a GET request is its query as a form.
        method, body = "GET", b""
        url = f"{url}{'&' if '?' in url else '?'}{event.body.decode('utf-8', 'replace')}"
        del headers["content-type"]
    if signing is None:
        return Request(method, url, headers, body)
    if provider is None:
        raise ConfigError("its source is no longer configured at the gateway; add --provider to sign")
    # Imported only here, as it is needed only with --secret.
    from boathook.testing import signed_request

    options: Mapping[str, Any] = signing.options if signing.provider else event.options
    signed = signed_request(
        provider,
        signing.secret,
        body,
        id=event.id if event.source is None else None,
        url=url,
        method=method,
        content_type=event.content_type or None,
        headers=headers,
        **options,
    )
    return Request(signed.method, signed.url, signed.headers, signed.body)


def check_secret(secret: str, *, is_for_messages: bool) -> None:
    """Check early that a secret can sign messages. Raises UsageError."""
    if is_for_messages and not secret.startswith(STANDARD_PREFIX):
        raise UsageError(
            f"--secret: messages are signed by {MESSAGE_SCHEME}; write one that starts with {STANDARD_PREFIX}"
        )


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1_000, 1)
