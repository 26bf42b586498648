"""Checks whether the database can be used, for the gateway's health endpoints and for apps in any process."""

import asyncio
from typing import Final

from boathook.db.database import Database
from boathook.db.migrations import list_pending
from boathook.domain.errors import BoathookError

CHECK_TIMEOUT_S: Final = 5.0


async def database_problems(database: Database | None) -> list[str]:
    """Return the reasons why the database cannot be used, in sentences; None is a database that was not reached yet."""
    if database is None:
        return ["PostgreSQL has not been reached yet"]
    try:
        missing = await asyncio.wait_for(list_pending(database), CHECK_TIMEOUT_S)
    except (BoathookError, TimeoutError) as error:
        return [f"PostgreSQL does not answer: {str(error) or type(error).__name__}"]
    if missing:
        return [f"the schema lacks {', '.join(missing)}; run boathook migrate"]
    return database.unsafe_because
