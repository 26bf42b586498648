"""Compares the `Origin` header of browsers with the server's own address."""

from urllib.parse import urlsplit


def authority(url: str) -> str:
    """Return host and port of a URL, without its scheme's default port; empty if it is not a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    host = parts.hostname or ""
    return host if port in {None, 80, 443} else f"{host}:{port}"


def is_own_origin(origin: str, host: str, public_url: str) -> bool:
    """Return whether *origin* is the requested host or the host of the public URL."""
    return authority(origin) in {authority(f"//{host}"), authority(public_url)} - {""}
