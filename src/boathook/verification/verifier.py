"""Verifies requests to one source, and extracts the dedup key and type of the event.

The order matters for security: first the proof, over the raw bytes, at the time of receipt; only then is the body
parsed. So a forged request has no effect: it stores no dedup key that could make the real request a duplicate, nothing
is parsed, and no challenge is answered. The one exception are challenges that a sender sends before it can sign; they
are answered and never become events.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.model import ProofStrength
from boathook.domain.verification import (
    UNKNOWN_TYPE,
    BatchItem,
    Challenge,
    KeyRequired,
    Reason,
    Rejected,
    Reply,
    Request,
    SourceSpec,
    Verdict,
    Verified,
)
from boathook.providers.options import CREDENTIAL_HEADERS
from boathook.providers.recipe import BodyFormat, ExpectedReply, Recipe
from boathook.providers.request_reader import FieldExtractor, Header, Query, RequestReader, Selector, read_pairs
from boathook.providers.schemes import Addresses, Asymmetric, FieldMac, Hmac, Proof, Token
from boathook.verification import diagnostics
from boathook.verification.check import Check, NoSecretLeft, make_check, signature_headers
from boathook.verification.dedup_keys import BatchSplitter, DedupKeyExtractor, batch_type, make_dedup_key
from boathook.verification.handshakes import Handshakes
from boathook.verification.keyring import KeyRing
from boathook.verification.source import resolve_source
from boathook.verification.tokens import AddressCheck, ValidProof


class BodySchema:
    """Validates whole bodies against a source's JSON Schema.

    Args:
        fault: returns the first violation in a parsed document.
    """

    def __init__(self, fault: Callable[[Any], str | None]) -> None:
        self._fault = fault

    def find_error(self, body: bytes) -> str | None:
        """Return the first violation in a body, with its field, or None if it is valid."""
        document = parse(body)
        return "the body is not JSON" if document is UNREADABLE else self._fault(document)


def compile_body_schema(source: str, schema: Any) -> BodySchema:
    """Return the compiled validator for a source's schema.

    Raises:
        ConfigError: the schema is invalid or uses an unsupported feature; the message names ``sources.NAME.schema``.
    """
    # Imported here: few sources have a schema, and the import takes longer than the rest of verification.
    from boathook.verification.json_schema import CompiledSchema

    try:
        return BodySchema(CompiledSchema(schema).fault)
    except ValueError as error:
        raise ConfigError(f"sources.{source}.schema: {error}") from None


__all__ = [
    "UNKNOWN_TYPE",
    "Challenge",
    "KeyRequired",
    "Reason",
    "Rejected",
    "Reply",
    "Request",
    "SourceSpec",
    "Verdict",
    "Verified",
    "Verifier",
]

DecodeBody = Callable[[bytes], bytes | Rejected]
"""Decodes a Content-Encoding within its size limits."""
_ID_FIRST: Final = re.compile(r"\{id\}[^{]")
_ALWAYS_KEPT: Final = ("content-type", "user-agent")


class Verifier:
    """Verifies the requests of one source; compiled once, used for every request.

    Args:
        spec: the source's specification.
        ring: cache of fetched public keys; a new one by default.
    """

    proof_headers: frozenset[str]
    """Headers the proof is read from; never one that holds a token."""
    reverify_headers: frozenset[str]
    """Headers that must be stored with a rejection so that it can be verified again: the proof, and the event's id."""
    methods: frozenset[str]
    """The HTTP methods this sender uses, for events and for handshakes."""
    secret_query: str | None
    """The query parameter that holds the token and must never be stored or logged; None if there is none."""

    def __init__(self, spec: SourceSpec, ring: KeyRing | None = None) -> None:
        """Compile the source's specification.

        Raises:
            ConfigError: a setting is unknown, missing or invalid; the message names ``sources.NAME.KEY``.
        """
        recipe, self.spec, self._settings = resolve_source(spec)
        spec = self.spec
        self.source: Final = spec.name
        self.recipe: Final = recipe
        self.ring: Final = KeyRing() if ring is None else ring
        self.check: Check = make_check(recipe, spec, self._settings, self.ring)
        self._address_check = _make_address_check(recipe, spec)
        self._handshakes = Handshakes(recipe, spec, self._settings)
        self._grade = ProofStrength.NONE if spec.unsigned else recipe.grade
        self._is_id_proven = recipe.id.is_signed and _is_id_plain(recipe.proof)
        # A client that needs no proof, or has the token, can make any request again, so remembering bodies would not
        # help.
        self._is_forgeable = self._grade not in {ProofStrength.BODY, ProofStrength.METADATA}
        self._dedup_keys = DedupKeyExtractor(recipe, spec, self._settings)
        _check_dedup(recipe, spec)
        self._batches = None if recipe.items is None else BatchSplitter(recipe, recipe.items)
        self._body_schema = None if spec.schema is None else compile_body_schema(spec.name, spec.schema)
        self.has_schema: Final = self._body_schema is not None
        """Whether a schema validates bodies: `verify` may then take long for any body, so it needs a thread."""
        self._extractor = FieldExtractor([*self._dedup_keys.paths, *self._handshakes.paths])
        self._needs_json = bool(self._extractor.paths) or recipe.body is BodyFormat.JSON
        self._kept = kept_headers(recipe, (*spec.dedup_headers, *spec.keep))
        self._reply = _static_reply(recipe.reply)
        self._event_methods = spec.methods or recipe.methods
        # Never the query if the proof covers the body but not the URL.
        self._reads_query = self._is_forgeable or "GET" in recipe.methods or recipe.signs_url
        self.proof_headers = self.check.proof_headers
        self.reverify_headers = self.proof_headers | frozenset(self._kept)
        self.methods = self._event_methods | self._handshakes.methods
        selector = recipe.proof.selector if isinstance(recipe.proof, Token) and not spec.unsigned else None
        self.secret_query = selector.name if isinstance(selector, Query) else None

    def closed(self) -> "Verifier":
        """Return a verifier of the same source that rejects every request, for when its last secret has expired."""
        closed = copy(self)
        closed.check = NoSecretLeft(self.source, self.proof_headers)
        return closed

    def verify(self, request: Request, now: float, decode: DecodeBody | None = None) -> Verdict:
        """Verify one request received at *now*, in seconds since 1970; never raises, whatever the request holds.

        The proof covers the raw bytes; *decode* undoes a Content-Encoding after the proof is verified, before parsing.
        """
        if self._address_check is not None and isinstance(stopped := self._address_check.check(request, now), Rejected):
            return stopped
        if self._handshakes.any_unproven:
            answer = self._handshakes.answer_unproven(request)
            if answer is not None:
                return answer
        proven = self.check.check(request, now)
        if not isinstance(proven, ValidProof):
            return proven
        if decode is None:
            return self._read_event(request, proven, now, request.body, is_encoded=False)
        decoded = decode(request.body)
        if isinstance(decoded, Rejected):
            return decoded
        return self._read_event(replace(request, body=decoded), proven, now, request.body, is_encoded=True)

    def carries_secret(self, request: Request) -> bool:
        """Return whether a request hands over a secret in a handshake, so that its body is not to be kept."""
        return self._handshakes.carries_secret(request)

    def explain(
        self,
        request: Request,
        rejected: Rejected,
        now: float,
        *,
        others: Iterable["Verifier"] = (),
        decode: DecodeBody | None = None,
    ) -> str | None:
        """Return the common mistake that explains a rejection, for the operator, or None if none does.

        It takes about a millisecond, so it is not for every rejection. It never reveals a secret.

        Args:
            request: as passed to `verify`.
            rejected: the verdict of `verify`.
            now: as passed to `verify`.
            others: the verifiers of other sources, for which the request may have been meant.
            decode: undoes the request's Content-Encoding.
        """
        decoded = decode(request.body) if decode is not None and len(request.body) <= diagnostics.MAX_BODY else None
        case = diagnostics.RejectedRequest(
            recipe=self.recipe,
            spec=self.spec,
            settings=self._settings,
            ring=self.ring,
            request=request,
            now=now,
            decoded=decoded if isinstance(decoded, bytes) else None,
        )
        checks = {other.source: other.check for other in others if other is not self}
        return diagnostics.explain(case, rejected.reason, checks)

    def _read_event(
        self, request: Request, proven: ValidProof, now: float, sent: bytes, *, is_encoded: bool
    ) -> Verdict:
        """Parse a verified request, whose raw body was *sent*, and return its event."""
        extracted = self._extractor.extract(request.body) if self._needs_json else {}
        if extracted is None:
            if self.recipe.body is BodyFormat.JSON and self._body_schema is None:
                return _not_json(self.recipe)
            extracted = {}
        if self._handshakes.any_proven:
            answer = self._handshakes.answer_proven(request, extracted)
            if answer is not None:
                return answer
        if request.method not in self._event_methods:
            return _no_event(self.recipe, request.method)
        if self._body_schema is not None and (fault := self._body_schema.find_error(request.body)) is not None:
            return self._does_not_fit(fault)
        type = self._dedup_keys.type(request, extracted)
        if self._batches is not None:
            items = self._batches.items(request, type, now)
            if isinstance(items, Rejected):
                return items
            if items:
                # Item keys come from the signed body, so nothing unsigned can change them.
                key, common = self._dedup_keys.made(request, request.body, type, now), batch_type(items)
                return self._verified(request, proven, type=common, dedup_key=key, replay_material=None, items=items)
        query = self._query_of(request) if self._reads_query and request.method == "GET" else None
        name = self._dedup_keys.from_request(request, extracted) if proven.id is None else make_dedup_key(proven.id)
        # Content-Encoding is not signed: a captured body could be replayed without it and hide its own id.
        is_named_for_good = self._is_id_proven and not is_encoded and name is not None
        material = None
        if not (is_named_for_good or self._is_forgeable or (name is None and self.recipe.id.is_repeatable)):
            signed = b"".join(proven.once) or (sent if query is None else query)
            material = self._dedup_keys.replayed(signed, type)
        if name is None:
            content = self._dedup_keys.stable_content(request.body) if query is None else query
            name = self._dedup_keys.made(request, content, type, now)
        return self._verified(request, proven, type=type, dedup_key=name, replay_material=material, query=query)

    def _does_not_fit(self, fault: str) -> Rejected:
        public_detail = "" if self._grade is ProofStrength.NONE else fault
        return Rejected(
            status=400, reason=Reason.BODY_INVALID, detail=fault, may_reverify=True, public_detail=public_detail
        )

    def _query_of(self, request: Request) -> bytes:
        """Return the query of a GET request without the secret."""
        parts = request.query.split("&")
        public_detail = [part for part in parts if all(name != self.secret_query for name, _ in read_pairs(part))]
        return "&".join(public_detail).encode("utf-8", "replace")

    def _verified(
        self,
        request: Request,
        proven: ValidProof,
        *,
        type: str,
        dedup_key: str,
        replay_material: bytes | None,
        items: tuple[BatchItem, ...] = (),
        query: bytes | None = None,
    ) -> Verified:
        headers, reply = request.headers, self.recipe.reply
        return Verified(
            grade=self._grade,
            type=type,
            dedup_key=dedup_key,
            dedup_object=None if items else self._dedup_keys.object_of(request),
            replay_material=replay_material,
            volatile=self.recipe.volatile,
            kept_headers={name: headers[name] for name in self._kept if name in headers},
            timestamp=None if proven.sent_at is None else datetime.fromtimestamp(proven.sent_at, UTC),
            items=items,
            query=query,
            reply=self._reply if reply is None or self._reply is not None else self._render(reply, request),
        )

    def _render(self, reply: ExpectedReply, request: Request) -> Reply | None:
        reader = RequestReader(request, self._settings)
        if reply.only_with and not any(reader.text(selector) for selector in reply.only_with):
            return None
        texts = (part if isinstance(part, str) else reader.text(part) or "" for part in reply.body)
        body = "".join(texts).encode("utf-8", "replace")
        return Reply(status=reply.status, body=body, content_type=reply.content_type)


