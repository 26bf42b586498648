"""The types of settings, with their validation and error messages."""

import difflib
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from boathook.domain.policy import read_retry
from boathook.domain.replies import check_media_type, check_status

_OWN_PATHS: Final = ("/api", "/healthz", "/readyz", "/selftest", "/metrics", "/metrics.json", "/metrics/history")
_OWN_PREFIXES: Final = ("/api/v1", "/console", "/in", "/portal")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")

Network = IPv4Network | IPv6Network
Role = Literal["gateway", "worker", "keeper", "console"]
_MAX_NUMBER = 1_000_000_000
MAX_STORED_NUMBER: Final = 10**12
"""Largest number in the settings of a stored source."""
Positive = Annotated[float, Field(gt=0, le=_MAX_NUMBER)]
NotNegative = Annotated[float, Field(ge=0, le=_MAX_NUMBER)]
# At most a century, so that no time that is computed with them is outside of the calendar.
Days = Annotated[float, Field(gt=0, le=36_500)]
DaysOrZero = Annotated[float, Field(ge=0, le=36_500)]
Hours = Annotated[float, Field(gt=0, le=876_000)]
HoursOrZero = Annotated[float, Field(ge=0, le=876_000)]
PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1, le=MAX_STORED_NUMBER)]
"""A positive number of a source, which may be stored."""
Encodings = tuple[Literal["gzip", "deflate"], ...]


def split_address(text: str) -> tuple[str, int]:
    """Return the address, without brackets, and the port of ``address:port``. Raises ValueError with an example."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"must be an address and a port, such as {_complete_address(text)}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _complete_address(text: str) -> str:
    """Return an example of an address, with the port or the host that *text* has."""
    if (port := text.removeprefix(":")).isascii() and port.isdigit() and int(port) <= 65_535:
        return f'"127.0.0.1:{port}" or "0.0.0.0:{port}"'
    if re.fullmatch(r"[A-Za-z0-9.-]+", text):
        return f'"{text}:8080"'
    return '"127.0.0.1:8080" or "[::1]:8080"'


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _address(text: str) -> str:
    split_address(text)
    return text


_HOST: Final = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:[0-9]+)?(/\S*)?|localhost(:[0-9]+)?(/\S*)?")


def check_base_url(text: str) -> str:
    """Return an address without a slash at the end; empty for none. Raises ValueError."""
    if text and (urlsplit(text).scheme not in {"http", "https"} or not urlsplit(text).netloc):
        example = text if _HOST.fullmatch(text) else "hooks.example.com"
        scheme = "http" if example.startswith("localhost") else "https"
        raise ValueError(f'must be an address such as "{scheme}://{example}"')
    return text.rstrip("/")


def _origin(text: str) -> str:
    # The origin is written into a header of every portal page.
    parts = urlsplit(text)
    is_origin = parts.scheme in {"http", "https"} and text == f"{parts.scheme}://{parts.netloc}"
    if not is_origin or not _is_plain(parts.netloc):
        raise ValueError('must be an origin, without a path, such as "https://app.example.com"')
    return text


def _web_origin(text: str) -> str:
    # Compared with the Origin header, which browsers write in one way.
    if text == "*":
        raise ValueError('"*" would let every website in; list each origin, such as "https://app.example.com"')
    _origin(text)
    scheme, _, authority = text.partition("://")
    if "*" in text:
        raise ValueError(f"{text} is a pattern; list each origin, such as {scheme}://app.example.com")
    canonical = text.lower().removesuffix(":443" if scheme == "https" else ":80")
    if text != canonical:
        raise ValueError(f"browsers write this origin as {canonical}")
    if urlsplit(text).hostname is None or authority.startswith(":"):
        raise ValueError('must have a host, such as "https://app.example.com"')
    return text


def check_mount_path(text: str) -> str:
    """Return the path at which an app mounts an ASGI application. Raises ValueError."""
    parts = text[1:].split("/")
    is_plain = text.isascii() and text.isprintable() and not set(text) & set("?# %\\")
    is_named = text == "/" or not {"", ".", ".."} & set(parts)
    if not text.startswith("/") or not is_plain or not is_named:
        raise ValueError('must be the path that an app mounts, such as "/api/rentprog"')
    return text


def _key_set_url(text: str) -> str:
    if text:
        parts = urlsplit(check_base_url(text))
        if parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
            raise ValueError("must begin with https://, because anybody on the way could replace the keys")
    return text


def _is_plain(authority: str) -> bool:
    return authority != "" and all(char.isascii() and (char.isalnum() or char in "-.:*[]") for char in authority)


def _proxy(text: str) -> str:
    schemes = {"http", "https", "socks5", "socks5h"}
    if (
        text
        and not text.startswith(("env:", "file:"))
        and (urlsplit(text).scheme not in schemes or not urlsplit(text).hostname)
    ):
        raise ValueError('must be an address such as "http://proxy.example.com:3128" or "socks5://10.0.0.5:1080"')
    return text


def _network(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return ip_network(value)
    except ValueError as error:
        fix = f'; write "{whole}"' if (whole := _whole_network(value)) else ""
        raise ValueError(f'must be a network such as "10.0.0.0/8": {error}{fix}') from None


def _whole_network(text: str) -> Network | None:
    """Return the network that contains an address with a prefix length; None if it is none."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _database_url(text: str) -> str:
    return text if not text or text.startswith(("env:", "file:")) else read_database_url(text)


