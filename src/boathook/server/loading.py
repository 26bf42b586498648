"""Loads handlers: `server.app` names the user's own `Boathook` object, `apps.load` the apps."""

import contextlib
import difflib
import importlib
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError

from boathook.config import Settings, SourceSettings
from boathook.config.faults import describe_error
from boathook.config.loader import SOURCE_NAME, reserved_names
from boathook.config.packages import module_of_app, own_packages, resolve
from boathook.domain.errors import BoathookError, ConfigError
from boathook.handlers.manifest import Mount
from boathook.server.installed_apps import READY_MADE, installed_apps, module_of

if TYPE_CHECKING:
    from boathook.handlers.api import Boathook as Boathook  # noqa: PLC0414 - re-exported
    from boathook.handlers.hooks import Hooks
    from boathook.observability.live_metrics import LiveMetrics
    from boathook.service.app_platform import AppPlatform, ServerUrlFactory

_USER_FOLDERS: Final = 3
"""How many folders of the search path are named in errors: the settings' and the working folder are first."""
_SHOWN_FRAMES: Final = 3
"""Lines of the user's code that the message about a failed import names."""


def check_mounts(mounts: Mapping[str, Iterable[Mount]], settings: Settings) -> list[Mount]:
    """Return the mounts of all apps, which are given by app name.

    Raises:
        ConfigError: two apps use the same path, one uses a reserved path, or the settings name a path that no app
            mounts, or roles for one that needs no token; the message names them.
    """
    owners: dict[str, str] = {}
    pairs = [(app, mount) for app, app_mounts in mounts.items() for mount in app_mounts]
    for app, mount in pairs:
        if settings.owns_path(mount.path):
            raise ConfigError(f"hook.mount: {app} cannot use {mount.path}, which boathook uses; choose another path")
        if mount.path in owners:
            raise ConfigError(f"hook.mount: {mount.path or '/'} is mounted by {owners[mount.path]} and by {app}")
        owners[mount.path] = app
    _check_mount_settings({mount.shown_path: mount for _, mount in pairs}, settings)
    return [mount for _, mount in pairs]


def _check_mount_settings(mounts: Mapping[str, Mount], settings: Settings) -> None:
    for path, own in settings.mounts.items():
        setting = f"{settings.origins.get(f'mounts.{path}', 'settings')}: mounts.{path}"
        if path not in mounts:
            raise ConfigError(f"{setting}: no app mounts this path; mounted are: {', '.join(sorted(mounts)) or 'none'}")
        if own.roles and mounts[path].is_open:
            raise ConfigError(f"{setting}.roles: this path needs no token, its app checks access itself; remove them")


_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")
_SCHEMAS: Final = frozenset({"boathook", "public"})
"""Schemas that no app may use."""
_APP_ONLY_DECLARATIONS: Final = ("sources", "migrations", "commands", "alert_rules")
"""Declarations that only an app of `apps.load` may have: commands need them, and must not import a user's handlers."""


def load_hooks(settings: Settings) -> "Hooks":
    """Import the apps, those of the packages in use, and the user's own handlers.

    Raises as `load_apps` and `load_app` do.
    """
    from boathook.handlers.hooks import Hooks

    owners = dict(zip(settings.apps.load, load_apps(settings), strict=True))
    packages = []
    for package in settings.packages:
        if package.app is not None and (hook := resolve(package.app)(settings)) is not None:
            owners[module_of_app(package)] = hook
            packages.append(module_of_app(package))
    if settings.server.app:
        owners[settings.server.app] = load_app(settings)
    return Hooks(owners, packages)


