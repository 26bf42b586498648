"""Parses webhooks of all formats into one: which object was changed, and how.

RentProg names an event, and its payload is a text with a Ruby hash or JSON, or an object. An update has a pair
``[before, after]`` for each changed field, such as ``{"id"=>1, "state"=>["new", "active"]}``.
Systems in between may name entity and action separately, wrap the data once more, or only describe the change in a
sentence. A request in none of these formats is `Unknown`, a value to be stored and shown; nothing here raises.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from boathook_fleet.ruby import read_hash
from boathook_fleet.timestamp_formats import read_timestamp
from boathook_fleet.words import Action, Entity, find_action, find_entity, find_number

MAX_DEPTH: Final = 64
"""Maximum nesting of data; real objects are far less nested."""
MAX_ID: Final = 200
MAX_NAME: Final = 120
"""Maximum characters of a branch's or an actor's name."""
MAX_TEXT: Final = 500
"""Maximum characters of a description; all of them together fit into one live message."""

_NAMES: Final = ("event", "type", "event_type", "eventType", "event_name", "webhook", "name")
_ENTITIES: Final = ("entity", "model", "resource", "subject", "object", "entity_type", "table", "class")
_ACTIONS: Final = ("action", "method", "operation", "verb", *_NAMES)
_SENTENCES: Final = ("description", "text", "title", "comment", "описание")
_DATA: Final = ("payload", "data", "object", "attributes", "record", "body", "params")
_CHANGES: Final = ("changes", "saved_changes", "previous_changes")
_BRANCHES: Final = ("branch_id", "branch", "filial_id", "filial", "company_id", "branch_name", "accountId")
_ACTORS: Final = ("actor", "changed_by", "author", "user", "manager", "employee", "sender", "initiator")
_IDS: Final = ("entity_id", "entityId", "object_id", "record_id", "id", "uid", "uuid")
_BESIDE: Final = ("leadId", "accountId", "customerId")
_STAMPS: Final = ("changed_at", "occurred_at", "timestamp", "time", "datetime", "sent_at", "event_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one object."""

    entity: Entity
    action: Action
    id: str
    """The sender's own id, as text."""
    branch: str | None = None
    actor: str | None = None
    description: str = ""
    stamp: datetime | None = None
    """When it happened by the sender's clock, if known."""
    data: Mapping[str, Any]
    """The object's fields after the change, as far as the event has them; storable as jsonb."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """The values before the change of the fields for which the sender names them."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A request that this parser does not understand."""

    reason: str


def read(body: bytes, zone: tzinfo = UTC) -> Change | Unknown:
    """Parse a request's body, whose times without a zone are the local time of *zone*."""
    try:
        document = json.loads(body.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError):
        return Unknown("the body is not JSON")
    return parse(document, zone)


def parse(document: Any, zone: tzinfo = UTC) -> Change | Unknown:
    """Parse a JSON document."""
    try:
        document = clean(document)
    except RecursionError:
        return Unknown(f"it nests deeper than {MAX_DEPTH}")
    if not isinstance(document, dict) or not document:
        return Unknown("it is not a JSON object with fields")
    entity = _entity(document)
    if entity is None:
        return Unknown("it names no car, client, booking, branch, employee or message")
    data = _data(document, entity)
    if data is None:
        return Unknown(f"it has no fields of the {entity}")
    data, before = _wrapped_pairs(data)
    action = _action(document, data) or (Action.CREATE if entity is Entity.MESSAGE else None)
    if action is None:
        return Unknown(f"the action on the {entity} is missing")
    identifier = _identifier(document, data, entity)
    if identifier is None:
        return Unknown(f"the id of the {entity} is missing")
    if action is Action.UPDATE:
        data, paired = _split_pairs(data)
        before |= paired
    return Change(
        entity=entity,
        action=action,
        id=identifier,
        branch=_first_name(_BRANCHES, data, document),
        actor=_first_name(_ACTORS, document, data),
        description=_sentence(document) or _sentence(data) or f"{entity} {identifier}: {action}",
        stamp=_stamp(document, data, action, zone),
        data=data,
        before=before,
    )


def clean(value: Any, depth: int = 0) -> Any:
    """Return a value that jsonb can store: without NUL, lone surrogates, infinities and huge numbers.

    Raises:
        RecursionError: it is nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise RecursionError
    match value:
        case str():
            return value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
        case dict():
            return {clean(str(key)): clean(inner, depth + 1) for key, inner in value.items()}
        case list() | tuple():
            return [clean(inner, depth + 1) for inner in value]
        case bool() | None:
            return value
        case int():
            return value if -_MAX_NUMBER < value < _MAX_NUMBER else None
        case float():
            return value if math.isfinite(value) else None
        case _:
            return clean(str(value))


_MAX_NUMBER: Final = 10**300


def _entity(document: Mapping[str, Any]) -> Entity | None:
    by_name = (find_entity(text) for text in _texts(document, (*_ENTITIES, *_NAMES)))
    described = (find_entity(text) for text in _texts(document, _SENTENCES))
    by_key = (Entity(key) for key in document if key in _KINDS and isinstance(document[key], dict))
    return next((entity for way in (by_name, by_key, described) for entity in way if entity is not None), None)


def _action(document: Mapping[str, Any], data: Mapping[str, Any]) -> Action | None:
    texts = (*_texts(document, _ACTIONS), *_texts(document, _SENTENCES), *_texts(data, ("action", "description")))
    return next((action for action in map(find_action, texts) if action is not None), None)


def _data(document: dict[str, Any], entity: Entity) -> dict[str, Any] | None:
    """Return the object's fields: unwrapped, and decoded if they are a text."""
    data = _unwrap(document, entity)
    if data is document:
        # Nothing is wrapped: the fields are next to the event's name, or there is only a sentence.
        data = {key: value for key, value in document.items() if key not in _ENVELOPE}
        if not data:
            return None
        if data.keys() <= set(_SENTENCES):
            return {}
    return data


