"""The table ``[fleet]`` of boathook.toml, and the environment variables that replace its keys."""

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, tzinfo
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from boathook import ConfigError
from boathook_pages.languages import LanguageSetting

SOURCES: Final = ("rentprog", "umnico")
PATH: Final = "/api/rentprog/webhook"
ALIAS: Final = "/webhook/rentprog-webhook-create"
UMNICO_PATH: Final = "/api/umnico/webhook"
DEDUP_HEADERS: Final = ("x-webhook-id", "x-event-id", "x-delivery-id", "x-timestamp")
"""Headers that tell RentProg's equal requests apart, if a proxy in between adds them."""
REQUEST_ID_HEADER: Final = "x-request-id"

_FORMER_LIMITS: Final = {
    "per_minute": "notifications.max_per_hour",
    "quiet_s": "notifications.min_interval_s",
    "timeout_s": "notifications.timeout_s",
}
_HOURS: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d-(([01]\d|2[0-3]):[0-5]\d|24:00)", re.ASCII)

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class ApiSettings(BaseModel):
    """RentProg's API, and the rates that its documents recommend; all workers share them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    url: str = "https://rentprog.net/api/v1/public"
    read_per_minute: Positive = 60.0
    search_per_minute: Positive = 15.0
    login_per_minute: Positive = 30.0
    """Requests for a token that is valid for some minutes."""
    timeout_s: Positive = 15.0
    wait_s: Annotated[float, Field(ge=0)] = 60.0
    """Seconds after which updates of an unknown object are applied without it."""


class BranchSettings(BaseModel):
    """A branch, which is a company of its own for RentProg."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = ""
    token: str = Field(default="", repr=False)
    """The company's token for RentProg's API, best as ``env:NAME``; if empty, nothing is fetched from it."""
    silence_h: Annotated[float, Field(ge=0, le=24 * 28)] = 3.0
    """Hours of operation without a webhook after which there is an alert; 0 for none."""
    hours: str = "00:00-24:00"
    """The hours of operation, local times; they may end on the next day, such as ``20:00-04:00``."""

    @field_validator("hours")
    @classmethod
    def _check_hours(cls, text: str) -> str:
        if not _HOURS.fullmatch(text):
            raise ValueError('write the hours of operation such as "09:00-21:00"')
        return text

    @property
    def open_minutes(self) -> tuple[int, int]:
        """The minutes of a day at which the hours begin and end, the latter maybe after midnight."""
        opens, closes = (int(part[:2]) * 60 + int(part[3:]) for part in self.hours.split("-"))
        return opens, closes if closes > opens else closes + 24 * 60


class TelegramSettings(BaseModel):
    """A chat of Telegram that gets critical alerts: the channel ``fleet`` of boathook's notifications."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str = Field(default="", repr=False)
    """The bot's token, best as ``env:NAME``."""
    chat_id: str = ""
    api: str = "https://api.telegram.org"
    """The URL of the Bot API."""

    @model_validator(mode="before")
    @classmethod
    def _check_former(cls, values: Any) -> Any:
        for name in values if isinstance(values, Mapping) else ():
            if name in _FORMER_LIMITS:
                raise ValueError(f"{name} is now {_FORMER_LIMITS[name]}, for messages of all alerts; write it there")
        return values

    @model_validator(mode="after")
    def _check_both(self) -> "TelegramSettings":
        if bool(self.token) != bool(self.chat_id):
            raise ValueError("token and chat_id belong together; write both, or neither")
        return self


