"""What visitors ask for, read from addresses and forms, and links back to a page with other wishes."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import FormData, QueryParams

from boathook.domain.errors import InvalidValue
from boathook.domain.moments import read_moment

_LONGEST: Final = 500


def word(asked: QueryParams | FormData, name: str) -> str | None:
    """Return what was asked for under a name; None where that is nothing."""
    value = asked.get(name)
    text = value.strip().replace("\x00", "") if isinstance(value, str) else ""
    return text[:_LONGEST] or None


def moment(asked: QueryParams | FormData, name: str) -> datetime | None:
    """Return a moment that was asked for, in UTC where it does not say otherwise; ``2h`` and ``7d`` are so long ago.

    Raises:
        InvalidValue: it is no moment.
    """
    text = word(asked, name)
    return None if text is None else read_moment(text, datetime.now(UTC), name)


def number(asked: QueryParams | FormData, name: str) -> float | None:
    """Return a number that was asked for; None where that is nothing. Raises InvalidValue where it is none."""
    text = word(asked, name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is no number", name) from None


def words(asked: QueryParams | FormData, names: Iterable[str]) -> dict[str, str]:
    """Return what was asked for under these names, as it was written; empty where that is nothing."""
    return {name: word(asked, name) or "" for name in names}


def sources(configured: Iterable[str], chosen: str) -> list[tuple[str, str]]:
    """Return the sources that can be chosen, with the one that was, even if it is configured no more."""
    names = {*configured, chosen} - {""}
    return [("", "any"), *((name, name) for name in sorted(names))]


def link(path: str, asked: Mapping[str, str], **more: str | int | None) -> str:
    """Return the address of a page with wishes, without those that are empty."""
    wishes = {name: value for name, value in {**asked, **more}.items() if value not in {None, ""}}
    return f"{path}?{urlencode(wishes)}" if wishes else path
