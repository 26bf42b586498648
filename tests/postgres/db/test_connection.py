"""The type codecs of a new PostgreSQL connection."""

import asyncpg
import pytest

from boathook.db import connection
from boathook.db.connection import connect


async def questions(url: str) -> list[str]:
    """Use an array of each type that boathook's statements use, on a new connection; return all statements sent."""
    sent: list[str] = []
    opened = await connect(url)
    try:
        with opened.query_logger(lambda record: sent.append(record.query)):
            for name in connection.ARRAY_TYPES:
                assert await opened.fetchval(f"select $1::{name}[]", []) == []
    finally:
        await opened.close()
    return [query for query in sent if not query.startswith("select $1")]


async def test_its_arrays_are_known_from_the_start(pg_url: str) -> None:
    assert await questions(pg_url) == []


async def test_mutant_without_codecs_the_driver_queries_the_types(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ARRAY_CODECS", [])
    asked = [query for query in await questions(pg_url) if "typeinfo_tree" in query]
    assert len(asked) == len(connection.ARRAY_TYPES)


async def test_array_type_oids_match_the_server(pg_url: str) -> None:
    opened = await asyncpg.connect(pg_url)
    try:
        rows = await opened.fetch(
            "select typname, typarray, oid, typdelim from pg_type where typname = any ($1)",
            list(connection.ARRAY_TYPES),
        )
    finally:
        await opened.close()
    assert {row["typname"]: (row["typarray"], row["oid"]) for row in rows} == connection.ARRAY_TYPES
    assert {row["typdelim"] for row in rows} == {b","}


async def test_other_types_are_introspected(pg_url: str) -> None:
    opened = await connect(pg_url)
    try:
        assert await opened.fetchval("select array[row(1, 'x')]") == [(1, "x")]
        assert await opened.fetchval("select '{a,b}'::name[]") == ["a", "b"]
    finally:
        await opened.close()
