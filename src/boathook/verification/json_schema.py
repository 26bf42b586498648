"""Validates JSON Schemas, and JSON documents against them: bodies of sources and payloads of messages.

This module is in `verification`, the lowest layer that needs it; the code that validates messages imports it from here.
Schemas and documents may both be untrusted, so neither can cause a fetch, a hang or endless recursion:

- A ``$ref`` may refer only to its own schema. The registry of other schemas is empty, and nothing is fetched.
- A ``pattern`` runs on an engine with time linear in the text, whatever the pattern (Rust's, which comes with
  pydantic). It supports no look-around and no back-references; a schema with such a pattern is rejected.
- A schema whose patterns take long to compile is rejected: some take longer than a thousand ordinary ones.
- Matching counts by the CPU time it takes, on ever longer beginnings of a text: the engine holds Python's lock, so that
  a pattern with thousands of states and a long text would stop the whole process for minutes.
- Every keyword applied counts as a step, and so do long texts and lists. A payload that needs more than `MAX_STEPS`
  steps is rejected, because a schema can double the work with each line.

That many steps take up to a second, whatever the payload's size: a thread validates, never an event loop.

Schemas are read as draft 7, as Svix does, whatever their ``$schema`` says; ``format`` is ignored.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from difflib import get_close_matches
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import msgspec
from jsonschema import Draft7Validator, validators
from jsonschema.exceptions import ValidationError
from pydantic_core import SchemaError, SchemaValidator, core_schema
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, EMPTY_REGISTRY

from boathook.domain.json_document import MAX_DEPTH, is_too_deep

MAX_SCHEMA: Final = 262_144
"""Maximum bytes of one schema as JSON."""
MAX_PATTERN: Final = 1_000
MAX_PATTERNS_S: Final = 0.5
"""Maximum CPU seconds to compile a schema's patterns when it is stored."""
MAX_STEPS: Final = 50_000
"""Maximum steps to validate one payload, a few microseconds each."""
_STEPS_PER_S: Final = 300_000
"""Steps for a second of matching."""
_FIRST_CHARS: Final = 64
"""Characters of a text that are matched without knowing how long that takes."""
_GROWTH: Final = 4
"""How many times as many are matched next."""
MESSAGE_CHARS_PER_STEP: Final = 200
"""Characters of an error message that cost one step."""
_MAX_MESSAGE: Final = 300

Check = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]
"""Implements a keyword: maps validator, keyword value, instance and schema to errors."""


class StepLimitExceeded(Exception):
    """Validating a payload exceeded the step limit."""


_steps: ContextVar[list[int]] = ContextVar("boathook_schema_steps")
"""The remaining steps, in a list of one."""


def check_schema(schema: Any) -> None:
    """Check that `validate` can use a schema.

    Raises:
        ValueError: it is not valid draft 7, is too large, or uses an unsupported feature; the message says where.
    """
    document = _document(schema)
    parsed = msgspec.json.decode(document)
    _check_time(parsed)
    _validator(document)
    _check_spelling(parsed)


def _check_spelling(schema: Any) -> None:
    """Reject misspelt keywords, which validation ignores: the schema would allow what its author forbids.

    Others that the draft does not define are annotations, and so allowed.
    """
    for name in islice(_unknown_keywords(DRAFT7.create_resource(schema)), _MAX_SPELLING):
        if near := get_close_matches(name[:_MAX_KEYWORD], _KEYWORDS, 1, _MISSPELT):
            raise ValueError(f"{name!r} is not a keyword of JSON Schema draft 7; did you mean {near[0]!r}?")


def _unknown_keywords(resource: Any) -> Iterator[str]:
    if isinstance(resource.contents, Mapping):
        yield from (name for name in resource.contents if name not in _KEYWORDS and name != _OPENAPI_EXAMPLE)
    for inner in resource.subresources():
        yield from _unknown_keywords(inner)


