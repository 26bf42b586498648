"""Rates shared by gateways, on a real PostgreSQL and Redis, and with faulty servers."""

import asyncio
import contextlib
import itertools
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import httpx
import pytest

from boathook.config import load
from boathook.db import rate_leases
from boathook.db.database import Database
from boathook.domain.errors import BoathookError, DatabaseUnavailable
from boathook.domain.rate_leases import LeaseRequest, LeaseTokens
from boathook.ingest.source_rate import RateLeaser, SourceRate
from boathook.observability.live_metrics import LiveMetrics
from boathook.server.gateway import IngestRuntime
from boathook.server.gateway_sources import load_sources
from boathook.service.operating.doctor.handlers import CheckStatus
from boathook_demo.redis_server import RedisServer
from boathook_redis import doctor
from boathook_redis.errors import RedisUnavailable
from boathook_redis.leases import RedisLeases
from tests.acceptance.test_start_during_outage import target_of, through
from tests.conftest import open_folder
from tests.faults.rig.proxy import Proxy
from tests.redis_server import frozen, lying_redis, running_redis
from tests.support import eventually, sampled

SLOW = 0.001
"""A rate that earns nothing while a test runs."""
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    folder = open_folder()
    with running_redis(folder) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


NAMES = itertools.count()


@pytest.fixture
def source() -> str:
    """A source that no other test uses."""
    return f"shop-{next(NAMES)}"


