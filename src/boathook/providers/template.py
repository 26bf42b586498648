"""The signed bytes of a request, built from a template such as ``v0:{timestamp}:{body}``."""

import re
from collections.abc import Callable
from typing import Final

from boathook.domain.verification import Request

Field = Callable[[Request, str, str], bytes]
"""Gives one field's bytes from the request, the timestamp's text and the id's text."""

# Header values came in as Latin-1, so encoding them as Latin-1 gives back the bytes that were sent.
_FIELDS: Final[dict[str, Field]] = {
    "body": lambda request, _stamp, _id: request.body,
    "timestamp": lambda _request, timestamp, _id: timestamp.encode("latin-1", "replace"),
    "id": lambda _request, _stamp, identifier: identifier.encode("latin-1", "replace"),
    "url": lambda request, _stamp, _id: request.url.encode("utf-8", "replace"),
    "path": lambda request, _stamp, _id: request.path.encode("utf-8", "replace"),
    "method": lambda request, _stamp, _id: request.method.encode("utf-8", "replace"),
}
_HOLE: Final = re.compile(r"\{([^{}]*)\}")


def fields_of(template: str) -> frozenset[str]:
    """Return the names of the fields a template uses.

    Raises:
        ValueError: it names a field there is not, or has a brace that closes nothing.
    """
    names = frozenset(_HOLE.findall(template))
    known = ", ".join(f"{{{name}}}" for name in _FIELDS)
    for name in names - _FIELDS.keys():
        raise ValueError(f"there is no field {{{name}}}; write {known} and literal text")
    if {"{", "}"} & set(_HOLE.sub("", template)):
        raise ValueError(f"unmatched brace; write {known} and literal text")
    return names


class Template:
    """A template taken apart once; `fill` gives the signed bytes of one request."""

    __slots__ = ("_parts", "fields", "id_stop")

    def __init__(self, template: str) -> None:
        self.fields = fields_of(template)
        # Splitting at a pattern with one group gives literals and names in turn.
        pieces = _HOLE.split(template)
        self._parts: tuple[bytes | Field, ...] = tuple(
            _FIELDS[piece] if position % 2 else piece.encode() for position, piece in enumerate(pieces)
        )
        self.id_stop = pieces[pieces.index("id", 1) + 1][:1] if "id" in self.fields else ""
        """The character that ends an id: an id that held it could be cut in two ways."""

    def fill(self, request: Request, timestamp: str, identifier: str) -> list[bytes]:
        """Return the signed bytes in pieces, so that a large body is never copied."""
        return [part if isinstance(part, bytes) else part(request, timestamp, identifier) for part in self._parts]
