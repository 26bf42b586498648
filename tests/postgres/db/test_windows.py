"""Time windows over lists: adjacent ones share and miss no row, and cursors return every row."""

import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest

from boathook.api import time_ranges
from boathook.db import applications, audit, delivery_commands, resends, tasks
from boathook.db import messages as message_database
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.db.messages import MessageFilter
from boathook.db.queries import event_search, listings
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.windows import range_of
from boathook.service.sending import attempts as counting
from boathook.service.unit_of_work import UnitOfWork
from tests.postgres.api_client import ApiClient, open_api_client
from tests.postgres.message_factory import MessageFactory, ago, id_at, recipient
from tests.support import sampled

ROWS = 60
START = ago(hours=1).replace(microsecond=0)
SPAN_MS = 40
"""So short that many rows share a millisecond."""
ACTION = AuditContext(actor="test", note="windows")


class Ground:
    """Rows of every kind at the same random moments."""

    def __init__(self, api: ApiClient, factory: MessageFactory) -> None:
        self.api = api
        self.db = factory.db
        self.factory = factory
        self.endpoint_id = UUID(int=0)

    async def fill(self) -> None:
        """Store the rows: messages dead at one endpoint with an attempt each, rejections, conflicts and audit entries."""
        self.endpoint_id = await self.factory.endpoint(uid="main")
        dice = random.Random(7)
        for _ in range(ROWS):
            moment = START + timedelta(milliseconds=dice.randrange(SPAN_MS))
            message_id = await self.factory.message(moment, recipients=(self.endpoint_id,))
            await self.factory.attempt(message_id, moment=moment, outcome="dead")
            await self._others(message_id, moment)

    async def _others(self, message_id: UUID, moment: datetime) -> None:
        await self.db.execute(
            "insert into boathook.rejection (id, source, status, reason, detail, client_address, method, url, headers,"
            " content_type, body, body_size) values ($1, 's', 401, 'r', '', '', 'POST', '/', '{}', '', '', 0)",
            id_at(moment),
        )
        await self.db.execute(
            "insert into boathook.conflict (id, event_id, dedup_key, type, grade, differs, headers, content_type, body,"
            " body_sha256) values ($1, $2, 'k', 't', 'none', 'body', '{}', '', '', '')",
            id_at(moment), message_id,
        )  # fmt: skip
        await self.db.execute(
            "insert into boathook.audit (at, actor, action, subject) values ($1, 'windows', 'a', 's')", moment
        )

    async def number(self, path: str, since: datetime, until: datetime) -> int:
        """Return how many rows a list of the API has in a window."""
        query = urlencode({"after": since.isoformat(), "before": until.isoformat(), "limit": 250})
        return len((await self.api.ask(200, "GET", f"{path}?{query}"))["data"])

    async def in_work(self, act: Callable[[UnitOfWork, Any], Awaitable[int]]) -> int:
        """Run an action in a transaction that is rolled back."""
        app_context = self.api.context
        async with self.db.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                application = await applications.find(connection, "default", "acme")
                return await act(UnitOfWork(app_context, connection, "default", "test"), application)
            finally:
                await transaction.rollback()


async def api_messages(ground: Ground, since: datetime, until: datetime) -> int:
    return await ground.number("/app/acme/msg", since, until)


async def api_attempts(ground: Ground, since: datetime, until: datetime) -> int:
    return await ground.number("/app/acme/attempt/endpoint/main", since, until)


async def api_messages_of_endpoint(ground: Ground, since: datetime, until: datetime) -> int:
    return await ground.number("/app/acme/endpoint/main/msg", since, until)


async def api_stats(ground: Ground, since: datetime, until: datetime) -> int:
    query = urlencode({"since": since.isoformat(), "until": until.isoformat()})
    return (await ground.api.ask(200, "GET", f"/app/acme/endpoint/main/stats?{query}"))["fail"]


