"""What every request of ours has in common: whom it trusts, what it ignores, and the gate each address passes."""

import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

import pycurl

from boathook.http_client.address_rules import Network, find_denial_on_host

Options = list[tuple[int, Any]]

_SUPPRESS_CONNECT_HEADERS: Final = 265
"""Of curl.h; pycurl has no name for it."""


def ca_options(ca_file: str | None) -> Options:
    """Return the options that say whose certificates are believed: the file's, or else the system's."""
    paths = ssl.get_default_verify_paths()
    file = ca_file or paths.cafile
    if file:
        return [(pycurl.CAINFO, file)]
    return [(pycurl.CAPATH, paths.capath)] if paths.capath else []


def common_options(ca_file: str | None, *, protocols: int) -> Options:
    """Return the options of every request: TLS verified, no redirects, and nothing taken from the environment."""
    return [
        (pycurl.PROTOCOLS, protocols),
        (pycurl.REDIR_PROTOCOLS, pycurl.PROTO_HTTPS),
        (pycurl.FOLLOWLOCATION, 0),
        (pycurl.PROXY, ""),
        (pycurl.NOPROXY, "*"),
        (pycurl.NETRC, pycurl.NETRC_IGNORED),
        (pycurl.SSL_VERIFYPEER, 1),
        (pycurl.SSL_VERIFYHOST, 2),
        (pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
        *ca_options(ca_file),
        (pycurl.HTTP09_ALLOWED, 0),
        (_SUPPRESS_CONNECT_HEADERS, 1),
        (pycurl.NOSIGNAL, 1),
    ]


class ConnectGuard:
    """Opens libcurl's sockets, each after judging the very address that is about to be dialled.

    Args:
        allow: networks that may be dialled although they are not public.
        opened: where the opened sockets are kept; whoever owns it closes them once libcurl has made its duplicates.
    """

    __slots__ = ("_allow", "_opened", "refusal")

    def __init__(self, allow: Sequence[Network], opened: list[socket.socket]) -> None:
        self._allow = tuple(allow)
        self._opened = opened
        self.refusal: str | None = None
        """Why an address was refused."""

    def open_socket(self, _purpose: int, address: Any) -> socket.socket | int:
        """Return a socket, or SOCKET_BAD; libcurl's callback."""
        # Of a name with good and bad addresses none is dialled after the first bad one: such names are made to deceive.
        if self.refusal is None:
            self.refusal = self._check_address(address)
        if self.refusal is not None:
            return int(pycurl.SOCKET_BAD)
        opened = socket.socket(address.family, address.socktype, address.protocol)
        self._opened.append(opened)
        return opened

    def _check_address(self, address: Any) -> str | None:
        if address.family not in {socket.AF_INET, socket.AF_INET6}:
            return "the name resolves to no internet address"
        why = find_denial_on_host(address.addr[0], self._allow)
        return None if why is None else f"the name resolves to a blocked address: {why}"
