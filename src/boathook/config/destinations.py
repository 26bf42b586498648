"""The kinds of destinations that endpoints may have; packages declare kinds of their own by entry points."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from boathook.config.packages import find_entry, resolve
from boathook.domain.endpoints import DEFAULT_DESTINATION
from boathook.domain.errors import ConfigError

GROUP: Final = "boathook.destinations"
"""The group of entry points: each has the name of a kind, and names its `DestinationKind`."""
_OWN: Final[Mapping[str, str]] = {DEFAULT_DESTINATION: "boathook.delivery.http_destination:http"}
"""The kinds that are always installed: `importlib.metadata` takes longer to import than most commands run."""


class DestinationKind(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One kind of destination: what its endpoints have, and the executor that makes attempts at them.

    Parts are named as ``module:attribute``, so that a process imports only those that it needs.
    """

    label: str
    """Its name in forms, such as ``Redis stream``."""
    executor: str
    """Called with an `ExecutorContext` by each sender that needs it; returns a
    `boathook.delivery.endpoint_executor.EndpointExecutor`."""
    fields: str | None = None
    """The table of its fields, a `boathook.service.sending.destinations.DestinationFields`; None: it has none."""
    is_signed: bool = True
    """Whether its messages have the headers of Standard Webhooks, so that an endpoint must have a secret."""
    endpoint_fields: frozenset[str] = frozenset()
    """Those of ``url``, ``auth`` and ``headers`` that its endpoints have."""


def installed_kinds() -> Sequence[str]:
    """Return the names of the kinds of all installed packages, in order."""
    from importlib.metadata import entry_points  # takes longer to import than most commands run

    return sorted({*_OWN, *(point.name for point in entry_points(group=GROUP))})


def check_kinds(names: Sequence[str]) -> Sequence[str]:
    """Return the names of kinds that are installed. Raises ValueError for others."""
    for name in names:
        if find_kind(name) is None:
            installed = ", ".join(installed_kinds())
            raise ValueError(f"no installed package has the kind {name!r} of destinations; write any of {installed}")
    return names


def find_kind(name: str) -> DestinationKind | None:
    """Return a kind, whose declaration is imported; None if there is none. Raises ConfigError."""
    place = _OWN.get(name) or find_entry(GROUP, name, f"the kind {name!r} of destinations")
    kind = None if place is None else resolve(place)
    if not isinstance(kind, DestinationKind | None):
        raise ConfigError(f"{place} must be a boathook.config.destinations.DestinationKind, not {kind!r}")
    return kind
