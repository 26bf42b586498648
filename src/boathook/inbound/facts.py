"""What a request holds, read as far as a proof over chosen fields needs it; whatever was sent, nothing here raises."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from boathook.domain.documents import UNREADABLE, dig, parse, scalar_text, split_path
from boathook.inbound.places import Form, Header, Json, Place, Query
from boathook.inbound.verdict import Request

_MAX_FIELDS = 1_000
_JSON_OPENS = (b"{", b"[")


def read_pairs(text: str) -> list[tuple[str, str]]:
    """Read a query or a form as its pairs, in order; nothing where there are absurdly many."""
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="replace")
    except ValueError:
        return []


@dataclass(frozen=True)
class Facts:
    """A request, its parsed views made when first asked for, and the settings of the source it came to."""

    request: Request
    settings: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def document(self) -> Any:
        """The body as JSON; `UNREADABLE` where it is none."""
        return parse(self.request.body)

    @cached_property
    def form(self) -> list[tuple[str, str]]:
        """The body as a form, in order; empty where it is JSON."""
        # The body alone decides whether it is a form: Content-Type is not signed, so it must not move an event's id.
        if self.request.body[:1] in _JSON_OPENS:
            return []
        return read_pairs(self.request.body.decode("utf-8", "replace"))

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """The query, in order."""
        return read_pairs(self.request.query)

    def value(self, place: Place) -> Any:
        """Return what stands at a place; None where nothing does, or a query or form has the name twice."""
        match place:
            case Header(name=name):
                return self.request.headers.get(name)
            case Query(name=name):
                return _only(self.query, name)
            case Form(name=name):
                return _only(self.form, name)
            case Json(path=path):
                return None if self.document is UNREADABLE else dig(self.document, split_path(path))

    def text(self, place: Place) -> str | None:
        """Return the string, number or boolean at a place as text; None where there is none."""
        return scalar_text(self.value(place))


def _only(pairs: list[tuple[str, str]], name: str) -> str | None:
    # Of a repeated name, which one counts differs between programs: none does here.
    values = [value for key, value in pairs if key == name]
    return values[0] if len(values) == 1 else None
