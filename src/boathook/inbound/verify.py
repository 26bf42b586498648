"""Whether a request is what its source says it is, and what names the event it brings.

The order is the safety: the proof first, over the bytes as sent, at the moment of receiving; only then a look into
the body. So a forged request leaves nothing behind: no key that could make the real one look like a duplicate, no
parse, no answer to a challenge.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from boathook.domain.documents import scalar_text, short_key, split_path
from boathook.domain.errors import ConfigError
from boathook.domain.model import Grade
from boathook.inbound.extract import Picked, Picker, first_of, reader_of
from boathook.inbound.places import Basic, Header, Json, Place, Query
from boathook.inbound.proof import make_check
from boathook.inbound.providers import find
from boathook.inbound.providers.options import NEVER_KEPT, Options
from boathook.inbound.providers.proofs import Hmac, Proof, Token
from boathook.inbound.providers.recipe import BodyForm, Echo, Handshake, Recipe
from boathook.inbound.verdict import (
    UNKNOWN_TYPE,
    Challenge,
    Reason,
    Rejected,
    Reply,
    Request,
    SourceSpec,
    Verdict,
    Verified,
)

__all__ = [
    "UNKNOWN_TYPE",
    "Challenge",
    "Reason",
    "Rejected",
    "Reply",
    "Request",
    "SourceSpec",
    "Verdict",
    "Verified",
    "Verifier",
]

MAX_TYPE: Final = 200
MAX_ECHO: Final = 4_096
_ALWAYS_KEPT: Final = ("content-type", "user-agent")
Decode = Callable[[bytes], bytes | Rejected]
"""Undoes a Content-Encoding within its caps."""
_OWN_PREFIXES: Final = ("sha256:", "fields:", "id:", "id-sha256:", "id-fields:")
"""An id that starts like one of boathook's own keys is set apart, so that nobody can choose another event's key."""


class Verifier:
    """Judges the requests of one source; compiled once, used for every request."""

    reply: Reply | None
    """The exact answer the sender wants for an accepted request; None for boathook's own."""
    evidence: frozenset[str]
    """Headers the proof is read from; never one that holds a token."""
    rejudged: frozenset[str]
    """Headers a rejection must keep so that it can be judged again: the evidence, and what names the event."""
    methods: frozenset[str]
    """The HTTP methods this sender uses."""
    secret_query: str | None
    """The query parameter that holds the token and must never be stored or logged; None where there is none."""

    def __init__(self, spec: SourceSpec) -> None:
        """Compile the source's specification.

        Raises:
            ConfigError: a setting is unknown, missing or impossible; the message names ``sources.NAME.KEY``.
        """
        recipe, spec = _settle(spec)
        self.recipe: Final = recipe
        self._check = make_check(recipe.proof, spec)
        self._grade = Grade.NONE if spec.unsigned else recipe.grade
        self._is_id_proven = recipe.id.is_signed
        # Whoever needs no proof, or has the token, can make any request anew: remembering bodies would stop nobody.
        self._is_open = spec.unsigned or not isinstance(recipe.proof, Hmac)
        self._id_of = first_of(recipe.id.places, whole=True)
        self._type_of = first_of(recipe.type.places, whole=False)
        self._fields = tuple(_split(spec, path) for path in spec.dedup_fields)
        self._handshakes = tuple(
            (reader_of(place), text, reader_of(shake.answer.place), shake)
            for shake in recipe.handshakes
            if isinstance(shake.answer, Echo)
            for place, text in (one for one in shake.when if isinstance(one, tuple))
        )
        self._picker = Picker([*_json_paths(recipe), *self._fields])
        self._kept = _kept_headers(recipe)
        self.evidence = self._check.evidence
        self.rejudged = self.evidence | frozenset(self._kept)
        self.reply = None
        self.methods = recipe.methods
        place = recipe.proof.place if isinstance(recipe.proof, Token) and not spec.unsigned else None
        self.secret_query = place.name if isinstance(place, Query) else None

    def verify(self, request: Request, now: float, decode: Decode | None = None) -> Verdict:
        """Judge one request received at *now*, in seconds since 1970; never raises, whatever the request holds.

        The proof is over the bytes as sent; *decode* undoes a Content-Encoding once it holds, before the look inside.
        """
        proven = self._check.check(request, now)
        if isinstance(proven, Rejected):
            return proven
        sent = request.body
        if decode is not None:
            decoded = decode(sent)
            if isinstance(decoded, Rejected):
                return decoded
            request = replace(request, body=decoded)
        picked = self._picker.pick(request.body) if self._picker.paths else {}
        if picked is None:
            if self.recipe.body is BodyForm.JSON:
                return _not_json(self.recipe)
            picked = {}
        for when, text, echo, handshake in self._handshakes:
            if when(request, picked) == text:
                return _answer(handshake, echo(request, picked))
        headers = request.headers
        name = self._name_of(request, picked)
        # Content-Encoding is not signed: a captured body could come back without it and hide its own id.
        is_named_for_good = self._is_id_proven and decode is None and name is not None
        return Verified(
            grade=self._grade,
            type=_show_type(self._type_of(request, picked)),
            dedup_key=name or "sha256:" + hashlib.sha256(request.body).hexdigest(),
            replay_material=None if is_named_for_good or self._is_open else sent,
            volatile=self.recipe.volatile,
            kept_headers={name: headers[name] for name in self._kept if name in headers},
            timestamp=None if proven.sent_at is None else datetime.fromtimestamp(proven.sent_at, UTC),
        )

    def _name_of(self, request: Request, picked: Picked) -> str | None:
        identifier = self._id_of(request, picked)
        if identifier is not None:
            return _key_of(identifier)
        values = [scalar_text(picked.get(path)) for path in self._fields]
        if any(value is not None for value in values):
            return _key_of(json.dumps(values), "fields:")
        return None


