"""Updates the verifiers of a running gateway when operators add or end secrets.

A verifier is replaced as a whole between two requests. Each request is therefore verified by one consistent set of
secrets, at no extra cost per request.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NoReturn
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db.source_secrets import SourceSecret
from boathook.domain.errors import ConfigError, DatabaseError
from boathook.domain.verification import SourceSpec
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.sources import CompiledSource, configured_spec, with_cached_secrets
from boathook.observability.log import get_logger
from boathook.verification.verifier import Verifier

POLL_INTERVAL_S: Final = 2.0
"""Seconds between two reads of the database when no notification arrives."""
EXPIRY_CHECK_INTERVAL_S: Final = 0.5
"""Seconds between two expiry checks: how long an expired secret may still verify requests."""
MAX_STALENESS_S: Final = 1.0
"""Seconds without an expiry check (this process was not running) after which requests wait for a database read."""
REFRESH_TIMEOUT_S: Final = 1.0
"""How long these requests wait; then the known secrets verify them, as while PostgreSQL is unavailable."""
_REFRESH_RETRY_S: Final = 0.05
_LOG = get_logger("ingest")

ReadSecrets = Callable[[], Awaitable[Sequence[SourceSecret]]]


class _LoadedSecrets(msgspec.Struct):
    """The secrets that a verifier was compiled with."""

    own: SourceSpec
    """The spec from the settings at start. Its files are not read again: one may be missing or half-written by then."""
    added: tuple[UUID, ...]


class SecretReloader:
    """Keeps the verifiers of one process up to date with the current secrets.

    Args:
        settings: the settings of the process.
        compiled_sources: the sources whose verifiers are updated.
        added: the secrets that the verifiers were compiled with.
        read: reads the secrets of all sources; raises DatabaseUnavailable while PostgreSQL is unavailable.
        on_read: called after each read, with whether the secrets have changed, before the verifiers are updated.
        save: writes what was read to disk.
    """

    def __init__(
        self,
        settings: Settings,
        compiled_sources: Iterable[CompiledSource],
        added: SecretsCache,
        read: ReadSecrets,
        *,
        on_read: Callable[[bool], None] = lambda _has_changed: None,
        save: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._compiled_sources: dict[str, CompiledSource] = {}
        self._added = added
        self._read = read
        self._on_read = on_read
        self._save = save
        self._notified = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None
        self._fresh_until = math.inf
        self._held: dict[str, _LoadedSecrets] = {}
        self.set_sources(settings, compiled_sources)

    def set_sources(self, settings: Settings, compiled_sources: Iterable[CompiledSource]) -> None:
        """Replace the sources whose verifiers are updated; those that are the same object keep their state."""
        self._settings = settings
        former, former_secrets = self._compiled_sources, self._held
        self._compiled_sources = {compiled.source: compiled for compiled in compiled_sources}
        self._held = {}
        for name, compiled in self._compiled_sources.items():
            if former.get(name) is compiled:
                self._held[name] = former_secrets[name]
                continue
            self._held[name] = _LoadedSecrets(configured_spec(settings, name), self._secret_ids(name))
            compiled.ensure_fresh = self.ensure_fresh
            compiled.fresh_until = self._fresh_until

    def _secret_ids(self, name: str) -> tuple[UUID, ...]:
        # Includes secrets that ended before the sources were compiled; such a verifier is replaced once too often.
        return tuple(secret.id for secret in self._added.known if secret.source == name)

    def on_notification(self, _payload: str) -> None:
        """Read the secrets immediately, because one was changed."""
        self._notified.set()

    async def run(self) -> None:
        """Run until cancelled; expiry is enforced even if PostgreSQL or the disk fails."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat(self._poll), name="secrets:look")
            group.create_task(_repeat(self.save), name="secrets:save")
            group.create_task(_repeat(self._check_expiry), name="secrets:end")

    async def _poll(self) -> None:
        self._notified.clear()
        await self.refresh()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_INTERVAL_S):
                await self._notified.wait()

    async def _check_expiry(self) -> None:
        self.apply_secrets()
        if time.monotonic() > self._fresh_until:
            await self.ensure_fresh()
        self._fresh_until = time.monotonic() + MAX_STALENESS_S
        for compiled in self._compiled_sources.values():
            compiled.fresh_until = self._fresh_until
        await asyncio.sleep(EXPIRY_CHECK_INTERVAL_S)

    async def save(self) -> None:
        """Save the next change to disk, for a start without the database."""
        await self._unsaved.wait()
        self._unsaved.clear()
        await asyncio.to_thread(self._save or self._added.save)

    async def ensure_fresh(self) -> None:
        """Read the current secrets; give up after one second.

        The first request after this process did not run, because it was frozen or the machine slept, calls this. A
        secret that was removed meanwhile must not verify requests that waited.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_with_retries())
        await asyncio.wait({self._refreshing})

    async def _refresh_with_retries(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                while True:
                    if await self.refresh():
                        return
                    await asyncio.sleep(_REFRESH_RETRY_S)

    async def refresh(self) -> bool:
        """Read the secrets from the database once; return whether it responded."""
        try:
            stored_secrets = tuple(await self._read())
        except DatabaseError:
            return False
        has_changed = stored_secrets != self._added.known
        if has_changed:
            self._added.set_secrets(stored_secrets)
            self._unsaved.set()
        self._on_read(has_changed)
        if has_changed:
            self.apply_secrets()
        return True

    def save_soon(self) -> None:
        """Save to disk what was read."""
        self._unsaved.set()

    def apply_secrets(self) -> None:
        """Replace the verifier of each source whose secrets have changed."""
        now = time.time()
        for name, compiled in self._compiled_sources.items():
            active_ids = self._added.active_ids(name, now)
            if active_ids != self._held[name].added:
                self._held[name].added = active_ids
                self._replace_verifier(compiled, self._held[name])

    def _replace_verifier(self, compiled: CompiledSource, loaded: _LoadedSecrets) -> None:
        try:
            compiled.verifier = Verifier(
                with_cached_secrets(self._settings, loaded.own, self._added), compiled.verifier.ring
            )
        except ConfigError as error:
            # An ended secret must verify nothing, even if no other secret is left.
            compiled.verifier = compiled.verifier.closed()
            _LOG.error("source_shut", source=compiled.source, error=str(error), note="its requests are refused")
        else:
            _LOG.info("source_secrets_changed", source=compiled.source, added=len(loaded.added))


async def _repeat(step: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run a step in an endless loop."""
    while True:
        try:
            await step()
        except Exception as error:  # noqa: BLE001 - later changes must be applied after any error
            _LOG.error("source_secrets_not_followed", exc_info=error)
            await asyncio.sleep(EXPIRY_CHECK_INTERVAL_S)
