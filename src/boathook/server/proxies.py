"""Restores the client address and scheme of requests that trusted proxies forwarded."""

from typing import Any

from boathook.config.types import Network
from boathook.http.limits import client_address, is_trusted
from boathook.ingest.app import read_headers


def apply_forwarded_headers(scope: dict[str, Any], trusted: tuple[Network, ...]) -> dict[str, Any]:
    """Return the ASGI scope with the client and scheme that a trusted proxy reports."""
    peer, port = scope["client"]
    if not is_trusted(peer, trusted):
        return scope
    headers = read_headers(scope["headers"])
    client = client_address(peer, headers.get("x-forwarded-for"), trusted)
    is_secure = headers.get("x-forwarded-proto", "").strip().lower() == "https"
    scheme = f"{scope['scheme']}s" if is_secure else scope["scheme"]
    return {**scope, "client": (client, port), "scheme": scheme}
