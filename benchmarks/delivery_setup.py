"""An application with endpoints at the sink, messages for them, and how long it takes until they are delivered."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from benchmarks.environment import BenchmarkEnvironment
from boathook.config import Settings, load
from boathook.db import route_registry
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.events import EventStore
from boathook.db.secret_box import open_secret_box
from boathook.domain import ids
from boathook.domain.messages import Message
from boathook.domain.model import NewDelivery, NewEvent, Origin, ProofStrength, Route
from boathook.handlers.outbox import Outbox
from boathook.service.caller import HOST
from boathook.service.catalogue import keys
from boathook.service.catalogue.keys import KeyScope, NewKey
from boathook.service.operating import operations
from boathook.service.sending import applications, endpoints
from boathook.service.unit_of_work import AppContext, UnitOfWork

_KEY: Final = "a key for made-up secrets only"
SETTINGS: Final = f'[outbound]\nallow = ["127.0.0.0/8"]\nencryption_keys = ["{_KEY}"]\n'
"""What `boathook serve` needs to send to the sink; more keys of the table may follow."""
TYPE: Final = "invoice.paid"
ACTION: Final = AuditContext(actor="benchmark")
"""Who publishes."""
_BATCH: Final = 128
_POLL_INTERVAL_S: Final = 0.005
_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class DeliverySetup:
    """An application whose endpoints are at the sink."""

    database_url: str
    application: str
    recipients: tuple[str, ...]


def create_setup(environment: BenchmarkEnvironment, urls: Sequence[str], *, is_disabled: bool = False) -> DeliverySetup:
    """Make a database with one application, and an endpoint for each of *urls*, disabled or not."""
    url = environment.new_database()
    return asyncio.run(_create_setup(url, urls, is_disabled=is_disabled))


def settings_for(url: str, **more: object) -> Settings:
    """Return what publishing to the sink and sending there need; *more* is other keys, such as ``server__data_dir``."""
    changes: dict[str, object] = {
        "database.url": url,
        "outbound.allow": ["127.0.0.0/8"],
        "outbound.encryption_keys": [_KEY],
    }
    changes |= {name.replace("__", "."): value for name, value in more.items()}
    return load(Path("/dev/null"), changes)


async def _create_setup(url: str, urls: Sequence[str], *, is_disabled: bool) -> DeliverySetup:
    settings = settings_for(url)
    database = await Database.open(url, purpose="benchmark", size=1)
    app_context = AppContext(settings, database, open_secret_box(settings), Outbox.of(settings.retention))
    try:
        async with app_context.work(actor="benchmark", caller=HOST) as work:
            application = await applications.create(work, applications.NewApplication(name="benchmark"))
            made = [
                await endpoints.create(work, application, endpoints.NewEndpoint(url=one, is_disabled=is_disabled))
                for one in urls
            ]
    finally:
        await database.close()
    return DeliverySetup(url, application.shown_id, tuple(one.recipient for one in made))


@asynccontextmanager
async def _open_work(setup: DeliverySetup) -> AsyncIterator[UnitOfWork]:
    settings = settings_for(setup.database_url)
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    try:
        async with AppContext(settings, database, open_secret_box(settings), Outbox()).work(
            actor="benchmark", caller=HOST
        ) as work:
            yield work
    finally:
        await database.close()


async def make_token(setup: DeliverySetup) -> str:
    """Return a new token of the API."""
    async with _open_work(setup) as work:
        return (await keys.create(work, NewKey(scope=KeyScope.ORGANIZATION))).token


async def enable_endpoints(setup: DeliverySetup, *, is_disabled: bool = False) -> None:
    """Enable or disable all endpoints in one transaction, so that what waits for them becomes due at once."""
    async with _open_work(setup) as work:
        application = await applications.get(work, setup.application)
        for recipient in setup.recipients:
            await endpoints.update(work, application, recipient.removeprefix("endpoint:"), {"is_disabled": is_disabled})


def route_to_endpoints(setup: DeliverySetup, source: str, types: Sequence[str]) -> None:
    """Route what arrives at *source* to the endpoints, each type to one of them."""
    routes = [
        Route(recipient=recipient, app="benchmark", source=source, types=(type,))
        for recipient, type in zip(setup.recipients, types, strict=True)
    ]

    async def save() -> None:
        database = await Database.open(setup.database_url, purpose="benchmark", size=1)
        await route_registry.register(database, "benchmark", routes)
        await database.close()

    asyncio.run(save())


async def store_messages(setup: DeliverySetup, count: int, size: int) -> None:
    """Store *count* messages with *size* bytes of JSON, each for one of the endpoints, in turn; see `vacuum_queue`."""
    database = await Database.open(setup.database_url, purpose="benchmark", size=2)
    routes = await route_registry.read_routes(database)
    store = EventStore(database)
    body = make_body(size)
    for start in range(0, count, _BATCH):
        numbers = range(start, min(start + _BATCH, count))
        await store.append([_message(setup, number, body, routes.version) for number in numbers])
    await database.close()


async def vacuum_queue(setup: DeliverySetup) -> None:
    """Let PostgreSQL count the deliveries, as autovacuum does after a minute."""
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    await database.execute("vacuum analyze boathook.delivery")
    await database.close()


def make_body(size: int) -> bytes:
    """Return a JSON document of *size* bytes."""
    head = b'{"type":"invoice.paid","data":{"id":"in_1","text":"'
    return head + b"x" * (size - len(head) - 3) + b'"}}'


def _message(setup: DeliverySetup, number: int, body: bytes, version: int) -> NewEvent:
    key = f"message_{number}"
    return NewEvent(
        id=ids.make(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big")),
        source=None,
        application=setup.application,
        type=TYPE,
        dedup_key=key,
        key_hash=UUID(bytes=hashlib.sha256(key.encode()).digest()[:16]),
        replay_hash=None,
        grade=ProofStrength.NONE,
        origin=Origin.PUBLISHED,
        headers="{}",
        content_type="application/json",
        body=body,
        body_sha256=hashlib.sha256(body).digest(),
        deliveries=(NewDelivery(setup.recipients[number % len(setup.recipients)]),),
        routes_version=version,
    )


async def measure_drain(setup: DeliverySetup, count: int) -> float:
    """Wait until nothing is pending; return deliveries a second, from the first attempt's start to the last settle.

    Raises:
        AssertionError: not all of them succeeded, or it took too long.
    """
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    try:
        # A check scans past finished deliveries, so it is not repeated more often than needed.
        await _wait_until_drained(database, 10 * _POLL_INTERVAL_S)
        row = await database.fetchrow("""
            select extract(epoch from max(ended_at) - min(started_at))::float8 as seconds,
                count(*) filter (where outcome = 'succeeded') as succeeded
            from boathook.attempt
        """)
    finally:
        await database.close()
    assert row is not None
    assert row["succeeded"] == count, f"{row['succeeded']} of {count} deliveries succeeded"
    return float(count / row["seconds"])


async def wait_until_delivered(setup: DeliverySetup, count: int) -> None:
    """Wait until nothing is pending.

    Raises:
        AssertionError: fewer than *count* deliveries succeeded, or it took too long.
    """
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    try:
        await _wait_until_drained(database)
        succeeded = await database.fetchval("select count(*) from boathook.delivery_archive where state = 'succeeded'")
    finally:
        await database.close()
    assert succeeded >= count, f"{succeeded} of {count} deliveries succeeded"


async def _wait_until_drained(database: Database, poll_interval_s: float = _POLL_INTERVAL_S) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while await database.fetchval("select exists (select from boathook.delivery)"):
        assert time.monotonic() < deadline, "the deliveries of the benchmark do not end"
        await asyncio.sleep(poll_interval_s)


def make_message(setup: DeliverySetup, size: int) -> Message:
    """Return a message for all endpoints, with *size* bytes of JSON."""
    return Message(application=setup.application, type=TYPE, payload=make_body(size))


async def publish_one(setup: DeliverySetup, size: int) -> tuple[float, float]:
    """Publish one message; return the seconds until it was accepted, and until it was delivered everywhere."""
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    try:
        began = time.perf_counter()
        await operations.send(database, settings_for(setup.database_url), ACTION, make_message(setup, size))
        accepted = time.perf_counter()
        await _wait_until_drained(database)
        return accepted - began, time.perf_counter() - began
    finally:
        await database.close()


async def wait_for_sender(setup: DeliverySetup) -> None:
    """Wait until a sender is connected to the database."""
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while not await database.fetchval(
            "select exists (select from pg_stat_activity"
            " where application_name = 'boathook:sender' and datname = current_database())"
        ):
            assert time.monotonic() < deadline, "the benchmark's sender does not start"
            await asyncio.sleep(_POLL_INTERVAL_S * 10)
    finally:
        await database.close()


async def publish_steadily(setup: DeliverySetup, rate: float, seconds: float, size: int) -> None:
    """Publish *rate* messages a second, each when it is due however long the one before took."""
    database = await Database.open(setup.database_url, purpose="benchmark", size=4)
    settings, message = settings_for(setup.database_url), make_message(setup, size)
    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
                group.create_task(operations.send(database, settings, ACTION, message))
    finally:
        await database.close()


async def read_waits(setup: DeliverySetup, skip_s: float, recipients: Sequence[str]) -> list[float]:
    """Return the milliseconds from acceptance to delivery at these recipients, the first *skip_s* seconds left out.

    Raises:
        AssertionError: a delivery to one of them has not succeeded in time.
    """
    database = await Database.open(setup.database_url, purpose="benchmark", size=1)
    names = list(recipients)
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while await database.fetchval(
            "select exists (select from boathook.delivery where recipient = any ($1::text[]))", names
        ):
            assert time.monotonic() < deadline, "the deliveries of the benchmark do not end"
            await asyncio.sleep(_POLL_INTERVAL_S * 10)
        rows = await database.fetch(
            """
            select (extract(epoch from a.ended_at - e.accepted_at) * 1000)::float8 as ms
            from boathook.attempt a
            join boathook.event e on e.id = a.event_id
            where a.recipient = any ($1::text[]) and a.outcome = 'succeeded'
              and e.accepted_at >= (select min(accepted_at) from boathook.event) + $2::float8 * interval '1 second'
            """,
            names,
            skip_s,
        )
    finally:
        await database.close()
    return [row["ms"] for row in rows]