def _check_time(schema: Any) -> None:
    """Reject patterns that take long to compile; a few characters, or hundreds of patterns, can cause that."""
    began = time.thread_time()
    for pattern in _patterns(schema):
        # Whether the pattern is valid is checked later.
        with contextlib.suppress(ValueError):
            _regex(pattern)
        if time.thread_time() - began > MAX_PATTERNS_S:
            raise ValueError("the schema's patterns take too long to compile; use fewer or simpler ones")


def _patterns(schema: Any) -> Iterator[str]:
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            parts += part.values()
            patterns = part.get("patternProperties")
            yield from patterns if isinstance(patterns, Mapping) else ()
            if isinstance(part.get("pattern"), str):
                yield part["pattern"]
        elif isinstance(part, list):
            parts += part


def validate(payload: Any, schemas: Mapping[str, Any] | None) -> str | None:
    """Return why *payload* does not match the newest of its event type's *schemas*, or None if it matches.

    Args:
        payload: a parsed JSON value.
        schemas: schemas by version; the newest is the last in natural order, in which ``10`` follows ``9``.
    """
    if not schemas:
        return None
    version = max(schemas, key=_natural)
    try:
        validator = _validator(_document(schemas[version]))
    except ValueError as error:
        return f"version {version} of the schema cannot be used: {error}"
    return _fault(validator, payload)


class CompiledSchema:
    """One compiled schema that validates many documents.

    Raises:
        ValueError: as for `check_schema`.
    """

    def __init__(self, schema: Any) -> None:
        check_schema(schema)
        self._validator = _validator(_document(schema))

    def fault(self, document: Any) -> str | None:
        """Return the first violation in a parsed JSON value, with its path, or None if it is valid."""
        return _fault(self._validator, document)


def _fault(validator: Any, document: Any) -> str | None:
    token = _steps.set([MAX_STEPS])
    try:
        return next(
            (_format_error(error.absolute_path, error.message) for error in validator.iter_errors(document)), None
        )
    except StepLimitExceeded:
        return f"it takes more than {MAX_STEPS:,} steps to check by the schema"
    except (ArithmeticError, RecursionError, Unresolvable, ValueError) as error:
        return f"it cannot be checked by the schema: {_shorten(str(error))}"
    finally:
        _steps.reset(token)


def _document(schema: Any) -> bytes:
    try:
        document = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the schema cannot be written as JSON: {error}") from None
    if len(document) > MAX_SCHEMA:
        raise ValueError(f"a schema has at most {MAX_SCHEMA:,} bytes, not {len(document):,}")
    if is_too_deep(document):
        raise ValueError(f"a schema nests at most {MAX_DEPTH} deep")
    return document


@lru_cache(maxsize=512)
def _validator(document: bytes) -> Any:
    schema = msgspec.json.decode(document)
    try:
        for error in _META.iter_errors(schema):
            # A wrong word for a type: the alternatives list the right ones, the whole does not.
            cause = next((part for part in error.context or () if part.validator == "enum"), error)
            raise ValueError(_format_error(error.absolute_path, cause.message))
        resource = DRAFT7.create_resource(schema)
        _check_parts(resource, EMPTY_REGISTRY.resolver_with_root(resource))
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    return _Metered(schema, registry=EMPTY_REGISTRY)


def _check_parts(resource: Any, resolver: Any) -> None:
    """Reject references that cannot be resolved and patterns that the engine does not support."""
    part = resource.contents
    if isinstance(part, Mapping):
        for pattern in (*part.get("patternProperties", ()), *([part["pattern"]] if "pattern" in part else ())):
            _regex(pattern)
        if "$ref" in part:
            _check_reference(part["$ref"], resolver)
    for inner in resource.subresources():
        _check_parts(inner, resolver.in_subresource(inner))


def _check_reference(reference: str, resolver: Any) -> None:
    try:
        resolver.lookup(reference)
    except Unresolvable:
        raise ValueError(
            f"$ref {reference!r} leads out of the schema or nowhere; put what it names under definitions and "
            "write #/definitions/NAME"
        ) from None


