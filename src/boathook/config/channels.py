"""The kinds of alert channels, which packages declare by entry points, and the settings that all of them have."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from pydantic import BeforeValidator, SerializeAsAny, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from boathook.config.packages import find_entry, resolve
from boathook.config.types import Table
from boathook.domain.errors import ConfigError

GROUP: Final = "boathook.alert_channels"
"""The group of entry points: each has the name of a kind, and names its `ChannelKind`."""
Severity = Literal["warning", "critical"]


class ChannelTable(Table):
    """The settings that channels of all kinds have; each kind adds its own, and its name as *kind*."""

    kind: str
    min_severity: Severity = "warning"
    """The lowest severity that it receives."""

    @property
    def destination(self) -> str:
        """Who receives its messages, for operators; empty if that is secret."""
        return ""


class ChannelKind(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of one kind of channel, each as ``module:attribute``; imported where a channel of a kind is set."""

    table: str
    """The class of its settings, a `ChannelTable` its *kind* a ``Literal``; ``Field(repr=False)`` marks secrets."""
    send: str
    """A `boathook.alerts.channel.SendMessage`."""


def kinds_of_channels() -> Sequence[str]:
    """Return the names of the kinds of all installed packages, in order."""
    from importlib.metadata import entry_points  # takes longer to import than most commands run

    return sorted({point.name for point in entry_points(group=GROUP)})


def find_kind(name: str) -> ChannelKind | None:
    """Return a kind, whose declaration is imported; None if there is none. Raises ConfigError."""
    place = find_entry(GROUP, name, f"the kind {name!r} of alert channels")
    kind = None if place is None else resolve(place)
    if not isinstance(kind, ChannelKind | None):
        raise ConfigError(f"{place} must be a boathook.config.channels.ChannelKind, not {kind!r}")
    return kind


def read_channel(table: object) -> ChannelTable:
    """Return a channel from its table. Raises ValidationError, or ConfigError if kinds are declared wrongly."""
    if not isinstance(table, Mapping):
        return ChannelTable.model_validate(table)
    name = table.get("kind")
    kind = find_kind(name) if isinstance(name, str) else None
    if kind is None:
        text = f"kind must be one of {', '.join(map(repr, kinds_of_channels()))}"
        fault = InitErrorDetails(type=PydanticCustomError("channel_kind", "{text}", {"text": text}), input=name)
        raise ValidationError.from_exception_data(ChannelTable.__name__, [fault])
    model: type[ChannelTable] = resolve(kind.table)
    return model.model_validate(table)


def _as_channel(value: object) -> object:
    """Return the channel that a child process has received as plain values."""
    return read_channel(value) if isinstance(value, dict) else value


Channel = Annotated[SerializeAsAny[ChannelTable], BeforeValidator(_as_channel)]
