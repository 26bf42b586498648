"""Says what is wrong with a setting: where it stands, its key, and what to write; never a secret."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import BaseModel, ValidationError

_SECRET: Final = re.compile(r"(?i)(^|[._])(secret|token|password|passphrase|key)s?$")
_INDEX: Final = re.compile(r"\[\d+\]")


def is_secret(key: str) -> bool:
    """Return whether the value of a dotted key is a secret, going by its name."""
    return bool(_SECRET.search(_INDEX.sub("", key)))


def describe_error(error: ValidationError, origin_of: Callable[[str], str], table: str = "") -> str:
    """Return one line about the first thing that is wrong in *table*, such as ``boathook.toml: worker.poll_s: ...``.

    Args:
        origin_of: Where a dotted key was written.
    """
    first = error.errors(include_url=False)[0]
    names = [part for part in (table, *first["loc"]) if part != "" and not (isinstance(part, str) and "[" in part)]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
    origin = origin_of(key.partition("[")[0])
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("a valid tuple", 'a list, such as ["..."]')
    if not key:
        return f"{origin}: {message}"
    # The value of a key that is none may be a secret's, whose name was mistyped.
    is_unknown = first["type"] == "extra_forbidden"
    is_hidden = is_unknown or is_secret(key) or _has_password(first["input"]) or _is_table(first["input"])
    is_hidden = is_hidden or key == "database.url"
    given = "" if is_hidden else f" (it is {first['input']!r})"
    return f"{origin}: {key}: {_WORDS.get(first['type']) or message[:1].lower() + message[1:]}{given}"


def _has_password(value: object) -> bool:
    """Return whether a wrong value may be an address with a password in it."""
    return isinstance(value, str) and "@" in value


def _is_table(value: object) -> bool:
    """Return whether a wrong value is a table, or holds one, among whose keys may be secrets."""
    if isinstance(value, list | tuple):
        return any(map(_is_table, value))
    return isinstance(value, Mapping | BaseModel)


_WORDS: Final = {"missing": "is missing", "extra_forbidden": "is not a setting"}
