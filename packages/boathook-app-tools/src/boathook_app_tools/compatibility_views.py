"""Creates views, and functions, of an app's tables under the names that the owner's queries use."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from boathook import BoathookError, Transaction
from boathook_app_tools.table_import import quoted

_RELATIONS: Final = """
    select class.relname as name, class.relkind::text as kind,
        coalesce(obj_description(class.oid, 'pg_class'), '') as comment
    from pg_class as class join pg_namespace as space on space.oid = class.relnamespace
    where space.nspname = $1 and class.relname = any($2::text[]) order by class.relname
"""
_FUNCTIONS: Final = """
    select proc.proname as name, proc.oid::regprocedure::text as signature,
        coalesce(obj_description(proc.oid, 'pg_proc'), '') as comment
    from pg_proc as proc join pg_namespace as space on space.oid = proc.pronamespace
    where space.nspname = $1 and proc.proname = any($2::text[]) order by proc.proname
"""
_HAS_SCHEMA: Final = "select exists (select from pg_namespace where nspname = $1)"
_KINDS: Final = {"v": "view", "m": "materialized view"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The views and functions of one app."""

    app: str
    names: Sequence[str]
    file: Path
    """SQL that creates them in ``{schema}``; ``{mark}`` is the comment that tells them from the owner's own objects."""
    functions: Sequence[str] = ()
    parameters: Callable[[Transaction], Awaitable[Mapping[str, str]]] | None = None
    """Returns further texts to insert, by name."""

    @property
    def mark(self) -> str:
        """The comment of its views and functions."""
        return f"Created by boathook {self.app} views create."


async def create(tx: Transaction, views: Views, schema: str) -> list[str]:
    """Create the views and functions and return their names; those of an earlier call are replaced.

    Raises:
        BoathookError: the schema is missing, or something else has one of the names; nothing is created then.
    """
    if not await tx.fetchval(_HAS_SCHEMA, schema):
        raise BoathookError(f"there is no schema {schema}; create it, or name another with --schema")
    existing = [
        f"{_KINDS.get(row['kind'], 'table')} {row['name']}"
        for row in await tx.fetch(_RELATIONS, schema, list(views.names))
        if not _is_ours(views, row["kind"], row["comment"])
    ]
    existing += [
        f"function {row['signature']}"
        for row in await tx.fetch(_FUNCTIONS, schema, list(views.functions))
        if row["comment"] != views.mark
    ]
    if existing:
        raise BoathookError(
            f"{schema} has these already: {', '.join(existing)}. Nothing was created; move them to another schema "
            f"first (create schema before_boathook; alter table {quoted(schema)}.NAME set schema before_boathook), "
            "or create the views elsewhere with --schema"
        )
    await drop(tx, views, schema)
    sql = views.file.read_text(encoding="utf-8").replace("{schema}", quoted(schema)).replace("{mark}", views.mark)
    for name, value in (await views.parameters(tx) if views.parameters else {}).items():
        sql = sql.replace(f"{{{name}}}", value)
    await tx.execute(sql)
    return [*views.names, *views.functions]


async def drop(tx: Transaction, views: Views, schema: str) -> list[str]:
    """Drop the views and functions that `create` has created there, and return their names."""
    dropped: list[str] = []
    for row in await tx.fetch(_RELATIONS, schema, list(views.names)):
        if _is_ours(views, row["kind"], row["comment"]):
            await tx.execute(f"drop view {quoted(schema)}.{quoted(row['name'])}")
            dropped.append(row["name"])
    for row in await tx.fetch(_FUNCTIONS, schema, list(views.functions)):
        if row["comment"] == views.mark:
            await tx.execute(f"drop function {row['signature']}")
            dropped.append(row["name"])
    return dropped


def _is_ours(views: Views, kind: str, comment: str) -> bool:
    return kind == "v" and comment == views.mark
