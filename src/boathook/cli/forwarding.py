"""Sends events on to a server of one's own, as their senders would: the same bytes, with a proof of one's own."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from boathook.cli.context import UsageError
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.domain.signing import STANDARD_PREFIX
from boathook.service.event_feed import MESSAGE_SCHEME, FeedEvent, arrives_by_get
from boathook.service.remote import HttpResponse, RemoteClient

_TIMEOUT_S: Final = 30.0
_MAX_RESPONSE_BYTES: Final = 1_048_576
_RETRY_S: Final = 1.0
_CLIENT_HEADERS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "te", "transfer-encoding", "upgrade"}
)
"""Headers that the client writes itself."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The local server answered."""

    answer: HttpResponse
    ms: float


@dataclass(frozen=True, slots=True)
class Failed:
    """There was no answer."""

    reason: str
    ms: float


@dataclass(frozen=True, slots=True)
class Unsigned:
    """It cannot be signed, so it was not sent."""

    reason: str


Forwarded = Answered | Failed | Unsigned


@dataclass(frozen=True, slots=True)
class SigningOptions:
    """How events are signed anew.

    Args:
        secret: what the local server verifies with, or the private key that belongs to it.
        provider: the scheme; None: that of each event's source.
        options: settings of that scheme.
    """

    secret: str
    provider: str | None
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent to the local server."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class Forwarder:
    """Sends events to one address, one after another.

    Args:
        client: makes the requests.
        signing: None sends the headers as they were kept.
        retries: how often it is tried again where there is no answer.
        say: told when the server is away.
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

    async def forward(self, heard: FeedEvent) -> Forwarded:
        """Send one event on and return what came of it."""
        try:
            request = request_for(heard, self._url, self._signing)
        except (ConfigError, ValueError) as error:
            return Unsigned(str(error))
        for left in range(self._retries, -1, -1):
            began = time.perf_counter()
            try:
                answer = await self._send(request)
            except FetchFailed as error:
                failed = Failed(str(error), _ms_since(began))
                if left == 0 or error.is_final:
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


def request_for(heard: FeedEvent, url: str, signing: SigningOptions | None) -> Request:
    """Return the request by which an event's sender would bring it to *url* today.

    Raises:
        ConfigError: the provider or its settings are unknown.
        ValueError: the secret is not in the provider's form.
    """
    headers = {name: value for name, value in heard.headers.items() if name.lower() not in _CLIENT_HEADERS}
    headers.setdefault("content-type", heard.content_type)
    provider = signing.provider if signing and signing.provider else heard.provider
    method, body = "POST", heard.body
    if arrives_by_get(heard):
        # What comes by GET is kept as the form that its query is.
        method, body = "GET", b""
        url = f"{url}{'&' if '?' in url else '?'}{heard.body.decode('utf-8', 'replace')}"
        del headers["content-type"]
    if signing is None:
        return Request(method, url, headers, body)
    if provider is None:
        raise ConfigError("its source is no longer configured at the gateway; add --provider to sign")
    # Imported only here: most who listen sign nothing.
    from boathook.testing import signed_request

    options: Mapping[str, Any] = signing.options if signing.provider else heard.options
    signed = signed_request(
        provider,
        signing.secret,
        body,
        id=heard.id if heard.origin == "published" else None,
        url=url,
        method=method,
        content_type=heard.content_type or None,
        headers=headers,
        **options,
    )
    return Request(signed.method, signed.url, signed.headers, signed.body)


def check_secret(secret: str, *, is_for_messages: bool) -> None:
    """Refuse at once a secret that no message could be signed with. Raises UsageError."""
    if is_for_messages and not secret.startswith(STANDARD_PREFIX):
        raise UsageError(
            f"--secret: messages are signed by {MESSAGE_SCHEME}; write one that starts with {STANDARD_PREFIX}"
        )


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1_000, 1)