def _check_dedup(recipe: Recipe, spec: SourceSpec) -> None:
    """Raise ConfigError for rules of deduplication that a sender cannot have."""
    if spec.dedup_object and recipe.items is not None:
        raise ConfigError(
            f"sources.{spec.name}.dedup_object: {recipe.title} sends batches, and each item has its own key; remove it"
        )
    hidden = CREDENTIAL_HEADERS | signature_headers(recipe.proof)
    if secret := next((name for name in spec.dedup_headers if name in hidden), None):
        raise ConfigError(
            f"sources.{spec.name}.dedup_headers: {secret} is part of the proof and is not stored; remove it"
        )


def _make_address_check(recipe: Recipe, spec: SourceSpec) -> AddressCheck | None:
    """Return the check of the source addresses that are required in addition to the proof."""
    is_proof = isinstance(recipe.proof, Addresses) and not spec.unsigned
    return AddressCheck(spec) if spec.addresses and not is_proof else None


def _is_id_plain(proof: Proof) -> bool:
    """Return whether the boundaries of the id in the signed bytes are unambiguous."""
    return not isinstance(proof, Hmac) or "{id}" not in proof.template or bool(_ID_FIRST.match(proof.template))


def _static_reply(reply: ExpectedReply | None) -> Reply | None:
    """Return the reply that does not depend on the request, or None."""
    if reply is None or reply.only_with or not all(isinstance(part, str) for part in reply.body):
        return None
    body = "".join(map(str, reply.body)).encode()
    return Reply(status=reply.status, body=body, content_type=reply.content_type)


