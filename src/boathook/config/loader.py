"""Reads settings: `defaults.toml` < `boathook.toml` < `BOATHOOK_*` environment < flags, each key checked."""

import copy
import difflib
import functools
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from boathook.config import packages
from boathook.config.channels import read_channel
from boathook.config.faults import describe_error, toml_fix
from boathook.config.packages import PackageTable, hidden_keys
from boathook.config.sources import FIELDS, OWN_KEYS
from boathook.config.tables import OWN_CHOICES, Settings
from boathook.domain.errors import ConfigError

FILE_NAME = "boathook.toml"
SCHEMA_URL: Final = "https://raw.githubusercontent.com/boathook/boathook/main/docs/reference/boathook.schema.json"
"""Where editors find the JSON Schema of the file."""
_PREFIX = "BOATHOOK_"
_SHORT_NAMES = {
    "BOATHOOK_DATABASE_URL": "database.url",
    "BOATHOOK_BIND": "server.bind",
    "BOATHOOK_DATA_DIR": "server.data_dir",
}
CONFIG_VARIABLE: Final = "BOATHOOK_CONFIG"
"""The environment variable with the path of the file, where no flag names it."""
_OTHER_VARIABLES: Final = frozenset(
    {CONFIG_VARIABLE, "BOATHOOK_API_KEY", "BOATHOOK_CRASH_POINT", "BOATHOOK_DEBUG", "BOATHOOK_SERVER"}
)
"""Variables that boathook and its documentation use, besides settings."""
_TEST_PREFIX: Final = "BOATHOOK_TEST_"
_SERVICE_LINK: Final = re.compile(
    r"_(?:SERVICE_(?:HOST|PORT(?:_[A-Z0-9_]+)?)|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)$"
)
"""How names of variables end that Kubernetes adds for each service, such as one called boathook
(https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables)."""
_SERVICE_URL: Final = re.compile(r"(?:tcp|udp|sctp)://")
SOURCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The valid names of sources, which follow ``/in/`` in the URL."""
_USUAL_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "server": dict.fromkeys(("port", "host", "hostname", "address", "listen"), 'bind = "127.0.0.1:8080"'),
    "database": dict.fromkeys(
        ("dsn", "host", "port", "name", "user", "password", "database"), 'url = "postgresql://USER:PASSWORD@HOST/NAME"'
    ),
}
"""By section: keys that other programs have, and what boathook has instead."""
_NEAR_PREFIX: Final = 0.85
_NEAR = 0.8
"""Minimum similarity to one of boathook's keys for a key to be reported as misspelled instead of passed to the
recipe."""
SECTIONS: tuple[str, ...] = (
    *("database", "server", "limits", "retention", "spool", "buffer", "worker", "delivery", "log"),
    *("apps", "jwt", "outbound", "notifications"),
)
"""The sections of boathook itself."""


def defaults() -> dict[str, dict[str, Any]]:
    """Return the content of `defaults.toml`, the only place where defaults are written."""
    return copy.deepcopy(_read_defaults())


@functools.cache
def _read_defaults() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("boathook").joinpath("defaults.toml").read_text(encoding="utf-8"))


def all_sections() -> dict[str, dict[str, Any]]:
    """Return the defaults of all sections, also of the optional packages in boathook's distribution."""
    sections = defaults()
    for package in packages.own_packages():
        for section, table in packages.defaults_of(package).items():
            sections.setdefault(section, {}).update(copy.deepcopy(dict(table)))
    return sections


def reserved_names() -> frozenset[str]:
    """Return the names of sections, which no app may have."""
    return frozenset((*SECTIONS, *packages.own_sections(), *packages.used_by_default(), "sources", "mounts"))


def schema() -> str:
    """Return the JSON Schema of boathook.toml as a document."""
    return resources.files("boathook").joinpath("boathook.schema.json").read_text(encoding="utf-8")


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings from defaults, file, environment and *overrides*.

    Args:
        path: the file; None reads the one that `find_file` returns.
        overrides: by dotted key, such as ``{"server.bind": "127.0.0.1:0"}``, or nested; None values are skipped.
            ``server.port`` replaces the port in ``server.bind``.

    Raises:
        ConfigError: a file, variable or key is wrong; the message names it and the fix.
    """
    file = find_file(path)
    layers = _Layers(defaults())
    if file is not None:
        layers.add_file(file)
    layers.add_environment(os.environ)
    layers.add_overrides(overrides or {})
    return layers.build(file.absolute() if file else None)


def find_file(path: Path | None = None) -> Path | None:
    """Return the file to read: *path*, ``BOATHOOK_CONFIG``, or ``boathook.toml`` in the working folder if it exists.

    Raises:
        ConfigError: ``BOATHOOK_CONFIG`` names no file.
    """
    if path is not None:
        return path
    if file := os.environ.get(CONFIG_VARIABLE):
        if not Path(file).is_file():
            raise ConfigError(f"environment variable {CONFIG_VARIABLE}: there is no file {file}; correct or unset it")
        return Path(file)
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def is_configured(path: Path | None = None) -> bool:
    """Return whether there is a file to read, or a variable of boathook's. Raises ConfigError as `find_file` does."""
    return find_file(path) is not None or any(variable.startswith(_PREFIX) for variable in os.environ)


