"""Sends simulated traffic to a running boathook, and compares the tables with what they must say."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from boathook import Boathook, BoathookError, ConfigError, Transaction
from boathook.apps.fleet.settings import FleetSettings
from boathook.apps.fleet.simulator import Expected, Letter, Sender, Simulation
from boathook.apps.fleet.tables import TABLES

_AT_ONCE: Final = 8
_POLL_S: Final = 0.25


async def send_simulated(
    hook: Boathook, url: str, *, histories: int, seed: int | None, wait_s: float
) -> dict[str, Any]:
    """Send *histories* to *url* and return what became of them; wait until the tables say what they must."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    simulation = Simulation(make_sender(hook), histories=histories, seed=seed)
    answers = await _send_all(hook, url, simulation.letters)
    wrong = sum(n for (status, expected), n in answers.items() if status != expected)
    differences = await _wait_for(hook, simulation.expected(), wait_s)
    return {
        "seed": seed,
        "requests": answers.total(),
        "answered_otherwise": wrong,
        "statuses": {str(status): n for status, n in sorted(_by_status(answers).items())},
        "changes": simulation.expected().changes,
        "things": len(simulation.expected().things),
        "differences": differences[:5],
        "is_right": not wrong and not differences,
    }


def make_sender(hook: Boathook) -> Sender:
    """Return who knows the secrets of the settings."""
    settings: FleetSettings = hook.settings
    umnico = settings.umnico_secrets
    return Sender(
        token=hook.resolve(settings.secrets[0], "secrets[0]"),
        scheme=settings.scheme,
        umnico_token=hook.resolve(umnico[0], "umnico_secrets[0]") if umnico else "",
    )


async def compare(tx: Transaction, expected: Expected) -> list[str]:
    """Return in which things the tables say something else than they must, one line for each."""
    found: list[str] = []
    for entity, table in TABLES.items():
        wanted = {id: thing for (one, id), thing in expected.things.items() if one is entity}
        rows = await tx.fetch(
            f"select id, data, deleted_at, stamp from fleet.{table.name} where id = any($1)",  # noqa: S608 our own name
            list(wanted),
        )
        kept = {row["id"]: row for row in rows}
        for id, thing in wanted.items():
            row = kept.get(id)
            present = row and (json.loads(row["data"]), row["deleted_at"] is not None, row["stamp"] is None)
            if present != (dict(thing.data), thing.is_deleted, thing.is_stub):
                found.append(f"{entity} {id} is {present}, not {thing}")
    return found


async def _wait_for(hook: Boathook, expected: Expected, wait_s: float) -> list[str]:
    until = asyncio.get_running_loop().time() + wait_s
    while True:
        async with hook.transaction() as tx:
            differences = await compare(tx, expected)
        if not differences or asyncio.get_running_loop().time() > until:
            return differences
        await asyncio.sleep(_POLL_S)


async def _send_all(hook: Boathook, url: str, letters: Sequence[Letter]) -> Counter[tuple[int, int]]:
    answers: Counter[tuple[int, int]] = Counter()
    rest = iter(letters)

    async def send() -> None:
        for letter in rest:
            answers[await _send(hook, url, letter), letter.expect] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(send())
    return answers


async def _send(hook: Boathook, url: str, letter: Letter) -> int:
    target = url.rstrip("/") + letter.path
    try:
        answer = await hook.http.request(letter.method, target, headers=letter.headers, body=letter.body)
    except BoathookError as error:
        secret = target.partition("?")[2]
        because = str(error).replace(secret, "...") if secret else str(error)
        raise ConfigError(
            f"--url {url}: {because}. If boathook serves on this machine, write"
            ' allow = ["127.0.0.0/8"] under [outbound] in boathook.toml'
        ) from None
    return answer.status


def _by_status(answers: Counter[tuple[int, int]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for (status, _), n in answers.items():
        found[status] += n
    return found