class FleetSettings(BaseModel):
    """All settings of the app; missing keys are read from environment variables, where one is defined."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    secrets: tuple[str, ...] = Field(default=("env:RENTPROG_WEBHOOK_TOKEN",), repr=False)
    """RentProg's tokens or signing keys; any of them is accepted."""
    scheme: Literal["token", "hmac"] = "token"
    """Whether RentProg sends a token in its URL or a signature of the body."""
    umnico_secrets: tuple[str, ...] = Field(default=(), repr=False)
    """Umnico's tokens; without any there is no such source."""
    max_body: Count = 262_144
    rate: Annotated[float, Field(ge=0)] = 300.0
    """Requests per second from each source; 0 means no limit."""
    burst: Count = 2_000
    dedup_window_s: Annotated[float, Field(ge=1)] = 900.0
    """Seconds for which an equal request is a repetition, if it is the newest of its object."""
    time_zone: str = "UTC"
    """The company's time zone, such as ``Asia/Tbilisi``: RentProg's times are local."""
    language: LanguageSetting = "auto"
    """The language of pages and alerts; ``auto`` leaves pages to each user, and means English for alerts."""
    concurrency: Count = 8
    """Maximum changes recorded, and maximum changes applied, concurrently."""
    ack_sla_ms: Positive = 500.0
    """The target for the acknowledgement time; it is only reported."""
    window_s: Annotated[float, Field(ge=0)] = 0.3
    """Seconds during which changes of one object are collected before it is written."""
    dead_retry_s: tuple[Positive, ...] = (900.0, 3_600.0, 21_600.0, 86_400.0)
    """Seconds after which a dead letter is retried automatically; after the last it is left to operators."""
    dead_days: Positive = 30.0
    """Days after which ``POST /api/rentprog/webhook/dead/cleanup`` ignores a dead letter."""
    keep_days: Positive = 90.0
    """Days that changes, unknown requests, errors and metrics are kept."""
    max_errors: Count = 10_000
    """Maximum rows in the error log."""
    application: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]*$", max_length=256)] = ""
    """The application whose endpoints get events about bookings; if empty, none are published."""
    late_after_s: Annotated[float, Field(ge=0)] = 900.0
    """Seconds after the end of a booking at which it is late."""
    late_states: tuple[str, ...] = ("Активная",)
    """The states of a booking whose car has not been returned."""
    telegram: TelegramSettings = TelegramSettings()
    api: ApiSettings = ApiSettings()
    branches: dict[str, BranchSettings] = {}
    """The branches by their id, RentProg's ``company_id``."""

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, name: str) -> str:
        try:
            find_zone(name)
        except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
            raise ValueError(f'{name!r} is not a time zone of this machine; use one such as "Asia/Tbilisi"') from None
        return name

    @field_validator("branches")
    @classmethod
    def _check_branches(cls, branches: dict[str, BranchSettings]) -> dict[str, BranchSettings]:
        for id in branches:
            if not id.isascii() or not id.isdigit():
                raise ValueError(f"{id[:50]!r} is not a company_id of RentProg, which is a number; write it as name")
        return branches

    @field_validator("application")
    @classmethod
    def _check_application(cls, uid: str) -> str:
        if uid == "fleet":
            raise ValueError("'fleet' is the app's own; use another one")
        return uid

    @property
    def zone(self) -> tzinfo:
        """The company's time zone."""
        return find_zone(self.time_zone)

    @property
    def can_fetch(self) -> bool:
        """Whether whole objects can be fetched."""
        return any(branch.token for branch in self.branches.values())

    @model_validator(mode="before")
    @classmethod
    def _fill_from_environment(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return with_preset(values, os.environ)

    def channels(self) -> dict[str, dict[str, Any]]:
        """Return the channel to Telegram, in the format of boathook.toml; without a chat, none."""
        chat = self.telegram
        if not chat.token:
            return {}
        keys = {"kind": "telegram", "token": chat.token, "chat": chat.chat_id, "api": chat.api}
        return {"fleet": {**keys, "min_severity": "critical"}}

    def sources(self) -> dict[str, dict[str, Any]]:
        """Return the sources the app needs, in the format of boathook.toml."""
        policy: dict[str, Any] = {
            "max_body": self.max_body, "dedup_window_s": self.dedup_window_s,
            "request_id_header": REQUEST_ID_HEADER, "keep_request_id": True,
        }  # fmt: skip
        if self.rate > 0:
            policy |= {"rate": self.rate, "burst": self.burst}
        rentprog = {
            "provider": "rentprog", "secrets": list(self.secrets), "paths": [PATH, ALIAS],
            "dedup_headers": list(DEDUP_HEADERS), "dedup_object": "payload.id", **policy,
        }  # fmt: skip
        if self.scheme == "hmac":
            rentprog["scheme"] = "hmac"
        sources = {"rentprog": rentprog}
        if self.umnico_secrets:
            sources["umnico"] = {
                "provider": "umnico", "secrets": list(self.umnico_secrets), "paths": [UMNICO_PATH], **policy
            }  # fmt: skip
        return sources


def find_zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name. Raises ValueError, OSError or KeyError if there is none."""
    return UTC if name == "UTC" else ZoneInfo(name)


def with_preset(values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of the table, with missing ones added from the environment.

    Raises:
        ConfigError: a variable has an invalid value; the message names the variable.
    """
    preset: dict[str, Any] = {}
    for name, (key, read) in PRESET.items():
        text = environment.get(name, "").strip()
        if text:
            value = _read(name, text, read)
            if key not in values:
                preset[key] = value
    if "telegram" not in values and all(environment.get(name) for name in TELEGRAM):
        token, chat = TELEGRAM
        preset["telegram"] = {"token": f"env:{token}", "chat_id": environment[chat]}
    return {**preset, **values}


def _read(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"the environment variable {name} is {text!r}, but must be {error}") from None


def read_size(text: str) -> int:
    """Parse a size in bytes such as ``256kb``, ``1mb`` or ``262144``. Raises ValueError with the allowed values."""
    matched = re.fullmatch(r"(\d{1,12})(?:\.0+)?\s*(b|kb|k|mb|m)?", text.lower())
    size = (
        int(matched[1]) * {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": 1024**2, "mb": 1024**2}[matched[2] or ""]
        if matched
        else 0
    )
    if not 1_024 <= size <= 64 * 1024**2:
        raise ValueError('a size from 1kb to 64mb, such as "256kb"')
    return size


def show_size(size: int) -> str:
    """Return a size as `read_size` reads it."""
    return f"{size}b" if size % 1_024 else f"{size // 1_024}kb"


def _number(
    low: float, high: float, example: str, factor: float = 1.0, kind: type[int] | type[float] = float
) -> Callable[[str], float]:
    """Return the parser of a number in a range, which is multiplied by *factor*."""

    def read(text: str) -> float:
        try:
            number: float = kind(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            name = "whole number" if kind is int else "number"
            raise ValueError(f'a {name} from {low:g} to {high:g}, such as "{example}"')
        return number if kind is int else number * factor

    return read


def _waits(text: str) -> list[float]:
    read = _number(1, 1e9, "900")
    try:
        return [read(part.strip()) for part in text.split(",")]
    except ValueError:
        raise ValueError('seconds separated by commas, such as "900, 3600, 21600"') from None


PRESET: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "WEBHOOK_JSON_LIMIT": ("max_body", read_size),
    "WEBHOOK_RATE_RPS": ("rate", _number(0, 1e6, "300")),
    "WEBHOOK_RATE_BURST": ("burst", _number(1, 1e6, "2000", kind=int)),
    "WEBHOOK_ACK_SLA_MS": ("ack_sla_ms", _number(1, 60_000, "500")),
    "WEBHOOK_DEDUP_TTL_SEC": ("dedup_window_s", _number(1, 1e9, "900")),
    "WEBHOOK_ASYNC_CONCURRENCY": ("concurrency", _number(1, 1_000, "8", kind=int)),
    "WEBHOOK_BATCH_WINDOW_MS": ("window_s", _number(0, 60_000, "300", 1 / 1_000)),
    "WEBHOOK_DLQ_RETRY_SEC": ("dead_retry_s", _waits),
    "WEBHOOK_DLQ_TTL_DAYS": ("dead_days", _number(0.01, 3_650, "30")),
}
"""Supported environment variables, each with its key and the parser of its value."""
TELEGRAM: Final = ("TELEGRAM_BOT_TOKEN", "TELEGRAM_CHAT_ID")
"""Environment variables that together replace ``[fleet.telegram]``."""
_SERVER: Final = "the server is boathook's own, and its limits are settings"
_DEDUP: Final = "PostgreSQL recognises duplicates, and no copy of them is kept in Redis"
_SHARED: Final = (
    'set shared.redis = "env:{name}" if several gateways are to share their rates through it; else unset it'
)
IGNORED: Final[Mapping[str, tuple[str, str]]] = {
    "WEBHOOK_WORKER_DEFER_MS": (
        "a handler starts once its event is stored, in another process than the one that answers",
        "unset it; fleet.window_s is how long changes of an object are collected",
    ),
    "WEBHOOK_ACK_FAST": (
        "each request is answered as soon as its event is stored, and each event is handled",
        'unset it; to handle events later, start boathook without the role "worker"',
    ),
    "WEBHOOK_SKIP_WORKER": (
        "each stored event is handled",
        'unset it; to handle events later, start boathook without the role "worker"',
    ),
    "KEEP_ALIVE_TIMEOUT_MS": (_SERVER, "set limits.keep_alive_s, in seconds, and unset it"),
    "HEADERS_TIMEOUT_MS": (_SERVER, "set limits.head_timeout_s, in seconds, and unset it"),
    "REQUEST_TIMEOUT_MS": (_SERVER, "set limits.body_timeout_s, in seconds, and unset it"),
    "SOCKET_TIMEOUT_MS": (
        "each phase of a request has a timeout of its own",
        "set limits.head_timeout_s, limits.body_timeout_s and limits.keep_alive_s, in seconds, and unset it",
    ),
    "REDIS_URL": (_DEDUP, _SHARED.format(name="REDIS_URL")),
    "REDIS_PUBLIC_URL": (_DEDUP, _SHARED.format(name="REDIS_PUBLIC_URL")),
}
"""Environment variables of the system that this app replaces which have no effect, each with the reason and the fix."""