def _unwrap(document: dict[str, Any], entity: Entity) -> dict[str, Any]:
    for wraps in range(4):
        inner = next(_inside(document, entity), None)
        # The outermost id may be the event's own; an id further inside is the object's, so nothing else is wrapped
        # there.
        if inner is None or (wraps and any(key in document for key in ("id", f"{entity}_id", f"{entity}Id"))):
            break
        # Values next to the data, such as its id, are used if the data lacks them.
        keys = _BESIDE if "id" in inner else (*_IDS, *_BESIDE)
        document = {key: document[key] for key in keys if key in document} | inner
    return document


def _inside(document: Mapping[str, Any], entity: Entity) -> Iterator[dict[str, Any]]:
    for key in (str(entity), *_DATA):
        value = document.get(key)
        if isinstance(value, str):
            value = _decoded(value)
        if isinstance(value, dict) and value:
            yield value


def _decoded(text: str) -> Any:
    """Return the object that a text holds as JSON or as a Ruby hash, else None."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return clean(json.loads(text))
    except (ValueError, RecursionError):
        pass
    parsed = read_hash(text)
    try:
        return clean(parsed)
    except RecursionError:
        return None


def _wrapped_pairs(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields with those of a wrapper such as ``changes``, and the values before of the latter."""
    before: dict[str, Any] = {}
    for key in _CHANGES:
        if isinstance(pairs := data.get(key), dict):
            after, paired = _split_pairs(pairs)
            data = {name: value for name, value in data.items() if name != key} | after
            before |= paired
    return data, before


def _split_pairs(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values after the change, and those before it: Rails sends both, as ``[before, after]``."""
    pairs = {name: value for name, value in fields.items() if isinstance(value, list) and len(value) == 2}
    return {**fields, **{name: after for name, (_, after) in pairs.items()}}, {
        name: before for name, (before, _) in pairs.items()
    }


def _identifier(document: Mapping[str, Any], data: Mapping[str, Any], entity: Entity) -> str | None:
    own = (f"{entity}_id", f"{entity}Id", *_IDS)
    for holder, keys in ((data, ("id", *own)), (document, own)):
        for key in keys:
            identifier = _scalar(holder.get(key))
            if identifier and len(identifier) <= MAX_ID and identifier.isprintable():
                return identifier
    described = (find_number(text) for text in _texts(document, _SENTENCES))
    return next((number for number in described if number is not None), None)


def _stamp(document: Mapping[str, Any], data: Mapping[str, Any], action: Action, zone: tzinfo) -> datetime | None:
    # A deleted object's last update came before the deletion, so its timestamp is the last resort.
    own = {
        Action.CREATE: ("updated_at", "created_at"),
        Action.UPDATE: ("updated_at",),
        Action.DELETE: ("deleted_at",),
    }[action]
    late = ("updated_at",) if action is Action.DELETE else ()
    values = (*_values(data, own), *_values(document, (*own, *_STAMPS)), *_values(data, (*_STAMPS, *late)))
    return next((stamp for value in values if (stamp := read_timestamp(value, zone)) is not None), None)


def effective_timestamp(change: Change, accepted_at: datetime) -> datetime:
    """Return the time that orders *change*: the sender's, unless it is missing or in the future.

    A fast clock would otherwise block newer changes.
    """
    return min(change.stamp or accepted_at, accepted_at).astimezone(UTC)


def _first_name(keys: Iterable[str], *holders: Mapping[str, Any]) -> str | None:
    for holder in holders:
        for value in _values(holder, keys):
            if name := _name(value):
                return name[:MAX_NAME]
    return None


def _name(value: Any) -> str | None:
    """Return the name of a person or a branch: the text itself, or the name, login or id in an object."""
    if isinstance(value, dict):
        inner = (_scalar(value.get(key)) for key in ("name", "full_name", "email", "login", "id"))
        return next((text for text in inner if text), None)
    return _scalar(value)


def _scalar(value: Any) -> str | None:
    match value:
        case bool() | None:
            return None
        case str():
            return value.strip() or None
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case _:
            return None


def _sentence(holder: Mapping[str, Any]) -> str:
    return next((text[:MAX_TEXT] for text in _texts(holder, _SENTENCES)), "")


def _texts(holder: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [value for value in _values(holder, keys) if isinstance(value, str) and value.strip()]


def _values(holder: Mapping[str, Any], keys: Iterable[str]) -> list[Any]:
    return [holder[key] for key in keys if holder.get(key) is not None]


_KINDS: Final = frozenset(Entity)
_ENVELOPE: Final = frozenset({*_NAMES[:-1], *_ENTITIES, *_ACTIONS[:4], *_DATA}) - {"object"}
