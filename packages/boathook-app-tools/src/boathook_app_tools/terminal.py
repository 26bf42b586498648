"""Functions for the commands of all apps: database access, and output as tables or JSON."""

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

_MAX_ID: Final = 40
_UNCUT: Final = 100_000
"""Width of output that is not a terminal, because programs such as `grep` need complete values."""


def ask(hook: Boathook, work: Callable[[Transaction], Awaitable[Result]]) -> Result:
    """Run a command's work in one transaction, and return its result."""

    async def inside() -> Result:
        async with hook.transaction() as tx:
            return await work(tx)

    return hook.run(inside())


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Print one JSON object per line, or a table of *columns*, by default the first row's keys."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = _UNCUT
    console.print(_table(rows, columns or list(rows[0])) if rows else Text("nothing there", style="dim"))


def say(line: str) -> None:
    """Print one line, without terminal control characters."""
    sys.stdout.write(_harmless(line) + "\n")


def print_json(row: Mapping[str, Any]) -> None:
    """Print one object on one line; times as ISO 8601 in UTC, other non-JSON values as text."""
    sys.stdout.write(json.dumps(plain(row), ensure_ascii=False, separators=(", ", ": ")) + "\n")


def plain(value: object) -> Any:
    """Return a value as JSON values."""
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
        # Ids are meant to be copied, so they are not wrapped.
        is_whole = title in {"id", "key"} and all(len(str(row[title])) <= _MAX_ID for row in rows)
        table.add_column(title.replace("_", " "), overflow="fold", no_wrap=is_whole)
    for row in rows:
        table.add_row(*(_cell(row[title]) for title in columns))
    return table


def _cell(value: object) -> Text:
    # Data from senders is plain text: no markup, and no terminal control characters.
    words = "" if value is None else _moment(value) if isinstance(value, datetime) else str(plain(value))
    return Text(_harmless(words))


def _harmless(words: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words)


def _moment(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
