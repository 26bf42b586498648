"""Which paths apps may have for what they mount."""

from collections.abc import Iterable, Mapping
from typing import Final

from boathook.domain.errors import ConfigError
from boathook.handlers.manifest import Mount

_RESERVED_PATHS: Final = ("/api", "/healthz", "/readyz", "/selftest", "/metrics", "/metrics.json", "/metrics/history")
_RESERVED_PREFIXES: Final = ("/api/v1", "/console", "/in", "/portal")


def check_mounts(mounts: Mapping[str, Iterable[Mount]]) -> list[Mount]:
    """Return the mounts of all apps, which are given by their names.

    Raises:
        ConfigError: two apps want one path, or one wants a path of ours; the message names them.
    """
    owners: dict[str, str] = {}
    found = [(app, mount) for app, some in mounts.items() for mount in some]
    for app, mount in found:
        if mount.path in _RESERVED_PATHS or any(
            f"{mount.path}/".startswith(f"{below}/") for below in _RESERVED_PREFIXES
        ):
            raise ConfigError(f"hook.mount: {app} cannot have {mount.path}, which is boathook's own; take another path")
        if mount.path in owners:
            raise ConfigError(f"hook.mount: {mount.path} is mounted by {owners[mount.path]} and by {app}")
        owners[mount.path] = app
    return [mount for _, mount in found]
