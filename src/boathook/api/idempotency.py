"""Idempotency keys: a repeated POST with the same key gets the first response, from any process.

The key is claimed in the same transaction as the request's effect (`service/access/idempotency.py`). So a concurrent
second request waits for the first one, and a response is stored if and only if the effect is. Only 2xx responses are
stored, for 12 hours. The same key with a different request is rejected with 409 ``idempotency_key_reused``. Requests
are compared in canonical form, because clients may repeat a request with different white space, key order or defaults.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any, Final, Protocol

import msgspec
from fastapi._compat import ModelField
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from boathook.domain.model import IdempotencyKey
from boathook.service.access import idempotency
from boathook.service.access.authorization import ApiCaller, OperatorTokenCaller
from boathook.service.access.idempotency import StoredResponse
from boathook.service.unit_of_work import UnitOfWork


class CanonicalForm(Protocol):
    """Brings the requests of a route into canonical form."""

    def canonical(self, request: Request, body: bytes) -> bytes:
        """Return the canonical form of a request."""
        ...


class RequestCanonicalizer(msgspec.Struct, frozen=True):
    """Brings the requests of a route with models into canonical form."""

    query: Mapping[str, ModelField]
    """The query parameters that affect the result, without those that only select what is shown."""
    body: ModelField | None

    def canonical(self, request: Request, body: bytes) -> bytes:
        """Return the canonical form of a request."""
        try:
            document = EXACT.decode(body) if body and self.body is not None else None
            parts = [_read(self.body, document), {name: self._value(request, name) for name in self.query}]
            return _ENCODER.encode(parts)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return body  # it will be rejected, or only its raw form can be compared

    def _value(self, request: Request, name: str) -> Any:
        field = self.query[name]
        return _read(field, request.query_params[name]) if name in request.query_params else field.default


def _read(field: ModelField | None, field_value: Any) -> Any:
    if field is None or field_value is None:
        return None
    value, errors = field.validate(field_value, {}, loc=())
    if errors:
        raise ValueError("the request is refused")
    return _plain(value)


def _plain(value: Any) -> Any:
    """Return a value without fields at their default, so that fields added in later versions change nothing."""
    if not isinstance(value, BaseModel):
        return [_plain(element) for element in value] if isinstance(value, list) else value
    set_fields = {
        name: getattr(value, name)
        for name, field in type(value).model_fields.items()
        if getattr(value, name) != field.get_default(call_default_factory=True)
    }
    # Lists of strings are sets: channels, tags, types.
    return {
        name: sorted(set(field_value)) if _is_words(field_value) else _plain(field_value)
        for name, field_value in set_fields.items()
    }


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(element, str) for element in value)


def _number(text: str) -> int | float | Decimal:
    """Parse a number so that equal numbers in different notations compare equal."""
    number = float(text)
    if repr(number) == text and not number.is_integer():
        return number
    exact = Decimal(text)
    if number.is_integer() and int(exact) == exact:
        return int(exact)
    return number if Decimal(repr(number)) == exact else exact


EXACT: Final = msgspec.json.Decoder(float_hook=_number)
_ENCODER: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number")


def read_key(
    request: Request, principal: ApiCaller, body: bytes, canonicalizer: CanonicalForm
) -> IdempotencyKey | None:
    """Return the idempotency key of a request that has one."""
    word = request.headers.get("idempotency-key")
    if not word:
        return None
    canonical = canonicalizer.canonical(request, body)
    return make_key(principal, word, f"{request.method} {request.url.path}", canonical)


def make_key(principal: ApiCaller, word: str, route: str, canonical: bytes) -> IdempotencyKey:
    """Return the idempotency key for a client's *word* and a request.

    Args:
        principal: the caller.
        word: the value of the header.
        route: method and path, separated by a space.
        canonical: query and body in the form of `RequestCanonicalizer`.
    """
    # Responses contain secrets, so the key is only valid for callers with the same permissions.
    if isinstance(principal, OperatorTokenCaller):
        caller_scope = f"\x00{principal.operator_id}\x00{principal.role}"
    else:
        rights = None if principal.capabilities is None else sorted(principal.capabilities)
        caller_scope = f"{principal.organization}\x00{principal.application_id or ''}\x00{rights}"
    return IdempotencyKey(
        key=_hash(caller_scope.encode(), route.encode(), word.encode("utf-8", "surrogateescape")),
        request_sha256=hashlib.sha256(canonical).digest(),
    )


def canonical_of_values(body: Mapping[str, Any], payload: bytes) -> bytes:
    """Return the canonical form of a body with the bytes of its payload and no query, as `RequestCanonicalizer` does.

    Args:
        body: the model's fields that do not have their default, by their Python names; payloads as bytes.
        payload: the bytes of the field ``payload``.
    """
    values = {
        name: sorted(set(field_value)) if _is_words(field_value) else field_value for name, field_value in body.items()
    }
    return _ENCODER.encode([values | {"payload": EXACT.decode(payload)}, {}])


def canonical_of_input(value: msgspec.Struct) -> bytes:
    """Return the canonical form of an operation's input: without what has its default, and lists of words as sets."""
    set_fields = {
        field.name: getattr(value, field.name)
        for field in msgspec.structs.fields(value)
        if field.required or getattr(value, field.name) != field.default
    }
    return _ENCODER.encode({name: sorted(set(item)) if _is_words(item) else item for name, item in set_fields.items()})


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


async def run_once(work: UnitOfWork, key: IdempotencyKey, answer: Callable[[], Awaitable[Response]]) -> Response:
    """Run *answer* and store its response in this transaction, or return the stored response of the key.

    Raises:
        AlreadyExists: the earlier request was a different one.
    """
    earlier = await idempotency.claim(work, key)
    if earlier is not None:
        headers = {"idempotent-replayed": "true"}
        return Response(earlier.body, earlier.status, headers, earlier.content_type or None)
    response = await answer()
    content_type = response.headers.get("content-type", "")
    await idempotency.save(work, key, StoredResponse(response.status_code, bytes(response.body), content_type))
    return response
