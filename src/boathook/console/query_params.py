"""Reads query parameters and form fields, and builds links with changed parameters."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import FormData, QueryParams

from boathook.domain.errors import InvalidValue
from boathook.domain.windows import parse_time

_MAX_CHARS: Final = 500


def get_text(params: QueryParams | FormData, name: str) -> str | None:
    """Return what was asked for under a name; None where that is nothing."""
    value = params.get(name)
    text = value.strip().replace("\x00", "") if isinstance(value, str) else ""
    return text[:_MAX_CHARS] or None


def get_time(params: QueryParams | FormData, name: str) -> datetime | None:
    """Return a moment that was asked for, in UTC where it does not say otherwise; ``2h`` and ``7d`` are so long ago.

    Raises:
        InvalidValue: it is no moment.
    """
    text = get_text(params, name)
    return None if text is None else parse_time(text, datetime.now(UTC), name)


def get_number(params: QueryParams | FormData, name: str) -> float | None:
    """Return a number that was asked for; None where that is nothing. Raises InvalidValue where it is none."""
    text = get_text(params, name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(f"invalid number {text!r}", name) from None


def get_texts(params: QueryParams | FormData, names: Iterable[str]) -> dict[str, str]:
    """Return what was asked for under these names, as it was written; empty where that is nothing."""
    return {name: get_text(params, name) or "" for name in names}


def source_options(configured: Iterable[str], chosen: str) -> list[tuple[str, str]]:
    """Return the sources that can be chosen, with the one that was, even if it is configured no more."""
    names = {*configured, chosen} - {""}
    return [("", "any"), *((name, name) for name in sorted(names))]


def build_url(path: str, params: Mapping[str, str], **more: str | int | None) -> str:
    """Return the address of a page with wishes, without those that are empty."""
    wishes = {name: value for name, value in {**params, **more}.items() if value not in {None, ""}}
    return f"{path}?{urlencode(wishes)}" if wishes else path
