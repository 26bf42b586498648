"""Verifies the JSON Web Tokens of the owner's users, who call the mounted paths of apps."""

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from boathook.config import Settings
from boathook.domain.errors import FetchFailed, TokenRejected
from boathook.http_client.client import Client
from boathook.service.access.signing_keys import SigningKeys, read_groups

_REQUIRED: Final = ("aud", "exp", "iss", "sub")
_LEEWAY_S: Final = 10
_MAX_BYTES: Final = 262_144
_FETCH_TIMEOUT_S: Final = 5.0
_MAX_SUBJECT: Final = 200


class UserToken(msgspec.Struct, frozen=True):
    """A valid token."""

    subject: str
    """The user's id at the issuer."""
    groups: frozenset[str]
    """The values of the claim with roles."""
    valid_for_s: float
    """Seconds until it is no longer accepted."""


class UserTokens:
    """Verifies users' tokens; create one per process.

    Args:
        settings: the settings, with `jwt.is_on`.

    Raises:
        ConfigError: the proxy cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self._jwt = settings.jwt
        proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
        self._client = Client(settings.outbound.model_copy(update={"proxy": proxy}))
        self._keys = SigningKeys(self._fetch_keys)

    def close(self) -> None:
        """Abort the requests in progress."""
        self._client.close()

    async def count_keys(self) -> int:
        """Fetch the issuer's keys now, and return how many of them can verify a token. Raises FetchFailed."""
        return await self._keys.fetch()

    async def verify(self, token: str) -> UserToken:
        """Return the user of a token.

        Raises:
            FetchFailed: the issuer's keys cannot be fetched.
            TokenRejected: the token is not valid here.
        """
        issuer, audience = self._jwt.issuer, self._jwt.audience
        claims = await self._keys.decode(
            token, audience=audience, issuer=issuer, required=_REQUIRED, leeway_s=_LEEWAY_S
        )
        subject = claims["sub"]
        if not 0 < len(subject) <= _MAX_SUBJECT or not subject.isprintable():
            raise TokenRejected(f'has a claim "sub" that is not 1 to {_MAX_SUBJECT} printable characters')
        valid_for_s = int(claims["exp"]) + _LEEWAY_S - time.time()
        return UserToken(subject, read_groups(claims, self._jwt.role_claim), valid_for_s)

    async def _fetch_keys(self) -> Mapping[str, Any]:
        url = self._jwt.jwks_url
        answer = await self._client.request("GET", url, timeout_s=_FETCH_TIMEOUT_S, max_bytes=_MAX_BYTES)
        try:
            document = msgspec.json.decode(answer.body) if answer.status == 200 else None
        except (msgspec.DecodeError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise FetchFailed(f"jwt.jwks_url has no key set: status {answer.status}", status=answer.status)
        return document
