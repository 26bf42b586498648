"""Real life, made up: strangers who repeat themselves, mix up the order, contradict themselves, and forge."""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final

from boathook.demo.letters import Desk, Letter
from boathook.demo.tally import Reply, Tally
from boathook.domain.signing import make_standard_secret
from boathook.outbound.loopback import Answer, Client
from boathook.testing import sign

PROVIDERS: Final[Mapping[str, str]] = {
    "stripe": "stripe",
    "github": "github",
    "slack": "slack",
    "reports": "standard-webhooks",
}
"""The demo's sources, each with the provider whose recipe it follows."""

Play = Callable[[], Coroutine[None, None, None]]

_CONNECTIONS = 8
_SCENES_A_SECOND = 28.0
_MOST_TRIES = 4
_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """Something that happens again and again."""

    play: Play
    weight: float
    """How often, as against the others."""


def make_secret(provider: str) -> str:
    """Make up a secret in the form *provider* gives out."""
    if provider == "standard-webhooks":
        return make_standard_secret(secrets.token_bytes(32))
    return f"{provider}_made_up_{secrets.token_hex(16)}"


class Traffic:
    """Senders who play scenes until they are told to stop, and finish those under way."""

    def __init__(self, port: int, keys: Mapping[str, str], tally: Tally, dice: random.Random) -> None:
        self._secrets = keys
        self._wrong = {source: make_secret(provider) for source, provider in PROVIDERS.items()}
        self._tally = tally
        self._dice = dice
        self._desk = Desk(dice)
        self._stopping = asyncio.Event()
        self._clients: asyncio.LifoQueue[Client] = asyncio.LifoQueue()
        for _ in range(_CONNECTIONS):
            self._clients.put_nowait(Client(port))

    def stop(self) -> None:
        """Begin no further scene; those under way are played to their end without pauses."""
        self._stopping.set()

    async def play(self) -> None:
        """Play every scene once, and then a lively mix of them, until stopped."""
        scenes = self._scenes()
        opening = [scene.play for scene in scenes if scene.weight]
        self._dice.shuffle(opening)
        weights = [scene.weight for scene in scenes]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._greet())
            while not self._stopping.is_set():
                play = opening.pop() if opening else self._dice.choices(scenes, weights)[0].play
                group.create_task(play())
                await self._pause(self._dice.expovariate(_SCENES_A_SECOND))
        while not self._clients.empty():
            self._clients.get_nowait().close()

    def _scenes(self) -> list[Scene]:
        desk = self._desk
        return [
            Scene(self._simple(desk.payment), 20),
            Scene(self._simple(desk.push), 14),
            Scene(self._simple(desk.issue), 8),
            Scene(self._simple(desk.ping), 2),
            Scene(self._simple(desk.message), 20),
            Scene(self._simple(desk.report), 14),
            Scene(self._simple(desk.unpaid_invoice), 1.5),
            Scene(self._simple(desk.dispute), 0.4),
            Scene(self._simple(desk.empty_report), 0.3),
            Scene(self._repeat_at_once, 8),
            Scene(self._repeat_later, 5),
            Scene(self._out_of_order, 5),
            Scene(self._forge_first, 3),
            Scene(self._forge_only, 2),
            Scene(self._contradict, 0.6),
        ]

    def _simple(self, write: Callable[[], Letter]) -> Play:
        async def play() -> None:
            await self._send(write())

        return play

    def _any_letter(self) -> Letter:
        desk = self._desk
        return self._dice.choice((desk.payment, desk.push, desk.issue, desk.message, desk.report))()

    async def _greet(self) -> None:
        """Ask what Slack asks when a URL is given to it."""
        await self._send(self._desk.question())

    async def _repeat_at_once(self) -> None:
        """Send one and the same request twice at the same time."""
        letter = self._any_letter()
        headers = self._sign(letter, self._secrets[letter.source])
        await asyncio.gather(self._send(letter, headers), self._send(letter, headers))

    async def _repeat_later(self) -> None:
        """Send an event again after a while, signed anew, as senders do that missed the answer."""
        letter = self._any_letter()
        await self._send(letter)
        await self._pause(self._dice.uniform(1.5, 4.0))
        if letter.source == "stripe":
            letter = letter.with_payload(pending_webhooks=0)
        elif letter.source == "slack":
            letter = letter.with_headers(x_slack_retry_num="1", x_slack_retry_reason="http_timeout")
        await self._send(letter)

    async def _out_of_order(self) -> None:
        """Tell what happened to a thing before what had happened to it earlier."""
        desk = self._desk
        newer, older = self._dice.choice((desk.subscription_updates, desk.issue_updates, desk.message_edits))()
        await self._send(newer)
        await self._pause(0.1)
        await self._send(older)

    async def _forge_first(self) -> None:
        """Forge an event that is yet to come, which must not stand in its way."""
        letter = self._any_letter()
        await self._forge(letter.with_payload(forged=True))
        await self._pause(0.2)
        await self._send(letter)

    async def _forge_only(self) -> None:
        """Forge an event that never was."""
        await self._forge(self._any_letter())

    async def _contradict(self) -> None:
        """Send another body under an id that is known, rightly signed."""
        letter = self._any_letter()
        await self._send(letter)
        await self._send(letter.with_payload(contradiction=True))

    async def _send(self, letter: Letter, headers: Mapping[str, str] | None = None) -> None:
        """Send a genuine letter, again and again like its sender would, until it is taken."""
        if letter.key:
            self._tally.note_sending(letter)
        for _ in range(_MOST_TRIES):
            answer = await self._post(letter, headers or self._sign(letter, self._secrets[letter.source]))
            if self._tally.note_answer(letter, answer) is not Reply.UNANSWERED:
                return
            await self._pause(_AGAIN_S)

    async def _forge(self, letter: Letter) -> None:
        self._tally.note_forgery(letter)
        answer = await self._post(letter, self._sign(letter, self._wrong[letter.source]))
        self._tally.note_answer(letter, answer, is_forged=True)

    def _sign(self, letter: Letter, secret: str) -> dict[str, str]:
        signed = sign(PROVIDERS[letter.source], secret, letter.body, timestamp=time.time(), id=letter.key or None)
        return {**signed, **letter.headers}

    async def _post(self, letter: Letter, headers: Mapping[str, str]) -> Answer | None:
        client = await self._clients.get()
        try:
            return await client.request("POST", f"/in/{letter.source}", headers, letter.body)
        except ConnectionError:
            return None
        finally:
            self._clients.put_nowait(client)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
