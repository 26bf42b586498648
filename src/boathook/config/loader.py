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
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from boathook.config.sources import FIELDS, OWN_KEYS
from boathook.config.tables import Settings
from boathook.domain.errors import ConfigError

_SECRET: Final = re.compile(r"(?i)(^|[._])(secret|token|password|passphrase|key)s?$")
_INDEX: Final = re.compile(r"\[\d+\]")


def is_secret(key: str) -> bool:
    """Return whether the value of a dotted key is a secret, judging by the key's name."""
    return bool(_SECRET.search(_INDEX.sub("", key)))


def describe_error(error: ValidationError, origin_of: Callable[[str], str], table: str = "") -> str:
    """Return one line about the first error in *table*, such as ``boathook.toml: server.bind: ...``.

    Args:
        origin_of: returns where a dotted key was set.
    """
    first = error.errors(include_url=False)[0]
    names = [part for part in (table, *first["loc"]) if part != "" and not (isinstance(part, str) and "[" in part)]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
    origin = origin_of(key.partition("[")[0])
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("a valid tuple", 'a list, such as ["..."]')
    if not key:
        return f"{origin}: {message}"
    # The value of an unknown key may be a secret with a misspelled name.
    is_unknown = first["type"] == "extra_forbidden"
    is_hidden = is_unknown or is_secret(key) or _has_password(first["input"]) or _is_table(first["input"])
    is_hidden = is_hidden or key in {"database.url", "shared.redis"}
    given = "" if is_hidden else f" (it is {first['input']!r})"
    fix = "" if is_hidden else _number_without_unit(key, first["type"], first["input"])
    return f"{origin}: {key}: {_WORDS.get(first['type']) or message[:1].lower() + message[1:]}{given}{fix}"


def _number_without_unit(key: str, kind: str, value: object) -> str:
    """Return how to write a quantity such as ``30s`` as the number that a key expects; empty if it is none."""
    quantity = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) and kind in _NUMBER_ERRORS else None
    if quantity is None:
        return ""
    number, unit = float(quantity[1].replace("_", "")), quantity[2].lower()
    own = next((own for own in _KEY_UNITS if key.endswith((f"_{own}", f".{own}"))), None)
    if own is not None and unit in _SECONDS:
        number *= _SECONDS[unit] / _KEY_UNITS[own]
    elif own is None and unit in _BYTES:
        number *= _BYTES[unit]
    elif own is not None:
        return "; write a number without a unit"
    return f"; write {number:g}" if number != int(number) else f"; write {int(number)}"


def _has_password(value: object) -> bool:
    """Return whether an invalid value may be a URL that contains a password."""
    return isinstance(value, str) and "@" in value


def _is_table(value: object) -> bool:
    """Return whether an invalid value is or contains a table, whose keys may be secrets."""
    if isinstance(value, list | tuple):
        return any(map(_is_table, value))
    return isinstance(value, Mapping | BaseModel)


_QUANTITY: Final = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_NUMBER_ERRORS: Final = frozenset({"float_parsing", "int_parsing", "int_from_float", "float_type", "int_type"})
_KEY_UNITS: Final = {"s": 1.0, "h": 3_600.0, "hours": 3_600.0, "days": 86_400.0}
"""Seconds in the unit that ends a key's name."""
_SECONDS: Final = {
    **dict.fromkeys(("ms", "msec"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604_800.0),
}
_BYTES: Final = {
    "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "g": 1 << 30,
    "gb": 1 << 30, "gib": 1 << 30,
}  # fmt: skip

_WORDS: Final = {"missing": "is missing", "extra_forbidden": "is not a setting"}


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
_OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "BOATHOOK_API_KEY", "BOATHOOK_CRASH_POINT", "BOATHOOK_DEBUG"})
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
_NEAR = 0.8
"""Minimum similarity to one of boathook's keys for a key to be reported as misspelled instead of passed to the
recipe."""
SECTIONS: tuple[str, ...] = (
    *("database", "server", "limits", "retention", "spool", "buffer", "shared", "cells", "worker", "delivery", "log"),
    *("apps", "outbound", "tracing", "notifications", "console"),
)


def defaults() -> dict[str, dict[str, Any]]:
    """Return the content of `defaults.toml`, the only place where defaults are written."""
    return copy.deepcopy(_read_defaults())


