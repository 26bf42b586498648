"""The services that boathook gives apps, on a real PostgreSQL."""

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from boathook import Boathook
from boathook.config import Settings, load
from boathook.db.database import Database
from boathook.db.due_notifier import DUE_CHANNEL
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.errors import (
    ConfigError,
    DatabaseError,
    DatabaseUnavailable,
    HandlerMisuse,
    InvalidMessage,
    InvalidValue,
    NotFound,
)
from boathook.domain.model import Accepted
from boathook.observability import meters
from boathook.observability.live_metrics import LiveMetrics, SnapshotFile
from boathook.service.app_platform import AppPlatform, open_platform
from tests.endpoint_factory import add_application, add_endpoint
from tests.postgres.db.test_integrity import Store
from tests.postgres.message_factory import MessageFactory, ago
from tests.support import eventually


def settings_for(url: str, folder: Path) -> Settings:
    return load(None, {"database.url": url, "server.data_dir": str(folder)})


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    meters.reset()
    yield
    meters.reset()


@pytest.fixture
async def platform(pg_url: str, tmp_path: Path) -> AsyncIterator[AppPlatform]:
    opened = open_platform(settings_for(pg_url, tmp_path)).for_app("shop")
    yield opened
    await opened.stop()


@pytest.fixture
def hook(platform: AppPlatform) -> Boathook:
    shop = Boathook("shop")
    shop.bind(None, platform)
    return shop


@pytest.fixture
async def notes(db: Database) -> Database:
    await db.execute("create table note (text text primary key)")
    return db


async def read(notes: Database) -> list[str]:
    return [row["text"] for row in await notes.fetch("select text from note order by text")]


