"""Imports an owner's existing tables into an app's tables.

The owner's tables are in a schema of the same database: they were always there, or were restored or linked into it. An
app declares its `Import`: the tables and columns that it knows, and how a row becomes one of its own. Everything else
is the same for all apps and is here.

Each batch is one transaction. It also writes a row to the app's table ``imported_row`` for each row of the source, so a
run that was interrupted is continued by the next one, and a further run only brings what is new or has changed. A row
that cannot be imported is reported and left out; the next run tries it again.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from boathook import BoathookError, Transaction

Row = Mapping[str, Any]
Values = Mapping[str, Any]

UUID: Final = ("uuid",)
INTEGER: Final = ("int2", "int4", "int8")
ID: Final = (*UUID, *INTEGER)
TEXT: Final = ("text", "varchar", "bpchar", "citext", "enum")
NUMBER: Final = ("numeric", *INTEGER)
TIME: Final = ("timestamptz",)
JSON: Final = ("jsonb", "json")
FLAG: Final = ("bool",)

BATCH: Final = 500
_TABLES: Final = {"r": "table", "p": "table", "f": "table", "v": "view", "m": "materialized view"}
_ROW_ERRORS: Final = ("22", "23")
"""Classes of SQLSTATEs that a row's own values cause: data exceptions and violated constraints."""

_RELATION: Final = """
    select class.oid::bigint as oid, class.relkind::text as kind,
        has_table_privilege(class.oid, 'select') as is_readable
    from pg_class as class join pg_namespace as space on space.oid = class.relnamespace
    where space.nspname = $1 and class.relname = $2
"""
_COLUMNS: Final = """
    select attname as name, case type.typtype when 'e' then 'enum' else type.typname end as type,
        format_type(atttypid, atttypmod) as shown
    from pg_attribute join pg_type as type on type.oid = atttypid
    where attrelid = $1::bigint::oid and attnum > 0 and not attisdropped order by attnum
"""
_KNOWN: Final = """
    select source_key, target_key, source_sha256, target_sha256 from {ledger}
    where table_name = $1 and source_key = any($2::text[])
"""
_ADD: Final = """
    insert into {ledger} (table_name, source_key, target_key, source_sha256, target_sha256) values ($1, $2, $3, $4, $5)
"""
_RENEW: Final = """
    update {ledger} set source_sha256 = $3, target_sha256 = $4, imported_at = now()
    where table_name = $1 and source_key = $2
"""
_OWNER_OF: Final = "select source_key from {ledger} where table_name = $1 and target_key = $2"


class BadValue(ValueError):
    """A row's value that cannot be imported."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"{column}: {problem}")
        self.column = column
        self.problem = problem


Converted = Values | BadValue


@dataclass(frozen=True, slots=True)
class Source:
    """Where the owner's tables are, and where the app keeps what it has imported."""

    schema: str
    ledger: str

    def relation(self, table: str) -> str:
        """Return a table's name for SQL."""
        return f"{quoted(self.schema)}.{quoted(table)}"

    async def target_keys(self, tx: Transaction, table: str, keys: Iterable[Any]) -> dict[str, str]:
        """Return the app's keys of imported rows of *table* by the rows' own keys, both as text."""
        source_keys = [str(key) for key in keys if key is not None]
        rows = await tx.fetch(_KNOWN.format(ledger=self.ledger), table, source_keys)
        return {row["source_key"]: row["target_key"] for row in rows}


