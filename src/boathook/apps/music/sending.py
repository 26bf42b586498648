"""Sends made-up callbacks to a running boathook, and holds its books against what they must say."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from boathook import BoathookError, ConfigError
from boathook.apps.music import tracks
from boathook.apps.music.app import hook, settings
from boathook.apps.music.simulator import Books, Letter, Registration, Reseller, Simulator
from boathook.apps.music.studio import Studio
from boathook.apps.music.tracks import NewTrack

_TASKS = """
    select task_id, status from music.track where task_id = any($1)
    union all
    select distinct task_id, 'waiting' from music.callback where task_id = any($1) and state = 'waiting'
"""
_FILES = "select task_id, clip_id, kind, state, sha256 from music.file where task_id = any($1)"


async def simulate(url: str, *, songs: int, seed: int | None, within_s: float) -> dict[str, Any]:
    """Send the callbacks of *songs* made-up songs, serve their files, and return how it went.

    Raises:
        ConfigError: the settings name another provider than ``suno``, or boathook cannot be reached.
    """
    told = settings()
    if told.provider != "suno":
        raise ConfigError(
            f'music.provider: made-up callbacks are signed as provider = "suno" does, not {told.provider}'
        )
    number = int(time.time() * 1_000) % 1_000_000_000 if seed is None else seed
    with Studio() as studio:
        secret = hook.resolve(told.secret, "secret")
        reseller = Reseller(secret=secret, files=studio.url, at=time.time(), path=told.path)
        simulator = Simulator(reseller, songs=songs, seed=number)
        counts = await _send(url.rstrip("/"), simulator)
        books = simulator.expected()
        wrong = await _wait(books, within_s)
    answers = {"sent": counts["sent"], "surprising_answers": counts["surprising"], "answered_late": counts["late"]}
    return {"songs": songs, "seed": number, **answers, "files": len(books.files), "differences": wrong}


async def _send(url: str, simulator: Simulator) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for step in simulator.steps:
        match step:
            case Registration(task_id=task_id, title=title):
                async with hook.transaction() as tx:
                    await tracks.register(tx, NewTrack(task_id=task_id, title=title, owner="simulated"))
            case Letter():
                status = await _post(url, step)
                counts["sent"] += 1
                is_late = status == 202 and step.expect == 200
                counts["late"] += is_late
                counts["surprising"] += not is_late and status != step.expect
    return counts


async def _post(url: str, letter: Letter) -> int:
    try:
        answer = await hook.http.request(letter.method, url + letter.path, headers=letter.headers, body=letter.body)
    except BoathookError as error:
        raise ConfigError(
            f'{error}. Is `boathook serve` there, and is its address in [outbound] allow, such as ["127.0.0.0/8"]?'
        ) from None
    return answer.status


async def _wait(books: Books, within_s: float) -> list[str]:
    """Return what differs from the books, as soon as nothing does, or when the time is up."""
    ends_at = time.monotonic() + within_s
    while (wrong := await differences(books)) and time.monotonic() < ends_at:  # noqa: ASYNC110 - others write them
        await asyncio.sleep(0.2)
    return wrong


async def differences(books: Books) -> list[str]:
    """Return in what the tables differ from what they must say."""
    tasks = [*books.tracks, *books.waiting]
    async with hook.transaction() as tx:
        standings = {(row["task_id"], row["status"]) for row in await tx.fetch(_TASKS, tasks)}
        files = {(row["task_id"], row["clip_id"], row["kind"]): row for row in await tx.fetch(_FILES, tasks)}
    wanted = {(task, status.value) for task, status in books.tracks.items()} | {(t, "waiting") for t in books.waiting}
    wrong = [f"{task} is {status}, and should not be" for task, status in sorted(standings - wanted)]
    wrong += [f"{task} is not {status}" for task, status in sorted(wanted - standings)]
    wrong += [f"{'/'.join(name)} should not be there" for name in files if name not in books.files]
    for name, sha256 in books.files.items():
        row = files.get(name)
        found = None if row is None else (row["state"], row["sha256"])
        expected = ("failed", None) if sha256 is None else ("stored", sha256)
        if found != expected:
            wrong.append(f"{'/'.join(name)} is {found and found[0]}, and should be {expected[0]}")
    return wrong
