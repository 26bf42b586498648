"""The gates of a running gateway follow the secrets of their sources, and let nothing pass that has ended."""

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
from boathook.domain import ids
from boathook.domain.errors import ConfigError, JournalUnavailable
from boathook.inbound.added import FILE_NAME, AddedSecrets
from boathook.inbound.gates import Gate, compile_gates
from boathook.inbound.rotating import Rotation
from boathook.inbound.verify import Rejected, Request, Verified
from boathook.journal.source_secrets import SourceSecret, context_of
from boathook.journal.vault import Vault
from boathook.testing import sign
from tests.support import eventually

KEY = "a key of the tests, long enough"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    own = {"provider": "github", "secrets": ["of the file"]}
    read = load(None, {"server": {"data_dir": str(tmp_path)}, "outbound": {"encryption_keys": [KEY]}})
    return read.with_sources({"git": SourceSettings.model_validate(own)})


def made(text: str, *, source: str = "git", ends_in: timedelta | None = None, key: str = KEY) -> SourceSecret:
    id, now = ids.make(time.time_ns() // 1_000_000, secrets.randbits(74)), datetime.now(UTC)
    return SourceSecret(
        id=id,
        source=source,
        sealed=Vault([key]).seal(text, context_of(source, id)),
        added_by="test",
        added_at=now,
        ends_at=None if ends_in is None else now + ends_in,
    )


class Journal:
    """What the journal tells; None: it is away."""

    def __init__(self, known: Sequence[SourceSecret] | None = ()) -> None:
        self.known = known
        self.asked = 0

    async def __call__(self) -> Sequence[SourceSecret]:
        self.asked += 1
        if self.known is None:
            raise JournalUnavailable("away")
        return self.known


def start(settings: Settings, journal: Journal) -> tuple[Gate, Rotation]:
    added = AddedSecrets(settings)
    gates = compile_gates(settings, added)
    return gates["/in/git"], Rotation(settings, gates.values(), added, journal)


def passes(gate: Gate, secret: str) -> bool:
    body = json.dumps({"action": "opened"}).encode()
    headers = {**sign("github", secret, body, id="7", type="issues"), "content-type": "application/json"}
    url = "http://localhost/in/git"
    request = Request(method="POST", url=url, path="/in/git", query="", headers=headers, body=body, client="127.0.0.1")
    verdict = gate.verifier.verify(request, time.time())
    assert isinstance(verdict, Verified | Rejected)
    return isinstance(verdict, Verified)


async def test_a_gate_takes_what_is_added_and_keeps_what_it_took(settings: Settings):
    journal = Journal()
    gate, rotation = start(settings, journal)
    await rotation.look()
    assert passes(gate, "of the file")
    assert not passes(gate, "added")
    journal.known = [made("added")]
    await rotation.look()
    assert passes(gate, "added")
    assert passes(gate, "of the file")


async def test_a_gate_lets_go_of_what_is_removed(settings: Settings):
    journal = Journal([made("added")])
    gate, rotation = start(settings, journal)
    await rotation.look()
    assert passes(gate, "added")
    journal.known = []
    await rotation.look()
    assert not passes(gate, "added")
    assert passes(gate, "of the file")


async def test_nothing_changes_while_the_journal_is_away(settings: Settings):
    journal = Journal([made("added")])
    gate, rotation = start(settings, journal)
    await rotation.look()
    journal.known = None
    before = gate.verifier
    await rotation.look()
    rotation.turn()
    assert gate.verifier is before


async def test_an_end_comes_although_the_journal_is_away(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    journal = Journal([made("added", ends_in=timedelta(hours=1))])
    gate, rotation = start(settings, journal)
    await rotation.look()
    journal.known = None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3_601)
    await rotation.look()
    rotation.turn()
    assert not passes(gate, "added")
    assert passes(gate, "of the file")


async def test_a_start_without_the_journal_knows_what_was_known(settings: Settings):
    _, rotation = start(settings, Journal([made("added")]))
    await rotation.look()
    await rotation.save()
    gate, _ = start(settings, Journal(None))
    assert passes(gate, "added")
    # The mutant: it is the file that tells.
    (settings.server.data_dir / FILE_NAME).unlink()
    gate, _ = start(settings, Journal(None))
    assert not passes(gate, "added")


async def test_a_source_whose_last_secret_has_ended_is_shut(settings: Settings):
    bare = settings.with_sources({"git": settings.sources["git"].model_copy(update={"secrets": ()})})
    journal = Journal([made("the only one")])
    AddedSecrets(bare, journal.known).save()
    gate, rotation = start(bare, journal)
    assert passes(gate, "the only one")
    journal.known = []
    await rotation.look()
    assert not passes(gate, "the only one")
    journal.known = [made("another one")]
    await rotation.look()
    assert passes(gate, "another one")


async def test_one_that_cannot_be_opened_proves_nothing_and_stops_nothing(settings: Settings):
    journal = Journal([made("sealed elsewhere", key="a key that is not at hand"), made("added")])
    gate, rotation = start(settings, journal)
    await rotation.look()
    assert not passes(gate, "sealed elsewhere")
    assert passes(gate, "added")


async def test_a_disk_that_takes_nothing_stops_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("boathook.inbound.added._write", full)
    gate, rotation = start(settings, Journal([made("added")]))
    await rotation.look()
    await rotation.save()
    assert passes(gate, "added")


async def test_gates_that_nothing_changed_for_keep_their_verifiers(settings: Settings):
    journal = Journal([made("of another source", source="elsewhere")])
    gate, rotation = start(settings, journal)
    before = gate.verifier
    await rotation.look()
    assert gate.verifier is before


async def test_a_fault_is_told_and_later_changes_get_through(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.inbound.rotating.END_S", 0.01)
    faults = iter([ZeroDivisionError("of the driver")])

    class Faulty(Journal):
        async def __call__(self) -> Sequence[SourceSecret]:
            for fault in faults:
                raise fault
            return await super().__call__()

    gate, rotation = start(settings, Faulty([made("added")]))
    async with followed(rotation):
        await asyncio.sleep(0)
        rotation.hear("")
        await eventually(lambda: passes(gate, "added"))


async def test_an_end_waits_neither_for_a_journal_that_hangs_nor_for_a_disk_that_does(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("boathook.inbound.rotating.END_S", 0.01)
    is_stuck, is_over = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        is_stuck.set()
        is_over.wait(60)

    class Hanging(Journal):
        async def __call__(self) -> Sequence[SourceSecret]:
            if is_stuck.is_set():
                await asyncio.Event().wait()
            return await super().__call__()

    monkeypatch.setattr("boathook.inbound.added._write", hangs)
    gate, rotation = start(settings, Hanging([made("added", ends_in=timedelta(hours=1))]))
    async with followed(rotation):
        await eventually(lambda: passes(gate, "added") and is_stuck.is_set())
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3_601)
        await eventually(lambda: not passes(gate, "added"))
        is_over.set()


async def test_a_removal_waits_for_no_disk(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    is_stuck, is_over = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        is_stuck.set()
        is_over.wait(60)

    monkeypatch.setattr("boathook.inbound.added._write", hangs)
    journal = Journal([made("added")])
    gate, rotation = start(settings, journal)
    async with followed(rotation):
        await eventually(is_stuck.is_set)
        assert passes(gate, "added")
        journal.known = []
        rotation.hear("")
        await eventually(lambda: not passes(gate, "added"))
        is_over.set()


@pytest.fixture
def away(settings: Settings) -> Settings:
    """Settings that refer to files, which are gone after the start."""
    kept = {name: settings.server.data_dir / name for name in ("secret", "schema.json")}
    kept["secret"].write_text("of a file")
    kept["schema.json"].write_text("{}")
    own = {"provider": "github", "secrets": [f"file:{kept['secret']}"], "schema": str(kept["schema.json"])}
    return settings.with_sources({"git": SourceSettings.model_validate(own)})


async def test_what_the_settings_said_at_the_start_holds_although_their_files_are_gone(away: Settings):
    journal = Journal()
    gate, rotation = start(away, journal)
    (away.server.data_dir / "secret").unlink()
    (away.server.data_dir / "schema.json").write_text('{"half')
    journal.known = [made("added")]
    await rotation.look()
    assert passes(gate, "of a file")
    assert passes(gate, "added")
    # The mutant: who read them again would have nothing to judge by.
    with pytest.raises(ConfigError):
        compile_gates(away)


async def test_who_comes_after_a_standstill_is_judged_by_what_was_learnt_since(settings: Settings):
    journal = Journal([made("added")])
    gate, rotation = start(settings, journal)
    await rotation.look()
    journal.known = []
    assert passes(gate, "added"), "nobody has told it"
    await asyncio.gather(rotation.make_sure(), rotation.make_sure())
    assert not passes(gate, "added")
    assert journal.asked == 2, "all who wait share one look"


async def test_nobody_waits_for_long_for_a_journal_that_is_away(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.inbound.rotating._WAIT_S", 0.05)
    gate, rotation = start(settings, Journal(None))
    await asyncio.wait_for(rotation.make_sure(), 300)
    assert passes(gate, "of the file")


@asynccontextmanager
async def followed(rotation: Rotation) -> AsyncIterator[None]:
    following = asyncio.create_task(rotation.run())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait({following})