async def recover(ground: Ground, since: datetime, until: datetime) -> int:
    async def act(work: UnitOfWork, _application: Any) -> int:
        span = range_of(since, until)
        step = await resends.recover(
            work.connection, recipient(ground.endpoint_id), span, START + timedelta(days=1), ACTION
        )
        return step.number

    return await ground.in_work(act)


async def bulk_replay(ground: Ground, since: datetime, until: datetime) -> int:
    async def act(work: UnitOfWork, application: Any) -> int:
        choice = resends.ResendFilter(wanted=MessageFilter())
        step = await resends.resend_matching(
            work.connection, application.shown_id, recipient(ground.endpoint_id), range_of(since, until), choice,
            START + timedelta(days=1), ACTION,
        )  # fmt: skip
        return step.number

    return await ground.in_work(act)


async def usage(ground: Ground, since: datetime, until: datetime) -> int:
    async def act(work: UnitOfWork, _application: Any) -> int:
        rows = await tasks.page_usage(work.connection, "default", UUID(int=0), range_of(since, until), None, limit=10)
        return sum(row.destinations for row in rows)

    return await ground.in_work(act)


async def purge(ground: Ground, since: datetime, until: datetime) -> int:
    async def act(work: UnitOfWork, application: Any) -> int:
        span = range_of(since, until)
        return len(await message_database.page_ids(work.connection, application.shown_id, span, limit=250))

    return await ground.in_work(act)


async def statistics(ground: Ground, since: datetime, until: datetime) -> int:
    async def act(work: UnitOfWork, application: Any) -> int:
        return (await counting.count(work, application, "main", since, until)).fail

    return await ground.in_work(act)


async def replayed_events(ground: Ground, since: datetime, until: datetime) -> int:
    return await event_search.count_events(ground.db, event_search.EventFilter(since=since, until=until))


async def replayed_dead_letters(ground: Ground, since: datetime, until: datetime) -> int:
    groups = await delivery_commands.count_dead(ground.db, Selection(ListFilter(since=since, until=until)))
    return sum(group.number for group in groups)


def listed(read: Callable[..., Awaitable[list[Any]]]) -> Callable[..., Awaitable[int]]:
    async def number(ground: Ground, since: datetime, until: datetime) -> int:
        return len(await read(ground.db, ListFilter(since=since, until=until, limit=250)))

    return number


async def audited(ground: Ground, since: datetime, until: datetime) -> int:
    wanted = audit.AuditFilter(actor="windows", since=since, until=until)
    return len((await audit.search(ground.db, wanted, before=None, limit=250)).rows)


async def searched(ground: Ground, since: datetime, until: datetime) -> int:
    look = await event_search.search(
        ground.db, event_search.EventFilter(since=since, until=until), limit=250, budget_s=60
    )
    return len(look.events)


READERS = {
    "the API's messages": api_messages,
    "the API's attempts": api_attempts,
    "the API's messages of an endpoint": api_messages_of_endpoint,
    "the API's stats": api_stats,
    "stats": statistics,
    "recover": recover,
    "bulk-replay": bulk_replay,
    "usage": usage,
    "purge": purge,
    "events replay": replayed_events,
    "dead replay": replayed_dead_letters,
    "deliveries": listed(listings.list_deliveries),
    "dead letters": listed(listings.list_dead_letters),
    "rejections": listed(listings.list_rejections),
    "conflicts": listed(listings.list_conflicts),
    "audit": audited,
    "search": searched,
}


@pytest.fixture
async def ground(db) -> Any:
    async with open_api_client(db) as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        async with api.context.database.acquire() as connection:
            application = await applications.find(connection, "default", "acme")
        assert application is not None
        factory = MessageFactory(api.context.database)
        factory.application_id = application.id
        yield Ground(api, factory)


