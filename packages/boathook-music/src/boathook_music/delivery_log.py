"""The delivery log: received callbacks and files to store, each with its track and the result."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from boathook import Transaction
from boathook_app_tools.delivery_log import DeliveryLog
from boathook_app_tools.statements import load_statements
from boathook_music.app import APPLICATION, SOURCE, hook, languages

SQL: Final = load_statements(__file__)


class Kind(StrEnum):
    """The subject of a delivery."""

    CALLBACK = "callback"
    FILE = "file"
    """A file to be stored."""


async def _find(tx: Transaction, events: Sequence[UUID]) -> Sequence[Any]:
    return await tx.fetch(SQL["list_callbacks"], events)


def _describe(row: dict[str, Any], type: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = records[0] if records else {}
    fields = {name: first.get(name) for name in ("delivery_id", "task_id", "result")}
    note = row["note"] or first.get("note") or None
    return {**row, **fields, "stage": first.get("stage", type), "note": note, "tracks": list(records)}


async def _forget(tx: Transaction, days: float) -> int:
    return int(await tx.fetchval(SQL["forget_callbacks"], days))


log = DeliveryLog(
    hook,
    languages,
    kinds={Kind.CALLBACK: {"source": SOURCE}, Kind.FILE: {"application": APPLICATION}},
    find=_find,
    describe=_describe,
    forget=_forget,
)
