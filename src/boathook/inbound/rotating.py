"""Lets the gates of a running gateway follow the secrets that operators add and end.

A gate is given another verifier whole, between two requests: each request is judged by all the secrets of one moment,
and the way of a request costs what it did before.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

from boathook.config import Settings
from boathook.domain.errors import ConfigError, JournalError
from boathook.inbound.added import AddedSecrets
from boathook.inbound.gates import Gate, own_spec, with_added
from boathook.inbound.verdict import SourceSpec
from boathook.inbound.verify import Verifier
from boathook.journal.source_secrets import SourceSecret
from boathook.telemetry.log import get_logger

LOOK_S: Final = 2.0
"""Seconds between two looks at the journal, where no announcement comes."""
END_S: Final = 0.5
"""Seconds between two looks at the clock: how much longer than its end a secret may prove something."""
SURE_S: Final = 1.0
"""Seconds after a look at the clock until requests wait for a look at the journal: this process did not run."""
_WAIT_S: Final = 1.0
"""How long they wait; then they are judged by what is known, as they are while PostgreSQL is away."""
_AGAIN_S: Final = 0.05
_LOG = get_logger("inbound")

Read = Callable[[], Awaitable[Sequence[SourceSecret]]]


@dataclass(slots=True)
class _Held:
    """What a gate was made of."""

    own: SourceSpec
    """What the settings said at the start. They are not read again: a file may be gone or half written by then."""
    added: tuple[UUID, ...]


class Rotation:
    """Keeps the gates of one process at the present secrets.

    Args:
        added: what the gates were compiled with.
        read: gives the secrets of all sources; raises JournalUnavailable while PostgreSQL is away.
    """

    def __init__(self, settings: Settings, gates: Iterable[Gate], added: AddedSecrets, read: Read) -> None:
        self._settings = settings
        self._gates = {gate.source: gate for gate in gates}
        self._added = added
        self._read = read
        self._rung = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._sure_until = math.inf
        self._held = {name: _Held(own_spec(settings, name), self._known_of(name)) for name in self._gates}
        for gate in self._gates.values():
            gate.make_sure = self.make_sure

    def _known_of(self, name: str) -> tuple[UUID, ...]:
        # Those that ended before the gates were compiled are among them, so that such a gate is turned once too often.
        return tuple(one.id for one in self._added.known if one.source == name)

    def hear(self, _payload: str) -> None:
        """Look at once, because something was changed."""
        self._rung.set()

    async def run(self) -> None:
        """Follow until cancelled; an end is kept to whatever PostgreSQL and the disk do."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat(self._follow), name="secrets:look")
            group.create_task(_repeat(self.save), name="secrets:save")
            group.create_task(_repeat(self._mind_ends), name="secrets:end")

    async def _follow(self) -> None:
        self._rung.clear()
        await self.look()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._rung.wait()

    async def _mind_ends(self) -> None:
        self.turn()
        if time.monotonic() > self._sure_until:
            await self.make_sure()
        self._sure_until = time.monotonic() + SURE_S
        for gate in self._gates.values():
            gate.sure_until = self._sure_until
        await asyncio.sleep(END_S)

    async def save(self) -> None:
        """Keep the next change for a start without the journal."""
        await self._unsaved.wait()
        self._unsaved.clear()
        await asyncio.to_thread(self._added.save)

    async def make_sure(self) -> None:
        """Know the present secrets, or that they cannot be had within a second.

        It is for whoever comes first after this process was not there, or did not run: frozen, or on a machine that
        slept. What was removed meanwhile must not prove what waited.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_until_told())
        await asyncio.wait({self._looking})

    async def _look_until_told(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                while True:
                    if await self.look():
                        return
                    await asyncio.sleep(_AGAIN_S)

    async def look(self) -> bool:
        """Ask the journal once; return whether it answered."""
        try:
            known = tuple(await self._read())
        except JournalError:
            return False
        if known != self._added.known:
            self._added.learn(known)
            self.turn()
            self._unsaved.set()
        return True

    def turn(self) -> None:
        """Give another verifier to each gate whose secrets are not what they were."""
        now = time.time()
        for name, gate in self._gates.items():
            holding = self._added.holding(name, now)
            if holding != self._held[name].added:
                self._held[name].added = holding
                self._turn(gate, self._held[name])

    def _turn(self, gate: Gate, held: _Held) -> None:
        try:
            gate.verifier = Verifier(with_added(self._settings, held.own, self._added), gate.verifier.ring)
        except ConfigError as error:
            # What has ended must prove nothing, even where nothing else is left.
            gate.verifier = gate.verifier.shut()
            _LOG.error("source_shut", source=gate.source, error=str(error), note="its requests are refused")
        else:
            _LOG.info("source_secrets_changed", source=gate.source, added=len(held.added))


async def _repeat(step: Callable[[], Awaitable[None]]) -> NoReturn:
    """Do something again and again."""
    while True:
        try:
            await step()
        except Exception as error:  # noqa: BLE001 - whatever it is, later changes have to get through
            _LOG.error("source_secrets_not_followed", exc_info=error)
            await asyncio.sleep(END_S)