def read_env_file(path: Path | None = None) -> None:
    """Add the variables of `.env` beside the configuration file to the environment; variables that are set stay.

    Raises ConfigError as `find_file` does, and if `.env` is not UTF-8 text.
    """
    file = find_file(path)
    env_file = file.parent / ".env" if file is not None else None
    if file is None or env_file is None or not file.is_file() or not env_file.is_file():
        return
    # Imported only here, as most installations have no such file.
    from dotenv import load_dotenv

    try:
        load_dotenv(env_file, interpolate=False, encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{env_file} is not UTF-8 text; save it as UTF-8") from None


def default_settings() -> Settings:
    """Return the settings without file, environment and flags."""
    return _Layers(defaults()).build(None)


class _Layers:
    """Merges settings, and records the origin of each key."""

    def __init__(self, base: dict[str, Any]) -> None:
        self.merged: dict[str, Any] = {**base, "sources": {}, "mounts": {}}
        self.tables: dict[str, Mapping[str, type[PackageTable]]] = {}
        """By the declaration of each package that is used: the class of its keys in each section."""
        self.origins: dict[str, str] = {}
        self.extra: dict[str, dict[str, Any]] = {}
        self.unknown_variables: dict[str, str] = {}
        for name in packages.used_by_default():
            self._open(name)

    def _open(self, name: str) -> bool:
        """Add the keys of the package that declares *name*, with their defaults; return whether one does."""
        reference = packages.find_declaration(name)
        if reference is not None and reference not in self.tables:
            package = packages.read_declaration(reference)
            packages.register_metrics(package)
            for section, table in packages.defaults_of(package).items():
                keys = self.merged.setdefault(section, {})
                for key in keys.keys() & table.keys():
                    raise packages.declared_twice(f"{section}.{key}", self._owner(section, key), reference)
                keys.update(copy.deepcopy(dict(table)))
            self.tables[reference] = packages.tables_of(package)
        return reference is not None

    def _owner(self, section: str, key: str) -> str:
        """Return the declaration of the package that has a key, or boathook itself."""
        owners = self.tables.items()
        return next(
            (owner for owner, models in owners if section in models and key in models[section].model_fields), "boathook"
        )

    def add_file(self, path: Path) -> None:
        tables = _read_toml(path)
        apps = tables.get("apps")
        loaded = apps.get("load") if isinstance(apps, dict) else ()
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {_outside(name)}")
            if name == "sources":
                self._add_sources(table, path)
            elif name == "mounts":
                self._add_mounts(table, path)
            elif name in SECTIONS or (not (isinstance(loaded, list) and name in loaded) and self._open(name)):
                self._add_section(name, table, path)
            else:
                _refuse_near_miss(name, path)
                self.extra[name] = table

    def _add_section(self, name: str, table: dict[str, Any], path: Path) -> None:
        for key, value in table.items():
            if key == "data_dir" and isinstance(value, str):
                value = str(path.absolute().parent / Path(value).expanduser())  # noqa: PLW2901 - same value, absolute
            self._set(f"{name}.{key}", value, str(path))

    def _add_sources(self, table: dict[str, Any], path: Path) -> None:
        for name, source in table.items():
            if not isinstance(source, dict):
                raise ConfigError(f"{path}: sources.{name} must be a table: use [sources.{name}] and its keys below")
            if not SOURCE_NAME.fullmatch(name):
                raise ConfigError(
                    f"{path}: invalid source name {name!r}: it is used in the URL; use letters, digits, . _ and -"
                )
            self.merged["sources"][name] = {"provider": name}
            for key, value in source.items():
                self._set(f"sources.{name}.{key}", value, str(path))

    def _add_mounts(self, table: dict[str, Any], path: Path) -> None:
        for mount, keys in table.items():
            if not isinstance(keys, dict):
                raise ConfigError(f'{path}: mounts must be tables: use [mounts."/PATH"] and its keys below')
            self.merged["mounts"][mount] = keys
            self.origins |= {f"mounts.{mount}": str(path)} | {f"mounts.{mount}.{key}": str(path) for key in keys}

    def add_environment(self, environment: Mapping[str, str]) -> None:
        references = set(_references([self.merged, self.extra]))
        self._open_for({name for name in environment if not _is_foreign(name, environment)} - references)
        variables = self._variables()
        # Long names last, so that BOATHOOK_SERVER_BIND takes precedence over BOATHOOK_BIND.
        for variable in sorted(environment, key=lambda name: (name not in _SHORT_NAMES, name)):
            if variable in variables:
                key = variables[variable]
                self._set(key, self._parse(key, environment[variable]), f"environment variable {variable}")
            elif variable in references or _is_foreign(variable, environment):
                continue
            elif not variable.startswith(_PREFIX):
                if _misspells_prefix(variable):
                    self.unknown_variables[variable] = f"environment variable {variable} begins almost as {_PREFIX}"
            else:
                all_variables = {*variables, *_variables(all_sections())}
                fault = f"environment variable {variable} is not a setting{_suggest_variable(variable, all_variables)}"
                if _is_ours(variable) or _misspells_section(variable, all_variables):
                    raise ConfigError(fault)
                self.unknown_variables[variable] = fault

    def _open_for(self, names: Collection[str]) -> None:
        """Open the packages whose keys these variables set: boathook's own, and if others are left, those of all."""
        for list_declared in (packages.own_names, packages.installed_names):
            variables = self._variables()
            if not any(name.startswith(_PREFIX) and name not in variables for name in names):
                return
            for declared in list_declared():
                if _is_set(declared, names):
                    self._open(declared)

    def _variables(self) -> dict[str, str]:
        """Return the key of each variable of the environment that is a setting."""
        return {_variable(key): key for key in self._keys()} | _SHORT_NAMES

    def _keys(self) -> Iterator[str]:
        for section in self._sections():
            yield from (f"{section}.{key}" for key in self.merged[section])
        for source in self.merged["sources"]:
            keys = dict.fromkeys((*FIELDS, *self.merged["sources"][source]))
            yield from (f"sources.{source}.{key}" for key in keys)

    def _sections(self) -> tuple[str, ...]:
        """Return the sections of boathook and of the packages in use."""
        return tuple(dict.fromkeys((*SECTIONS, *chain.from_iterable(self.tables.values()))))

    def add_overrides(self, overrides: Mapping[str, Any], prefix: str = "") -> None:
        for name, value in overrides.items():
            key = prefix + name
            if value is None:
                continue
            if key == "server.port":
                self._set_port(value)
            elif isinstance(value, Mapping):
                self.add_overrides(value, f"{key}.")
            else:
                self._set(key, value, "command line")

    def _set_port(self, port: object) -> None:
        host = str(self.merged["server"]["bind"]).rpartition(":")[0]
        self._set("server.bind", f"{host}:{port}", "command line")

    def _set(self, key: str, value: Any, origin: str) -> None:
        *tables, last = key.split(".")
        if len(tables) == 2 and tables[0] == "sources":
            target = self.merged["sources"].setdefault(tables[1], {"provider": tables[1]})
            if last == "secret":
                if isinstance(value, list):
                    raise ConfigError(f"{origin}: {key} is one secret; write {key}s for a list")
                last, key, value = "secrets", f"{key}s", [value]
            hint = suggest_source_key(tables[1], last)
            is_refused = last not in FIELDS and bool(hint)
        elif len(tables) == 1 and self._has(tables[0], last):
            target = self.merged[tables[0]]
            is_refused = last not in target
            hint = _suggest_key(tables[0], last, target) if is_refused else ""
        else:
            raise ConfigError(f"{origin}: {key} is not a setting{_did_you_mean(key, self._keys())}")
        if is_refused:
            raise ConfigError(f"{origin}: {key} is not a setting{hint}")
        target[last] = value
        self.origins[key] = origin

    def _has(self, section: str, key: str) -> bool:
        """Return whether there is a section; a key that it lacks may be one that a package adds."""
        if key not in self.merged.get(section, ()) and section not in {"sources", "mounts"}:
            _ = self._open(f"{section}.{key}") or self._open(section)
        return section in self._sections()

    def _parse(self, key: str, text: str) -> Any:
        """Parse a variable's text: lists are JSON or comma-separated; other values are converted by the key's type."""
        table, _, name = key.rpartition(".")
        if table.startswith("sources."):
            fields: Mapping[str, FieldInfo] = FIELDS
        else:
            models = (_SECTION_MODELS.get(table), *(sections.get(table) for sections in self.tables.values()))
            fields = {name: field for model in models if model for name, field in model.model_fields.items()}
        field = fields.get(name)
        if field is None:  # a recipe's setting, known from the file
            return _parse_list(text) if text.startswith("[") else text
        return _parse_list(text) if "tuple" in str(field.annotation) else text

    def _check_choices(self) -> None:
        """Open the packages that a setting names. Raises ConfigError for a name that no package in use has."""
        for key, own in OWN_CHOICES.items():
            section, _, name = key.partition(".")
            choice = self.merged[section][name]
            if choice != own and not (isinstance(choice, str) and self._open(f"{key}.{choice}")):
                choices = " or ".join(map(json.dumps, [own, *packages.names_offered(key)]))
                origin = self.origins.get(key, "settings")
                raise ConfigError(f"{origin}: {key}: must be {choices} (it is {choice!r})")

    def _add_alert_rules(self) -> None:
        """Add the alert rules of the packages in use, whose keys the settings may change as those of boathook's own."""
        rules = self.merged["notifications"]["rules"]
        if isinstance(rules, dict):
            used = map(packages.read_declaration, self.tables)
            own = {name: rule for package in used for name, rule in packages.alert_rules_of(package).items()}
            changed = {
                name: {**rule, **keys} if isinstance(keys := rules.get(name, {}), dict) else keys
                for name, rule in own.items()
            }
            self.merged["notifications"]["rules"] = {**rules, **changed}

    def _read_channels(self, origin_of: Callable[[str], str]) -> None:
        """Replace the channels by those of their kinds, which are imported only here. Raises ConfigError."""
        notifications = self.merged["notifications"]
        if not isinstance(notifications["channels"], dict):
            return
        read = {}
        for name, table in notifications["channels"].items():
            try:
                read[name] = read_channel(table)
            except ValidationError as error:
                section = f"notifications.channels.{name}"
                raise ConfigError(describe_error(error, origin_of, section)) from None
        notifications["channels"] = read

    def _take_tables(self, origin_of: Callable[[str], str]) -> dict[str, dict[str, PackageTable]]:
        """Return the validated keys of packages, by declaration and section. Raises ConfigError."""
        return {
            reference: {section: self._take_table(section, model, origin_of) for section, model in models.items()}
            for reference, models in self.tables.items()
        }

    def _take_table(self, section: str, model: type[PackageTable], origin_of: Callable[[str], str]) -> PackageTable:
        values = {key: self.merged[section].pop(key) for key in model.model_fields}
        try:
            return model.model_validate(values)
        except ValidationError as error:
            raise ConfigError(describe_error(error, origin_of, section, hidden=hidden_keys(model))) from None

    def build(self, file: Path | None) -> Settings:
        def origin_of(key: str) -> str:
            return self.origins.get(key, str(file or "settings"))

        self._check_choices()
        self._add_alert_rules()
        self._read_channels(origin_of)
        more = {
            "tables": self._take_tables(origin_of),
            "extra": self.extra,
            "file": file,
            "origins": self.origins,
            "unknown_variables": self.unknown_variables,
        }
        own = {name: self.merged[name] for name in (*SECTIONS, "sources", "mounts")}
        try:
            settings = Settings.model_validate({**own, **more})
        except ValidationError as error:
            raise ConfigError(describe_error(error, origin_of)) from None
        self._check_data_dir(settings.server.data_dir.expanduser().absolute())
        server = settings.server.model_copy(update={"data_dir": settings.server.data_dir.expanduser().absolute()})
        return settings.model_copy(update={"server": server})

    def _check_data_dir(self, folder: Path) -> None:
        # Also before anything is read from it.
        place = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
        if not place.is_dir():
            origin = self.origins.get("server.data_dir", "settings")
            raise ConfigError(f"{origin}: server.data_dir: {place} is not a folder; name a folder for boathook's files")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors on Windows begin UTF-8 files with a byte order mark.
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; correct --config or {CONFIG_VARIABLE}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}{toml_fix(path, str(error), text)}") from None


