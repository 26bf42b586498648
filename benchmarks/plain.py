"""Runs a naive server: ``python -m benchmarks.plain PORT orm|asyncpg DATABASE_URL``."""

import asyncio
import sys

import asyncpg
import uvicorn

from benchmarks import naive
from benchmarks.load import SECRET


async def _make_tables(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(naive.SCHEMA)
    await connection.close()


def main() -> None:
    """Make the tables and serve until told to stop."""
    port, kind, url = sys.argv[1:]
    asyncio.run(_make_tables(url))
    app = (naive.with_orm if kind == "orm" else naive.with_asyncpg)(url, SECRET)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
