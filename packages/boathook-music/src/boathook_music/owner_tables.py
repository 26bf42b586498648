"""The tables of a system before this one: how `boathook music import` reads them, and the view under their name.

They are ``tracks`` and ``webhook_delivery_log``. A track's task is in ``metadata.suno_task_id``, else in ``suno_id``.
"""

import json
from pathlib import Path
from typing import Any, Final

from boathook_app_tools.compatibility_views import Views
from boathook_app_tools.table_import import (
    ID,
    JSON,
    TEXT,
    TIME,
    BadValue,
    Import,
    Row,
    SourceTable,
    Values,
    by_row,
    choice,
    read_json,
    require,
    text,
    without_nulls,
)
from boathook_app_tools.table_import import UUID as UUID_TYPE
from boathook_music.stages import Status
from boathook_music.tracks import NewTrack, problem_of

_TRACK_STATUSES: Final = {
    "pending": Status.PENDING,
    "processing": Status.PENDING,
    "completed": Status.COMPLETE,
    "failed": Status.FAILED,
}
_DELIVERY_STATUSES: Final = {
    "registered": "registered",
    "processing": "registered",
    "completed": "completed",
    "failed": "failed",
}
MAX_METADATA: Final = 1_000_000
"""Characters of a track's metadata."""


def _track(row: Row) -> Values:
    status = _TRACK_STATUSES[choice(row, "status", _TRACK_STATUSES)]
    metadata = _metadata(row)
    track = NewTrack(
        task_id=_task_id(row, metadata),
        owner="" if row["user_id"] is None else str(row["user_id"]),
        title=row["title"] or "",
        prompt={"prompt": row["prompt"], "metadata": metadata},
    )
    if problem := problem_of(track):
        column, _, reason = problem.partition(": ")
        raise BadValue({"owner": "user_id", "task_id": "suno_id"}.get(column, column), reason)
    is_failed = status is Status.FAILED
    is_open = status is Status.PENDING and row["archived_at"] is None
    require(row, "created_at", "updated_at")
    return {
        "task_id": track.task_id,
        "owner": track.owner,
        "title": track.title,
        "prompt": json.dumps(track.prompt),
        "status": status.value,
        "error_code": "ERROR" if is_failed else None,
        "error": row["error_message"] if is_failed else None,
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "completed_at": row["updated_at"] if status is Status.COMPLETE else None,
        "expected_since": row["created_at"] if is_open else None,
        "archived_at": row["archived_at"],
        "owner_id": row["id"],
    }


def _metadata(row: Row) -> dict[str, Any]:
    if row["metadata"] is None:
        return {}
    if len(row["metadata"]) > MAX_METADATA:
        raise BadValue("metadata", f"it has more than {MAX_METADATA} characters")
    metadata = read_json(row, "metadata")
    if not isinstance(metadata, dict):
        raise BadValue("metadata", "it is not a JSON object")
    return metadata


def _task_id(row: Row, metadata: dict[str, Any]) -> str:
    task = metadata.get("suno_task_id") or row["suno_id"]
    if not isinstance(task, str) or not task:
        raise BadValue("suno_id", "neither it nor metadata.suno_task_id names the task, so no callback can be for it")
    return task


def _delivery(row: Row) -> Values:
    return {
        "webhook_id": text(row, "webhook_id", max_length=1_000),
        "status": _DELIVERY_STATUSES[choice(row, "status", _DELIVERY_STATUSES)],
        "headers": row["headers"],
        "payload": row["payload"],
        "reason": row["error_message"],
        **without_nulls(created_at=row["created_at"], updated_at=row["updated_at"]),
    }


IMPORT: Final = Import(
    app="music",
    tables=(
        SourceTable(
            name="tracks",
            columns={
                "id": UUID_TYPE, "user_id": ID, "title": TEXT, "prompt": TEXT, "status": TEXT, "error_message": TEXT,
                "metadata": JSON, "created_at": TIME, "updated_at": TIME,
            },
            optional={"suno_id": TEXT, "archived_at": TIME},
            target="music.track",
            target_key="task_id",
            convert=by_row(_track),
            existing="task_id = $1",
            match=("task_id",),
            adopt=("owner_id",),
        ),
        SourceTable(
            name="webhook_delivery_log",
            columns={"webhook_id": TEXT, "status": TEXT, "payload": JSON, "created_at": TIME, "updated_at": TIME},
            optional={"headers": JSON, "error_message": TEXT},
            key="webhook_id",
            target="music.webhook_log",
            target_key="webhook_id",
            convert=by_row(_delivery),
            existing="webhook_id = $1",
            match=("webhook_id",),
            same=("status",),
        ),
    ),
)  # fmt: skip
VIEWS: Final = Views(
    app="music",
    names=("webhook_delivery_log",),
    functions=(
        "check_webhook_processed", "register_webhook_delivery", "complete_webhook_delivery", "fail_webhook_delivery",
        "cleanup_old_webhook_logs",
    ),
    file=Path(__file__).with_name("views.sql"),
)  # fmt: skip
