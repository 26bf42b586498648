"""Optional packages: finds what is declared, and imports those whose keys of boathook.toml are used.

A package is declared by entry points, so nothing of it is imported by being installed. Its declaration, a `Package`,
names each of its parts as ``module:attribute``, so that a process imports only the parts that it needs.
"""

import functools
import tomllib
from collections.abc import Mapping
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from boathook.config.types import Table
from boathook.domain.errors import ConfigError

GROUP: Final = "boathook.packages"
"""The group of entry points with a `Package`, each named after what the package reads in boathook.toml.

``section``: a section of its own. ``section.key``: a key that it adds to a section of boathook or of another package.
``section.key.name``: its own name, as a value of a key that chooses a package.
"""
PARTS: Final[Mapping[str, str]] = {
    "embedded": "boathook_embedded.server:EmbeddedServer",
    "mounts": "boathook_apps.mounts:Mounts",
    "operations": "boathook_apps.operations:AppOperations",
}
"""What an installation may lack that has no section of boathook.toml; each is imported where it is needed."""
_OWN: Final = "boathook"
"""The distribution that contains boathook and its own optional packages."""
ALWAYS_USED: Final[Mapping[str, str]] = {
    "console": "boathook_console:package",
    "portal": "boathook_portal:package",
    "buffer.key_max_age_h": "boathook_outage_publishing:package",
}
"""The declarations of what is used whether it is written or not, if it is installed, by the names of entry points.

`importlib.metadata`, which finds the others, takes longer to import than most commands run.
"""


class PackageTable(Table):
    """One section of an optional package, or its keys in a section of boathook or of another package."""

    own_paths: ClassVar[tuple[str, ...]] = ()
    """Paths of gateways that belong to the package: no source or app may use them or paths below them."""

    @property
    def site_path(self) -> str:
        """The path of the pages that its package serves; empty if it serves none."""
        return ""

    @property
    def kept_headers(self) -> tuple[str, ...]:
        """The headers, in lower case, that are stored with every event if its request has them."""
        return ()

    def check_with(self, settings: Any) -> None:
        """Check the keys against all `Settings`. Raises ValueError, which names the key."""


PackageTableT = TypeVar("PackageTableT", bound=PackageTable)


def hidden_keys(table: type[Table]) -> frozenset[str]:
    """Return the keys whose values are secrets: fields with ``repr=False``."""
    return frozenset(name for name, field in table.model_fields.items() if not field.repr)


