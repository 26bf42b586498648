"""All settings as immutable tables, and the resolution of the secrets that they refer to."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from boathook.config.channels import read_channel
from boathook.config.destinations import check_kinds
from boathook.config.notifications import NotificationSettings, RuleSettings
from boathook.config.packages import (
    Package,
    PackageTable,
    PackageTableT,
    read_declaration,
    register_metrics,
    tables_of,
)
from boathook.config.sources import SourceSettings
from boathook.config.types import (
    AppEntry,
    BaseUrl,
    Bind,
    DatabaseUrl,
    Days,
    DaysOrZero,
    Encodings,
    HoursOrZero,
    KeySetUrl,
    MountPath,
    Networks,
    NotNegative,
    Positive,
    PositiveInt,
    Proxy,
    RetrySchedule,
    Role,
    Secret,
    Table,
    WebOrigin,
    is_own_path,
    read_database_url,
    split_address,
)
from boathook.domain.errors import ConfigError, NotFound
from boathook.domain.model import MountRole
from boathook.domain.policy import RetryDefaults, read_retry

MIN_KEY_CHARS: Final = 16
"""Minimum length of a key that encrypts stored secrets."""
OWN_CHOICES: Final = {"buffer.kind": "disk", "delivery.lane": "postgresql"}
"""The settings that choose a package by its name, each with the value that stands for boathook itself."""


def _as_tables(packages: object) -> object:
    """Return the tables of packages by declaration and section; a child process has received them as plain values."""
    if not isinstance(packages, dict):
        return packages
    return {
        reference: {section: _as_table(reference, section, value) for section, value in sections.items()}
        for reference, sections in packages.items()
    }


def _as_table(reference: str, section: str, value: object) -> object:
    if not isinstance(value, dict):
        return value
    package = read_declaration(reference)
    register_metrics(package)
    return tables_of(package)[section].model_validate(value)


Tables = Annotated[dict[str, dict[str, SerializeAsAny[PackageTable]]], BeforeValidator(_as_tables)]


class DatabaseSettings(Table):
    """The connection to PostgreSQL."""

    url: DatabaseUrl = Field(repr=False)
    ingest_connections: PositiveInt
    ingest_batch_size: PositiveInt
    ingest_queue_size: PositiveInt
    worker_connections: PositiveInt
    connect_timeout_s: Positive
    statement_timeout_s: Positive
    allow_unsafe: bool


class ServerSettings(Table):
    """The processes to run, and their addresses."""

    bind: Bind
    data_dir: Path
    app: str
    production: bool
    roles: tuple[Role, ...] = Field(min_length=1)
    gateways: PositiveInt
    workers: PositiveInt
    senders: Annotated[int, Field(ge=0)]
    public_url: BaseUrl
    trusted_proxies: Networks
    linger_s: NotNegative
    drain_s: Positive

    @property
    def host(self) -> str:
        """The address part of `bind`, without brackets."""
        return split_address(self.bind)[0]

    @property
    def port(self) -> int:
        """The port part of `bind`; 0 lets the system choose."""
        return split_address(self.bind)[1]


class LimitSettings(Table):
    """Limits for one request or client."""

    max_body: PositiveInt
    max_provider_body: PositiveInt
    max_unverified_bytes: PositiveInt
    max_head: Annotated[int, Field(ge=1_024, le=65_536)]
    head_timeout_s: Positive
    body_timeout_s: Positive
    min_rate: Annotated[int, Field(ge=0)]
    keep_alive_s: Positive
    max_connections: PositiveInt
    max_connections_per_client: PositiveInt
    client_rate: NotNegative
    client_burst: PositiveInt
    max_waiting: PositiveInt
    content_encodings: Encodings
    max_decoded: PositiveInt
    max_ratio: Annotated[int, Field(ge=0)]


class RetentionSettings(Table):
    """Retention periods of stored data."""

    events_days: Days
    dedup_days: Days
    conflicts_days: Days
    rejections_days: Days
    rejections_count: PositiveInt
    rejections_bytes: PositiveInt
    rejections_rate: NotNegative
    maintenance_interval_s: Positive


class SpoolSettings(Table):
    """The spool for events while PostgreSQL is unavailable."""

    enabled: bool
    fallback_after_s: Positive
    max_bytes: PositiveInt
    segment_bytes: Annotated[int, Field(ge=4_096)]
    max_disk_used: Annotated[float, Field(gt=0, le=1)]
    retention_h: HoursOrZero


class BufferSettings(Table):
    """Settings of the buffer for events while PostgreSQL is unavailable: the spool, or that of a package before it."""

    kind: str
    """``disk`` for the spool alone, or the name of the package that provides the buffer."""
    then: Literal["disk", "refuse"]
    """The action on events that the package's buffer does not take."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == OWN_CHOICES["buffer.kind"] and self.then == "refuse":
            raise ValueError(
                'then: "refuse" needs another kind than "disk"; to store nothing on disk, set spool.enabled = false'
            )
        return self


