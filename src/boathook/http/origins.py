"""Whose page a request comes from: what browsers say in `Origin`, compared with where we are."""

from urllib.parse import urlsplit


def authority(url: str) -> str:
    """Return host and port of an address, without a port that its scheme implies; empty for what is no address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    host = parts.hostname or ""
    return host if port in {None, 80, 443} else f"{host}:{port}"


def is_own_origin(origin: str, host: str, public_url: str) -> bool:
    """Return whether an origin is the host that was asked, or the address that we are known by."""
    return authority(origin) in {authority(f"//{host}"), authority(public_url)} - {""}
