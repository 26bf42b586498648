"""The pool of databases that tests use in turn: nothing that one test leaves reaches the next."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from tests import databases
from tests.databases import Baseline, Connection, Pool, Table

COLUMNS = """
    select attname, format_type(atttypid, null) from pg_attribute
    where attrelid = %s::regclass and attnum > 0 and attnotnull and attidentity = '' and not attisdropped
"""
CHECKS = "select conname from pg_constraint where conrelid = %s::regclass and contype = 'c' and coninhcount = 0"
LOWER_BOUND = (
    "select substring(pg_get_expr(relpartbound, oid) from $$FROM \\('([^']*)$$) from pg_class where oid = %s::regclass"
)
VALUES = {
    "uuid": "ffffffff-ffff-7fff-bfff-ffffffffffff",  # behind all partitions that have bounds
    "timestamp with time zone": "2026-01-31 12:00+00",
    "boolean": "true",
    "json": "{}",
    "jsonb": "{}",
    "pg_snapshot": "1:1:",
}
"""A value of each type; of the others, 1 is one."""


@pytest.fixture
def pool(admin_url: str, pg_template: str) -> Iterator[Pool]:
    """A pool of this test's own."""
    with closing(Pool(admin_url, pg_template)) as pool:
        yield pool


def add_row(connection: Connection, table: Table) -> None:
    """Insert a row into a table, ignoring its constraints."""
    name = sql.Identifier(*table)
    quoted = name.as_string(connection)
    for (check,) in connection.execute(CHECKS, [quoted]).fetchall():
        connection.execute(sql.SQL("alter table {} drop constraint {}").format(name, sql.Identifier(check)))
    columns = connection.execute(COLUMNS, [quoted]).fetchall()
    (bound,) = connection.execute(LOWER_BOUND, [quoted]).fetchone() or (None,)
    known = VALUES | ({"uuid": bound} if bound else {})
    values = [known.get(kind, "{}" if kind.endswith("[]") else "1") for _, kind in columns]
    names = sql.SQL(", ").join(sql.Identifier(column) for column, _ in columns)
    literals = sql.SQL(", ").join(map(sql.Literal, values))
    connection.execute(sql.SQL("insert into {} ({}) values ({}) on conflict do nothing").format(name, names, literals))


def contents(connection: Connection) -> dict[Table, bytes]:
    tables = connection.execute(databases.LEAVES).fetchall()
    return {table: databases.dump(connection, table) for table in tables}


def test_restoring_removes_rows_of_every_table(pool: Pool, admin_url: str, pg_template: str):
    """Each table of the schema gets a row first, so that none can be forgotten."""
    with databases.created(admin_url, pg_template) as url, psycopg.connect(url, autocommit=True) as connection:
        baseline, fresh = Baseline.read(connection), contents(connection)
        connection.execute("set session_replication_role = replica")
        # Checks stand on the tables that partitions belong to.
        for table in [*(table for table in baseline.tables if table not in baseline.leaves), *baseline.leaves]:
            add_row(connection, table)
        assert [table for table, rows in contents(connection).items() if not rows] == []
        baseline.restore(connection)
        assert contents(connection) == fresh


def test_a_database_is_used_again_as_it_was_first(pool: Pool):
    with pool.database() as first, psycopg.connect(first, autocommit=True) as connection:
        fresh = contents(connection)
        connection.execute("create schema shop; create table shop.account (id int); create table public.note (id int)")
        connection.execute("update boathook.route_version set version = version + 7")
        connection.execute("insert into public.note values (1)")
    with pool.database() as second, psycopg.connect(second, autocommit=True) as connection:
        assert second == first
        assert contents(connection) == fresh


@pytest.mark.parametrize(
    "change",
    [
        "alter table boathook.event add column more int",
        "drop index boathook.{index}",
        "create or replace function boathook.more() returns int language sql as 'select 1'",
        "alter database {database} set work_mem = '1MB'",
    ],
)
def test_a_database_with_a_changed_schema_is_not_reused(pool: Pool, change: str):
    with pool.database() as first, psycopg.connect(first, autocommit=True) as connection:
        query = "select relname from pg_class where relkind = 'i' and not relispartition and relname not like '%_pkey' and relnamespace = 'boathook'::regnamespace limit 1"
        (index,) = connection.execute(query).fetchone() or ("",)
        connection.execute(change.format(index=index, database=connection.info.dbname).encode())
    with pool.database() as second:
        assert second != first


def test_a_connection_that_a_test_has_left_open_is_ended(pool: Pool):
    with pool.database() as first:
        left = psycopg.connect(first)
        left.execute("select * from boathook.route_version for update")
    with pytest.raises(psycopg.OperationalError):
        left.execute("select 1")
    with pool.database() as second:
        assert second == first