def load_app(settings: Settings) -> "Boathook":
    """Import `server.app` and return its `Boathook`; without that setting, return an empty one.

    The configuration file's folder and the working folder are searched too, as for ``python -m``.

    Raises:
        ConfigError: there is no such module or attribute, importing it fails, or it declares what only apps may; the
            message says where.
    """
    from boathook.handlers.api import Boathook

    name = settings.server.app
    if not name:
        return Boathook()
    module_name, colon, attribute = name.partition(":")
    if not colon or not attribute or not all(part.isidentifier() for part in module_name.split(".")) or ".py" in name:
        path = re.sub(r"\.py$", "", module_name).strip("./").replace("/", ".") or "shop.hooks"
        example = path if all(part.isidentifier() for part in path.split(".")) else "shop.hooks"
        raise ConfigError(f'server.app: {name!r} must be "module:attribute", such as "{example}:{attribute or "hook"}"')
    _search_user_folders(settings)
    hook = _find("server.app", module_name, attribute)
    if declared := [
        declaration for declaration in _APP_ONLY_DECLARATIONS if getattr(hook.manifest, declaration) is not None
    ]:
        raise ConfigError(
            f"server.app: {name} declares {' and '.join(declared)}, which only apps may do:"
            f' name it hook, and set load = ["{module_name}"] under [apps] instead'
        )
    settings_of(hook, settings)
    return hook


def load_apps(settings: Settings) -> "tuple[Boathook, ...]":
    """Import the apps of `apps.load` and return the ``hook`` of each, with its settings checked.

    Raises:
        ConfigError: a module cannot be imported, its ``hook`` is not a `Boathook`, or a key in its table is wrong.
    """
    from boathook.handlers.hooks import Hooks

    _search_user_folders(settings)
    hooks = {entry: _find("apps.load", module_of(entry), "hook") for entry in settings.apps.load}
    reserved = reserved_names() | _SCHEMAS
    for module, hook in hooks.items():
        if not _NAME.fullmatch(hook.name) or hook.name in reserved:
            raise ConfigError(
                f"apps.load: {module}: invalid app name {hook.name!r}: it names the app's table, schema and command;"
                " use Boathook(name) with a lower-case letter, then lower-case letters, digits and _,"
                f" but not {', '.join(sorted(reserved))}"
            )
        settings_of(hook, settings)
    return tuple(Hooks(hooks))


def with_apps(settings: Settings) -> "tuple[Settings, tuple[Boathook, ...]]":
    """Return the apps, and the settings extended by the sources and alert rules that they declare.

    A key that the owner sets in ``[sources.NAME]`` overrides the app's. Settings that are already extended do not
    change.

    Raises:
        ConfigError: as `load_apps`, or a source of an app is invalid or declared by two apps.
    """
    apps = load_apps(settings)
    sources = dict(settings.sources)
    owners: dict[str, str] = {}
    for module, hook in zip(settings.apps.load, apps, strict=True):
        for name, table in sources_of(module, hook, settings).items():
            if (other := owners.setdefault(name, module)) != module:
                raise ConfigError(
                    f"apps.load: {other} and {module} both declare the source {name!r}; rename one of them"
                )
            sources[name] = _merged(module, name, table, settings.sources.get(name))
    rules = {name: rule for hook in apps for name, rule in (hook.manifest.alert_rules or {}).items()}
    try:
        return settings.with_sources(sources).with_alerts(rules, _channels_of(apps, settings)), apps
    except ValidationError as error:
        raise ConfigError(
            describe_error(error, lambda _key: "apps.load: a channel of an app", "notifications.channels")
        ) from None
    except ValueError as error:
        raise ConfigError(f"apps.load: {error}") from None


def migrations_of(apps: "Iterable[Boathook]") -> list[tuple[str, Path]]:
    """Return the names of the apps that have tables, with the folders of their migrations."""
    return [(hook.name, hook.manifest.migrations) for hook in apps if hook.manifest.migrations is not None]


def settings_of(hook: "Boathook", settings: Settings) -> BaseModel | None:
    """Return an app's validated settings from its table of boathook.toml; None if it has no settings or no name.

    Raises:
        ConfigError: a key is wrong; the message names the file and the key.
    """
    if hook.manifest.settings is None or not hook.name:
        return None
    try:
        return hook.manifest.settings.model_validate(settings.extra.get(hook.name, {}))
    except ValidationError as error:
        raise ConfigError(describe_error(error, lambda _key: str(settings.file or "settings"), hook.name)) from None
    except ConfigError as error:
        raise ConfigError(f"{settings.file or 'settings'}: {hook.name}: {error}") from None
    except Exception as error:
        raise ConfigError(
            f"{settings.file or 'settings'}: {hook.name}: the app fails to check it: {_error_location(error)}"
        ) from error