class TestTransaction:
    async def test_commits_at_the_end_of_the_block(self, hook: Boathook, notes: Database):
        async with hook.transaction() as tx:
            await tx.execute("insert into note values ($1)", "one")
            assert await read(notes) == []
        assert await read(notes) == ["one"]

    async def test_rolls_back_on_an_error_which_passes_unchanged(self, hook: Boathook, notes: Database):
        async def fail(error: BaseException) -> None:
            async with hook.transaction() as tx:
                await tx.execute("insert into note values ($1)", "one")
                raise error

        for error in (FileNotFoundError(), TimeoutError(), asyncio.CancelledError()):
            with pytest.raises(type(error)):
                await fail(error)
        assert await read(notes) == []

    async def test_a_failed_statement_becomes_a_database_error(self, hook: Boathook, notes: Database):
        async def fail() -> None:
            async with hook.transaction() as tx:
                await tx.execute("insert into note values ($1)", "one")
                await tx.fetch("select from nowhere")

        with pytest.raises(DatabaseError, match='relation "nowhere" does not exist'):
            await fail()
        assert await read(notes) == []

    async def test_raises_if_a_failed_statement_was_swallowed(self, hook: Boathook, notes: Database):
        async def be_careless() -> None:
            async with hook.transaction() as tx:
                await tx.execute("insert into note values ($1)", "one")
                with contextlib.suppress(Exception):
                    await tx.fetch("select from nowhere")

        with pytest.raises(DatabaseError, match="nothing of it was committed"):
            await be_careless()
        assert await read(notes) == []

    async def test_mutant_a_plain_transaction_block_does_not_raise(self, notes: Database):
        async with notes.transaction() as connection:
            await connection.execute("insert into note values ('one')")
            with contextlib.suppress(Exception):
                await connection.fetch("select from nowhere")
        assert await read(notes) == []

    async def test_rolls_back_a_savepoint_and_continues(self, hook: Boathook, notes: Database):
        async with hook.transaction() as tx:
            await tx.execute("insert into note values ($1)", "one")
            with contextlib.suppress(KeyError):
                async with tx.savepoint():
                    await tx.execute("insert into note values ($1)", "two")
                    raise KeyError
        assert await read(notes) == ["one"]

    async def test_has_no_newer_and_explains_why(self, hook: Boathook):
        async with hook.transaction() as tx:
            with pytest.raises(HandlerMisuse, match="has no handler"):
                await tx.newer("car", "1", 1)

    async def test_has_ended_with_its_block(self, hook: Boathook):
        async with hook.transaction() as tx:
            pass
        with pytest.raises(HandlerMisuse, match="has ended"):
            await tx.fetch("select 1")

    async def test_many_concurrent_transactions_share_one_pool(self, hook: Boathook, notes: Database):
        async def write(number: int) -> None:
            async with hook.transaction() as tx:
                await tx.execute("insert into note values ($1)", f"{number:02}")
                await hook.operations.deliveries(limit=1)

        await asyncio.gather(*(write(number) for number in range(30)))
        assert len(await read(notes)) == 30
        backends = await notes.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and application_name like $1",
            "boathook:apps%",
        )
        assert 2 <= backends <= 9

    async def test_a_published_message_is_announced_after_the_commit(self, hook: Boathook, db: Database):
        shop = await add_application(db, "shop")
        recipient = await add_endpoint(db, shop)
        heard, deliver_at = list[str](), datetime(2036, 1, 1, tzinfo=UTC)
        await db.listen(DUE_CHANNEL, heard.append)
        listening = (
            "select count(*) from pg_stat_activity"
            " where application_name = 'boathook:test:monitor' and datname = current_database()"
        )
        await eventually(lambda: db.fetchval(listening))
        async with hook.transaction() as tx:
            receipt = await hook.publish(
                tx, application="shop", type="order.paid", payload={"order": 1}, deliver_at=deliver_at
            )
            assert isinstance(receipt, Accepted)
            assert await db.fetchval("select count(*) from boathook.event") == 0
        assert await db.fetchval("select type from boathook.event where id = $1", receipt.event_id) == "order.paid"
        await eventually(lambda: heard == [f"{recipient}\t{deliver_at.timestamp():.2f}"])

    async def test_a_published_message_is_rolled_back_with_it(self, hook: Boathook, db: Database):
        await add_application(db, "shop")
        with contextlib.suppress(KeyError):
            async with hook.transaction() as tx:
                await hook.publish(tx, application="shop", type="order.paid", payload={})
                raise KeyError
        assert await db.fetchval("select count(*) from boathook.event") == 0

    async def test_recovers_if_postgresql_was_down_at_the_first_use(self, pg_url: str, tmp_path: Path):
        tries: list[int] = []

        @contextlib.asynccontextmanager
        async def server_url() -> AsyncIterator[str]:
            tries.append(1)
            if len(tries) == 1:
                raise DatabaseUnavailable("it is not up yet")
            yield pg_url

        platform = open_platform(settings_for("", tmp_path), server_url=server_url)
        with pytest.raises(DatabaseUnavailable):
            async with platform.transaction():
                pass
        async with platform.transaction() as tx:
            assert await tx.fetchval("select 1") == 1
        await platform.stop()


class TestRun:
    def test_runs_a_command_with_the_database_and_closes_it(self, pg_url: str, tmp_path: Path):
        platform = open_platform(settings_for(pg_url, tmp_path))

        async def work() -> Any:
            async with platform.transaction() as tx:
                return await tx.fetchval("select 40 + 2")

        assert platform.run(work()) == 42
        assert platform.run(work()) == 42

    def test_names_the_migrations_that_lack(self, empty_url: str, tmp_path: Path):
        platform = open_platform(settings_for(empty_url, tmp_path))
        with pytest.raises(ConfigError, match=r"database migrations are missing: .*run `boathook migrate`"):
            platform.run(platform.operations.deliveries())

    def test_a_missing_database_url_is_reported(self, tmp_path: Path):
        platform = open_platform(settings_for("", tmp_path))
        with pytest.raises(ConfigError, match=r"database\.url"):
            platform.run(platform.operations.deliveries())