def _refuse_near_miss(name: str, path: Path) -> None:
    hint = _did_you_mean(name, sorted(reserved_names()), cutoff=0.8)
    if hint:
        raise ConfigError(f"{path}: unknown section [{name}]{hint}")


def _did_you_mean(name: str, candidates: Any, *, prefix: str = "", cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(name, list(candidates), n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _outside(name: str) -> str:
    """Return the fault of what stands outside of a table, and where it belongs."""
    if name in reserved_names():
        header = {"sources": "[sources.NAME]", "mounts": '[mounts."/PATH"]'}.get(name, f"[{name}]")
        return f"{name} must be a table; write {header}"
    sections = [section for section, keys in all_sections().items() if name in keys]
    place = f"[{sections[0]}]" if sections else "[sources.NAME]" if name in OWN_KEYS else "a section such as [server]"
    return f"{name} is outside of a section; move it below {place}"


def _suggest_key(section: str, key: str, keys: Collection[str]) -> str:
    """Return a hint for a key that its section lacks, which has *keys* and those that packages may add."""
    near = _did_you_mean(key, {**dict.fromkeys(keys), **all_sections().get(section, {})}, prefix=f"{section}.")
    return near or _elsewhere(section, key)


def _elsewhere(section: str, key: str) -> str:
    """Return a hint at the setting that is meant by a key which its section lacks."""
    if usual_name := _USUAL_NAMES.get(section, {}).get(key):
        return f"; write {usual_name}"
    sections = [other for other, keys in all_sections().items() if key in keys]
    if sections:
        return f"; did you mean {sections[0]}.{key}?"
    return "; remove it, or see `boathook config show` for the settings"


def _variable(key: str) -> str:
    """Return the variable of the environment that sets a key."""
    return _PREFIX + key.replace(".", "_").replace("-", "_").upper()


def _is_set(declared: str, names: Collection[str]) -> bool:
    """Return whether variables have the name of a declared key, or begin as those of a declared section."""
    variable = _variable(declared)
    return variable in names or ("." not in declared and any(name.startswith(f"{variable}_") for name in names))


def _variables(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    return (_variable(f"{section}.{key}") for section, keys in sections.items() for key in keys)


def suggest_source_key(source: str, key: str) -> str:
    """Return a hint for a misspelled key of a source, such as ``; did you mean ...?``; empty if none is near."""
    return _did_you_mean(key, OWN_KEYS, prefix=f"sources.{source}.", cutoff=_NEAR)


def _is_ours(variable: str) -> bool:
    return variable.startswith(tuple(f"{_PREFIX}{section.upper()}_" for section in reserved_names()))


def _is_foreign(variable: str, environment: Mapping[str, str]) -> bool:
    """Return whether a variable is for another part of boathook, or a service link of Kubernetes."""
    if variable in _OTHER_VARIABLES or variable.startswith(_TEST_PREFIX) or _SERVICE_LINK.search(variable):
        return True
    return variable.endswith("_PORT") and bool(_SERVICE_URL.match(environment[variable]))


def _suggest_variable(variable: str, variables: Collection[str]) -> str:
    name = variable.removeprefix(_PREFIX)
    section, _, key = name.lower().rpartition("_")
    if _USUAL_NAMES.get(section or "server", {}).get(key):
        return f"; did you mean {_PREFIX}{'DATABASE_URL' if section == 'database' else 'BIND'}?"
    # Without their common beginning, which would make all names alike.
    return _did_you_mean(name, [other.removeprefix(_PREFIX) for other in variables], prefix=_PREFIX)


def _misspells_prefix(variable: str) -> bool:
    """Return whether a variable begins almost as boathook's do, such as ``BOATHOK_BIND``."""
    first, underscore, _ = variable.partition("_")
    near = difflib.get_close_matches(f"{first}_", [_PREFIX], n=1, cutoff=_NEAR_PREFIX)
    return bool(underscore and near) and not variable.startswith(_PREFIX)


def _misspells_section(variable: str, variables: Collection[str]) -> bool:
    """Return whether a variable has a setting's key after almost its section, such as ``BOATHOOK_DATABSE_URL``."""
    section, _, key = variable.removeprefix(_PREFIX).partition("_")
    near = difflib.get_close_matches(section.lower(), sorted(reserved_names()), n=1, cutoff=_NEAR)
    return variable.startswith(_PREFIX) and bool(near) and f"{_PREFIX}{near[0].upper()}_{key}" in variables


def _references(value: object) -> Iterator[str]:
    """Yield the environment variables that any text in a source's table refers to."""
    match value:
        case str():
            if value.startswith("env:"):
                yield value.removeprefix("env:")
        case dict():
            for part in value.values():
                yield from _references(part)
        case list():
            for part in value:
                yield from _references(part)


def _parse_list(text: str) -> list[Any] | str:
    if text.lstrip().startswith("["):
        try:
            return list(json.loads(text))
        except ValueError:
            if text.lstrip("[ ").startswith('"'):
                return text  # no list, as the error of its type says
    return [part.strip() for part in text.split(",") if part.strip()]


_SECTION_MODELS: dict[str, Any] = {name: Settings.model_fields[name].annotation for name in SECTIONS}