def bind(
    settings: Settings,
    hooks: "Iterable[Boathook]",
    *,
    server_url: "ServerUrlFactory | None" = None,
    live_metrics: "LiveMetrics | None" = None,
) -> "AppPlatform":
    """Pass each app its settings and its platform in this process; the caller closes the returned platform.

    Args:
        settings: the settings of the process.
        hooks: the apps.
        server_url: provides the URL of PostgreSQL if `database.url` is not set.
        live_metrics: the metrics of this process, under its slot's name.
    """
    # Imported here because it takes longer than an entire list command.
    from boathook.service.app_platform import open_platform

    platform = open_platform(settings, server_url=server_url, live_metrics=live_metrics)
    for hook in hooks:
        hook.bind(settings_of(hook, settings), platform.for_app(hook.name), settings.retention)
    return platform


@contextlib.asynccontextmanager
async def bound(
    settings: Settings, hooks: "Iterable[Boathook]", live_metrics: "LiveMetrics | None" = None
) -> AsyncIterator[None]:
    """Bind the apps for the duration of the block; see `bind`."""
    if not settings.apps.load and not settings.server.app and not settings.has_package_apps:
        yield  # without importing modules that only apps need
        return
    platform = bind(settings, hooks, live_metrics=live_metrics)
    try:
        yield
    finally:
        await platform.stop()


def sources_of(module: str, hook: "Boathook", settings: Settings) -> Mapping[str, Mapping[str, Any]]:
    """Return the sources an app declares, by name, and note in its manifest which it does not use.

    Raises:
        ConfigError: its function fails or returns no tables.
    """
    if hook.manifest.sources is None:
        return {}
    try:
        sources: Any = hook.manifest.sources(settings_of(hook, settings))
    except BoathookError:
        raise
    except Exception as error:
        raise ConfigError(f"apps.load: the sources of {module} fail: {_error_location(error)}") from error
    if not isinstance(sources, Mapping) or not all(isinstance(table, Mapping | None) for table in sources.values()):
        raise ConfigError(f"apps.load: the function under @hook.sources of {module} must return tables by their names")
    for name in sources:
        if not isinstance(name, str) or not SOURCE_NAME.fullmatch(name):
            raise ConfigError(
                f"apps.load: {module}: invalid source name {name!r}: it is used in the URL;"
                " use letters, digits, . _ and -"
            )
    hook.manifest.unused_sources = frozenset(name for name, table in sources.items() if table is None)
    return {name: table for name, table in sources.items() if table is not None}


