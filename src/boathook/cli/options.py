"""Options and arguments that many commands share, and how ids are read."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from boathook import config
from boathook.cli.context import UsageError
from boathook.cli.output import parse_time
from boathook.domain import ids
from boathook.domain.errors import BoathookError

if TYPE_CHECKING:
    from boathook.service.operations import Key


def _known_sources(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the sources that a shell offers: those of the settings, as nothing else is at hand at once."""
    file = ctx.find_root().params.get("config")
    try:
        names = config.load(file).sources
    except BoathookError:
        return []
    return [name for name in names if name.startswith(incomplete)]


Source = Annotated[str | None, typer.Option(help="Only of this source.", autocompletion=_known_sources)]
Application = Annotated[str | None, typer.Option(help="Only for this application (id or uid).")]
Type = Annotated[str | None, typer.Option(help="Only this event type; * matches any characters.")]
Recipient = Annotated[str | None, typer.Option(help="Only this recipient; * matches any characters.")]
Code = Annotated[str | None, typer.Option(help="Only with this error code.")]
Since = Annotated[datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="From: 2h, 7d or ISO 8601.")]
Until = Annotated[datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Before: 2h, 7d or ISO 8601.")]
Unhandled = Annotated[bool, typer.Option("--unhandled", help="Only events without a matching handler.")]
Limit = Annotated[int, typer.Option(min=0, help="Maximum rows; 0 for all.")]
After = Annotated[str | None, typer.Option(help="Continue after this id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Note = Annotated[str | None, typer.Option(help="Reason for the audit log.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Maximum per second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
All = Annotated[bool, typer.Option("--all", help="Select all.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids; or use the filters.", show_default=False)]
Metadata = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Metadata; repeatable.", show_default=False)
]
InGroup = Annotated[
    str | None, typer.Option(metavar="ID", help="All of this group, as `boathook dead groups` lists them.")
]
Reason = Annotated[str | None, typer.Option(help="Only rejected for this reason.")]


def read_ids(prefix: str, words: Sequence[str]) -> list[UUID]:
    """Read ids as people write them; an event may be named as the message it is. Raises Misused where one is none."""
    try:
        return [ids.read_event(word) if prefix == ids.EVENT else ids.read(prefix, word) for word in words]
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_delivery_ids(words: Sequence[str]) -> "list[Key]":
    """Read ids of deliveries as people write them. Raises Misused where one is none."""
    try:
        return [ids.read_delivery(word) for word in words]
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_pairs(option: str, words: Sequence[str], separator: str) -> dict[str, str]:
    """Read names and values, such as ``team=billing``. Raises Misused where one has no separator."""
    pairs = {}
    for word in words:
        name, found, value = word.partition(separator)
        if not found or not name.strip():
            raise UsageError(f"{option}: write NAME{separator}VALUE, not {word!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def read_json(option: str, text: str) -> Any:
    """Read a JSON text, or the file named by ``@FILE``. Raises Misused where it is none."""
    try:
        return json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    except OSError as error:
        raise UsageError(f"{option}: cannot read {text[1:]}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option}: invalid JSON: {error}") from None
