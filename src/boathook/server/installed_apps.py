"""Finds installed apps: packages that declare an app's name in the entry-point group ``boathook.apps``.

A declaration only makes the name known. Nothing is imported before `apps.load` names the app.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from boathook.domain.errors import ConfigError

GROUP: Final = "boathook.apps"
READY_MADE: Final = ("billing", "cashdesk", "fleet", "music")
"""The apps of this project, each in a package of its own: ``boathook-billing``."""


def installed_apps() -> dict[str, str]:
    """Return the module of each installed app by the app's name. Raises ConfigError if two packages declare a name."""
    from importlib.metadata import entry_points  # takes longer to import than a list command runs

    modules: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        if (other := modules.setdefault(point.name, point.value)) != point.value:
            raise ConfigError(f"two installed packages declare the app {point.name!r}: {other} and {point.value}")
    return modules


def module_of(entry: str) -> str:
    """Return the module that an entry of `apps.load` names: an installed app's, or itself.

    Raises:
        ConfigError: it is the name of an installed app and of another module, or of a ready-made app that is not
            installed.
    """
    if "." in entry:
        return entry
    module = installed_apps().get(entry)
    spec = find_spec(entry)
    own = spec.origin if spec is not None else None
    if module is None:
        if own is None and entry in READY_MADE:
            raise ConfigError(f"apps.load: the app {entry} is not installed: pip install boathook-{entry}")
        return entry
    if own is not None and module != entry:
        raise ConfigError(
            f"apps.load: {entry!r} is the name of an installed app and of the module {own}:"
            f' write "{module}" for the app, or rename the module'
        )
    return module


def sample_of(name: str) -> Path | None:
    """Return the path of an installed app's sample ``boathook.toml``; None if it has none."""
    spec = find_spec(installed_apps()[name])
    folders = spec.submodule_search_locations if spec is not None else None
    samples = [Path(folder) / "boathook.toml" for folder in folders or ()]
    return next((path for path in samples if path.is_file()), None)