@functools.cache
def _read_defaults() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("boathook").joinpath("defaults.toml").read_text(encoding="utf-8"))


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
    if named := os.environ.get(CONFIG_VARIABLE):
        if not Path(named).is_file():
            raise ConfigError(f"environment variable {CONFIG_VARIABLE}: there is no file {named}; correct or unset it")
        return Path(named)
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


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
        self.merged: dict[str, Any] = {**base, "sources": {}}
        self.origins: dict[str, str] = {}
        self.extra: dict[str, dict[str, Any]] = {}
        self.unknown_variables: dict[str, str] = {}

    def add_file(self, path: Path) -> None:
        tables = _read_toml(path)
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {name} is outside a section; move it into one, such as [server]")
            if name == "sources":
                self._add_sources(table, path)
            elif name in SECTIONS:
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

    def add_environment(self, environment: Mapping[str, str]) -> None:
        known = {_PREFIX + key.replace(".", "_").replace("-", "_").upper(): key for key in self._keys()}
        known |= _SHORT_NAMES
        references = set(_references([self.merged, self.extra]))
        # Long names last, so that BOATHOOK_SERVER_BIND takes precedence over BOATHOOK_BIND.
        for variable in sorted(environment, key=lambda name: (name not in _SHORT_NAMES, name)):
            if variable in known:
                key = known[variable]
                self._set(key, _parse(key, environment[variable]), f"environment variable {variable}")
            elif not variable.startswith(_PREFIX) or variable in references or _is_foreign(variable, environment):
                continue
            else:
                fault = f"environment variable {variable} is not a setting{_did_you_mean(variable, known)}"
                if _is_ours(variable) or _misspells_section(variable, known):
                    raise ConfigError(fault)
                self.unknown_variables[variable] = fault

    def _keys(self) -> Iterator[str]:
        for section in SECTIONS:
            yield from (f"{section}.{key}" for key in self.merged[section])
        for source in self.merged["sources"]:
            keys = dict.fromkeys((*FIELDS, *self.merged["sources"][source]))
            yield from (f"sources.{source}.{key}" for key in keys)

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
        elif len(tables) == 1 and tables[0] in SECTIONS:
            target = self.merged[tables[0]]
            hint = _did_you_mean(last, target, prefix=f"{tables[0]}.")
            is_refused = last not in target
        else:
            raise ConfigError(f"{origin}: {key} is not a setting{_did_you_mean(key, self._keys())}")
        if is_refused:
            raise ConfigError(f"{origin}: {key} is not a setting{hint}")
        target[last] = value
        self.origins[key] = origin

    def build(self, file: Path | None) -> Settings:
        more = {
            "extra": self.extra,
            "file": file,
            "origins": self.origins,
            "unknown_variables": self.unknown_variables,
        }
        try:
            settings = Settings.model_validate({**self.merged, **more})
        except ValidationError as error:
            raise ConfigError(
                describe_error(error, lambda key: self.origins.get(key, str(file or "settings")))
            ) from None
        server = settings.server.model_copy(update={"data_dir": settings.server.data_dir.expanduser().absolute()})
        return settings.model_copy(update={"server": server})


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors on Windows begin UTF-8 files with a byte order mark.
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}{_toml_fix(path, str(error), text)}") from None


def _toml_fix(path: Path, fault: str, text: str) -> str:
    """Return the likely fix of a fault that the parser reports; empty if none is likely."""
    place = _TOML_PLACE.search(fault)
    lines = text.splitlines()
    line = lines[int(place[1]) - 1] if place is not None and int(place[1]) <= len(lines) else ""
    if path.suffix in {".yaml", ".yml", ".json"} or re.match(r"\s*[{]|---|[A-Za-z_]\w*:(\s|$)", line):
        return '; settings are TOML: write a section such as [server], below it bind = "127.0.0.1:8080"'
    if "Illegal character" in fault or "Unterminated string" in fault:
        return "; close the quotes on that line"
    if "Invalid value" in fault:
        return '; write text in quotes, such as app = "shop:hook"'
    if "Cannot declare" in fault or "Cannot overwrite" in fault:
        return "; it is written twice: merge the two"
    return "; write KEY = VALUE below a section such as [server]" if "Invalid statement" in fault else ""


_TOML_PLACE: Final = re.compile(r"at line (\d+)")


def _refuse_near_miss(name: str, path: Path) -> None:
    hint = _did_you_mean(name, (*SECTIONS, "sources"), cutoff=0.8)
    if hint:
        raise ConfigError(f"{path}: unknown section [{name}]{hint}")


def _did_you_mean(name: str, known: Any, *, prefix: str = "", cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def suggest_source_key(source: str, key: str) -> str:
    """Return a hint for a misspelled key of a source, such as ``; did you mean ...?``; empty if none is near."""
    return _did_you_mean(key, OWN_KEYS, prefix=f"sources.{source}.", cutoff=_NEAR)


def _is_ours(variable: str) -> bool:
    return variable.startswith(tuple(f"{_PREFIX}{section.upper()}_" for section in (*SECTIONS, "sources")))


def _is_foreign(variable: str, environment: Mapping[str, str]) -> bool:
    """Return whether a variable is for another part of boathook, or a service link of Kubernetes."""
    if variable in _OTHER_VARIABLES or variable.startswith(_TEST_PREFIX) or _SERVICE_LINK.search(variable):
        return True
    return variable.endswith("_PORT") and bool(_SERVICE_URL.match(environment[variable]))


def _misspells_section(variable: str, known: Collection[str]) -> bool:
    """Return whether a variable has a setting's key after almost its section, such as ``BOATHOOK_DATABSE_URL``."""
    section, _, key = variable.removeprefix(_PREFIX).partition("_")
    near = difflib.get_close_matches(section.lower(), SECTIONS, n=1, cutoff=_NEAR)
    return variable.startswith(_PREFIX) and bool(near) and f"{_PREFIX}{near[0].upper()}_{key}" in known


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


def _parse(key: str, text: str) -> Any:
    """Parse a variable's text: lists are JSON or comma-separated; other values are converted by the key's type."""
    table, _, name = key.rpartition(".")
    fields = FIELDS if table.startswith("sources.") else _SECTION_MODELS[table].model_fields
    field = fields.get(name)
    if field is None:  # a recipe's setting, known from the file
        return _parse_list(text) if text.startswith("[") else text
    return _parse_list(text) if "tuple" in str(field.annotation) else text


def _parse_list(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        try:
            return list(json.loads(text))
        except ValueError:
            return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


_SECTION_MODELS: dict[str, Any] = {name: Settings.model_fields[name].annotation for name in SECTIONS}
