"""Makes the checks of the books that operators ask for, beside the keeper's other work and without holding it up."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from boathook.db import integrity, integrity_runs
from boathook.db.database import Database
from boathook.db.integrity_report import CheckProgress, IntegrityReport
from boathook.db.integrity_runs import IntegrityRun
from boathook.domain.errors import BoathookError, DatabaseError
from boathook.observability.log import get_logger

HEARTBEAT_INTERVAL_S: Final = 1.0
"""Seconds between two signs of life."""
HEARTBEAT_TIMEOUT_S: Final = 30.0
"""After how long without one somebody else makes the check anew."""
QUERY_TIMEOUT_S: Final = 300.0
"""Of one look, which takes a fraction of a second where PostgreSQL is well."""
_LOG = get_logger("keeper")

OpenDatabase = Callable[[], Awaitable[Database]]


class IntegrityRunner:
    """Makes one check at a time.

    Args:
        database: where runs are claimed and their progress is noted.
        dial: opens connections for a check, whose looks may take longer than other statements.
    """

    def __init__(self, database: Database, dial: OpenDatabase) -> None:
        self._database = database
        self._dial = dial
        self._by = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._under_way: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin a check that waits for it, unless one is being made here; return without waiting for its end."""
        if self._under_way is not None and not self._under_way.done():
            return
        run = await integrity_runs.claim(self._database, self._by, timedelta(seconds=HEARTBEAT_TIMEOUT_S))
        if run is not None:
            self._under_way = asyncio.create_task(self._make(run), name="verify")

    async def close(self) -> None:
        """Break off what is under way; another keeper makes it anew."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _make(self, run: IntegrityRun) -> None:
        """Check, telling how far it is; nothing that goes wrong here reaches the keeper."""
        state, data = "failed", dict[str, Any]()
        try:
            found = await self._check(run)
            if found is None:
                return
            state, data = "finished", report_to_json(found)
        except BoathookError as error:
            data = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - the operator is to see that it ended
            _LOG.error("verify_failed", exc_info=error)
            data = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(DatabaseError):
            await integrity_runs.end(self._database, run, self._by, state, data)

    async def _check(self, run: IntegrityRun) -> IntegrityReport | None:
        """Return what a check finds; None where it was stopped, or is somebody else's."""
        reached: list[CheckProgress] = []
        database = await self._dial()
        try:
            checking = asyncio.create_task(_verify(database, run.request, reached.append))
            try:
                while not checking.done():
                    await asyncio.wait({checking}, timeout=HEARTBEAT_INTERVAL_S)
                    if not checking.done() and not await self._beat(run, reached):
                        return None
                return checking.result()
            finally:
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)
        finally:
            await database.close()

    async def _beat(self, run: IntegrityRun, reached: list[CheckProgress]) -> bool:
        latest = reached[-1] if reached else None
        reached[:-1] = []
        data = {} if latest is None else {**asdict(latest), "reached": latest.reached and latest.reached.isoformat()}
        try:
            return await integrity_runs.save_progress(self._database, run, self._by, data)
        except DatabaseError:
            return True  # the check itself finds out whether PostgreSQL is away for good


async def _verify(
    database: Database, request: Mapping[str, Any], progress: Callable[[CheckProgress], None]
) -> IntegrityReport:
    return await integrity.check_integrity(
        database,
        dedup_days=request["dedup_days"],
        dedup_days_of=request["dedup_days_of"],
        is_deep=request["is_deep"],
        rest=request["rest"],
        progress=progress,
    )


def report_to_json(found: IntegrityReport) -> dict[str, Any]:
    """Return what a check found as plain JSON values."""
    balance = asdict(found.balance) | {"missing": found.balance.missing}
    return {
        "balanced": found.is_consistent,
        "checks": found.checks,
        "looks": found.looks,
        "longest_look_s": round(found.longest_query_s, 3),
        "balance": balance | {"begun_at": found.balance.begun_at.isoformat()},
        "imbalances": [asdict(one) for one in found.violations],
    }
