"""Performs the I/O that verification needs: fetches keys, confirms subscriptions, stores handshake secrets.

The HTTP client is injected, because this package must not import one.
"""

import time
from typing import Final, Protocol

import msgspec

from boathook.domain.errors import FetchFailed
from boathook.domain.verification import Challenge, Reason
from boathook.http.limits import RateLimiter
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.verification.keyring import MAX_BYTES
from boathook.verification.verifier import Verifier

RETRY_S: Final = 30.0
"""Retry-After in seconds when a key could not be fetched; failures are cached for as long."""
_NEW_KEYS_RATE: Final = 5.0
NEW_KEYS_BURST: Final = 20
_CONFIRMATIONS_RATE: Final = 1.0
_CONFIRMATIONS_BURST: Final = 10
_MAX_CONFIRMATION_BYTES: Final = 65_536
_LOG_S: Final = 30.0
_LOG = get_logger("verification_io")


class Fetch(Protocol):
    """Fetches a URL that a recipe allows."""

    async def __call__(self, url: str, /, *, max_bytes: int) -> bytes:
        """Return the content. Raises FetchFailed."""
        ...


class VerificationIOFailure(msgspec.Struct, frozen=True):
    """I/O for a verification failed, so the request is rejected."""

    status: int
    reason: str


class VerificationIO:
    """Performs the I/O of all verifications in one process.

    Args:
        fetch: fetches a URL.
        handshake_secrets: stores secrets that senders pass in a handshake.
    """

    def __init__(self, fetch: Fetch, handshake_secrets: HandshakeSecrets) -> None:
        self._fetch = fetch
        self._handshake_secrets = handshake_secrets
        # URLs are pinned by host, not by path: a forger could name a new one in every request.
        self._new_keys = RateLimiter(_NEW_KEYS_RATE, NEW_KEYS_BURST)
        # A captured challenge can be replayed.
        self._confirmations = RateLimiter(_CONFIRMATIONS_RATE, _CONFIRMATIONS_BURST)
        self._log_rate = RateLimiter(1 / _LOG_S, 1)

    async def run(self, source: str, challenge: Challenge) -> VerificationIOFailure | None:
        """Perform the I/O of a handshake; return the failure, if any."""
        if challenge.visit is not None:
            return await self._confirm_subscription(source, challenge.visit)
        if challenge.capture is not None and not self._handshake_secrets.save(source, challenge.capture):
            self._warn(
                source, "handshake_secret_differs", note="another secret was received before, so it was not stored"
            )
            return VerificationIOFailure(401, Reason.CHALLENGE_REFUSED)
        if challenge.capture is not None:
            _LOG.info("secret_captured", source=source, note=f"run: boathook sources secret {source}")
        return None

    async def fetch_key(self, source: str, verifier: Verifier, url: str, now: float) -> None:
        """Fetch a public key into the verifier's ring, if it may be fetched now."""
        ring = verifier.ring
        if not ring.has(url) and self._new_keys.wait_s(source, time.monotonic()) > 0:
            meters.count("boathook_key_fetches_total", source=source, outcome="limited")
            return
        try:
            content = await self._fetch(url, max_bytes=MAX_BYTES)
        except FetchFailed as error:
            is_stale = ring.extend(url, now)
            meters.count("boathook_key_fetches_total", source=source, outcome="stale" if is_stale else "failed")
            note = "the one fetched before is used" if is_stale else "its requests are answered 503"
            self._warn(source, "key_not_fetched", url=url, error=str(error), note=note)
        else:
            ring.put(url, content, now)
            meters.count("boathook_key_fetches_total", source=source, outcome="fetched")

    async def _confirm_subscription(self, source: str, url: str) -> VerificationIOFailure | None:
        if self._confirmations.wait_s(source, time.monotonic()) > 0:
            return VerificationIOFailure(503, "confirmation_rate")
        try:
            await self._fetch(url, max_bytes=_MAX_CONFIRMATION_BYTES)
        except FetchFailed as error:
            self._warn(source, "confirmation_failed", error=str(error), note="the subscription is not confirmed yet")
            return VerificationIOFailure(503, "confirmation_failed")
        _LOG.info("subscription_confirmed", source=source)
        return None

    def _warn(self, source: str, event: str, **fields: str) -> None:
        if self._log_rate.wait_s(f"{source} {event}", time.monotonic()) == 0:
            _LOG.warning(event, source=source, **fields)
