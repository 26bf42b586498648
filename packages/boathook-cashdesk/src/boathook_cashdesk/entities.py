"""The objects of a cabinet, their actions, and the bit mask with which a webhook selects kinds of objects."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

Object = Mapping[str, Any]
"""An object's complete state as JSON: the API's response and the content of events."""


class Entity(StrEnum):
    """The kinds of objects, in the order of their bits; each value is also the name of its table and path."""

    PRODUCTS = "products"
    RECEIPTS = "receipts"
    SHIFTS = "shifts"
    ENCASHMENTS = "encashments"
    DEVICES = "devices"
    OPERATIONS = "operations"


class Action(StrEnum):
    """The action on an object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


BITS: Final[Mapping[Entity, int]] = {entity: 1 << place for place, entity in enumerate(Entity)}
EVERYTHING: Final = sum(BITS.values())


def event_type(entity: Entity, action: Action) -> str:
    """Return the event type of *action*, such as ``products.CREATE``."""
    return f"{entity}.{action}"


EVENT_TYPES: Final[Mapping[str, str]] = {
    event_type(entity, action): f"{action.capitalize()} among {entity}." for entity in Entity for action in Action
}
"""All event types, each with a description."""


def mask_of(types: Mapping[Entity, bool]) -> int:
    """Return the bits of the selected kinds; missing kinds are not selected."""
    return sum(BITS[entity] for entity, is_wanted in types.items() if is_wanted)


def types_of(mask: int) -> dict[Entity, bool]:
    """Return for every kind whether its bit is set."""
    return {entity: bool(mask & bit) for entity, bit in BITS.items()}


def patterns_of(mask: int) -> list[str]:
    """Return the patterns that match the events of the kinds whose bits are set, and no others."""
    return [f"{entity}.*" for entity, bit in BITS.items() if mask & bit]
