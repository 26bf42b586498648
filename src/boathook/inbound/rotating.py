"""Lets the gates of a running gateway follow the secrets that operators add and end.

A gate is given another verifier whole, between two requests: each request is judged by all the secrets of one moment,
and the way of a request costs what it did before.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from boathook.config import Settings
from boathook.domain.errors import ConfigError, JournalError
from boathook.inbound.added import AddedSecrets
from boathook.inbound.gates import Gate, verifier_of
from boathook.journal.source_secrets import SourceSecret
from boathook.telemetry.log import get_logger

LOOK_S: Final = 2.0
"""Seconds between two looks at the journal, where no announcement comes."""
END_S: Final = 0.5
"""Seconds between two looks at the clock: how much longer than its end a secret may prove something."""
_LOG = get_logger("inbound")

Read = Callable[[], Awaitable[Sequence[SourceSecret]]]


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
        # Those that ended before the gates were compiled are among them, so that such a gate is turned once too often.
        self._held = {name: tuple(one.id for one in added.known if one.source == name) for name in self._gates}

    def hear(self, _payload: str) -> None:
        """Look at once, because something was changed."""
        self._rung.set()

    async def run(self) -> None:
        """Follow until cancelled; a secret's end is kept to while PostgreSQL is away, too."""
        look_at = 0.0
        while True:
            is_due = self._rung.is_set() or time.monotonic() >= look_at
            if is_due:
                self._rung.clear()
                look_at = time.monotonic() + LOOK_S
            try:
                if is_due:
                    await self.look()
                self.turn()
            except Exception as error:  # noqa: BLE001 - whatever it is, later changes have to get through
                _LOG.error("source_secrets_not_followed", exc_info=error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._rung.wait()

    async def look(self) -> None:
        """Ask the journal once, and keep what it tells for a start without it."""
        try:
            known = tuple(await self._read())
        except JournalError:
            return
        if known != self._added.known:
            self._added.learn(known)
            self.turn()
            await asyncio.to_thread(self._added.save)

    def turn(self) -> None:
        """Give another verifier to each gate whose secrets are not what they were."""
        now = time.time()
        for name, gate in self._gates.items():
            holding = self._added.holding(name, now)
            if holding != self._held[name]:
                self._held[name] = holding
                self._turn(name, gate, len(holding))

    def _turn(self, name: str, gate: Gate, number: int) -> None:
        try:
            gate.verifier = verifier_of(self._settings, name, gate.verifier.ring, self._added)
        except ConfigError as error:
            # What has ended must prove nothing, even where nothing else is left.
            gate.verifier = gate.verifier.shut()
            _LOG.error("source_shut", source=name, error=str(error), note="its requests are refused")
        else:
            _LOG.info("source_secrets_changed", source=name, added=number)
