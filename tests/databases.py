"""Databases for tests: copies of one migrated template, emptied after each test and used again.

Creating and dropping a database takes PostgreSQL a second on a busy machine, emptying one a few milliseconds.
A database whose schema a test has changed is dropped instead of reused.
"""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]
Table = tuple[str, str]
"""Schema and name."""

MAX_BYTES = 40_000_000
"""A database larger than this is dropped: reading past what deleted rows leave behind would slow down later tests."""

# Each change of a catalog's row gives it another xmin; statistics of vacuum and analyze are written in place.
_FIRST_OID = 16384
"""Objects with lower numbers are PostgreSQL's own."""
_CATALOGS = {
    "pg_class": "oid",
    "pg_attribute": "attrelid",
    "pg_constraint": "oid",
    "pg_index": "indexrelid",
    "pg_namespace": "oid",
    "pg_proc": "oid",
    "pg_trigger": "oid",
    "pg_type": "oid",
}
_FINGERPRINT = " union all ".join(
    f"select '{name}', count(*), coalesce(sum(xmin::text::bigint), 0) from {name} where {key} >= {_FIRST_OID}"
    for name, key in _CATALOGS.items()
)
_SETTINGS = """
    select count(*) from pg_db_role_setting
    where setdatabase = (select oid from pg_database where datname = current_database())
"""
_IS_OWN = "nspname not like 'pg\\_%' and nspname <> 'information_schema'"
_SCHEMAS = f"select nspname from pg_namespace where {_IS_OWN}"
_RELATIONS = f"""
    select nspname, relname from pg_class join pg_namespace on pg_namespace.oid = relnamespace
    where relkind in ('r', 'p') and {_IS_OWN} order by 1, 2
"""
LEAVES = _RELATIONS.replace("('r', 'p')", "('r')")
_SEQUENCES = f"""
    select nspname, relname, seqstart from pg_class
    join pg_namespace on pg_namespace.oid = relnamespace join pg_sequence on seqrelid = pg_class.oid where {_IS_OWN}
"""
_CLEANER = "cleaner"
_END_CLEANER = f"""
    select pg_terminate_backend(pid, 10000) from pg_stat_activity
    where datname = %s and application_name = '{_CLEANER}'
"""
_TERMINATE = """
    select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
"""


def libpq_environment(url: str) -> dict[str, str]:
    """Return the variables of libpq for a database."""
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    names = {
        "PGHOST": host,
        "PGPORT": str(parts.port or ""),
        "PGUSER": parts.username or "",
        "PGDATABASE": parts.path[1:],
    }
    return {**names, "PGPASSWORD": unquote(parts.password)} if parts.password else names


def with_database(url: str, name: str) -> str:
    """Return *url* with another database in it."""
    parts = urlsplit(url)
    # urlunsplit would drop the empty host of a socket's URL.
    return urlunsplit(("postgresql", parts.netloc or "localhost", f"/{name}", parts.query, ""))


def with_user(url: str, name: str) -> str:
    """Return *url* with another user in it."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(("postgresql", f"{name}@{host}", parts.path, parts.query, ""))


def create(admin_url: str, template: str | None = None) -> str:
    """Create a database, as a copy of *template* where one is named, and return its URL."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        copy = f"template {template}" if template else ""
        # Copying files beats writing each page to the log, which version 15 made the default.
        strategy = "strategy file_copy" if template and admin.info.server_version >= 150000 else ""
        # A database with open connections cannot be copied.
        admin.execute(_END_CLEANER, [template])
        admin.execute(f"create database {name} {copy} {strategy}")
    return with_database(admin_url, name)


def drop(admin_url: str, url: str) -> None:
    """Drop a database of `create`, ending the connections to it."""
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(f"drop database if exists {urlsplit(url).path.strip('/')} with (force)")


@contextlib.contextmanager
def created(admin_url: str, template: str | None = None) -> Iterator[str]:
    """Give the URL of a database that is created now and dropped at the end."""
    url = create(admin_url, template)
    try:
        yield url
    finally:
        drop(admin_url, url)


