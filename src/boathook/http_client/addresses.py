"""Parses the URL of a request, and checks the IP addresses it may connect to, before anything is sent.

A host name proves nothing: its owner may point it at any address, and at another one a second later. So IP addresses
are checked when connecting. The table is boathook's own, from IANA's registries of special-purpose addresses (RFC
6890), because the definition of "private" differs between versions of Python and of libraries.

The URL for libcurl is rebuilt from the parts parsed here, so the two parsers cannot disagree.
"""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import quote, unquote, urlsplit

Network = IPv4Network | IPv6Network

MAX_URL: Final = 2_000
"""Maximum length of a URL in characters."""
ANY_NETWORK: Final[tuple[Network, ...]] = (ip_network("0.0.0.0/0"), ip_network("::/0"))
"""For requests to URLs configured by the operator, such as a proxy's."""

_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_PATH: Final = re.compile(r"[!-\[\]-~]*")
"""Printable ASCII except spaces and backslashes."""
_AUTHORITY: Final = re.compile(r"[^/?#\\]*")
_PORT: Final = re.compile(r":[0-9]*\Z")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_MAX_LABEL: Final = 63
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
"""Ports of services that are not web servers: mail, DNS, shells, databases, brokers, orchestrators."""


PUBLIC_6: Final = IPv6Network("2000::/3")
"""All publicly allocated addresses; everything else is denied."""

