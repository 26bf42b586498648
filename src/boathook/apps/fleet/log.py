"""The error log: errors by phase, written outside the transaction that they rolled back."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any
from uuid import UUID

from boathook import Boathook, BoathookError, Transaction


class Phase(StrEnum):
    """The phase in which an error happened."""

    ACK = "ack"
    """The gateway rejected a request."""
    PARSE = "parse"
    """The parser could not understand a request."""
    NORMALISE = "normalise"
    """A change could not be recorded."""
    UPSERT = "upsert"
    """An object could not be written."""
    NOTIFY = "notify"
    """A message to Telegram could not be sent."""
    LIVE = "live"
    """A browser could not be notified."""


@asynccontextmanager
async def logged(hook: Boathook, phase: Phase, **where: Any) -> AsyncIterator[None]:
    """Log an error that leaves the block, then re-raise it.

    Args:
        hook: the app's `Boathook`.
        phase: the phase of the block.
        where: `event_id`, `entity` and `entity_id`, as far as they are known.
    """
    try:
        yield
    except Exception as error:
        await log_error(hook, phase, type(error).__name__, str(error), **where)
        raise


async def log_error(hook: Boathook, phase: Phase, kind: str, message: str, **where: Any) -> None:
    """Write one row in its own transaction; if that fails, write to the process's log."""
    try:
        async with hook.transaction() as tx:
            await add_error(tx, phase, kind, message, **where)
    except BoathookError as error:
        hook.log.warning("fleet_error_not_kept", phase=phase, kind=kind, because=str(error))


async def add_error(
    tx: Transaction,
    phase: Phase,
    kind: str,
    message: str,
    *,
    number: int = 1,
    event_id: UUID | None = None,
    entity: str | None = None,
    entity_id: str | None = None,
) -> None:
    """Write one row; *number* is the count of equal errors it represents."""
    await tx.execute(
        "insert into fleet.error_log (phase, kind, message, number, event_id, entity, entity_id)"
        " values ($1, $2, $3, $4, $5, $6, $7)",
        phase, kind[:100], _plain(message), number, event_id, entity, entity_id,
    )  # fmt: skip


def _plain(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()[:2_000]


async def list_errors(
    tx: Transaction, *, phase: str | None = None, kind: str | None = None, limit: int
) -> list[dict[str, Any]]:
    """Return errors, newest first."""
    rows = await tx.fetch(
        "select * from fleet.error_log where ($1::text is null or phase = $1) and ($2::text is null or kind = $2)"
        " order by id desc limit $3",
        phase, kind, limit,
    )  # fmt: skip
    return [dict(row) for row in rows]


async def count_errors(tx: Transaction, *, minutes: float) -> Mapping[str, int]:
    """Return the number of errors by phase in the last *minutes*."""
    rows = await tx.fetch(
        "select phase, sum(number) as number from fleet.error_log"
        " where at > now() - make_interval(secs => $1) group by phase",
        minutes * 60,
    )
    return dict.fromkeys(map(str, Phase), 0) | {row["phase"]: int(row["number"]) for row in rows}