@lru_cache(maxsize=2_048)
def _regex(pattern: str) -> Callable[[str], bool]:
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern has at most {MAX_PATTERN:,} characters, not {len(pattern):,}")
    try:
        engine = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        raise ValueError(
            f"pattern {pattern!r} cannot be used: it is wrong or too large, or has look-around or back-references"
        ) from None
    return lambda text: bool(engine.isinstance_python(text))


def _matches(pattern: str, text: str) -> bool:
    _count_steps(len(text) // 10)
    match, size = _regex(pattern), _FIRST_CHARS
    while size < len(text):
        # Also what the next beginning will take, so that it is not begun without room for it.
        _count_steps(int(_GROWTH * _STEPS_PER_S * _timed(match, text[:size])[1]))
        size *= _GROWTH
    is_match, spent_s = _timed(match, text)
    _count_steps(int(_STEPS_PER_S * spent_s))
    return is_match


def _timed(match: Callable[[str], bool], text: str) -> tuple[bool, float]:
    """Return whether a text matches, and the CPU seconds that took."""
    began = time.thread_time()
    return match(text), time.thread_time() - began


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            _count_steps(1)
            if _matches(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _multiple_of(validator: Any, divisor: float, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    # Compared as decimals: in binary floating point, 19.99 is not a multiple of 0.01.
    if validator.is_type(instance, "number") and (Fraction(str(instance)) / Fraction(str(divisor))).denominator != 1:
        yield ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def _additional_properties(validator: Any, rule: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in properties or any(_matches(pattern, name) for pattern in patterns):
            continue
        if rule is False:
            yield ValidationError(f"the property {name!r} is not allowed")
        else:
            yield from validator.descend(value, rule, path=name)


def _metered(keyword: str, check: Check) -> Check:
    def metered(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        _count_steps(1 + _size(rule) // 10 + _size(instance) // 10)
        if keyword == "uniqueItems" and isinstance(instance, list) and any(map(_size, instance)):
            # Lists and objects cannot be sorted, so every pair of elements is compared.
            _count_steps(len(instance) ** 2 // 10)
        return _count_message_steps(check(validator, rule, instance, schema) or ())

    return metered


def _count_message_steps(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """Count steps for error messages: each contains the whole value, even in a discarded alternative."""
    for error in errors:
        _count_steps(len(error.message) // MESSAGE_CHARS_PER_STEP)
        yield error


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _count_steps(steps: int) -> None:
    budget = _steps.get()
    budget[0] -= steps
    if budget[0] < 0:
        raise StepLimitExceeded


_REPLACED_KEYWORDS: Final[Mapping[str, Check]] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "multipleOf": _multiple_of,
}
"""Replacements for jsonschema's checks: its patterns use Python's engine, which can hang, and its arithmetic is
inexact."""
_CHECKS: Final = {
    keyword: _metered(keyword, _REPLACED_KEYWORDS.get(keyword, check))
    for keyword, check in Draft7Validator.VALIDATORS.items()
}
_Metered: Final = validators.extend(Draft7Validator, _CHECKS)  # type: ignore[no-untyped-call]
_META: Final = Draft7Validator(Draft7Validator.META_SCHEMA)
_KEYWORDS: Final = frozenset(Draft7Validator.META_SCHEMA["properties"])
_OPENAPI_EXAMPLE: Final = "example"
"""Spelt much like ``examples`` of draft 7."""
_MAX_SPELLING: Final = 200
"""How many unknown keywords of a schema are compared with the known ones; each takes about 0.1 ms."""
_MAX_KEYWORD: Final = 40
_MISSPELT: Final = 0.82


def _natural(version: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"([0-9]+)", version)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]


def _format_error(path: Iterable[str | int], message: str) -> str:
    location = ".".join(map(str, path))
    return _shorten(f"{location}: {message}" if location else message)


def _shorten(text: str) -> str:
    """Shorten *text* in the middle: the path is at its start and the reason at its end."""
    half = _MAX_MESSAGE // 2
    return text if len(text) <= _MAX_MESSAGE else f"{text[: half - 1]}…{text[-half:]}"
