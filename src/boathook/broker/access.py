"""Reads from the settings how the brokers and Redis are reached."""

import ssl
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import urlsplit

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
        raise ConfigError("buffer.kind or delivery.lane: \"rabbitmq\" needs more: pip install 'boathook[rabbitmq]'")
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


def read_redis_url(settings: Settings) -> str:
    """Return the URL of `[shared] redis`; empty if there is none.

    Raises:
        ConfigError: the extra is not installed, or the URL cannot be read or used.
    """
    url = settings.redis_url()
    if not url:
        return ""
    if find_spec("redis") is None:
        raise ConfigError("shared.redis: needs more: pip install 'boathook[redis]', or leave it empty")
    parts = urlsplit(url)
    try:
        is_usable = parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    number = parts.path.removeprefix("/")
    if not is_usable or not (number == "" or number.isdecimal()):
        raise ConfigError('shared.redis: must be an address such as "redis://redis.internal:6379/0"')
    return url
