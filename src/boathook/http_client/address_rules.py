"""Which addresses a request of ours may go to: public ones, and what the owner allows besides.

Names prove nothing: a stranger may point any name at any address, and at another one a moment later. So the address is
judged at the moment of dialling, as a number. The table is boathook's own, drawn from the registries of special-purpose
addresses (RFC 6890, kept by IANA); Python's and the libraries' notions of "private" differ between versions.
"""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Network = IPv4Network | IPv6Network

_PUBLIC_6: Final = IPv6Network("2000::/3")
"""All that is handed out to the public; everything else is refused whatever it is for."""

_DENIED_4: Final = tuple(
    (IPv4Network(network), why)
    for network, why in (
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

_DENIED_6: Final = tuple(
    (IPv6Network(network), why)
    for network, why in (
        # Those that carry an IPv4 address inside come first: they reach it where a router translates.
        ("::ffff:0:0/96", "an IPv4 address in disguise"),
        ("64:ff9b::/96", "an IPv4 address behind a translator (NAT64)"),
        ("64:ff9b:1::/48", "an IPv4 address behind a local translator (NAT64)"),
        ("2001::/32", "an IPv4 address behind a tunnel (Teredo)"),
        ("2002::/16", "an IPv4 address behind a tunnel (6to4)"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("2620:4f:8000::/48", "anycast of name servers"),
        ("3fff::/20", "for documentation"),
        # Named for the reader of the refusal; they lie outside of what is public anyway.
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


def find_denial(address: str, allow: Sequence[Network] = ()) -> str | None:
    """Return why an address may not be dialled; None where it may.

    Args:
        address: as a socket has it: a dotted quad, or an IPv6 address perhaps with a zone.
        allow: networks of the owner's that win over every refusal.
    """
    try:
        number = ip_address(address)
    except ValueError:
        return "it is no address"
    if _is_allowed(number, allow):
        return None
    if isinstance(number, IPv4Address):
        return next((why for network, why in _DENIED_4 if number in network), None)
    return _judge_6(number)


def _judge_6(number: IPv6Address) -> str | None:
    for network, why in _DENIED_6:
        if number in network:
            return why
    return None if number in _PUBLIC_6 else "not handed out to the public"


def find_denial_on_host(address: str, allow: Sequence[Network] = ()) -> str | None:
    """Return as `find_denial` does, and refuse this machine's own addresses, though they may be public ones.

    Services that a firewall hides from the world often answer whoever calls from inside.
    """
    why = find_denial(address, allow)
    if why is None and not _is_allowed(ip_address(address), allow) and _is_own(address):
        return "this machine's own"
    return why


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