class WorkerSettings(Table):
    """Settings of the workers, which run handlers."""

    concurrency: PositiveInt
    lease_s: Positive
    poll_interval_s: Positive
    timeout_s: Positive
    retry: RetrySchedule
    memory_mb: Annotated[int, Field(ge=0)]


class DeliverySettings(Table):
    """Settings of the notifications about due deliveries, for senders and workers."""

    lane: str
    """``postgresql``, or the name of the package that notifies."""


class LogSettings(Table):
    """Level and format of the log."""

    level: Literal["debug", "info", "warning", "error"]
    format: Literal["auto", "json", "text"]


class AppsSettings(Table):
    """Apps."""

    load: tuple[AppEntry, ...]
    """Each app: an installed app's name, or a module with a `Boathook` object named ``hook``."""

    @model_validator(mode="after")
    def _check_load(self) -> Self:
        for position, name in enumerate(self.load):
            if name in self.load[:position]:
                raise ValueError(f"load: {name} is listed twice")
        return self


class JwtSettings(Table):
    """The JSON Web Tokens of the owner's users, for the mounted paths of apps."""

    issuer: str
    audience: str
    jwks_url: KeySetUrl
    role_claim: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _check_completeness(self) -> Self:
        values = {"issuer": self.issuer, "audience": self.audience, "jwks_url": self.jwks_url}
        missing = [name for name, value in values.items() if not value]
        if missing and len(missing) < len(values):
            raise ValueError(f"{missing[0]}: is empty; set issuer, audience and jwks_url, or none of them")
        return self

    @property
    def is_on(self) -> bool:
        """Whether any token is accepted."""
        return bool(self.issuer)


class MountSettings(Table):
    """Settings of one mounted path of an app."""

    origins: tuple[WebOrigin, ...] = ()
    """Origins of the websites whose pages may call this path and open its WebSockets, such as
    `["https://app.example.com"]`; never `"*"`."""
    roles: dict[Annotated[str, Field(min_length=1)], MountRole] = Field(default_factory=dict)
    """What users with a JSON Web Token may do here, by the value of `jwt.role_claim`: `"reader"` or `"operator"`. Other
    users are refused."""


class OutboundSettings(Table):
    """Settings of the senders, and the addresses that outbound requests may reach."""

    allow: Networks
    ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...]
    require_https: bool
    ca_file: str
    proxy: Proxy = Field(repr=False)
    proxy_bypass: tuple[str, ...]
    header_prefixes: tuple[Literal["webhook", "svix"], ...] = Field(min_length=1)
    signature_type: Literal["hmac256", "ed25519"]
    user_agent: str
    destinations: Annotated[tuple[str, ...], AfterValidator(check_kinds)]
    tenant_destinations: tuple[str, ...]
    connect_timeout_s: Positive
    timeout_s: Positive
    concurrency: PositiveInt
    endpoint_concurrency: PositiveInt
    retry: RetrySchedule
    max_response: PositiveInt
    breaker_after: Annotated[int, Field(ge=0)]
    breaker_pause_s: Positive
    breaker_max_pause_s: Positive
    disable_after_days: DaysOrZero
    encryption_keys: tuple[Secret, ...] = Field(repr=False)
    validate_payloads: bool
    max_message: PositiveInt

    @model_validator(mode="after")
    def _check_destinations(self) -> Self:
        for name in self.tenant_destinations:
            if name not in self.destinations:
                raise ValueError(f"tenant_destinations: {name!r} is not one of outbound.destinations: add it there")
        return self