DENIED_4: Final = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "this machine"),
        ("168.63.129.16/32", "Azure's own services"),
        ("169.254.0.0/16", "link-local, where clouds keep credentials"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.31.196.0/24", "anycast of name servers"),
        ("192.52.193.0/24", "tunnels of multicast"),
        ("192.88.99.0/24", "relays of 6to4"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "anycast of name servers"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)

DENIED_6: Final = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        # First the ranges that embed an IPv4 address: they reach it where a router translates.
        ("::ffff:0:0/96", "an IPv4 address in disguise"),
        ("64:ff9b::/96", "an IPv4 address behind a translator (NAT64)"),
        ("64:ff9b:1::/48", "an IPv4 address behind a local translator (NAT64)"),
        ("2001::/32", "an IPv4 address behind a tunnel (Teredo)"),
        ("2002::/16", "an IPv4 address behind a tunnel (6to4)"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("2620:4f:8000::/48", "anycast of name servers"),
        ("3fff::/20", "for documentation"),
        # Listed only for a clear message; they are outside the public range anyway.
        ("::1/128", "this machine"),
        ("::/128", "this machine"),
        ("::/96", "an IPv4 address in disguise"),
        ("::ffff:0:0:0/96", "an IPv4 address behind a translator (SIIT)"),
        ("100::/64", "for packets to be dropped"),
        ("100:0:0:1::/64", "reserved for protocols"),
        ("5f00::/16", "for segment routing"),
        ("fec0::/10", "private (site-local)"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
    )
)


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL that may be requested, as far as its text shows."""

    url: str
    """Rebuilt from the parts, without user information and fragment."""
    scheme: str
    host: str
    """In lower case and without brackets."""
    port: int
    is_number: bool
    """Whether the host is an IP address in its usual notation, which needs no DNS lookup."""
    user: tuple[str, str] | None = field(default=None, repr=False)
    """User name and password, if the URL contains them."""

    @property
    def origin(self) -> str:
        """Scheme, host and, if it is not the scheme's own, port; the rest of a URL may contain tokens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")


def read_address(url: str, *, ports: frozenset[int] = frozenset(), require_https: bool = False) -> Address:
    """Return the parts of *url*.

    Args:
        url: the URL of an endpoint, as entered by a user.
        ports: the allowed ports; empty allows all except those of well-known services that are not web servers.
        require_https: whether plain http is rejected.

    Raises:
        ValueError: the URL is not allowed; the message says why.
    """
    if len(url) > MAX_URL:
        raise ValueError(f"the address is longer than {MAX_URL} characters")
    if not url.isascii():
        url = _encode(url)
    if not _PATH.fullmatch(url):
        raise ValueError("the address contains a space, a control character or a backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("the address cannot be read") from None
    scheme = parts.scheme
    if scheme not in _PORTS or (require_https and scheme != "https"):
        raise ValueError("the address must start with https://" + ("" if require_https else " or http://"))
    host, user = _read_authority(parts.netloc)
    if port == 0:
        raise ValueError("port 0 cannot be requested; write another one, or leave it out")
    port = port or _PORTS[scheme]
    _check_port(port, ports)
    tail = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    authority = host if port == _PORTS[scheme] else f"{host}:{port}"
    bare = host.strip("[]").lower()
    return Address(f"{scheme}://{authority}{tail}", scheme, bare, port, _is_number(bare), user)


def _encode(url: str) -> str:
    """Return a URL in ASCII, as browsers encode it (https://url.spec.whatwg.org): the host by IDNA, the rest in UTF-8.

    Raises:
        ValueError: the host is not a name, or the URL contains an unpaired surrogate.
    """
    if any("\ud800" <= char <= "\udfff" for char in url):
        raise ValueError("the address contains an unpaired surrogate, which is not a character")
    scheme, mark, rest = url.partition("://")
    authority = _AUTHORITY.match(rest)
    assert authority is not None
    info, at, location = authority[0].rpartition("@")
    host, colon, port = location.rpartition(":") if _PORT.search(location) else (location, "", "")
    encoded = "".join((scheme, mark, info, at, _encode_host(host), colon, port, rest[authority.end() :]))
    encoded = _NOT_ASCII.sub(lambda part: quote(part[0]), encoded)
    if len(encoded) > MAX_URL:
        raise ValueError(f"the address is longer than {MAX_URL} characters once it is encoded")
    return encoded


def _encode_host(host: str) -> str:
    if host.isascii():
        return host
    # Imported only here, as most hosts have ASCII names.
    import idna

    try:
        labels = idna.uts46_remap(host, std3_rules=False, transitional=False).split(".")
        encoded = ".".join(label if label.isascii() else _encode_label(label) for label in labels)
    except (idna.IDNAError, UnicodeError) as error:
        raise ValueError(f"the address's host {host!r} is not an international domain name: {error}") from None
    # Some characters become / or @, which would end the host.
    if not _HOST.fullmatch(encoded):
        raise ValueError(f"the address's host {host!r} is read as {encoded!r}, which is not a host")
    return encoded


def _encode_label(label: str) -> str:
    import idna

    idna.check_initial_combiner(label)
    idna.check_bidi(label)
    encoded = f"xn--{label.encode('punycode').decode('ascii')}"
    if len(encoded) > _MAX_LABEL:
        raise idna.IDNAError(f"{label!r} is too long")
    return encoded


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _read_authority(authority: str) -> tuple[str, tuple[str, str] | None]:
    """Return the host as written, and user name and password."""
    info, at, location = authority.rpartition("@")
    if "@" in info:
        raise ValueError("the address contains more than one @ before its path")
    host = _PORT.sub("", location)
    if not _HOST.fullmatch(host):
        raise ValueError("invalid host: write a name of letters, digits, - and ., or an IP address")
    if not at:
        return host, None
    name, _, password = info.partition(":")
    return host, (unquote(name), unquote(password))


def _check_port(port: int, ports: frozenset[int]) -> None:
    if ports and port not in ports:
        raise ValueError(f"port {port} is not in outbound.ports")
    if not ports and port in _NO_WEB:
        raise ValueError(
            f"port {port} belongs to a service that is not a web server; add it to outbound.ports to allow it"
        )


def find_denial(address: str, allow: Sequence[Network] = ()) -> str | None:
    """Return why an IP address may not be connected to, or None if it may.

    Args:
        address: as a socket reports it: a dotted quad, or an IPv6 address, possibly with a zone.
        allow: the operator's networks, which override every denial.
    """
    try:
        number = ip_address(address)
    except ValueError:
        return "it is not an address"
    if _is_allowed(number, allow):
        return None
    if isinstance(number, IPv4Address):
        return next((reason for network, reason in DENIED_4 if number in network), None)
    return _check_ipv6(number)


def _check_ipv6(number: IPv6Address) -> str | None:
    for network, reason in DENIED_6:
        if number in network:
            return reason
    return None if number in PUBLIC_6 else "not handed out to the public"


def find_denial_on_host(address: str, allow: Sequence[Network] = ()) -> str | None:
    """Return the result of `find_denial`, but also deny this machine's own addresses, even public ones.

    Services that a firewall hides from the internet often answer clients on the same machine.
    """
    reason = find_denial(address, allow)
    if reason is None and not _is_allowed(ip_address(address), allow) and _is_own(address):
        return "this machine's own"
    return reason


def _is_allowed(number: IPv4Address | IPv6Address, allow: Sequence[Network]) -> bool:
    return any(number in network for network in allow if network.version == number.version)


def _is_own(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
