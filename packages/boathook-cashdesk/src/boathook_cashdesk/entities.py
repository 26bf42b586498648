"""The objects of a cabinet, their actions, and the event types of both."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

Object = Mapping[str, Any]
"""An object's complete state as JSON: the API's response and the content of events."""


class Entity(StrEnum):
    """The kinds of objects, in the order of their bits in webhooks; each is also the name of its table and path."""

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


def event_type(entity: Entity, action: Action) -> str:
    """Return the event type of *action*, such as ``products.CREATE``."""
    return f"{entity}.{action}"


EVENT_TYPES: Final[Mapping[str, str]] = {
    event_type(entity, action): f"{action.capitalize()} among {entity}." for entity in Entity for action in Action
}
"""All event types, each with a description."""