Convert = Callable[[Transaction, Source, Sequence[Row]], Awaitable[Sequence[Converted]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """One table of the owner, and how its rows are imported."""

    name: str
    columns: Mapping[str, Sequence[str]]
    """The columns that it must have, each with the types that are understood."""
    optional: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Columns that it may have; rows have None without them."""
    target: str
    """The app's table, with its schema."""
    convert: Convert
    """Returns the values for the app's table, or why there are none, for each row."""
    key: str = "id"
    target_key: str = "id"
    existing: str = ""
    """Condition by which a row that the app has already is the same one; parameters are the values of *match*."""
    match: Sequence[str] = ()
    same: Sequence[str] = ()
    """Columns in which such a row must not differ."""
    adopt: Sequence[str] = ()
    """Columns that are written to such a row."""
    stored: Callable[[Transaction, Source, Row, str], Awaitable[None]] | None = None
    """Called for each new or changed row with the app's key, in the batch's transaction. Raises BadValue."""
    is_whole_row: bool = False
    """Whether rows have all their columns as JSON text in ``document`` too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """The import of one app."""

    app: str
    tables: Sequence[SourceTable]
    """In this order: rows may refer to those of tables before theirs."""
    finish: Callable[[Transaction, Source], Awaitable[Sequence[str]]] | None = None
    """Called in a transaction of its own after all tables; returns what to tell the owner."""


@dataclass(slots=True)
class Counts:
    """What became of the rows of one table."""

    rows: int = 0
    imported: int = 0
    updated: int = 0
    adopted: int = 0
    """Rows that the app had already."""
    unchanged: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was not imported."""

    table: str
    key: str
    column: str
    problem: str


@dataclass(slots=True)
class Report:
    """The result of a run."""

    counts: dict[str, Counts] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)
    ignored_columns: list[tuple[str, str]] = field(default_factory=list)
    """Columns that the import does not read, as table and column."""
    notes: Sequence[str] = ()


Notify = Callable[[str, int, int], None]
"""Takes a table's name, the rows of it that are done, and all its rows."""


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def text(row: Row, column: str, *, max_length: int = 300, is_required: bool = True) -> str | None:
    """Return a text without surrounding spaces. Raises BadValue if it is missing or too long."""
    value = (row[column] or "").strip()
    if not value and is_required:
        raise BadValue(column, "it is empty")
    if len(value) > max_length:
        raise BadValue(column, f"it has {len(value)} characters; at most {max_length} can be stored")
    return value or None


def choice(row: Row, column: str, choices: Iterable[str]) -> str:
    """Return one of the documented words. Raises BadValue if it is another."""
    value: str | None = row[column]
    words = tuple(choices)
    if value not in words:
        raise BadValue(column, f"{value!r} is unknown; known are {', '.join(words)}")
    return value


def converted(rows: Sequence[Row], convert: Callable[[Row], Values]) -> list[Converted]:
    """Convert each row, and return in its place why it cannot be."""
    results: list[Converted] = []
    for row in rows:
        try:
            results.append(convert(row))
        except BadValue as error:
            results.append(error)
    return results


def by_row(convert: Callable[[Row], Values]) -> Convert:
    """Return the `SourceTable.convert` of a table whose rows are converted each by itself."""

    async def convert_all(_tx: Transaction, _source: Source, rows: Sequence[Row]) -> Sequence[Converted]:
        return converted(rows, convert)

    return convert_all


def require(row: Row, *columns: str) -> None:
    """Check that columns are not null. Raises BadValue for the first that is."""
    for column in columns:
        if row[column] is None:
            raise BadValue(column, "it is null")


def without_nulls(**values: Any) -> dict[str, Any]:
    """Return the values that are not null; the others get the column's default."""
    return {name: value for name, value in values.items() if value is not None}


def read_json(row: Row, column: str, *, name: str | None = None) -> Any:
    """Return the document in a column. Raises BadValue, of *name*, if it is nested too deeply."""
    try:
        return json.loads(row[column])
    except (ValueError, RecursionError):
        raise BadValue(name or column, "it cannot be read as JSON") from None


class _DryRunEnd(Exception):
    """Rolls the transaction of a dry run back."""


async def run(
    transaction: Callable[[], AbstractAsyncContextManager[Transaction]],
    plan: Import,
    *,
    schema: str,
    batch: int = BATCH,
    is_dry: bool = False,
    notify: Notify = lambda _table, _rows, _total: None,
) -> Report:
    """Import all tables of a schema.

    Args:
        transaction: Opens a transaction.
        plan: What is imported.
        schema: The schema with the owner's tables.
        batch: Rows of a batch.
        is_dry: Do everything in one transaction and roll it back.
        notify: Called after each batch.

    Raises:
        BoathookError: the schema is not one that the app knows; the message names everything that differs.
    """
    source = Source(schema, f"{plan.app}.imported_row")
    report = Report()

    async def everything(open: Callable[[], AbstractAsyncContextManager[Transaction]]) -> None:
        async with open() as tx:
            schema_columns = await _check_schema(tx, plan, source, report)
        for table in plan.tables:
            await _Run(open, source, table, schema_columns[table.name], report, notify).run(batch)
        if plan.finish is not None:
            async with open() as tx:
                report.notes = await plan.finish(tx, source)

    if not is_dry:
        await everything(transaction)
        return report
    try:
        async with transaction() as tx:
            await everything(lambda: _Same(tx))
            raise _DryRunEnd
    except _DryRunEnd:
        return report


class _Same(AbstractAsyncContextManager[Transaction]):
    """The transaction of a dry run, which all batches share."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    async def __aenter__(self) -> Transaction:
        return self._tx

    async def __aexit__(self, *_error: object) -> None:
        return None


async def _check_schema(tx: Transaction, plan: Import, source: Source, report: Report) -> dict[str, Mapping[str, str]]:
    """Return each table's columns with their types. Raises BoathookError, which names all that differs."""
    problems: list[str] = []
    columns: dict[str, Mapping[str, str]] = {}
    for table in plan.tables:
        relation = await tx.fetchrow(_RELATION, source.schema, table.name)
        if relation is None:
            problems.append(f"the table {table.name} is missing")
            continue
        kind = _TABLES.get(relation["kind"], "object of another kind")
        if kind != "table":
            problems.append(f"{table.name} is a {kind}, not a table")
            continue
        actual = {row["name"]: dict(row) for row in await tx.fetch(_COLUMNS, relation["oid"])}
        differences = _column_problems(table, actual)
        if not relation["is_readable"]:
            differences.append(
                f"{table.name} cannot be read; run: grant select on {source.relation(table.name)} to current_user"
            )
        problems += differences
        if not differences:
            columns[table.name] = {name: row["type"] for name, row in actual.items()}
            problems += await _key_problems(tx, source, table)
            read_columns = {*table.columns, *table.optional}
            if not table.is_whole_row:
                report.ignored_columns += [(table.name, name) for name in actual if name not in read_columns]
    if problems:
        raise BoathookError(
            f"the schema {source.schema} is not one that `boathook {plan.app} import` knows: {'; '.join(problems)}"
        )
    return columns


def _column_problems(table: SourceTable, actual: Mapping[str, Row]) -> list[str]:
    problems = []
    for name, types in {**table.columns, **table.optional}.items():
        if name not in actual and name in table.optional:
            continue
        if name not in actual:
            problems.append(f"the column {table.name}.{name} is missing")
        elif actual[name]["type"] not in types:
            problems.append(f"{table.name}.{name} is {actual[name]['shown']}, not {' or '.join(types)}")
    return problems


async def _key_problems(tx: Transaction, source: Source, table: SourceTable) -> list[str]:
    """Return what prevents rows from being identified; a linked table has no constraint that would."""
    key = quoted(table.key)
    twice = await tx.fetchrow(
        f"select {key}::text as key from {source.relation(table.name)}"  # noqa: S608 quoted names
        f" group by {key} having count(*) > 1 or {key} is null limit 1"
    )
    if twice is None:
        return []
    return [f"{table.name}.{table.key} does not identify rows: {twice['key'] or 'null'} occurs twice or is null"]


@dataclass(frozen=True, slots=True)
class _ImportedRow:
    target_key: str
    source_sha256: bytes
    target_sha256: bytes


class _Run:
    """Imports one table."""

    def __init__(
        self,
        open: Callable[[], AbstractAsyncContextManager[Transaction]],
        source: Source,
        table: SourceTable,
        present: Mapping[str, str],
        report: Report,
        notify: Notify,
    ) -> None:
        self._open = open
        self._source = source
        self._table = table
        self._report = report
        self._notify = notify
        self._counts = report.counts[table.name] = Counts()
        relation, key, key_type = source.relation(table.name), quoted(table.key), quoted(present[table.key])
        columns = ", ".join(f"source.{quoted(name)}" for name in (*table.columns, *table.optional) if name in present)
        self._missing = {name: None for name in table.optional if name not in present}
        document = ", to_jsonb(source)::text as document" if table.is_whole_row else ""
        self._count = f"select count(*) from {relation}"  # noqa: S608 quoted names
        self._page = (
            f"select {columns}{document} from {relation} as source"  # noqa: S608 quoted names
            f" where $1::text is null or source.{key} > $1::text::{key_type} order by source.{key} limit $2"
        )

    async def run(self, batch: int) -> None:
        """Import the table, one transaction a batch."""
        total, after = 0, None
        while True:
            async with self._open() as tx:
                # A whole row as JSON shows times in the zone of the connection.
                await tx.execute("set local timezone = 'UTC'")
                if after is None:
                    total = await tx.fetchval(self._count)
                    self._notify(self._table.name, 0, total)
                rows = [{**row, **self._missing} for row in await tx.fetch(self._page, after, batch)]
                outcomes = await self._batch(tx, rows)
            if not rows:
                return
            # Counted after the commit.
            self._note(rows, outcomes)
            after = str(rows[-1][self._table.key])
            self._notify(self._table.name, self._counts.rows, max(total, self._counts.rows))

    def _note(self, rows: Sequence[Row], outcomes: Sequence[str | BadValue]) -> None:
        self._counts.rows += len(rows)
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, BadValue):
                key = str(row[self._table.key])
                self._report.rejected.append(Rejected(self._table.name, key, outcome.column, outcome.problem))
                self._counts.rejected += 1
            else:
                setattr(self._counts, outcome, getattr(self._counts, outcome) + 1)

    async def _batch(self, tx: Transaction, rows: Sequence[Row]) -> list[str | BadValue]:
        # Two runs at once would report each other's rows as rows that the app had already.
        await tx.execute("select pg_advisory_xact_lock(hashtextextended('boathook:import:' || $1, 0))", self._ledger)
        keys = [str(row[self._table.key]) for row in rows]
        sql = _KNOWN.format(ledger=self._ledger)
        imported = {
            row["source_key"]: _ImportedRow(row["target_key"], row["source_sha256"], row["target_sha256"])
            for row in await tx.fetch(sql, self._table.name, keys)
        }
        outcomes: list[str | BadValue] = ["unchanged"] * len(rows)
        news = [
            place
            for place, key in enumerate(keys)
            if key not in imported or imported[key].source_sha256 != sha256(rows[place])
        ]
        values = await self._table.convert(tx, self._source, [rows[place] for place in news])
        good = []
        for place, converted in zip(news, values, strict=True):
            if isinstance(converted, BadValue):
                outcomes[place] = converted
            else:
                good.append((place, converted))
        outcomes_of_good = await self._store_all(
            tx, [(rows[place], values, imported.get(keys[place])) for place, values in good]
        )
        for (place, _), outcome in zip(good, outcomes_of_good, strict=True):
            outcomes[place] = outcome
        return outcomes

    @property
    def _ledger(self) -> str:
        return self._source.ledger

    async def _store_all(
        self, tx: Transaction, rows: Sequence[tuple[Row, Values, _ImportedRow | None]]
    ) -> list[str | BadValue]:
        """Store rows; if one of them fails, store each by itself."""
        together = await self._try(tx, rows)
        if not isinstance(together, BadValue):
            return together
        outcomes: list[str | BadValue] = []
        for row in rows:
            alone = await self._try(tx, [row])
            outcomes.append(alone if isinstance(alone, BadValue) else alone[0])
        return outcomes

    async def _try(
        self, tx: Transaction, rows: Sequence[tuple[Row, Values, _ImportedRow | None]]
    ) -> list[str | BadValue] | BadValue:
        """Store rows and return what became of each, or store none of them and return why."""
        try:
            async with tx.savepoint():
                return [await self._store(tx, *row) for row in rows]
        except BadValue as error:
            return error
        except Exception as error:
            if str(getattr(error, "sqlstate", None))[:2] not in _ROW_ERRORS:
                raise
            place = getattr(error, "column_name", None) or getattr(error, "constraint_name", None) or "row"
            return BadValue(place, f"{self._table.target} refuses it: {error}")

    async def _store(self, tx: Transaction, row: Row, values: Values, imported: _ImportedRow | None) -> str | BadValue:
        if imported is not None:
            return await self._update(tx, row, values, imported)
        columns = ", ".join(map(quoted, values))
        places = ", ".join(f"${place}" for place, _ in enumerate(values, 1))
        target = await tx.fetchrow(
            f"insert into {self._table.target} ({columns}) values ({places})"  # noqa: S608 names of our own
            " on conflict do nothing returning *",
            *values.values(),
        )
        if target is None:
            return await self._adopt(tx, row, values)
        target_key = str(target[self._table.target_key])
        await self._enter(tx, row, target_key, {name: target[name] for name in values})
        if self._table.stored is not None:
            await self._table.stored(tx, self._source, row, target_key)
        return "imported"

    async def _enter(self, tx: Transaction, row: Row, target_key: str, target_values: Values) -> None:
        key = str(row[self._table.key])
        await tx.execute(
            _ADD.format(ledger=self._ledger), self._table.name, key, target_key, sha256(row), sha256(target_values)
        )

    async def _adopt(self, tx: Transaction, row: Row, values: Values) -> str | BadValue:
        """Take a row that the app had already as the row's own, if it does not differ."""
        table = self._table
        place = " and ".join(table.match) or table.key
        target = None
        if table.existing:
            target = await tx.fetchrow(
                f"select * from {table.target} where {table.existing} for update",  # noqa: S608 names of our own
                *(values[name] for name in table.match),
            )
        if target is None:
            return BadValue(place, f"a unique key of {table.target} is taken by another row")
        target_key = str(target[table.target_key])
        other = await tx.fetchval(_OWNER_OF.format(ledger=self._ledger), table.name, target_key)
        if other is not None:
            return BadValue(place, f"the row {other} was imported as the same; correct one of them")
        for name in table.same:
            if target[name] != values.get(name):
                return BadValue(
                    name, f"{table.target} has it already, with {target[name]}, not {values.get(name)}; correct one"
                )
        adopted = {name: values[name] for name in table.adopt if name in values}
        if adopted:
            await self._write(tx, target_key, adopted)
        target_values = {name: adopted.get(name, target[name]) for name in values}
        await self._enter(tx, row, target_key, target_values)
        return "adopted"

    async def _update(self, tx: Transaction, row: Row, values: Values, imported: _ImportedRow) -> str | BadValue:
        """Bring a row that has changed since it was imported, unless the app has changed it, too."""
        table = self._table
        target = await tx.fetchrow(
            f"select * from {table.target} where {quoted(table.target_key)}::text = $1 for update",  # noqa: S608 names of our own
            imported.target_key,
        )
        if target is None or sha256({name: target[name] for name in values}) != imported.target_sha256:
            return BadValue(
                table.key,
                f"it has changed here, and in {table.target} (key {imported.target_key}) it was changed or deleted"
                " since it was imported; correct that row by hand",
            )
        await self._write(tx, imported.target_key, values)
        if table.stored is not None:
            await table.stored(tx, self._source, row, imported.target_key)
        after = await tx.fetchrow(
            f"select * from {table.target} where {quoted(table.target_key)}::text = $1",  # noqa: S608 names of our own
            imported.target_key,
        )
        assert after is not None, "the row is locked"
        key = str(row[table.key])
        await tx.execute(
            _RENEW.format(ledger=self._ledger), table.name, key, sha256(row),
            sha256({name: after[name] for name in values}),
        )  # fmt: skip
        return "updated"

    async def _write(self, tx: Transaction, target_key: str, values: Values) -> None:
        settings = ", ".join(f"{quoted(name)} = ${place}" for place, name in enumerate(values, 2))
        await tx.execute(
            f"update {self._table.target} set {settings} where {quoted(self._table.target_key)}::text = $1",  # noqa: S608 names of our own
            target_key,
            *values.values(),
        )


def sha256(row: Row) -> bytes:
    """Return a hash of a row's values that does not depend on the connection's settings."""
    document = json.dumps({name: _plain(value) for name, value in row.items()}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(document.encode("utf-8", "surrogatepass")).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)
