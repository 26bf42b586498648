"""Output on a terminal and as JSON: tables, fields, pages and progress."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import typer
from msgspec.structs import asdict, replace
from rich.box import Box
from rich.console import JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from boathook.cli.context import UsageError, err, out, run_with_database
from boathook.domain import windows
from boathook.domain.errors import InvalidValue

if TYPE_CHECKING:
    from boathook.service.database import Database
    from boathook.service.operating.listings import ListFilter

Row = TypeVar("Row")
Place = TypeVar("Place")

PAGE: Final = 1_000
"""Rows per query."""
_MIN_WIDTH: Final = 6
_GAP: Final = 2
_STYLES: Final = {
    "dead": "red",
    "fail": "red",
    "failed": "red",
    "lost": "red",
    "pending": "yellow",
    "retry": "yellow",
    "waiting": "yellow",
    "warn": "yellow",
    "leased": "cyan",
    "succeeded": "green",
    "ok": "green",
    "ignored": "dim",
}


def value_of(row: object, name: str) -> Any:
    """Return the attribute or key *name* of a row; for ``id``, the id in its external form."""
    if isinstance(row, Mapping):
        return row[name]
    return getattr(row, "shown_id", None) or getattr(row, "id") if name == "id" else getattr(row, name)  # noqa: B009


class Column(msgspec.Struct, frozen=True):
    """One column of a listing."""

    title: str
    read: str | Callable[[Any], object] = ""
    """The attribute or key it shows, or a function of the row; defaults to the title."""
    is_whole: bool = False
    """Whether it is neither truncated nor omitted: what users copy or search for, such as ids, codes and recipients."""
    is_number: bool = False
    """Whether it is aligned to the right and omitted rather than truncated."""
    may_wrap: bool = False
    """Whether long values wrap to the next line, such as URLs."""
    is_optional: bool = False
    """Whether it is omitted if no row has a value."""

    def value(self, row: object) -> object:
        """Return its value for a row."""
        return self.read(row) if callable(self.read) else value_of(row, self.read or self.title)


ID: Final = Column("id", is_whole=True)
CODE: Final = Column("code", is_whole=True)
RECIPIENT: Final = Column("recipient", is_whole=True)
STATE: Final = Column("state", is_whole=True)
Field = str | tuple[str, str | Callable[[Any], object]]


class View(msgspec.Struct, frozen=True):
    """Describes how objects of one kind are listed, shown and printed as JSON; each command group declares one."""

    columns: Sequence[Column]
    fields: Sequence[Field] = ()
    """The JSON fields, each with its source if that has another name; () for all."""
    cursor: str = "id"
    """The field that --after takes."""

    def plain(self, row: Any) -> Any:
        """Return the JSON object of a row."""
        if not self.fields:
            return row
        pairs = [(field, field) if isinstance(field, str) else field for field in self.fields]
        return {name: read(row) if callable(read) else value_of(row, read) for name, read in pairs}

    def print_rows(self, rows: Sequence[object], *, as_json: bool) -> None:
        """Print rows as a table, or as one JSON object per line."""
        if as_json:
            for row in rows:
                print_json(self.plain(row))
        elif rows:
            print_table(self.columns, rows)
        else:
            hint("nothing found")

    async def print_pages(self, pages: AsyncIterator[Sequence[object]], *, limit: int, as_json: bool) -> None:
        """Print the pages of a listing; after *limit* rows, print a hint that there may be more."""
        last, number = None, 0
        async for rows in pages:
            self.print_rows(rows, as_json=as_json)
            number += len(rows)
            last = rows[-1]
        if not as_json and last is None:
            hint("nothing found")
        elif not as_json and number == limit:
            hint(f"more results: add --after {value_of(last, self.cursor)} or raise --limit")

    def print_one(self, row: object, *, as_json: bool) -> None:
        """Print one object field by field, or as JSON."""
        if as_json:
            print_json(self.plain(row))
        else:
            print_fields(format_fields(self.plain(row)))

    def print_done(self, row: object, message: object, *, as_json: bool) -> None:
        """Print a message about an action, or the resulting object as JSON."""
        print_done(self.plain(row), message, as_json=as_json)


async def pages(
    fetch: Callable[[Place | None, int], Awaitable[Sequence[Row]]],
    place: Place | None,
    limit: int,
    place_of: Callable[[Row], Place],
) -> AsyncIterator[Sequence[Row]]:
    """Yield up to *limit* rows of a listing in pages, starting after *place*; limit 0 means all."""
    rows_left = limit or sys.maxsize
    while rows_left > 0:
        limit = min(PAGE, rows_left)
        rows = await fetch(place, limit)
        if rows:
            yield rows
        if len(rows) < limit:
            return
        rows_left -= len(rows)
        place = place_of(rows[-1])


def print_listing(
    ctx: typer.Context,
    lister: Callable[["Database", "ListFilter"], Awaitable[Sequence[Any]]],
    filters: "ListFilter",
    view: View,
    prefix: str,
    *,
    as_json: bool,
) -> None:
    """Print the rows of a stored listing that match *filters*, page by page; *prefix* begins their ids."""
    # Imported only here, as many commands do not need PostgreSQL.
    from boathook.service.id_prefixes import complete_filter

    async def read(database: "Database") -> None:
        whole = await complete_filter(database, prefix, filters)
        batches = pages(
            lambda after, limit: lister(database, replace(whole, after=after, limit=limit)),
            whole.after,
            whole.limit,
            lambda row: str(row.id),
        )
        await view.print_pages(batches, limit=filters.limit, as_json=as_json)

    run_with_database(ctx, read)


def parse_time(text: str) -> datetime:
    """Parse a time: ISO 8601 (UTC by default), or a duration before now, such as ``90s``, ``2h`` or ``7d``."""
    try:
        return windows.parse_time(text.strip(), datetime.now(UTC))
    except InvalidValue as error:
        raise UsageError(str(error)) from None


def format_age(at: datetime | None) -> str:
    """Format the time since *at* in its largest unit; times in the future start with ``+``."""
    if at is None:
        return ""
    seconds = (datetime.now(UTC) - at).total_seconds()
    sign, seconds = ("+", -seconds) if seconds < 0 else ("", seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{sign}{int(seconds // size)}{unit}"
    return f"{sign}{int(seconds)}s"


def timestamp(value: datetime | None) -> str:
    """Format a time in UTC, to the millisecond."""
    if value is None:
        return ""
    return value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def age_of(name: str) -> Callable[[object], str]:
    """Return a function that formats the age of a row's field *name*."""
    return lambda row: format_age(value_of(row, name))


