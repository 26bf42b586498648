"""Options and arguments that many commands share."""

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import typer

from boathook import config
from boathook.cli.context import UsageError
from boathook.cli.output import parse_time
from boathook.domain.errors import BoathookError

Command = TypeVar("Command", bound=Callable[..., None])
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _known_sources(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the sources for shell completion, from the settings without the apps, which are slow to load."""
    file = ctx.find_root().params.get("config")
    try:
        names = config.load(file).sources
    except BoathookError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_providers(incomplete: str) -> list[str]:
    """Return the providers for shell completion."""
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving.sources import RECIPES

    return [recipe.name for recipe in RECIPES if recipe.name.startswith(incomplete)]


Source = Annotated[str | None, typer.Option(help="Only of this source.", autocompletion=_known_sources)]
Application = Annotated[str | None, typer.Option(help="Only for this application: id, its beginning, or uid.")]
Type = Annotated[str | None, typer.Option(help="Only this event type; * matches any characters.")]
Recipient = Annotated[str | None, typer.Option(help="Only this recipient; * matches any characters.")]
Code = Annotated[str | None, typer.Option(help="Only with this error code.")]
Since = Annotated[datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="From: 2h, 7d or ISO 8601.")]
Until = Annotated[datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Before: 2h, 7d or ISO 8601.")]
Unhandled = Annotated[bool, typer.Option("--unhandled", help="Only events without a matching handler.")]
Limit = Annotated[int, typer.Option(min=0, max=1_000_000_000, help="Maximum rows; 0 for all.")]
After = Annotated[str | None, typer.Option(help="Continue after this id, or its beginning.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Note = Annotated[str | None, typer.Option(help="Reason for the audit log.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


FILTERS: Final[Mapping[str, Any]] = {
    "source": Source,
    "application": Application,
    "type": Type,
    "recipient": Recipient,
    "code": Code,
    "since": Since,
    "until": Until,
}
"""The filters of deliveries and dead letters, by the field of `ListFilter`."""


def with_options(options: Mapping[str, Any], *, after: str) -> Callable[[Command], Command]:
    """Give a command these options, after its parameter *after* and in place of its ``**rest``."""

    def extend(command: Command) -> Command:
        own = list(inspect.signature(command).parameters.values())[:-1]
        more = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=option)
            for name, option in options.items()
        ]
        place = 1 + [parameter.name for parameter in own].index(after)
        cast("Any", command).__signature__ = inspect.Signature([*own[:place], *more, *own[place:]])
        return command

    return extend


def read_lifetime(text: str) -> timedelta:
    """Parse a duration such as 30d, 12h or 45m."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})([mhdw])", text)
    if match is None:
        raise typer.BadParameter(f"invalid duration {text!r}; use a number and m, h, d or w, such as 30d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def show_lifetime(seconds: int) -> str:
    """Return a duration as `read_lifetime` reads it: in whole minutes, hours or days, whichever is largest."""
    for unit, size in (("d", 86_400), ("h", 3_600)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds // 60}m"


def lifetime_option(help: str, *names: str) -> Any:
    """Return an option that takes a duration."""
    return typer.Option(*names, parser=read_lifetime, metavar="LENGTH", help=help)


def read_pairs(option: str, words: Sequence[str], separator: str) -> dict[str, str]:
    """Parse names and values, such as ``team=billing``. Raises UsageError if one has no separator."""
    pairs = {}
    for word in words:
        name, has_separator, value = word.partition(separator)
        if not has_separator or not name.strip():
            raise UsageError(f"{option}: write NAME{separator}VALUE, not {word!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def read_address(option: str, text: str, sample: str = "https://hooks.example.com") -> str:
    """Return an address with its scheme, by default plain http, as local servers have. Raises UsageError."""
    whole = text if "://" in text else f"http://{text}"
    parts = urlsplit(whole)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{option}: write an address such as {sample}, not {text!r}")
    return whole


def read_bytes(path: str) -> bytes:
    """Read a file; ``-`` is standard input. Raises UsageError."""
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def read_json(option: str, text: str) -> Any:
    """Parse a JSON text, or the file in ``@FILE``. Raises UsageError if it is invalid."""
    try:
        return json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    except OSError as error:
        raise UsageError(f"{option}: cannot read {text[1:]}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option}: invalid JSON: {error}") from None
