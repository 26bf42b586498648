"""The tree of event types in an endpoint's form: ``invoice.paid`` and ``invoice.sent`` are below ``invoice.*``."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from boathook.service.event_types import EventType


class TypeNode(msgspec.Struct, frozen=True):
    """An event type, or a group of event types with a common prefix."""

    value: str
    """The name of the event type, or the pattern that matches the group."""
    description: str = ""
    is_deprecated: bool = False
    children: tuple["TypeNode", ...] = ()
    """The nodes of a group; empty for an event type."""

    @property
    def size(self) -> int:
        """The number of event types in it."""
        return sum(child.size for child in self.children) if self.children else 1

    @property
    def words(self) -> str:
        """The text that a search looks in, in lower case."""
        return " ".join((self.value, self.description, *(child.words for child in self.children))).lower()


MAX_LEVELS: Final = 8
"""Maximum depth of groups; types that would be deeper are listed in the group of the last level."""


def build_tree(types: Iterable[EventType]) -> tuple[TypeNode, ...]:
    """Return the nodes of event types; a prefix that only one type has makes no group."""
    return _nodes(sorted(types, key=lambda one: one.name.split(".")), 1, MAX_LEVELS)


def _nodes(types: Iterable[EventType], depth: int, levels: int) -> tuple[TypeNode, ...]:
    """Return the nodes of types whose names have their first *depth* - 1 parts in common."""
    groups = (tuple(some) for _, some in groupby(types, key=lambda one: _prefix(one.name, depth)))
    return tuple(node for some in groups for node in _group(some, depth, levels))


def _group(types: tuple[EventType, ...], depth: int, levels: int) -> tuple[TypeNode, ...]:
    if len(types) == 1 or not levels:
        return tuple(TypeNode(one.name, one.description, one.is_deprecated) for one in types)
    while len({_prefix(one.name, depth + 1) for one in types}) == 1:
        depth += 1
    return (TypeNode(f"{_prefix(types[0].name, depth)}*", children=_nodes(types, depth + 1, levels - 1)),)


def _prefix(name: str, depth: int) -> str:
    """Return the first *depth* parts of a name with a dot at their end; the whole name if it has no more parts."""
    parts = name.split(".")
    return name if len(parts) <= depth else ".".join(parts[:depth]) + "."


def tree_values(nodes: Iterable[TypeNode]) -> Iterator[str]:
    """Yield every value of a tree: the patterns of its groups and the names of its types."""
    for node in nodes:
        yield node.value
        yield from tree_values(node.children)


def without_covered(values: Sequence[str]) -> list[str]:
    """Return selected values without those below a selected group, whose pattern matches them."""
    groups = tuple(value.removesuffix("*") for value in values if value.endswith(".*"))
    return [value for value in values if not any(value != f"{group}*" and value.startswith(group) for group in groups)]
