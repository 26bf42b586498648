"""Reads from the settings how the brokers are reached."""

import ssl
from dataclasses import dataclass, field
from importlib.util import find_spec

from boathook.config import Settings
from boathook.config.types import split_address
from boathook.domain.errors import ConfigError


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


def read_access(settings: Settings) -> BrokerAccess:
    """Return how the brokers of `[buffer]` are reached.

    Raises:
        ConfigError: the extra is not installed, or the password or the file of certificates cannot be read.
    """
    if find_spec("aio_pika") is None:
        raise ConfigError('buffer.kind: "rabbitmq" needs more: pip install \'boathook[rabbitmq]\', or use "disk"')
    buffer = settings.buffer
    tls = None
    if buffer.tls:
        try:
            tls = ssl.create_default_context(cafile=settings.broker_ca_file())
        except ssl.SSLError as error:
            raise ConfigError(
                f"buffer.ca_file: {buffer.ca_file} contains no certificates in PEM form: {error}"
            ) from None
    return BrokerAccess(
        hosts=tuple(split_address(host) for host in buffer.hosts),
        vhost=buffer.vhost,
        user=settings.resolve(buffer.user, "buffer.user"),
        password=settings.broker_password(),
        tls=tls,
        timeout_s=buffer.connect_timeout_s,
    )
