"""Reads query parameters and form fields, and builds links with changed parameters."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import FormData, QueryParams

from boathook.domain.windows import parse_time

_MAX_CHARS: Final = 500


def get_text(params: QueryParams | FormData, name: str) -> str | None:
    """Return the value of a parameter; None if it is missing or empty."""
    value = params.get(name)
    text = value.strip().replace("\x00", "") if isinstance(value, str) else ""
    return text[:_MAX_CHARS] or None


def get_time(params: QueryParams | FormData, name: str) -> datetime | None:
    """Return a time; without a time zone it is UTC, and ``2h`` or ``7d`` count back from now.

    Raises:
        InvalidValue: it is not a time.
    """
    text = get_text(params, name)
    return None if text is None else parse_time(text, datetime.now(UTC), name)


def get_texts(params: QueryParams | FormData, names: Iterable[str]) -> dict[str, str]:
    """Return the values of these parameters as text; empty if missing."""
    return {name: get_text(params, name) or "" for name in names}


def source_options(configured: Iterable[str], selected: str) -> list[tuple[str, str]]:
    """Return the options of a source filter, including the chosen source even if it is no longer configured."""
    names = {*configured, selected} - {""}
    return [("", "any"), *((name, name) for name in sorted(names))]


def build_url(path: str, params: Mapping[str, str], **more: str | int | None) -> str:
    """Return the URL of a page with the parameters that are not empty."""
    pairs = {name: value for name, value in {**params, **more}.items() if value not in {None, ""}}
    return f"{path}?{urlencode(pairs)}" if pairs else path
