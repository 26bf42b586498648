"""The dispatcher with an executor of its own: messages are appended to files instead of being sent."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from boathook.db.database import Database
from boathook.delivery.destination import Executor
from boathook.delivery.endpoint_queues import EndpointAttempt
from boathook.domain.policy import Dead, Result, Retry, RetryPolicy, Success
from tests.sender_harness import add_deliveries, add_endpoint, running_sender
from tests.support import eventually
from tests.worker_harness import attempts, delivery_states, wait_for_states

QUICK = RetryPolicy(delays_s=(0.02,), jitter=0.0)


class FileExecutor(Executor[EndpointAttempt]):
    """Appends each message to the file that its endpoint's address names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gate: asyncio.Event | None = None

    async def execute(self, attempt: EndpointAttempt) -> Result:
        """Write one message."""
        assert attempt.endpoint is not None
        assert attempt.delivery.body is not None
        name = urlsplit(attempt.endpoint.url).path.strip("/")
        if name == "refused":
            return Dead("REFUSED", "this file takes nothing")
        if name == "later" and attempt.delivery.attempt == 1:
            return Retry(after=0.01, code="LATER")
        with (self.folder / name).open("ab") as file:
            file.write(attempt.delivery.body + b"\n")
        if self.gate is not None:
            await self.gate.wait()
        attempt.response = b"written"
        return Success()


async def test_messages_are_delivered_and_recorded(db: Database, tmp_path: Path) -> None:
    endpoint = await add_endpoint(db, "http://archive.example/letters")
    async with running_sender(db, executor=FileExecutor(tmp_path)):
        await add_deliveries(db, endpoint, 20)
        await wait_for_states(db, succeeded=20)
    assert (tmp_path / "letters").read_bytes() == b'{"a": 1}\n' * 20
    assert await attempts(db) == [(1, "succeeded", None)] * 20
    assert await db.fetchval("select count(*) from boathook.attempt where response = 'written'") == 20


async def test_an_ordered_endpoint_gets_its_messages_one_at_a_time(db: Database, tmp_path: Path) -> None:
    endpoint = await add_endpoint(db, "http://archive.example/letters")
    async with running_sender(db, executor=FileExecutor(tmp_path)):
        for number in range(5):
            await add_deliveries(db, endpoint, order_key="k", body=str(number).encode())
        await wait_for_states(db, succeeded=5)
    assert (tmp_path / "letters").read_text().split() == ["0", "1", "2", "3", "4"]


async def test_outcomes_are_decided_by_the_policy_of_the_endpoint(db: Database, tmp_path: Path) -> None:
    later = await add_endpoint(db, "http://archive.example/later", retry=QUICK)
    async with running_sender(db, executor=FileExecutor(tmp_path)):
        await add_deliveries(db, later)
        await wait_for_states(db, succeeded=1)
        refused = await add_endpoint(db, "http://archive.example/refused", retry=QUICK)
        await add_deliveries(db, refused)
        await wait_for_states(db, succeeded=1, dead=1)
    assert await attempts(db) == [(1, "failed", "LATER"), (2, "succeeded", None), (1, "failed", "REFUSED")]


async def test_an_exception_is_a_failed_attempt(db: Database, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    endpoint = await add_endpoint(db, "http://archive.example/letters", retry=QUICK)
    async with running_sender(db, executor=FileExecutor(tmp_path)):
        await add_deliveries(db, endpoint)
        await wait_for_states(db, dead=1)
    assert await attempts(db) == [(number, "failed", "IsADirectoryError") for number in (1, 2)]


async def test_an_attempt_too_slow_to_stop_is_cancelled_and_not_counted(db: Database, tmp_path: Path) -> None:
    endpoint, executor = await add_endpoint(db, "http://archive.example/letters"), FileExecutor(tmp_path)
    executor.gate = asyncio.Event()
    async with running_sender(db, executor=executor, server={"drain_s": 0.1}):
        await add_deliveries(db, endpoint)
        await eventually((tmp_path / "letters").exists)
    assert await delivery_states(db) == {"pending": 1}
    assert await db.fetchval("select attempts from boathook.delivery") == 0


async def test_a_superseded_attempt_settles_nothing(db: Database, tmp_path: Path) -> None:
    endpoint, executor = await add_endpoint(db, "http://archive.example/letters"), FileExecutor(tmp_path)
    executor.gate = asyncio.Event()
    async with running_sender(db, executor=executor) as dispatcher:
        await add_deliveries(db, endpoint)
        await eventually((tmp_path / "letters").exists)
        await db.execute("update boathook.delivery set fence = fence + 1, leased_by = 'another'")
        executor.gate.set()
        await eventually(lambda: not dispatcher.held)
    assert await attempts(db) == []
    assert await delivery_states(db) == {"leased": 1}
