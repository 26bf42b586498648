"""The routes and their version."""

import asyncpg
import pytest
from msgspec.structs import replace

from boathook.db.database import Database
from boathook.db.route_registry import read_router, read_routes, register
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.model import Route
from boathook.domain.policy import RetryPolicy

ONE = Route(
    recipient="handler:one",
    app="shop",
    source="stripe",
    types=("payment.*", "refund.created"),
    filter={"body.amount": {"gt": 5}},
    order_by="data.customer",
    policy=RetryPolicy(delays_s=(1.0, 2.5)),
    timeout_s=7.5,
)
TWO = Route(recipient="handler:two", app="shop", application="acme")


async def test_routes_round_trip(db: Database) -> None:
    await register(db, "shop", [ONE, TWO])
    routes = await read_routes(db)
    assert routes.routes == (ONE, TWO)


async def test_registering_the_same_again_does_not_raise_the_version(db: Database) -> None:
    await register(db, "shop", [ONE, TWO])
    before = await read_routes(db)
    await register(db, "shop", [ONE, TWO])
    assert await read_routes(db) == before


async def test_any_change_raises_the_version(db: Database) -> None:
    await register(db, "shop", [ONE, TWO])
    before = await read_routes(db)
    await register(db, "shop", [replace(ONE, timeout_s=8.0), TWO])
    after = await read_routes(db)
    assert after.version > before.version
    assert after.routes[0].timeout_s == 8.0


async def test_an_app_retires_its_own_routes_only(db: Database) -> None:
    other = replace(TWO, recipient="handler:other", app="billing")
    await register(db, "shop", [ONE, TWO])
    await register(db, "billing", [other])
    await register(db, "shop", [TWO])
    assert (await read_routes(db)).routes == (other, TWO)
    await register(db, "shop", [ONE, TWO])
    assert (await read_routes(db)).routes == (ONE, other, TWO)


async def test_several_lines_of_one_recipient_shrink_and_grow(db: Database) -> None:
    second = replace(ONE, source="github")
    await register(db, "shop", [ONE, second])
    assert (await read_routes(db)).routes == (ONE, second)
    await register(db, "shop", [second])
    assert (await read_routes(db)).routes == (second,)


async def test_a_recipient_takeover_is_audited(db: Database) -> None:
    await register(db, "shop", [ONE])
    await register(db, "store", [replace(ONE, app="store")])
    assert [route.app for route in (await read_routes(db)).routes] == ["store"]
    assert await db.fetchval("select subject from boathook.audit where action = 'route.taken_over'") == "handler:one"


async def test_a_failure_to_read_routes_is_a_database_error(db: Database) -> None:
    assert (await read_router(db)).version == (await read_routes(db)).version
    await db.execute("alter table boathook.route rename to elsewhere")
    with pytest.raises(DatabaseError):
        await read_router(db)


async def test_reading_routes_times_out(db: Database, pg_url: str) -> None:
    other = await asyncpg.connect(pg_url)
    try:
        async with other.transaction():
            await other.execute("lock table boathook.route in access exclusive mode")
            with pytest.raises(DatabaseUnavailable):
                await read_router(db, within_s=0.2)
    finally:
        await other.close()