def moment_of(name: str) -> Callable[[object], str]:
    """Return a function that formats a row's field *name* as a time."""
    return lambda row: timestamp(value_of(row, name))


def grade(value: str) -> str:
    """Return a proof strength as one word for tables: body, metadata, token, address or none."""
    return value.partition(" ")[0]


def plain(value: object) -> Any:
    """Return a value as plain JSON types: times as ISO 8601 in UTC, bytes as UTF-8 text with escapes."""
    if isinstance(value, msgspec.Struct):
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
    """Return a value as text without markup and without control characters."""
    words = "" if value is None else str(value)
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words)
    return Text(printable, style=_STYLES.get(printable, ""))


def print_table(columns: Sequence[Column], rows: Sequence[object]) -> None:
    """Print rows as a table; see `table`."""
    out.print(table(columns, rows), crop=False)


def table(
    columns: Sequence[Column],
    rows: Sequence[Any],
    *,
    box: Box | None = None,
    style_of: Callable[[Any], str] = lambda _: "",
) -> Table:
    """Return a table that fits the terminal; if the output is not a terminal, nothing is truncated.

    Truncated values end in an ellipsis. If the width is too small even for that, the last columns that may be truncated
    are omitted. If it is too small for the whole columns alone, lines are longer than the terminal is wide.
    """
    columns = [column for column in columns if not column.is_optional or any(map(column.value, rows))]
    lines = [[text(column.value(row)) for column in columns] for row in rows]
    edges = 0 if box is None else 2
    widths = _widths(columns, lines, out.width - edges)
    needed = sum(widths.values()) + _GAP * (len(widths) - 1) + edges
    gap = _GAP if box is None else _GAP - 1  # which the box adds
    rich_table = Table(box=box, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    rich_table.width = needed if needed > out.width else None
    for place, width in widths.items():
        column = columns[place]
        overflow: OverflowMethod = "fold" if column.may_wrap else "ellipsis"
        justify: JustifyMethod = "right" if column.is_number else "left"
        rich_table.add_column(
            column.title, justify=justify, no_wrap=not column.may_wrap, overflow=overflow, width=width
        )
    for row, line in zip(rows, lines, strict=True):
        rich_table.add_row(*(line[place] for place in widths), style=style_of(row))
    return rich_table


def _widths(columns: Sequence[Column], lines: Sequence[Sequence[Text]], room: int) -> dict[int, int]:
    """Return the width of each column that is shown, by its place."""
    widest = [
        max([len(column.title), *(line[place].cell_len for line in lines)]) for place, column in enumerate(columns)
    ]
    widths = {
        place: widest[place] if column.is_whole or column.is_number else min(widest[place], _MIN_WIDTH)
        for place, column in enumerate(columns)
    }

    def spare() -> int:
        return room - sum(widths.values()) - _GAP * (len(widths) - 1)

    while spare() < 0 and len(widths) > 1 and (last := [place for place in widths if not columns[place].is_whole][-1:]):
        del widths[last[0]]
    for _ in range(spare()):
        if cut := [place for place, width in widths.items() if width < widest[place]]:
            widths[min(cut, key=widths.__getitem__)] += 1
    return widths


def print_fields(pairs: Mapping[str, object]) -> None:
    """Print names and values, one per line, without empty values."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        if value is not None and value != "":
            out.print(Text(f"{name:<{width}}  ", style="bold") + text(value), soft_wrap=True)


def print_done(fields: object, message: object, *, as_json: bool) -> None:
    """Print a message about an action, or *fields* as JSON."""
    if as_json:
        print_json(fields)
    else:
        say(message)


def say(message: object) -> None:
    """Print one line without markup and control characters."""
    out.print(text(message), soft_wrap=True)


def hint(message: str) -> None:
    """Print a message that is not a result to standard error."""
    err.print(text(message), style="dim", soft_wrap=True)


def print_block(title: str, body: str) -> None:
    """Print a titled block of text without control characters."""
    out.print(Text(title, style="bold"))
    safe = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in body)
    out.print(Text(safe.rstrip("\n")), soft_wrap=True)
    out.print()


def print_request(headers: Mapping[str, str], body: bytes) -> None:
    """Print a stored request; bytes of its body that are not UTF-8 are written as \\xNN."""
    print_block("headers", "\n".join(f"{name}: {value}" for name, value in headers.items()) or "(none stored)")
    print_block(f"body, {len(body)} bytes", body.decode("utf-8", "backslashreplace"))


def format_fields(values: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of an object for display: readable names, formatted times, lists on one line."""
    return {name.replace("_", " "): _readable(value) for name, value in values.items()}


def _readable(value: object) -> object:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return json.dumps(plain(value), ensure_ascii=False) if value else None
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return value


class Progress:
    """Shows progress on a terminal: a bar, or a count if the total is unknown; silent elsewhere."""

    def __init__(self, title: str, total: int | None = None) -> None:
        # Imported only here, as most commands do not need it.
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Callable[[int], None]:
        """Show the progress, and return the callback that updates it."""
        self._bar.start()
        return lambda completed: self._bar.update(self._task, completed=completed)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