class Package(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of an optional package, each as ``module:attribute``; None if it has no such part.

    What apps declare (handlers, chores, mounts, sources, tables, metrics, alerts), a package declares as an app: *app*.
    """

    name: str
    """The name of its extra, as in ``pip install "boathook[name]"``, and what `buffer.kind` and others call it."""
    requires: tuple[str, ...] = ()
    """The modules that its extra installs."""
    tables: str
    """The class of its keys in each section, a `PackageTable`, by the section's name."""
    preload: Mapping[str, tuple[str, ...]] = {}
    """Modules that child processes need, by the role in `server.roles`: imported once, before they are forked."""
    check: str | None = None
    """Called with the settings before anything starts. Raises ConfigError."""
    app: str | None = None
    """Called with the settings; returns a `Boathook`, or None."""
    alert_rules: str | None = None
    """The file of its alert rules in its folder, in the format of boathook's ``alert_rules.toml``."""
    prometheus_rules: str | None = None
    """The file of its rules for Prometheus in its folder, in the format of boathook's ``alerts.yml``."""
    metrics: str | None = None
    """Its metrics; their module registers them when it is imported, which is where a section of the package is used."""
    gateway: str | None = None
    """Called with a `Gateway`; returns a `GatewayPart`, or None: what it adds to a gateway process."""
    notifier: str | None = None
    """An `OpenNotifier`: tells workers and senders of due deliveries if `delivery.lane` has the package's name."""
    elsewhere: str | None = None
    """Called with the settings; returns an `Elsewhere`, which knows what other installations serve, or None."""
    doctor: str | None = None
    """Called with the settings, and the database or None; yields findings."""
    prepare: str | None = None
    """Called with the settings by ``boathook migrate``; returns an awaitable of what to print, or None."""
    site: str | None = None
    """Called in a thread with an `AppContext` and the `LiveMetrics`; returns the ASGI application with the pages below
    `PackageTable.site_path`, which a gateway with the role console serves. Its folders ``templates`` and ``static`` may
    be used by all pages."""
    pages: str | None = None
    """Called with the settings; returns the `ConsolePages` that it adds to the console, or None; their templates are in
    its folder ``templates``."""
    responses: str | None = None
    """Errors of the API, a mapping of statuses to models with descriptions; the API's document always has them."""
    data_folder: str | None = None
    """A folder in `server.data_dir` that may still have its events when its sections are not used any more."""
    spools: str | None = None
    """Called with the settings; returns a list of `NamedSpool`: spools of this host in addition to its own."""
    buffered_publisher: str | None = None
    """An `OpenBufferedPublisher`: publishes messages of the API while PostgreSQL does not take them."""
    send_buffered: str | None = None
    """Called with the settings and a `Message`; returns an awaitable of its `Receipt`: keeps it on this host while
    PostgreSQL is unavailable."""
    identity_provider: str | None = None
    """Called with the settings; returns the `IdentityProvider` through which operators sign in, or None."""
    process: str | None = None
    """Called with the settings and the name of a process; returns a context manager that is entered while the process
    runs, before any other part is opened in it."""
    trace: str | None = None
    """Called with the settings, an `EventRow` and the headers stored with it; returns the id of the event's trace and
    the URL of the trace, each of which may be empty."""
    in_tests: Mapping[str, object] = {}
    """What its settings are on a server of `boathook.testing` that does not set them, by their dotted keys."""
    mounts: str | None = None
    """Called with the `AppContext` of a process that serves the API; returns ASGI applications by their paths, which
    are among `PackageTable.own_paths`. Each of them authenticates its callers itself."""


@functools.cache
def find_declaration(name: str) -> str | None:
    """Return where the package is declared that has a section, a key or a value, by the name of its entry point.

    Raises:
        ConfigError: two packages have it.
    """
    return used_by_default().get(name) or find_entry(GROUP, name, _label(name))


def _label(name: str) -> str:
    return name if "." in name else f"[{name}]"


def refuse_shared_names() -> None:
    """Check that no two distributions declare one section, key or value. Raises ConfigError, which names both.

    `find_entry` prefers boathook's own without looking for others, which takes longer than most commands run.
    """
    from importlib.metadata import entry_points

    owners: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        owner = owners.setdefault(point.name, point.value)
        if owner != point.value:
            raise declared_twice(_label(point.name), owner, point.value)


def declared_twice(label: str, *modules: str) -> ConfigError:
    """Return the error about what two packages declare."""
    return ConfigError(f"{label} is declared by two installed packages, {' and '.join(sorted(modules))}: remove one")


def names_offered(key: str) -> list[str]:
    """Return the names of the installed packages that a key may choose, in order."""
    return [name.removeprefix(f"{key}.") for name in installed_names() if name.startswith(f"{key}.")]


def installed_names() -> list[str]:
    """Return the sections, keys and values that all installed packages declare, in order."""
    from importlib.metadata import entry_points

    return sorted({point.name for point in entry_points(group=GROUP)})


def own_names() -> list[str]:
    """Return the sections, keys and values that the optional packages in boathook's distribution declare."""
    return list(own_entries(GROUP))


@functools.cache
def used_by_default() -> Mapping[str, str]:
    """Return those of `ALWAYS_USED` that are installed."""
    return {
        name: reference for name, reference in ALWAYS_USED.items() if find_spec(reference.partition(":")[0]) is not None
    }


def own_sections() -> list[str]:
    """Return the sections of the optional packages in boathook's distribution."""
    return [name for name in own_names() if "." not in name]


@functools.cache
def own_entries(group: str) -> Mapping[str, str]:
    """Return what the entry points of a group in boathook's distribution name."""
    from importlib.metadata import PackageNotFoundError, distribution  # takes longer to import than most commands run

    try:
        points = distribution(_OWN).entry_points
    except PackageNotFoundError:  # run from its source without being installed
        return {}
    return {point.name: point.value for point in points.select(group=group)}


def find_entry(group: str, name: str, label: str) -> str | None:
    """Return what an entry point names: of boathook's distribution, or else of any other; None if there is none.

    Args:
        label: what it declares, for the error.

    Raises:
        ConfigError: two other distributions have it.
    """
    from importlib.metadata import entry_points

    if (own := own_entries(group).get(name)) is not None:
        return own
    modules = sorted({point.value for point in entry_points(group=group, name=name)})
    if len(modules) > 1:
        raise declared_twice(label, *modules)
    return modules[0] if modules else None


def find_part(name: str) -> Any:
    """Import one of `PARTS`; None if it is not installed."""
    return resolve(PARTS[name]) if find_spec(PARTS[name].partition(".")[0]) is not None else None


@functools.cache
def read_declaration(reference: str) -> Package:
    """Import the declaration of a package. Raises ConfigError if it is not a `Package`."""
    package = resolve(reference)
    if not isinstance(package, Package):
        raise ConfigError(f"{reference} must be a boathook.config.packages.Package, not {package!r}")
    return package


def register_metrics(package: Package) -> None:
    """Register the metrics of a package that this process uses."""
    if package.metrics is not None:
        resolve(package.metrics)


def packages_with_data(data_dir: Path) -> list[Package]:
    """Return the packages of boathook's distribution that have left files in *data_dir*, used or not."""
    packages = [
        package for package in own_packages() if package.data_folder and (data_dir / package.data_folder).is_dir()
    ]
    for package in packages:
        register_metrics(package)
    return packages


def own_packages() -> tuple[Package, ...]:
    """Return the optional packages of boathook's distribution, those with sections first, for docs and tests."""
    entries = own_entries(GROUP)
    names = sorted(entries, key=lambda name: "." in name)
    return tuple(read_declaration(reference) for reference in dict.fromkeys(entries[name] for name in names))


def resolve(reference: str) -> Any:
    """Import what ``module:attribute`` names."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def tables_of(package: Package) -> Mapping[str, type[PackageTable]]:
    """Return the class of a package's keys in each section."""
    tables: Mapping[str, type[PackageTable]] = resolve(package.tables)
    return tables


def module_of_app(package: Package) -> str:
    """Return the module of a package's app, which owns its handlers."""
    return str(package.app).partition(":")[0]


def folder_of(package: Package) -> Traversable:
    """Return the folder of a package's code and files."""
    return resources.files(package.tables.partition(":")[0].partition(".")[0])


def defaults_file(package: Package) -> Traversable:
    """Return the file with the defaults and the documentation of a package's keys."""
    return folder_of(package).joinpath("defaults.toml")


def alert_rules_of(package: Package) -> dict[str, dict[str, Any]]:
    """Return the alert rules of a package by name."""
    if package.alert_rules is None:
        return {}
    return tomllib.loads(folder_of(package).joinpath(package.alert_rules).read_text(encoding="utf-8"))


def prometheus_rules_of(package: Package) -> str:
    """Return the rules of a package for Prometheus, as one more group of a file; empty if it has none."""
    if package.prometheus_rules is None:
        return ""
    return folder_of(package).joinpath(package.prometheus_rules).read_text(encoding="utf-8").partition("groups:\n")[2]


@functools.cache
def defaults_of(package: Package) -> Mapping[str, Mapping[str, Any]]:
    """Return the defaults of a package's keys by section."""
    return tomllib.loads(defaults_file(package).read_text(encoding="utf-8"))


def require_extra(package: Package, key: str) -> None:
    """Check that the extra of a package is installed. Raises ConfigError, which names the setting *key*."""
    if not all(map(_is_installed, package.requires)):
        raise ConfigError(f"{key} needs more: pip install 'boathook[{package.name}]'")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a module that it is in is missing
        return False