def cuts(dice: random.Random) -> list[datetime]:
    """Return ends of windows over all rows, some on a millisecond that has rows and some within one."""
    inner = [START + timedelta(microseconds=dice.choice([1000, 1, 500]) * dice.randrange(SPAN_MS)) for _ in range(6)]
    return [START, *sorted(inner), START + timedelta(milliseconds=SPAN_MS)]


async def test_windows_that_meet_hold_every_row_once(ground: Ground):
    await ground.fill()
    dice = random.Random(3)
    for name, read in READERS.items():
        for _ in range(3):
            ends = cuts(dice)
            numbers = [await read(ground, since, until) for since, until in pairwise(ends)]
            assert sum(numbers) == ROWS, (name, numbers)
            assert await read(ground, ends[0], ends[-1]) == ROWS, name


async def walk(api: ApiClient, path: str, iterator: str = "", **query: Any) -> tuple[list[str], str]:
    """Read a list by its iterator until it is done, as clients do; return its ids and the last iterator."""
    seen: list[str] = []
    while True:
        asked = query | ({"iterator": iterator} if iterator else {})
        page = await api.ask(200, "GET", f"{path}?{urlencode(asked)}")
        seen += [row["id"] for row in page["data"]]
        iterator = page["iterator"]
        if page["done"]:
            return seen, iterator


@pytest.mark.parametrize(
    "path", sampled(["/app/acme/msg", "/app/acme/attempt/endpoint/main", "/app/acme/endpoint/main/msg"], keep=1)
)
@pytest.mark.parametrize("limit", sampled([7, 1, 250], keep=1))
async def test_a_list_after_a_time_is_paged_to_its_end(ground: Ground, path: str, limit: int):
    await ground.fill()
    seen, _ = await walk(ground.api, path, after=START.isoformat(), limit=limit)
    assert len(set(seen)) == len(seen) == ROWS
    before, _ = await walk(ground.api, path, after=START.isoformat(), before=ago(minutes=1).isoformat(), limit=limit)
    assert sorted(before) == sorted(seen)


async def read_with_a_late_row(ground: Ground) -> tuple[set[str], set[str]]:
    """Read messages as they come, one of them committed long after its id was made; return the stored and the seen."""
    stored, seen = set(), set()
    iterator, query = "", {"after": ago(minutes=30).isoformat()}
    for seconds in (600, 45, 20, 50, 5):
        stored.add(ids.show(ids.MESSAGE, await ground.factory.message(ago(seconds=seconds))))
        found, iterator = await walk(ground.api, "/app/acme/msg", iterator, **query)
        seen.update(found)
        query = {}
    return stored, seen


async def test_a_kept_iterator_returns_late_commits(ground: Ground):
    stored, seen = await read_with_a_late_row(ground)
    assert seen == stored


async def test_resuming_after_the_newest_row_misses_late_commits(ground: Ground, monkeypatch: pytest.MonkeyPatch):
    """The mutant: ids are not committed in order, so the newest id is no safe cursor."""
    monkeypatch.setattr(time_ranges, "resume_at", lambda last, _now: last)
    stored, seen = await read_with_a_late_row(ground)
    assert len(stored - seen) == 1


async def test_a_resumed_reader_gets_nothing_before_after(ground: Ground):
    await ground.factory.message(ago(seconds=90))
    after, iterator = ago(seconds=60).isoformat(), ""
    for _ in range(3):
        seen, iterator = await walk(ground.api, "/app/acme/msg", iterator, after=after)
        assert seen == []


async def test_an_old_iterator_resumes_at_its_position(ground: Ground):
    old = await ground.factory.message(ago(days=200))
    seen, iterator = await walk(ground.api, "/app/acme/msg", after=ago(days=300).isoformat())
    assert seen == [ids.show(ids.MESSAGE, old)]
    young = await ground.factory.message(ago(minutes=3))
    assert (await walk(ground.api, "/app/acme/msg", iterator))[0] == [ids.show(ids.MESSAGE, young)]