def _settle(spec: SourceSpec) -> tuple[Recipe, SourceSpec]:
    """Return the recipe completed by the source's own settings, and the specification with all its secrets."""
    try:
        recipe = find(spec.provider)
    except ConfigError as error:
        raise ConfigError(f"sources.{spec.name}.provider: {error}") from None
    options = Options(spec.name, spec.options)
    if recipe.configure is not None:
        recipe = recipe.configure(options, recipe)
    if isinstance(recipe.proof, Token) and isinstance(recipe.proof.place, Basic):
        password = options.text("password")
        spec = replace(spec, secrets=(*spec.secrets, password) if password else spec.secrets)
    options.finish(recipe.name)
    return recipe, spec


def _split(spec: SourceSpec, path: str) -> str:
    try:
        return ".".join(split_path(path))
    except ValueError as error:
        raise ConfigError(f"sources.{spec.name}.dedup_fields: {error}") from None


def _places(recipe: Recipe) -> Iterator[Place]:
    for place in (*recipe.id.places, *recipe.type.places):
        yield from place if isinstance(place, tuple) else (place,)
    for handshake in recipe.handshakes:
        yield from (one[0] if isinstance(one, tuple) else one for one in handshake.when)
        if isinstance(handshake.answer, Echo):
            yield handshake.answer.place


def _json_paths(recipe: Recipe) -> list[str]:
    return [place.path for place in _places(recipe) if isinstance(place, Json)]


def _kept_headers(recipe: Recipe) -> tuple[str, ...]:
    """Return the allow-list of headers stored with an event, which holds no credential and no signature."""
    named = (place.name for place in _places(recipe) if isinstance(place, Header))
    hidden = NEVER_KEPT | _proof_headers(recipe.proof)
    return tuple(name for name in dict.fromkeys((*_ALWAYS_KEPT, *named, *recipe.keep)) if name not in hidden)


def _proof_headers(proof: Proof) -> frozenset[str]:
    match proof:
        case Hmac(headers=sets):
            return frozenset(names.signature for names in sets)
        case Token(place=Header(name=name)):
            return frozenset({name})
        case _:
            return frozenset()


def _not_json(recipe: Recipe) -> Rejected:
    return Rejected(
        status=400,
        reason=Reason.BODY_MALFORMED,
        detail=f"the signature is right, but the body is not JSON, and {recipe.title} always sends JSON",
        may_reverify=False,
    )


def _answer(handshake: Handshake, echo: object) -> Challenge | Rejected:
    if not isinstance(echo, str) or len(echo) > MAX_ECHO:
        return Rejected(
            status=400,
            reason=Reason.BODY_MALFORMED,
            detail="the proof is right, but the handshake brings no text to echo",
            may_reverify=False,
        )
    return Challenge(
        status=handshake.status, body=echo.encode("utf-8", "replace"), content_type="text/plain; charset=utf-8"
    )


def _key_of(text: str, prefix: str = "") -> str:
    key = short_key(text)
    if key is not text:
        return f"id-{prefix}{key}"
    if not prefix and text.startswith(_OWN_PREFIXES):
        return "id:" + text
    return prefix + text


def _show_type(name: str | None) -> str:
    if name is None:
        return UNKNOWN_TYPE
    if name.isprintable():
        return name[:MAX_TYPE]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:MAX_TYPE])
