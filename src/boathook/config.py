"""Settings: `defaults.toml` < `boathook.toml` < `BOATHOOK_*` environment < flags, each key checked."""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from boathook.domain.errors import ConfigError

FILE_NAME = "boathook.toml"
_PREFIX = "BOATHOOK_"
_SHORT_NAMES = {
    "BOATHOOK_DATABASE_URL": "database.url",
    "BOATHOOK_BIND": "server.bind",
    "BOATHOOK_DATA_DIR": "server.data_dir",
}
_OWN_PATHS = ("/in/", "/api/", "/console", "/healthz", "/readyz", "/metrics", "/metrics.json", "/selftest")

ENDING_STATUSES = frozenset({403, 406, 410})
"""Statuses by which senders take a receiver for closed; none is ever sent by accident."""

Network = IPv4Network | IPv6Network
Role = Literal["gateway", "worker", "keeper", "console"]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Encodings = tuple[Literal["gzip", "deflate"], ...]


def _split_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError('must be an address and a port, such as "127.0.0.1:8080" or "[::1]:8080"')
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(text: str) -> str:
    _split_address(text)
    return text


def _base_url(text: str) -> str:
    if text and (urlsplit(text).scheme not in {"http", "https"} or not urlsplit(text).netloc):
        raise ValueError('must be an address such as "https://hooks.example.com"')
    return text.rstrip("/")


