"""Expands lines of migrations that stand for the text of another file: SQL functions, and tables of boathook's kits.

The line ``-- function: settle`` of boathook's own migrations becomes the text of ``functions/settle.sql``.

The line ``-- include: sign_in 1`` of an app's migration becomes the text of ``included/sign_in_1.sql``, with the app's
schema in place of ``{schema}``. A word after the number is the prefix of the tables' names. A change of the tables is a
file with the next number, which the app includes in a new migration.
"""

import re
from pathlib import Path
from typing import Final

from boathook.domain.errors import ConfigError

_FOLDER: Final = Path(__file__).with_name("included")
_FUNCTIONS: Final = Path(__file__).with_name("functions")
_FUNCTION: Final = re.compile(r"^-- function: ([a-z_]+)$", re.MULTILINE)
_LINE: Final = re.compile(r"^-- include:(.*)$", re.MULTILINE)
_REFERENCE: Final = re.compile(r"\s*([a-z_]+)[ \t]+([1-9][0-9]?)(?:[ \t]+([a-z][a-z0-9_]{0,19}))?\s*")


def expand(sql: str, schema: str, place: str) -> str:
    """Return the text of a migration with all includes expanded. Raises ConfigError, which names *place*."""
    return _LINE.sub(lambda line: _read(line, schema, place), sql)


def expand_functions(sql: str) -> str:
    """Return the text of one of boathook's own migrations with the functions that it creates."""
    return _FUNCTION.sub(lambda line: (_FUNCTIONS / f"{line[1]}.sql").read_text(encoding="utf-8").rstrip("\n"), sql)


def check_included(app: str, folder: Path | None, name: str, version: int, prefix: str) -> None:
    """Check that a migration in an app's folder has the line for one kit, version and prefix. Raises ConfigError."""
    wanted = (name, str(version), prefix or None)
    for path in [] if folder is None else folder.glob("*.sql"):
        references = (_REFERENCE.fullmatch(line[1]) for line in _LINE.finditer(path.read_text(encoding="utf-8")))
        if any(found is not None and found.groups() == wanted for found in references):
            return
    line = f"-- include: {name} {version} {prefix}".rstrip()
    raise ConfigError(f"{name}: no migration of {app} has the line `{line}`; put it into a new one")


def _read(line: re.Match[str], schema: str, place: str) -> str:
    reference = _REFERENCE.fullmatch(line[1])
    if reference is None:
        raise ConfigError(f"{place}: {line[0]!r} must look like `-- include: sign_in 1`, or `... 1 prefix_`")
    name, version, prefix = reference.groups()
    path = _FOLDER / f"{name}_{version}.sql"
    if not path.is_file():
        known = ", ".join(sorted(" ".join(file.stem.rsplit("_", 1)) for file in _FOLDER.glob("*.sql")))
        raise ConfigError(f"{place}: there is nothing to include as {name} {version}; known are: {known}")
    text = path.read_text(encoding="utf-8")
    return text.replace("{schema}", schema).replace("{prefix}", prefix or "")
