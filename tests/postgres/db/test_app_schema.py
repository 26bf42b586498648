"""Apps' own migrations: in order, once, each wholly or not at all, and never edited."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from boathook.db import migrations
from boathook.db.database import Database
from boathook.db.migrations import list_pending, migrate
from boathook.domain.errors import ConfigError, DatabaseError

FIRST = "create schema shelf; create table shelf.book (id text primary key);"
SECOND = "alter table shelf.book add column title text not null default ''; insert into shelf.book values ('a', 'A');"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0001_first.sql").write_text(FIRST)
    (tmp_path / "0002_title.sql").write_text(SECOND)
    return tmp_path


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql).fetchall()


async def test_files_are_applied_in_order_and_once(pg_url: str, folder: Path):
    assert await list_pending(pg_url, [("shelf", folder)]) == ["shelf/0001_first", "shelf/0002_title"]
    assert await migrate(pg_url, [("shelf", folder)]) == ["shelf/0001_first", "shelf/0002_title"]
    assert await migrate(pg_url, [("shelf", folder)]) == []
    assert await list_pending(pg_url, [("shelf", folder)]) == []
    assert query(pg_url, "select id, title from shelf.book") == [("a", "A")]


async def test_a_new_file_is_applied(pg_url: str, folder: Path):
    await migrate(pg_url, [("shelf", folder)])
    (folder / "0003_more.sql").write_text("insert into shelf.book values ('b', 'B')")
    assert await migrate(pg_url, [("shelf", folder)]) == ["shelf/0003_more"]


async def test_a_failing_file_is_rolled_back_and_earlier_ones_stay(pg_url: str, folder: Path):
    (folder / "0003_bad.sql").write_text("create table shelf.half (id int); select 1 / 0")
    with pytest.raises(DatabaseError, match=r"shelf/0003_bad was refused: division by zero"):
        await migrate(pg_url, [("shelf", folder)])
    assert query(pg_url, "select to_regclass('shelf.half')") == [(None,)]
    assert await list_pending(pg_url, [("shelf", folder)]) == ["shelf/0003_bad"]


async def test_a_file_that_was_changed_after_it_had_been_applied_is_refused(pg_url: str, folder: Path):
    await migrate(pg_url, [("shelf", folder)])
    (folder / "0003_more.sql").write_text("insert into shelf.book values ('b', 'B')")
    (folder / "0001_first.sql").write_text(FIRST + " -- and a thought")
    for call in (migrate, list_pending):
        with pytest.raises(DatabaseError, match="shelf/0001_first was changed after it had been applied"):
            await call(pg_url, [("shelf", folder)])
    assert query(pg_url, "select count(*) from shelf.book") == [(1,)], "nothing of the others was applied"


async def test_line_ends_are_no_change(pg_url: str, folder: Path):
    (folder / "0001_first.sql").write_bytes(b"create schema shelf;\ncreate table shelf.book (id text primary key);\n")
    await migrate(pg_url, [("shelf", folder)])
    (folder / "0001_first.sql").write_bytes(
        b"create schema shelf;\r\ncreate table shelf.book (id text primary key);\r\n"
    )
    assert await migrate(pg_url, [("shelf", folder)]) == []


async def test_a_deleted_applied_file_is_ignored(pg_url: str, folder: Path):
    await migrate(pg_url, [("shelf", folder)])
    (folder / "0001_first.sql").unlink()
    assert await migrate(pg_url, [("shelf", folder)]) == []
    assert query(pg_url, "select name from boathook.migration where app = 'shelf' order by name") == [
        ("0001_first",),
        ("0002_title",),
    ]


async def test_apps_do_not_mix(pg_url: str, folder: Path, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "0001_first.sql").write_text("create schema other")
    applied = await migrate(pg_url, [("shelf", folder), ("other", other)])
    assert applied == ["shelf/0001_first", "shelf/0002_title", "other/0001_first"]


async def test_processes_that_start_together_apply_each_file_once(pg_url: str, folder: Path):
    done = await asyncio.gather(*(migrate(pg_url, [("shelf", folder)]) for _ in range(5)))
    assert sorted(map(len, done)) == [0, 0, 0, 0, 2]


async def test_without_the_lock_migrations_collide(pg_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Mutant of the test before: the same, where the lock locks nothing."""
    monkeypatch.setattr(migrations, "TRY_LOCK", "select 1")
    (folder / "0001_first.sql").write_text(f"{FIRST} select pg_sleep(0.3)")
    done = await asyncio.gather(*(migrate(pg_url, [("shelf", folder)]) for _ in range(5)), return_exceptions=True)
    assert any(isinstance(one, DatabaseError) for one in done)


@pytest.mark.parametrize("name", ["first.sql", "1_first.sql", "0001-first.sql", "00001_first.sql", "0001_.sql"])
async def test_a_file_with_an_impossible_name_is_refused(pg_url: str, tmp_path: Path, name: str):
    (tmp_path / name).write_text("select 1")
    with pytest.raises(ConfigError, match=r"call it NNNN_what\.sql"):
        await migrate(pg_url, [("shelf", tmp_path)])


async def test_two_files_of_one_number_are_refused(pg_url: str, folder: Path):
    (folder / "0002_also.sql").write_text("select 1")
    with pytest.raises(ConfigError, match=r"has the number of 0002_also\.sql"):
        await migrate(pg_url, [("shelf", folder)])


async def test_a_missing_folder_is_reported(pg_url: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no folder"):
        await migrate(pg_url, [("shelf", tmp_path / "nowhere")])


async def test_a_database_without_boathooks_schema_lacks_all(empty_url: str, folder: Path):
    lacking = ["0001_initial", "shelf/0001_first", "shelf/0002_title"]
    assert await list_pending(empty_url, [("shelf", folder)]) == lacking
    await migrations.migrate(empty_url)
    assert await migrate(empty_url, [("shelf", folder)]) == ["shelf/0001_first", "shelf/0002_title"]


async def test_pending_migrations_are_listed_over_an_open_pool(db: Database, folder: Path):
    assert await list_pending(db, [("shelf", folder)]) == ["shelf/0001_first", "shelf/0002_title"]
    assert await list_pending(db, []) == []
