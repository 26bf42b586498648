"""The demo's traffic: events of four senders, with duplicates, disorder, conflicts and forgeries."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final

from boathook.domain.errors import FetchFailed
from boathook.providers import find_recipe
from boathook.service.receiving.source_secrets import generate_secret
from boathook.service.remote import RemoteClient
from boathook.testing import sign
from boathook_demo.sample_events import EventFactory, SampleEvent, SenderLog, SendResult, TimedResponse

PROVIDERS: Final[Mapping[str, str]] = {
    "stripe": "stripe",
    "github": "github",
    "slack": "slack",
    "reports": "standard-webhooks",
}
"""The demo's sources, each with its provider."""

ScenarioRunner = Callable[[], Coroutine[None, None, None]]

_MAX_CONCURRENT = 8
_TIMEOUT_S = 15.0
_MAX_RESPONSE_BYTES = 1_048_576
_SCENARIOS_PER_S = 28.0
_MAX_TRIES = 4
_RETRY_DELAY_S = 0.5


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario that is run repeatedly."""

    play: ScenarioRunner
    weight: float
    """Relative frequency."""


def make_secret(provider: str) -> str:
    """Generate a secret in the format of *provider*."""
    return generate_secret(find_recipe(provider))


class Traffic:
    """Senders that run scenarios until stopped, and finish those in progress."""

    def __init__(self, port: int, keys: Mapping[str, str], sender_log: SenderLog, rng: random.Random) -> None:
        self._secrets = keys
        self._wrong = {source: make_secret(provider) for source, provider in PROVIDERS.items()}
        self._sender_log = sender_log
        self._rng = rng
        self._factory = EventFactory(rng)
        self._stopping = asyncio.Event()
        self._gateway = f"http://127.0.0.1:{port}"
        self._client = RemoteClient()
        self._turn = asyncio.Semaphore(_MAX_CONCURRENT)

    def stop(self) -> None:
        """Start no further scenario; those in progress are finished without pauses."""
        self._stopping.set()

    async def play(self) -> None:
        """Run every scenario once, and then a weighted random mix, until stopped."""
        scenes = self._scenes()
        opening = [scene.play for scene in scenes if scene.weight]
        self._rng.shuffle(opening)
        weights = [scene.weight for scene in scenes]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_handshake())
            while not self._stopping.is_set():
                play = opening.pop() if opening else self._rng.choices(scenes, weights)[0].play
                group.create_task(play())
                await self._pause(self._rng.expovariate(_SCENARIOS_PER_S))

    def _scenes(self) -> list[Scenario]:
        factory = self._factory
        return [
            Scenario(self._simple(factory.payment), 20),
            Scenario(self._simple(factory.push), 14),
            Scenario(self._simple(factory.issue), 8),
            Scenario(self._simple(factory.ping), 2),
            Scenario(self._simple(factory.message), 20),
            Scenario(self._simple(factory.report), 14),
            Scenario(self._simple(factory.unpaid_invoice), 1.5),
            Scenario(self._simple(factory.dispute), 0.4),
            Scenario(self._simple(factory.empty_report), 0.3),
            Scenario(self._repeat_at_once, 8),
            Scenario(self._repeat_later, 5),
            Scenario(self._out_of_order, 5),
            Scenario(self._forge_first, 3),
            Scenario(self._forge_only, 2),
            Scenario(self._send_conflict, 0.6),
        ]

    def _simple(self, write: Callable[[], SampleEvent]) -> ScenarioRunner:
        async def play() -> None:
            await self._send(write())

        return play

    def _any_sample(self) -> SampleEvent:
        factory = self._factory
        return self._rng.choice((factory.payment, factory.push, factory.issue, factory.message, factory.report))()

    async def _send_handshake(self) -> None:
        """Send the handshake with which Slack checks a new URL."""
        await self._send(self._factory.url_verification())

    async def _repeat_at_once(self) -> None:
        """Send the same request twice concurrently."""
        sample = self._any_sample()
        headers = self._sign(sample, self._secrets[sample.source])
        await asyncio.gather(self._send(sample, headers), self._send(sample, headers))

    async def _repeat_later(self) -> None:
        """Send an event again later, signed again, like a sender that missed the response."""
        sample = self._any_sample()
        await self._send(sample)
        await self._pause(self._rng.uniform(1.5, 4.0))
        if sample.source == "stripe":
            sample = sample.with_payload(pending_webhooks=0)
        elif sample.source == "slack":
            sample = sample.with_headers(x_slack_retry_num="1", x_slack_retry_reason="http_timeout")
        await self._send(sample)

    async def _out_of_order(self) -> None:
        """Send a newer event of an object before an older one."""
        factory = self._factory
        newer, older = self._rng.choice((factory.subscription_updates, factory.issue_updates, factory.message_edits))()
        await self._send(newer)
        await self._pause(0.1)
        await self._send(older)

    async def _forge_first(self) -> None:
        """Forge an event before the real one is sent; the forgery must not block it."""
        sample = self._any_sample()
        await self._forge(sample.with_payload(forged=True))
        await self._pause(0.2)
        await self._send(sample)

    async def _forge_only(self) -> None:
        """Forge an event that is never sent."""
        await self._forge(self._any_sample())

    async def _send_conflict(self) -> None:
        """Send a different body with a known id and a valid signature."""
        sample = self._any_sample()
        await self._send(sample)
        await self._send(sample.with_payload(contradiction=True))

    async def _send(self, sample: SampleEvent, headers: Mapping[str, str] | None = None) -> None:
        """Send a genuine event, with retries like its sender, until it is accepted."""
        if sample.key:
            self._sender_log.record_send(sample)
        for _ in range(_MAX_TRIES):
            answer = await self._post(sample, headers or self._sign(sample, self._secrets[sample.source]))
            if self._sender_log.record_response(sample, answer) is not SendResult.UNANSWERED:
                return
            await self._pause(_RETRY_DELAY_S)

    async def _forge(self, sample: SampleEvent) -> None:
        self._sender_log.record_forgery(sample)
        answer = await self._post(sample, self._sign(sample, self._wrong[sample.source]))
        self._sender_log.record_response(sample, answer, is_forged=True)

    def _sign(self, sample: SampleEvent, secret: str) -> dict[str, str]:
        signed = sign(PROVIDERS[sample.source], secret, sample.body, timestamp=time.time(), id=sample.key or None)
        return {**signed, **sample.headers}

    async def _post(self, sample: SampleEvent, headers: Mapping[str, str]) -> TimedResponse | None:
        async with self._turn:
            began = time.perf_counter()
            try:
                response = await self._client.request(
                    "POST",
                    f"{self._gateway}/in/{sample.source}",
                    headers=headers,
                    body=sample.body,
                    timeout_s=_TIMEOUT_S,
                    max_bytes=_MAX_RESPONSE_BYTES,
                )
            except FetchFailed:
                return None
            return TimedResponse(response, time.perf_counter() - began)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
