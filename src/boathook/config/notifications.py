"""The settings of notifications: whom to tell, of what, and how often."""

import copy
import functools
import re
import tomllib
from datetime import time
from importlib import resources
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from boathook.config.types import NotNegative, Positive, PositiveInt, Secret, Table

Severity = Literal["warning", "critical"]
Measure = Literal["value", "increase", "share", "p50", "p95", "p99"]
Rows = Literal["", "dead_letters", "disabled_endpoints", "unhandled"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUIET: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def _metric(text: str) -> str:
    if text and not _METRIC.fullmatch(text):
        raise ValueError('must be the name of a metric, such as "boathook_oldest_due_seconds"')
    return text


def _page(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError('must be a page of this server, such as "/console/dead"')
    return text


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError('must be the name of a time zone, such as "Europe/Berlin" or "UTC"') from None
    return text


def _quiet(text: str) -> str:
    if text and not _QUIET.fullmatch(text):
        raise ValueError('must be hours such as "22:00-07:00", or empty')
    return text


def _one_or_more(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


MetricName = Annotated[str, AfterValidator(_metric)]
Labels = dict[str, Annotated[str | tuple[str, ...], AfterValidator(_one_or_more)]]
"""Labels with the value, or the values, that a series must have."""


class Selection(Table):
    """Some series of a metric."""

    metric: MetricName
    labels: Labels = Field(default_factory=dict)


class RuleSettings(Table):
    """What makes an alert: a figure drawn from a metric, compared with a threshold."""

    enabled: bool = True
    severity: Severity = "warning"
    summary: str = ""
    """What it means, in a sentence; ``{subject}`` stands for whom it is about."""
    advice: str = ""
    """What to do about it."""
    page: Annotated[str, AfterValidator(_page)] = ""
    """Where the console shows more."""
    metric: MetricName = ""
    labels: Labels = Field(default_factory=dict)
    by: tuple[str, ...] = ()
    """Labels that tell subjects apart, each with an alert of its own; ``host`` is one of every metric."""
    rows: Rows = ""
    """What is looked up in the journal's tables in place of a metric: undecided dead letters by recipient, endpoints
    that boathook has disabled, or unhandled events accepted in `over_s`, by source."""
    measure: Measure = "value"
    against: tuple[Selection, ...] = ()
    """Of a share: what the metric is compared with; the share is metric / (metric + these)."""
    unless: tuple[Selection, ...] = ()
    """Counters of which none may have risen within `over_s`."""
    above: float | None = None
    below: float | None = None
    clear: float | None = None
    """Beyond which a firing alert goes on, though the threshold is not met any more; None: the threshold."""
    times: NotNegative = 0
    """Of an increase: it must also be this many times what the day before had in the same time; 0: need not."""
    at_least: NotNegative = 0
    """Of shares and percentiles: fewest observations that say anything."""
    over_s: Positive = 300.0
    """Seconds that increases, shares and percentiles look back."""
    for_s: NotNegative = 0
    """Seconds it must hold before the alert fires."""
    clear_s: NotNegative = 60.0
    """Seconds it must have ceased before the alert counts as recovered."""
    channels: tuple[str, ...] | None = None
    """Who is told; None: all channels, an empty list: nobody, and the alert is shown in the console only."""
    repeat_interval_s: NotNegative | None = None
    """Seconds after which it is told again while it fires; None: `notifications.repeat_interval_s`, 0: never."""


class _Channel(Table):
    """What all channels have."""

    min_severity: Severity = "warning"
    """The lowest severity that it receives."""


class TelegramChannel(_Channel):
    """A chat that a bot writes to."""

    kind: Literal["telegram"]
    token: Secret = Field(repr=False)
    chat: str
    """The chat's number, or ``@name`` of a public channel."""
    thread: int | None = None
    api: str = "https://api.telegram.org"
    """Where the Bot API answers; one of your own, if you run one."""


class SlackChannel(_Channel):
    """A channel of Slack's, or of whoever takes Slack's incoming webhooks."""

    kind: Literal["slack"]
    url: Secret = Field(repr=False)
    """The address of the incoming webhook, which is a secret by itself."""


class EmailChannel(_Channel):
    """Mailboxes that are written to through an SMTP server."""

    kind: Literal["email"]
    host: str
    port: Annotated[int, Field(ge=1, le=65_535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str = ""
    password: Secret | None = Field(default=None, repr=False)
    sender: str
    to: tuple[str, ...] = Field(min_length=1)
    ca_file: str = ""
    """Certificates to trust instead of the system's, as a PEM file."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for address in (self.sender, *self.to):
            if "@" not in address or not address.isprintable() or any(char in address for char in "<>, "):
                raise ValueError(f'invalid address {address!r}; use a form such as "ops@example.com"')
        if self.username and self.security == "none":
            raise ValueError("a password is not sent in the clear: choose starttls or tls, or leave out username")
        if bool(self.username) != (self.password is not None):
            raise ValueError("username and password belong together; give both or neither")
        return self


class WebhookChannel(_Channel):
    """Whoever takes a signed JSON document."""

    kind: Literal["webhook"]
    url: Secret = Field(repr=False)
    secret: Secret = Field(repr=False)
    """``whsec_`` and base64 of 24 to 64 bytes; signs by Standard Webhooks."""


Channel = Annotated[TelegramChannel | SlackChannel | EmailChannel | WebhookChannel, Field(discriminator="kind")]


class NotificationSettings(Table):
    """Whom to tell of what."""

    channels: dict[str, Channel]
    rules: dict[str, RuleSettings]
    evaluation_interval_s: Annotated[float, Field(ge=1)]
    group_wait_s: NotNegative
    repeat_interval_s: NotNegative
    min_interval_s: NotNegative
    max_per_hour: PositiveInt
    quiet_hours: Annotated[str, AfterValidator(_quiet)]
    quiet_zone: Annotated[str, AfterValidator(_zone)]
    timeout_s: Positive
    retry_for_h: Positive
    retention_days: Positive

    @model_validator(mode="before")
    @classmethod
    def _add_own_rules(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("rules"), dict):
            return given
        rules = given["rules"]
        own = {name: {**rule, **rules.get(name, {})} for name, rule in default_rules().items()}
        return {**given, "rules": {**own, **{name: rule for name, rule in rules.items() if name not in own}}}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in (*self.channels, *self.rules):
            if not _NAME.fullmatch(name):
                raise ValueError(f"invalid name {name!r} of a channel or rule; use letters, digits, . _ and -")
        for name, rule in self.rules.items():
            for channel in rule.channels or ():
                if channel not in self.channels:
                    raise ValueError(f"rules.{name}.channels: unknown channel {channel!r}; add it under channels")
        return self

    @property
    def quiet(self) -> tuple[time, time] | None:
        """The local times at which the quiet hours begin and end."""
        found = _QUIET.fullmatch(self.quiet_hours)
        return (time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))) if found else None

    def channels_of(self, rule: RuleSettings) -> tuple[str, ...]:
        """Return the names of the channels that are told of a rule's alerts."""
        named = tuple(self.channels) if rule.channels is None else rule.channels
        return tuple(
            name for name in named if rule.severity == "critical" or self.channels[name].min_severity == "warning"
        )


def default_rules() -> dict[str, dict[str, Any]]:
    """Return the rules that boathook comes with, as `alert_rules.toml` has them."""
    return copy.deepcopy(_read_default_rules())


@functools.cache
def _read_default_rules() -> dict[str, dict[str, Any]]:
    text = resources.files("boathook.config").joinpath("alert_rules.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
