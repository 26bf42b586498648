"""Loads named SQL statements from the `.sql` file next to a module."""

import re
from pathlib import Path

_HEAD = re.compile(r"^-- (name|fragment): *([a-z_]+) *$", re.MULTILINE)


def load(module_file: str, *, fragments_of: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the statements of the `.sql` file next to *module_file*, by name.

    A statement begins with the line ``-- name: verb_noun`` and ends where the next one begins. A part that several
    statements share begins with ``-- fragment: name`` and replaces ``{name}`` in these statements.

    Args:
        fragments_of: other modules, whose fragments may be used too.

    Raises:
        ValueError: two statements have the same name.
    """
    statements = _read(module_file, "name")
    fragments = {name: text for file in (module_file, *fragments_of) for name, text in _read(file, "fragment").items()}
    for name in statements:
        for fragment, text in fragments.items():
            statements[name] = statements[name].replace(f"{{{fragment}}}", text)
    return statements


def _read(module_file: str, statement_kind: str) -> dict[str, str]:
    path = Path(module_file).with_suffix(".sql")
    parts = _HEAD.split(path.read_text(encoding="utf-8"))[1:]
    names = parts[1::3]
    if len(set(names)) != len(names):
        raise ValueError(f"{path.name} names a statement twice")
    each = zip(parts[0::3], names, parts[2::3], strict=True)
    return {name: body.strip().rstrip(";") for kind, name, body in each if kind == statement_kind}


def with_direction(statement: str, *, is_ascending: bool) -> str:
    """Replace ``{direction}`` and ``{beyond}`` in a list statement for ascending or descending order."""
    direction, beyond = ("asc", ">") if is_ascending else ("desc", "<")
    return statement.replace("{direction}", direction).replace("{beyond}", beyond)
