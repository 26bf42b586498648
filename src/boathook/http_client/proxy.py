"""The way through a proxy: which requests take it, and how.

A proxy hides whom it calls. So it is told an address that has been judged, never a name, and through a tunnel, in which
TLS is verified against the name. Proxy variables of the environment mean nothing here.
"""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Final

import pycurl

from boathook.config.tables import OutboundSettings
from boathook.domain.errors import ConfigError
from boathook.http_client.address_rules import Network
from boathook.http_client.addresses import Address
from boathook.http_client.connect_guard import Options, ca_options

ANY_NETWORK: Final[tuple[Network, ...]] = (ip_network("0.0.0.0/0"), ip_network("::/0"))
"""The proxy is the owner's own choice, wherever it is."""


class ProxyPolicy:
    """The proxy of the settings, perhaps none."""

    def __init__(self, settings: OutboundSettings) -> None:
        if settings.proxy.startswith(("env:", "file:")):
            raise ConfigError(f"outbound.proxy: {settings.proxy} was not read; resolve the settings' secrets first")
        self._proxy = settings.proxy
        self._ca_file = settings.ca_file or None
        self._names: list[str] = []
        self._networks: list[Network] = []
        for text in settings.proxy_bypass:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError:
                self._names.append(text.lower().rstrip("."))

    def applies_to(self, address: Address) -> bool:
        """Return whether a request to *address* may go through the proxy, by the address's text."""
        if not self._proxy:
            return False
        host = address.host.rstrip(".")
        return not any(host == name.lstrip(".") or (name[:1] == "." and host.endswith(name)) for name in self._names)

    def is_bypassed(self, addresses: Sequence[str]) -> bool:
        """Return whether all these addresses of a host lie in networks that are reached without the proxy."""
        numbers = [ip_address(address.partition("%")[0]) for address in addresses]
        return bool(numbers) and all(any(number in network for network in self._networks) for number in numbers)

    def options(self) -> Options:
        """Return the options of handles that go through the proxy."""
        return [
            (pycurl.PROXY, self._proxy),
            # Not left out: libcurl would then read it from the environment.
            (pycurl.NOPROXY, ""),
            (pycurl.HTTPPROXYTUNNEL, 1),
            (pycurl.PROXYAUTH, pycurl.HTTPAUTH_BASIC),
            (pycurl.PROXY_SSL_VERIFYPEER, 1),
            (pycurl.PROXY_SSL_VERIFYHOST, 2),
            (pycurl.PROXY_SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
            *[(_OF_PROXY[option], value) for option, value in ca_options(self._ca_file)],
        ]


_OF_PROXY: Final = {pycurl.CAINFO: pycurl.PROXY_CAINFO, pycurl.CAPATH: pycurl.PROXY_CAPATH}


def pin(address: Address, number: str) -> list[str]:
    """Return the value of CONNECT_TO that makes libcurl ask for *number* where the address has a name."""
    bracketed = [f"[{text}]" if ":" in text else text for text in (address.host, number)]
    return [f"{bracketed[0]}:{address.port}:{bracketed[1]}:{address.port}"]