def _channels_of(apps: "Iterable[Boathook]", settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Return the channels that apps declare, by name. Raises ConfigError if a function fails."""
    channels: dict[str, Mapping[str, Any]] = {}
    for hook in apps:
        if hook.manifest.channels is None:
            continue
        try:
            channels |= hook.manifest.channels(settings_of(hook, settings))
        except BoathookError:
            raise
        except Exception as error:
            raise ConfigError(f"apps.load: the channels of {hook.name} fail: {_error_location(error)}") from error
    return channels


def _merged(module: str, name: str, table: Mapping[str, Any], own: SourceSettings | None) -> SourceSettings:
    app_values = {"provider": name, **table}
    if "secret" in app_values:
        app_values["secrets"] = [app_values.pop("secret")]
    own_values = own.model_dump(by_alias=True, exclude_unset=True) if own is not None else {}
    if own_values.get("provider") == name:
        del own_values["provider"]  # the default of a source without this key; the app's value is better
    try:
        return SourceSettings.model_validate({**app_values, **own_values})
    except ValidationError as error:
        raise ConfigError(describe_error(error, lambda _key: f"apps.load: {module}", f"sources.{name}")) from None


def _search_user_folders(settings: Settings) -> None:
    """Let imports search the configuration file's folder and the working folder."""
    for folder in (settings.file.parent if settings.file else Path.cwd(), Path.cwd()):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def _find(key: str, module_name: str, attribute: str) -> "Boathook":
    from boathook.handlers.api import Boathook

    module = _import(key, module_name)
    hook = getattr(module, attribute, None)
    if isinstance(hook, Boathook):
        return hook
    if hook is Boathook:
        fault = f"it is the class; write {attribute} = Boathook()"
    else:
        fault = "there is no such attribute" if hook is None else f"it is of class {type(hook).__name__}"
        others = [name for name, value in vars(module).items() if isinstance(value, Boathook)]
        fault += f"; did you mean {module_name}:{others[0]}?" if others else "; write hook = Boathook() in it"
    raise ConfigError(f"{key}: {module_name}:{attribute} must be a Boathook object, but {fault}")


def _import(key: str, module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(f"{key}: there is no module {error.name!r} in {_searched()}{_near(error.name)}") from None
        name = error.name or ""
        if name in _MOVED:
            fix = f"it is {_MOVED[name]} now"
        else:
            extra = _extra_of(name)
            fix = f'pip install "boathook[{extra}]"' if extra else "install it, or correct the import"
        raise ConfigError(f"{key}: importing {module_name} fails: {_error_location(error)}; {fix}") from error
    except BoathookError as error:
        raise ConfigError(f"{key}: {module_name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{key}: importing {module_name} fails: {_error_location(error)}") from error


_MOVED: Final = {
    "boathook.pages": "boathook_pages",
    **{f"boathook.{name}": f"boathook_pages.{name}" for name in ("languages", "sign_in", "user_webhooks")},
}
"""Where modules are now that apps import."""
_EXTRAS: Final = {"sqlalchemy": "sqlalchemy", "greenlet": "sqlalchemy", "psycopg": "psycopg", "django": "django"}
"""The extra of boathook that installs a module, besides those of optional packages."""


def _extra_of(module: str) -> str:
    """Return the extra that installs a module; empty if none does."""
    of_packages = {name.partition(".")[0]: package.name for package in own_packages() for name in package.requires}
    return (of_packages | _EXTRAS).get(module.partition(".")[0], "")


def _near(module: str) -> str:
    """Return a hint at an app or module with a similar name, in the folders of the user or in the module's package."""
    package, dot, name = module.rpartition(".")
    if not dot:
        folders = _user_folders()
    elif (parent := sys.modules.get(package)) is not None and not hasattr(parent, "__path__"):
        return f"; {package} is a file, not a folder with {name}.py"
    else:
        folders = list(getattr(parent, "__path__", ()))
    names = {info.name for info in pkgutil.iter_modules(folders)} | (set() if dot else {*installed_apps(), *READY_MADE})
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {package}{dot}{near[0]}?" if near else ""


def _user_folders() -> list[str]:
    """Return the first folders that are searched, without those of Python itself."""
    own = tuple(sysconfig.get_paths().values())
    folders = [folder or "." for folder in sys.path if not folder.startswith(own) and not folder.endswith(".zip")]
    return folders[:_USER_FOLDERS]


def _searched() -> str:
    return f"{', '.join(_user_folders())} or the installed packages"


def _error_location(error: BaseException) -> str:
    """Return the error with its last lines in the user's code, the innermost first."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    traced = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_user(frame.filename)]
    frames = [
        f"{frame.filename}, line {frame.lineno}{'' if frame.name == '<module>' else f', in {frame.name}'}"
        for frame in traced[-_SHOWN_FRAMES:]
    ]
    location = f" ({'; called from '.join(reversed(frames))})" if frames else ""
    if isinstance(error, TypeError) and traced and traced[-1].line:
        # A call with wrong arguments, of which Python may not say the function. A text in it may be a secret.
        location += ": " + _TEXT.sub('"..."', traced[-1].line)
    return f"{type(error).__name__}: {error}{location}"


def _is_of_user(file: str) -> bool:
    """Return whether code is of the user or of an app, not of Python's import system or boathook."""
    if file.startswith("<frozen ") or file == importlib.__file__:
        return False
    return not file.startswith(f"{_PACKAGE}{os.sep}")


_PACKAGE: Final = Path(__file__).parents[1]
_TEXT: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
