"""What keeps the journal from being used: told by the gateway's probes, and to apps in any process."""

import asyncio
from typing import Final

from boathook.domain.errors import BoathookError
from boathook.journal.database import Database
from boathook.journal.migrations import pending

ANSWER_WITHIN_S: Final = 5.0


async def journal_problems(database: Database | None) -> list[str]:
    """Return what keeps the journal from being used, in sentences; None is one that was not reached yet."""
    if database is None:
        return ["PostgreSQL has not been reached yet"]
    try:
        missing = await asyncio.wait_for(pending(database), ANSWER_WITHIN_S)
    except (BoathookError, TimeoutError) as error:
        return [f"the journal does not answer: {str(error) or type(error).__name__}"]
    if missing:
        return [f"the schema lacks {', '.join(missing)}; run boathook migrate"]
    return database.unsafe_because
