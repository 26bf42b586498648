"""The settings of the brokers: keys of [buffer]."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from boathook.config import Settings
from boathook.config.packages import PackageTable
from boathook.config.types import BaseUrl, Positive, split_address
from boathook.domain.errors import ConfigError

NAME: Final = "rabbitmq"
"""Selects this package in `buffer.kind` and `delivery.lane`."""


def _check_host(text: str) -> str:
    if "://" in text or "@" in text:
        raise ValueError('must be an address and a port without scheme and login, such as "mq1.example.com:5672"')
    split_address(text)
    return text


class BrokerTable(PackageTable):
    """The brokers, and how they are reached."""

    hosts: tuple[Annotated[str, AfterValidator(_check_host)], ...]
    vhost: Annotated[str, Field(min_length=1, max_length=255)]
    user: str
    password: str = Field(repr=False)
    tls: bool
    ca_file: str
    confirm_s: Positive
    connect_timeout_s: Positive
    management_url: BaseUrl

    def check_with(self, settings: Settings) -> None:
        """Check that brokers that are used can be reached with these keys. Raises ValueError."""
        if holds_events(settings) and not self.hosts:
            raise ValueError('buffer.hosts: is empty; list the brokers, such as ["mq1:5672", "mq2:5672", "mq3:5672"]')
        if holds_events(settings) and not (self.user and self.password):
            raise ValueError(
                'set buffer.user and buffer.password, such as user = "boathook" and password = "env:BROKER_PASSWORD"'
            )
        if notifies(settings) and not (self.hosts and self.user and self.password):
            raise ValueError('delivery.lane: "rabbitmq" needs buffer.hosts, buffer.user and buffer.password')
        if self.ca_file and not self.tls:
            raise ValueError("buffer.ca_file: needs buffer.tls = true")


TABLES: Final[Mapping[str, type[PackageTable]]] = {"buffer": BrokerTable}


def holds_events(settings: Settings) -> bool:
    """Return whether events go to brokers while PostgreSQL does not accept them."""
    return settings.buffer.kind == NAME


def notifies(settings: Settings) -> bool:
    """Return whether brokers notify senders and workers of due deliveries."""
    return settings.delivery.lane == NAME


def brokers_of(settings: Settings) -> BrokerTable:
    """Return the settings of the brokers. Raises ConfigError if there are none."""
    brokers = settings.table(BrokerTable)
    if brokers is None:
        raise ConfigError("buffer.hosts: there are no brokers; see docs/how-to/rabbitmq.md")
    return brokers