class Settings(Table):
    """All settings, immutable."""

    database: DatabaseSettings
    server: ServerSettings
    limits: LimitSettings
    retention: RetentionSettings
    spool: SpoolSettings
    buffer: BufferSettings
    worker: WorkerSettings
    delivery: DeliverySettings
    log: LogSettings
    apps: AppsSettings
    jwt: JwtSettings
    outbound: OutboundSettings
    notifications: NotificationSettings
    sources: dict[str, SourceSettings] = Field(default_factory=dict)
    mounts: dict[MountPath, MountSettings] = Field(default_factory=dict)
    """The mounted paths of apps that browsers or users may call."""
    tables: Tables = Field(default_factory=dict, repr=False)
    """By the declaration of each optional package that is used: its keys in each section."""
    extra: dict[str, dict[str, Any]] = Field(default_factory=dict, repr=False)
    """Top-level tables of apps, such as ``[billing]``, which boathook does not read itself."""
    file: Path | None = None
    """The configuration file read, if any; ``file:`` references are relative to its folder."""
    origins: dict[str, str] = Field(default_factory=dict, repr=False)
    """Where each dotted key that is not a default was set, such as ``environment variable BOATHOOK_BIND``."""
    unknown_variables: dict[str, str] = Field(default_factory=dict, repr=False)
    """By name: the sentence about each variable of the environment that looks like a setting."""
    stored: frozenset[str] = Field(default=frozenset(), exclude=True, repr=False)
    """The names of those among `sources` that are stored in PostgreSQL; never written by `model_dump`."""

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        self._check_source_paths(self.sources)
        return self

    @model_validator(mode="after")
    def _check_buffer(self) -> Self:
        if self.has_package_buffer and self.buffer.then == "disk" and not self.spool.enabled:
            raise ValueError('buffer.then: "disk" needs spool.enabled = true; set one of the two, or then = "refuse"')
        return self

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        for _, table in self.package_tables:
            table.check_with(self)
        return self

    @model_validator(mode="after")
    def _check_mounts(self) -> Self:
        for path, mount in self.mounts.items():
            if mount.roles and not self.jwt.is_on:
                raise ValueError(f"mounts.{path}.roles: needs jwt.issuer, jwt.audience and jwt.jwks_url")
        return self

    @property
    def packages(self) -> tuple[Package, ...]:
        """The optional packages whose sections are used, each once."""
        return tuple(map(read_declaration, self.tables))

    @property
    def package_tables(self) -> Iterator[tuple[str, PackageTable]]:
        """The keys of optional packages in use, each with its section, which several of them may have."""
        return chain.from_iterable(sections.items() for sections in self.tables.values())

    @property
    def has_package_apps(self) -> bool:
        """Whether a package in use may have handlers."""
        return any(package.app is not None for package in self.packages)

    def table(self, model: type[PackageTableT]) -> PackageTableT | None:
        """Return the table of a package by its class; None if no section of the package is used."""
        return next((table for _, table in self.package_tables if isinstance(table, model)), None)

    @property
    def kept_headers(self) -> tuple[str, ...]:
        """The headers that packages keep of every request that brings an event."""
        return tuple(dict.fromkeys(name for _, table in self.package_tables for name in table.kept_headers))

    def owns_path(self, path: str) -> bool:
        """Return whether boathook itself or a package in use has *path*, or could have a path below it."""
        own = [path_of for _, table in self.package_tables for path_of in (*table.own_paths, table.site_path)]
        return is_own_path(path) or any(
            f"{path.lower().rstrip('/')}/".startswith(f"{above}/") for above in own if above
        )

    def _check_source_paths(self, sources: Mapping[str, SourceSettings]) -> None:
        _refuse_shared_paths(sources)
        for name, source in sources.items():
            for path in source.paths:
                if self.owns_path(path):
                    raise ValueError(f"sources.{name}.paths: {path} belongs to boathook itself; choose another path")

    @property
    def has_package_notifier(self) -> bool:
        """Whether a package notifies senders and workers of due deliveries, instead of PostgreSQL."""
        return self.delivery.lane != OWN_CHOICES["delivery.lane"]

    @property
    def has_package_buffer(self) -> bool:
        """Whether events go to the buffer of a package while PostgreSQL does not accept them."""
        return self.buffer.kind != OWN_CHOICES["buffer.kind"]

    @property
    def has_spool(self) -> bool:
        """Whether gateways may write events to their disk."""
        return self.spool.enabled and not (self.has_package_buffer and self.buffer.then == "refuse")

    @property
    def accepts_without_database(self) -> bool:
        """Whether gateways accept events while PostgreSQL does not."""
        return self.has_package_buffer or self.has_spool

    def with_sources(self, sources: Mapping[str, SourceSettings]) -> Self:
        """Return these settings with other sources. Raises ValueError if two of them have the same path."""
        self._check_source_paths(sources)
        return self.model_copy(update={"sources": dict(sources), "stored": self.stored & sources.keys()})

    def with_stored_sources(self, sources: Mapping[str, SourceSettings]) -> Self:
        """Return these settings with these stored sources instead of those they have.

        Raises:
            ValueError: one of them has the name or a path of another source.
        """
        configured = self.configured_sources
        for name in sources:
            if name in configured:
                raise ValueError(f"sources.{name}: this name is taken by a configured source")
        merged = {**configured, **sources}
        self._check_source_paths(merged)
        return self.model_copy(update={"sources": merged, "stored": frozenset(sources)})

    @property
    def configured_sources(self) -> dict[str, SourceSettings]:
        """The sources of boathook.toml and of apps, by name."""
        return {name: source for name, source in self.sources.items() if name not in self.stored}

    def with_alerts(
        self, declared: Mapping[str, RuleSettings], channels: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Self:
        """Return these settings with alert rules and channels of apps; what the operator sets takes precedence.

        Raises:
            ValidationError: a channel is invalid.
        """
        own_rules = self.notifications.rules
        rules = {
            name: RuleSettings.model_validate({**rule.model_dump(), **own_rules[name].model_dump(exclude_unset=True)})
            if name in own_rules
            else rule
            for name, rule in declared.items()
        }
        of_apps = {name: read_channel(table) for name, table in (channels or {}).items()}
        notifications = self.notifications.model_copy(
            update={"rules": {**own_rules, **rules}, "channels": {**of_apps, **self.notifications.channels}}
        )
        return self.model_copy(update={"notifications": notifications})

    def is_in_file(self, key: str) -> bool:
        """Return whether the configuration file sets a dotted key, or a table that contains it."""
        names = key.partition("[")[0].split(".")
        origins = (self.origins.get(".".join(names[:end])) for end in range(len(names), 0, -1))
        origin = next((candidate for candidate in origins if candidate is not None), None)
        return origin is not None and self.file is not None and Path(origin).name == self.file.name

    def texts(self, *, without: Collection[str] = ()) -> Iterator[tuple[str, str]]:
        """Yield all texts with their dotted keys, *without* those of some tables."""
        plain = self.model_dump(exclude={*without, "tables"})
        for section, table in self.package_tables:
            plain[section] = plain.get(section, {}) | table.model_dump()
        yield from _texts(plain, "")

    def refers_to(self, variable: str) -> bool:
        """Return whether a setting refers to an environment variable, as ``env:NAME``."""
        return any(text == f"env:{variable}" for _, text in self.texts())

    def resolve(self, reference: str, key: str) -> str:
        """Return the text that ``env:NAME`` or ``file:PATH`` refers to, or other text unchanged.

        Raises:
            ConfigError: the variable or the file is missing or empty; the message names *key*.
        """
        scheme, colon, name = reference.partition(":")
        if not colon or scheme not in {"env", "file"}:
            return reference
        value = self._read_variable(name, key) if scheme == "env" else self._read_file(name, key)
        if not value:
            secret_place = f"the environment variable {name}" if scheme == "env" else f"the file {self.path_of(name)}"
            raise ConfigError(f"{key}: {secret_place} is empty; write the value into it")
        return value

    def _read_variable(self, name: str, key: str) -> str:
        if name not in os.environ:
            raise ConfigError(f"{key}: the environment variable {name} is not set; set it, or write file:PATH")
        return os.environ[name]

    def read_path(self, name: str, key: str) -> Path:
        """Return the path of a file, relative to the configuration file. Raises ConfigError if it cannot be read."""
        self._read_file(name, key)
        return self.path_of(name)

    def _read_file(self, name: str, key: str) -> str:
        path = self.path_of(name)
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{key}: cannot read {path}: {reason}; correct the path or the file") from None

    def source(self, name: str) -> SourceSettings:
        """Return the settings of one source. Raises NotFound, which lists the configured ones."""
        if name not in self.sources:
            names = ", ".join(sorted(self.sources)) or "none"
            raise NotFound(f"unknown source {name!r}; configured: {names}")
        return self.sources[name]

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

    def schema_of(self, source: str) -> Any:
        """Return the JSON Schema for a source's bodies, read from its file; None if there is none.

        Raises:
            ConfigError: the file cannot be read, or is not JSON; the message names the key.
        """
        schema = self.sources[source].body_schema
        if not isinstance(schema, str):
            return schema
        key = f"sources.{source}.schema"
        try:
            return json.loads(self._read_file(schema, key))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{key}: {schema} is not JSON: {error}") from None

    def path_of(self, name: str) -> Path:
        """Return the path of a file, relative to the configuration file."""
        return (self.file.parent if self.file else Path()) / name

    def retry_defaults(self) -> RetryDefaults:
        """Return the retry policies of handlers and endpoints that set none."""
        schedules = {name: source.retry for name, source in self.sources.items() if source.retry is not None}
        by_source = {name: read_retry(schedule) for name, schedule in schedules.items()}
        return RetryDefaults(
            policy=read_retry(self.worker.retry), by_source=by_source, endpoints=read_retry(self.outbound.retry)
        )

    def encryption_keys(self) -> tuple[str, ...]:
        """Return the resolved encryption keys, the current one first.

        Raises:
            ConfigError: as `resolve` does, or a key is shorter than 16 characters.
        """
        names = {f"outbound.encryption_keys[{i}]": key for i, key in enumerate(self.outbound.encryption_keys)}
        keys = {name: self.resolve(key, name) for name, key in names.items()}
        for name, key in keys.items():
            if len(key) < MIN_KEY_CHARS:
                raise ConfigError(
                    f"{name}: has {len(key)} characters; a key has at least {MIN_KEY_CHARS}."
                    " Generate one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
        return tuple(keys.values())

    def database_url(self) -> str:
        """Return the resolved URL of PostgreSQL; empty for the embedded server. Raises ConfigError if it is none."""
        url = self.resolve(self.database.url, "database.url")
        try:
            return url and read_database_url(url)
        except ValueError as error:
            raise ConfigError(f"database.url: what {self.database.url} refers to {error}") from None


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield all texts in a value of the settings, with their dotted keys."""
    match value:
        case str():
            yield key, value
        case Mapping():
            for name, part in value.items():
                yield from _texts(part, f"{key}.{name}" if key else str(name))
        case list() | tuple():
            for position, part in enumerate(value):
                yield from _texts(part, f"{key}[{position}]")


def _refuse_shared_paths(sources: Mapping[str, SourceSettings]) -> None:
    owners: dict[str, str] = {}
    for name, source in sources.items():
        for path in source.paths:
            if owners.setdefault(path, name) != name:
                raise ValueError(f"sources.{name}.paths: {path} is taken by source {owners[path]!r} already")
