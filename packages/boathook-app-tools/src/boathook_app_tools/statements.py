"""Loads named SQL statements from the ``.sql`` file next to a module."""

import re
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements(module_file: str) -> dict[str, str]:
    """Return the statements of the file, by name; each begins with the line ``-- name: verb_noun``."""
    _, *parts = _NAME.split(Path(module_file).with_suffix(".sql").read_text(encoding="utf-8"))
    return {name: text.strip().rstrip(";") for name, text in zip(parts[::2], parts[1::2], strict=True)}