class TestResolve:
    async def test_reads_a_variable_and_names_the_key_if_missing(self, hook: Boathook, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("SHOP_SECRET", "hush")
        assert hook.resolve("env:SHOP_SECRET", "secret") == "hush"
        with pytest.raises(ConfigError, match=r"shop\.secret"):
            hook.resolve("env:SHOP_NOTHING", "secret")


class TestBroadcast:
    async def test_is_received_on_commit_and_not_on_rollback(self, hook: Boathook):
        hearing = hook.subscribe("shop.orders")
        other = hook.subscribe("shop.cars")
        first = asyncio.ensure_future(anext(hearing))

        async def tell() -> bool:
            with contextlib.suppress(KeyError):
                async with hook.transaction() as tx:
                    await hook.publish_live(tx, "shop.orders", {"order": 0})
                    raise KeyError
            async with hook.transaction() as tx:
                await hook.publish_live(tx, "shop.orders", {"order": 1})
            await asyncio.sleep(0.05)
            return first.done()

        await eventually(tell)
        assert first.result() == {"order": 1}
        del other
        gc.collect()

    async def test_a_message_that_is_too_large_is_refused(self, hook: Boathook):
        async with hook.transaction() as tx:
            with pytest.raises(InvalidMessage, match="send an id"):
                await hook.publish_live(tx, "shop.orders", "x" * 9_000)


class TestVitals:
    async def test_show_what_all_processes_have_counted_and_no_problem(self, hook: Boathook, tmp_path: Path):
        meters.count("boathook_requests_total", 3, source="shop", status="200")
        SnapshotFile(tmp_path, "gateway-0").write()
        meters.reset()
        found = await hook.platform.health()
        (series,) = found["metrics"]["boathook_requests_total"]["series"]
        assert (series["labels"], series["value"]) == ({"source": "shop", "status": "200"}, 3)
        assert found["problems"] == []

    async def test_report_that_postgresql_is_down(self, tmp_path: Path):
        platform = open_platform(settings_for("postgresql://127.0.0.1:1/nowhere", tmp_path))
        (problem,) = (await platform.health())["problems"]
        assert "PostgreSQL does not answer" in problem

    async def test_report_missing_migrations(self, empty_url: str, tmp_path: Path):
        platform = open_platform(settings_for(empty_url, tmp_path))
        (problem,) = (await platform.health())["problems"]
        assert "run boathook migrate" in problem
        await platform.stop()

    async def test_have_the_rates_of_a_process_that_samples(self, pg_url: str, tmp_path: Path):
        live_metrics = LiveMetrics(tmp_path, "gateway-0")
        sampling = asyncio.create_task(live_metrics.run())
        await asyncio.sleep(0)
        meters.count("boathook_requests_total", 3, source="sampled", status="200")
        platform = open_platform(settings_for(pg_url, tmp_path), live_metrics=live_metrics)
        (series,) = (await platform.health())["metrics"]["boathook_requests_total"]["series"]
        assert series["per_second"] > 0
        sampling.cancel()
        await platform.stop()


class TestDeliveryOperations:
    async def test_lists_and_filters_deliveries(self, hook: Boathook, db: Database):
        store = Store(db)
        first, second = await store.accept("one", "handler:a"), await store.accept("two", "handler:b")
        await store.fail(second, is_last=True)
        rows = await hook.operations.deliveries()
        assert [row.event_id for row in rows] == [ids.show(ids.EVENT, second), ids.show(ids.EVENT, first)]
        (dead,) = await hook.operations.deliveries(state="dead")
        assert (dead.recipient, dead.code) == ("handler:b", "BROKEN")
        (older,) = await hook.operations.deliveries(after=rows[0].id, limit=1)
        assert older == rows[1]
        assert [row.recipient for row in await hook.operations.deliveries(recipient="handler:a")] == ["handler:a"]

    async def test_refuses_invalid_ids(self, hook: Boathook):
        with pytest.raises(InvalidValue, match="dlv_"):
            await hook.operations.deliveries(after="yesterday")
        with pytest.raises(InvalidValue, match="dlv_"):
            await hook.operations.replay(["yesterday"])

    async def test_shows_one_with_its_attempts_and_its_event(self, hook: Boathook, db: Database):
        store = Store(db)
        event = await store.accept("one", "handler:a", body=b'{"n":  1}')
        await store.fail(event)
        (row,) = await hook.operations.deliveries()
        found = await hook.operations.delivery(row.id)
        assert found["delivery"] == row
        assert [(attempt.number, attempt.code) for attempt in found["attempts"]] == [(1, "BROKEN")]
        assert (found["event"].type, found["headers"], found["body"]) == ("payment.paid", {}, b'{"n":  1}')
        with pytest.raises(NotFound):
            await hook.operations.delivery(ids.show_delivery(event, 7))

    async def test_replays_the_dead_among_those_named_in_the_apps_name(self, hook: Boathook, db: Database):
        store = Store(db)
        dead, alive = await store.accept("one", "a"), await store.accept("two", "a")
        await store.fail(dead, is_last=True)
        names = [ids.show_delivery(one, 0) for one in (dead, alive, dead)]
        assert await hook.operations.replay(names, note="try again") == [names[0]]
        assert await hook.operations.replay(names) == []
        (row,) = await listings.list_audit(db, ListFilter())
        assert (row.actor, row.action, row.subject, row.note) == ("app:shop", "dead.replay", names[0], "try again")
        assert (await store.verify()).violations == ()

    async def test_ignores_the_dead_with_a_note(self, hook: Boathook, db: Database):
        store = Store(db)
        dead = await store.accept("one", "a")
        await store.fail(dead, is_last=True)
        name = ids.show_delivery(dead, 0)
        with pytest.raises(InvalidValue, match="note"):
            await hook.operations.ignore([name], note=" ")
        assert await hook.operations.ignore([name], note="wrong branch") == [name]
        (row,) = await hook.operations.deliveries()
        assert (row.state, row.note) == ("ignored", "wrong branch")


class TestEndpointOperations:
    async def test_makes_an_application_once_also_when_two_do_so_at_once(self, hook: Boathook):
        async def make() -> str:
            async with hook.transaction() as tx:
                return await hook.operations.put_application(tx, "cabinet-1", name="Shop")

        made = await asyncio.gather(*(make() for _ in range(5)))
        assert len(set(made)) == 1
        assert made[0].startswith("app_")

    async def test_puts_lists_and_deletes_endpoints(self, hook: Boathook, db: Database):
        async with hook.transaction() as tx:
            await hook.operations.put_application(tx, "cabinet-1", name="Shop")
            made = await hook.operations.put_endpoint(
                tx, "cabinet-1", "hook-1", url="https://example.com/a", event_types=["products.*"], retry=[5, 60]
            )
            await hook.operations.put_endpoint(tx, "cabinet-1", "hook-2", url="https://example.com/b")
        async with hook.transaction() as tx:
            changed = await hook.operations.put_endpoint(
                tx, "cabinet-1", "hook-1", url="https://example.com/c", event_types=["receipts.*"], is_disabled=True
            )
            assert (changed.id, changed.url, changed.is_disabled) == (made.id, "https://example.com/c", True)
            assert [one.uid for one in await hook.operations.endpoints(tx, "cabinet-1")] == ["hook-1", "hook-2"]
            assert await hook.operations.delete_endpoint(tx, "cabinet-1", "hook-2")
            assert not await hook.operations.delete_endpoint(tx, "cabinet-1", "hook-2")
            assert not await hook.operations.delete_endpoint(tx, "nobody", "hook-2")
            assert [one.uid for one in await hook.operations.endpoints(tx, "cabinet-1")] == ["hook-1"]
            assert await hook.operations.endpoints(tx, "nobody") == []
        actors = {row.actor for row in await listings.list_audit(db, ListFilter(limit=100))}
        assert actors == {"app:shop"}

    async def test_undoes_an_endpoint_with_the_apps_own_transaction(self, hook: Boathook, notes: Database):
        with contextlib.suppress(KeyError):
            async with hook.transaction() as tx:
                await tx.execute("insert into note values ('one')")
                await hook.operations.put_application(tx, "cabinet-1", name="Shop")
                await hook.operations.put_endpoint(tx, "cabinet-1", "hook-1", url="https://example.com/")
                raise KeyError
        assert await read(notes) == []
        assert await notes.fetchval("select count(*) from boathook.endpoint") == 0

    async def test_refuses_invalid_endpoints_and_applications(self, hook: Boathook):
        async with hook.transaction() as tx:
            with pytest.raises(NotFound):
                await hook.operations.put_endpoint(tx, "nobody", "hook-1", url="https://example.com/")
            await hook.operations.put_application(tx, "cabinet-1", name="Shop")
            with pytest.raises(InvalidValue, match="the address must start"):
                await hook.operations.put_endpoint(tx, "cabinet-1", "hook-1", url="ftp://example.com/")

    async def test_delivers_published_messages_and_shows_the_secret(self, hook: Boathook, db: Database):
        async with hook.transaction() as tx:
            await hook.operations.put_application(tx, "cabinet-1", name="Shop")
            endpoint = await hook.operations.put_endpoint(tx, "cabinet-1", "hook-1", url="https://example.com/")
            await hook.publish(tx, application="cabinet-1", type="products.create", payload={"id": 1})
            assert (await hook.operations.endpoint_secret(tx, "cabinet-1", "hook-1")).startswith("whsec_")
            assert await hook.operations.attempts(tx, "cabinet-1", "hook-1") == []
        (row,) = await hook.operations.deliveries(type="products.*")
        assert row.recipient == f"endpoint:{endpoint.id}"

    async def test_shows_the_latest_requests_to_an_endpoint(self, hook: Boathook, db: Database):
        factory = await MessageFactory(db).open("cabinet-1")
        place = await factory.endpoint(uid="hook-1")
        message = await factory.message(ago(minutes=5), recipients=(place,))
        await factory.attempt(message, moment=ago(minutes=4), status=503)
        await factory.attempt(message, moment=ago(minutes=3), status=200, outcome="succeeded")
        async with hook.transaction() as tx:
            rows = await hook.operations.attempts(tx, "cabinet-1", "hook-1")
            assert [(row.status, row.is_success) for row in rows] == [(200, True), (503, False)]
            assert len(await hook.operations.attempts(tx, "cabinet-1", "hook-1", limit=1)) == 1

    async def test_declares_event_types_where_they_are_not_known(self, hook: Boathook, db: Database):
        async with hook.transaction() as tx:
            await hook.operations.declare_types(
                tx, {"products.create": "A product came.", "receipts.create": "A receipt."}
            )
            await hook.operations.declare_types(tx, {"products.create": "Other words."})
        rows = await db.fetch("select name, description from boathook.event_type order by name")
        assert [tuple(row) for row in rows] == [
            ("products.create", "A product came."),
            ("receipts.create", "A receipt."),
        ]

    async def test_declares_event_types_with_valid_schemas(self, hook: Boathook, db: Database):
        schema = {"type": "object", "examples": [{"id": 1}]}
        async with hook.transaction() as tx:
            await hook.operations.declare_types(tx, {"a.b": "A.", "c": "C."}, {"a.b": schema})
        rows = await db.fetch("select name, schemas from boathook.event_type order by name")
        assert [(row["name"], row["schemas"] and json.loads(row["schemas"])) for row in rows] == [
            ("a.b", {"1": schema}),
            ("c", None),
        ]
        with pytest.raises(InvalidValue):
            async with hook.transaction() as tx:
                await hook.operations.declare_types(tx, {"d": "D."}, {"d": {"type": "nothing"}})


def test_operations_without_their_package_are_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("boathook.config.packages.PARTS", {"operations": "no_such_package.operations:AppOperations"})
    shop = Boathook("shop")
    shop.bind(None, open_platform(settings_for("postgresql://127.0.0.1:1/none", tmp_path)).for_app("shop"))
    with pytest.raises(ConfigError, match=r"^hook\.operations: this installation is without"):
        _ = shop.operations
