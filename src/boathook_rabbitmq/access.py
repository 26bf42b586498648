"""Reads from the settings how the brokers are reached."""

import ssl
from dataclasses import dataclass, field

from boathook.config import Settings
from boathook.config.packages import require_extra
from boathook.config.types import split_address
from boathook.domain.errors import ConfigError
from boathook_rabbitmq import package
from boathook_rabbitmq.settings import brokers_of, holds_events, notifies


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """How a cluster of brokers is reached."""

    hosts: tuple[tuple[str, int], ...]
    """Addresses and ports of its nodes."""
    vhost: str
    user: str
    password: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    """Verifies the brokers' certificates; None connects without TLS."""
    timeout_s: float = 5.0
    """Deadline of connecting, declaring and consuming; each step has its own."""


def check(settings: Settings) -> None:
    """Check that brokers which the settings use can be reached with them. Raises ConfigError as `read_access` does."""
    if holds_events(settings) or notifies(settings):
        read_access(settings)


def read_access(settings: Settings) -> BrokerAccess:
    """Return how the brokers of `[buffer]` are reached.

    Raises:
        ConfigError: the extra is not installed, or the password or the file of certificates cannot be read.
    """
    require_extra(package, 'buffer.kind or delivery.lane: "rabbitmq"')
    brokers = brokers_of(settings)
    tls = None
    if brokers.tls:
        try:
            tls = ssl.create_default_context(cafile=read_ca_file(settings))
        except ssl.SSLError as error:
            raise ConfigError(
                f"buffer.ca_file: {brokers.ca_file} contains no certificates in PEM form: {error}"
            ) from None
    return BrokerAccess(
        hosts=tuple(split_address(host) for host in brokers.hosts),
        vhost=brokers.vhost,
        user=settings.resolve(brokers.user, "buffer.user"),
        password=settings.resolve(brokers.password, "buffer.password"),
        tls=tls,
        timeout_s=brokers.connect_timeout_s,
    )


def read_ca_file(settings: Settings) -> str | None:
    """Return the path of the certificates that sign the brokers'; None for the system's.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = brokers_of(settings).ca_file
    return str(settings.read_path(path, "buffer.ca_file")) if path else None
