"""Sends simulated callbacks to a running boathook, and compares its tables with the expected results."""

import functools
import time

from boathook import ConfigError
from boathook_app_tools.simulation import (
    ResponseCounts,
    SimulatedRequest,
    SimulationResult,
    has_open,
    pick_seed,
    send,
    settle,
)
from boathook_music import tracks
from boathook_music.app import hook, settings
from boathook_music.file_server import FileServer
from boathook_music.simulator import ExpectedState, Registration, Reseller, Simulator
from boathook_music.tracks import NewTrack

_TASKS = """
    select task_id, status from music.track where task_id = any($1)
    union all
    select distinct task_id, 'waiting' from music.callback where task_id = any($1) and state = 'waiting'
"""
_FILES = "select task_id, clip_id, kind, state, sha256 from music.file where task_id = any($1)"


async def simulate(url: str, *, count: int, seed: int | None, wait_s: float) -> SimulationResult:
    """Send the callbacks of *count* generated songs, serve their files, and return the result.

    Raises:
        BoathookError: *url* is invalid or unreachable.
        ConfigError: the settings name a provider other than ``suno``.
    """
    config = settings()
    if config.provider != "suno":
        raise ConfigError(
            f'music.provider: simulated callbacks are signed as provider = "suno" does, not {config.provider}'
        )
    number = pick_seed(seed)
    with FileServer() as file_server:
        secret = hook.resolve(config.secret, "secret")
        reseller = Reseller(secret=secret, files=file_server.url, at=time.time(), path=config.path)
        simulator = Simulator(reseller, songs=count, seed=number)
        answers = await _send_all(url, simulator)
        expected = simulator.expected()
        wrong, is_finished = await settle(lambda: differences(expected), functools.partial(has_open, hook), wait_s)
    effects = {
        "songs": len(expected.tracks),
        "files stored": sum(digest is not None for digest in expected.files.values()),
    }
    return SimulationResult(seed=number, answers=answers, effects=effects, differences=wrong, is_finished=is_finished)


async def _send_all(url: str, simulator: Simulator) -> ResponseCounts:
    answers = ResponseCounts()
    for step in simulator.steps:
        match step:
            case Registration(task_id=task_id, title=title):
                async with hook.transaction() as tx:
                    await tracks.register(tx, NewTrack(task_id=task_id, title=title, owner="simulated"))
            case SimulatedRequest():
                status, _ = await send(hook, url, step)
                # A response of 200 becomes 202 if the worker does not finish in time.
                answers.note(step, status, {200, 202} if step.expect == 200 else {step.expect})
    return answers


async def differences(books: ExpectedState) -> list[str]:
    """Return the differences between the tables and the expected contents."""
    tasks = [*books.tracks, *books.waiting]
    async with hook.transaction() as tx:
        standings = {(row["task_id"], row["status"]) for row in await tx.fetch(_TASKS, tasks)}
        files = {(row["task_id"], row["clip_id"], row["kind"]): row for row in await tx.fetch(_FILES, tasks)}
    expected_pairs = {(task, status.value) for task, status in books.tracks.items()} | {
        (t, "waiting") for t in books.waiting
    }
    wrong = [f"{task} is {status}, and should not be" for task, status in sorted(standings - expected_pairs)]
    wrong += [f"{task} is not {status}" for task, status in sorted(expected_pairs - standings)]
    wrong += [f"{'/'.join(name)} should not be there" for name in files if name not in books.files]
    for name, sha256 in books.files.items():
        row = files.get(name)
        actual = None if row is None else (row["state"], row["sha256"])
        expected = ("failed", None) if sha256 is None else ("stored", sha256)
        if actual != expected:
            wrong.append(f"{'/'.join(name)} is {actual and actual[0]}, and should be {expected[0]}")
    return wrong
