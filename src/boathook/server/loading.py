"""Finds the user's handlers: `server.app` names a module and a `Boathook` object in it."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from boathook.config import Settings
from boathook.domain.errors import BoathookError, ConfigError

if TYPE_CHECKING:
    from boathook.handlers.api import Boathook


def load_app(settings: Settings) -> "Boathook":
    """Import `server.app` and return its `Boathook`; without one, return an empty one.

    The configuration file's folder and the working folder are searched too, as for ``python -m``.

    Raises:
        ConfigError: there is no such module or attribute, or importing it fails; the message says where.
    """
    from boathook.handlers.api import Boathook

    name = settings.server.app
    if not name:
        return Boathook()
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f'server.app: {name!r} must be "module:attribute", such as "shop.hooks:hook"')
    for folder in (settings.file.parent if settings.file else Path.cwd(), Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    found = getattr(_import(module_name), attribute, None)
    if not isinstance(found, Boathook):
        what = "there is no such attribute" if found is None else f"it is a {type(found).__name__}"
        raise ConfigError(f"server.app: {name!r} must name a Boathook object, but {what}")
    return found


def _import(module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(f"server.app: there is no module {error.name!r} in {_searched()}") from None
        raise ConfigError(f"server.app: importing {module_name} fails: {error}") from error
    except BoathookError as error:
        raise ConfigError(f"server.app: {module_name}: {error}") from error
    except Exception as error:
        raise ConfigError(f"server.app: importing {module_name} fails: {_place(error)}") from error


def _searched() -> str:
    return ", ".join(folder or "." for folder in sys.path[:3]) + " or the installed packages"


def _place(error: Exception) -> str:
    """Say what went wrong and in which line of the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}: {error}{where}"