@pytest.fixture(params=["postgresql", "redis"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Where each of the stores is that lease tokens."""
    if request.param == "redis":
        return request.getfixturevalue("redis_server").url
    return request.getfixturevalue("pg_url")


@pytest.fixture
async def lease(store_url: str) -> AsyncIterator[LeaseTokens]:
    """Lease from each of the stores."""
    if store_url.startswith("redis"):
        leases = RedisLeases(store_url, within_s=WITHIN_S)
        yield leases.lease
        await leases.close()
    else:
        database = await Database.open(store_url, purpose="gateway", size=8)
        yield leases_of(database)
        await database.close()


def leases_of(database: Database) -> LeaseTokens:
    async def lease(requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
        return await rate_leases.lease_tokens(database, requests, within_s=WITHIN_S)

    return lease


def wish(source: str, wanted: int, *, spent: int = 0, burst: int = 10, per_second: float = SLOW) -> LeaseRequest:
    return LeaseRequest(source=source, per_second=per_second, burst=burst, spent=spent, wanted=wanted)


class TestEachStore:
    async def test_grants_a_burst_and_then_nothing(self, lease: LeaseTokens, source: str):
        granted = [(await lease([wish(source, 4)]))[source] for _ in range(4)]
        assert granted == [4, 4, 2, 0]

    async def test_spent_tokens_are_charged(self, lease: LeaseTokens, source: str):
        assert await lease([wish(source, 0, spent=7)]) == {source: 0}
        assert await lease([wish(source, 9)]) == {source: 3}
        assert await lease([wish(source, 9, spent=5)]) == {source: 0}

    async def test_debt_beyond_the_burst_is_bounded(self, lease: LeaseTokens, source: str):
        await lease([wish(source, 0, spent=2_000_000_000, per_second=1e6)])
        await eventually(lambda: grants(lease, wish(source, 1, per_second=1e6)))

    async def test_earns_with_time(self, lease: LeaseTokens, source: str):
        assert (await lease([wish(source, 10, per_second=50.0)]))[source] == 10
        began = time.monotonic()
        total = 0
        while total < 25:
            total += int(str((await lease([wish(source, 10, per_second=50.0)]))[source]))
        assert total <= 1 + 50.0 * (time.monotonic() - began)

    async def test_leases_several_sources_at_once(self, lease: LeaseTokens, source: str):
        other = f"{source}-other"
        await lease([wish(source, 8)])
        assert await lease([wish(other, 5, burst=3), wish(source, 5)]) == {source: 2, other: 3}
        assert await lease([wish(source, 5), wish(other, 5, burst=3)]) == {source: 0, other: 0}

    async def test_grants_each_token_once_to_concurrent_requests(self, lease: LeaseTokens, source: str):
        async def ask() -> int:
            return sum([int(str((await lease([wish(source, 3, burst=100)]))[source])) for _ in range(10)])

        assert sum(await asyncio.gather(*(ask() for _ in range(6)))) == 100

    async def test_serves_rates_from_a_request_a_year_to_a_million_a_second(self, lease: LeaseTokens, source: str):
        requests = [wish(f"{source}-{rate}", 1, burst=10**6, per_second=rate) for rate in (3e-8, 1e6)]
        assert list((await lease(requests)).values()) == [1, 1]


async def grants(lease: LeaseTokens, request: LeaseRequest) -> bool:
    return (await lease([request]))[request.source] == request.wanted


class TestPostgreSql:
    async def granted_to_two(self, pg_url: str, source: str) -> int:
        """Return what two gateways get of a burst of ten that both ask for while its row is locked."""
        async with contextlib.AsyncExitStack() as stack:
            database = await Database.open(pg_url, purpose="gateway", size=4)
            stack.push_async_callback(database.close)
            lease = leases_of(database)
            await lease([wish(source, 0, spent=1, burst=11)])
            async with database.transaction() as connection:
                await connection.execute("select from boathook.source_rate where source = $1 for update", source)
                asking: list[asyncio.Task[Mapping[str, object]]] = [
                    asyncio.create_task(lease([wish(source, 10, burst=11)])) for _ in range(2)
                ]
                waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
                await eventually(lambda: counts(database, waiting, 2))
            return sum(int(str(found[source])) for found in await asyncio.gather(*asking))

    async def test_two_concurrent_requests_share_the_tokens(self, pg_url: str, source: str):
        assert await self.granted_to_two(pg_url, source) == 10

    async def test_mutant_without_the_lock_both_get_all_tokens(
        self, pg_url: str, source: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(rate_leases.SQL, "lease_tokens", rate_leases.SQL["lease_tokens"].replace("for update", ""))
        assert await self.granted_to_two(pg_url, source) == 20

    async def test_no_lease_waits_for_the_disk(self, db: Database):
        kind = "select relpersistence::text from pg_class where oid = 'boathook.source_rate'::regclass"
        assert await db.fetchval(kind) == "u"

    async def test_gateways_are_counted_while_they_are_connected(self, pg_url: str):
        async with contextlib.AsyncExitStack() as stack:
            databases = []
            for number in range(3):
                database = await Database.open(pg_url, purpose="gateway" if number < 2 else "worker", size=1)
                databases.append(database)
                stack.push_async_callback(database.close)

            async def count() -> int:
                return await rate_leases.count_gateways(databases[2], within_s=WITHIN_S)

            await eventually(lambda: equals(count, 2))
            await databases[1].close()
            await eventually(lambda: equals(count, 1))


async def counts(database: Database, sql: str, number: int) -> bool:
    return await database.fetchval(sql) == number


async def equals(call: Callable[[], Awaitable[int]], number: int) -> bool:
    return await call() == number


class Gateway:
    """The rate of one source in a gateway, and its leasing task."""

    kind = SourceRate

    def __init__(self, source: str, lease: LeaseTokens, gateways: int, *, per_second: float, burst: int) -> None:
        self.rate = self.kind(source, per_second, burst, gateways=gateways)
        self.leases = self.failures = 0
        self._lease = lease
        self._gateways = gateways
        self.leaser = RateLeaser(lambda: [self.rate], self._counted, self._count, gateways=gateways)
        self.passed: list[float] = []

    async def _count(self) -> int:
        return self._gateways

    async def _counted(self, requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
        try:
            found = await self._lease(requests)
        except BoathookError:
            self.failures += 1
            raise
        self.leases += 1
        return found

    def offer(self, number: int) -> None:
        for _ in range(number):
            now = time.monotonic()
            if self.rate.wait_s("", now) == 0:
                self.passed.append(now)


@contextlib.asynccontextmanager
async def gateways(
    source: str, leases: Sequence[LeaseTokens], *, per_second: float, burst: int, kind: type[SourceRate] = SourceRate
) -> AsyncIterator[list[Gateway]]:
    """Run a gateway with each of these ways to lease."""
    made = []
    for one in leases:
        gateway = type("_Gateway", (Gateway,), {"kind": kind})(
            source, one, len(leases), per_second=per_second, burst=burst
        )
        made.append(gateway)
    tasks = [asyncio.create_task(one.leaser.run()) for one in made]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def passed(running: Sequence[Gateway]) -> int:
    return sum(len(one.passed) for one in running)


class Unshared(SourceRate):
    """Mutant: each gateway has the whole rate."""

    def set_gateways(self, gateways: int) -> None:
        super().set_gateways(1)


async def passed_of_a_burst(lease: LeaseTokens, source: str, kind: type[SourceRate] = SourceRate) -> int:
    """Return how many of many requests pass over three gateways, of a burst of 60 and a rate of next to nothing."""
    async with gateways(source, [lease] * 3, per_second=SLOW, burst=60, kind=kind) as running:

        def offered() -> bool:
            for one in running:
                one.offer(5)
            return kind is Unshared or min(one.leases for one in running) >= 8

        await eventually(offered)
        for one in running:
            one.offer(60)
        return passed(running)


async def test_gateways_share_one_burst(lease: LeaseTokens, source: str):
    assert 60 - 3 <= await passed_of_a_burst(lease, source) <= 90 + 3 * 3


async def test_mutant_each_has_its_own(lease: LeaseTokens, source: str):
    assert await passed_of_a_burst(lease, source, Unshared) == 3 * 60


async def test_gateways_hold_one_rate(lease: LeaseTokens, source: str):
    async with gateways(source, [lease] * 3, per_second=40.0, burst=10) as running:
        began = time.monotonic()

        def offered() -> bool:
            running[0].offer(3)
            running[1].offer(1)
            return passed(running) >= 150

        await eventually(offered, every=0.01)
        took_s = time.monotonic() - began
    assert passed(running) <= 1.5 * 10 + 3 * 3 + 4 + 40.0 * (took_s + 1.4)


@contextlib.asynccontextmanager
async def runtimes(
    pg_url: str, folder: Path, number: int, **overrides: object
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Run gateways as `boathook serve` does, but for their listeners; yield a client of each once they know each other."""
    prepared = asyncio.Event()
    prepared.set()
    async with contextlib.AsyncExitStack() as stack:
        clients, running = [], []
        for place in range(number):
            data_dir = folder / f"host-{place}"
            data_dir.mkdir()
            settings = load(
                overrides={
                    "database.url": pg_url,
                    "server.data_dir": str(data_dir),
                    "sources.stripe.secrets": ["whsec_" + 40 * "x"],
                    "sources.stripe.rate": SLOW,
                    "sources.stripe.burst": 60,
                    **overrides,
                }
            )
            runtime = IngestRuntime(settings, load_sources(settings), LiveMetrics(data_dir), prepared=prepared)
            await stack.enter_async_context(runtime)
            running.append(runtime)
            transport = httpx.ASGITransport(runtime.app)
            clients.append(await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://a")))
        await eventually(lambda: all(one._source_follower._rate_leaser.gateways == number for one in running))
        yield clients


async def passed_of_runtimes(pg_url: str, folder: Path, **overrides: object) -> int:
    """Return how many of many requests pass over three gateways, of a burst of 60 and a rate of next to nothing."""
    async with runtimes(pg_url, folder, 3, **overrides) as clients:
        total, rounds = 0, itertools.count()

        async def refuse_all() -> bool:
            nonlocal total
            answers = await asyncio.gather(*(one.post("/in/stripe") for one in clients for _ in range(3)))
            passed = sum(answer.status_code != 429 for answer in answers)
            total += passed
            refused = next(answer for answer in answers if answer.status_code == 429) if passed < len(answers) else None
            assert refused is None or int(refused.headers["retry-after"]) >= 1
            return next(rounds) >= 60 and passed == 0

        await eventually(refuse_all)
        return total


@pytest.mark.extended("starts several servers of its own")
async def test_gateway_processes_share_the_rate_of_a_source(pg_url: str, tmp_path: Path):
    assert 60 - 3 <= await passed_of_runtimes(pg_url, tmp_path) <= 90 + 3 * 3


@pytest.mark.extended("starts several servers of its own")
async def test_gateway_processes_share_the_rate_by_redis(pg_url: str, tmp_path: Path, redis_server: RedisServer):
    url = redis_server.url.removesuffix("0") + "5"
    assert 60 - 3 <= await passed_of_runtimes(pg_url, tmp_path, **{"shared.redis": url}) <= 90 + 3 * 3


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_mutant_gateways_that_do_not_count_each_other(
    pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    set_gateways = SourceRate.set_gateways
    monkeypatch.setattr(SourceRate, "set_gateways", lambda self, _: set_gateways(self, 1))
    assert await passed_of_runtimes(pg_url, tmp_path) == 3 * 60


async def test_leasing_continues_after_any_store_error_or_result(source: str):
    answers: list[object] = [RuntimeError("odd"), None, 7, ValueError("odd"), {}, {"another": 3}]

    async def odd(requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
        answer = answers.pop(0) if answers else {source: requests[0].wanted}
        if isinstance(answer, Exception):
            raise answer
        return cast("Mapping[str, object]", answer)

    async with gateways(source, [odd] * 2, per_second=50.0, burst=4) as running:

        def offered() -> bool:
            running[0].offer(1)
            return not answers and len(running[0].passed) > 10

        await eventually(offered)


class TestRedis:
    async def test_its_restart_is_survived(self, redis_server: RedisServer, source: str):
        leases = RedisLeases(redis_server.url, within_s=WITHIN_S)
        try:
            assert await leases.lease([wish(source, 10)]) == {source: 10}
            redis_server.kill()
            with pytest.raises(RedisUnavailable, match="Redis failed"):
                await leases.lease([wish(source, 10)])
            redis_server.start()
            assert await leases.lease([wish(source, 10)]) == {source: 10}  # it has forgotten everything
        finally:
            if redis_server.process is None:
                redis_server.start()
            await leases.close()

    async def test_gateways_use_their_share_while_redis_is_down(self, redis_server: RedisServer, source: str):
        leases = RedisLeases(redis_server.url, within_s=WITHIN_S)
        redis_server.kill()
        try:
            async with gateways(source, [leases.lease] * 2, per_second=SLOW, burst=40) as running:

                def offered() -> bool:
                    running[0].offer(5)
                    return running[0].failures >= 3

                await eventually(offered)
                assert len(running[0].passed) == 10
                redis_server.start()
                await eventually(lambda: bool(running[0].leases))
        finally:
            if redis_server.process is None:
                redis_server.start()
            await leases.close()

    async def test_a_lease_times_out_and_its_late_response_is_not_mixed_up(
        self, redis_server: RedisServer, source: str
    ):
        leases = RedisLeases(redis_server.url, within_s=0.3)
        slow = f"{source}-slow"
        await eventually(lambda: grants(leases.lease, wish(source, 1, burst=1000)))
        with frozen(redis_server):
            for _ in range(3):
                with pytest.raises(RedisUnavailable, match=r"within 0\.3 s|Redis failed"):
                    await leases.lease([wish(slow, 7, burst=1000)])
        patient = RedisLeases(redis_server.url, within_s=WITHIN_S)
        assert (await patient.lease([wish(source, 2, burst=1000)]))[source] == 2
        await leases.close()
        await patient.close()

    async def test_a_key_of_another_type_fails_and_a_bad_value_resets(self, redis_server: RedisServer, source: str):
        leases = RedisLeases(redis_server.url, within_s=WITHIN_S)
        await leases.call("set", f"boathook:rate:{source}", "nonsense")
        assert await leases.lease([wish(source, 10)]) == {source: 10}
        await leases.call("delete", f"boathook:rate:{source}")
        await leases.call("rpush", f"boathook:rate:{source}", "a")
        with pytest.raises(RedisUnavailable, match="WRONGTYPE"):
            await leases.lease([wish(source, 10)])
        await leases.close()

    async def test_redis_keys_expire(self, redis_server: RedisServer, source: str):
        leases = RedisLeases(redis_server.url, within_s=WITHIN_S)
        await leases.lease([wish(source, 10, per_second=1.0), wish(f"{source}-slow", 10)])
        assert 10 <= await leases.call("ttl", f"boathook:rate:{source}") <= 12
        assert 9_990 <= await leases.call("ttl", f"boathook:rate:{source}-slow") <= 10_002
        await leases.close()

    async def test_doctor_reports_that_redis_leases_rates(self, redis_server: RedisServer):
        [found] = [one async for one in doctor.examine(load(overrides={"shared.redis": redis_server.url}), None)]
        assert found.verdict is CheckStatus.OK
        assert "leases the rates of sources" in found.found
        assert [one async for one in doctor.examine(load(), None)] == []

    @pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://127.0.0.1:1/0?socket_timeout=soon"])
    async def test_doctor_warns_that_redis_is_down(self, url: str):
        [found] = [one async for one in doctor.examine(load(overrides={"shared.redis": url}), None)]
        assert found.verdict is CheckStatus.WARN
        assert "shared.redis" in found.fix


LIES: dict[str, Callable[[bytes], bytes | None]] = {
    "nothing": lambda _: b"*1\r\n:0\r\n",
    "a huge number": lambda _: b"*1\r\n:9223372036854775807\r\n",
    "a number beyond its own protocol": lambda _: b"*1\r\n:" + b"9" * 400 + b"\r\n",
    "a negative number": lambda _: b"*1\r\n:-9223372036854775808\r\n",
    "a text": lambda _: b"*1\r\n$4\r\n1000\r\n",
    "nil": lambda _: b"*1\r\n$-1\r\n",
    "no list": lambda _: b":1000000\r\n",
    "a longer list": lambda _: b"*3\r\n:9\r\n:9\r\n:9\r\n",
    "an empty list": lambda _: b"*0\r\n",
    "an error": lambda _: b"-ERR no\r\n",
    "two answers to each question": lambda _: b"*1\r\n:1000000\r\n" * 2,
    "no protocol at all": lambda _: b"HTTP/1.1 200 OK\r\n\r\n",
    "the beginning of an answer": lambda _: b"*1\r\n:10",
    "nothing ever": lambda _: None,
    "whatever": lambda _: b"*1\r\n:%d\r\n" % random.randint(-(10**6), 10**6),
}


async def passed_with_a_liar(lie: Callable[[bytes], bytes | None], source: str) -> int:
    """Return how many requests pass one of two gateways, of a burst of 40 and a rate of next to nothing."""
    async with contextlib.AsyncExitStack() as stack:
        leases = RedisLeases(await stack.enter_async_context(lying_redis(lie)), within_s=0.05)
        stack.push_async_callback(leases.close)
        running = await stack.enter_async_context(gateways(source, [leases.lease] * 2, per_second=SLOW, burst=40))

        def offered() -> bool:
            running[0].offer(30)
            return running[0].leases + running[0].failures >= 4

        await eventually(offered)
        return len(running[0].passed)


@pytest.mark.parametrize("lie", sampled(LIES, keep=3))
async def test_a_lying_redis_neither_closes_nor_opens_a_gateway(lie: str, source: str):
    assert 40 // 4 <= await passed_with_a_liar(LIES[lie], source) <= 40


async def test_mutant_without_the_floor_a_liar_closes_it(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.ingest.source_rate.Floor.wait_s", lambda *_: 1.0)
    assert await passed_with_a_liar(LIES["nothing"], source) == 0


async def test_mutant_without_the_ceiling_a_liar_opens_it(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.http.limits.RateLimiter.wait_s", lambda *_: 0.0)
    assert await passed_with_a_liar(LIES["a huge number"], source) > 40


async def test_a_postgresql_that_hangs_leaves_each_its_part_and_is_used_again(pg_url: str, source: str):
    with Proxy(target_of(pg_url)) as wire:
        database = await Database.open(through(pg_url, wire.port), purpose="gateway", size=2)

        async def lease(requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
            return await rate_leases.lease_tokens(database, requests, within_s=0.3)

        async with gateways(source, [lease] * 2, per_second=SLOW, burst=40) as running:
            await eventually(lambda: running[0].leases > 0)
            wire.set(is_stalled=True)
            before = running[0].failures

            def offered() -> bool:
                running[0].offer(5)
                return running[0].failures >= before + 2

            await eventually(offered)
            assert 10 <= len(running[0].passed) <= 40
            with pytest.raises(DatabaseUnavailable):
                await rate_leases.count_gateways(database, within_s=0.3)
            wire.heal()
            leases = running[0].leases

            def answered() -> bool:
                running[0].offer(1)
                return running[0].leases > leases

            await eventually(answered)
        await database.close()


async def test_an_absent_postgresql_leaves_each_its_part(source: str):
    async def away(_requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
        raise DatabaseUnavailable("away")

    async with gateways(source, [away] * 2, per_second=SLOW, burst=40) as running:

        def offered() -> bool:
            running[0].offer(5)
            return running[0].failures >= 3

        await eventually(offered)
        assert len(running[0].passed) == 10
