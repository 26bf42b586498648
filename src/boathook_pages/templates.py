"""Jinja environments of pages."""

import contextlib
from pathlib import Path

from jinja2 import BaseLoader, Environment, FileSystemBytecodeCache, StrictUndefined
from jinja2.bccache import Bucket


class _BytecodeCache(FileSystemBytecodeCache):
    """Stores compiled templates in ``__pycache__``, as Python does for modules, if the folder is writable."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):
            Path(self.directory).mkdir(exist_ok=True)
            super().dump_bytecode(bucket)


def make_environment(loader: BaseLoader, compiled: Path) -> Environment:
    """Return a template environment that escapes all values.

    Args:
        loader: finds the templates.
        compiled: the folder for compiled templates.
    """
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_BytecodeCache(str(compiled)),
        extensions=["jinja2.ext.i18n"],
    )
