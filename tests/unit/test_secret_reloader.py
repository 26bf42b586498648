"""A running gateway's sources follow changed secrets, and never accept an expired one."""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from boathook.config import Settings, SourceSettings, load
from boathook.db.secret_box import SecretBox
from boathook.db.source_secrets import SourceSecret, encryption_context
from boathook.domain import ids
from boathook.domain.errors import ConfigError, DatabaseUnavailable
from boathook.ingest.secret_reloader import SecretReloader
from boathook.ingest.secrets_cache import FILE_NAME, SecretsCache
from boathook.ingest.sources import CompiledSource, compile_sources
from boathook.testing import sign
from boathook.verification.verifier import Rejected, Request, Verified
from tests.support import eventually

KEY = "a key of the tests, long enough"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    own = {"provider": "github", "secrets": ["of the file"]}
    read = load(None, {"server": {"data_dir": str(tmp_path)}, "outbound": {"encryption_keys": [KEY]}})
    return read.with_sources({"git": SourceSettings.model_validate(own)})


def made(text: str, *, source: str = "git", expires_in: timedelta | None = None, key: str = KEY) -> SourceSecret:
    id, now = ids.make(time.time_ns() // 1_000_000, secrets.randbits(74)), datetime.now(UTC)
    return SourceSecret(
        id=id,
        source=source,
        encrypted=SecretBox([key]).encrypt(text, encryption_context(source, id)),
        added_by="test",
        added_at=now,
        expires_at=None if expires_in is None else now + expires_in,
    )


class FakeStore:
    """The secrets in the database; None: it is unavailable."""

    def __init__(self, known: Sequence[SourceSecret] | None = ()) -> None:
        self.known = known
        self.asked = 0

    async def __call__(self) -> Sequence[SourceSecret]:
        self.asked += 1
        if self.known is None:
            raise DatabaseUnavailable("away")
        return self.known


def start(settings: Settings, store: FakeStore) -> tuple[CompiledSource, SecretReloader]:
    added = SecretsCache(settings)
    compiled_sources = compile_sources(settings, added)
    return compiled_sources["/in/git"], SecretReloader(settings, compiled_sources.values(), added, store)


def passes(compiled: CompiledSource, secret: str) -> bool:
    body = json.dumps({"action": "opened"}).encode()
    headers = {**sign("github", secret, body, id="7", type="issues"), "content-type": "application/json"}
    url = "http://localhost/in/git"
    request = Request(method="POST", url=url, path="/in/git", query="", headers=headers, body=body, client="127.0.0.1")
    verdict = compiled.verifier.verify(request, time.time())
    assert isinstance(verdict, Verified | Rejected)
    return isinstance(verdict, Verified)


async def test_an_added_secret_is_accepted_besides_existing_ones(settings: Settings):
    store = FakeStore()
    compiled, rotation = start(settings, store)
    await rotation.refresh()
    assert passes(compiled, "of the file")
    assert not passes(compiled, "added")
    store.known = [made("added")]
    await rotation.refresh()
    assert passes(compiled, "added")
    assert passes(compiled, "of the file")


async def test_a_removed_secret_is_no_longer_accepted(settings: Settings):
    store = FakeStore([made("added")])
    compiled, rotation = start(settings, store)
    await rotation.refresh()
    assert passes(compiled, "added")
    store.known = []
    await rotation.refresh()
    assert not passes(compiled, "added")
    assert passes(compiled, "of the file")


async def test_an_unavailable_database_changes_nothing(settings: Settings):
    store = FakeStore([made("added")])
    compiled, rotation = start(settings, store)
    await rotation.refresh()
    store.known = None
    before = compiled.verifier
    await rotation.refresh()
    rotation.apply_secrets()
    assert compiled.verifier is before


async def test_a_secret_expires_during_a_database_outage(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    store = FakeStore([made("added", expires_in=timedelta(hours=1))])
    compiled, rotation = start(settings, store)
    await rotation.refresh()
    store.known = None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3_601)
    await rotation.refresh()
    rotation.apply_secrets()
    assert not passes(compiled, "added")
    assert passes(compiled, "of the file")


async def test_a_start_without_the_database_uses_the_saved_secrets(settings: Settings):
    _, rotation = start(settings, FakeStore([made("added")]))
    await rotation.refresh()
    await rotation.save()
    compiled, _ = start(settings, FakeStore(None))
    assert passes(compiled, "added")
    # The mutant: it is the file that tells.
    (settings.server.data_dir / FILE_NAME).unlink()
    compiled, _ = start(settings, FakeStore(None))
    assert not passes(compiled, "added")


async def test_a_source_without_secrets_rejects_requests(settings: Settings):
    bare = settings.with_sources({"git": settings.sources["git"].model_copy(update={"secrets": ()})})
    store = FakeStore([made("the only one")])
    SecretsCache(bare, store.known).save()
    compiled, rotation = start(bare, store)
    assert passes(compiled, "the only one")
    store.known = []
    await rotation.refresh()
    assert not passes(compiled, "the only one")
    store.known = [made("another one")]
    await rotation.refresh()
    assert passes(compiled, "another one")


async def test_an_undecryptable_secret_is_ignored(settings: Settings):
    store = FakeStore([made("encrypted elsewhere", key="a key that is not at hand"), made("added")])
    compiled, rotation = start(settings, store)
    await rotation.refresh()
    assert not passes(compiled, "encrypted elsewhere")
    assert passes(compiled, "added")


async def test_a_full_disk_does_not_stop_refreshes(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("boathook.ingest.secrets_cache.write_file", full)
    compiled, rotation = start(settings, FakeStore([made("added")]))
    await rotation.refresh()
    await rotation.save()
    assert passes(compiled, "added")


async def test_gates_that_nothing_changed_for_keep_their_verifiers(settings: Settings):
    store = FakeStore([made("of another source", source="elsewhere")])
    compiled, rotation = start(settings, store)
    before = compiled.verifier
    await rotation.refresh()
    assert compiled.verifier is before


async def test_a_refresh_error_does_not_stop_later_refreshes(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.ingest.secret_reloader.EXPIRY_CHECK_INTERVAL_S", 0.01)
    faults = iter([ZeroDivisionError("of the driver")])

    class Faulty(FakeStore):
        async def __call__(self) -> Sequence[SourceSecret]:
            for fault in faults:
                raise fault
            return await super().__call__()

    compiled, rotation = start(settings, Faulty([made("added")]))
    async with followed(rotation):
        await asyncio.sleep(0)
        rotation.on_notification("")
        await eventually(lambda: passes(compiled, "added"))


async def test_expiry_does_not_wait_for_a_stuck_database_or_disk(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.ingest.secret_reloader.EXPIRY_CHECK_INTERVAL_S", 0.01)
    is_stuck, is_over = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        is_stuck.set()
        is_over.wait(60)

    class Hanging(FakeStore):
        async def __call__(self) -> Sequence[SourceSecret]:
            if is_stuck.is_set():
                await asyncio.Event().wait()
            return await super().__call__()

    monkeypatch.setattr("boathook.ingest.secrets_cache.write_file", hangs)
    compiled, rotation = start(settings, Hanging([made("added", expires_in=timedelta(hours=1))]))
    async with followed(rotation):
        await eventually(lambda: passes(compiled, "added") and is_stuck.is_set())
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3_601)
        await eventually(lambda: not passes(compiled, "added"))
        is_over.set()


async def test_a_removal_waits_for_no_disk(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    is_stuck, is_over = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        is_stuck.set()
        is_over.wait(60)

    monkeypatch.setattr("boathook.ingest.secrets_cache.write_file", hangs)
    store = FakeStore([made("added")])
    compiled, rotation = start(settings, store)
    async with followed(rotation):
        await eventually(is_stuck.is_set)
        assert passes(compiled, "added")
        store.known = []
        rotation.on_notification("")
        await eventually(lambda: not passes(compiled, "added"))
        is_over.set()


@pytest.fixture
def away(settings: Settings) -> Settings:
    """Settings that refer to files, which are gone after the start."""
    kept = {name: settings.server.data_dir / name for name in ("secret", "schema.json")}
    kept["secret"].write_text("of a file")
    kept["schema.json"].write_text("{}")
    own = {"provider": "github", "secrets": [f"file:{kept['secret']}"], "schema": str(kept["schema.json"])}
    return settings.with_sources({"git": SourceSettings.model_validate(own)})


async def test_settings_read_at_start_survive_the_loss_of_their_files(away: Settings):
    store = FakeStore()
    compiled, rotation = start(away, store)
    (away.server.data_dir / "secret").unlink()
    (away.server.data_dir / "schema.json").write_text('{"half')
    store.known = [made("added")]
    await rotation.refresh()
    assert passes(compiled, "of a file")
    assert passes(compiled, "added")
    # The mutant: who read them again would have nothing to judge by.
    with pytest.raises(ConfigError):
        compile_sources(away)


async def test_ensure_fresh_refreshes_once_for_all_waiters(settings: Settings):
    store = FakeStore([made("added")])
    compiled, rotation = start(settings, store)
    await rotation.refresh()
    store.known = []
    assert passes(compiled, "added"), "nobody has told it"
    await asyncio.gather(rotation.ensure_fresh(), rotation.ensure_fresh())
    assert not passes(compiled, "added")
    assert store.asked == 2, "all who wait share one look"


async def test_ensure_fresh_times_out_without_the_database(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.ingest.secret_reloader.REFRESH_TIMEOUT_S", 0.05)
    compiled, rotation = start(settings, FakeStore(None))
    await asyncio.wait_for(rotation.ensure_fresh(), 300)
    assert passes(compiled, "of the file")


@asynccontextmanager
async def followed(rotation: SecretReloader) -> AsyncIterator[None]:
    following = asyncio.create_task(rotation.run())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait({following})