def selectors_of(recipe: Recipe) -> Iterator[Selector]:
    """Yield all selectors of the id and the type of a recipe."""
    for selector in (*recipe.id.selectors, *recipe.type.selectors):
        yield from selector if isinstance(selector, tuple) else (selector,)


def kept_headers(recipe: Recipe, besides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the headers that are stored with an event, which exclude credentials and signatures."""
    names = [selector.name for selector in selectors_of(recipe) if isinstance(selector, Header)]
    # The recipe may use a header that is part of the signed fields as the event's id or type.
    kept_names = frozenset(names if isinstance(recipe.proof, FieldMac | Asymmetric) else ())
    hidden = CREDENTIAL_HEADERS | (signature_headers(recipe.proof) - kept_names)
    return tuple(name for name in dict.fromkeys((*_ALWAYS_KEPT, *names, *recipe.keep, *besides)) if name not in hidden)


def _not_json(recipe: Recipe) -> Rejected:
    return Rejected(
        status=400,
        reason=Reason.BODY_MALFORMED,
        detail=f"the signature is valid, but the body is not JSON, and {recipe.title} always sends JSON",
        may_reverify=False,
    )


def _no_event(recipe: Recipe, method: str) -> Rejected:
    return Rejected(
        status=400,
        reason=Reason.CHALLENGE_REFUSED,
        detail=f"the signature is valid, but {recipe.title} sends no events or handshakes with method {method[:20]}",
        may_reverify=False,
    )
