"""Caches access tokens for endpoints, from OAuth 2.0's client credentials grant (RFC 6749, section 4.4).

Customers enter the URLs of token servers like those of endpoints, so they pass the same guard.
"""

import asyncio
import base64
import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from boathook.config.tables import OutboundSettings
from boathook.domain.errors import FetchFailed
from boathook.http_client.client import Client
from boathook.http_client.messages import HttpResponse

FAILED_S: Final = 10.0
"""Seconds a failure is cached, so that a broken token server is not called for every message."""
_MAX_CONCURRENT: Final = 1_000
"""Maximum concurrent token requests; servers that do not respond must not block the others."""
_MAX_BODY: Final = 65_536
_MAX_TOKEN: Final = 16_384
_MAX_KEPT: Final = 10_000
_USUAL_S: Final = 300.0
"""Seconds a token is used if its server sends no lifetime."""
_MAX_S: Final = 86_400.0
_EARLY_S: Final = 30.0
"""Seconds before its expiry when a token is no longer used, so that it does not expire in transit."""

_Key = tuple[str, str, bytes, str]


@dataclass(frozen=True, slots=True)
class _Kept:
    token: str = field(repr=False)
    error: str
    """Why there is no token."""
    until: float
    """On the monotonic clock."""


class TokenCache:
    """Requests access tokens and caches them until shortly before they expire; create one per event loop.

    Concurrent calls share one request.

    Args:
        settings: limits, proxies and allowed destinations.
        user_agent: the User-Agent that token servers see.
    """

    def __init__(self, settings: OutboundSettings, *, user_agent: str = "boathook") -> None:
        self._timeout_s = settings.timeout_s
        self._user_agent = user_agent
        self._client = Client(settings, max_concurrent=_MAX_CONCURRENT)
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._asking: dict[_Key, asyncio.Task[str]] = {}

    async def token(self, token_url: str, client_id: str, client_secret: str, scope: str | None = None) -> str:
        """Return a token for this client.

        Raises:
            FetchFailed: the token request failed, now or within the last `FAILED_S` seconds.
        """
        key = (token_url, client_id, hashlib.sha256(client_secret.encode()).digest(), scope or "")
        entry = self._kept.get(key)
        if entry is not None and time.monotonic() < entry.until:
            if entry.error:
                raise FetchFailed(f"{entry.error} (a moment ago; not tried again)")
            return entry.token
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._request_token(key, client_secret))
            self._asking[key] = asking
            asking.add_done_callback(lambda task: self._forget(key, task))
        # A caller that stops waiting must not cancel the request of the others.
        return await asyncio.shield(asking)

    def drop(self, token: str) -> None:
        """Forget a token that an endpoint rejected, so that the next attempt requests a new one."""
        for key in [key for key, entry in self._kept.items() if entry.token == token]:
            del self._kept[key]

    def close(self) -> None:
        """Cancel all token requests."""
        self._client.close()

    def _forget(self, key: _Key, task: "asyncio.Task[str]") -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # callers receive it; retrieving it here avoids asyncio's warning if there is none

    async def _request_token(self, key: _Key, client_secret: str) -> str:
        token_url, client_id, _, scope = key
        form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        try:
            token, lives_s = _read_answer(await self._request(token_url, _basic(client_id, client_secret), form))
        except FetchFailed as error:
            self._keep(key, _Kept("", str(error), time.monotonic() + FAILED_S))
            raise
        self._keep(key, _Kept(token, "", time.monotonic() + lives_s - min(_EARLY_S, lives_s / 2)))
        return token

    async def _request(self, token_url: str, basic: str, form: Mapping[str, str]) -> HttpResponse:
        headers = {
            "user-agent": self._user_agent,
            "content-type": "application/x-www-form-urlencoded",
            "authorization": f"Basic {basic}",
        }
        body = urlencode(form).encode()
        try:
            return await self._client.request(
                "POST", token_url, headers=headers, body=body, timeout_s=self._timeout_s, max_bytes=_MAX_BODY
            )
        except FetchFailed as error:
            raise FetchFailed(f"the request to the token server failed: {error}") from None

    def _keep(self, key: _Key, entry: _Kept) -> None:
        self._kept.pop(key, None)
        if len(self._kept) >= _MAX_KEPT:
            self._kept.popitem(last=False)
        self._kept[key] = entry


def _basic(client_id: str, client_secret: str) -> str:
    # Both are form-encoded before they are joined (RFC 6749, section 2.3.1).
    return base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode()).decode()


def _read_answer(answer: HttpResponse) -> tuple[str, float]:
    """Return the token and its lifetime in seconds. Raises FetchFailed, which never contains the server's text."""
    if answer.status != 200:
        raise FetchFailed(f"the token server answered with status {answer.status}")
    fields = _read_object(answer.body)
    token, kind = fields.get("access_token"), fields.get("token_type", "Bearer")
    if not isinstance(token, str) or not 0 < len(token) <= _MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise FetchFailed("the token server's answer contains no access_token that can be used")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise FetchFailed("the token server's token is not of type Bearer")
    return token, _read_life(fields.get("expires_in"))


def _read_object(body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise FetchFailed("the token server's answer is not a JSON object")
    return fields


def _read_life(value: object) -> float:
    """Return a token's lifetime in seconds; some servers send the number as a string."""
    try:
        seconds = float(value) if isinstance(value, int | float | str) else _USUAL_S
    except (ValueError, OverflowError):
        return _USUAL_S
    return min(seconds, _MAX_S) if math.isfinite(seconds) and seconds > 0 else _USUAL_S
