"""Requests as they were before our own proxies passed them on."""

from typing import Any

from boathook.config.types import Network
from boathook.http.limits import client_address, is_trusted
from boathook.ingest.app import read_headers


def apply_forwarded_headers(scope: dict[str, Any], trusted: tuple[Network, ...]) -> dict[str, Any]:
    """Return an ASGI scope with the client and the scheme that a trusted proxy vouches for."""
    peer, port = scope["client"]
    if not is_trusted(peer, trusted):
        return scope
    headers = read_headers(scope["headers"])
    client = client_address(peer, headers.get("x-forwarded-for"), trusted)
    is_secure = headers.get("x-forwarded-proto", "").strip().lower() == "https"
    scheme = f"{scope['scheme']}s" if is_secure else scope["scheme"]
    return {**scope, "client": (client, port), "scheme": scheme}
