"""A local copy of the API keys and applications, by which messages are accepted while PostgreSQL is unavailable.

The copy is read again every few seconds, and saved in a file for a start without PostgreSQL. The file is encrypted and
authenticated, so a key that was added to it by hand is worth nothing. It holds hashes of tokens, as the database does.

A key that was revoked while this process could not reach PostgreSQL is accepted until the copy is too old. Nothing else
is decided by the copy: an application that was deleted meanwhile is noticed when its message is stored.
"""

import asyncio
import base64
import heapq
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, ClassVar, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.db.applications import MAX_ID
from boathook.db.database import Connection, Database, translate_errors
from boathook.db.secret_box import SecretBox
from boathook.domain import ids
from boathook.domain.errors import AccessUnknown, BoathookError, DatabaseError, ServedElsewhere
from boathook.domain.redaction import RedactedStruct
from boathook.ingest.secrets_cache import replace_file
from boathook.observability.log import get_logger
from boathook.service.access.authorization import Principal
from boathook.service.access.keys import hash_token
from boathook_outage_publishing import store
from boathook_outage_publishing.settings import max_age_s
from boathook_outage_publishing.store import ChangedTarget, PublishingKey, PublishingTarget, TargetsVersion

FILE_NAME: Final = "publishing-access.bin"
MAX_KEYS: Final = 10_000
MAX_TARGETS: Final = 100_000
"""Maximum number of applications in the copy, which has the newest; messages for others need PostgreSQL."""
_CONTEXT: Final = "publishing-access"
KEYS_INTERVAL_S: Final = 2.0
"""Seconds between two reads of the keys: how long a revoked key may publish while events wait in the buffer, although
PostgreSQL is available."""
TARGETS_INTERVAL_S: Final = 10.0
_SAVE_INTERVAL_S: Final = 60.0
"""Seconds between two writes of the file if nothing changes, so that its time is recent."""
_MISS_INTERVAL_S: Final = 0.5
"""Minimum seconds between two reads for keys or applications that are not in the copy."""
_READ_TIMEOUT_S: Final = 5.0
_TARGETS_TIMEOUT_S: Final = 30.0
PAGE: Final = 500
"""How many applications one step of the event loop takes: some milliseconds."""
_MAX_CHANGED: Final = 5_000
"""How many changed applications are read as such; all are read after more changes."""
_OVERLAP_US: Final = 60_000_000
"""How long a transaction may take to commit a change that is then read as such."""
_MAX_SKEW_S: Final = 60.0
"""How far in the future the time of the file may be, as clocks are adjusted."""
_LOG = get_logger("api")


class Moment(msgspec.Struct, frozen=True):
    """A time by two clocks: one may be set, the other stands still while the machine sleeps."""

    wall: float
    monotonic: float

    @classmethod
    def now(cls) -> "Moment":
        """Return the present time."""
        return cls(time.time(), time.monotonic())

    def age_s(self) -> float:
        """Return how long ago it was, by the clock with the larger value."""
        now = self.now()
        return max(now.wall - self.wall, now.monotonic - self.monotonic)


