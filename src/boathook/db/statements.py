"""Loads the named SQL statements that stand in a `.sql` file beside a module."""

import re
from pathlib import Path

_HEAD = re.compile(r"^-- name: *([a-z_]+) *$", re.MULTILINE)


def load(module_file: str) -> dict[str, str]:
    """Return the statements of the `.sql` file beside *module_file*, by name.

    A statement begins with the line ``-- name: verb_noun`` and ends where the next one begins.

    Raises:
        ValueError: two statements have one name.
    """
    path = Path(module_file).with_suffix(".sql")
    parts = _HEAD.split(path.read_text(encoding="utf-8"))[1:]
    names = parts[0::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{path.name} names a statement twice")
    return {name: body.strip().rstrip(";") for name, body in zip(names, parts[1::2], strict=True)}


def with_direction(statement: str, *, is_ascending: bool) -> str:
    """Return a statement that reads a list, with ``{direction}`` and ``{beyond}`` put in for one of the two ways."""
    direction, beyond = ("asc", ">") if is_ascending else ("desc", "<")
    return statement.replace("{direction}", direction).replace("{beyond}", beyond)
