"""What the console's first page says while PostgreSQL is away, and how it reads what a million deliveries are owed."""

import functools
import os
import signal
from datetime import timedelta
from pathlib import Path

from boathook import config
from boathook.console.dashboard import DashboardState
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.db.migrations import migrate
from boathook.db.queries.latest import read_latest_dead_letters
from boathook.db.secret_box import open_secret_box
from boathook.handlers.outbox import Outbox
from boathook.observability.live_metrics import LiveMetrics
from boathook.pages.rendering import ConsoleState, PageRenderer
from boathook.service.unit_of_work import AppContext
from tests.conftest import FreshServer
from tests.support import eventually

DELIVERY = """
    insert into boathook.delivery (event_id, ordinal, recipient, due_at, state, dead_at, code, error)
    select boathook.min_id(now() - g * interval '1 s'), $4::smallint, 'handler:h', now() - $1::interval, $2,
        case when $2 = 'dead' then now() - g * interval '1 s' end, case when $2 = 'dead' then 'E' || g end, 'no'
    from generate_series(1, $3::int) g
"""


async def add_deliveries(db: Database, age: str, number: int, state: str = "pending") -> None:
    seconds = {"s": 1, "m": 60, "h": 3600}[age[-1]] * int(age[:-1])
    await db.execute(DELIVERY, timedelta(seconds=seconds), state, number, seconds)


async def test_what_is_due_is_counted_by_its_age(db: Database) -> None:
    for age, number in (("1s", 1), ("30s", 2), ("5m", 3), ("30m", 4), ("3h", 5)):
        await add_deliveries(db, age, number)
    (one,) = await DeliveryStore(db).backlog()
    assert list(one.ages) == [1, 2, 3, 4, 5]
    assert one.due == sum(one.ages)


async def test_the_latest_dead_letters_are_found_by_index(db: Database) -> None:
    await add_deliveries(db, "1h", 3_000, "dead")
    await db.execute("analyze boathook.delivery")
    assert [one.code for one in await read_latest_dead_letters(db, 3)] == ["E1", "E2", "E3"]
    plan = await db.fetch("explain select * from boathook.delivery where state = 'dead' order by dead_at desc limit 3")
    assert "delivery_dead_at" in str(plan)


async def test_while_postgresql_is_away_the_page_says_so_and_keeps_what_it_knew(
    fresh_server: FreshServer, tmp_path: Path
) -> None:
    server = await fresh_server()
    await migrate(server.url)
    database = await Database.open(server.url, purpose="test", size=2)
    settings = config.load(None, {"database.url": server.url, "server.data_dir": str(tmp_path)})
    context = AppContext(settings, database, open_secret_box(settings), Outbox(memory_days=1))
    board = DashboardState(PageRenderer(ConsoleState(context, LiveMetrics(tmp_path, "gateway-0"))))
    await add_deliveries(database, "1h", 1, "dead")
    before = await board._render()
    assert "PostgreSQL is unavailable" not in before
    assert "handler:h" in before

    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    await eventually(lambda: server.pid() is None)
    away = await board._render()
    assert "PostgreSQL is unavailable" in away
    assert "handler:h" in away

    await server.ensure_running()
    await eventually(functools.partial(is_back, board))
    await database.close()


async def is_back(board: DashboardState) -> bool:
    return "PostgreSQL is unavailable" not in await board._render()
