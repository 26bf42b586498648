"""The fake database behaves as PostgreSQL: the same operations give the same results and leave the same state."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from boathook.db import deliveries
from boathook.db.database import Database
from tests.simulation import lease_statements
from tests.simulation.databases import FakeDatabase, RealDatabase
from tests.simulation.loop import VirtualLoop
from tests.simulation.operation_sequences import Op, Player, draw_ops
from tests.simulation.runner import simulating
from tests.simulation.sending.operation_sequences import (
    FakeSendingDatabase,
    RealSendingDatabase,
    SendPlayer,
    draw_sends,
)
from tests.simulation.server import Rates, Server
from tests.support import sampled

LENGTH = 60
_TABLES = "event, dedup, delivery, attempt, delivery_archive, side_effect, conflict, audit"


class Kind(NamedTuple):
    """A kind of sequences, with who plays them and on what."""

    draw: Callable[[int, int], list[Op]]
    player: type[Player]
    real: type[RealDatabase]
    fake: type[FakeDatabase]


HANDLING = Kind(draw_ops, Player, RealDatabase, FakeDatabase)
SENDING = Kind(draw_sends, SendPlayer, RealSendingDatabase, FakeSendingDatabase)


class _Even:
    """A deterministic random source, equal on both sides."""

    @staticmethod
    def random() -> float:
        return 0.5


@pytest.fixture(autouse=True)
def even_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "random", _Even)


def play_on_fake(kind: Kind, seed: int, ops: list[Op]) -> tuple[list[Any], dict[str, Any]]:
    """Play a sequence on the fake store, in virtual time."""
    loop = VirtualLoop(random.Random(seed))
    server = Server(loop, Rates())

    async def play() -> tuple[list[Any], dict[str, Any]]:
        database = await Database.open("postgresql://fake/", purpose="test", size=5)
        target = kind.fake(server, database)
        player = kind.player(target, seed)
        await player.play(ops)
        dump = await target.dump()
        await database.close()
        return player.seen, dump

    with simulating():
        vars(deliveries)["random"] = _Even
        try:
            return loop.run_until_complete(play())
        finally:
            server.is_closing = True
            loop.bury([])
            loop.close()


async def play_on_real(
    kind: Kind, database: Database, seed: int, ops: list[Op], expected: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Play it on PostgreSQL, emptied first."""
    tables = ", ".join(f"boathook.{name}" for name in _TABLES.split(", "))
    await database.execute(f"truncate {tables} restart identity")
    await database.execute("update boathook.route_version set version = 1")
    target = kind.real(database)
    player = kind.player(target, seed)
    await player.play(ops, expected)
    return player.seen, await target.dump()


async def compare(database: Database, seed: int, kind: Kind = HANDLING) -> str | None:
    """Return where the two differ, or None."""
    ops = kind.draw(seed, LENGTH)
    # The virtual loop runs inside this one's turn, so it needs a thread of its own.
    expected, state = await _aside(kind, seed, ops)
    seen, found = await play_on_real(kind, database, seed, ops, expected)
    for number, (ours, theirs) in enumerate(zip(expected, seen, strict=True)):
        if ours != theirs:
            return f"sequence {seed}, step {number}: the fake store says\n  {ours}\nPostgreSQL says\n  {theirs}"
    for table, rows in found.items():
        if rows != state[table]:
            return f"sequence {seed}: the fake store has in {table}\n  {state[table]}\nPostgreSQL has\n  {rows}"
    return None


async def _aside(kind: Kind, seed: int, ops: list[Op]) -> tuple[list[Any], dict[str, Any]]:
    return await asyncio.to_thread(play_on_fake, kind, seed, ops)


@pytest.mark.parametrize("seed", sampled(range(12), keep=4))
async def test_the_fake_database_behaves_like_postgresql(db: Database, seed: int) -> None:
    difference = await compare(db, seed)
    assert difference is None, difference


@pytest.mark.parametrize("seed", sampled(range(4), keep=1))
async def test_the_fake_database_sends_as_postgresql_does(db: Database, seed: int) -> None:
    difference = await compare(db, seed, SENDING)
    assert difference is None, difference


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_the_fake_database_behaves_like_postgresql_for_hours(db: Database) -> None:
    for seed in range(100, 10_100):
        difference = await compare(db, seed) or await compare(db, seed, SENDING)
        assert difference is None, difference


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("kind", [HANDLING, SENDING], ids=["handling", "sending"])
async def test_a_fake_that_ignores_fences_differs_from_postgresql(
    kind: Kind, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the comparison can fail."""
    monkeypatch.setattr(lease_statements, "holds", lambda row, fence: row is not None and row.leased_by is not None)
    assert any([await compare(db, seed, kind) for seed in range(4)])
