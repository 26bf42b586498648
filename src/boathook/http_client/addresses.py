"""Reads the address of a request, and refuses what is not plainly one, before anything is asked of anybody.

What libcurl dials is put together from the parts read here, so the two cannot read one address differently.
"""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote, urlsplit

MAX_URL: Final = 2_000
"""Longest address in characters."""

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_PATH: Final = re.compile(r"[!-\[\]-~]*")
"""Printable ASCII but spaces and backslashes."""
_PORTS: Final = {"http": 80, "https": 443}

_NO_WEB: Final = frozenset({
    1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109, 110,
    111, 113, 115, 117, 119, 123, 135, 137, 138, 139, 143, 161, 162, 179, 389, 427, 445, 465, 500, 502, 512, 513, 514,
    515, 526, 530, 531, 532, 540, 543, 544, 548, 554, 556, 563, 587, 601, 623, 631, 636, 873, 989, 990, 993, 995, 1099,
    1433, 1521, 1719, 1720, 1723, 1883, 2049, 2375, 2376, 2377, 2379, 2380, 3306, 3389, 3659, 4045, 4190, 4369, 5060,
    5061, 5432, 5671, 5672, 5900, 5984, 6000, 6379, 6380, 6443, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 7000,
    7001, 8125, 8300, 8500, 9042, 9092, 9160, 9200, 9300, 10080, 10250, 10255, 11211, 15672, 25672, 26257, 27017, 27018,
    27019, 61613, 61616,
})  # fmt: skip
"""Ports of services that are no receivers of webhooks: mail, names, shells, databases, brokers, orchestrators."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address that may be dialled, as far as its text tells."""

    url: str
    """Put together anew, without user information and fragment."""
    scheme: str
    host: str
    """In lower case and without brackets."""
    port: int
    is_number: bool
    """Whether the host is an IP address in its usual spelling, and so need not be looked up."""
    user: tuple[str, str] | None = field(default=None, repr=False)
    """User name and password, where the address held them."""


def read_address(url: str, *, ports: frozenset[int] = frozenset(), require_https: bool = False) -> Address:
    """Return the parts of *url*.

    Args:
        url: what somebody entered as the address of an endpoint.
        ports: the ports that are dialled; empty for all but those of well-known services that are no web servers.
        require_https: whether plain http is refused.

    Raises:
        ValueError: it is none that is dialled; the message says why.
    """
    if len(url) > MAX_URL:
        raise ValueError(f"the address is longer than {MAX_URL} characters")
    if not url.isascii():
        raise ValueError("the address holds characters that are not ASCII; write the name as xn--..., the rest as %..")
    if not _PATH.fullmatch(url):
        raise ValueError("the address holds a space, a control character or a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("the address cannot be read") from None
    scheme = parts.scheme
    if scheme not in _PORTS or (require_https and scheme != "https"):
        raise ValueError("the address must start with https://" + ("" if require_https else " or http://"))
    host, user = _read_authority(parts.netloc)
    port = port or _PORTS[scheme]
    _check_port(port, ports)
    tail = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = host if port == _PORTS[scheme] else f"{host}:{port}"
    bare = host.strip("[]").lower()
    return Address(f"{scheme}://{shown}{tail}", scheme, bare, port, _is_number(bare), user)


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _read_authority(authority: str) -> tuple[str, tuple[str, str] | None]:
    """Return the host as written, and user name and password."""
    info, at, place = authority.rpartition("@")
    if "@" in info:
        raise ValueError("the address holds more than one @ before its path")
    host = re.sub(r":[0-9]*\Z", "", place)
    if not _HOST.fullmatch(host):
        raise ValueError("the address has no plain host: a name of letters, digits, - and ., or an IP address")
    if not at:
        return host, None
    name, _, password = info.partition(":")
    return host, (unquote(name), unquote(password))


def _check_port(port: int, ports: frozenset[int]) -> None:
    if ports and port not in ports:
        raise ValueError(f"port {port} is none of outbound.ports")
    if not ports and port in _NO_WEB:
        raise ValueError(f"port {port} belongs to a service that is no web server; outbound.ports may list it")
