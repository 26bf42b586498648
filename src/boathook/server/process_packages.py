"""Runs what optional packages add to every process."""

import contextlib
from collections.abc import Iterator

from boathook.config import Settings
from boathook.config.packages import resolve


@contextlib.contextmanager
def packages_running(settings: Settings, process: str) -> Iterator[None]:
    """Enter the `Package.process` of each package in use for the duration of the block. Raises ConfigError.

    Args:
        process: the name of this process, such as ``worker-0``.
    """
    with contextlib.ExitStack() as stack:
        for package in settings.packages:
            if package.process is not None:
                stack.enter_context(resolve(package.process)(settings, process))
        yield
