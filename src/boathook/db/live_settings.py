"""Keeps the settings of one process up to date with the sources that are stored in PostgreSQL.

Settings are immutable. When a stored source is added, changed or removed, each process replaces its current settings
as a whole; an unchanged source keeps its `SourceSettings` object. A source that cannot be used never affects the
others: it is left out, and `problems` says why.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn
from uuid import UUID

from msgspec.structs import replace

from boathook.config import Settings, SourceSettings
from boathook.config.stored_sources import read_stored_source
from boathook.db import stored_sources
from boathook.db.database import Connection, Database
from boathook.db.stored_sources import StoredSource
from boathook.domain.errors import BoathookError, ConfigError, DatabaseError
from boathook.domain.policy import RetryDefaults
from boathook.observability.log import get_logger

if TYPE_CHECKING:
    from boathook.db.secret_box import SecretBox

POLL_INTERVAL_S: Final = 2.0
"""Seconds between two reads of the database when no notification arrives."""
_LOG = get_logger("sources")

SettingsCallback = Callable[[Settings], None]
_Decoded = SourceSettings | str
"""The settings of a stored source, or why they cannot be read."""


class LiveSettings:
    """The current settings of one process: those that it started with, and the stored sources.

    Args:
        settings: the settings of the process.
        secret_box: decrypts the stored sources; None uses that of the settings when the first one is read.
    """

    def __init__(self, settings: Settings, secret_box: "SecretBox | None" = None) -> None:
        self.configured = settings.with_stored_sources({})
        self._secret_box = secret_box
        self._decoded: dict[tuple[UUID, bytes], _Decoded] = {}
        self._callbacks: list[SettingsCallback] = []
        self._version: str | None = None
        self._notified = asyncio.Event()
        self.current = settings
        """The current settings; replaced as a whole."""
        self.rows: tuple[StoredSource, ...] = ()
        """The stored sources by name, whether they can be used or not."""
        self.problems: Mapping[str, str] = MappingProxyType({})
        """Why stored sources are not used, by name."""
        self.is_known = False
        """Whether the stored sources have been read."""

    def subscribe(self, callback: SettingsCallback) -> None:
        """Call *callback* with the settings after each change."""
        self._callbacks.append(callback)

    def set_rows(self, rows: Sequence[StoredSource]) -> bool:
        """Replace all stored sources; return whether this changed any."""
        rows = tuple(rows)
        if self.is_known and rows == self.rows:
            return False
        self.is_known = True
        self.rows = rows
        decoded = {row.name: self._decode(row) for row in rows}
        keys = {(row.id, row.encrypted) for row in rows}
        self._decoded = {key: source for key, source in self._decoded.items() if key in keys}
        served, problems = _choose(self.configured, decoded)
        for name, problem in problems.items():
            if self.problems.get(name) != problem:
                _LOG.error("stored_source_not_used", source=name, error=problem)
        self.problems = MappingProxyType(problems)
        self.current = self.configured.with_stored_sources(served)
        for callback in self._callbacks:
            callback(self.current)
        return True

    def _decode(self, row: StoredSource) -> _Decoded:
        key = (row.id, row.encrypted)
        if key not in self._decoded:
            self._decoded[key] = self._open(row)
        return self._decoded[key]

    def _open(self, row: StoredSource) -> _Decoded:
        try:
            if self._secret_box is None:
                # Imported only here, as most processes and commands have no stored source to decrypt.
                from boathook.db.secret_box import open_secret_box

                self._secret_box = open_secret_box(self.configured)
            return decrypt_source(self._secret_box, row)
        except BoathookError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - one stored source must never affect the others
            return f"sources.{row.name}: its settings cannot be read: {error!r}"

    async def refresh(self, database: Database | Connection) -> bool:
        """Read the stored sources if one has changed; return whether one has.

        Raises:
            DatabaseError: PostgreSQL is unavailable, or lacks the table.
        """
        version = await stored_sources.read_version(database)
        if version == self._version:
            return False
        rows = await stored_sources.list_all(database)
        self._version = version
        return self.set_rows(rows)

    async def run(self, database: Database) -> NoReturn:
        """Follow the stored sources until cancelled, by notifications and by polling."""
        await database.listen(stored_sources.CHANNEL, self.on_notification)
        while True:
            self._notified.clear()
            try:
                await self.refresh(database)
            except DatabaseError as error:
                _LOG.debug("stored_sources_not_read", error=str(error))
            except Exception as error:  # noqa: BLE001 - later changes must be followed after any error
                _LOG.error("stored_sources_not_followed", exc_info=error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._notified.wait()

    def on_notification(self, _payload: str) -> None:
        """Read the stored sources immediately, because one was changed."""
        self._notified.set()

    @contextlib.asynccontextmanager
    async def following(self, database: Database) -> AsyncIterator[None]:
        """Follow the stored sources for the duration of the block, from those of its beginning if they can be read."""
        with contextlib.suppress(DatabaseError):
            await self.refresh(database)
        task = asyncio.create_task(self.run(database), name="sources:follow")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def retry_defaults(self) -> RetryDefaults:
        """Return the retry policies of handlers that set none; those of sources follow the stored ones."""
        defaults = self.current.retry_defaults()
        by_source = dict(defaults.by_source)

        def update(settings: Settings) -> None:
            by_source.clear()
            by_source.update(settings.retry_defaults().by_source)

        self.subscribe(update)
        return replace(defaults, by_source=by_source)


def decrypt_source(secret_box: "SecretBox", row: StoredSource) -> SourceSettings:
    """Return the settings of a stored source.

    Raises:
        SecretUnreadable: they cannot be decrypted with the configured keys.
        ConfigError: a key is wrong, for example because this version rejects it.
    """
    try:
        values = json.loads(secret_box.open(row.encrypted, row.context))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"sources.{row.name}: the stored settings are not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"sources.{row.name}: the stored settings are not a table")
    return read_stored_source(row.name, values)


def _choose(configured: Settings, decoded: Mapping[str, _Decoded]) -> tuple[dict[str, SourceSettings], dict[str, str]]:
    """Return the stored sources to use, and why the others are not used: configured sources take precedence."""
    served: dict[str, SourceSettings] = {}
    problems: dict[str, str] = {}
    owners = path_owners(configured)
    for name, source in decoded.items():
        if isinstance(source, str):
            problems[name] = source
        elif (clash := find_clash(configured, owners, name, source)) is not None:
            problems[name] = clash
        else:
            served[name] = source
            owners |= dict.fromkeys(source.paths, name)
    return served, problems


def path_owners(settings: Settings) -> dict[str, str]:
    """Return the source of each path, without those of the form ``/in/NAME``."""
    return {path: name for name, source in settings.sources.items() for path in source.paths}


def find_clash(configured: Settings, owners: Mapping[str, str], name: str, source: SourceSettings) -> str | None:
    """Return why a stored source cannot be used beside other sources; None if it can.

    Args:
        configured: the settings of the process, without stored sources.
        owners: the source of each path that is taken.
        name: the name of the source.
        source: its settings.
    """
    if name in configured.sources:
        return f"sources.{name}: boathook.toml or an app defines a source of this name; rename or remove one of the two"
    for path in source.paths:
        if (owner := owners.get(path, name)) != name:
            return f"sources.{name}.paths: {path} is a path of the source {owner!r} already; choose another"
    return None