class AccessCopy:
    """The API keys and applications as PostgreSQL had them last.

    Args:
        file: where it is saved.
        secret_box: encrypts the file.
        max_age_s: seconds after which its keys are not accepted.
    """

    def __init__(self, file: Path, secret_box: SecretBox, max_age_s: float) -> None:
        self._file = file
        self._secret_box = secret_box
        self._max_age_s = max_age_s
        self.confirmed: Moment | None = None
        self.keys: dict[bytes, PublishingKey] = {}
        self.targets = _Targets()
        self.targets_read_at = -TARGETS_INTERVAL_S
        self._database: Database | None = None
        self._reading: asyncio.Task[bool] | None = None
        self._missing: asyncio.Task[None] | None = None
        self._missed_at = -_MISS_INTERVAL_S
        self._saved_at = -_SAVE_INTERVAL_S
        self._is_changed = False

    @classmethod
    def load(cls, settings: Settings, secret_box: SecretBox) -> "AccessCopy":
        """Return the copy that a gateway of this host saved last; an empty one without a readable file."""
        file = settings.server.data_dir / FILE_NAME
        copy = cls(file, secret_box, max_age_s(settings))
        try:
            copy._restore(file.read_bytes())
        except FileNotFoundError:
            pass
        except (OSError, ValueError, BoathookError) as error:
            _LOG.error("access_copy_unreadable", file=str(file), error=str(error), note="it is replaced in time")
        return copy

    async def find_principal(self, token: str) -> Principal:
        """Return the holder of a token.

        Raises:
            AccessUnknown: the copy does not have the token, or is too old.
        """
        sha256 = hash_token(token)
        if sha256 not in self.keys:
            await self._read_for_miss()
        if self.confirmed is None or self.confirmed.age_s() > self._max_age_s:
            raise AccessUnknown(
                "PostgreSQL is unavailable, and has not confirmed API keys for longer than buffer.key_max_age_h; try "
                "again later"
            )
        key = self.keys.get(sha256)
        if key is None or (key.expires_at is not None and key.expires_at.timestamp() <= Moment.now().wall):
            raise AccessUnknown(
                "PostgreSQL is unavailable, and this token cannot be checked without it; try again later"
            )
        return Principal(key.id, key.organization)

    async def find_application(self, organization: str, reference: str) -> UUID:
        """Return the id of an application, given its id, uid or imported id.

        Raises:
            AccessUnknown: the copy does not have it.
            ServedElsewhere: it has moved to another installation.
        """
        target = self.targets.find(organization, reference)
        if target is None:
            await self._read_for_miss()
            target = self.targets.find(organization, reference)
        if target is None:
            raise AccessUnknown(
                f"PostgreSQL is unavailable, and application {reference} cannot be found without it; try again later"
            )
        if target.home is not None:
            raise ServedElsewhere(reference, target.home)
        return target.id

    async def follow(self, database: Database) -> None:
        """Keep the copy and its file up to date, until cancelled."""
        self._database = database
        while True:
            try:
                await self.read()
                await self.save()
            except Exception as error:  # noqa: BLE001 - later changes must be followed after any error
                _LOG.error("access_copy_not_followed", exc_info=error)
            await asyncio.sleep(KEYS_INTERVAL_S)

    async def _read_for_miss(self) -> None:
        """Read keys and applications once more, unless PostgreSQL is unavailable or that was done a moment ago."""
        if self._database is None or self._database.monitor.is_unavailable:
            return
        is_due = time.monotonic() - self._missed_at >= _MISS_INTERVAL_S
        if self._missing is None or (self._missing.done() and is_due):
            self._missed_at = time.monotonic()
            self._missing = asyncio.create_task(self.read_all(), name="access:miss")
        await asyncio.shield(self._missing)

    async def read_all(self) -> None:
        """Read the keys and the applications."""
        if self._reading is not None and not self._reading.done():
            await asyncio.shield(self._reading)  # it may read the keys alone
        self.targets_read_at = -TARGETS_INTERVAL_S
        await self.read()

    async def read(self) -> bool:
        """Read the copy, once for all concurrent callers; return whether PostgreSQL responded."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_once(), name="access:read")
        return await asyncio.shield(self._reading)

    async def _read_once(self) -> bool:
        assert self._database is not None
        now = Moment.now()
        try:
            async with self._database.acquire(within_s=_READ_TIMEOUT_S) as connection:
                with translate_errors():
                    keys = await store.list_publishing_keys(connection, limit=MAX_KEYS)
            if time.monotonic() - self.targets_read_at >= TARGETS_INTERVAL_S:
                await self._read_targets(self._database)
                self.targets_read_at = now.monotonic
        except DatabaseError as error:
            _LOG.debug("access_copy_not_read", error=str(error))
            return False
        keys_by_token = {key.token_sha256: key for key in keys}
        self._is_changed = self._is_changed or keys_by_token != self.keys
        self.keys, self.confirmed = keys_by_token, now
        return True

    async def _read_targets(self, database: Database) -> None:
        """Read the applications that have changed or, if that does not lead to their version, all of them.

        Both in pages, as the event loop has other work meanwhile.
        """
        async with database.acquire(within_s=_TARGETS_TIMEOUT_S) as connection:
            with translate_errors():
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    version = await store.read_targets_version(connection, limit=MAX_TARGETS)
                    if version == self.targets.version:
                        return
                    changed = await store.list_changed_targets(
                        connection, self.targets.newest_us - _OVERLAP_US, limit=_MAX_CHANGED
                    )
                    for start in range(0, len(changed), PAGE):
                        self.targets.update(changed[start : start + PAGE])
                        await asyncio.sleep(0)
                    self.targets.drop_oldest()
                    if version != self.targets.version:
                        self.targets = await _read_all_targets(connection)
        self._is_changed = True
        if len(self.targets.by_id) >= MAX_TARGETS:
            _LOG.warning("access_copy_incomplete", applications=MAX_TARGETS, note="older ones need PostgreSQL")

    async def save(self) -> None:
        """Write the file if the copy has changed, or the file's time is old; a disk error is logged and ignored."""
        is_due = time.monotonic() - self._saved_at >= _SAVE_INTERVAL_S
        is_newer = self.confirmed is not None and self.confirmed.monotonic > self._saved_at
        if self.confirmed is None or not (self._is_changed or (is_due and is_newer)):
            return
        self._is_changed, self._saved_at = False, time.monotonic()
        # Copies, as changes go on meanwhile.
        keys, targets = list(self.keys.values()), list(self.targets.by_id.values())
        try:
            await asyncio.to_thread(self._write, self.confirmed, keys, targets)
        except OSError as error:
            note = "after a start without PostgreSQL, the latest keys would be unknown"
            _LOG.error("access_copy_not_saved", file=str(self._file), error=str(error), note=note)

    def _write(self, confirmed: Moment, keys: Sequence[PublishingKey], targets: Sequence[ChangedTarget]) -> None:
        replace_file(self._file, self._secret_box.encrypt(encode(confirmed, keys, targets), _CONTEXT))

    def _restore(self, encrypted: bytes) -> None:
        content = _CONTENT.decode(self._secret_box.open(encrypted, _CONTEXT))
        now = Moment.now()
        if content.confirmed_at > now.wall + _MAX_SKEW_S:
            raise ValueError("its time is in the future")
        age_s = max(0.0, now.wall - content.confirmed_at)
        self.confirmed = Moment(content.confirmed_at, now.monotonic - age_s)
        keys = (
            PublishingKey(base64.b64decode(key.token), UUID(key.id), key.organization, key.expires_at)
            for key in content.keys
        )
        self.keys = {key.token_sha256: key for key in keys}
        self.targets.update(
            ChangedTarget(
                PublishingTarget(UUID(target.id), target.organization, target.uid, target.home, target.imported_id), 0
            )
            for target in content.targets
        )


