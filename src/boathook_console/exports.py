"""Writes rows as files to download: CSV or JSON lines."""

import csv
import io
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from boathook.domain.errors import InvalidValue

MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}


def check_kind(kind: str) -> None:
    """Raise InvalidValue if there is no such file format."""
    if kind not in MEDIA_TYPES:
        raise InvalidValue("unknown file format; use csv or jsonl", "kind")


def stream_file(name: str, kind: str, pieces: AsyncIterator[bytes]) -> Response:
    """Return a response that streams a file."""
    headers = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    return StreamingResponse(pieces, media_type=MEDIA_TYPES[kind], headers=headers)


def to_csv(rows: Iterable[Iterable[object]]) -> bytes:
    """Return rows as lines of CSV; None is empty."""
    text = io.StringIO()
    csv.writer(text).writerows([_escape_formula("" if cell is None else str(cell)) for cell in row] for row in rows)
    return text.getvalue().encode()


def to_json_lines(rows: Iterable[Any]) -> bytes:
    """Return objects as lines of JSON."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _escape_formula(text: str) -> str:
    """Prevent a spreadsheet from interpreting a text as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
