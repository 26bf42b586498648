"""The error log: errors by phase, written outside the transaction that they rolled back."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from boathook import Boathook, BoathookError, Transaction
from boathook_app_tools.statements import load_statements
from boathook_fleet.app import hook

SQL: Final = load_statements(__file__)
_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL; a backslash that is escaped itself begins none."""


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
    FETCH = "fetch"
    """An object could not be fetched from RentProg."""
    LIVE = "live"
    """A browser could not be notified."""
    REPLAY = "replay"
    """A dead letter was replayed as a dry run."""


class Kind(StrEnum):
    """How severe it is."""

    ERR = "err"
    WARN = "warn"
    """Nothing failed, but an operator should look."""
    DRY_RUN = "dry_run"
    """The result of a dry run, whose changes are undone."""


_MAX_PAYLOAD: Final = 65_536
"""Maximum characters of a payload; of a longer one, the beginning is kept as text."""
_MAX_TEXT: Final = 2_000

errors = hook.counter("fleet_errors_total", "Entries of the error log.", "phase", "kind")


@asynccontextmanager
async def logged(hook: Boathook, phase: Phase, **context: Any) -> AsyncIterator[None]:
    """Log an error that leaves the block, then re-raise it; *context* is what `add_error` takes besides."""
    try:
        yield
    except Exception as error:
        await log_error(hook, phase, type(error).__name__, str(error), **context)
        raise


async def log_error(hook: Boathook, phase: Phase, code: str, error: str, **context: Any) -> None:
    """Write one row in its own transaction; if that fails, write to the process's log."""
    try:
        async with hook.transaction() as tx:
            await add_error(tx, phase, code, error, **context)
    except BoathookError as failure:
        hook.log.warning("fleet_error_not_kept", phase=phase, code=code, because=str(failure))


async def add_error(
    tx: Transaction,
    phase: Phase,
    code: str,
    error: str,
    *,
    kind: Kind = Kind.ERR,
    number: int = 1,
    payload: bytes | None = None,
    meta: Mapping[str, Any] | None = None,
    event_id: UUID | None = None,
    entity: str | None = None,
    entity_id: str | None = None,
) -> None:
    """Write one row, which stands for *number* equal errors.

    The *code* may be the name of an exception, and *error* is the same in words; *payload* is what was handled, and
    *meta* says where it came from.
    """
    content = None if payload is None else to_jsonb(payload, _MAX_PAYLOAD)
    await tx.execute(
        SQL["add_error"], phase, kind, code[:100], _plain(error)[:_MAX_TEXT], number, content, json.dumps(meta or {}),
        event_id, entity, entity_id,
    )  # fmt: skip
    errors.add(number, phase=phase, kind=kind)


def to_jsonb(body: bytes, max_size: int | None = None) -> str:
    """Return a body as text that jsonb takes: its JSON, or a text with its beginning if it is invalid or too long."""
    text = body.decode("utf-8", "replace")
    try:
        document = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        document = ""
    if not document or (max_size is not None and len(document) > max_size):
        document = json.dumps(text[:_MAX_TEXT], ensure_ascii=False)
    # PostgreSQL has no text with NUL, and none with half of a surrogate pair.
    return _plain(_NUL.sub("\\1\N{REPLACEMENT CHARACTER}", document))


def _plain(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


async def list_errors(
    tx: Transaction, *, phase: str | None = None, kind: str | None = None, code: str | None = None, limit: int
) -> list[dict[str, Any]]:
    """Return errors, newest first."""
    rows = await tx.fetch(SQL["list_errors"], phase, kind, code, limit)
    return [{**row, "payload": _loaded(row["payload"]), "meta": _loaded(row["meta"])} for row in rows]


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


async def count_errors(tx: Transaction, *, minutes: float) -> Mapping[str, int]:
    """Return the number of errors by phase in the last *minutes*."""
    rows = await tx.fetch(SQL["count_errors"], minutes * 60)
    return dict.fromkeys(map(str, Phase), 0) | {row["phase"]: int(row["number"]) for row in rows}
