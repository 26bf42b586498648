"""Sends simulated traffic to a running boathook, and compares the tables with the expected results."""

import asyncio
import functools
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from boathook import Boathook, Transaction
from boathook_app_tools.simulation import (
    ResponseCounts,
    SimulatedRequest,
    SimulationResult,
    has_open,
    pick_seed,
    send,
    settle,
)
from boathook_fleet.settings import FleetSettings
from boathook_fleet.simulator import Expected, ExpectedObject, Sender, Simulation
from boathook_fleet.tables import TABLES

_AT_ONCE: Final = 8


async def simulate(hook: Boathook, url: str, *, count: int, seed: int | None, wait_s: float) -> SimulationResult:
    """Send *count* histories to *url*, wait until the tables are right, and return the result.

    Raises:
        BoathookError: *url* is invalid or unreachable.
    """
    number = pick_seed(seed)
    simulation = Simulation(make_sender(hook), histories=count, seed=number)
    answers = await _send_all(hook, url, simulation.histories)
    expected = simulation.expected()

    async def differences() -> list[str]:
        async with hook.transaction() as tx:
            return await compare(tx, expected)

    effects = {"things kept": len(expected.things), "changes": expected.changes}
    wrong, is_finished = await settle(differences, functools.partial(has_open, hook), wait_s)
    return SimulationResult(seed=number, answers=answers, effects=effects, differences=wrong, is_finished=is_finished)


def make_sender(hook: Boathook) -> Sender:
    """Return the sender with the secrets of the settings."""
    settings: FleetSettings = hook.settings
    umnico = settings.umnico_secrets
    return Sender(
        token=hook.resolve(settings.secrets[0], "secrets[0]"),
        scheme=settings.scheme,
        umnico_token=hook.resolve(umnico[0], "umnico_secrets[0]") if umnico else "",
    )


async def compare(tx: Transaction, expected: Expected) -> list[str]:
    """Return the differences between the tables and *expected*, one line per object."""
    differences: list[str] = []
    for entity, table in TABLES.items():
        objects = {id: expected_object for (kind, id), expected_object in expected.things.items() if kind is entity}
        rows = await tx.fetch(
            f"select id, data, deleted_at, stamp from fleet.{table.name} where id = any($1)",  # noqa: S608 our own name
            list(objects),
        )
        by_id = {row["id"]: row for row in rows}
        for id, expected_object in objects.items():
            row = by_id.get(id)
            wrong = ["missing"] if row is None else list(_wrong(row, expected_object))
            if wrong:
                differences.append(f"{entity} {id}: {', '.join(wrong)}")
    return differences


def _wrong(row: Any, expected_object: ExpectedObject) -> Iterator[str]:
    """Yield the differences between a row and the expected object, by field."""
    data = json.loads(row["data"])
    for name in sorted(data.keys() | expected_object.data.keys()):
        if data.get(name) != expected_object.data.get(name):
            yield f"{name} is {json.dumps(data.get(name))}, not {json.dumps(expected_object.data.get(name))}"
    for name, actual, required in (
        ("deleted", row["deleted_at"] is not None, expected_object.is_deleted),
        ("only named by others", row["stamp"] is None, expected_object.is_stub),
    ):
        if actual != required:
            yield f"{name}, and should not be" if actual else f"not {name}, and should be"


async def _send_all(hook: Boathook, url: str, histories: Sequence[Sequence[SimulatedRequest]]) -> ResponseCounts:
    """Send each history in order, and several at once."""
    answers = ResponseCounts()
    rest = iter(histories)

    async def send_rest() -> None:
        for request in chain.from_iterable(rest):
            status, _ = await send(hook, url, request)
            answers.note(request, status, {request.expect})

    senders = [asyncio.create_task(send_rest()) for _ in range(_AT_ONCE)]
    try:
        await asyncio.gather(*senders)
    finally:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
    return answers
