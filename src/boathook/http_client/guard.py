"""Decides how every request connects: sockets with checked addresses, verified TLS, and the operator's proxy.

libcurl takes nothing from the environment and follows no redirect. A proxy hides which server is called. So it gets a
checked IP address, never a name, and a tunnel, in which TLS is verified against the name.
"""

import socket
import ssl
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import Any, Final

import pycurl

from boathook.config.tables import OutboundSettings
from boathook.domain.errors import ConfigError
from boathook.http_client.addresses import Address, Network, find_denial_on_host
from boathook.observability.log import get_logger

Options = list[tuple[int, Any]]
_LOG: Final = get_logger("http_client")

_SUPPRESS_CONNECT_HEADERS: Final = 265
"""From curl.h; pycurl has no name for it."""
_PROXY_CA: Final = {pycurl.CAINFO: pycurl.PROXY_CAINFO, pycurl.CAPATH: pycurl.PROXY_CAPATH}


def handle_options(settings: OutboundSettings) -> Options:
    """Return the options of every handle: TLS verified, no redirects, and nothing taken from the environment."""
    return [
        (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.REDIR_PROTOCOLS, pycurl.PROTO_HTTPS),
        (pycurl.FOLLOWLOCATION, 0),
        (pycurl.PROXY, ""),
        (pycurl.NOPROXY, "*"),
        (pycurl.NETRC, pycurl.NETRC_IGNORED),
        (pycurl.SSL_VERIFYPEER, 1),
        (pycurl.SSL_VERIFYHOST, 2),
        (pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
        *_ca_options(settings),
        (pycurl.HTTP09_ALLOWED, 0),
        (pycurl.PATH_AS_IS, 1),
        (pycurl.USERAGENT, ""),
        (_SUPPRESS_CONNECT_HEADERS, 1),
        (pycurl.NOSIGNAL, 1),
    ]


def _ca_options(settings: OutboundSettings) -> Options:
    """Return the options for trusted certificates: those of `outbound.ca_file`, or the system's."""
    paths = ssl.get_default_verify_paths()
    if file := settings.ca_file or paths.cafile:
        return [(pycurl.CAINFO, file)]
    return [(pycurl.CAPATH, paths.capath)] if paths.capath else []


def tls_context(settings: OutboundSettings) -> ssl.SSLContext:
    """Return the context of connections without libcurl; it verifies and offers what libcurl does.

    Raises:
        OSError: the trusted certificates cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("DEFAULT")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    paths = ssl.get_default_verify_paths()
    if file := settings.ca_file or paths.cafile:
        context.load_verify_locations(cafile=file)
    elif paths.capath:
        context.load_verify_locations(capath=paths.capath)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class ConnectGuard:
    """Opens the sockets of one connection, each after checking the actual IP address.

    Args:
        allow: networks that are allowed although they are not public.
        opened: list of the opened sockets; its owner closes them once libcurl has duplicated them.
    """

    __slots__ = ("_allow", "_opened", "fault", "has_opened", "refusal")

    def __init__(self, allow: Sequence[Network], opened: list[socket.socket]) -> None:
        self._allow = tuple(allow)
        self._opened = opened
        self.reset()

    def reset(self) -> None:
        """Begin another connection."""
        self.refusal: str | None = None
        """Why an address was refused."""
        self.fault: str | None = None
        """Why no socket could be opened."""
        self.has_opened = False
        """Whether a socket was opened, so that the connection is a new one."""

    def open_socket(self, _purpose: int, address: Any) -> socket.socket | int:
        """Return a socket, or SOCKET_BAD; libcurl's callback, which must not raise."""
        try:
            # After the first denied address of a name none is tried: names that mix allowed and denied addresses are
            # an attack.
            if self.refusal is None:
                self.refusal = self._check_address(address)
            if self.refusal is not None:
                return int(pycurl.SOCKET_BAD)
            opened = socket.socket(address.family, address.socktype, address.protocol)
        except OSError as error:
            _LOG.error("http_client_no_socket", error=str(error))
            self.fault = f"boathook could not open a socket: {error.strerror}"
            return int(pycurl.SOCKET_BAD)
        except Exception as error:  # noqa: BLE001 - libcurl cannot propagate exceptions
            _LOG.error("http_client_fault", exc_info=error)
            self.fault = f"boathook failed: {type(error).__name__}"
            return int(pycurl.SOCKET_BAD)
        self._opened.append(opened)
        self.has_opened = True
        return opened

    def _check_address(self, address: Any) -> str | None:
        if address.family not in {socket.AF_INET, socket.AF_INET6}:
            return "the name resolves to no internet address"
        reason = find_denial_on_host(address.addr[0], self._allow)
        return None if reason is None else f"the name resolves to a blocked address: {reason}"


class ProxyPolicy:
    """Decides which requests use the configured proxy, if any.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings) -> None:
        if settings.proxy.startswith(("env:", "file:")):
            raise ConfigError(f"outbound.proxy: {settings.proxy} was not read; resolve the settings' secrets first")
        self._settings = settings
        self._names: list[str] = []
        self._networks: list[Network] = []
        for text in settings.proxy_bypass:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError:
                self._names.append(text.lower().rstrip("."))

    def applies_to(self, address: Address) -> bool:
        """Return whether a request to *address* may use the proxy, based on its text."""
        if not self._settings.proxy:
            return False
        host = address.host.rstrip(".")
        return not any(host == name.lstrip(".") or (name[:1] == "." and host.endswith(name)) for name in self._names)

    def is_bypassed(self, addresses: Sequence[str]) -> bool:
        """Return whether all these addresses of a host are in networks that bypass the proxy."""
        numbers = [ip_address(address.partition("%")[0]) for address in addresses]
        return bool(numbers) and all(any(number in network for network in self._networks) for number in numbers)

    def options(self) -> Options:
        """Return the options of handles that use the proxy."""
        return [
            (pycurl.PROXY, self._settings.proxy),
            # Set explicitly: otherwise libcurl would read it from the environment.
            (pycurl.NOPROXY, ""),
            (pycurl.HTTPPROXYTUNNEL, 1),
            (pycurl.PROXYAUTH, pycurl.HTTPAUTH_BASIC),
            (pycurl.PROXY_SSL_VERIFYPEER, 1),
            (pycurl.PROXY_SSL_VERIFYHOST, 2),
            (pycurl.PROXY_SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
            *[(_PROXY_CA[option], value) for option, value in _ca_options(self._settings)],
        ]


def tunnel_options(address: Address, number: str) -> Options:
    """Return the options that make libcurl send the proxy *number* instead of the host name."""
    host, dialled = (f"[{text}]" if ":" in text else text for text in (address.host, number))
    return [(pycurl.CONNECT_TO, [f"{host}:{address.port}:{dialled}:{address.port}"])]


def resolve_options(address: Address, numbers: Sequence[str]) -> Options:
    """Return the options that make libcurl connect to *numbers*, already checked, instead of resolving the name."""
    listed = ",".join(f"[{number}]" if ":" in number else number for number in numbers)
    return [(pycurl.RESOLVE, [f"+{address.host.rstrip('.')}:{address.port}:{listed}"])]
