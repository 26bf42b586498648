"""The catalogue of operations: each action of operators and API users, declared once.

operation   what an operation is, and the check that stands before each body
values      the bases of lists and results
selection   operations on many dead letters: named ones, a group, filters or all; what a job keeps of its caller
stored_requests  the same on rejected requests and conflicts

The other modules declare the operations of one noun each. Interfaces derive their routes, commands and forms from
`load`, which imports only the modules of the nouns that it is asked for.
"""

import functools
import importlib
from typing import Any, Final

from boathook.service.catalogue.operation import Operation

NOUNS: Final = {
    "key": "keys",
    "dead_letter": "dead_letters",
    "delivery": "deliveries",
    "rejection": "rejections",
    "conflict": "conflicts",
    "event": "events",
    "source": "sources",
    "source_secret": "source_secrets",
    "integrity": "integrity",
    "job": "jobs",
    "message": "messages",
    "operator": "operators",
    "operator_token": "operator_tokens",
    "recovery": "recovery",
    "silence": "silences",
    "alert": "alerts",
    "event_type": "event_types",
    "application": "applications",
    "endpoint": "endpoints",
}
"""The nouns that have operations, each with its module."""


def load(*nouns: str) -> tuple[Operation[Any, Any], ...]:
    """Return the operations of these nouns, or of all if none is named, in the order of their declaration."""
    return tuple(operation for noun in nouns or NOUNS for operation in _declared(noun))


def find(name: str) -> Operation[Any, Any]:
    """Return the operation with this name, such as ``key.revoke``. Raises KeyError."""
    noun = name.partition(".")[0]
    return {operation.name: operation for operation in (load(noun) if noun in NOUNS else ())}[name]


@functools.cache
def _declared(noun: str) -> tuple[Operation[Any, Any], ...]:
    module = importlib.import_module(f"{__name__}.{NOUNS[noun]}")
    return tuple(value for value in vars(module).values() if isinstance(value, Operation) and value.noun == noun)
