"""How things look on a terminal, and as JSON."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from rich.console import OverflowMethod
from rich.table import Table
from rich.text import Text

from boathook.cli.context import UsageError, err, out
from boathook.domain import times
from boathook.domain.errors import InvalidValue

Row = TypeVar("Row")

PAGE: Final = 1_000
_MIN_WIDTH: Final = 6
_GAP: Final = 2
_STYLES: Final = {
    "dead": "red",
    "fail": "red",
    "failed": "red",
    "lost": "red",
    "pending": "yellow",
    "retry": "yellow",
    "warn": "yellow",
    "leased": "cyan",
    "succeeded": "green",
    "ok": "green",
    "ignored": "dim",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a listing."""

    title: str
    value: Callable[[Any], object]
    is_whole: bool = False
    """Whether it must never be cut, such as an id that is to be copied."""
    may_wrap: bool = False
    """Whether it goes on in the next line where there is no room, such as an address."""
    is_optional: bool = False
    """Whether it is left out where no row has anything to say."""


def parse_time(text: str) -> datetime:
    """Read a moment: ISO 8601 (UTC unless it says otherwise), or so long ago, such as ``90s``, ``2h`` or ``7d``."""
    try:
        return times.parse_time(text.strip(), datetime.now(UTC))
    except InvalidValue as error:
        raise UsageError(str(error)) from None


def format_age(moment: datetime | None) -> str:
    """Write how long ago a moment was, or how far ahead it is, in at most four letters and a sign."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    sign, seconds = ("+", -seconds) if seconds < 0 else ("", seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{sign}{int(seconds // size)}{unit}"
    return f"{sign}{int(seconds)}s"


def moment(value: datetime | None) -> str:
    """Write a moment whole, to the millisecond, in UTC."""
    return (
        ""
        if value is None
        else value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    )


def grade(value: str) -> str:
    """Write what a proof covers in one word, for tables: body, metadata, token, address or none."""
    return value.partition(" ")[0]


def plain(value: object) -> Any:
    """Return a value as JSON has it: moments as ISO 8601 in UTC, bytes as text where they are UTF-8."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def print_json(value: object) -> None:
    """Print one object on one line."""
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=False, separators=(", ", ": ")) + "\n")


def text(value: object) -> Text:
    """Return a value as text in which nothing is markup and no character steers the terminal."""
    words = "" if value is None else str(value)
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words)
    return Text(shown, style=_STYLES.get(shown, ""))


def table(columns: Sequence[Column], rows: Sequence[object]) -> Table:
    """Return a table that fits the terminal; where the output is none, nothing is cut.

    What must be cut ends in an ellipsis; where there is no room even for that, the last columns are left out.
    """
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    columns = [column for column in columns if not column.is_optional or any(map(column.value, rows))]
    cells = [[text(column.value(row)) for column in columns] for row in rows]
    widths = _widths(columns, cells, out.width)
    for column, width in zip(columns, widths, strict=False):
        overflow: OverflowMethod = "fold" if column.may_wrap else "ellipsis"
        made.add_column(column.title, no_wrap=not column.may_wrap, overflow=overflow, width=width)
    for row in cells:
        made.add_row(*row[: len(widths)])
    return made


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[Text]], room: int) -> list[int]:
    """Return how wide each column is made, in order, of as many as there is room for."""
    widest = [max([len(column.title), *(row[place].cell_len for row in cells)]) for place, column in enumerate(columns)]
    widths = [
        width if column.is_whole else min(width, _MIN_WIDTH) for column, width in zip(columns, widest, strict=True)
    ]
    while len(widths) > 1 and sum(widths) + _GAP * (len(widths) - 1) > room:
        widths.pop()
    spare = room - sum(widths) - _GAP * (len(widths) - 1)
    while spare > 0 and (cut := [place for place, width in enumerate(widths) if width < widest[place]]):
        widths[min(cut, key=widths.__getitem__)] += 1
        spare -= 1
    return widths


def print_fields(pairs: Mapping[str, object]) -> None:
    """Print names and values, one a line, without what is empty."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        if value is not None and value != "":
            out.print(Text(f"{name:<{width}}  ", style="bold") + text(value), soft_wrap=True)


def print_one(values: Mapping[str, object], *, as_json: bool) -> None:
    """Print the fields of one object, for people or as JSON."""
    if as_json:
        print_json(values)
    else:
        print_fields(format_fields(values))


def print_block(title: str, body: str) -> None:
    """Print a titled block of text as it is, except for what would steer the terminal."""
    out.print(Text(title, style="bold"))
    safe = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in body)
    out.print(Text(safe.rstrip("\n")), soft_wrap=True)
    out.print()


async def fetch_rows(
    fetch: Callable[[UUID | None, int], Awaitable[Sequence[Row]]], place: UUID | None, limit: int
) -> list[Row]:
    """Return so many rows of a listing from *place* on, fetched in pages; limit 0 means all."""
    rows: list[Row] = []
    left = limit or sys.maxsize
    while left > 0:
        page = await fetch(place, min(PAGE, left))
        rows += page
        if len(page) < min(PAGE, left):
            break
        left -= len(page)
        place = getattr(page[-1], "id")  # noqa: B009 - rows of any listing have one
    return rows


def print_rows(
    rows: Sequence[Row], columns: Sequence[Column], *, as_json: bool, plain: Callable[[Row], object], after: str = ""
) -> None:
    """Print rows as a table, or as one JSON object a line.

    Args:
        plain: makes a row's JSON object.
        after: what to give as --after for the next page; empty where there is none.
    """
    if as_json:
        for row in rows:
            print_json(plain(row))
        return
    if rows:
        out.print(table(columns, rows))
    else:
        err.print("nothing found", style="dim")
    if after:
        err.print(f"more results: add --after {after} or raise --limit", style="dim", soft_wrap=True)


def format_fields(values: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of an object as people read them: words for names, moments whole, lists in one line."""
    return {name.replace("_", " "): _readable(value) for name, value in values.items()}


def _readable(value: object) -> object:
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return json.dumps(plain(value), ensure_ascii=False) if value else None
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return value


async def print_pages(
    pages: AsyncIterator[Sequence[Any]], columns: Sequence[Column], *, limit: int, as_json: bool
) -> None:
    """Print the pages of a listing, as tables or one JSON object a line; *limit* rows may not be all."""
    last, number = None, 0
    async for rows in pages:
        number += len(rows)
        last = rows[-1].id
        if as_json:
            for row in rows:
                print_json(row)
        else:
            out.print(table(columns, rows))
    if not as_json and number == 0:
        err.print("nothing found", style="dim")
    elif not as_json and number == limit:
        err.print(f"more results: add --after {last} or raise --limit", style="dim", soft_wrap=True)
