"""Made-up traffic sent to a running boathook, and the judgement of its books by what they must say."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import asyncpg
import httpx

from boathook.apps.billing.sending import differences
from boathook.apps.billing.settings import Plan
from boathook.apps.billing.simulator import Arrival, Expected, Sender, Simulation, Step
from boathook.apps.traffic import Letter
from tests.apps.billing.server import SECRET, Stand

PLANS = (
    Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30),
    Plan(id="year", price=Decimal("9900.00"), currency="RUB", days=365),
)


def made_up(seed: int, payments: int) -> Simulation:
    return Simulation(Sender(secret=SECRET), PLANS, payments=payments, seed=seed)


def shuffled(steps: Sequence[Step], seed: int) -> list[Step]:
    """Return the steps in any order at all, also of one payment's history."""
    mixed = list(steps)
    random.Random(seed).shuffle(mixed)
    return mixed


def play(stand: Stand, steps: Iterable[Step], *, at_once: int = 1) -> Counter[int]:
    """Do all steps, several at once; a letter without an answer is sent again, as providers do. Return the answers."""
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(lambda step: _do(stand, step), steps))


def _do(stand: Stand, step: Step) -> int:
    match step:
        case Arrival(email=email):
            stand.user(email)
            return 0
        case Letter():
            status = _send(stand, step)
            assert status == step.expect, f"{status} instead of {step.expect} for {step.body!r}"
            return status


def _send(stand: Stand, letter: Letter) -> int:
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = httpx.post(stand.base + letter.path, content=letter.body, headers=letter.headers, timeout=10)
        except httpx.TransportError:
            assert time.monotonic() < deadline, "no answer for a minute"
            time.sleep(0.05)
        else:
            if answer.status_code < 500 or time.monotonic() > deadline:
                return answer.status_code


def wrong_books(stand: Stand, expected: Expected) -> list[str]:
    """Return where the books differ from what they must say."""

    async def ask() -> list[str]:
        connection = await asyncpg.connect(stand.database_url)
        try:
            return await differences(connection, expected)
        finally:
            await connection.close()

    return asyncio.run(ask())


def await_books(stand: Stand, expected: Expected, *, timeout: float = 60) -> None:
    """Wait until every event has had its attempt and the books are right; fail with what is wrong."""
    deadline = time.monotonic() + timeout
    while (wrong := wrong_books(stand, expected) or _unsettled(stand)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not wrong, "\n".join(wrong[:20])


def _unsettled(stand: Stand) -> list[str]:
    return [] if stand.settled() else ["events are under way"]
