"""Expands lines of migrations that stand for the text of another file: SQL functions, and tables that apps share.

The line ``-- function: settle`` of boathook's own migrations becomes the text of ``functions/settle.sql``.

The line ``-- include: sign_in 1`` of an app's migration becomes the text of ``included/sign_in_1.sql``, with the app's
schema in place of ``{schema}``. A word after the number is the prefix of the tables' names. A change of the tables is a
file with the next number, which the app includes in a new migration. The line ``-- include: shop_tools.orders 1``
becomes the text of ``included/orders_1.sql`` in the package ``shop_tools``.
"""

import importlib.util
import re
from pathlib import Path
from typing import Final

from boathook.domain.errors import ConfigError

_FOLDER: Final = Path(__file__).with_name("included")
_FUNCTIONS: Final = Path(__file__).with_name("functions")
_FUNCTION: Final = re.compile(r"^-- function: ([a-z_]+)$", re.MULTILINE)
_LINE: Final = re.compile(r"^-- include:(.*)$", re.MULTILINE)
_REFERENCE: Final = re.compile(r"\s*(?:([a-z]\w*)\.)?([a-z_]+)[ \t]+([1-9][0-9]?)(?:[ \t]+([a-z][a-z0-9_]{0,19}))?\s*")


def expand(sql: str, schema: str, place: str) -> str:
    """Return the text of a migration with all includes expanded. Raises ConfigError, which names *place*."""
    return _LINE.sub(lambda line: _read(line, schema, place), sql)


def expand_functions(sql: str) -> str:
    """Return the text of one of boathook's own migrations with the functions that it creates."""
    return _FUNCTION.sub(lambda line: (_FUNCTIONS / f"{line[1]}.sql").read_text(encoding="utf-8").rstrip("\n"), sql)


def check_included(app: str, folder: Path | None, name: str, version: int, prefix: str) -> None:
    """Check that a migration in an app's folder has the line for one kit, version and prefix. Raises ConfigError."""
    kit = (None, name, str(version), prefix or None)
    for path in [] if folder is None else folder.glob("*.sql"):
        references = (_REFERENCE.fullmatch(line[1]) for line in _LINE.finditer(path.read_text(encoding="utf-8")))
        if any(reference is not None and reference.groups() == kit for reference in references):
            return
    line = f"-- include: {name} {version} {prefix}".rstrip()
    raise ConfigError(f"{name}: no migration of {app} has the line `{line}`; put it into a new one")


def _read(line: re.Match[str], schema: str, place: str) -> str:
    reference = _REFERENCE.fullmatch(line[1])
    if reference is None:
        raise ConfigError(f"{place}: {line[0]!r} must look like `-- include: sign_in 1`, or `... 1 prefix_`")
    package, name, version, prefix = reference.groups()
    folder = _FOLDER if package is None else _folder_of(package, place)
    path = folder / f"{name}_{version}.sql"
    if not path.is_file():
        names = ", ".join(sorted(" ".join(file.stem.rsplit("_", 1)) for file in folder.glob("*.sql")))
        raise ConfigError(f"{place}: there is nothing to include as {name} {version}; known are: {names}")
    text = path.read_text(encoding="utf-8").replace("{schema}", schema).replace("{prefix}", prefix or "")
    # The line has a newline of its own; with the kits' texts, applied migrations have both.
    return text if package is None else text.removesuffix("\n")


def _folder_of(package: str, place: str) -> Path:
    spec = importlib.util.find_spec(package)
    folders = [Path(root, "included") for root in (spec and spec.submodule_search_locations) or ()]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise ConfigError(f"{place}: {package} is not an installed package with a folder `included`")
    return folder