@dataclass(frozen=True)
class Baseline:
    """A fresh copy of the template: its schema's fingerprint and the rows of migrations."""

    schemas: frozenset[str]
    tables: tuple[Table, ...]
    leaves: tuple[Table, ...]
    sequences: tuple[tuple[str, str, int], ...]
    rows: tuple[tuple[Table, bytes], ...]
    fingerprint: list[Any]

    @classmethod
    def read(cls, connection: Connection) -> "Baseline":
        """Read it from a database that nothing has been written to yet."""
        leaves = tuple(connection.execute(LEAVES).fetchall())
        contents = ((table, dump(connection, table)) for table in leaves)
        return cls(
            schemas=frozenset(name for (name,) in connection.execute(_SCHEMAS)),
            tables=tuple(connection.execute(_RELATIONS).fetchall()),
            leaves=leaves,
            sequences=tuple(connection.execute(_SEQUENCES).fetchall()),
            rows=tuple((table, rows) for table, rows in contents if rows),
            fingerprint=_fingerprint(connection),
        )

    def drop_additions(self, connection: Connection) -> None:
        """Drop the schemas and tables that a test has created."""
        for (schema,) in connection.execute(_SCHEMAS).fetchall():
            if schema not in self.schemas:
                connection.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(schema)))
        for table in connection.execute(_RELATIONS).fetchall():
            if table not in self.tables:
                connection.execute(sql.SQL("drop table if exists {} cascade").format(sql.Identifier(*table)))

    def fits(self, connection: Connection) -> bool:
        """Return whether the schema is as it was and no setting of the database has been made."""
        return self.fingerprint == _fingerprint(connection)

    def restore(self, connection: Connection) -> None:
        """Empty every table, restart every sequence, and put back the rows of the migrations."""
        deletes = [sql.SQL("delete from only {}").format(sql.Identifier(*table)) for table in self.leaves]
        restarts = [
            sql.SQL("select setval({}::regclass, {}, false)").format(f'"{schema}"."{name}"', start)
            for schema, name, start in self.sequences
        ]
        with connection.transaction():
            # Foreign keys would require an order, and triggers would fire.
            connection.execute("set local session_replication_role = replica")
            connection.execute(sql.SQL(";").join([*deletes, *restarts]))
            for table, rows in self.rows:
                statement = sql.SQL("copy {} from stdin").format(sql.Identifier(*table))
                with connection.cursor().copy(statement) as copy:
                    copy.write(rows)


def dump(connection: Connection, table: Table) -> bytes:
    """Return all rows of a table in COPY's text format."""
    with connection.cursor().copy(sql.SQL("copy {} to stdout").format(sql.Identifier(*table))) as copy:
        return b"".join(bytes(block) for block in copy)


def _fingerprint(connection: Connection) -> list[Any]:
    return [*connection.execute(_FINGERPRINT).fetchall(), *connection.execute(_SETTINGS).fetchall()]


@dataclass
class Pool:
    """The databases of one test process, each a copy of *template* and used by one test at a time."""

    admin_url: str
    template: str
    _idle: list[str] = field(default_factory=list)
    _baselines: dict[str, Baseline] = field(default_factory=dict)
    _cleaners: dict[str, Connection] = field(default_factory=dict)
    """A connection to each database that stays: a new one would have to read PostgreSQL's catalogs each time."""

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Give the URL of a database with boathook's schema and nothing else in it."""
        url = self._idle.pop() if self._idle else self._create()
        try:
            yield url
        finally:
            self._release(url)

    def _create(self) -> str:
        url = create(self.admin_url, self.template)
        options = f"-c application_name={_CLEANER} -c lock_timeout=20s -c statement_timeout=60s"
        self._cleaners[url] = connection = psycopg.connect(url, autocommit=True, options=options)
        self._baselines[url] = Baseline.read(connection)
        return url

    def _release(self, url: str) -> None:
        try:
            is_clean = self._clean(url)
        except psycopg.Error:
            is_clean = False
        if is_clean:
            self._idle.append(url)
        else:
            self._drop(url)

    def _clean(self, url: str) -> bool:
        baseline, connection = self._baselines[url], self._cleaners[url]
        connection.execute(_TERMINATE)
        size = connection.execute("select pg_database_size(current_database())").fetchone()
        if size is None or size[0] > MAX_BYTES:
            return False
        baseline.drop_additions(connection)
        if not baseline.fits(connection):
            return False
        baseline.restore(connection)
        return True

    def _drop(self, url: str) -> None:
        self._cleaners.pop(url).close()
        del self._baselines[url]
        drop(self.admin_url, url)

    def close(self) -> None:
        """Drop all idle databases."""
        while self._idle:
            self._drop(self._idle.pop())