def _network(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return ip_network(value)
    except ValueError as error:
        raise ValueError(f'must be a network such as "10.0.0.0/8": {error}') from None


def _database_url(text: str) -> str:
    if text and not text.startswith(("postgresql://", "postgres://", "env:", "file:")):
        raise ValueError('must be a postgresql:// URL, "env:NAME", "file:PATH", or empty for the embedded server')
    return text


def _secret(text: str) -> str:
    scheme, colon, rest = text.partition(":")
    if not text or (scheme in {"env", "file"} and colon and not rest):
        raise ValueError('must not be empty; write "env:NAME" or "file:PATH"')
    if colon and scheme not in {"env", "file"} and difflib.get_close_matches(scheme, ["env", "file"], cutoff=0.6):
        raise ValueError(f'starts with {scheme + ":"!r}; write "env:NAME" or "file:PATH"')
    return text


def _path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or any(char in text for char in "?# %"):
        raise ValueError('must start with "/" and hold neither "?", "#", "%" nor spaces, such as "/webhooks/stripe"')
    if text.startswith(_OWN_PATHS):
        raise ValueError(f"{text} belongs to boathook itself; choose another path")
    return text


def _content_type(text: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9.+-]+/[a-zA-Z0-9.+-]+(; ?[a-zA-Z0-9-]+=[a-zA-Z0-9._-]+)*", text):
        raise ValueError('must be a media type such as "application/json" or "text/plain; charset=utf-8"')
    return text


def _answer_status(status: int) -> int:
    if 300 <= status <= 399 or status in ENDING_STATUSES:
        raise ValueError("would redirect the sender or make it stop sending; write another, such as 200")
    return status


Secret = Annotated[str, AfterValidator(_secret)]
Networks = tuple[Annotated[Network, BeforeValidator(_network)], ...]
BaseUrl = Annotated[str, AfterValidator(_base_url)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DatabaseSettings(_Table):
    """Where the journal is and how it is reached."""

    url: Annotated[str, AfterValidator(_database_url)] = Field(repr=False)
    intake_connections: Count
    intake_batch: Count
    intake_queue: Count
    worker_connections: Count
    connect_timeout_s: Positive
    statement_timeout_s: Positive
    allow_unsafe: bool


class ServerSettings(_Table):
    """Which processes run, and where."""

    bind: Annotated[str, AfterValidator(_address)]
    data_dir: Path
    app: str
    roles: tuple[Role, ...] = Field(min_length=1)
    gateways: Count
    workers: Count
    public_url: BaseUrl
    trusted_proxies: Networks
    linger_s: NotNegative
    drain_s: Positive

    @property
    def host(self) -> str:
        """The address part of `bind`, without brackets."""
        return _split_address(self.bind)[0]

    @property
    def port(self) -> int:
        """The port part of `bind`; 0 lets the system choose."""
        return _split_address(self.bind)[1]


class LimitSettings(_Table):
    """What one request or client may cost."""

    max_body: Count
    max_head: Annotated[int, Field(ge=1_024, le=65_536)]
    head_timeout_s: Positive
    body_timeout_s: Positive
    min_rate: Annotated[int, Field(ge=0)]
    keep_alive_s: Positive
    max_connections: Count
    max_connections_per_client: Count
    client_rate: NotNegative
    client_burst: Count
    content_encodings: Encodings
    max_decoded: Count
    max_ratio: Count


class RetentionSettings(_Table):
    """How long things are kept."""

    events_days: Positive
    dedup_days: Positive
    conflicts_days: Positive
    rejections_days: Positive
    rejections_count: Count
    rejections_bytes: Count
    rejections_rate: NotNegative
    upkeep_s: Positive


class WorkerSettings(_Table):
    """How handlers are run."""

    concurrency: Count
    lease_s: Positive
    poll_s: Positive
    timeout_s: Positive
    memory_mb: Annotated[int, Field(ge=0)]


class LogSettings(_Table):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"]
    format: Literal["auto", "json", "text"]


class AppsSettings(_Table):
    """Ready-made apps."""

    load: tuple[str, ...]


class OutboundSettings(_Table):
    """What outbound requests may reach."""

    allow: Networks


class SourceSettings(_Table):
    """One source: a provider's recipe, secrets, paths and policy; what is absent follows provider and `[limits]`.

    Keys that are not boathook's own are kept and handed to the provider's recipe, which refuses those it does not know.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    provider: str
    """The recipe's name; the source's own name where absent."""
    secrets: tuple[Secret, ...] = Field(default=(), repr=False)
    """References such as ``env:NAME``; any of them may have signed. `Settings.secrets_of` resolves them."""
    paths: tuple[Annotated[str, AfterValidator(_path)], ...] = ()
    unsigned: bool = False
    addresses: Networks = ()
    """Networks requests may come from, besides what the provider's proof demands; none given: any."""
    tolerance_s: Positive | None = None
    max_body: Count | None = None
    rate: NotNegative | None = None
    """Requests a second; absent or 0: no limit."""
    burst: Count | None = None
    dedup_fields: tuple[str, ...] = ()
    dedup_days: Positive | None = None
    public_url: BaseUrl | None = None
    methods: tuple[Literal["GET", "POST", "PUT"], ...] | None = None
    content_encodings: Encodings | None = None
    mode: Literal["store", "inline"] = "store"
    """Whether the sender is answered once the event is stored, or by the handler."""
    reply_within_s: Positive | None = None
    """How long the sender is kept waiting for the handler; None: a share of what the provider's recipe allows."""
    fallback_status: Annotated[int, Field(ge=200, le=599), AfterValidator(_answer_status)] | None = None
    fallback_body: Annotated[str, Field(max_length=65_536)] | None = None
    fallback_content_type: Annotated[str, AfterValidator(_content_type)] | None = None
    header: str | None = None
    algorithm: str | None = None
    encoding: str | None = None
    prefix: str | None = None
    template: str | None = None
    timestamp_header: str | None = None
    id_header: str | None = None
    id_path: str | None = None
    type_header: str | None = None
    type_path: str | None = None
    key_encoding: str | None = None
    query: str | None = None
    username: str | None = None
    password: Secret | None = Field(default=None, repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """The settings given for the provider's recipe; references to secrets unresolved."""
        own = {key: value for key in _GENERIC_KEYS if (value := getattr(self, key)) is not None}
        return own | (self.model_extra or {})

    @model_validator(mode="after")
    def _check_inline(self) -> Self:
        if self.mode == "store":
            for key in _INLINE_KEYS:
                if getattr(self, key) is not None:
                    raise ValueError(f'{key} is for sources whose handler answers; add mode = "inline" or remove it')
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what may be shown: the recipe's own settings may hold secrets."""
        extra = self.model_extra or {}
        return ((key, value) for key, value in super().__repr_args__() if key not in extra)


_KEYS = tuple(SourceSettings.model_fields)
_INLINE_KEYS = ("reply_within_s", "fallback_status", "fallback_body", "fallback_content_type")
_GENERIC_KEYS = _KEYS[_KEYS.index("header") :]
"""Settings of the generic recipes that are typed here, so that they can be set from the environment."""
_OWN_KEYS = ("secret", *_KEYS[: _KEYS.index("header")])
_NEAR = 0.8
"""How alike a key must be to one of boathook's own to count as a slip and not as the recipe's."""


class Settings(_Table):
    """All settings of one boathook, immutable."""

    database: DatabaseSettings
    server: ServerSettings
    limits: LimitSettings
    retention: RetentionSettings
    worker: WorkerSettings
    log: LogSettings
    apps: AppsSettings
    outbound: OutboundSettings
    sources: dict[str, SourceSettings] = {}
    extra: dict[str, dict[str, Any]] = {}
    """Top-level tables that are not boathook's own, such as ``[billing]``; apps read theirs."""
    file: Path | None = None
    """The configuration file read, if any; ``file:`` secrets are relative to its folder."""

    @model_validator(mode="after")
    def _check_apps(self) -> Self:
        if self.apps.load:
            raise ValueError("apps.load: this version has no ready-made apps; remove the key")
        return self

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        owners: dict[str, str] = {}
        for name, source in self.sources.items():
            for path in source.paths:
                if owners.setdefault(path, name) != name:
                    raise ValueError(f"sources.{name}.paths: {path} is taken by source {owners[path]!r} already")
        return self

    def resolve(self, reference: str, key: str) -> str:
        """Return the text behind ``env:NAME`` or ``file:PATH``; other text is returned as it is.

        Raises:
            ConfigError: the variable or the file is missing or empty; the message names *key*.
        """
        scheme, colon, name = reference.partition(":")
        if not colon or scheme not in {"env", "file"}:
            return reference
        value = self._read_variable(name, key) if scheme == "env" else self._read_file(name, key)
        if not value:
            raise ConfigError(f"{key}: {reference} is empty")
        return value

    def _read_variable(self, name: str, key: str) -> str:
        if name not in os.environ:
            raise ConfigError(f"{key}: the environment variable {name} is not set; set it, or write file:PATH")
        return os.environ[name]

    def _read_file(self, name: str, key: str) -> str:
        path = (self.file.parent if self.file else Path()) / name
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{key}: cannot read {path}: {reason}") from None

    def secrets_of(self, source: str) -> tuple[str, ...]:
        """Return the resolved secrets of a source, in order. Raises ConfigError as `resolve` does."""
        secrets = self.sources[source].secrets
        return tuple(self.resolve(secret, f"sources.{source}.secrets[{i}]") for i, secret in enumerate(secrets))

    def options_of(self, source: str) -> dict[str, Any]:
        """Return the settings of a source for its recipe, with references resolved. Raises as `resolve` does."""
        options = self.sources[source].options
        return {key: self._resolved(value, f"sources.{source}.{key}") for key, value in options.items()}

    def _resolved(self, value: Any, key: str) -> Any:
        match value:
            case str():
                return self.resolve(value, key)
            case list():
                return [self._resolved(part, f"{key}[{position}]") for position, part in enumerate(value)]
            case dict():
                return {name: self._resolved(part, f"{key}.{name}") for name, part in value.items()}
            case _:
                return value

    def dedup_days_of(self) -> dict[str, float]:
        """Return the days that sources with a dedup memory of their own are remembered, by name."""
        return {name: source.dedup_days for name, source in self.sources.items() if source.dedup_days is not None}

    def database_url(self) -> str:
        """Return the resolved URL of PostgreSQL; empty for the embedded server."""
        return self.resolve(self.database.url, "database.url")


SECTIONS: tuple[str, ...] = ("database", "server", "limits", "retention", "worker", "log", "apps", "outbound")


def defaults() -> dict[str, dict[str, Any]]:
    """Return the content of `defaults.toml`, the only place where defaults are written."""
    return tomllib.loads(resources.files("boathook").joinpath("defaults.toml").read_text(encoding="utf-8"))


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings from defaults, file, environment and *overrides*.

    Args:
        path: the file; None reads ``boathook.toml`` in the working folder where there is one.
        overrides: by dotted key, such as ``{"server.bind": "127.0.0.1:0"}``, or nested; None values are skipped.
            ``server.port`` replaces the port in ``server.bind``.

    Raises:
        ConfigError: a file, variable or key is wrong; the message names it and says what to write.
    """
    file = path or (Path(FILE_NAME) if Path(FILE_NAME).is_file() else None)
    layers = _Layers(defaults())
    extra: dict[str, dict[str, Any]] = {}
    if file is not None:
        extra = layers.add_file(file)
    layers.add_environment(os.environ)
    layers.add_overrides(overrides or {})
    return layers.build(extra, file.absolute() if file else None)


class _Layers:
    """Settings being merged, each key with the place it came from."""

    def __init__(self, base: dict[str, Any]) -> None:
        self.merged: dict[str, Any] = {**base, "sources": {}}
        self.origins: dict[str, str] = {}

    def add_file(self, path: Path) -> dict[str, dict[str, Any]]:
        tables = _read_toml(path)
        extra: dict[str, dict[str, Any]] = {}
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {name} stands outside a table; put it under one, such as [server]")
            if name == "sources":
                self._add_sources(table, path)
            elif name in SECTIONS:
                self._add_section(name, table, path)
            else:
                _refuse_near_miss(name, path)
                extra[name] = table
        return extra

    def _add_section(self, name: str, table: dict[str, Any], path: Path) -> None:
        for key, value in table.items():
            if key == "data_dir" and isinstance(value, str):
                value = str(path.absolute().parent / Path(value).expanduser())  # noqa: PLW2901 - same value, absolute
            self._set(f"{name}.{key}", value, str(path))

    def _add_sources(self, table: dict[str, Any], path: Path) -> None:
        for name, source in table.items():
            if not isinstance(source, dict):
                raise ConfigError(f"{path}: sources.{name} must be a table: write [sources.{name}] and its keys below")
            self.merged["sources"][name] = {"provider": name}
            for key, value in source.items():
                self._set(f"sources.{name}.{key}", value, str(path))

    def add_environment(self, environment: Mapping[str, str]) -> None:
        known = {_PREFIX + key.replace(".", "_").replace("-", "_").upper(): key for key in self._keys()}
        known |= _SHORT_NAMES
        references = {secret for source in self.merged["sources"].values() for secret in _references(source)}
        # Long names last, so that BOATHOOK_SERVER_BIND wins over BOATHOOK_BIND.
        for variable in sorted(environment, key=lambda name: (name not in _SHORT_NAMES, name)):
            if variable in known:
                key = known[variable]
                self._set(key, _parse(key, environment[variable]), f"environment variable {variable}")
            elif _is_ours(variable) and variable not in references:
                raise ConfigError(f"environment variable {variable} is not a setting{_did_you_mean(variable, known)}")

    def _keys(self) -> Iterator[str]:
        for section in SECTIONS:
            yield from (f"{section}.{key}" for key in self.merged[section])
        for source in self.merged["sources"]:
            keys = dict.fromkeys((*SourceSettings.model_fields, *self.merged["sources"][source]))
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
                last, key, value = "secrets", f"{key}s", [value]
            hint = _did_you_mean(last, _OWN_KEYS, prefix=f"sources.{tables[1]}.", cutoff=_NEAR)
            is_refused = last not in SourceSettings.model_fields and bool(hint)
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

    def build(self, extra: dict[str, dict[str, Any]], file: Path | None) -> Settings:
        try:
            settings = Settings.model_validate({**self.merged, "extra": extra, "file": file})
        except ValidationError as error:
            raise ConfigError(self._explain(error, file)) from None
        server = settings.server.model_copy(update={"data_dir": settings.server.data_dir.expanduser().absolute()})
        return settings.model_copy(update={"server": server})

    def _explain(self, error: ValidationError, file: Path | None) -> str:
        first = error.errors(include_url=False)[0]
        names = [part for part in first["loc"] if not (isinstance(part, str) and "[" in part)]
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
        plain = key.partition("[")[0]
        origin = self.origins.get(plain, str(file or "settings"))
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        message = message.replace("a valid tuple", 'a list, such as ["..."]')
        if not key:
            return f"{origin}: {message}"
        is_secret = plain.endswith((".secrets", ".password", "database.url"))
        given = "" if is_secret else f" (it is {first['input']!r})"
        return f"{origin}: {key}: {message[:1].lower()}{message[1:]}{given}"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _refuse_near_miss(name: str, path: Path) -> None:
    hint = _did_you_mean(name, (*SECTIONS, "sources"), cutoff=0.8)
    if hint:
        raise ConfigError(f"{path}: [{name}] is not a table of boathook's{hint}")


def _did_you_mean(name: str, known: Any, *, prefix: str = "", cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _is_ours(variable: str) -> bool:
    return variable.startswith(tuple(f"{_PREFIX}{section.upper()}_" for section in (*SECTIONS, "sources")))


def _references(value: object) -> Iterator[str]:
    """Yield the variables that texts anywhere in a source's table refer to."""
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
    """Read a variable's text: lists are JSON or comma-separated, the rest is left to the key's type."""
    table, _, name = key.rpartition(".")
    model: type[BaseModel] = SourceSettings if table.startswith("sources.") else _SECTION_MODELS[table]
    field = model.model_fields.get(name)
    if field is None:  # a setting of some recipe; the file shows that there is one
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