class _Targets:
    """Applications by id and by name, and their version."""

    def __init__(self) -> None:
        self.by_id: dict[UUID, ChangedTarget] = {}
        self.by_name: dict[tuple[str, str], PublishingTarget] = {}
        self._by_imported_id: dict[tuple[str, str], PublishingTarget] = {}
        self.newest_us = 0
        """When the latest change was."""
        self._changes = 0

    @property
    def version(self) -> TargetsVersion:
        """The version of what is here."""
        return TargetsVersion(len(self.by_id), self._changes)

    def find(self, organization: str, reference: str) -> PublishingTarget | None:
        """Return an application by id or uid, else by imported id."""
        name = organization, reference
        return self.by_name.get(name) or self._by_imported_id.get(name)

    def update(self, changed: Iterable[ChangedTarget]) -> None:
        """Take over changes. A name that one application gives up and another takes is that of the latter."""
        added = []
        for change in changed:
            before = self.by_id.pop(change.target.id, None)
            if before is not None:
                self._changes -= before.changed_us
                for name in _references(before.target):
                    if self.by_name.get(name) is before.target:
                        del self.by_name[name]
                for name in _imported_ids(before.target):
                    if self._by_imported_id.get(name) is before.target:
                        del self._by_imported_id[name]
            if not change.is_deleted:
                added.append(change)
            self.newest_us = max(self.newest_us, change.changed_us)
        for change in added:
            self.by_id[change.target.id] = change
            self._changes += change.changed_us
            self.by_name |= dict.fromkeys(_references(change.target), change.target)
            self._by_imported_id |= dict.fromkeys(_imported_ids(change.target), change.target)

    def drop_oldest(self) -> None:
        """Keep the newest applications, up to the maximum."""
        number = len(self.by_id) - MAX_TARGETS
        oldest = heapq.nsmallest(number, self.by_id, key=attrgetter("int")) if number > 0 else ()
        self.update([replace(self.by_id[id], is_deleted=True) for id in oldest])


async def _read_all_targets(connection: Connection) -> _Targets:
    targets, below = _Targets(), MAX_ID
    while len(targets.by_id) < MAX_TARGETS:
        page = await store.list_targets(connection, below, limit=min(PAGE, MAX_TARGETS - len(targets.by_id)))
        if not page:
            break
        targets.update(page)
        below = page[-1].target.id
    return targets


def encode(confirmed: Moment, keys: Sequence[PublishingKey], targets: Sequence[ChangedTarget]) -> str:
    """Return a `_Content` as JSON, encoded in pages: a single call would hold the interpreter's lock for too long."""
    listed = [
        _Key(base64.b64encode(key.token_sha256).decode(), str(key.id), key.organization, key.expires_at) for key in keys
    ]
    pages = [
        msgspec.json.encode(
            [
                _Target(
                    str(target.target.id),
                    target.target.organization,
                    target.target.uid,
                    target.target.home,
                    target.target.imported_id,
                )
                for target in targets[start : start + PAGE]
            ]
        )[1:-1]
        for start in range(0, len(targets), PAGE)
    ]
    head = msgspec.json.encode(_Content(confirmed.wall, listed, []))
    return (head.removesuffix(b"]}") + b",".join(pages) + b"]}").decode()


def _references(target: PublishingTarget) -> Iterable[tuple[str, str]]:
    """Yield the organization's names of an application: its id, and its uid."""
    yield target.organization, ids.show(ids.APPLICATION, target.id)
    if target.uid is not None:
        yield target.organization, target.uid


def _imported_ids(target: PublishingTarget) -> Iterable[tuple[str, str]]:
    if target.imported_id is not None:
        yield target.organization, target.imported_id


class _Key(RedactedStruct, frozen=True, array_like=True):
    hidden_fields: ClassVar[frozenset[str]] = frozenset({"token"})

    token: str
    id: str
    organization: str
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None


class _Target(msgspec.Struct, frozen=True, array_like=True):
    id: str
    organization: str
    uid: str | None
    home: str | None = None
    imported_id: str | None = None


class _Content(msgspec.Struct, frozen=True):
    confirmed_at: float
    keys: list[_Key]
    targets: list[_Target]


_CONTENT: Final = msgspec.json.Decoder(_Content)
