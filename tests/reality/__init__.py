"""The corpus: requests as their senders document or send them, and the names of the fields in them.

A folder for each sender holds its README, which says where each format comes from, and one file for each request or
response, which is its body as sent: `NAME.json` or `NAME.form`. See README.md here.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

ROOT: Final = Path(__file__).parent
_FORM: Final = re.compile(rb"[\w.\[\]%+-]+=")


def senders() -> list[str]:
    """Return the senders that have a folder."""
    return sorted(path.parent.name for path in ROOT.glob("*/README.md"))


def examples(sender: str, name: str = "*") -> dict[str, bytes]:
    """Return the bodies of a sender by the name of their file, those whose name matches a pattern."""
    files = {path.name: path.read_bytes().rstrip(b"\n") for path in sorted((ROOT / sender).glob(name))}
    files.pop("README.md", None)
    return files


def field_paths(body: bytes) -> set[str]:
    """Return the dotted paths of the fields in a body: JSON, a form, or JSON or a Ruby hash as a text within them.

    Elements of an array have no names: `items.price` is a field of each object in `items`. A body that is neither JSON
    nor a form has no fields.
    """
    try:
        document = json.loads(body)
    except ValueError:
        document = dict(parse_qsl(body.decode(), keep_blank_values=True)) if _FORM.match(body) else None
    return set(_paths(document, ""))


def undocumented(sender: str, bodies: Iterable[bytes]) -> set[str]:
    """Return the fields in *bodies* that occur in no example of *sender*."""
    documented = set().union(*map(field_paths, examples(sender).values()))
    return set().union(*map(field_paths, bodies)) - documented


def _paths(value: Any, path: str) -> Iterator[str]:
    match value:
        case dict():
            for name, inner in value.items():
                here = f"{path}.{name}" if path else str(name)
                yield here
                yield from _paths(inner, here)
        case list():
            for inner in value:
                yield from _paths(inner, path)
        case str() if value.lstrip()[:1] in {"{", "["}:
            yield from _paths(_decoded(value), path)


def _decoded(text: str) -> Any:
    """Return what a text holds as JSON or, after the replacement that RentProg's users document, as a Ruby hash."""
    for candidate in (text, re.sub(r"\bnil\b", "null", text.replace("=>", ":"))):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return None
