"""Whether a request is what its source says it is, and what names the event it brings.

The order is the safety: the proof first, over the bytes as sent, at the moment of receiving; only then a look into
the body. So a forged request leaves nothing behind: no key that could make the real one look like a duplicate, no
parse, no answer to a challenge. The one exception are questions that a sender asks before it can prove itself; they
are answered and never become events.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from boathook.domain.documents import parse
from boathook.domain.model import Grade
from boathook.inbound.extract import Picker
from boathook.inbound.facts import Facts
from boathook.inbound.handshakes import Handshakes
from boathook.inbound.items import Batches, type_of
from boathook.inbound.keyring import KeyRing
from boathook.inbound.naming import Names
from boathook.inbound.origins import AddressCheck
from boathook.inbound.places import Header, Place, Query
from boathook.inbound.proof import make_check
from boathook.inbound.providers.options import NEVER_KEPT
from boathook.inbound.providers.proofs import Addresses, Asymmetric, FieldMac, Hmac, Jwt, Proof, Token
from boathook.inbound.providers.recipe import BodyForm, Recipe, WantedReply
from boathook.inbound.settling import settle
from boathook.inbound.tokens import Proven
from boathook.inbound.verdict import (
    UNKNOWN_TYPE,
    Challenge,
    Item,
    KeyWanted,
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
    "KeyWanted",
    "Reason",
    "Rejected",
    "Reply",
    "Request",
    "SourceSpec",
    "Verdict",
    "Verified",
    "Verifier",
]

Decode = Callable[[bytes], bytes | Rejected]
"""Undoes a Content-Encoding within its caps."""
_ALWAYS_KEPT: Final = ("content-type", "user-agent")


class Verifier:
    """Judges the requests of one source; compiled once, used for every request.

    Args:
        spec: the source's specification.
        ring: where fetched public keys are kept; an own one, if none is given.
    """

    evidence: frozenset[str]
    """Headers the proof is read from; never one that holds a token."""
    rejudged: frozenset[str]
    """Headers a rejection must keep so that it can be judged again: the evidence, and what names the event."""
    methods: frozenset[str]
    """The HTTP methods this sender uses, for events and for handshakes."""
    secret_query: str | None
    """The query parameter that holds the token and must never be stored or logged; None where there is none."""

    def __init__(self, spec: SourceSpec, ring: KeyRing | None = None) -> None:
        """Compile the source's specification.

        Raises:
            ConfigError: a setting is unknown, missing or impossible; the message names ``sources.NAME.KEY``.
        """
        recipe, spec, self._settings = settle(spec)
        self.recipe: Final = recipe
        self.ring: Final = KeyRing() if ring is None else ring
        self._check = make_check(recipe, spec, self._settings, self.ring)
        self._fence = _fence(recipe, spec)
        self._handshakes = Handshakes(recipe, spec, self._settings)
        self._grade = Grade.NONE if spec.unsigned else recipe.grade
        self._is_id_proven = recipe.id.is_signed
        # Whoever needs no proof, or has the token, can make any request anew: remembering bodies would stop nobody.
        self._is_open = self._grade not in {Grade.BODY, Grade.METADATA}
        self._names = Names(recipe, spec, self._settings)
        self._batches = None if recipe.items is None else Batches(recipe, recipe.items)
        self._picker = Picker([*self._names.paths, *self._handshakes.paths])
        self._must_read = bool(self._picker.paths) or recipe.body is BodyForm.JSON
        self._kept = _kept_headers(recipe)
        self._reply = _static(recipe.reply)
        self._event_methods = spec.methods or recipe.methods
        self.evidence = self._check.evidence
        self.rejudged = self.evidence | frozenset(self._kept)
        self.methods = self._event_methods | self._handshakes.methods
        place = recipe.proof.place if isinstance(recipe.proof, Token) and not spec.unsigned else None
        self.secret_query = place.name if isinstance(place, Query) else None

    def verify(self, request: Request, now: float, decode: Decode | None = None) -> Verdict:
        """Judge one request received at *now*, in seconds since 1970; never raises, whatever the request holds.

        The proof is over the bytes as sent; *decode* undoes a Content-Encoding once it holds, before the look inside.
        """
        if self._fence is not None and isinstance(stopped := self._fence.check(request, now), Rejected):
            return stopped
        if self._handshakes.any_unproven:
            answer = self._handshakes.answer_unproven(request)
            if answer is not None:
                return answer
        proven = self._check.check(request, now)
        if not isinstance(proven, Proven):
            return proven
        if decode is None:
            return self._look(request, proven, now, request.body, is_encoded=False)
        decoded = decode(request.body)
        if isinstance(decoded, Rejected):
            return decoded
        return self._look(replace(request, body=decoded), proven, now, request.body, is_encoded=True)

    def _look(self, request: Request, proven: Proven, now: float, sent: bytes, *, is_encoded: bool) -> Verdict:
        """Look into a proven request, whose body was *sent* as these bytes."""
        picked = self._picker.pick(request.body) if self._must_read else {}
        if picked is None:
            if self.recipe.body is BodyForm.JSON:
                return _not_json(self.recipe)
            picked = {}
        if self._handshakes.any_proven:
            answer = self._handshakes.answer_proven(request, picked)
            if answer is not None:
                return answer
        if request.method not in self._event_methods:
            return _no_event(self.recipe, request.method)
        type = self._names.type(request, picked)
        if self._batches is not None:
            items = self._batches.items(request, parse(request.body), type)
            if isinstance(items, Rejected):
                return items
            if items:
                return self._batch(request, proven, items)
        name = self._names.own(request, picked)
        # Content-Encoding is not signed: a captured body could come back without it and hide its own id.
        is_named_for_good = self._is_id_proven and not is_encoded and name is not None
        is_free = is_named_for_good or self._is_open or (name is None and self.recipe.id.is_repeatable)
        material = None if is_free else proven.once or self._names.replayed(sent, type)
        key = name or self._names.made(request.body, type, now)
        return self._verified(request, proven, type=type, dedup_key=key, replay_material=material)

    def _batch(self, request: Request, proven: Proven, items: tuple[Item, ...]) -> Verified:
        # Items are known by what lies in the signed body, so nothing unsigned could give them other keys.
        key = "sha256:" + hashlib.sha256(request.body).hexdigest()
        return self._verified(request, proven, type=type_of(items), dedup_key=key, replay_material=None, items=items)

    def _verified(
        self,
        request: Request,
        proven: Proven,
        *,
        type: str,
        dedup_key: str,
        replay_material: bytes | None,
        items: tuple[Item, ...] = (),
    ) -> Verified:
        headers, wanted = request.headers, self.recipe.reply
        return Verified(
            grade=self._grade,
            type=type,
            dedup_key=dedup_key,
            replay_material=replay_material,
            volatile=self.recipe.volatile,
            kept_headers={name: headers[name] for name in self._kept if name in headers},
            timestamp=None if proven.sent_at is None else datetime.fromtimestamp(proven.sent_at, UTC),
            items=items,
            reply=self._reply if wanted is None or self._reply is not None else self._render(wanted, request),
        )

    def _render(self, wanted: WantedReply, request: Request) -> Reply:
        facts = Facts(request, self._settings)
        texts = (part if isinstance(part, str) else facts.text(part) or "" for part in wanted.body)
        body = "".join(texts).encode("utf-8", "replace")
        return Reply(status=wanted.status, body=body, content_type=wanted.content_type)


def _fence(recipe: Recipe, spec: SourceSpec) -> AddressCheck | None:
    """Return the check of the addresses the owner demands besides the proof."""
    is_proof = isinstance(recipe.proof, Addresses) and not spec.unsigned
    return AddressCheck(spec) if spec.addresses and not is_proof else None


def _static(wanted: WantedReply | None) -> Reply | None:
    """Return the reply that needs nothing of the request."""
    if wanted is None or not all(isinstance(part, str) for part in wanted.body):
        return None
    body = "".join(map(str, wanted.body)).encode()
    return Reply(status=wanted.status, body=body, content_type=wanted.content_type)


def _places(recipe: Recipe) -> Iterator[Place]:
    for place in (*recipe.id.places, *recipe.type.places):
        yield from place if isinstance(place, tuple) else (place,)


def _kept_headers(recipe: Recipe) -> tuple[str, ...]:
    """Return the allow-list of headers stored with an event, which holds no credential and no signature."""
    named = [place.name for place in _places(recipe) if isinstance(place, Header)]
    hidden = NEVER_KEPT | _proof_headers(recipe.proof, frozenset(named))
    return tuple(name for name in dict.fromkeys((*_ALWAYS_KEPT, *named, *recipe.keep)) if name not in hidden)


def _proof_headers(proof: Proof, named: frozenset[str]) -> frozenset[str]:
    match proof:
        case Hmac(headers=sets):
            return frozenset(names.signature for names in sets)
        case FieldMac(evidence=evidence) | Asymmetric(evidence=evidence):
            return frozenset(evidence) - named
        case Token(place=Header(name=name)) | Jwt(header=name):
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


def _no_event(recipe: Recipe, method: str) -> Rejected:
    return Rejected(
        status=400,
        reason=Reason.CHALLENGE_REFUSED,
        detail=f"the proof is right, but {recipe.title} sends no events by {method[:20]}, and asks nothing known by it",
        may_reverify=False,
    )
