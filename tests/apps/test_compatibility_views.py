"""Views under an owner's names, in one process."""

from pathlib import Path

import asyncpg
import pytest

from boathook import BoathookError
from boathook.handlers.transaction import Transaction
from boathook_app_tools import compatibility_views
from boathook_app_tools.compatibility_views import Views

SQL = """
    create view {schema}.notes as select 1 as id;
    comment on view {schema}.notes is '{mark}';
    create function {schema}.find_note(id integer) returns integer language sql as 'select id';
    comment on function {schema}.find_note is '{mark}';
"""


@pytest.fixture
def views(tmp_path: Path) -> Views:
    file = tmp_path / "views.sql"
    file.write_text(SQL)
    return Views(app="shop", names=("notes",), functions=("find_note",), file=file)


@pytest.fixture
async def tx(empty_url):
    connection = await asyncpg.connect(empty_url)
    yield Transaction(connection)
    await connection.close()


async def test_views_are_created_again_and_dropped(tx, views):
    for _ in range(2):
        assert await compatibility_views.create(tx, views, "public") == ["notes", "find_note"]
    assert await compatibility_views.drop(tx, views, "public") == ["notes", "find_note"]
    assert await compatibility_views.drop(tx, views, "public") == []


@pytest.mark.parametrize(
    ("taken", "name"),
    [
        ("create table notes (id integer)", "table notes"),
        ("create view notes as select 2 as id", "view notes"),
        ("create materialized view notes as select 2 as id", "materialized view notes"),
        ("create function find_note(text) returns integer language sql as 'select 2'", "function find_note"),
    ],
)
async def test_what_exists_is_not_replaced(tx, views, taken, name):
    await tx.execute(taken)
    with pytest.raises(BoathookError, match=f"public has these already: {name}"):
        await compatibility_views.create(tx, views, "public")
    assert await compatibility_views.drop(tx, views, "public") == []
    assert await tx.fetchval("select count(*) from pg_class where relname = 'notes'") == ("notes" in taken)


async def test_a_name_is_quoted(tx, views):
    await tx.execute('create schema "odd ""name"')
    await compatibility_views.create(tx, views, 'odd "name')
    assert await tx.fetchval('select id from "odd ""name".notes') == 1
