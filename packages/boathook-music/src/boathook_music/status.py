"""The state of the app in numbers, for the gauges, ``boathook music status`` and ``GET /api/music/status``."""

from typing import Any, Final

from boathook import Transaction
from boathook_music import account, tracks
from boathook_music.app import settings

_OPEN: Final = ("wanted", "retrying", "failed", "missing")
_FILES: Final = "select state, count(*) as n from music.file where state <> 'stored' group by state"
_WAITING: Final = "select count(*) from music.callback where state = 'waiting'"


async def read(tx: Transaction) -> dict[str, Any]:
    """Return the numbers of waiting callbacks, overdue tracks and open files, and the reseller's credits."""
    counts = {row["state"]: row["n"] for row in await tx.fetch(_FILES)}
    return {
        "waiting_callbacks": await tx.fetchval(_WAITING),
        "overdue_tracks": await tracks.count_overdue(tx, settings().overdue_s),
        "open_files": {state: counts.get(state, 0) for state in _OPEN},
        **await account.known(tx),
    }
