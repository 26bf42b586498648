"""Options and arguments that many commands share, and how ids are read."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from boathook.cli.session import Misused
from boathook.cli.show import read_moment
from boathook.domain import ids
from boathook.journal.moves import Key

Source = Annotated[str | None, typer.Option(help="Only of this source.")]
Application = Annotated[str | None, typer.Option(help="Only for this application.")]
Type = Annotated[str | None, typer.Option(help="Only of types like this; * stands for any run of characters.")]
Recipient = Annotated[str | None, typer.Option(help="Only for recipients like this; * as in --type.")]
Code = Annotated[str | None, typer.Option(help="Only with this error code.")]
Since = Annotated[
    datetime | None, typer.Option(parser=read_moment, metavar="TIME", help="Not before: 2h, 7d or ISO 8601.")
]
Until = Annotated[datetime | None, typer.Option(parser=read_moment, metavar="TIME", help="Before: 2h, 7d or ISO 8601.")]
Limit = Annotated[int, typer.Option(min=0, help="Most rows; 0 for all.")]
After = Annotated[str | None, typer.Option(help="The id of the last row of the page before.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Note = Annotated[str | None, typer.Option(help="Why, for the audit.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="At most so many fall due a second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
All = Annotated[bool, typer.Option("--all", help="Really all of them.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Which; or use the filters.", show_default=False)]
Reason = Annotated[str | None, typer.Option(help="Only refused for this reason.")]


def example(*lines: str) -> str:
    """Return the examples at the end of a command's help."""
    return "\n\n".join(f"Example: {line}" for line in lines)


def read_ids(prefix: str, words: Sequence[str]) -> list[UUID]:
    """Read ids as people write them. Raises Misused where one is none."""
    try:
        return [ids.read(prefix, word) for word in words]
    except ValueError as error:
        raise Misused(str(error)) from None


def read_delivery_ids(words: Sequence[str]) -> list[Key]:
    """Read ids of deliveries as people write them. Raises Misused where one is none."""
    try:
        return [ids.read_delivery(word) for word in words]
    except ValueError as error:
        raise Misused(str(error)) from None
