"""Verifies the JSON Web Tokens of one issuer by the keys that it publishes (RFC 7517, RFC 7519).

The accepted algorithms are fixed here, all of them asymmetric, and never chosen by the token (RFC 8725, section 3.1).
Forged key ids cost nothing, so an unknown one makes the keys be fetched again at most once a minute.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from boathook.domain.errors import FetchFailed, TokenRejected
from boathook.observability.log import get_logger
from boathook.verification.jwt import MAX_TOKEN, REFETCH_S
from boathook.verification.public_keys import MIN_RSA_BITS

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_MAX_AGE_S: Final = 600.0
"""After this time keys are fetched again, so that one that is no longer published is no longer accepted."""
_MAX_STALE_S: Final = 3_600.0
"""How long keys are used while the issuer cannot be reached."""
_RETRY_S: Final = 10.0
"""Minimum seconds between requests to an issuer that cannot be reached."""

_LOG = get_logger("service")

KeySource = Callable[[], Awaitable[Mapping[str, Any]]]
"""Fetches a JSON Web Key Set. Raises FetchFailed."""


class SigningKeys:
    """The published keys of one issuer; create one per process.

    Args:
        fetch: fetches them.
    """

    def __init__(self, fetch: KeySource) -> None:
        self._fetch = fetch
        self._fetching = asyncio.Lock()
        self._keys: Sequence[Mapping[str, Any]] = ()
        self._by_algorithm: dict[str, Sequence[jwt.PyJWK]] = {}
        self._fetched_at = -math.inf
        self._failed_at = -math.inf
        self._failure = FetchFailed("the issuer's keys were not fetched yet")

    async def fetch(self) -> int:
        """Fetch the keys now, and return how many of them can verify a token. Raises FetchFailed."""
        self._accept(await self._fetch())
        return sum(any(_read_key(key, algorithm) for algorithm in ALGORITHMS) for key in self._keys)

    async def decode(
        self, token: str, *, audience: str, issuer: str, required: Sequence[str], leeway_s: int
    ) -> dict[str, Any]:
        """Return the claims of a token that the issuer signed for this audience.

        Args:
            token: the token.
            audience: the audience that it must name.
            issuer: the issuer that it must name.
            required: the claims that it must have.
            leeway_s: how far the issuer's clock and this machine's may differ.

        Raises:
            FetchFailed: the keys cannot be fetched.
            TokenRejected: the token is not valid.
        """
        key = await self._find_key(_read_header(token))
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=audience,
                issuer=issuer,
                leeway=leeway_s,
                options={"require": list(required)},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise TokenRejected(f"is invalid: {error}") from None
        return claims

    async def _find_key(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        await self._refresh(_MAX_AGE_S)
        key = self._known_key(header)
        if key is None:
            await self._refresh(REFETCH_S)
            key = self._known_key(header)
        if key is None:
            raise TokenRejected("is signed with a key that it does not publish")
        return key

    async def _refresh(self, max_age_s: float) -> None:
        """Fetch the keys if they are older than that; concurrent callers share one request. Raises FetchFailed."""
        async with self._fetching:
            age_s = time.monotonic() - self._fetched_at
            if age_s <= max_age_s:
                return
            if time.monotonic() - self._failed_at > _RETRY_S:
                try:
                    self._accept(await self._fetch())
                except FetchFailed as error:
                    self._failed_at, self._failure = time.monotonic(), error
                    _LOG.warning("signing_keys_not_fetched", error=str(error))
                else:
                    return
            if age_s > _MAX_STALE_S:
                raise self._failure

    def _accept(self, document: Mapping[str, Any]) -> None:
        try:
            jwt.PyJWKSet.from_dict(dict(document))
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
            raise FetchFailed(f"the issuer's keys cannot be read: {error}") from None
        self._keys = [key for key in document["keys"] if isinstance(key, dict)]
        self._by_algorithm, self._fetched_at = {}, time.monotonic()

    def _known_key(self, header: Mapping[str, Any]) -> jwt.PyJWK | None:
        algorithm = header["alg"]
        if algorithm not in self._by_algorithm:
            self._by_algorithm[algorithm] = self._usable_keys(algorithm)
        keys = self._by_algorithm[algorithm]
        if (kid := header.get("kid")) is None:
            return keys[0] if len(keys) == 1 else None
        return next((key for key in keys if key.key_id == kid), None)

    def _usable_keys(self, algorithm: str) -> Sequence[jwt.PyJWK]:
        keys = [_read_key(document, algorithm) for document in self._keys]
        return [key for key in keys if key is not None]


def _read_key(document: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """Return a published key if it can verify what is signed with this algorithm."""
    # It need not name its algorithm (RFC 7517, section 4.4), and an RSA key fits several.
    try:
        key = jwt.PyJWK.from_dict({"alg": algorithm, **document})
    except jwt.PyJWTError:
        return None
    is_usable = key.algorithm_name in ALGORITHMS and key.public_key_use in {None, "sig"} and not _is_weak(key)
    return key if is_usable else None


def _read_header(token: str) -> Mapping[str, Any]:
    if len(token) > MAX_TOKEN:
        raise TokenRejected(f"is longer than {MAX_TOKEN} characters")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise TokenRejected("is not a JSON Web Token") from None
    if header.get("alg") not in ALGORITHMS:
        raise TokenRejected("is signed with an algorithm that is not accepted")
    return header


def _is_weak(key: jwt.PyJWK) -> bool:
    return isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS


def read_groups(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """Return the texts of a claim that is one text or a list of them; empty for any other value."""
    value = claims.get(claim)
    groups = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return frozenset(group for group in groups if isinstance(group, str))
