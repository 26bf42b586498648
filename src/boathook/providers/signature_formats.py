"""Signature formats: how a signature is written into a header or field, and templates of signed bytes."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from boathook.domain.verification import Request

Field = Callable[[Request, str, str], bytes]
"""Returns one field's bytes from the request, the timestamp's text and the id's text."""

# Header values were decoded as Latin-1, so encoding them as Latin-1 restores the original bytes.
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
        ValueError: it uses an unknown field, or has an unmatched brace.
    """
    names = frozenset(_HOLE.findall(template))
    known = ", ".join(f"{{{name}}}" for name in _FIELDS)
    for name in names - _FIELDS.keys():
        raise ValueError(f"there is no field {{{name}}}; write {known} and literal text")
    if {"{", "}"} & set(_HOLE.sub("", template)):
        raise ValueError(f"unmatched brace; write {known} and literal text")
    return names


class Template:
    """A parsed template; `fill` returns the signed bytes of one request."""

    __slots__ = ("_parts", "fields", "id_stop")

    def __init__(self, template: str) -> None:
        self.fields = fields_of(template)
        # Splitting at a pattern with one group gives literals and names alternately.
        pieces = _HOLE.split(template)
        self._parts: tuple[bytes | Field, ...] = tuple(
            _FIELDS[piece] if position % 2 else piece.encode() for position, piece in enumerate(pieces)
        )
        self.id_stop = pieces[pieces.index("id", 1) + 1][:1] if "id" in self.fields else ""
        """The character that ends an id: an id that contains it would be ambiguous."""

    def fill(self, request: Request, timestamp: str, identifier: str) -> list[bytes]:
        """Return the signed bytes in pieces, so that a large body is never copied."""
        return [part if isinstance(part, bytes) else part(request, timestamp, identifier) for part in self._parts]


MAX_SIGNATURES: Final = 16
"""Maximum signatures tried from one header; senders rotate between two or three."""

_SCHEME: Final = re.compile(r"[A-Za-z0-9]{1,12}(?=[=,])")


class ParsedSignatures(NamedTuple):
    """The parsed content of a signature header."""

    signatures: tuple[str, ...] = ()
    """Signatures of the expected scheme; at most `MAX_SIGNATURES`."""
    timestamp: str | None = None
    problem: str | None = None
    """Why the header is malformed; None if it is well-formed, even without a signature of the scheme."""
    seen: tuple[str, ...] = ()
    """Names of other schemes found in the header, for the operator."""


class Plain(msgspec.Struct, frozen=True):
    """The signature alone, optionally with a prefix such as ``sha256=``; several separated by commas."""

    prefix: str = ""

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.prefix}…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a header's value."""
        prefix = self.prefix
        if "," not in value:
            word = value.strip()
            if word.startswith(prefix):
                return ParsedSignatures((word[len(prefix) :],))
            return ParsedSignatures(seen=(_scheme_name(word),))
        words = [word.strip() for word in value.split(",", MAX_SIGNATURES)[:MAX_SIGNATURES]]
        fitting = tuple(word[len(prefix) :] for word in words if word.startswith(prefix))
        return ParsedSignatures(
            fitting, seen=tuple(_scheme_name(word) for word in words if not word.startswith(prefix))
        )

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Format signatures for `read`."""
        return ",".join(self.prefix + signature for signature in signatures)


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Named values such as ``t=1700000000,v1=…``; unknown names are ignored, because senders add names."""

    signature: str
    timestamp: str | None = None
    separator: str = ","

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.signature}=…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a header's value."""
        signatures: list[str] = []
        seen: list[str] = []
        timestamp: str | None = None
        for pair in value.split(self.separator, 2 * MAX_SIGNATURES)[: 2 * MAX_SIGNATURES]:
            name, equals, text = pair.strip().partition("=")
            if not equals:
                return ParsedSignatures(problem=f"one of its parts separated by {self.separator!r} has no equals sign")
            if name == self.signature:
                signatures.append(text)
            elif name == self.timestamp:
                if timestamp is not None:
                    return ParsedSignatures(problem=f"it contains {name}= twice")
                timestamp = text
            else:
                seen.append(_scheme_name(pair.strip()))
        return ParsedSignatures(tuple(signatures[:MAX_SIGNATURES]), timestamp, seen=tuple(seen))

    def write(self, signatures: list[str], timestamp: str | None) -> str:
        """Format signatures for `read`."""
        pairs = [] if self.timestamp is None else [f"{self.timestamp}={timestamp}"]
        return self.separator.join([*pairs, *(f"{self.signature}={signature}" for signature in signatures)])


class Versioned(msgspec.Struct, frozen=True, kw_only=True):
    """Standard Webhooks: ``v1,`` and the signature, several separated by spaces."""

    version: str = "v1"

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.version},…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a header's value."""
        signatures: list[str] = []
        seen: list[str] = []
        for word in value.split(None, MAX_SIGNATURES)[:MAX_SIGNATURES]:
            version, comma, text = word.partition(",")
            if not comma:
                return ParsedSignatures(problem="one of its parts separated by spaces has no comma")
            if version == self.version:
                # A repeated header was joined by a comma and a space, so a comma may trail.
                signatures.append(text.rstrip(","))
            else:
                seen.append(_scheme_name(version + ","))
        return ParsedSignatures(tuple(signatures), seen=tuple(seen))

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Format signatures for `read`."""
        return " ".join(f"{self.version},{signature}" for signature in signatures)


class KeyedPairs(msgspec.Struct, frozen=True):
    """Braintree: ``public_key|signature``, several separated by ``&``; those of other public keys are ignored."""

    public_key: str = ""
    """The source's own key, from its settings."""

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.public_key}|…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a field's value."""
        signatures: list[str] = []
        others = 0
        for pair in value.split("&", MAX_SIGNATURES)[:MAX_SIGNATURES]:
            key, bar, text = pair.partition("|")
            if not bar:
                return ParsedSignatures(problem="one of its parts separated by & has no bar")
            if key == self.public_key:
                signatures.append(text)
            else:
                others += 1
        return ParsedSignatures(tuple(signatures), seen=("a signature under another public key",) * bool(others))

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Format signatures for `read`."""
        return "&".join(f"{self.public_key}|{signature}" for signature in signatures)


SignatureFormat = Plain | Pairs | Versioned | KeyedPairs


def _scheme_name(word: str) -> str:
    # Only the leading name is shown: the rest could be a credential sent in the wrong header.
    name = _SCHEME.match(word)
    return name[0] if name else "no scheme name"
