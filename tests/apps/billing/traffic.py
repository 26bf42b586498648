"""Sends simulated traffic to a running boathook, and compares its tables with the expected ones."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import asyncpg
import httpx

from boathook_app_tools.simulation import SimulatedRequest
from boathook_billing.sending import differences
from boathook_billing.settings import Plan
from boathook_billing.simulator import Arrival, Expected, Sender, Simulation, Step
from tests.apps.billing.server import SECRET, BillingServer

PLANS = (
    Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30),
    Plan(id="year", price=Decimal("9900.00"), currency="RUB", days=365),
)


def make_simulation(seed: int, payments: int) -> Simulation:
    return Simulation(Sender(secret=SECRET), PLANS, payments=payments, seed=seed)


def shuffled(steps: Sequence[Step], seed: int) -> list[Step]:
    """Return the steps in random order, also within one payment's history."""
    mixed = list(steps)
    random.Random(seed).shuffle(mixed)
    return mixed


def send_steps(server: BillingServer, steps: Iterable[Step], *, at_once: int = 1) -> Counter[int]:
    """Run all steps, *at_once* in parallel; requests without a response are sent again, as providers do. Return the statuses."""
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(lambda step: _do(server, step), steps))


def _do(server: BillingServer, step: Step) -> int:
    match step:
        case Arrival(email=email):
            server.user(email)
            return 0
        case SimulatedRequest():
            status = _send(server, step)
            assert status == step.expect, f"{status} instead of {step.expect} for {step.body!r}"
            return status


def _send(server: BillingServer, request: SimulatedRequest) -> int:
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = httpx.post(server.base + request.path, content=request.body, headers=request.headers, timeout=300)
        except httpx.TransportError:
            assert time.monotonic() < deadline, "no answer for a minute"
            time.sleep(0.05)
        else:
            if answer.status_code < 500 or time.monotonic() > deadline:
                return answer.status_code


def wrong_books(server: BillingServer, expected: Expected) -> list[str]:
    """Return the differences between the tables and the expected state."""

    async def ask() -> list[str]:
        connection = await asyncpg.connect(server.database_url)
        try:
            return await differences(connection, expected)
        finally:
            await connection.close()

    return asyncio.run(ask())


def await_books(server: BillingServer, expected: Expected, *, timeout: float = 300) -> None:
    """Wait until all events are handled and the tables are as expected; fail with the differences."""
    deadline = time.monotonic() + timeout
    while (wrong := wrong_books(server, expected) or _pending_work(server)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not wrong, "\n".join(wrong[:20])


def _pending_work(server: BillingServer) -> list[str]:
    return [] if server.is_idle() else ["events are under way"]
