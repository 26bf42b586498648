"""Runs the consistency checks that operators request, without blocking the keeper's other work."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from boathook.db import integrity, integrity_runs
from boathook.db.database import Database
from boathook.db.integrity import CheckProgress, IntegrityReport
from boathook.db.integrity_runs import IntegrityRun
from boathook.domain.errors import BoathookError, DatabaseError
from boathook.observability.log import get_logger

HEARTBEAT_INTERVAL_S: Final = 1.0
"""Interval between heartbeats."""
HEARTBEAT_TIMEOUT_S: Final = 30.0
"""Time without a heartbeat after which another keeper restarts the check."""
QUERY_TIMEOUT_S: Final = 300.0
"""Timeout of one query, which takes a fraction of a second if PostgreSQL is healthy."""
_LOG = get_logger("keeper")

OpenDatabase = Callable[[], Awaitable[Database]]


class IntegrityRunner:
    """Runs one check at a time.

    Args:
        database: stores the claim and the progress of runs.
        dial: opens connections for a check, whose queries may take longer than other statements.
    """

    def __init__(self, database: Database, dial: OpenDatabase) -> None:
        self._database = database
        self._dial = dial
        self._by = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._in_progress: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start a requested check in the background, unless one is running in this process."""
        if self._in_progress is not None and not self._in_progress.done():
            return
        run = await integrity_runs.claim(self._database, self._by, timedelta(seconds=HEARTBEAT_TIMEOUT_S))
        if run is not None:
            self._in_progress = asyncio.create_task(self._make(run), name="verify")

    async def stop(self) -> None:
        """Cancel the running check; another keeper restarts it."""
        if self._in_progress is not None:
            self._in_progress.cancel()
            await asyncio.gather(self._in_progress, return_exceptions=True)

    async def _make(self, run: IntegrityRun) -> None:
        """Run a check and store its progress and result; errors never reach the keeper."""
        state, data = "failed", dict[str, Any]()
        try:
            report = await self._check(run)
            if report is None:
                return
            state, data = "finished", report_to_json(report)
        except BoathookError as error:
            data = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - the operator must see that the check ended
            _LOG.error("verify_failed", exc_info=error)
            data = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(DatabaseError):
            await integrity_runs.end(self._database, run, self._by, state, data)

    async def _check(self, run: IntegrityRun) -> IntegrityReport | None:
        """Return the report of a check; None if it was stopped, or another process took it over."""
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
            return True  # the check itself detects an unavailable PostgreSQL


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


def report_to_json(report: IntegrityReport) -> dict[str, Any]:
    """Convert a report to plain JSON values."""
    balance = asdict(report.balance) | {"missing": report.balance.missing}
    return {
        "balanced": report.is_consistent,
        "checks": report.checks,
        "looks": report.looks,
        "longest_look_s": round(report.longest_query_s, 3),
        "balance": balance | {"begun_at": report.balance.begun_at.isoformat()},
        "imbalances": [msgspec.to_builtins(violation) for violation in report.violations],
    }
