"""An app's declarations besides its handlers: settings, tables, sources, chores, mounts, commands and metrics."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import BaseModel, ValidationError

from boathook.config.faults import describe_error
from boathook.config.notifications import RuleSettings
from boathook.domain.alerts import AlertReading
from boathook.domain.errors import ConfigError
from boathook.observability import meters
from boathook.observability.metrics import (
    APP_METRICS,
    METRICS,
    SECONDS,
    LabelValue,
    LabelValues,
    Merge,
    Metric,
    MetricKind,
    register,
    register_mirror,
)

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Check = Callable[[Any, bool], Iterable[tuple[str, str]]]
Sources = Callable[[Any], Mapping[str, Mapping[str, Any] | None]]
Channels = Callable[[Any], Mapping[str, Mapping[str, Any]]]


class Chore(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic task of an app, run in one process across all hosts."""

    name: str
    every_s: float
    function: Callable[[], Awaitable[object]]


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """An ASGI application at a path."""

    path: str
    """Without a trailing slash, so empty for ``/``; the application receives it as ASGI's ``root_path``."""
    app: Asgi
    is_open: bool = False
    """Whether it needs no authentication; otherwise clients need a token."""

    @property
    def shown_path(self) -> str:
        """The path as in the settings and in API keys."""
        return self.path or "/"


class AppMetric(msgspec.Struct, frozen=True):
    """A metric of an app: one series for each combination of label values."""

    metric: Metric

    def add(self, n: float = 1, /, **labels: object) -> None:
        """Increase a counter by *n*."""
        meters.count(self.metric.name, n, **labels)

    def set(self, value: float, /, **labels: object) -> None:
        """Set a gauge."""
        meters.gauge(self.metric.name, value, **labels)

    def observe(self, value: float, /, **labels: object) -> None:
        """Record one observation of a histogram, in its unit."""
        meters.observe(self.metric.name, value, **labels)


class Manifest(msgspec.Struct):
    """The declarations of one app, in order."""

    settings: type[BaseModel] | None = None
    """Validates the app's own table in boathook.toml."""
    migrations: Path | None = None
    """A folder of ``NNNN_what.sql`` files, each applied once, in order, in its own transaction."""
    sources: Sources | None = None
    channels: Channels | None = None
    unused_sources: frozenset[str] = frozenset()
    """Sources that the app does not need with its settings, so that its handlers of them have no routes."""
    check: Check | None = None
    """Checks the app's settings at the start."""
    ignored_variables: Mapping[str, tuple[str, str]] = {}
    """Environment variables without an effect, each with the reason and what to do instead."""
    chores: list[Chore] = msgspec.field(default_factory=list)
    mounts: list[Mount] = msgspec.field(default_factory=list)
    commands: Any = None
    """A `typer.Typer`, run as ``boathook <app> ...``."""
    alert_rules: dict[str, RuleSettings] | None = None
    """Rules about the app's metrics, and of its alerts, by name."""
    alert_checks: dict[str, Callable[[Any], Awaitable[Iterable[AlertReading]]]] = msgspec.field(default_factory=dict)
    """Functions that decide when an alert fires, by the name of its rule; each takes a transaction."""

    def add_alert_check(self, name: str, function: Callable[[Any], Awaitable[Iterable[AlertReading]]]) -> None:
        """Let a function decide when an alert fires."""
        rules = self.alert_rules or {}
        self.alert_rules = {**rules, name: rules[name].model_copy(update={"rows": "checked"})}
        self.alert_checks[name] = function

    def add_alert_rule(self, name: str, keys: Mapping[str, Any]) -> None:
        """Add an alert rule. Raises ConfigError if a key is invalid or the name is taken."""
        rules = self.alert_rules or {}
        if name in rules:
            raise ConfigError(f"hook.alert_rule: two rules are named {name}; give one of them another name")
        try:
            self.alert_rules = {**rules, name: RuleSettings.model_validate(keys)}
        except ValidationError as error:
            raise ConfigError(describe_error(error, lambda _key: "hook.alert_rule", name)) from None

    def add_chore(self, chore: Chore) -> None:
        """Add a chore. Raises ConfigError if it is not async, its interval is not positive, or its name is taken."""
        if not inspect.iscoroutinefunction(chore.function):
            raise ConfigError(f"hook.every: the chore {chore.name} must be an async function: async def {chore.name}()")
        if inspect.signature(chore.function).parameters:
            raise ConfigError(f"hook.every: the chore {chore.name} takes no arguments: async def {chore.name}()")
        interval_s: Any = chore.every_s
        if not isinstance(interval_s, int | float) or isinstance(interval_s, bool) or not interval_s > 0:
            raise ConfigError(
                f"hook.every: the chore {chore.name} needs a number of seconds above 0, not {interval_s!r}"
            )
        if any(other.name == chore.name for other in self.chores):
            raise ConfigError(f"hook.every: two chores are named {chore.name}; give one of them another name=")
        self.chores.append(chore)

    def add_mount(self, mount: Mount) -> None:
        """Add an ASGI application. Raises ConfigError if its path is invalid or taken."""
        if mount.path and (not mount.path.startswith("/") or mount.path.endswith("/") or set(mount.path) & set("?# %")):
            raise ConfigError(f'hook.mount: {mount.path!r} must start with "/", not end with one, and be a plain path')
        if not callable(mount.app):
            raise ConfigError(f"hook.mount: {mount.path or '/'} needs an ASGI application, not {mount.app!r}")
        if any(other.path == mount.path for other in self.mounts):
            raise ConfigError(f"hook.mount: {mount.path or '/'} is mounted twice")
        self.mounts.append(mount)


def make_metric(
    app: str,
    kind: MetricKind,
    name: str,
    help: str,
    labels: Sequence[str],
    bounds: Sequence[float] = (),
    merge: Merge = Merge.SUM,
) -> AppMetric:
    """Register a metric of an app. Raises ConfigError if another metric has the name."""
    metric = Metric(name, kind, help, tuple(labels), tuple(bounds) if kind is MetricKind.HISTOGRAM else (), merge)
    try:
        register(metric)
    except ValueError as error:
        raise ConfigError(f"hook.{kind}: {error}") from None
    APP_METRICS.setdefault(app, {})[name] = metric
    return AppMetric(metric)


def make_mirror(
    app: str,
    name: str,
    help: str,
    of: str,
    filters: Mapping[str, LabelValues],
    labels: Mapping[str, str],
    constants: Mapping[str, LabelValue],
) -> None:
    """Export a metric under a second name. Raises ConfigError if that is not possible."""
    try:
        register_mirror(name, help, of, filters, labels, constants)
    except ValueError as error:
        raise ConfigError(f"hook.mirror: {error}") from None
    APP_METRICS.setdefault(app, {})[name] = METRICS[name]


USUAL_BOUNDS: Final = SECONDS
