"""What a verdict asks for before its request can be answered: a key fetched, an address visited, a secret kept.

Fetching itself is done by whoever is handed in, because this room calls nobody.
"""

import time
from dataclasses import dataclass
from typing import Final, Protocol

from boathook.domain.errors import FetchFailed
from boathook.inbound.captured import CapturedSecrets
from boathook.inbound.limits import Rate
from boathook.inbound.proving.keyring import MAX_BYTES
from boathook.inbound.verdict import Challenge, KeyWanted, Reason, Request, Verdict
from boathook.inbound.verify import Decode, Verifier
from boathook.telemetry import emit
from boathook.telemetry.log import get_logger

RETRY_S: Final = 30.0
"""When a sender whose key could not be had should come back; failures are remembered that long."""
_NEW_KEYS_RATE: Final = 5.0
_NEW_KEYS_BURST: Final = 20
_VISITS_RATE: Final = 1.0
_VISITS_BURST: Final = 10
_MAX_VISIT: Final = 65_536
_LOG_S: Final = 30.0
_LOG = get_logger("errands")


class Fetch(Protocol):
    """Gets what lies at an address that a recipe pins."""

    async def __call__(self, url: str, /, *, max_bytes: int) -> bytes:
        """Return it. Raises FetchFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Failed:
    """An errand came to nothing, so the request is refused."""

    status: int
    reason: str


class Errands:
    """Runs the errands of one process.

    Args:
        fetch: gets what lies at an address.
        captured: where told secrets are kept.
    """

    def __init__(self, fetch: Fetch, captured: CapturedSecrets) -> None:
        self._fetch = fetch
        self._captured = captured
        # Addresses are pinned by host, not by file: a forger could name a new one in every request.
        self._new_keys = Rate(_NEW_KEYS_RATE, _NEW_KEYS_BURST)
        # A genuine question can be sent again by whoever has seen it.
        self._visits = Rate(_VISITS_RATE, _VISITS_BURST)
        self._log_rate = Rate(1 / _LOG_S, 1)

    async def judge_with_key(
        self, source: str, verifier: Verifier, wanted: KeyWanted, request: Request, now: float, decode: Decode | None
    ) -> Verdict:
        """Judge a request again with the key it wants; `KeyWanted` where that cannot be had."""
        await self._bring(source, verifier, wanted.url, now)
        return verifier.verify(request, now, decode)

    async def run(self, source: str, challenge: Challenge) -> Failed | None:
        """Do what a handshake asks for before it is answered."""
        if challenge.visit is not None:
            return await self._visit(source, challenge.visit)
        if challenge.capture is not None and not self._captured.tell(source, challenge.capture):
            self._warn(source, "secret_told_again", note="another one was told before, so it was not kept")
            return Failed(401, Reason.CHALLENGE_REFUSED)
        if challenge.capture is not None:
            _LOG.info("secret_captured", source=source, note=f"run: boathook sources secret {source}")
        return None

    async def _bring(self, source: str, verifier: Verifier, url: str, now: float) -> None:
        ring = verifier.ring
        if not ring.knows(url) and self._new_keys.wait_s(source, time.monotonic()) > 0:
            emit.count("boathook_key_fetches_total", source=source, outcome="limited")
            return
        try:
            content = await self._fetch(url, max_bytes=MAX_BYTES)
        except FetchFailed as error:
            is_stale = ring.prolong(url, now)
            emit.count("boathook_key_fetches_total", source=source, outcome="stale" if is_stale else "failed")
            note = "the one fetched before is used" if is_stale else "its requests are answered 503"
            self._warn(source, "key_not_fetched", url=url, error=str(error), note=note)
        else:
            ring.put(url, content, now)
            emit.count("boathook_key_fetches_total", source=source, outcome="fetched")

    async def _visit(self, source: str, url: str) -> Failed | None:
        if self._visits.wait_s(source, time.monotonic()) > 0:
            return Failed(503, "too_many_visits")
        try:
            await self._fetch(url, max_bytes=_MAX_VISIT)
        except FetchFailed as error:
            self._warn(source, "visit_failed", error=str(error), note="the subscription is not confirmed yet")
            return Failed(503, "visit_failed")
        _LOG.info("subscription_confirmed", source=source)
        return None

    def _warn(self, source: str, event: str, **fields: str) -> None:
        if self._log_rate.wait_s(f"{source} {event}", time.monotonic()) == 0:
            _LOG.warning(event, source=source, **fields)
