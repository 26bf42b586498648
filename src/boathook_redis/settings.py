"""The settings of the shared rate store: [shared]."""

from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from boathook.config import Settings
from boathook.config.packages import PackageTable, require_extra
from boathook.domain.errors import ConfigError
from boathook_redis import package


def _check_url(text: str) -> str:
    if text and not text.startswith(("redis://", "rediss://", "env:", "file:")):
        raise ValueError('must be a redis:// or rediss:// URL, "env:NAME", "file:PATH", or empty for PostgreSQL')
    return text


class SharedTable(PackageTable):
    """The server that leases tokens of shared rates."""

    redis: Annotated[str, AfterValidator(_check_url), Field(repr=False)]
    """A URL, or a reference to it: ``env:NAME`` or ``file:PATH``; empty for none."""


TABLES: Final[Mapping[str, type[PackageTable]]] = {"shared": SharedTable}


def read_url(settings: Settings) -> str:
    """Return the URL of `[shared] redis`; empty if PostgreSQL leases the rates.

    Raises:
        ConfigError: the extra is not installed, or the URL cannot be read or used.
    """
    shared = settings.table(SharedTable)
    url = settings.resolve(shared.redis, "shared.redis") if shared is not None else ""
    if not url:
        return ""
    require_extra(package, "shared.redis:")
    parts = urlsplit(url)
    try:
        is_usable = parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    number = parts.path.removeprefix("/")
    if not is_usable or not (number == "" or number.isdecimal()):
        raise ConfigError('shared.redis: must be an address such as "redis://redis.internal:6379/0"')
    return url


def check(settings: Settings) -> None:
    """Check that the server can be used. Raises ConfigError as `read_url` does."""
    read_url(settings)
