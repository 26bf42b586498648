"""What the commands of all apps share: how they ask the database, and how rows look on a terminal and as JSON."""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from boathook import Boathook, Transaction

Result = TypeVar("Result")
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

_LONGEST_ID: Final = 40
_UNCUT: Final = 100_000
"""Columns of what is no terminal: whatever reads it wants values whole, such as `grep`."""


def ask(hook: Boathook, work: Callable[[Transaction], Awaitable[Result]]) -> Result:
    """Do a command's work in one transaction, and return what comes of it."""

    async def inside() -> Result:
        async with hook.transaction() as tx:
            return await work(tx)

    return hook.run(inside())


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Print one JSON object a line, else a table of these *columns*; without any, of the first row's keys."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = _UNCUT
    console.print(_table(rows, columns or list(rows[0])) if rows else Text("nothing there", style="dim"))


def say(line: str) -> None:
    """Print one line for people, without what would steer their terminal."""
    sys.stdout.write(_harmless(line) + "\n")


def print_json(row: Mapping[str, Any]) -> None:
    """Print one object on one line; moments as ISO 8601 in UTC, other values that JSON lacks as text."""
    sys.stdout.write(json.dumps(plain(row), ensure_ascii=False, separators=(", ", ": ")) + "\n")


def plain(value: object) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in columns:
        # An id is there to be copied.
        is_whole = title == "id" and all(len(str(row[title])) <= _LONGEST_ID for row in rows)
        table.add_column(title.replace("_", " "), overflow="fold", no_wrap=is_whole)
    for row in rows:
        table.add_row(*(_cell(row[title]) for title in columns))
    return table


def _cell(value: object) -> Text:
    # What strangers wrote is text: no markup, and no character that steers the terminal.
    words = "" if value is None else _moment(value) if isinstance(value, datetime) else str(plain(value))
    return Text(_harmless(words))


def _harmless(words: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words)


def _moment(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