def read_database_url(text: str) -> str:
    """Return the URL of PostgreSQL without the driver that SQLAlchemy's URLs name; raise ValueError if it is none."""
    scheme, separator, rest = text.partition("://")
    dialect, _, _driver = scheme.partition("+")
    if not separator or dialect not in {"postgresql", "postgres"}:
        raise ValueError('must be a postgresql:// URL, "env:NAME", "file:PATH", or empty for the embedded server')
    try:
        _ = urlsplit(f"{dialect}://{rest}").port
    except ValueError:
        if "@" in rest and "@" not in urlsplit(f"{dialect}://{rest}").netloc:
            fix = "write %2F for /, %3F for ? and %23 for #"
            raise ValueError(f"has a character in its user or password that ends them; {fix}") from None
        if "," not in rest:  # several hosts, as libpq takes them
            raise ValueError("has no number as its port; write postgresql://USER:PASSWORD@HOST:5432/NAME") from None
    return f"{dialect}://{rest}"


def _secret(text: str) -> str:
    scheme, colon, rest = text.partition(":")
    if not text or (scheme in {"env", "file"} and colon and not rest):
        raise ValueError('must not be empty; write "env:NAME" or "file:PATH"')
    if (
        colon
        and scheme not in {"env", "file"}
        and difflib.get_close_matches(scheme.strip().lower(), ["env", "file"], cutoff=0.6)
    ):
        raise ValueError(f'starts with {scheme + ":"!r}; write "env:NAME" or "file:PATH"')
    if colon and scheme == "env" and not _VARIABLE.fullmatch(rest):
        raise ValueError(f'has no name of a variable after "env:"; write "env:{_WITHOUT.sub("", rest) or "NAME"}"')
    return text


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WITHOUT: Final = re.compile(r"[^A-Za-z0-9_.-]")


def is_own_path(path: str) -> bool:
    """Return whether boathook itself has *path*, in any case of letters, or could have a path below it."""
    path = path.lower().rstrip("/")
    return path in _OWN_PATHS or is_own_prefix(path)


def is_own_prefix(path: str) -> bool:
    """Return whether *path* is below boathook's API, console, portal or sources."""
    path = f"{path.lower()}/"
    return any(path.startswith(f"{below}/") for below in _OWN_PREFIXES)


def _path(text: str) -> str:
    if (
        not text.startswith("/")
        or not text.isascii()
        or not text.isprintable()
        or any(char in text for char in "?# %\\")
    ):
        raise ValueError(
            'must start with "/" and contain neither "?", "#", "%", "\\" nor spaces, such as "/webhooks/stripe"'
        )
    *folders, _ = parts = text[1:].split("/")
    if text == "/" or "" in folders or not {".", ".."}.isdisjoint(parts):
        raise ValueError('must have a name in each part, not "." or "..", such as "/webhooks/stripe"')
    if is_own_path(text):
        raise ValueError(f"{text} belongs to boathook itself; choose another path")
    return text


def _app(text: str) -> str:
    former = text.removeprefix("boathook.apps.")
    if former != text:
        raise ValueError(
            f'{text} is now the app "{former}" of the package boathook-{former}: install it, and write "{former}"'
        )
    if not all(part.isidentifier() for part in text.split(".")):
        raise ValueError('must be the name of an installed app, such as "billing", or of a module, such as "shop.app"')
    return text


def _header_name(text: str) -> str:
    if not _HEADER_NAME.fullmatch(text):
        raise ValueError(f'{text!r} is not the name of a header, such as "x-delivery-id"')
    return text.lower()


def _retry(text: str) -> str:
    read_retry(text)
    return text


Secret = Annotated[str, AfterValidator(_secret)]
"""A secret, or a reference to it: ``env:NAME`` or ``file:PATH``."""
Bind = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_address)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
"""In lower case."""
SourcePath = Annotated[str, AfterValidator(_path)]
Networks = tuple[Annotated[Network, BeforeValidator(_network)], ...]
Proxy = Annotated[str, AfterValidator(_proxy)]
"""A proxy's URL, or a reference to it: ``env:NAME`` or ``file:PATH``; empty for none."""
RetrySchedule = Annotated[str, AfterValidator(_retry)]
"""A preset's name or comma-separated seconds, as `boathook.domain.policy.read_retry` parses them."""
AppEntry = Annotated[str, AfterValidator(_app)]
BaseUrl = Annotated[str, AfterValidator(check_base_url)]
Origin = Annotated[str, AfterValidator(_origin)]
WebOrigin = Annotated[str, AfterValidator(_web_origin)]
"""An origin as browsers write it in the Origin header."""
MountPath = Annotated[str, AfterValidator(check_mount_path)]
"""The path at which an app mounts an ASGI application."""
KeySetUrl = Annotated[str, AfterValidator(_key_set_url)]
MediaType = Annotated[str, AfterValidator(check_media_type)]
Status = Annotated[int, AfterValidator(check_status)]
"""A status that may be sent to a sender."""


class Table(BaseModel):
    """One table of settings: immutable, rejects unknown keys, and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
